/* sort.cu - sorting rows, the k first of each, running sums. */
#include "block.h"

/* Whether a stands before b in ascending order; NaN is the largest. */
__device__ __forceinline__ int below(acc a, acc b)
{
#if UL_TYPE_FLOAT
    return a < b || (a == a && b != b);
#else
    return a < b;
#endif
}

/* Whether element i of a row comes before element j in its result: equal ones keep their order. */
__device__ __forceinline__ int goes_first(const real *x, int64_t i, int64_t j, int descending)
{
    acc a = load(x[i]), b = load(x[j]);
    if (descending ? below(b, a) : below(a, b)) return 1;
    if (descending ? below(a, b) : below(b, a)) return 0;
    return i < j;
}

/* ---- sort: runs of twice the width are merged, each element finding its place by bisection ----
 */

KERNEL sort_begin_kernel(int64_t *index, int64_t rows, int64_t cols)
{
    GRID_STRIDE(i, rows * cols) index[i] = i % cols;
}

/* to = the runs of `width` in `from`, merged in pairs. */
KERNEL merge_kernel(int64_t *to, const int64_t *from, const real *x, int64_t rows, int64_t cols,
                    int64_t width, int descending)
{
    GRID_STRIDE(k, rows * cols)
    {
        int64_t row = k / cols, at = k % cols, begin = at / (2 * width) * 2 * width;
        int64_t middle = begin + width < cols ? begin + width : cols;
        int64_t end = begin + 2 * width < cols ? begin + 2 * width : cols;
        const int64_t *in = from + row * cols;
        const real *values = x + row * cols;
        int mine = at < middle; /* in the first run of the pair: the other one is searched */
        int64_t low = mine ? middle : begin, high = mine ? end : middle, first = low;
        while (low < high) {
            int64_t half = low + (high - low) / 2;
            if (goes_first(values, in[half], in[at], descending))
                low = half + 1;
            else
                high = half;
        }
        to[row * cols + at + (mine ? 0 : begin - middle) + low - first] = in[at];
    }
}

KERNEL sort_end_kernel(real *values, int64_t *index, const int64_t *from, const real *x,
                       int64_t rows, int64_t cols)
{
    GRID_STRIDE(i, rows * cols)
    {
        int64_t chosen = from[i];
        index[i] = chosen;
        values[i] = x[i / cols * cols + chosen];
    }
}

int CUDA(sort)(ul_stream *s, void *values, int64_t *index, const void *x, int64_t rows,
               int64_t cols, int descending, int64_t *work)
{
    int64_t n = rows * cols, *from = index, *to = work;
    if (n == 0) return 0;
    dim3 grid = grid_for(s, n, BLOCK), block(BLOCK);
    UL_LAUNCH(sort_begin_kernel, grid, block, 0, s->stream, from, rows, cols);
    for (int64_t width = 1; width < cols; width *= 2) {
        UL_LAUNCH(merge_kernel, grid, block, 0, s->stream, to, from, (const real *)x, rows, cols,
                  width, descending);
        int64_t *kept = from;
        from = to;
        to = kept;
    }
    UL_LAUNCH(sort_end_kernel, grid, block, 0, s->stream, (real *)values, index, from,
              (const real *)x, rows, cols);
    return ul_cuda_launched("sort");
}

/* ---- topk: a block for each row finds one after the other ---- */

/* The element that goes first. */
struct first_merge {
    const real *x;
    int descending;
    __device__ int64_t operator()(int64_t a, int64_t b) const
    {
        if (a < 0 || b < 0) return a < 0 ? b : a;
        return goes_first(x, b, a, descending) ? b : a;
    }
};

KERNEL topk_kernel(real *values, int64_t *index, const real *x, int64_t rows, int64_t cols,
                   int64_t k, int descending)
{
    ROW_STRIDE(row, rows)
    {
        const real *from = x + row * cols;
        first_merge merge = {from, descending};
        int64_t last = -1;
        for (int64_t n = 0; n < k; n++) {
            int64_t best = -1; /* of those that come after the last one taken */
            COLUMNS(i, cols)
            if (last < 0 || (i != last && goes_first(from, last, i, descending)))
                best = merge(best, i);
            last = block_reduce(best, merge);
            if (threadIdx.x == 0) {
                index[row * k + n] = last;
                values[row * k + n] = from[last];
            }
        }
    }
}

int CUDA(topk)(ul_stream *s, void *values, int64_t *index, const void *x, int64_t rows,
               int64_t cols, int64_t k, int largest)
{
    if (rows == 0 || k == 0) return 0;
    UL_LAUNCH(topk_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0, s->stream,
              (real *)values, index, (const real *)x, rows, cols, k, largest);
    return ul_cuda_launched("topk");
}

/* ---- running sums: a thread sums a piece of a row, a block the pieces before it ---- */

KERNEL cumsum_kernel(ul_grad y, const real *x, int64_t rows, int64_t cols, int reverse)
{
    __shared__ acc totals[1024];
    ROW_STRIDE(row, rows)
    {
        const real *from = x + row * cols;
        sum_t *to = (sum_t *)y.data + row * cols;
        int64_t piece = (cols + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * piece;
        int64_t end = begin + piece < cols ? begin + piece : cols;
        acc mine = 0;
        for (int64_t i = begin; i < end; i++) mine += load(from[reverse ? cols - 1 - i : i]);
        __syncthreads(); /* the row before this one has been read */
        totals[threadIdx.x] = mine;
        __syncthreads();
        acc total = 0;
        for (unsigned t = 0; t < threadIdx.x; t++) total += totals[t];
        for (int64_t i = begin; i < end; i++) {
            int64_t at = reverse ? cols - 1 - i : i;
            total += load(from[at]);
#if UL_TYPE_FLOAT
            give(to + at, y.add, total);
#else
            to[at] = (y.add ? to[at] : 0) + total;
#endif
        }
    }
}

int CUDA(cumsum)(ul_stream *s, ul_grad y, const void *x, int64_t rows, int64_t cols, int reverse)
{
    if (!y.data || rows == 0 || cols == 0) return 0;
    UL_LAUNCH(cumsum_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0, s->stream, y,
              (const real *)x, rows, cols, reverse);
    return ul_cuda_launched("cumsum");
}
