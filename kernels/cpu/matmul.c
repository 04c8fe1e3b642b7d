/* matmul.c - gemm: packed, in blocks of c that each thread computes on its own.
 *
 * A block of c is summed up in scratch, over pieces of k whose length depends on k alone: for each
 * piece the thread packs its rows of a and its columns of b and multiplies them tile by tile. What
 * alpha, beta, bias and rounding do happens once, when the block is done. So every element is one
 * and the same sum however c is cut up, and bf16 is rounded once. Packing costs each operand again
 * for each block, which is a few percent at this size of block, and no thread waits for another.
 *
 * Few rows or few columns would not pay for packing: there the large operand is read in place.
 */
#include "pack.h"

/* The largest block, and the longest piece of k in words. Rows and columns are many because packing
 * must pay, pieces long because each walks over the whole block; together they fill a thread's
 * scratch.
 */
#if UL_TYPE_IS(f64)
enum { BLOCK_ROWS = 384, BLOCK_COLS = 640, PANELS_COLS = 128, BLOCK_DEPTH = 384 };
#else
enum { BLOCK_ROWS = 512, BLOCK_COLS = 960, PANELS_COLS = 128, BLOCK_DEPTH = 768 };
#endif
/* Packed rows are a little longer than a piece, so that they do not fall on the same cache sets. */
enum { ROW_STEP = BLOCK_DEPTH + VL };
enum { SUM_SIZE = BLOCK_ROWS * BLOCK_COLS, ROWS_SIZE = BLOCK_ROWS * ROW_STEP };

_Static_assert((SUM_SIZE + ROWS_SIZE + BLOCK_DEPTH * PANELS_COLS) * sizeof(acc) <= UL_SCRATCH,
               "a block does not fit into the scratch of a thread");
_Static_assert(BLOCK_ROWS % VL == 0 && BLOCK_COLS % TILE_COLS == 0 && BLOCK_DEPTH % VL == 0,
               "packing fills whole vectors");

/* How few rows (or columns) are not packed, how many columns (or rows) they meet in one strip, and
 * their longest piece of k.
 */
enum { FEW = 4, FEW_WIDTH = 1024, FEW_DEPTH = 4096 };

/* Multiply-adds that are worth a fork, where the operands are packed and where they are read once.
 */
enum { WORTH = 1 << 19, WORTH_FEW = 1 << 15 };

typedef struct job {
    ul_stream *s;
    const ul_gemm *g;
    operand a, b;
    char *c;
    int few;                        /* blocks are strips of few rows or few columns */
    int64_t rows, cols;             /* of a block */
    int64_t row_blocks, col_blocks; /* in one matrix */
    int64_t group;                  /* blocks in one item of work */
} job;

/* A block of c in one matrix of the batch. */
typedef struct block {
    int64_t matrix, row, rows, col, cols;
} block;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* ---- what happens to a sum before it is stored ---- */

TILE_INLINE void finish_row(void *c, const acc *sum, const real *bias, int64_t n, acc alpha,
                            acc beta, const int c_acc)
{
    int64_t j = 0;
    for (; j + VL <= n; j += VL) {
        vec x = v_splat(alpha) * v_load_acc(sum + j);
        if (beta != 0)
            x += v_splat(beta) * (c_acc ? v_load_acc((acc *)c + j) : v_load((real *)c + j));
        if (bias) x += v_load(bias + j);
        if (c_acc)
            v_store_acc((acc *)c + j, x);
        else
            v_store((real *)c + j, x);
    }
    for (; j < n; j++) {
        acc x = alpha * sum[j];
        if (beta != 0) x += beta * (c_acc ? ((acc *)c)[j] : load(((real *)c)[j]));
        if (bias) x += load(bias[j]);
        if (c_acc)
            ((acc *)c)[j] = x;
        else
            ((real *)c)[j] = store(x);
    }
}

/* The block of c = alpha sum + beta c + bias */
static void finish(const job *j, const block *at, const acc *sum, int64_t step)
{
    const ul_gemm *g = j->g;
    int64_t size = g->c_acc ? (int64_t)sizeof(acc) : (int64_t)sizeof(real);
    char *c = j->c + (at->matrix * g->c_step + at->row * g->ldc + at->col) * size;
    const real *bias = g->bias ? (const real *)g->bias + at->col : NULL;
    acc alpha = (acc)g->alpha, beta = (acc)g->beta;
    for (int64_t i = 0; i < at->rows; i++, sum += step, c += g->ldc * size) {
        if (g->c_acc)
            finish_row(c, sum, bias, at->cols, alpha, beta, 1);
        else
            finish_row(c, sum, bias, at->cols, alpha, beta, 0);
    }
}

/* ---- blocks ---- */

