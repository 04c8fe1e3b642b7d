/* shape.cu - filling, copying and casting. */
#include "cast.h"
#include "map.h"

/* ---- fill, arange ---- */

struct fill_body {
    real *y;
    acc value;
    __device__ void operator()(const int64_t *at) const { y[at[0]] = store_given(value); }
    template <int N> __device__ void at(int64_t i) const
    {
        real x = store_given(value);
        run<real, N> to;
        UNROLLED (j, N) to.v[j] = x;
        store_run(y + i, to);
    }
};

int CUDA(fill)(ul_stream *s, void *y, double value, const ul_loop *l)
{
    fill_body f = {(real *)y, given(value)};
    if (step_of(l, 0, y) == 1) return runs_walk(s, "fill", f, loop_size(l), 1);
    return loop_walk<1>(s, "fill", f, l);
}

struct arange_body {
    real *y;
    double start, step;
    int64_t whole_start, whole_step;
    int whole; /* both are integers: doubles would skip some beyond 2^53 */
    __device__ void operator()(int64_t i) const
    {
        y[i] = whole ? real_of_int((int64_t)((uint64_t)whole_start + (uint64_t)whole_step * i))
                     : real_of_double(start + step * (double)i);
    }
};

int CUDA(arange)(ul_stream *s, void *y, double start, double step, int64_t n)
{
    arange_body f = {(real *)y, start, step, int_of_double(start), int_of_double(step), 0};
    double end = start + step * (double)n;
    f.whole = !UL_TYPE_FLOAT && start == floor(start) && step == floor(step) &&
              fabs(start) < 0x1p62 && fabs(end) < 0x1p62;
    return flat_walk(s, "arange", f, n);
}

/* ---- copy ---- */

/* N neighbours at a time. */
template <int N> struct copy_body {
    real *y;
    const real *x;
    __device__ void operator()(const int64_t *at) const
    {
        store_run(y + at[0] * N, load_run<N>(x + at[1] * N));
    }
    template <int M> __device__ void at(int64_t i) const { store_run(y + i, load_run<M>(x + i)); }
};

/* Whether the last dim is made of runs of 16 bytes in both operands; then it is one of these. */
static int in_runs(ul_loop *l, const void *y, const void *x)
{
    int last = l->ndim - 1;
    if (last < 0 || !is_aligned(y) || !is_aligned(x) || l->shape[last] % PACK) return 0;
    for (int o = 0; o < 2; o++) {
        if (l->stride[o][last] != 1) return 0;
        for (int d = 0; d < last; d++)
            if (l->stride[o][d] % PACK) return 0;
    }
    l->shape[last] /= PACK;
    for (int o = 0; o < 2; o++)
        for (int d = 0; d < last; d++) l->stride[o][d] /= PACK;
    return 1;
}

/* A transpose: x is contiguous along one dim (its rows), y along another (its columns). A tile goes
 * through shared memory, so that both are read and written in whole lines.
 */
enum { TILE = 32, TILE_ROWS = 8 };

struct transposed {
    real *y;
    const real *x;
    ul_loop rest;           /* without the two dims */
    int64_t rows, cols;     /* extents of the two dims */
    int64_t y_step, x_step; /* of y from row to row, of x from column to column */
    int64_t row_tiles, col_tiles, tiles;
};

static __global__ void transpose_kernel(transposed t)
{
    __shared__ real tile[TILE][TILE + 1];
    for (int64_t k = blockIdx.x; k < t.tiles; k += gridDim.x) {
        int64_t col = k % t.col_tiles * TILE, row = k / t.col_tiles % t.row_tiles * TILE, at[2];
        loop_at<2, uint64_t>(t.rest, (uint64_t)(k / t.col_tiles / t.row_tiles), at);
        real *y = t.y + at[0] + row * t.y_step + col;
        const real *x = t.x + at[1] + col * t.x_step + row;
        __syncthreads(); /* the tile before this one has been written */
        for (int j = threadIdx.y; j < TILE; j += TILE_ROWS)
            if (row + threadIdx.x < t.rows && col + j < t.cols)
                tile[j][threadIdx.x] = x[j * t.x_step + threadIdx.x];
        __syncthreads();
        for (int i = threadIdx.y; i < TILE; i += TILE_ROWS)
            if (row + i < t.rows && col + threadIdx.x < t.cols)
                y[i * t.y_step + threadIdx.x] = tile[threadIdx.x][i];
    }
}

