/* vmath.h - sigmoid and what is made of it. */
#ifndef UL_CUDA_VMATH_H
#define UL_CUDA_VMATH_H

#include "cuda.h"

__device__ __forceinline__ acc sigmoid_of(acc x) { return 1 / (1 + exp(-x)); }

/* y = x p, p = sigmoid(x); dy/dx = p + x p (1 - p). */
__device__ __forceinline__ acc silu(acc x) { return x * sigmoid_of(x); }
__device__ __forceinline__ acc silu_slope(acc x)
{
    acc p = sigmoid_of(x);
    return p + x * p * (1 - p);
}

#endif
