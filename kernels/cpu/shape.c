/* shape.c - filling, copying and casting. */
#include "cast.h"
#include "loop.h"

/* ---- fill, arange ---- */

typedef struct filling {
    real *y;
    real value;
} filling;

static void fill_row(const void *arg, const loop_row *row)
{
    const filling *f = arg;
    real *y = f->y + row->at[0], value = f->value;
    int64_t n = row->n, step = row->step[0];
    if (step == 1)
        for (int64_t i = 0; i < n; i++) y[i] = value;
    else
        for (int64_t i = 0; i < n; i++) y[i * step] = value;
}

int CPU(fill)(ul_stream *s, void *y, double value, const ul_loop *l)
{
    filling f = {y, real_of_double(value)};
    loop_walk(s, l, 1, fill_row, &f);
    return 0;
}

typedef struct sequence {
    real *y;
    double start, step;
} sequence;

static void arange_piece(const void *arg, int64_t begin, int64_t end)
{
    const sequence *q = arg;
    for (int64_t i = begin; i < end; i++) {
#if UL_TYPE_FLOAT
        q->y[i] = real_of_double(q->start + q->step * (double)i);
#else
        /* Beyond 2^53 a double would skip integers; a long double has 64 bits. */
        long double x = (long double)q->start + (long double)q->step * (long double)i;
        int fits = x > -0x1p63L && x < 0x1p63L;
        q->y[i] = real_of_int(fits ? (int64_t)x : int_of_double((double)x));
#endif
    }
}

int CPU(arange)(ul_stream *s, void *y, double start, double step, int64_t n)
{
    sequence q = {y, start, step};
    flat_walk(s, n, arange_piece, &q);
    return 0;
}

/* ---- copy ---- */

typedef struct copying {
    real *y;
    const real *x;
} copying;

static void copy_row(const void *arg, const loop_row *row)
{
    const copying *c = arg;
    real *y = c->y + row->at[0];
    const real *x = c->x + row->at[1];
    int64_t n = row->n, y_step = row->step[0], x_step = row->step[1];
    if (y_step == 1 && x_step == 1)
        memcpy(y, x, (size_t)n * sizeof(real));
    else if (y_step == 1)
        for (int64_t i = 0; i < n; i++) y[i] = x[i * x_step];
    else
        for (int64_t i = 0; i < n; i++) y[i * y_step] = x[i * x_step];
}

/* A transpose: x is contiguous along one dim (its "rows" here), y along another (its "columns"). It
 * is copied in tiles two cache lines wide, those in blocks that fit the registers.
 */
enum { TILE = 128 / (int)sizeof(real), TILES_AT_ONCE = UL_GRAIN / (TILE * TILE), BLOCK = 8 };

typedef struct transposing {
    real *y;
    const real *x;
    ul_loop rest;           /* without the two dims */
    int64_t rows, cols;     /* extents of the two dims */
    int64_t y_step, x_step; /* of y from row to row, of x from column to column */
    int64_t row_tiles, col_tiles, tiles;
} transposing;

static inline void transpose_block(real *y, const real *x, int64_t y_step, int64_t x_step, int rows,
                                   int cols)
{
    real block[BLOCK][BLOCK];
    for (int j = 0; j < cols; j++)
        for (int i = 0; i < rows; i++) block[j][i] = x[j * x_step + i];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) y[i * y_step + j] = block[j][i];
}

static void transpose_tile(const transposing *t, real *y, const real *x, int rows, int cols)
{
    for (int i = 0; i < rows; i += BLOCK)
        for (int j = 0; j < cols; j += BLOCK) {
            real *to = y + i * t->y_step + j;
            const real *from = x + j * t->x_step + i;
            int n_rows = (int)smaller(BLOCK, rows - i), n_cols = (int)smaller(BLOCK, cols - j);
            if (n_rows == BLOCK && n_cols == BLOCK)
                transpose_block(to, from, t->y_step, t->x_step, BLOCK, BLOCK);
            else
                transpose_block(to, from, t->y_step, t->x_step, n_rows, n_cols);
        }
}

static void transpose_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const transposing *t = arg;
    int64_t end = smaller(t->tiles, (piece + 1) * TILES_AT_ONCE);
    for (int64_t tile = piece * TILES_AT_ONCE; tile < end; tile++) {
        int64_t col = tile % t->col_tiles * TILE, row = tile / t->col_tiles % t->row_tiles * TILE;
        int64_t rest = tile / t->col_tiles / t->row_tiles;
        real *y = t->y + row * t->y_step + col;
        const real *x = t->x + col * t->x_step + row;
        for (int d = t->rest.ndim - 1; d >= 0; d--) {
            int64_t i = rest % t->rest.shape[d];
            rest /= t->rest.shape[d];
            y += i * t->rest.stride[0][d];
            x += i * t->rest.stride[1][d];
        }
        int rows = (int)smaller(TILE, t->rows - row), cols = (int)smaller(TILE, t->cols - col);
        transpose_tile(t, y, x, rows, cols);
    }
}

