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

/* A block for each position of the index: the first with its row adds all that have it, in their
 * order; the others have nothing to do. Nothing is added by two at once, so that sums are the same
 * in every run.
 */
KERNEL select_backward_kernel(acc *dx, const real *dy, const int64_t *index, int64_t outer,
                              int64_t n, int64_t m, int64_t inner)
{
    __shared__ int64_t found[BLOCK];
    ROW_STRIDE(j, m)
    {
        int64_t row = index[j];
        int is_first = 1;
        for (int64_t begin = 0; begin < j && is_first; begin += blockDim.x) {
            int64_t mine = begin + threadIdx.x;
            is_first = !__syncthreads_or(mine < j && index[mine] == row);
        }
        if (!is_first) continue;
        for (int64_t begin = j; begin < m; begin += blockDim.x) {
            int64_t mine = begin + threadIdx.x;
            int there = mine < m && index[mine] == row;
            found[threadIdx.x] = there ? mine : -1;
            if (__syncthreads_or(there))
                for (int64_t k = threadIdx.x; k < outer * inner; k += blockDim.x) {
                    int64_t o = k / inner, i = k % inner;
                    acc sum = 0;
                    for (unsigned t = 0; t < blockDim.x; t++)
                        if (found[t] >= 0) sum += load(dy[(o * m + found[t]) * inner + i]);
                    dx[(o * n + row) * inner + i] += sum;
                }
            __syncthreads();
        }
    }
}

int CUDA(index_select_backward)(ul_stream *s, ul_grad dx, const void *dy, const int64_t *index,
                                int64_t outer, int64_t n, int64_t m, int64_t inner)
{
    if (!dx.data) return 0;
    acc *to = (acc *)dx.data;
    if (!dx.add) {
        int rc = flat_walk(s, "index_select_backward", zero_body{to}, outer * n * inner);
        if (rc < 0) return rc;
    }
    if (outer * m * inner == 0) return 0;
    UL_LAUNCH(select_backward_kernel, grid_of_rows(s, m), dim3(BLOCK), 0, s->stream, to,
              (const real *)dy, index, outer, n, m, inner);
    return ul_cuda_launched("index_select_backward");
}

#endif
