/* transpose.h - turns a block of VL x VL accumulators in registers. */
#ifndef UL_TRANSPOSE_H
#define UL_TRANSPOSE_H

#include "tile.h"

/* The lower (half = 0) or upper (half = VL / 2) halves of a and b, element by element. */
#if VL == 16
#define ZIP(a, b, half)                                                                          \
    __builtin_shufflevector(a, b, half + 0, half + 16, half + 1, half + 17, half + 2, half + 18, \
                            half + 3, half + 19, half + 4, half + 20, half + 5, half + 21,       \
                            half + 6, half + 22, half + 7, half + 23)
#elif VL == 8
#define ZIP(a, b, half)                                                                        \
    __builtin_shufflevector(a, b, half + 0, half + 8, half + 1, half + 9, half + 2, half + 10, \
                            half + 3, half + 11)
#elif VL == 4
#define ZIP(a, b, half) __builtin_shufflevector(a, b, half + 0, half + 4, half + 1, half + 5)
#else
#define ZIP(a, b, half) __builtin_shufflevector(a, b, half + 0, half + 2)
#endif

/* Zipping row i with row i + VL / 2 turns the bits of (row, column) round by one; doing so once for
 * each bit of the row exchanges the two.
 */
TILE_INLINE void transpose(vec row[VL])
{
    TILE_UNROLL
    for (int bit = 1; bit < VL; bit *= 2) {
        vec next[VL];
        UNROLLED (i, VL / 2) {
            next[2 * i] = ZIP(row[i], row[i + VL / 2], 0);
            next[2 * i + 1] = ZIP(row[i], row[i + VL / 2], VL / 2);
        }
        UNROLLED (i, VL) row[i] = next[i];
    }
}

#endif
