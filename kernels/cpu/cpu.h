/* cpu.h - what every cpu kernel file includes: element types, names, the loop walker and the pool.
 *
 * Each .c file of this folder (but isa.c and pool.c) is compiled once for each dtype and ISA level,
 * with UL_TYPE = f32 | bf16 | f64 | i32 | i64 | u8 and UL_LEVEL = base | avx2 | avx512 | avx512bf16
 * (integers: base only; avx512bf16: bf16 only). CPU(name) is the kernel's symbol in that
 * compilation, as kernels.def declares it.
 */
#ifndef UL_CPU_H
#define UL_CPU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../kernels.h"
#include "pool.h"

#define UL_PASTE(a, b) a##b
#define UL_JOIN(a, b)  UL_PASTE(a, b)
#define CPU(name) \
    UL_JOIN(UL_JOIN(UL_JOIN(ul_cpu_, UL_LEVEL), UL_JOIN(_, UL_TYPE)), UL_JOIN(_, name))

/* UL_IS_f32 ... compare with UL_TYPE in #if: #if UL_TYPE_IS(bf16) */
#define UL_ID_f32     1
#define UL_ID_bf16    2
#define UL_ID_f64     3
#define UL_ID_i32     4
#define UL_ID_i64     5
#define UL_ID_u8      6
#define UL_TYPE_IS(t) (UL_JOIN(UL_ID_, UL_TYPE) == UL_ID_##t)
#define UL_TYPE_FLOAT (UL_JOIN(UL_ID_, UL_TYPE) <= 3)

/* real: what an element is stored as; acc: what is computed and accumulated in. */
#if UL_TYPE_IS(f32)
typedef float real;
typedef float acc;
#elif UL_TYPE_IS(bf16)
typedef uint16_t real;
typedef float acc;
#elif UL_TYPE_IS(f64)
typedef double real;
typedef double acc;
#elif UL_TYPE_IS(i32)
typedef int32_t real;
typedef int64_t acc;
#elif UL_TYPE_IS(i64)
typedef int64_t real;
typedef int64_t acc;
#elif UL_TYPE_IS(u8)
typedef uint8_t real;
typedef int64_t acc;
#endif

/* The type of sums: the element's own for floats, i64 for integers. */
#if UL_TYPE_FLOAT
typedef real sum_t;
#else
typedef int64_t sum_t;
#endif

static inline float ul_bf16_to_f32(uint16_t x)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)x << 16};
    return v.f;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t ul_f32_to_bf16(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = x};
    uint32_t rounded = (v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16;
    uint32_t quiet = (v.u >> 16) | 0x40u;
    return (uint16_t)((v.u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#if UL_TYPE_IS(bf16)
static inline acc load(real x) { return ul_bf16_to_f32(x); }
static inline real store(acc x) { return ul_f32_to_bf16(x); }
#else
static inline acc load(real x) { return (acc)x; }
static inline real store(acc x) { return (real)x; }
#endif

/* Writes one element of a gradient: *at (+)= x. */
static inline void give(real *at, int add, acc x) { *at = store(add ? load(*at) + x : x); }

#define UL_KERNEL_ANY(name, signature, flops, bytes) int CPU(name) signature;
#if UL_TYPE_FLOAT
#define UL_KERNEL_FLOAT(name, signature, flops, bytes) int CPU(name) signature;
#else
#define UL_KERNEL_FLOAT(name, signature, flops, bytes)
#endif
#include "../kernels.def"
#undef UL_KERNEL_ANY
#undef UL_KERNEL_FLOAT

#endif
