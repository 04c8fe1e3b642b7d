/* reduce.h - reductions of the trailing dims of a loop, in an order that depends on shapes alone.
 *
 * What is reduced into one output is walked as lines (runs along the innermost reduced dim), cut
 * into at most REDUCE_BLOCKS blocks whose states are merged in order. Threads share outputs where
 * there are many, blocks where there are few.
 */
#ifndef UL_REDUCE_H
#define UL_REDUCE_H

#include "cpu.h"

enum { REDUCE_BLOCKS = 256, REDUCE_BLOCK = 1 << 16 };

#if UL_TYPE_FLOAT
typedef double total_t;
#else
typedef int64_t total_t;
#endif

typedef struct reduce_state {
    total_t total;
    acc best;
    int64_t index;
} reduce_state;

typedef struct reduce_op {
    reduce_state start;
    /* Takes in n elements from x on, `step` apart; the first is element `flat` of those reduced. */
    void (*line)(reduce_state *state, const real *x, int64_t step, int64_t n, int64_t flat,
                 acc shift);
    void (*merge)(reduce_state *state, const reduce_state *next);
} reduce_op;

typedef struct reduce_job {
    const ul_loop *l;
    const real *x;
    const reduce_op *op;
    int kept;                  /* dims of the output */
    int64_t outputs, elements; /* outputs, and what is reduced into each */
    int64_t block, blocks, piece;
    const acc *shift; /* NULL, or one for the output being worked on */
    void (*done)(const struct reduce_job *job, int64_t y_at, int64_t x_at,
                 const reduce_state *state);
    const void *arg;
    int64_t x_at; /* of the output being shared by blocks */
    reduce_state *states;
} reduce_job;

/* Offsets of output number `i` in y and in x. */
static inline void output_at(const reduce_job *job, int64_t i, int64_t *y_at, int64_t *x_at)
{
    const ul_loop *l = job->l;
    *y_at = *x_at = 0;
    for (int d = job->kept - 1; d >= 0; d--) {
        int64_t k = i % l->shape[d];
        i /= l->shape[d];
        *y_at += k * l->stride[0][d];
        *x_at += k * l->stride[1][d];
    }
}

/* Takes in elements [begin, end) of those reduced into the output that starts at x. */
static inline reduce_state reduce_range(const reduce_job *job, const real *x, int64_t begin,
                                        int64_t end, acc shift)
{
    const ul_loop *l = job->l;
    reduce_state state = job->op->start;
    int last = l->ndim - 1;
    if (job->kept == l->ndim) { /* nothing is reduced: one element */
        if (begin < end) job->op->line(&state, x, 1, 1, 0, shift);
        return state;
    }
    while (begin < end) {
        int64_t rest = begin / l->shape[last], at = begin % l->shape[last];
        int64_t n = l->shape[last] - at < end - begin ? l->shape[last] - at : end - begin;
        int64_t offset = at * l->stride[1][last];
        for (int d = last - 1; d >= job->kept; d--) {
            offset += rest % l->shape[d] * l->stride[1][d];
            rest /= l->shape[d];
        }
        job->op->line(&state, x + offset, l->stride[1][last], n, begin, shift);
        begin += n;
    }
    return state;
}

static inline int64_t block_end(const reduce_job *job, int64_t block)
{
    int64_t end = (block + 1) * job->block;
    return end < job->elements ? end : job->elements;
}

/* Everything reduced into one output, by one thread. */
static inline reduce_state reduce_all(const reduce_job *job, const real *x, acc shift)
{
    reduce_state state = reduce_range(job, x, 0, block_end(job, 0), shift);
    for (int64_t b = 1; b < job->blocks; b++) {
        reduce_state next = reduce_range(job, x, b * job->block, block_end(job, b), shift);
        job->op->merge(&state, &next);
    }
    return state;
}

static inline void reduce_outputs(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const reduce_job *job = arg;
    int64_t begin = piece * job->piece, end = begin + job->piece;
    for (int64_t i = begin; i < end && i < job->outputs; i++) {
        int64_t y_at, x_at;
        output_at(job, i, &y_at, &x_at);
        reduce_state state = reduce_all(job, job->x + x_at, job->shift ? *job->shift : 0);
        job->done(job, y_at, x_at, &state);
    }
}

static inline void reduce_block(void *arg, int64_t block, int thread)
{
    (void)thread;
    const reduce_job *job = arg;
    job->states[block] = reduce_range(job, job->x + job->x_at, block * job->block,
                                      block_end(job, block), job->shift ? *job->shift : 0);
}

/* Runs op over every output of l and hands each result to done. */
static inline void reduce_walk(ul_stream *s, reduce_job *job, const ul_loop *l, int reduced)
{
    reduce_state states[REDUCE_BLOCKS];
    job->l = l;
    job->kept = l->ndim - reduced;
    job->states = states;
    job->outputs = job->elements = 1;
    for (int d = 0; d < l->ndim; d++)
        *(d < job->kept ? &job->outputs : &job->elements) *= l->shape[d];
    job->block = (job->elements + REDUCE_BLOCKS - 1) / REDUCE_BLOCKS;
    if (job->block < REDUCE_BLOCK) job->block = REDUCE_BLOCK;
    job->blocks = job->elements ? (job->elements + job->block - 1) / job->block : 1;
    if (job->blocks == 1 || job->outputs >= 64) {
        job->piece = job->elements < UL_GRAIN ? UL_GRAIN / (job->elements + 1) + 1 : 1;
        ul_parallel(s, (job->outputs + job->piece - 1) / job->piece, reduce_outputs, job);
        return;
    }
    for (int64_t i = 0; i < job->outputs; i++) {
        int64_t y_at;
        output_at(job, i, &y_at, &job->x_at);
        ul_parallel(s, job->blocks, reduce_block, job);
        for (int64_t b = 1; b < job->blocks; b++) job->op->merge(&states[0], &states[b]);
        job->done(job, y_at, job->x_at, &states[0]);
    }
}

#endif
