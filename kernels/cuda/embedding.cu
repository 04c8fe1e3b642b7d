/* embedding.cu - reading and adding to elements chosen by index. */
#include "block.h"

/* ---- is any index out of range? ---- */

KERNEL find_begin_kernel(unsigned long long *first) { *first = UINT64_MAX; }

KERNEL find_kernel(unsigned long long *first, const real *x, int64_t n, int64_t low, int64_t high,
                   int64_t except)
{
    GRID_STRIDE(i, n)
    {
        acc v = load(x[i]);
        if (!(v >= (acc)low && v < (acc)high) && v != (acc)except)
            atomicMin(first, (unsigned long long)i);
    }
}

int CUDA(find_outside)(ul_stream *s, int64_t *at, const void *x, int64_t n, int64_t low,
                       int64_t high, int64_t except)
{
    unsigned long long *first = (unsigned long long *)s->scratch;
    *at = -1;
    if (n == 0) return 0;
    UL_LAUNCH(find_begin_kernel, dim3(1), dim3(1), 0, s->stream, first);
    UL_LAUNCH(find_kernel, grid_for(s, n, BLOCK), dim3(BLOCK), 0, s->stream, first, (const real *)x,
              n, low, high, except);
    int rc = ul_cuda_launched("find_outside");
    return rc < 0 ? rc : ul_cuda_fetch(s, at, first, sizeof *at); /* all ones are -1 */
}

/* ---- gather and index_select ---- */

struct gather_body {
    real *y;
    const real *x;
    const int64_t *index;
    int64_t n, m, inner;
    __device__ void operator()(int64_t k) const
    {
        int64_t i = k % inner, outer = k / inner / m;
        y[k] = x[(outer * n + index[k]) * inner + i];
    }
};

int CUDA(gather)(ul_stream *s, void *y, const void *x, const int64_t *index, int64_t outer,
                 int64_t n, int64_t m, int64_t inner)
{
    gather_body f = {(real *)y, (const real *)x, index, n, m, inner};
    return flat_walk(s, "gather", f, outer * m * inner);
}

/* Rows of `runs` runs of N elements. index_t: of what fits the number of all runs. */
template <int N, class index_t>
static __global__ void select_kernel(real *y, const real *x, const int64_t *index, int64_t n,
                                     int64_t m, int64_t runs, int64_t n_runs)
{
    GRID_STRIDE(k, n_runs)
    {
        index_t row = (index_t)k / (index_t)runs, outer = row / (index_t)m;
        int64_t i = (int64_t)((index_t)k - row * (index_t)runs);
        int64_t from = (int64_t)outer * n + index[row - outer * (index_t)m];
        store_run(y + k * N, load_run<N>(x + (from * runs + i) * N));
    }
}

template <int N>
static int select(ul_stream *s, real *y, const real *x, const int64_t *index, int64_t outer,
                  int64_t n, int64_t m, int64_t runs)
{
    int64_t n_runs = outer * m * runs;
    if (n_runs == 0) return 0;
    dim3 grid = grid_for(s, n_runs, BLOCK);
    if (n_runs <= INT32_MAX)
        UL_LAUNCH((select_kernel<N, uint32_t>), grid, dim3(BLOCK), 0, s->stream, y, x, index, n, m,
                  runs, n_runs);
    else
        UL_LAUNCH((select_kernel<N, uint64_t>), grid, dim3(BLOCK), 0, s->stream, y, x, index, n, m,
                  runs, n_runs);
    return ul_cuda_launched("index_select");
}

int CUDA(index_select)(ul_stream *s, void *y, const void *x, const int64_t *index, int64_t outer,
                       int64_t n, int64_t m, int64_t inner)
{
    if (inner % PACK == 0 && is_aligned(y) && is_aligned(x))
        return select<PACK>(s, (real *)y, (const real *)x, index, outer, n, m, inner / PACK);
    return select<1>(s, (real *)y, (const real *)x, index, outer, n, m, inner);
}

#if UL_TYPE_FLOAT

struct zero_body {
    acc *y;
    __device__ void operator()(int64_t i) const { y[i] = 0; }
};

/* A thread owns a column of an outer row, and adds in the order of the index. */
struct gather_backward_body {
    acc *dx;
    const real *dy;
    const int64_t *index;
    int64_t n, m, inner;
    __device__ void operator()(int64_t k) const
    {
        int64_t i = k % inner, outer = k / inner;
        for (int64_t j = 0; j < m; j++) {
            int64_t from = (outer * m + j) * inner + i;
            dx[(outer * n + index[from]) * inner + i] += load(dy[from]);
        }
    }
};

