/* bench.h - what the machine can do at best, and the clock, for benchmarks. */
#ifndef UL_BENCH_H
#define UL_BENCH_H

/* Bytes/s between memory and all threads together, the better of reading and copying, where what is
 * read and what is written both count. One sample.
 */
double bench_peak_bandwidth(void);

/* Seconds since some moment. */
double bench_now(void);

/* Sorts x. */
double bench_median(double *x, int n);

#endif
