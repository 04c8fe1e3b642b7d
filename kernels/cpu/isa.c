/* isa.c - which ISA level the cpu kernels run at, and its tables. */
#include <cpuid.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels.h"

enum { BASE, AVX2, AVX512, AVX512BF16, N_LEVELS, N_DTYPES = 6 };

static const char *const names[N_LEVELS] = {"base", "avx2", "avx512", "avx512bf16"};

#define FLOAT_TABLES(level)                                                          \
    extern const ul_kernels ul_cpu_##level##_f32_table, ul_cpu_##level##_bf16_table, \
        ul_cpu_##level##_f64_table
FLOAT_TABLES(base);
FLOAT_TABLES(avx2);
FLOAT_TABLES(avx512);
extern const ul_kernels ul_cpu_avx512bf16_bf16_table;
extern const ul_kernels ul_cpu_base_i32_table, ul_cpu_base_i64_table, ul_cpu_base_u8_table;

/* A level has tables only for the dtypes that gain by it. */
static const ul_kernels *const tables[N_LEVELS][N_DTYPES] = {
    [BASE] = {&ul_cpu_base_f32_table, &ul_cpu_base_bf16_table, &ul_cpu_base_f64_table,
              &ul_cpu_base_i32_table, &ul_cpu_base_i64_table, &ul_cpu_base_u8_table},
    [AVX2] = {&ul_cpu_avx2_f32_table, &ul_cpu_avx2_bf16_table, &ul_cpu_avx2_f64_table},
    [AVX512] = {&ul_cpu_avx512_f32_table, &ul_cpu_avx512_bf16_table, &ul_cpu_avx512_f64_table},
    [AVX512BF16] = {[1] = &ul_cpu_avx512bf16_bf16_table},
};

/* x86-64-v3 has a few instructions that __builtin_cpu_supports() does not know everywhere. */
static int has_v3_scalars(void)
{
    unsigned a, b, c, d;
    const unsigned movbe = 1u << 22, f16c = 1u << 29, lzcnt = 1u << 5;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & movbe) || !(c & f16c)) return 0;
    return __get_cpuid(0x80000001u, &a, &b, &c, &d) && (c & lzcnt);
}

static int supports(int level)
{
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_v3_scalars();
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl");
    int bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    return level == BASE || (level == AVX2 && avx2) || (level == AVX512 && avx512) ||
           (level == AVX512BF16 && bf16);
}

/* The level of that name, or -1 where there is none or the CPU lacks it. */
static int find(const char *name)
{
    for (int level = 0; level < N_LEVELS; level++)
        if (strcmp(name, names[level]) == 0) return supports(level) ? level : -1;
    return -1;
}

static atomic_int chosen = -1;

static int level_in_force(void)
{
    int level = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (level >= 0) return level;
    const char *wanted = getenv("UL_ISA");
    level = wanted ? find(wanted) : -1;
    for (int i = N_LEVELS - 1; level < 0; i--)
        if (supports(i)) level = i;
    int none = -1;
    return atomic_compare_exchange_strong(&chosen, &none, level) ? level : none;
}

const ul_kernels *ul_cpu_kernels(int dtype_index)
{
    int level = level_in_force();
    while (!tables[level][dtype_index]) level--;
    return tables[level][dtype_index];
}

const char *ul_cpu_isa(void) { return names[level_in_force()]; }

int ul_cpu_set_isa(const char *name)
{
    int level = find(name);
    if (level < 0) return 0;
    atomic_store_explicit(&chosen, level, memory_order_relaxed);
    return 1;
}
