/* rows.h - rows that are read once, 16 bytes at a time, and kept in registers for a second look.
 *
 * A row of cols elements is cols / N runs of N: 16 bytes of them where rows are aligned, else one.
 * A thread has up to HELD runs of a chunk of the row; most rows are one chunk, and longer ones are
 * read again. Short rows have a warp each, others a block.
 */
#ifndef UL_CUDA_ROWS_H
#define UL_CUDA_ROWS_H

#include "block.h"
#include "mma.h"

enum { HELD = 4, ROW_THREADS = 512, SHORT_ROWS = 4 };

/* Rows of a kernel: each group of threads (a block, or a warp of one) has every n_groups()th. */
__device__ __forceinline__ int64_t n_groups() { return (int64_t)gridDim.x * blockDim.y; }
__device__ __forceinline__ int64_t group()
{
    return blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
}

#define ROWS(row, rows) for (int64_t row = group(); row < (rows); row += n_groups())

/* Chunks of a row of `runs` runs, and the thread's runs of one: i is their number in the row. */
#define CHUNKS(base, runs) for (int64_t base = 0; base < (runs); base += HELD * blockDim.x)
#define RUNS(k, i, base, runs) \
    UNROLLED (k, HELD)         \
        if (int64_t i = (base) + k * (int64_t)blockDim.x + threadIdx.x; i < (runs))

__device__ __forceinline__ int is_one_chunk(int64_t runs) { return runs <= HELD * blockDim.x; }

template <int N, class T>
__device__ __forceinline__ void read_runs(run<T, N> (&to)[HELD], const T *row, int64_t base,
                                          int64_t runs)
{
    RUNS (k, i, base, runs) to[k] = load_run<N>(row + i * N);
}

/* Waits for the threads that share a row. */
__device__ __forceinline__ void sync_row()
{
    if (blockDim.x == WARP) {
        __syncwarp();
        return;
    }
    __syncthreads();
}

/* ---- launching ---- */

struct row_grid {
    dim3 grid, block;
};

/* most: threads of a block. Few rows have more threads each. */
static inline row_grid grid_of_runs(const ul_stream *s, int64_t rows, int64_t runs, int most)
{
    int each = rows < s->processors ? 1 : HELD, threads = WARP;
    while (threads < most && threads * each < runs) threads *= 2;
    int at_once = threads == WARP ? SHORT_ROWS : 1;
    int64_t blocks = smaller(ceil_div(rows, at_once), (int64_t)s->processors * 64);
    return row_grid{dim3((unsigned)blocks), dim3(threads, at_once)};
}

/* Calls f(width<N>(), grid) for rows whose runs are of N elements. */
template <int N> struct width {
    enum { OF = N };
};

template <class F>
static void by_width(const ul_stream *s, int64_t rows, int64_t cols, int aligned, F f,
                     int most = ROW_THREADS)
{
    if (aligned && cols % PACK == 0)
        f(width<PACK>(), grid_of_runs(s, rows, cols / PACK, most));
    else
        f(width<1>(), grid_of_runs(s, rows, cols, most));
}

/* ---- exponentials ---- */

#if UL_TYPE_FLOAT
/* exp; where results are bf16 by one instruction, as a row of these comes too fast for more. */
__device__ __forceinline__ acc soft_exp(acc x)
{
#if UL_TYPE_IS(bf16)
    return exp2_fast(x * 1.44269504f);
#else
    return exp(x);
#endif
}

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

/* Of the thread's runs of a chunk. Of infinities each counts as one, as of any largest. */
template <int N, class T>
__device__ __forceinline__ softened soften_runs(const run<T, N> (&x)[HELD], int64_t base,
                                                int64_t runs)
{
    softened s = {(acc)-INFINITY, 0};
    RUNS (k, i, base, runs)
        UNROLLED (j, N) s.top = max_merge()(s.top, value_of(x[k].v[j]));
    if (s.top - s.top == 0) {
        RUNS (k, i, base, runs)
            UNROLLED (j, N) s.sum += soft_exp(value_of(x[k].v[j]) - s.top);
    } else {
        RUNS (k, i, base, runs)
            UNROLLED (j, N) s.sum += value_of(x[k].v[j]) == s.top;
    }
    return s;
}

/* x is left with the thread's runs of the last chunk. */
template <int N, class T>
__device__ __forceinline__ softened soften_row(run<T, N> (&x)[HELD], const T *row, int64_t runs)
{
    softened s = {(acc)-INFINITY, 0};
    CHUNKS(base, runs)
    {
        read_runs<N>(x, row, base, runs);
        s = softened_merge()(s, soften_runs<N>(x, base, runs));
    }
    return block_reduce(s, softened_merge());
}
#endif
#endif
