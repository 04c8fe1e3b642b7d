/* softmax.cu - softmax and its logarithm along rows. */
#include "rows.h"

/* NaN where the largest is no number, as inf - inf is. */
__device__ __forceinline__ acc share_of(const softened &s) { return (1 + (s.top - s.top)) / s.sum; }

/* LOG: y = x - log sum exp x, else its exp. */
template <int N, int LOG>
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    softmax_kernel(real *y, const real *x, int64_t rows, int64_t runs)
{
    ROWS(row, rows)
    {
        int64_t at = row * runs * N;
        run<real, N> from[HELD], to;
        softened s = soften_row<N>(from, x + at, runs);
        acc scale = LOG ? log(s.sum) : share_of(s);
        CHUNKS(base, runs)
        {
            if (!is_one_chunk(runs)) read_runs<N>(from, x + at, base, runs);
            RUNS (k, i, base, runs) {
                UNROLLED (j, N) {
                    acc v = load(from[k].v[j]) - s.top;
                    to.v[j] = store(LOG ? v - scale : soft_exp(v) * scale);
                }
                store_run(y + at + i * N, to);
            }
        }
    }
}

template <int LOG>
static int softmax(ul_stream *s, const char *name, void *y, const void *x, int64_t rows,
                   int64_t cols)
{
    if (rows == 0 || cols == 0) return 0;
    by_width(s, rows, cols, is_aligned(x) && is_aligned(y), [&](auto n, const row_grid &g) {
        enum { N = decltype(n)::OF };
        UL_LAUNCH((softmax_kernel<N, LOG>), g.grid, g.block, 0, s->stream, (real *)y,
                  (const real *)x, rows, cols / N);
    });
    return ul_cuda_launched(name);
}

int CUDA(softmax)(ul_stream *s, void *y, const void *x, int64_t rows, int64_t cols)
{
    return softmax<0>(s, "softmax", y, x, rows, cols);
}

int CUDA(log_softmax)(ul_stream *s, void *y, const void *x, int64_t rows, int64_t cols)
{
    return softmax<1>(s, "log_softmax", y, x, rows, cols);
}

/* dx = y (dy - sum dy y); LOG: dx = dy - exp(y) sum dy */
template <int N, int LOG>
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    softmax_backward_kernel(ul_grad dx, const real *dy, const real *y, int64_t rows, int64_t runs)
{
    ROWS(row, rows)
    {
        int64_t at = row * runs * N;
        run<real, N> g[HELD], v[HELD], to;
        acc sum = 0;
        CHUNKS(base, runs)
        {
            read_runs<N>(g, dy + at, base, runs);
            if (!LOG || is_one_chunk(runs)) read_runs<N>(v, y + at, base, runs);
            RUNS (k, i, base, runs)
                UNROLLED (j, N) sum += load(g[k].v[j]) * (LOG ? 1 : load(v[k].v[j]));
        }
        sum = block_sum(sum);
        CHUNKS(base, runs)
        {
            if (!is_one_chunk(runs)) {
                read_runs<N>(g, dy + at, base, runs);
                read_runs<N>(v, y + at, base, runs);
            }
            RUNS (k, i, base, runs) {
                real *out = (real *)dx.data + at + i * N;
                if (dx.add) to = load_run<N>(out);
                UNROLLED (j, N) {
                    acc d = load(g[k].v[j]), p = load(v[k].v[j]);
                    give(to.v + j, dx.add, LOG ? d - soft_exp(p) * sum : p * (d - sum));
                }
                store_run(out, to);
            }
        }
    }
}

template <int LOG>
static int softmax_backward(ul_stream *s, const char *name, ul_grad dx, const void *dy,
                            const void *y, int64_t rows, int64_t cols)
{
    if (!dx.data || rows == 0 || cols == 0) return 0;
    int aligned = is_aligned(dx.data) && is_aligned(dy) && is_aligned(y);
    by_width(s, rows, cols, aligned, [&](auto n, const row_grid &g) {
        enum { N = decltype(n)::OF };
        UL_LAUNCH((softmax_backward_kernel<N, LOG>), g.grid, g.block, 0, s->stream, dx,
                  (const real *)dy, (const real *)y, rows, cols / N);
    });
    return ul_cuda_launched(name);
}

int CUDA(softmax_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *y, int64_t rows,
                           int64_t cols)
{
    return softmax_backward<0>(s, "softmax_backward", dx, dy, y, rows, cols);
}

int CUDA(log_softmax_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *y,
                               int64_t rows, int64_t cols)
{
    return softmax_backward<1>(s, "log_softmax_backward", dx, dy, y, rows, cols);
}