/* The dim along which operand o is contiguous, or -1. */
static int contiguous_dim(const ul_loop *l, int o)
{
    for (int d = l->ndim - 1; d >= 0; d--)
        if (l->stride[o][d] == 1 && l->shape[d] >= 8) return d;
    return -1;
}

static void transpose(ul_stream *s, real *y, const real *x, const ul_loop *l, int row_dim,
                      int col_dim)
{
    transposing t = {.y = y,
                     .x = x,
                     .rest = {.ndim = 0},
                     .rows = l->shape[row_dim],
                     .cols = l->shape[col_dim],
                     .y_step = l->stride[0][row_dim],
                     .x_step = l->stride[1][col_dim]};
    for (int d = 0; d < l->ndim; d++) {
        if (d == row_dim || d == col_dim) continue;
        int to = t.rest.ndim++;
        t.rest.shape[to] = l->shape[d];
        for (int o = 0; o < 2; o++) t.rest.stride[o][to] = l->stride[o][d];
    }
    t.row_tiles = (t.rows + TILE - 1) / TILE;
    t.col_tiles = (t.cols + TILE - 1) / TILE;
    t.tiles = t.row_tiles * t.col_tiles * loop_size(&t.rest);
    ul_parallel(s, (t.tiles + TILES_AT_ONCE - 1) / TILES_AT_ONCE, transpose_piece, &t);
}

int CPU(copy)(ul_stream *s, void *y, const void *x, const ul_loop *l)
{
    int col_dim = contiguous_dim(l, 0), row_dim = contiguous_dim(l, 1);
    if (row_dim >= 0 && col_dim >= 0 && row_dim != col_dim) {
        transpose(s, y, x, l, row_dim, col_dim);
        return 0;
    }
    copying c = {y, x};
    loop_walk(s, l, 2, copy_row, &c);
    return 0;
}

/* ---- casts ---- */

typedef struct casting {
    real *y;
    const void *x;
} casting;

/* The kernel from_<source>: `convert` makes a real of an element x of that type. */
#define CAST(source, type, convert)                                                 \
    static void from_##source##_row(const void *arg, const loop_row *row)           \
    {                                                                               \
        const casting *c = arg;                                                     \
        real *y = c->y + row->at[0];                                                \
        const type *from = (const type *)c->x + row->at[1];                         \
        int64_t n = row->n, y_step = row->step[0], x_step = row->step[1];           \
        if (y_step == 1 && x_step == 1) {                                           \
            for (int64_t i = 0; i < n; i++) {                                       \
                type x = from[i];                                                   \
                y[i] = convert;                                                     \
            }                                                                       \
        } else {                                                                    \
            for (int64_t i = 0; i < n; i++) {                                       \
                type x = from[i * x_step];                                          \
                y[i * y_step] = convert;                                            \
            }                                                                       \
        }                                                                           \
    }                                                                               \
    int CPU(from_##source)(ul_stream * s, void *y, const void *x, const ul_loop *l) \
    {                                                                               \
        if (UL_TYPE_IS(source)) return CPU(copy)(s, y, x, l);                       \
        casting c = {y, x};                                                         \
        loop_walk(s, l, 2, from_##source##_row, &c);                                \
        return 0;                                                                   \
    }

CAST(f32, float, real_of_f32(x))
CAST(bf16, uint16_t, real_of_f32(ul_bf16_to_f32(x)))
CAST(f64, double, real_of_double(x))
CAST(i32, int32_t, real_of_int(x))
CAST(i64, int64_t, real_of_int(x))
CAST(u8, uint8_t, real_of_int(x))

/* ---- accumulate ---- */

#if UL_TYPE_FLOAT
typedef struct accumulation {
    acc *y;
    const real *x;
} accumulation;

static void accumulate_piece(const void *arg, int64_t begin, int64_t end)
{
    const accumulation *a = arg;
    acc *y = a->y;
    const real *x = a->x;
    INDEPENDENT for (int64_t i = begin; i < end; i++) y[i] += load(x[i]);
}

int CPU(accumulate)(ul_stream *s, void *y, const void *x, int64_t n)
{
    accumulation a = {y, x};
    flat_walk(s, n, accumulate_piece, &a);
    return 0;
}
#endif
