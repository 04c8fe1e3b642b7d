/* values.h - what tests of kernels share: elements of any dtype as doubles, ISA levels, loops. */
#ifndef UL_VALUES_H
#define UL_VALUES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* In the order of ul_cpu_kernels(). */
enum { F32, BF16, F64, I32, I64, U8, N_DTYPES };
static const char *const dtype_names[N_DTYPES] = {"f32", "bf16", "f64", "i32", "i64", "u8"};
static const size_t dtype_sizes[N_DTYPES] = {4, 2, 8, 4, 8, 1};

/* Half the distance between neighbours at 1; 0 for integers. */
static const double dtype_eps[N_DTYPES] = {0x1p-24, 0x1p-8, 0x1p-53, 0, 0, 0};

static inline double get(int dtype, const void *p, int64_t i)
{
    uint32_t bits;
    float f;
    switch (dtype) {
    case F32:
        return (double)((const float *)p)[i];
    case BF16:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    case F64:
        return ((const double *)p)[i];
    case I32:
        return (double)((const int32_t *)p)[i];
    case I64:
        return (double)((const int64_t *)p)[i];
    default:
        return (double)((const uint8_t *)p)[i];
    }
}

/* Integers must fit; bf16 is rounded to nearest even. */
static inline void put(int dtype, void *p, int64_t i, double x)
{
    uint32_t bits;
    float f = (float)x;
    switch (dtype) {
    case F32:
        ((float *)p)[i] = f;
        break;
    case BF16:
        memcpy(&bits, &f, sizeof bits);
        if (x == x) bits += 0x7fff + ((bits >> 16) & 1);
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
        break;
    case F64:
        ((double *)p)[i] = x;
        break;
    case I32:
        ((int32_t *)p)[i] = (int32_t)x;
        break;
    case I64:
        ((int64_t *)p)[i] = (int64_t)x;
        break;
    default:
        ((uint8_t *)p)[i] = (uint8_t)x;
    }
}

/* What an element of that type makes of x. */
static inline double rounded(int dtype, double x)
{
    double slot;
    put(dtype, &slot, 0, x);
    return get(dtype, &slot, 0);
}

/* Reproducible numbers in [0, 1). */
static inline double noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

/* n new elements; the caller frees them. */
static inline void *new_values(int dtype, int64_t n)
{
    return calloc((size_t)n + 1, dtype_sizes[dtype]);
}

static inline void *new_noise(int dtype, int64_t n, double low, double high, uint64_t seed)
{
    void *p = new_values(dtype, n);
    for (int64_t i = 0; i < n; i++) put(dtype, p, i, low + (high - low) * noise(&seed));
    return p;
}

/* Equal up to `tolerance`, relative above 1 and absolute below; NaN equals NaN, inf itself. */
static inline int close_to(double got, double want, double tolerance)
{
    double size = want < 0 ? -want : want, gap = got - want;
    if (got != got || want != want) return got != got && want != want;
    if (got == want) return 1;
    return (gap < 0 ? -gap : gap) <= tolerance * (size > 1 ? size : 1);
}

static const char *const isa_names[] = {"base", "avx2", "avx512", "avx512bf16"};

/* for (int level = 0; next_isa(&level); level++): the levels that this machine has. */
static inline int next_isa(int *level)
{
    while (*level < 4 && !ul_cpu_set_isa(isa_names[*level])) ++*level;
    return *level < 4;
}

/* The dtypes whose tables differ from those of the level below. */
static inline int has_table(int level, int dtype)
{
    return level == 0 || (dtype <= F64 && (level < 3 || dtype == BF16));
}

static inline ul_loop loop_1(int64_t n, int64_t s0, int64_t s1, int64_t s2)
{
    return (ul_loop){1, {n}, {{s0}, {s1}, {s2}}};
}

/* [rows, cols] with strides for up to four operands, as pairs. */
static inline ul_loop loop_2(int64_t rows, int64_t cols, const int64_t (*strides)[2], int n)
{
    ul_loop l = {.ndim = 2, .shape = {rows, cols}};
    for (int o = 0; o < n; o++)
        for (int d = 0; d < 2; d++) l.stride[o][d] = strides[o][d];
    return l;
}

/* How many elements operand o spans. */
static inline int64_t loop_span(const ul_loop *l, int o)
{
    int64_t span = 1;
    for (int d = 0; d < l->ndim; d++) {
        if (l->shape[d] == 0) return 0;
        span += (l->shape[d] - 1) * l->stride[o][d];
    }
    return span;
}

static inline int64_t loop_count(const ul_loop *l)
{
    int64_t n = 1;
    for (int d = 0; d < l->ndim; d++) n *= l->shape[d];
    return n;
}

/* Where iteration i finds operand o. */
static inline int64_t loop_at(const ul_loop *l, int o, int64_t i)
{
    int64_t at = 0;
    for (int d = l->ndim - 1; d >= 0; d--) {
        at += i % l->shape[d] * l->stride[o][d];
        i /= l->shape[d];
    }
    return at;
}

#endif