/* The dim along which operand o is contiguous, or -1. */
static int contiguous_dim(const ul_loop *l, int o)
{
    for (int d = l->ndim - 1; d >= 0; d--)
        if (l->stride[o][d] == 1 && l->shape[d] >= 8) return d;
    return -1;
}

static int transpose(ul_stream *s, void *y, const void *x, const ul_loop *l, int row_dim,
                     int col_dim)
{
    transposed t = {};
    t.y = (real *)y;
    t.x = (const real *)x;
    t.rows = l->shape[row_dim];
    t.cols = l->shape[col_dim];
    t.y_step = l->stride[0][row_dim];
    t.x_step = l->stride[1][col_dim];
    for (int d = 0; d < l->ndim; d++) {
        if (d == row_dim || d == col_dim) continue;
        int to = t.rest.ndim++;
        t.rest.shape[to] = l->shape[d];
        for (int o = 0; o < 2; o++) t.rest.stride[o][to] = l->stride[o][d];
    }
    t.row_tiles = ceil_div(t.rows, TILE);
    t.col_tiles = ceil_div(t.cols, TILE);
    t.tiles = t.row_tiles * t.col_tiles * loop_size(&t.rest);
    if (t.tiles == 0) return 0;
    dim3 grid((unsigned)smaller(t.tiles, (int64_t)s->processors * 32));
    UL_LAUNCH(transpose_kernel, grid, dim3(TILE, TILE_ROWS), 0, s->stream, t);
    return ul_cuda_launched("copy");
}

int CUDA(copy)(ul_stream *s, void *y, const void *x, const ul_loop *l)
{
    copy_body<1> f = {(real *)y, (const real *)x};
    ul_loop runs = *l;
    if (step_of(l, 0, y) == 1 && step_of(l, 1, x) == 1)
        return runs_walk(s, "copy", f, loop_size(l), 1);
    if (in_runs(&runs, y, x)) return loop_walk<2>(s, "copy", copy_body<PACK>{f.y, f.x}, &runs);
    int col_dim = contiguous_dim(l, 0), row_dim = contiguous_dim(l, 1);
    if (row_dim >= 0 && col_dim >= 0 && row_dim != col_dim)
        return transpose(s, y, x, l, row_dim, col_dim);
    return loop_walk<2>(s, "copy", f, l);
}

/* ---- casts ---- */

/* The kernel from_<source>: `convert` makes a real of an element x of that type. */
#define CAST(source, type, convert)                                                           \
    struct from_##source##_body {                                                             \
        real *y;                                                                              \
        const type *from;                                                                     \
        __device__ real cast(type x) const { return convert; }                                \
        __device__ void operator()(const int64_t *at) const { y[at[0]] = cast(from[at[1]]); } \
        template <int N> __device__ void at(int64_t i) const                                  \
        {                                                                                     \
            run<type, N> x = load_run<N>(from + i);                                           \
            run<real, N> to;                                                                  \
            for (int j = 0; j < N; j++) to.v[j] = cast(x.v[j]);                               \
            store_run(y + i, to);                                                             \
        }                                                                                     \
    };                                                                                        \
    int CUDA(from_##source)(ul_stream * s, void *y, const void *x, const ul_loop *l)          \
    {                                                                                         \
        if (UL_TYPE_IS(source)) return CUDA(copy)(s, y, x, l);                                \
        from_##source##_body f = {(real *)y, (const type *)x};                                \
        if (step_of(l, 0, y) == 1 && step_of(l, 1, x) == 1)                                   \
            return runs_walk(s, "from_" #source, f, loop_size(l), 1);                         \
        return loop_walk<2>(s, "from_" #source, f, l);                                        \
    }

CAST(f32, float, real_of_f32(x))
CAST(bf16, uint16_t, real_of_f32(bf16_to_f32(x)))
CAST(f64, double, real_of_double(x))
CAST(i32, int32_t, real_of_int(x))
CAST(i64, int64_t, real_of_int(x))
CAST(u8, uint8_t, real_of_int(x))

/* ---- accumulate ---- */

#if UL_TYPE_FLOAT
struct accumulate_body {
    acc *y;
    const real *x;
    template <int N> __device__ void at(int64_t i) const
    {
        run<acc, N> to = load_run<N>(y + i);
        run<real, N> from = load_run<N>(x + i);
        UNROLLED (j, N) to.v[j] += load(from.v[j]);
        store_run(y + i, to);
    }
};

int CUDA(accumulate)(ul_stream *s, void *y, const void *x, int64_t n)
{
    accumulate_body f = {(acc *)y, (const real *)x};
    return runs_walk(s, "accumulate", f, n, is_aligned(y) && is_aligned(x));
}
#endif
