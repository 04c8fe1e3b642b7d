/* kernels_bench.c - times cpu kernels against the floor that the machine sets in the same run.
 *
 * One line for each: op, size, time in ms, floor in ms, share = floor / time. Floors are measured
 * in turn with the kernels, so that both see the same clock and the same neighbours; all figures
 * are medians.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "kernels.h"

enum { ROUNDS = 9, F32 = 0, BF16 = 1 };

typedef struct bench {
    const char *op;
    char size[64];
    int bf16;            /* whose peak is the floor */
    double flops, bytes; /* that one run must do and move */
    void (*run)(const struct bench *b);
    int dtype;
    ul_gemm gemm;
    void *a, *b, *c;
} bench;

static void *new_elements(int64_t n, int64_t size)
{
    unsigned char *p = malloc((size_t)(n * size));
    if (!p) abort();
    /* Small positive numbers in f32 and bf16 alike: the top bytes are 0x3c and below. */
    for (int64_t i = 0; i < n * size; i++)
        p[i] = (unsigned char)(i % size == size - 1 ? 0x3c : i * 7 % 61);
    return p;
}

static void run_gemm(const bench *b)
{
    ul_cpu_kernels(b->dtype)->gemm(ul_cpu_stream(), b->c, b->a, b->b, &b->gemm);
}

/* form: "nn", "nt" or "tn" */
static bench gemm_bench(int dtype, const char *form, int64_t m, int64_t n, int64_t k)
{
    int64_t size = dtype == BF16 ? 2 : 4;
    bench b = {.op = "gemm", .dtype = dtype, .bf16 = dtype == BF16, .run = run_gemm};
    snprintf(b.size, sizeof b.size, "%s %s %dx%dx%d", dtype == BF16 ? "bf16" : "f32", form, (int)m,
             (int)n, (int)k);
    b.flops = 2.0 * (double)m * (double)n * (double)k;
    b.bytes = (double)(size * (m * k + k * n + m * n));
    b.gemm = (ul_gemm){.m = m, .n = n, .k = k, .batch = 1, .alpha = 1, .ldc = n};
    b.gemm.a_trans = form[0] == 't', b.gemm.b_trans = form[1] == 't';
    b.gemm.lda = b.gemm.a_trans ? m : k, b.gemm.ldb = b.gemm.b_trans ? k : n;
    b.a = new_elements(m * k, size), b.b = new_elements(k * n, size);
    b.c = new_elements(m * n, size);
    return b;
}

static void measure(const bench *b)
{
    double times[ROUNDS], flops[ROUNDS], bandwidth[ROUNDS];
    b->run(b);
    for (int i = 0; i < ROUNDS; i++) {
        flops[i] = bench_peak_flops(ul_cpu_isa(), b->bf16);
        bandwidth[i] = bench_peak_bandwidth();
        double start = bench_now();
        b->run(b);
        times[i] = bench_now() - start;
    }
    double arithmetic = b->flops / bench_median(flops, ROUNDS);
    double memory = b->bytes / bench_median(bandwidth, ROUNDS);
    double floor = arithmetic > memory ? arithmetic : memory, time = bench_median(times, ROUNDS);
    printf("%-12s %-28s %10.3f %10.3f %5.0f %%\n", b->op, b->size, time * 1e3, floor * 1e3,
           100 * floor / time);
    fflush(stdout);
}

int main(void)
{
    static const char *const forms[] = {"nn", "nt", "tn"};
    printf("%s, %d threads, %.0f GB/s\n", ul_cpu_isa(), ul_cpu_threads(),
           bench_peak_bandwidth() * 1e-9);
    printf("%-12s %-28s %10s %10s %7s\n", "op", "size", "time ms", "floor ms", "share");
    for (int dtype = F32; dtype <= BF16; dtype++)
        for (int i = 0; i < 3; i++) {
            bench b = gemm_bench(dtype, forms[i], 2048, 2048, 2048);
            measure(&b);
            free(b.a), free(b.b), free(b.c);
        }
    return 0;
}
