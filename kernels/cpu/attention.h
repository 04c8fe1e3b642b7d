/* attention.h - what the forward and the backward of attention share: 2^x, and how tiles are
 * loaded.
 *
 * A word is what tile.h multiplies: one acc, or with PAIRS two bf16 neighbours along the sum. A sum
 * over n elements runs over n_words(n) words.
 */
#ifndef UL_ATTENTION_H
#define UL_ATTENTION_H

#include "../masks.h"
#include "simd.h"
#include "tile.h"
#include "transpose.h"

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
    UNROLLED (i, EXP2_TERMS - 1) y = y * r + exp2_terms[i + 1];
    return y * (vec)((veci)shifted << EXP2_MANTISSA);
}

/* How many rows ahead loading asks for memory: rows lie far apart, where no hardware prefetcher
 * follows.
 */
enum { AHEAD = 8 };

static inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* The products: c (+)= a b and c (+)= a^T b, the sums along words. */
#if PAIRS
TILE_PRODUCT(tile_pairs_tn, 1, 1, lda)
#define product_nn tile_pairs
#define product_tn tile_pairs_tn
#else
#define product_nn tile_nn
#define product_tn tile_tn
#endif

static inline int64_t n_words(int64_t n) { return (n + WORD - 1) / WORD; }

/* VL words of x, of which `left` elements are there; zero beyond. */
static inline vec words_at(const real *x, int64_t left)
{
    real part[VL * WORD] = {0};
    if (left < VL * WORD) x = memcpy(part, x, (size_t)most(left, 0) * sizeof(real));
    vec words;
    if (PAIRS)
        memcpy(&words, x, sizeof words); /* rows may begin in the middle of a word */
    else
        words = v_load(x);
    return words;
}

/* y [rows, words] = x [rows, dim], words along dim. */
static inline void load_rows(acc *y, const real *x, int64_t stride, int64_t rows, int64_t dim,
                             int64_t words)
{
    for (int64_t i = 0; i < rows; i++, x += stride, y += words)
        for (int64_t w = 0; w < words; w += VL) {
            __builtin_prefetch(x + AHEAD * stride + w * WORD);
            v_store_acc(y + w, words_at(x + w * WORD, dim - w * WORD));
        }
}

/* y [n_words(dim), width] = x [rows, dim]^T, words along dim. */
static inline void load_turned(acc *y, const real *x, int64_t stride, int64_t rows, int64_t dim,
                               int64_t width)
{
    for (int64_t i = 0; i < width; i += VL)
        for (int64_t w = 0; w < n_words(dim); w += VL) {
            vec block[VL];
            UNROLLED (n, VL)
                block[n] = i + n < rows ? words_at(x + (i + n) * stride + w * WORD, dim - w * WORD)
                                        : (vec){0};
            transpose(block);
            for (int n = 0; n < VL && w + n < n_words(dim); n++)
                v_store_acc(y + (w + n) * width + i, block[n]);
        }
}

#if PAIRS

/* A word of each lane: low first. */
static inline vec make_words(const vec part[WORD])
{
    const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)part[1], (__m512)part[0]);
    return (vec)_mm512_permutexvar_epi16(zip, both);
}

/* VL elements of x, of which `left` are there, each in the lower half of a word; zero beyond. */
static inline vecu halves_at(const real *x, int64_t left)
{
    real part[VL] = {0};
    if (left < VL) x = memcpy(part, x, (size_t)most(left, 0) * sizeof(real));
    return __builtin_convertvector(*(const half_any *)x, vecu);
}

/* y [n_words(rows), width] = x [rows, dim], words along the rows. */
static inline void load_stacked(acc *y, const real *x, int64_t stride, int64_t rows, int64_t dim,
                                int64_t width)
{
    for (int64_t i = 0; i < rows; i += 2, x += 2 * stride, y += width)
        for (int64_t d = 0; d < width; d += VL) {
            __builtin_prefetch(x + AHEAD * stride + d);
            __builtin_prefetch(x + (AHEAD + 1) * stride + d);
            vecu low = halves_at(x + d, dim - d), high = {0};
            if (i + 1 < rows) high = halves_at(x + stride + d, dim - d);
            v_store_acc(y + d, (vec)(low | high << 16));
        }
}

#else

static inline vec make_words(const vec part[WORD]) { return part[0]; }

static inline void load_stacked(acc *y, const real *x, int64_t stride, int64_t rows, int64_t dim,
                                int64_t width)
{
    load_rows(y, x, stride, rows, dim, width);
}

#endif

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

/* The same for y that holds accumulators. */
static inline void give_sums(acc *y, int64_t stride, int add, const acc *x, int64_t width,
                             const acc *factor, int64_t rows, int64_t dim)
{
    for (int64_t i = 0; i < rows; i++, y += stride, x += width) {
        acc by = factor ? factor[i] : 1;
        for (int64_t d = 0; d < dim; d++) y[d] = (add ? y[d] : 0) + x[d] * by;
    }
}

#endif
