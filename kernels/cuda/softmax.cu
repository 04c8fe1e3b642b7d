/* softmax.cu - softmax and its logarithm along rows. A block for each row. */
#include "block.h"

__device__ __forceinline__ acc row_max(const real *x, int64_t cols)
{
    acc top = (acc)-INFINITY;
    COLUMNS(i, cols) top = max_merge()(top, load(x[i]));
    return block_max(top);
}

__device__ __forceinline__ acc row_sum_exp(const real *x, int64_t cols, acc top)
{
    acc sum = 0;
    COLUMNS(i, cols) sum += exp(load(x[i]) - top);
    return block_sum(sum);
}

KERNEL softmax_kernel(real *y, const real *x, int64_t rows, int64_t cols)
{
    ROW_STRIDE(row, rows)
    {
        const real *from = x + row * cols;
        acc top = row_max(from, cols), scale = 1 / row_sum_exp(from, cols, top);
        COLUMNS(i, cols) y[row * cols + i] = store(exp(load(from[i]) - top) * scale);
    }
}

int CUDA(softmax)(ul_stream *s, void *y, const void *x, int64_t rows, int64_t cols)
{
    if (rows == 0 || cols == 0) return 0;
    UL_LAUNCH(softmax_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0, s->stream,
              (real *)y, (const real *)x, rows, cols);
    return ul_cuda_launched("softmax");
}

KERNEL log_softmax_kernel(real *y, const real *x, int64_t rows, int64_t cols)
{
    ROW_STRIDE(row, rows)
    {
        const real *from = x + row * cols;
        acc top = row_max(from, cols), log_sum = log(row_sum_exp(from, cols, top));
        COLUMNS(i, cols) y[row * cols + i] = store(load(from[i]) - top - log_sum);
    }
}

int CUDA(log_softmax)(ul_stream *s, void *y, const void *x, int64_t rows, int64_t cols)
{
    if (rows == 0 || cols == 0) return 0;
    UL_LAUNCH(log_softmax_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0, s->stream,
              (real *)y, (const real *)x, rows, cols);
    return ul_cuda_launched("log_softmax");
}

/* dx = y (dy - sum dy y) */
KERNEL softmax_backward_kernel(ul_grad dx, const real *dy, const real *y, int64_t rows,
                               int64_t cols)
{
    ROW_STRIDE(row, rows)
    {
        int64_t at = row * cols;
        acc dot = 0;
        COLUMNS(i, cols) dot += load(dy[at + i]) * load(y[at + i]);
        dot = block_sum(dot);
        COLUMNS(i, cols)
        give((real *)dx.data + at + i, dx.add, load(y[at + i]) * (load(dy[at + i]) - dot));
    }
}

int CUDA(softmax_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *y, int64_t rows,
                           int64_t cols)
{
    if (!dx.data || rows == 0 || cols == 0) return 0;
    UL_LAUNCH(softmax_backward_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0, s->stream,
              dx, (const real *)dy, (const real *)y, rows, cols);
    return ul_cuda_launched("softmax_backward");
}

/* dx = dy - exp(y) sum dy */
KERNEL log_softmax_backward_kernel(ul_grad dx, const real *dy, const real *y, int64_t rows,
                                   int64_t cols)
{
    ROW_STRIDE(row, rows)
    {
        int64_t at = row * cols;
        acc total = 0;
        COLUMNS(i, cols) total += load(dy[at + i]);
        total = block_sum(total);
        COLUMNS(i, cols)
        give((real *)dx.data + at + i, dx.add, load(dy[at + i]) - exp(load(y[at + i])) * total);
    }
}

int CUDA(log_softmax_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *y,
                               int64_t rows, int64_t cols)
{
    if (!dx.data || rows == 0 || cols == 0) return 0;
    UL_LAUNCH(log_softmax_backward_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0,
              s->stream, dx, (const real *)dy, (const real *)y, rows, cols);
    return ul_cuda_launched("log_softmax_backward");
}