/* sum [rows, cols] (+)= a b over one piece of k. */
static void multiply(acc *sum, int64_t step, acc *scratch, const operand *a, const operand *b,
                     int add)
{
    acc *rows = scratch, *panels = scratch + ROWS_SIZE;
    int64_t words = words_of(a);
    pack_rows(rows, ROW_STEP, a);
    for (int64_t j = 0; j < b->n; j += TILE_COLS) {
        acc *panel = panels + j % PANELS_COLS * BLOCK_DEPTH;
        if (panel == panels) {
            operand part = operand_part(b, j, least(b->n - j, PANELS_COLS), 0, b->k);
            pack_panels(panels, BLOCK_DEPTH * TILE_COLS, &part);
        }
        int64_t width = round_up(least(b->n - j, TILE_COLS), VL);
#if PAIRS
        tile_pairs(a->n, width, words, rows, ROW_STEP, panel, TILE_COLS, sum + j, step, add);
#else
        tile_nn(a->n, width, words, rows, ROW_STEP, panel, TILE_COLS, sum + j, step, add);
#endif
    }
}

static void compute_block(const job *j, const block *at, acc *scratch)
{
    const ul_gemm *g = j->g;
    int64_t step = round_up(at->cols, VL), depth = 1;
    if (g->k == 0)
        memset(scratch, 0, (size_t)(at->rows * step) * sizeof(acc));
    else
        depth = round_up(pieces(g->k, pieces(g->k, BLOCK_DEPTH * WORD)), VL * WORD);
    for (int64_t from = 0; from < g->k; from += depth) {
        int64_t k = least(depth, g->k - from);
        operand a = operand_part(&j->a, at->row, at->rows, from, k);
        operand b = operand_part(&j->b, at->col, at->cols, from, k);
        a.x += at->matrix * g->a_step;
        b.x += at->matrix * g->b_step;
        multiply(scratch, step, scratch + SUM_SIZE, &a, &b, from > 0);
    }
    finish(j, at, scratch, step);
}

/* ---- few rows or few columns ---- */

/* sum [f, j] += few [f] . many [j], over k elements that are contiguous in both. */
TILE_INLINE void add_dots(const int n_few, const int n_many, acc *sum, const acc *few,
                          const real *many, int64_t ld, int64_t k)
{
    vec total[FEW][FEW];
    UNROLLED (f, n_few)
        UNROLLED (j, n_many) total[f][j] = (vec){0};
    for (int64_t l = 0; l < k; l += VL) {
        UNROLLED (j, n_many) {
            const real *at = many + j * ld + l;
            real part[VL] = {0};
            if (l + VL > k) at = memcpy(part, at, (size_t)(k - l) * sizeof(real));
            vec x = v_load(at);
            UNROLLED (f, n_few) total[f][j] += v_load_acc(few + f * FEW_DEPTH + l) * x;
        }
    }
    UNROLLED (f, n_few)
        UNROLLED (j, n_many) sum[f * FEW_WIDTH + j] += v_sum(total[f][j]);
}

/* sum [f, j] += few [f, l] many [l, j], for `deep` rows l of n elements. */
TILE_INLINE void add_rows(const int n_few, const int deep, acc *sum, const acc *few,
                          const real *many, int64_t ld, int64_t n)
{
    int64_t j = 0;
    for (; j + VL <= n; j += VL) {
        vec x[FEW];
        UNROLLED (l, deep) x[l] = v_load(many + l * ld + j);
        UNROLLED (f, n_few) {
            vec total = v_load_acc(sum + f * FEW_WIDTH + j);
            UNROLLED (l, deep) total += v_splat(few[f * FEW_DEPTH + l]) * x[l];
            v_store_acc(sum + f * FEW_WIDTH + j, total);
        }
    }
    for (; j < n; j++)
        for (int f = 0; f < n_few; f++)
            for (int l = 0; l < deep; l++)
                sum[f * FEW_WIDTH + j] += few[f * FEW_DEPTH + l] * load(many[l * ld + j]);
}

/* sum [few, many] += few many^T over one piece of k; few is packed, many read in place. */
TILE_INLINE void multiply_few(const int n_few, acc *sum, const acc *few, const operand *many)
{
    const real *x = many->x;
    int64_t ld = many->ld, i = 0;
    if (many->along_k) {
        for (; i + FEW <= many->n; i += FEW)
            add_dots(n_few, FEW, sum + i, few, x + i * ld, ld, many->k);
        for (; i < many->n; i++) add_dots(n_few, 1, sum + i, few, x + i * ld, ld, many->k);
    } else {
        for (; i + FEW <= many->k; i += FEW)
            add_rows(n_few, FEW, sum, few + i, x + i * ld, ld, many->n);
        for (; i < many->k; i++) add_rows(n_few, 1, sum, few + i, x + i * ld, ld, many->n);
    }
}

/* to[i, l] = vector i, element l, and zeros up to a whole VL. */
static void widen_few(acc *to, const operand *few)
{
    int64_t i_step = few->along_k ? few->ld : 1, l_step = few->along_k ? 1 : few->ld;
    for (int64_t i = 0; i < few->n; i++, to += FEW_DEPTH) {
        for (int64_t l = 0; l < few->k; l++) to[l] = load(few->x[i * i_step + l * l_step]);
        for (int64_t l = few->k; l < round_up(few->k, VL); l++) to[l] = 0;
    }
}

