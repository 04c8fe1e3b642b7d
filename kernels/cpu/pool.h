/* pool.h - the threads that cpu kernels share. */
#ifndef UL_POOL_H
#define UL_POOL_H

#include <stdint.h>

#include "../kernels.h"

enum { UL_MAX_THREADS = 256 };

/* Threads of a stream, the caller's included. */
int ul_pool_threads(const ul_stream *s);

/* Runs body(arg, i, thread) once for each i in [0, n), on whichever thread is free next, lowest i
 * first; returns when all are done. The result must not depend on which thread ran what: reductions
 * sum fixed blocks in block order. n = 1, or one thread, runs on the caller without a fork; so does
 * a call from within a body, on the thread it comes from. Callers from several threads of the
 * program take turns; whoever uses shared scratch across several jobs must be alone.
 */
void ul_parallel(ul_stream *s, int64_t n, void (*body)(void *arg, int64_t i, int thread),
                 void *arg);

/* How many elements of cheap work (one load, a few operations, one store) are worth a fork: callers
 * that walk fewer run on the calling thread, others cut their work into pieces of about this size.
 */
enum { UL_GRAIN = 16384 };

/* Scratch that belongs to one thread of the pool (64-byte aligned, on huge pages, at least
 * UL_SCRATCH bytes), and scratch that all of one kernel share (UL_SHARED bytes). Contents do not
 * survive the kernel.
 */
enum { UL_SCRATCH = 4 << 20, UL_SHARED = 16 << 20 };
void *ul_pool_scratch(ul_stream *s, int thread);
void *ul_pool_shared(ul_stream *s);

/* For kernels that run in phases: runs body(arg, thread, n_threads) once on every thread, all at
 * the same time. ul_pool_barrier(), called by all of them, waits until every thread has arrived.
 * (From within a body the team is the thread it comes from: n_threads is 1.)
 */
void ul_pool_team(ul_stream *s, void (*body)(void *arg, int thread, int n_threads), void *arg);
void ul_pool_barrier(ul_stream *s);

#endif
