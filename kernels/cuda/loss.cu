/* loss.cu - cross-entropy over rows of logits. */
#include "rows.h"

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    cross_entropy_kernel(acc *loss, acc *lse, const real *x, const int64_t *targets, int64_t rows,
                         int64_t runs, int64_t ignore)
{
    ROWS(row, rows)
    {
        run<real, N> held[HELD];
        const real *from = x + row * runs * N;
        softened s = soften_row<N>(held, from, runs);
        if (threadIdx.x != 0) continue;
        acc total = s.top - s.top == 0 ? s.top + log(s.sum) : s.top;
        lse[row] = total;
        loss[row] = targets[row] == ignore ? 0 : total - load(from[targets[row]]);
    }
}

int CUDA(cross_entropy)(ul_stream *s, void *loss, void *lse, const void *x, const int64_t *targets,
                        int64_t rows, int64_t cols, int64_t ignore)
{
    if (rows == 0) return 0;
    by_width(s, rows, cols, is_aligned(x), [&](auto n, const row_grid &g) {
        enum { N = decltype(n)::OF };
        UL_LAUNCH((cross_entropy_kernel<N>), g.grid, g.block, 0, s->stream, (acc *)loss, (acc *)lse,
                  (const real *)x, targets, rows, cols / N, ignore);
    });
    return ul_cuda_launched("cross_entropy");
}

/* Which of the N elements from `first` on is the target; none: a number outside of them. */
template <int N> __device__ __forceinline__ int place_of(int64_t target, int64_t first)
{
    int64_t place = target - first;
    return place < 0 || place >= N ? N : (int)place;
}

/* dx = d_loss (exp(x - lse) - [i = target]); an ignored row gets 0 whatever its logits are. */
template <int N>
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    cross_entropy_backward_kernel(ul_grad dx, const acc *d_loss, const real *x,
                                  const int64_t *targets, const acc *lse, int64_t rows,
                                  int64_t runs, int64_t ignore)
{
    ROWS(row, rows)
    {
        int64_t target = targets[row], at = row * runs * N;
        int ignored = target == ignore;
        acc weight = d_loss[row], total = lse[row];
        run<real, N> from[HELD], to;
        CHUNKS(base, runs)
        {
            if (!ignored) read_runs<N>(from, x + at, base, runs);
            RUNS (k, i, base, runs) {
                real *out = (real *)dx.data + at + i * N;
                int place = place_of<N>(target, i * N);
                if (dx.add) to = load_run<N>(out);
                UNROLLED (j, N) {
                    acc d = 0;
                    if (!ignored)
                        d = weight * (soft_exp(load(from[k].v[j]) - total) - (j == place));
                    give(to.v + j, dx.add, d);
                }
                store_run(out, to);
            }
        }
    }
}

int CUDA(cross_entropy_backward)(ul_stream *s, ul_grad dx, const void *d_loss, const void *x,
                                 const int64_t *targets, const void *lse, int64_t rows,
                                 int64_t cols, int64_t ignore)
{
    if (!dx.data || rows == 0) return 0;
    by_width(s, rows, cols, is_aligned(dx.data) && is_aligned(x), [&](auto n, const row_grid &g) {
        enum { N = decltype(n)::OF };
        UL_LAUNCH((cross_entropy_backward_kernel<N>), g.grid, g.block, 0, s->stream, dx,
                  (const acc *)d_loss, (const real *)x, targets, (const acc *)lse, rows, cols / N,
                  ignore);
    });
    return ul_cuda_launched("cross_entropy_backward");
}

template <int N> __device__ __forceinline__ void zero_row(real *dx, int64_t runs)
{
    run<real, N> zeros;
    UNROLLED (j, N) zeros.v[j] = store(0);
    CHUNKS(base, runs)
    {
        RUNS (k, i, base, runs) store_run(dx + i * N, zeros);
    }
}

/* Like the two above at once, from accumulators. dx may lie over x: where it is as wide, each
 * thread writes what it alone has read; the target's logit is read before anything is written.
 */
template <int N>
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    cross_entropy_tile_kernel(acc *loss, real *dx, const acc *x, const int64_t *targets,
                              int64_t rows, int64_t runs, int64_t ignore)
{
    ROWS(row, rows)
    {
        int64_t target = targets[row], at = row * runs * N;
        if (target == ignore) {
            if (threadIdx.x == 0) loss[row] = 0;
            if (dx) zero_row<N>(dx + at, runs);
            continue;
        }
        run<acc, N> from[HELD];
        softened s = soften_row<N>(from, x + at, runs);
        acc chosen = x[at + target], scale = 1 / s.sum;
        sync_row();
        if (threadIdx.x == 0) loss[row] = s.top + log(s.sum) - chosen;
        if (!dx) continue;
        CHUNKS(base, runs)
        {
            if (!is_one_chunk(runs)) read_runs<N>(from, x + at, base, runs);
            RUNS (k, i, base, runs) {
                run<real, N> to;
                int place = place_of<N>(target, i * N);
                UNROLLED (j, N)
                    to.v[j] = store(soft_exp(from[k].v[j] - s.top) * scale - (j == place));
                store_run(dx + at + i * N, to);
            }
        }
    }
}

int CUDA(cross_entropy_tile)(ul_stream *s, void *loss, void *dx, const void *x,
                             const int64_t *targets, int64_t rows, int64_t cols, int64_t ignore)
{
    if (rows == 0) return 0;
    by_width(s, rows, cols, is_aligned(dx) && is_aligned(x), [&](auto n, const row_grid &g) {
        enum { N = decltype(n)::OF };
        UL_LAUNCH((cross_entropy_tile_kernel<N>), g.grid, g.block, 0, s->stream, (acc *)loss,
                  (real *)dx, (const acc *)x, targets, rows, cols / N, ignore);
    });
    return ul_cuda_launched("cross_entropy_tile");
}
