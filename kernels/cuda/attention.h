/* attention.h - what both directions of attention share: tiles in shared memory, and scores.
 *
 * Every product of a tile is summed by one thread in order, and nothing is added by two blocks: the
 * result is the same in every run.
 */
#ifndef UL_CUDA_ATTENTION_H
#define UL_CUDA_ATTENTION_H

#include <stdio.h>

#include "../masks.h"
#include "block.h"

enum { ATTEND_THREADS = 256, MOST_TILE = 32 };

/* Rows [first, first + n) of one head of x as accumulators, zeros below them: to [tile, D]. */
__device__ __forceinline__ void load_rows(acc *to, const real *x, int64_t row_stride, int64_t n,
                                          int tile, int64_t dim)
{
    for (int64_t i = threadIdx.x; i < tile * dim; i += blockDim.x) {
        int64_t row = i / dim;
        to[i] = row < n ? load(x[row * row_stride + i - row * dim]) : 0;
    }
}

__device__ __forceinline__ acc dot(const acc *a, const acc *b, int64_t dim)
{
    acc sum = 0;
    for (int64_t d = 0; d < dim; d++) sum += a[d] * b[d];
    return sum;
}

/* grad [at] (+)= x; of part of the keys gradients are accumulators. */
__device__ __forceinline__ void give_to(const ul_grad &grad, int partial, int64_t at, acc x)
{
    acc *to = (acc *)grad.data + at;
    if (partial)
        *to = grad.add ? *to + x : x;
    else
        give((real *)grad.data + at, grad.add, x);
}

/* The largest tile of which `matrices` of [tile, D] and `squares` of [tile, tile] fit a block. */
static inline int tile_for(const ul_stream *s, int64_t dim, int matrices, int squares,
                           int64_t *bytes)
{
    int tile = MOST_TILE;
    for (;; tile /= 2) {
        *bytes = (matrices * tile * dim + squares * tile * tile + 4 * tile) * (int64_t)sizeof(acc);
        if (*bytes <= s->shared_bytes || tile == 1) return tile;
    }
}

/* More than 48 KiB of shared memory must be asked for. */
template <class K>
static inline int allow_shared(const ul_stream *s, K kernel, int64_t bytes, int64_t dim)
{
    if (bytes > s->shared_bytes) {
        char sentence[192];
        snprintf(sentence, sizeof sentence,
                 "attention: heads of %lld are too large for the %lld bytes of shared memory that "
                 "this device gives a block",
                 (long long)dim, (long long)s->shared_bytes);
        return ul_cuda_fail(sentence);
    }
    if (bytes > 48 << 10)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return ul_cuda_launched("attention");
}

#endif
