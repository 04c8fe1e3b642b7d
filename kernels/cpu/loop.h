/* loop.h - walks a ul_loop, or n contiguous elements, in pieces that the threads share. */
#ifndef UL_LOOP_H
#define UL_LOOP_H

#include "cpu.h"

/* Says of a loop that no iteration touches what another one writes; operands may be the same array.
 */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* it is leave, not a demand, to vectorise */
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* n elements in a line: where they start and how far apart they are in each operand, in elements.
 */
typedef struct loop_row {
    int64_t n;
    int64_t at[UL_LOOP_OPERANDS], step[UL_LOOP_OPERANDS];
} loop_row;

typedef struct loop_job {
    ul_loop loop;
    int n_operands;
    int64_t total;
    int64_t row_tiles, col_tiles; /* of the last two dims, where those are walked in tiles */
    void (*body)(const void *arg, const loop_row *row);
    const void *arg;
} loop_job;

/* Moves on to the first element of the next row. */
static inline void loop_next(const loop_job *job, loop_row *row, int64_t *index)
{
    const ul_loop *l = &job->loop;
    for (int d = l->ndim - 1; d > 0; d--) {
        for (int o = 0; o < job->n_operands; o++)
            row->at[o] += l->stride[o][d - 1] - index[d] * l->stride[o][d];
        index[d] = 0;
        if (++index[d - 1] < l->shape[d - 1]) return;
    }
}

static inline void loop_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const loop_job *job = arg;
    const ul_loop *l = &job->loop;
    int last = l->ndim - 1;
    int64_t first = piece * UL_GRAIN, left = smaller(UL_GRAIN, job->total - first);
    int64_t index[UL_LOOP_DIMS];
    loop_row row = {0};
    for (int d = last; d >= 0; d--) {
        index[d] = first % l->shape[d];
        first /= l->shape[d];
        for (int o = 0; o < job->n_operands; o++) row.at[o] += index[d] * l->stride[o][d];
    }
    for (int o = 0; o < job->n_operands; o++) row.step[o] = l->stride[o][last];
    for (;;) {
        row.n = smaller(l->shape[last] - index[last], left);
        job->body(job->arg, &row);
        left -= row.n;
        if (left == 0) return;
        loop_next(job, &row, index);
    }
}

static inline int64_t loop_size(const ul_loop *l)
{
    int64_t n = 1;
    for (int d = 0; d < l->ndim; d++) n *= l->shape[d];
    return n;
}

static inline void loop_swap_dims(ul_loop *l, int n_operands, int a, int b)
{
    int64_t extent = l->shape[a];
    l->shape[a] = l->shape[b];
    l->shape[b] = extent;
    for (int o = 0; o < n_operands; o++) {
        int64_t stride = l->stride[o][a];
        l->stride[o][a] = l->stride[o][b];
        l->stride[o][b] = stride;
    }
}

/* Where an operand is contiguous along another dim than the last, rows of a few lines of it are
 * taken side by side, so that a cache line is used up before it is lost.
 */
enum { LOOP_TILE = 64 };

static inline void loop_tile(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const loop_job *job = arg;
    const ul_loop *l = &job->loop;
    int last = l->ndim - 1;
    int64_t col = piece % job->col_tiles * LOOP_TILE, rest = piece / job->col_tiles;
    int64_t first = rest % job->row_tiles * LOOP_TILE;
    int64_t end = smaller(first + LOOP_TILE, l->shape[last - 1]);
    rest /= job->row_tiles;
    loop_row row = {.n = smaller(LOOP_TILE, l->shape[last] - col)};
    for (int o = 0; o < job->n_operands; o++) {
        row.at[o] = first * l->stride[o][last - 1] + col * l->stride[o][last];
        row.step[o] = l->stride[o][last];
    }
    for (int d = last - 2; d >= 0; d--) {
        int64_t index = rest % l->shape[d];
        rest /= l->shape[d];
        for (int o = 0; o < job->n_operands; o++) row.at[o] += index * l->stride[o][d];
    }
    for (int64_t i = first; i < end; i++) {
        job->body(job->arg, &row);
        for (int o = 0; o < job->n_operands; o++) row.at[o] += l->stride[o][last - 1];
    }
}

/* A dim that would make better rows for some operand than the last one, or -1. */
static inline int loop_cross_dim(const ul_loop *l, int n_operands)
{
    int last = l->ndim - 1;
    if (l->shape[last] < 16) return -1;
    for (int o = 0; o < n_operands; o++)
        for (int d = 0; d < last; d++)
            if (l->stride[o][d] == 1 && l->shape[d] >= 16 && l->stride[o][last] >= 16) return d;
    return -1;
}

/* Calls body for rows that together are the whole of l, in no particular order. */
static inline void loop_walk(ul_stream *s, const ul_loop *l, int n_operands,
                             void (*body)(const void *arg, const loop_row *row), const void *arg)
{
    loop_job job = {
        .loop = *l, .n_operands = n_operands, .total = loop_size(l), .body = body, .arg = arg};
    if (job.total == 0) return;
    if (l->ndim == 0) {
        job.loop.ndim = 1;
        job.loop.shape[0] = 1;
        for (int o = 0; o < n_operands; o++) job.loop.stride[o][0] = 0;
    }
    /* Rows of a few elements cost more than they hold: take the longest dim as rows instead. */
    int last = job.loop.ndim - 1, longest = last;
    for (int d = 0; d < last; d++)
        if (job.loop.shape[d] > job.loop.shape[longest]) longest = d;
    if (job.loop.shape[last] <= 4) loop_swap_dims(&job.loop, n_operands, last, longest);

    int cross = loop_cross_dim(&job.loop, n_operands);
    if (cross < 0) {
        ul_parallel(s, (job.total + UL_GRAIN - 1) / UL_GRAIN, loop_piece, &job);
        return;
    }
    loop_swap_dims(&job.loop, n_operands, cross, last - 1);
    const int64_t *shape = job.loop.shape;
    job.row_tiles = (shape[last - 1] + LOOP_TILE - 1) / LOOP_TILE;
    job.col_tiles = (shape[last] + LOOP_TILE - 1) / LOOP_TILE;
    int64_t rest = job.total / shape[last] / shape[last - 1];
    ul_parallel(s, rest * job.row_tiles * job.col_tiles, loop_tile, &job);
}

typedef struct flat_job {
    int64_t n;
    void (*body)(const void *arg, int64_t begin, int64_t end);
    const void *arg;
} flat_job;

static inline void flat_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const flat_job *job = arg;
    int64_t begin = piece * UL_GRAIN;
    job->body(job->arg, begin, smaller(job->n, begin + UL_GRAIN));
}

/* Calls body for pieces [begin, end) that together are [0, n). */
static inline void flat_walk(ul_stream *s, int64_t n,
                             void (*body)(const void *arg, int64_t begin, int64_t end),
                             const void *arg)
{
    flat_job job = {n, body, arg};
    ul_parallel(s, (n + UL_GRAIN - 1) / UL_GRAIN, flat_piece, &job);
}

#endif