int CUDA(gather_backward)(ul_stream *s, ul_grad dx, const void *dy, const int64_t *index,
                          int64_t outer, int64_t n, int64_t m, int64_t inner)
{
    if (!dx.data) return 0;
    acc *to = (acc *)dx.data;
    if (!dx.add) {
        int rc = flat_walk(s, "gather_backward", zero_body{to}, outer * n * inner);
        if (rc < 0) return rc;
    }
    gather_backward_body f = {to, (const real *)dy, index, n, m, inner};
    return flat_walk(s, "gather_backward", f, m ? outer * inner : 0);
}

extern "C" const ul_kernels ul_cuda_i64_table;

/* Of ids in ascending order [m], the first position behind `begin` with another id. */
__device__ __forceinline__ int64_t end_of_same(const int64_t *ids, int64_t begin, int64_t m)
{
    int64_t low = begin + 1, high = m, id = ids[begin];
    while (low < high) {
        int64_t half = low + (high - low) / 2;
        if (ids[half] == id)
            low = half + 1;
        else
            high = half;
    }
    return low;
}

enum { COLUMN_THREADS = 64, IN_FLIGHT = 4 };

/* ids: the index in ascending order; order: where each stood, equal ones in their order. A block
 * for so many runs of N columns of each position: where its id is the first of equal ones, it adds
 * all rows that have it, one after the other. Nothing is added by two at once, so that sums are the
 * same in every run.
 */
template <int N>
static __global__ void select_backward_kernel(acc *dx, const real *dy, const int64_t *ids,
                                              const int64_t *order, int64_t outer, int64_t n,
                                              int64_t m, int64_t runs, int64_t pieces)
{
    ROW_STRIDE(block, m * pieces)
    {
        int64_t begin = block / pieces, id = ids[begin];
        if (begin > 0 && ids[begin - 1] == id) continue;
        int64_t k = block % pieces * COLUMN_THREADS + threadIdx.x;
        if (k >= outer * runs) continue;
        int64_t end = end_of_same(ids, begin, m), o = k / runs, i = k % runs;
        const real *from = dy + (o * m * runs + i) * N;
        acc *to = dx + ((o * n + id) * runs + i) * N, sum[N];
        UL_UNROLL for (int c = 0; c < N; c++) sum[c] = to[c];
        for (int64_t at = begin; at < end; at += IN_FLIGHT) {
            run<real, N> x[IN_FLIGHT];
            UL_UNROLL for (int f = 0; f < IN_FLIGHT; f++) if (at + f < end) x[f] =
                load_run<N>(from + order[at + f] * runs * N);
            UL_UNROLL for (int f = 0; f < IN_FLIGHT; f++) if (at + f < end)
                UL_UNROLL for (int c = 0; c < N; c++) sum[c] += load(x[f].v[c]);
        }
        UL_UNROLL for (int c = 0; c < N; c++) to[c] = sum[c];
    }
}

template <int N>
static void add_rows(ul_stream *s, acc *dx, const real *dy, const int64_t *ids,
                     const int64_t *order, int64_t outer, int64_t n, int64_t m, int64_t runs)
{
    int64_t pieces = (outer * runs + COLUMN_THREADS - 1) / COLUMN_THREADS;
    UL_LAUNCH((select_backward_kernel<N>), grid_of_rows(s, m * pieces), dim3(COLUMN_THREADS), 0,
              s->stream, dx, dy, ids, order, outer, n, m, runs, pieces);
}

int CUDA(index_select_backward)(ul_stream *s, ul_grad dx, const void *dy, const int64_t *index,
                                int64_t outer, int64_t n, int64_t m, int64_t inner, int64_t *work)
{
    if (!dx.data) return 0;
    acc *to = (acc *)dx.data;
    if (!dx.add) {
        int rc = flat_walk(s, "index_select_backward", zero_body{to}, outer * n * inner);
        if (rc < 0) return rc;
    }
    if (outer * m * inner == 0) return 0;
    int64_t *ids = work, *order = work + m;
    int rc = ul_cuda_i64_table.sort(s, ids, order, index, 1, m, 0, work + 2 * m);
    if (rc < 0) return rc;
    if (inner % PACK == 0 && is_aligned(dy))
        add_rows<PACK>(s, to, (const real *)dy, ids, order, outer, n, m, inner / PACK);
    else
        add_rows<1>(s, to, (const real *)dy, ids, order, outer, n, m, inner);
    return ul_cuda_launched("index_select_backward");
}

#endif
