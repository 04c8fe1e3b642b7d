/* block.h - what the threads of a block reckon together. */
#ifndef UL_CUDA_BLOCK_H
#define UL_CUDA_BLOCK_H

#include "cuda.h"

enum { WARP = 32, MOST_WARPS = 32 };

/* The value of the lane whose number differs in the bits of `by`. T is made of 32-bit words. */
template <class T> __device__ __forceinline__ T lane_xor(T mine, int by)
{
    union {
        T value;
        uint32_t word[sizeof(T) / 4];
    } v;
    v.value = mine;
    for (int i = 0; i < (int)(sizeof(T) / 4); i++) v.word[i] = __shfl_xor_sync(~0u, v.word[i], by);
    return v.value;
}

/* merge(a, b) over all threads of a block, in the order of threads and the same for all of them. T
 * has at most 16 bytes; blockDim.x is a multiple of 32. Where it is 32 each warp is on its own, and
 * there may be several; else blockDim is one-dimensional.
 */
template <class T, class M> __device__ __forceinline__ T block_reduce(T mine, M merge)
{
    __shared__ T part[MOST_WARPS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    for (int by = 1; by < WARP; by *= 2) {
        T other = lane_xor(mine, by);
        mine = lane & by ? merge(other, mine) : merge(mine, other);
    }
    if (warps == 1) return mine;
    __syncthreads(); /* the call before this one may still read part */
    if (lane == 0) part[warp] = mine;
    __syncthreads();
    T all = part[0];
    for (int w = 1; w < warps; w++) all = merge(all, part[w]);
    return all;
}

struct add_merge {
    __device__ acc operator()(acc a, acc b) const { return a + b; }
};

__device__ __forceinline__ acc block_sum(acc mine) { return block_reduce(mine, add_merge()); }

#if UL_TYPE_FLOAT
/* NaN is larger than all. */
struct max_merge {
    __device__ acc operator()(acc a, acc b) const
    {
#if defined(__CUDACC__) && !UL_TYPE_IS(f64)
        float largest;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
        return largest;
#else
        return b > a || b != b ? b : a;
#endif
    }
};

__device__ __forceinline__ acc block_max(acc mine) { return block_reduce(mine, max_merge()); }
#endif

/* Blocks for `rows` rows, each walked by a block with ROW_STRIDE. */
static inline dim3 grid_of_rows(const ul_stream *s, int64_t rows)
{
    return dim3((unsigned)smaller(rows, (int64_t)s->processors * 64));
}

#define ROW_STRIDE(row, rows) for (int64_t row = blockIdx.x; row < (rows); row += gridDim.x)
#define COLUMNS(i, cols)      for (int64_t i = threadIdx.x; i < (cols); i += blockDim.x)

/* Threads for a row of so many columns: whole warps, none without work where it can be helped. */
static inline int threads_for(int64_t cols)
{
    int threads = WARP;
    while (threads < 1024 && threads * 4 < cols) threads *= 2;
    return threads;
}

#endif
