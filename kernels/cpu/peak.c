/* peak.c - measures how fast the machine multiplies and adds: from registers, on all threads. */
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "pool.h"

/* Enough independent sums to hide the latency of a multiply-add; SSE and AVX2 have 16 registers. */
enum { SUMS = 12, SUMS_512 = 24 };
/* Work is given out in small parts, as kernels do: a thread that other programs hold up costs both
 * alike.
 */
enum { FLOPS = 1 << 24, PARTS_PER_THREAD = 64 };

typedef float v128 __attribute__((vector_size(16)));
typedef float v256 __attribute__((vector_size(32)));
typedef float v512 __attribute__((vector_size(64)));

#ifdef __clang__
#define UNROLLED(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#else
#define UNROLLED(i, n) _Pragma("GCC unroll 24") for (int i = 0; i < (n); i++)
#endif

/* name(turns) applies `step` to each of n sums, `turns` times. */
#define PEAK_LOOP(name, isa, type, n, step)                                 \
    __attribute__((target(isa))) static void name(int64_t turns)            \
    {                                                                       \
        type sum[n], x = {0};                                               \
        UNROLLED (i, n) sum[i] = x;                                         \
        for (; turns > 0; turns--) {                                        \
            UNROLLED (i, n) __asm__ volatile(step : "+v"(sum[i]) : "v"(x)); \
        }                                                                   \
    }

/* Without a fused instruction the best is a multiplication beside each addition. */
static void peak_base(int64_t turns)
{
    v128 sum[SUMS], x = {0};
    UNROLLED (i, SUMS) sum[i] = x;
    for (; turns > 0; turns--) {
        UNROLLED (i, SUMS / 2) {
            __asm__ volatile("mulps %1, %0" : "+x"(sum[2 * i]) : "x"(x));
            __asm__ volatile("addps %1, %0" : "+x"(sum[2 * i + 1]) : "x"(x));
        }
    }
}

PEAK_LOOP(peak_avx2, "avx2,fma", v256, SUMS, "vfmadd231ps %1, %1, %0")
PEAK_LOOP(peak_avx512, "avx512f", v512, SUMS_512, "vfmadd231ps %1, %1, %0")
PEAK_LOOP(peak_bf16, "avx512f", v512, SUMS_512, "vdpbf16ps %1, %1, %0")

typedef struct peak {
    const char *isa;
    int bf16;
    void (*loop)(int64_t turns);
    int flops; /* in one turn */
} peak;

/* The last that fits: bf16 is widened where there is no instruction for it. */
static const peak peaks[] = {
    {"base", 0, peak_base, SUMS * 4},
    {"avx2", 0, peak_avx2, SUMS * 8 * 2},
    {"avx512", 0, peak_avx512, SUMS_512 * 16 * 2},
    {"avx512bf16", 0, peak_avx512, SUMS_512 * 16 * 2},
    {"avx512bf16", 1, peak_bf16, SUMS_512 * 32 * 2},
};

static void run_loop(void *arg, int64_t i, int thread)
{
    const peak *p = arg;
    (void)i, (void)thread;
    p->loop(FLOPS / p->flops);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double ul_cpu_peak_flops(int bf16)
{
    const char *isa = ul_cpu_isa();
    const peak *found = peaks;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (strcmp(peaks[i].isa, isa) == 0 && peaks[i].bf16 <= bf16) found = &peaks[i];
    ul_stream *s = ul_cpu_stream();
    int64_t parts = (int64_t)PARTS_PER_THREAD * ul_pool_threads(s);
    double start = now();
    ul_parallel(s, parts, run_loop, (void *)(uintptr_t)found);
    return (double)FLOPS * (double)parts / (now() - start);
}
