/* loss.cu - cross-entropy over rows of logits. A block for each row. */
#include "block.h"

/* exp(x - top) summed, with `top` the largest; both from one pass over the row. */
struct softened {
    acc top, sum;
};

struct softened_merge {
    __device__ softened operator()(softened a, softened b) const
    {
        acc top = a.top > b.top ? a.top : b.top;
        if (a.top != a.top || b.top != b.top) return softened{a.top + b.top, 0};
        acc from_a = a.sum == 0 ? 0 : a.top == top ? a.sum : a.sum * exp(a.top - top);
        acc from_b = b.sum == 0 ? 0 : b.top == top ? b.sum : b.sum * exp(b.top - top);
        return softened{top, from_a + from_b};
    }
};

#if !UL_TYPE_IS(f32) && !UL_TYPE_IS(f64)
__device__ __forceinline__ acc value_of(real x) { return load(x); }
#endif
__device__ __forceinline__ acc value_of(acc x) { return x; }

template <class T> __device__ __forceinline__ softened soften_row(const T *x, int64_t cols)
{
    softened s = {(acc)-INFINITY, 0};
    COLUMNS(i, cols) s = softened_merge()(s, softened{value_of(x[i]), 1});
    return block_reduce(s, softened_merge());
}

KERNEL cross_entropy_kernel(acc *loss, acc *lse, const real *x, const int64_t *targets,
                            int64_t rows, int64_t cols, int64_t ignore)
{
    ROW_STRIDE(row, rows)
    {
        const real *from = x + row * cols;
        softened s = soften_row(from, cols);
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
    UL_LAUNCH(cross_entropy_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0, s->stream,
              (acc *)loss, (acc *)lse, (const real *)x, targets, rows, cols, ignore);
    return ul_cuda_launched("cross_entropy");
}

/* dx = d_loss (exp(x - lse) - [i = target]); an ignored row gets 0 whatever its logits are. */
KERNEL cross_entropy_backward_kernel(ul_grad dx, const acc *d_loss, const real *x,
                                     const int64_t *targets, const acc *lse, int64_t rows,
                                     int64_t cols, int64_t ignore)
{
    ROW_STRIDE(row, rows)
    {
        int64_t target = targets[row], at = row * cols;
        acc weight = d_loss[row], total = lse[row];
        COLUMNS(i, cols)
        {
            acc p = target == ignore ? 0 : exp(load(x[at + i]) - total) - (i == target);
            give((real *)dx.data + at + i, dx.add, target == ignore ? 0 : weight * p);
        }
    }
}

int CUDA(cross_entropy_backward)(ul_stream *s, ul_grad dx, const void *d_loss, const void *x,
                                 const int64_t *targets, const void *lse, int64_t rows,
                                 int64_t cols, int64_t ignore)
{
    if (!dx.data || rows == 0) return 0;
    UL_LAUNCH(cross_entropy_backward_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0,
              s->stream, dx, (const acc *)d_loss, (const real *)x, targets, (const acc *)lse, rows,
              cols, ignore);
    return ul_cuda_launched("cross_entropy_backward");
}

/* Like the two above at once, from accumulators. dx may lie over x: where it is as wide, each
 * thread writes what it alone has read; the target's logit is read before anything is written.
 */
KERNEL cross_entropy_tile_kernel(acc *loss, real *dx, const acc *x, const int64_t *targets,
                                 int64_t rows, int64_t cols, int64_t ignore)
{
    ROW_STRIDE(row, rows)
    {
        int64_t target = targets[row], at = row * cols;
        if (target == ignore) {
            if (threadIdx.x == 0) loss[row] = 0;
            if (dx) COLUMNS(i, cols) dx[at + i] = store(0);
            continue;
        }
        softened s = soften_row(x + at, cols);
        acc chosen = x[at + target], scale = 1 / s.sum;
        __syncthreads();
        if (threadIdx.x == 0) loss[row] = s.top + log(s.sum) - chosen;
        if (!dx) continue;
        COLUMNS(i, cols) dx[at + i] = store(exp(x[at + i] - s.top) * scale - (i == target));
    }
}

int CUDA(cross_entropy_tile)(ul_stream *s, void *loss, void *dx, const void *x,
                             const int64_t *targets, int64_t rows, int64_t cols, int64_t ignore)
{
    if (rows == 0) return 0;
    UL_LAUNCH(cross_entropy_tile_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0,
              s->stream, (acc *)loss, (real *)dx, (const acc *)x, targets, rows, cols, ignore);
    return ul_cuda_launched("cross_entropy_tile");
}