/* sum [few, many] += few many^T */
static void sum_strip(acc *sum, acc *packed, const operand *few, const operand *many)
{
    for (int64_t from = 0; from < few->k; from += FEW_DEPTH) {
        int64_t k = least(FEW_DEPTH, few->k - from);
        operand few_part = operand_part(few, 0, few->n, from, k);
        operand many_part = operand_part(many, 0, many->n, from, k);
        widen_few(packed, &few_part);
        switch (few->n) {
        case 1:
            multiply_few(1, sum, packed, &many_part);
            break;
        case 2:
            multiply_few(2, sum, packed, &many_part);
            break;
        case 3:
            multiply_few(3, sum, packed, &many_part);
            break;
        case 4:
            multiply_few(4, sum, packed, &many_part);
            break;
        }
    }
}

static void compute_strip(const job *j, const block *at, acc *scratch)
{
    const ul_gemm *g = j->g;
    acc *sum = scratch, *packed = sum + FEW * FEW_WIDTH, *turned = packed + FEW * FEW_DEPTH;
    int rows_are_few = g->m <= g->n;
    memset(sum, 0, FEW * FEW_WIDTH * sizeof(acc));
    if (g->k > 0) {
        operand a = operand_part(&j->a, at->row, at->rows, 0, g->k);
        operand b = operand_part(&j->b, at->col, at->cols, 0, g->k);
        a.x += at->matrix * g->a_step;
        b.x += at->matrix * g->b_step;
        sum_strip(sum, packed, rows_are_few ? &a : &b, rows_are_few ? &b : &a);
    }
    if (rows_are_few) {
        finish(j, at, sum, FEW_WIDTH);
        return;
    }
    for (int64_t i = 0; i < at->rows; i++)
        for (int64_t f = 0; f < at->cols; f++) turned[i * FEW + f] = sum[f * FEW_WIDTH + i];
    finish(j, at, turned, FEW);
}

/* ---- cutting the work ---- */

static void compute_item(void *arg, int64_t item, int thread)
{
    const job *j = arg;
    const ul_gemm *g = j->g;
    int64_t in_matrix = j->row_blocks * j->col_blocks;
    int64_t end = least((item + 1) * j->group, g->batch * in_matrix);
    for (int64_t i = item * j->group; i < end; i++) {
        block at = {.matrix = i / in_matrix,
                    .row = i % in_matrix / j->col_blocks * j->rows,
                    .col = i % j->col_blocks * j->cols};
        at.rows = least(j->rows, g->m - at.row);
        at.cols = least(j->cols, g->n - at.col);
        (j->few ? compute_strip : compute_block)(j, &at, ul_pool_scratch(j->s, thread));
    }
}

/* Cuts c into enough blocks to keep the threads evenly busy, unless they become too small. */
static void cut_blocks(job *j)
{
    const ul_gemm *g = j->g;
    int64_t threads = ul_pool_threads(j->s);
    int64_t row_cuts = pieces(g->m, BLOCK_ROWS), col_cuts = pieces(g->n, BLOCK_COLS);
    for (;;) {
        int64_t blocks = g->batch * row_cuts * col_cuts;
        double size = (double)g->m * g->n / row_cuts / col_cuts;
        if (blocks >= 8 * threads || (blocks >= 4 * threads && blocks % threads == 0)) break;
        if (size * g->k < 2 * WORTH || size < 2 * TILE_ROWS * TILE_COLS) break;
        if (g->m / row_cuts > g->n / col_cuts)
            row_cuts++;
        else
            col_cuts++;
    }
    j->rows = pieces(g->m, row_cuts);
    j->cols = round_up(pieces(g->n, col_cuts), TILE_COLS);
}

static void cut_strips(job *j)
{
    const ul_gemm *g = j->g;
    int64_t many = g->m <= g->n ? g->n : g->m;
    int64_t width = pieces(many * g->batch, 4 * ul_pool_threads(j->s));
    if (width < WORTH_FEW / (g->k + 1)) width = WORTH_FEW / (g->k + 1);
    width = least(round_up(width + 1, 64), FEW_WIDTH);
    j->rows = g->m <= g->n ? g->m : width;
    j->cols = g->m <= g->n ? width : g->n;
}

int CPU(gemm)(ul_stream *s, void *c, const void *a, const void *b, const ul_gemm *g)
{
    if (g->m <= 0 || g->n <= 0 || g->batch <= 0) return 0;
    job j = {.s = s,
             .g = g,
             .a = {a, g->lda, g->m, g->k, !g->a_trans},
             .b = {b, g->ldb, g->n, g->k, g->b_trans},
             .c = c,
             .few = least(g->m, g->n) <= FEW};
    if (j.few)
        cut_strips(&j);
    else
        cut_blocks(&j);
    j.row_blocks = pieces(g->m, j.rows);
    j.col_blocks = pieces(g->n, j.cols);
    double work = (double)least(j.rows, g->m) * least(j.cols, g->n) * (g->k + 1);
    j.group = (int64_t)(1 + (j.few ? WORTH_FEW : WORTH) / work);
    ul_parallel(s, pieces(g->batch * j.row_blocks * j.col_blocks, j.group), compute_item, &j);
    return 0;
}
