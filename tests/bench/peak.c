/* peak.c - the floor of memory, far larger than any cache, and the clock. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench.h"
#include "cpu/pool.h"

/* Work is given out in small parts, as kernels do: a thread that other programs hold up costs both
 * alike.
 */
enum { BUFFER = 256 << 20, PART = 1 << 20 };

/* ---- memory ---- */

static char *from, *to;

static void read_part(void *arg, int64_t i, int thread)
{
    int64_t *totals = arg, total = 0;
    const int64_t *x = (const int64_t *)(const void *)(from + i * PART);
    for (int64_t j = 0; j < PART / 8; j++) total += x[j];
    totals[thread] += total;
}

static void copy_part(void *arg, int64_t i, int thread)
{
    (void)arg, (void)thread;
    memcpy(to + i * PART, from + i * PART, PART);
}

static char *map_buffer(void)
{
    char *p = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    madvise(p, BUFFER, MADV_HUGEPAGE);
    return memset(p, 1, BUFFER);
}

double bench_peak_bandwidth(void)
{
    static int64_t totals[UL_MAX_THREADS];
    if (!from) from = map_buffer(), to = map_buffer();
    ul_stream *s = ul_cpu_stream();
    double t0 = bench_now();
    ul_parallel(s, BUFFER / PART, read_part, totals);
    double t1 = bench_now();
    ul_parallel(s, BUFFER / PART, copy_part, NULL);
    double t2 = bench_now();
    double reading = BUFFER / (t1 - t0), copying = 2.0 * BUFFER / (t2 - t1);
    return reading > copying ? reading : copying;
}

/* ---- clock ---- */

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}
