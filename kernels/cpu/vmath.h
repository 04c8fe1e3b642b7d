/* vmath.h - exp, tanh, erf, sigmoid of accumulators: without a branch, so that loops over them
 * vectorise.
 *
 * f32: within 1 ulp (exp, subnormal results included) and 3 ulp (tanh, erf, sigmoid); exp overflows
 * to inf, underflows to 0 and passes NaN on. f64: the C library's.
 */
#ifndef UL_VMATH_H
#define UL_VMATH_H

#include "simd.h"

#if UL_TYPE_IS(f64)

static inline acc fast_exp(acc x) { return exp(x); }
static inline acc fast_tanh(acc x) { return tanh(x); }
static inline acc fast_erf(acc x) { return erf(x); }

static inline vec v_exp(vec x)
{
    for (int i = 0; i < VL; i++) x[i] = exp(x[i]);
    return x;
}

#else

/* exp(x) = 2^n exp(r), n the integer next to x / log 2, |r| <= log(2) / 2. Adding 1.5 * 2^23 rounds
 * to an integer and leaves it in the low bits. log 2 is split so that n times its first part is
 * exact. exp(r) = 1 + r + r^2 q(r), q a minimax polynomial (relative error 3e-9). 2^n is applied as
 * two factors, since n may be 128 or lie below the smallest exponent.
 */
#define EXP_LOW    -104.0f
#define EXP_HIGH   89.0f
#define LOG2_E     1.44269504f
#define LOG_2_HIGH 0.693359375f
#define LOG_2_LOW  -2.12194440e-4f
#define ROUNDER    12582912.0f
#define EXP_Q(r)                                                                              \
    ((((1.38145837e-3f * (r) + 8.36872403e-3f) * (r) + 4.1668389e-2f) * (r) + 0.166665211f) * \
         (r) +                                                                                \
     0.49999994f)

static inline uint32_t float_bits(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = x};
    return v.u;
}

static inline float float_of_bits(uint32_t x)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = x};
    return v.f;
}

static inline float fast_exp(float x)
{
    x = x < EXP_LOW ? EXP_LOW : x;
    x = x > EXP_HIGH ? EXP_HIGH : x;
    float shifted = x * LOG2_E + ROUNDER;
    int32_t n = (int32_t)(float_bits(shifted) - float_bits(ROUNDER));
    float k = shifted - ROUNDER, r = x - k * LOG_2_HIGH - k * LOG_2_LOW;
    float y = 1 + (r + r * r * EXP_Q(r));
    uint32_t half = (uint32_t)(n >> 1), rest = (uint32_t)n - half;
    return y * float_of_bits((half + 127) << 23) * float_of_bits((rest + 127) << 23);
}

static inline vec v_exp(vec x)
{
    veci low = x<EXP_LOW, high = x> EXP_HIGH;
    x = (vec)(((veci)v_splat(EXP_LOW) & low) | ((veci)v_splat(EXP_HIGH) & high) |
              ((veci)x & ~(low | high)));
    vec shifted = x * LOG2_E + ROUNDER;
    veci n = (veci)shifted - (veci)v_splat(ROUNDER);
    vec k = shifted - ROUNDER, r = x - k * LOG_2_HIGH - k * LOG_2_LOW;
    vec y = 1 + (r + r * r * EXP_Q(r));
    veci half = n >> 1, rest = n - half;
    return y * (vec)((half + 127) << 23) * (vec)((rest + 127) << 23);
}

/* |x| < 0.65: x + x^3 p(x^2), p a minimax polynomial (7e-9); else 1 - 2 / (exp(2 |x|) + 1). */
static inline float fast_tanh(float x)
{
    float z = x * x, size = fabsf(x);
    float p =
        (((-5.51516423e-3f * z + 2.04694197e-2f) * z - 5.36880232e-2f) * z + 0.133308306f) * z -
        0.333332598f;
    float near = size + size * z * p, far = 1 - 2 / (fast_exp(2 * size) + 1);
    return copysignf(size < 0.65f ? near : far, x);
}

/* |x| < 1: x p(x^2); else 1 - exp(p(|x|)), p = log erfc on [1, 4], beyond which erf is 1. Both
 * minimax (1e-9).
 */
static inline float fast_erf(float x)
{
    float z = x * x, size = fabsf(x), t = size > 4 ? 4 : size;
    float p = ((7.85386073e-5f * z - 8.01019371e-4f) * z + 5.18832775e-3f) * z - 2.6853811e-2f;
    p = ((p * z + 0.112835854f) * z - 0.37612626f) * z + 1.12837911f;
    float q = ((1.88822611e-4f * t - 2.97243265e-3f) * t + 2.19403952e-2f) * t - 0.103327274f;
    q = ((q * t - 0.637883186f) * t - 1.12725139f) * t - 3.00439191e-4f;
    return copysignf(size < 1 ? size * p : 1 - fast_exp(q), x);
}

#endif

static inline acc fast_sigmoid(acc x) { return 1 / (1 + fast_exp(-x)); }

/* y = x p, p = sigmoid(x); dy/dx = p + x p (1 - p). */
static inline acc silu(acc x) { return x * fast_sigmoid(x); }
static inline acc silu_slope(acc x)
{
    acc p = fast_sigmoid(x);
    return p * (1 + x * (1 - p));
}

/* The C library's function for accumulators. */
#if UL_TYPE_IS(f64)
#define LIBM(name) name
#else
#define LIBM(name) name##f
#endif

#endif
