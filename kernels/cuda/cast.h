/* cast.h - values from one element type to another.
 *
 * Integers from floats: towards zero, saturating, 0 from NaN; from wider integers: saturating.
 * Floats: to the nearest (bf16 by way of f32).
 */
#ifndef UL_CUDA_CAST_H
#define UL_CUDA_CAST_H

#include "cuda.h"

__host__ __device__ static inline int64_t int_of_double(double x)
{
    const double limit = 9223372036854775808.0; /* 2^63 */
    if (x != x) return 0;
    if (x >= limit) return INT64_MAX;
    return x < -limit ? INT64_MIN : (int64_t)x;
}

__device__ __forceinline__ real real_of_int(int64_t x)
{
#if UL_TYPE_IS(i32)
    return (real)(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x);
#elif UL_TYPE_IS(u8)
    return (real)(x < 0 ? 0 : x > UINT8_MAX ? UINT8_MAX : x);
#else
    return store((acc)x);
#endif
}

/* What `store_given` makes an element of: a number given by the host, which rounds it. */
static inline acc given(double x)
{
#if UL_TYPE_FLOAT
    return (acc)x;
#else
    return int_of_double(x);
#endif
}

__device__ __forceinline__ real store_given(acc x)
{
#if UL_TYPE_FLOAT
    return store(x);
#else
    return real_of_int(x);
#endif
}

__device__ __forceinline__ real real_of_double(double x)
{
#if UL_TYPE_FLOAT
    return store((acc)x);
#else
    return real_of_int(int_of_double(x));
#endif
}

__device__ __forceinline__ real real_of_f32(float x)
{
#if UL_TYPE_FLOAT
    return store((acc)x);
#else
    return real_of_int(int_of_double((double)x));
#endif
}

#endif
