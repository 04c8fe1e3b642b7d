/* fake_nccl_sums.h - sums, largest and smallest of what ranks have, by NCCL's numbers of dtypes and
 * of operations.
 */
#ifndef FAKE_NCCL_SUMS_H
#define FAKE_NCCL_SUMS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static size_t size_of(int dtype)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[dtype];
}

static float from_bf16(uint16_t x)
{
    uint32_t wide = (uint32_t)x << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t x;
    memcpy(&x, &f, sizeof x);
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

#define COMBINE(type)                             \
    do {                                          \
        type *a = into, b = ((const type *)x)[i]; \
        a[i] = op == 0   ? (type)(a[i] + b)       \
               : op == 2 ? (a[i] > b ? a[i] : b)  \
                         : (a[i] < b ? a[i] : b); \
    } while (0)

static void combine(void *into, const void *x, size_t n, int dtype, int op)
{
    for (size_t i = 0; i < n; i++) {
        if (dtype == 1) COMBINE(uint8_t);
        if (dtype == 2) COMBINE(int32_t);
        if (dtype == 4) COMBINE(int64_t);
        if (dtype == 7) COMBINE(float);
        if (dtype == 8) COMBINE(double);
        if (dtype == 9) {
            uint16_t *a = into;
            float p = from_bf16(a[i]), q = from_bf16(((const uint16_t *)x)[i]);
            a[i] = to_bf16(op == 0 ? p + q : op == 2 ? (p > q ? p : q) : (p < q ? p : q));
        }
    }
}

#endif
