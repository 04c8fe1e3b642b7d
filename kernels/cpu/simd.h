/* simd.h - vectors of the accumulator type at the width of the ISA level, in GCC vector extensions.
 *
 * VL lanes of acc. Loads and stores take any alignment; bf16 elements are widened and rounded on
 * the way.
 */
#ifndef UL_SIMD_H
#define UL_SIMD_H

#include "cpu.h"

#define UL_LEVEL_ID_base       0
#define UL_LEVEL_ID_avx2       1
#define UL_LEVEL_ID_avx512     2
#define UL_LEVEL_ID_avx512bf16 3
#define UL_LEVEL_ID            UL_JOIN(UL_LEVEL_ID_, UL_LEVEL)

#if UL_LEVEL_ID >= 2
#define VECTOR_BYTES 64
#elif UL_LEVEL_ID == 1
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#if UL_TYPE_IS(f64)
#define ACC_BYTES 8
typedef int64_t acc_int;
#else
#define ACC_BYTES 4
typedef int32_t acc_int;
#endif
#define VL (VECTOR_BYTES / ACC_BYTES)

typedef acc vec __attribute__((vector_size(VECTOR_BYTES)));
typedef acc vec_any __attribute__((vector_size(VECTOR_BYTES), aligned(ACC_BYTES), may_alias));
typedef acc_int veci __attribute__((vector_size(VECTOR_BYTES)));

static inline vec v_splat(acc x) { return x - (vec){0}; }
static inline vec v_load_acc(const acc *p) { return *(const vec_any *)p; }
static inline void v_store_acc(acc *p, vec x) { *(vec_any *)p = x; }
static inline vec v_max(vec a, vec b) { return (vec)(((veci)a & (a > b)) | ((veci)b & ~(a > b))); }

#if UL_TYPE_IS(bf16)
typedef uint16_t half_any __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
typedef uint32_t vecu __attribute__((vector_size(VECTOR_BYTES)));
static inline vec v_load(const real *p)
{
    return (vec)(__builtin_convertvector(*(const half_any *)p, vecu) << 16);
}
static inline void v_store(real *p, vec x)
{
    vecu u = (vecu)x, rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
    vecu nan = (vecu)((u & 0x7fffffffu) > 0x7f800000u);
    *(half_any *)p = __builtin_convertvector((quiet & nan) | (rounded & ~nan), half_any);
}
#else
static inline vec v_load(const real *p) { return *(const vec_any *)p; }
static inline void v_store(real *p, vec x) { *(vec_any *)p = x; }
#endif

static inline acc v_sum(vec x)
{
    acc total = 0;
    for (int i = 0; i < VL; i++) total += x[i];
    return total;
}

#endif
