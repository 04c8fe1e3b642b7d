/* attention.h - what the forward and the backward of attention share: 2^x and loading of tiles.
 */
#ifndef UL_ATTENTION_H
#define UL_ATTENTION_H

#include "masks.h"
#include "simd.h"
#include "tile.h"

/* The bytes of `work` that attention_backward wants. */
int64_t CPU(attention_backward_bytes)(ul_stream *s, const ul_attention_args *a);

#define LOG2_OF_E 1.44269504088896340736
#define LOG_OF_2  0.69314718055994530942

#if UL_TYPE_IS(f64)
#define EXP2_LOW      (-1023.0)
#define EXP2_ROUNDER  (0x1.8p52 + 1023)
#define EXP2_MANTISSA 52
static const acc exp2_terms[] = {
    4.4549605981865186e-10, 7.0725859492692234e-09, 1.0178062445845774e-07, 1.3215442587921689e-06,
    1.5252733829836119e-05, 1.540353044173605e-04,  1.3333558146416936e-03, 9.6181291076068882e-03,
    5.5504108664821597e-02, 2.4022650695910097e-01, 6.9314718055994529e-01, 1};
#else
#define EXP2_LOW      (-127.0f)
#define EXP2_ROUNDER  (0x1.8p23f + 127)
#define EXP2_MANTISSA 23
static const acc exp2_terms[] = {1.54531629e-4f,
                                 1.33908634e-3f,
                                 9.61808256e-3f,
                                 5.55035711e-2f,
                                 2.40226508e-1f,
                                 6.93147188e-1f,
                                 1};
#endif
enum { EXP2_TERMS = sizeof exp2_terms / sizeof *exp2_terms };

/* 2^x for x up to 128 (f64: 1024): 0 for what lies below the normal numbers, -inf included, exactly
 * 1 for 0, NaN for NaN. x = n + r with |r| <= 1/2: adding the rounder, 1.5 * 2^(mantissa bits) and
 * the exponent's bias, rounds to an integer and leaves n + bias in the low bits, from where it is
 * moved to the exponent. 2^r is a polynomial that interpolates at the Chebyshev points (relative
 * error 5e-9, f64 8e-18).
 */
static inline vec v_exp2(vec x)
{
    x = v_max(v_splat((acc)EXP2_LOW), x);
    vec shifted = x + EXP2_ROUNDER, r = x - (shifted - EXP2_ROUNDER);
    vec y = v_splat(exp2_terms[0]);
    _Pragma("GCC unroll 12") for (int i = 1; i < EXP2_TERMS; i++) y = y * r + exp2_terms[i];
    return y * (vec)((veci)shifted << EXP2_MANTISSA);
}

static inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* y [rows, width] = x [rows, dim] widened, zero beyond dim. */
static inline void load_rows(acc *y, const real *x, int64_t stride, int64_t rows, int64_t dim,
                             int64_t width)
{
    for (int64_t i = 0; i < rows; i++, x += stride, y += width) {
        for (int64_t d = 0; d < dim; d++) y[d] = load(x[d]);
        for (int64_t d = dim; d < width; d++) y[d] = 0;
    }
}

/* y [rows, dim] (+)= x [rows, width], row i of it times factor[i] (NULL: as it is). */
static inline void give_rows(real *y, int64_t stride, int add, const acc *x, int64_t width,
                             const acc *factor, int64_t rows, int64_t dim)
{
    int64_t whole = dim / VL * VL;
    for (int64_t i = 0; i < rows; i++, y += stride, x += width) {
        acc by = factor ? factor[i] : 1;
        for (int64_t d = 0; d < whole; d += VL) {
            vec z = v_load_acc(x + d) * by;
            v_store(y + d, add ? v_load(y + d) + z : z);
        }
        for (int64_t d = whole; d < dim; d++) give(y + d, add, x[d] * by);
    }
}

/* y [dim, width] = factor x [rows, dim]^T, zero beyond rows. */
static inline void load_transposed(acc *y, const real *x, int64_t stride, int64_t rows, int64_t dim,
                                   int64_t width, acc factor)
{
    for (int64_t d = 0; d < dim; d++, y += width) {
        for (int64_t i = 0; i < rows; i++) y[i] = load(x[i * stride + d]) * factor;
        for (int64_t i = rows; i < width; i++) y[i] = 0;
    }
}

#endif
