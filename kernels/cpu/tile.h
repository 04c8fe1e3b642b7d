/* tile.h - products of small matrices that are hot in cache: the heart of gemm and attention.
 *
 *     tile_nn:  c [m, n] (+)= a [m, k] b [k, n]       a (i, l) = a[i * lda + l]
 *     tile_tn:  c [m, n] (+)= a [k, m]^T b [k, n]     a (i, l) = a[l * lda + i]
 *
 * Everything is acc (float for f32 and bf16, double for f64), row-major with any row strides lda,
 * ldb, ldc (in elements) and any alignment, though rows of b and c that are 64-byte aligned are
 * faster. n must be a multiple of VL; m and k are anything, 0 included. c must not overlap a or b.
 * With add = 0 c is overwritten, never read; with add = 1 the product is added to it. Columns of b
 * and c are taken TILE_COLS at a time, so a b of many columns is best kept as panels [k, TILE_COLS]
 * and given panel by panel. Each element is one sum over k in rising order, then added to c: the
 * result does not depend on how m and n are cut up. Runs on the calling thread.
 *
 * Where PAIRS is set (bf16 with vdpbf16ps), tile_pairs is tile_nn on pairs: a word of 32 bits holds
 * two bf16 neighbours along k, the lower half first, and k counts words. An odd end is padded with
 * zero in both a and b.
 *
 * How: a block of TILE_ROWS x TILE_VECTORS vectors of c stays in registers while a is broadcast
 * straight from its rows. Each smaller number of rows has a block of its own, so that m is split
 * evenly rather than into full blocks and a thin rest.
 */
#ifndef UL_TILE_H
#define UL_TILE_H

#include "simd.h"

#if UL_LEVEL_ID == 3 && UL_TYPE_IS(bf16)
#include <immintrin.h>
#define PAIRS 1
#else
#define PAIRS 0
#endif

/* Elements in a word. */
enum { WORD = PAIRS ? 2 : 1 };

/* 24 sums of 32 registers with AVX-512, 12 of 16 with AVX2; SSE2 needs one for each product. */
#if UL_LEVEL_ID >= 2
enum { TILE_ROWS = 6, TILE_VECTORS = 4 };
#else
enum { TILE_ROWS = 6, TILE_VECTORS = 2 };
#endif
enum { TILE_COLS = TILE_VECTORS * VL };

#define TILE_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define TILE_UNROLL _Pragma("unroll")
#else
#define TILE_UNROLL _Pragma("GCC unroll 16")
#endif
/* A loop that leaves no loop behind. n must be known where the compiler gets there. */
#define UNROLLED(i, n) TILE_UNROLL for (int i = 0; i < (n); i++)

/* sum + a b with a broadcast; on pairs the two products of each word are both added. */
TILE_INLINE vec tile_step(vec sum, const acc *a, vec b, const int pairs)
{
#if PAIRS
    if (pairs)
        return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(*(const int *)a),
                                     (__m512bh)b);
#endif
    (void)pairs;
    return sum + v_splat(*a) * b;
}

/* rows, vectors and pairs are constants where this is inlined: gcc keeps `sum` in registers only
 * where every index of it is known.
 */
TILE_INLINE void tile_block(const int rows, const int vectors, const int pairs, int64_t k,
                            const acc *a, int64_t a_row, int64_t a_step, const acc *b, int64_t ldb,
                            acc *c, int64_t ldc, int add)
{
    vec sum[TILE_ROWS][TILE_VECTORS];
    UNROLLED (i, rows)
        UNROLLED (j, vectors) sum[i][j] = (vec){0};
    for (; k > 0; k--, a += a_step, b += ldb) {
        vec row[TILE_VECTORS];
        UNROLLED (j, vectors) row[j] = v_load_acc(b + j * VL);
        UNROLLED (i, rows)
            UNROLLED (j, vectors) sum[i][j] = tile_step(sum[i][j], a + i * a_row, row[j], pairs);
    }
    UNROLLED (i, rows)
        UNROLLED (j, vectors) {
            acc *at = c + i * ldc + j * VL;
            v_store_acc(at, add ? v_load_acc(at) + sum[i][j] : sum[i][j]);
        }
}

/* Makes tile_NAME and its three widths. */
#define TILE_ARGUMENTS \
    int64_t k, const acc *a, int64_t lda, const acc *b, int64_t ldb, acc *c, int64_t ldc, int add
#define TILE_CASE(rows, vectors, pairs, a_row, a_step)                              \
    case rows:                                                                      \
        tile_block(rows, vectors, pairs, k, x, a_row, a_step, b, ldb, y, ldc, add); \
        break;
#define TILE_STRIP(name, vectors, pairs, a_row, a_step)                           \
    static __attribute__((noinline, unused)) void name(int64_t m, TILE_ARGUMENTS) \
    {                                                                             \
        int64_t blocks = (m + TILE_ROWS - 1) / TILE_ROWS;                         \
        for (int64_t block = 0; block < blocks; block++) {                        \
            int64_t from = m * block / blocks, to = m * (block + 1) / blocks;     \
            const acc *x = a + from * (a_row);                                    \
            acc *y = c + from * ldc;                                              \
            switch (to - from) {                                                  \
                TILE_CASE(1, vectors, pairs, a_row, a_step)                       \
                TILE_CASE(2, vectors, pairs, a_row, a_step)                       \
                TILE_CASE(3, vectors, pairs, a_row, a_step)                       \
                TILE_CASE(4, vectors, pairs, a_row, a_step)                       \
                TILE_CASE(5, vectors, pairs, a_row, a_step)                       \
                TILE_CASE(6, vectors, pairs, a_row, a_step)                       \
            }                                                                     \
        }                                                                         \
    }
#define TILE_PRODUCT(name, pairs, a_row, a_step)                                                 \
    TILE_STRIP(name##_wide, TILE_VECTORS, pairs, a_row, a_step)                                  \
    TILE_STRIP(name##_half, TILE_VECTORS / 2, pairs, a_row, a_step)                              \
    TILE_STRIP(name##_thin, 1, pairs, a_row, a_step)                                             \
    static inline void name(int64_t m, int64_t n, TILE_ARGUMENTS)                                \
    {                                                                                            \
        for (; n >= TILE_COLS; n -= TILE_COLS, b += TILE_COLS, c += TILE_COLS)                   \
            name##_wide(m, k, a, lda, b, ldb, c, ldc, add);                                      \
        for (; n >= TILE_COLS / 2; n -= TILE_COLS / 2, b += TILE_COLS / 2, c += TILE_COLS / 2)   \
            name##_half(m, k, a, lda, b, ldb, c, ldc, add);                                      \
        for (; n > 0; n -= VL, b += VL, c += VL) name##_thin(m, k, a, lda, b, ldb, c, ldc, add); \
    }

TILE_PRODUCT(tile_nn, 0, lda, 1)
TILE_PRODUCT(tile_tn, 0, 1, lda)
#if PAIRS
TILE_PRODUCT(tile_pairs, 1, lda, 1)
#endif

#endif
