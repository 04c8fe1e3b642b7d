/* reduce.h - reductions of the trailing dims of a loop, in an order that depends on shapes alone.
 *
 * Outputs are worked on in tiles: one at a time, its elements taken line by line along the
 * innermost reduced dim; or, where neighbouring outputs lie closer in x than the elements of one
 * do, or those are few, up to REDUCE_LANES at a time. Threads share tiles where there are many;
 * else the elements of a tile, in fixed blocks whose states are merged in order.
 */
#ifndef UL_REDUCE_H
#define UL_REDUCE_H

#include <stdlib.h>

#include "loop.h"

enum { REDUCE_LANES = 128, REDUCE_STATES = 1024, REDUCE_BLOCKS = 256, REDUCE_TILES = 64 };

#if UL_TYPE_FLOAT
typedef double total_t;
#else
typedef uint64_t total_t; /* integers wrap */
#endif

/* What is known of one output. index is -1 until best is some element's. */
typedef struct reduce_state {
    total_t total;
    acc best;
    int64_t index;
} reduce_state;

/* n elements of each of `lanes` outputs; the first are number `flat` of their outputs. */
typedef struct reduce_panel {
    const real *x;
    int64_t lanes, lane_step, n, step, flat;
} reduce_panel;

typedef struct reduce_op {
    void (*line)(reduce_state *state, const reduce_panel *p); /* lanes = 1 */
    void (*panel)(reduce_state *states, const reduce_panel *p);
    void (*merge)(reduce_state *state, const reduce_state *next);
    const struct reduce_op *then; /* NULL, or another pass, which starts from the states of this */
} reduce_op;

typedef struct reduce_job {
    const real *x;
    const reduce_op *op;
    void (*done)(const void *arg, int64_t y_at, const reduce_state *state);
    const void *arg;

    ul_loop l;
    int kept;         /* dims of the output */
    int64_t elements; /* reduced into each output */
    int64_t lanes;    /* of a full tile */
    int64_t per_line; /* tiles along the innermost kept dim */
    int64_t tiles, piece;
    int64_t block; /* elements in a block */
} reduce_job;

/* Some outputs: where they are, and how many. */
typedef struct reduce_tile {
    int64_t y_at, x_at, lanes;
} reduce_tile;

static inline reduce_tile tile_at(const reduce_job *job, int64_t i)
{
    const ul_loop *l = &job->l;
    reduce_tile tile = {0, 0, 1};
    int last = job->kept - 1;
    if (last < 0) return tile;
    int64_t first = i % job->per_line * job->lanes;
    i /= job->per_line;
    tile.lanes = smaller(job->lanes, l->shape[last] - first);
    tile.y_at = first * l->stride[0][last];
    tile.x_at = first * l->stride[1][last];
    for (int d = last - 1; d >= 0; d--) {
        tile.y_at += i % l->shape[d] * l->stride[0][d];
        tile.x_at += i % l->shape[d] * l->stride[1][d];
        i /= l->shape[d];
    }
    return tile;
}

/* One pass over elements [begin, end) of a tile's outputs. */
static inline void reduce_range(const reduce_job *job, const reduce_op *op, const reduce_tile *tile,
                                int64_t begin, int64_t end, reduce_state *states)
{
    const ul_loop *l = &job->l;
    int last = l->ndim - 1, some = job->kept < l->ndim;
    int64_t extent = some ? l->shape[last] : 1;
    reduce_panel p = {.lanes = tile->lanes, .step = some ? l->stride[1][last] : 0};
    p.lane_step = job->kept > 0 ? l->stride[1][job->kept - 1] : 0;
    for (; begin < end; begin += p.n) {
        int64_t rest = begin / extent, at = begin % extent, offset = tile->x_at + at * p.step;
        for (int d = last - 1; d >= job->kept; d--) {
            offset += rest % l->shape[d] * l->stride[1][d];
            rest /= l->shape[d];
        }
        p.x = job->x + offset;
        p.n = smaller(extent - at, end - begin);
        p.flat = begin;
        (job->lanes == 1 ? op->line : op->panel)(states, &p);
    }
}

static inline void reduce_finish(const reduce_job *job, const reduce_tile *tile,
                                 const reduce_state *states)
{
    int64_t step = job->kept > 0 ? job->l.stride[0][job->kept - 1] : 0;
    for (int64_t i = 0; i < tile->lanes; i++)
        job->done(job->arg, tile->y_at + i * step, &states[i]);
}

static inline void reduce_tiles(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const reduce_job *job = arg;
    int64_t end = smaller((piece + 1) * job->piece, job->tiles);
    for (int64_t i = piece * job->piece; i < end; i++) {
        reduce_tile tile = tile_at(job, i);
        reduce_state states[REDUCE_LANES];
        for (int64_t k = 0; k < tile.lanes; k++) states[k] = (reduce_state){0, 0, -1};
        for (const reduce_op *op = job->op; op; op = op->then)
            reduce_range(job, op, &tile, 0, job->elements, states);
        reduce_finish(job, &tile, states);
    }
}

typedef struct reduce_pass {
    const reduce_job *job;
    const reduce_op *op;
    reduce_tile tile;
    reduce_state *states; /* of each block */
} reduce_pass;

static inline void reduce_block(void *arg, int64_t block, int thread)
{
    (void)thread;
    const reduce_pass *pass = arg;
    int64_t begin = block * pass->job->block;
    reduce_range(pass->job, pass->op, &pass->tile, begin,
                 smaller(begin + pass->job->block, pass->job->elements),
                 pass->states + block * pass->tile.lanes);
}

/* One tile, by all threads. */
static inline void reduce_by_blocks(ul_stream *s, const reduce_job *job, int64_t i)
{
    reduce_state states[REDUCE_LANES], parts[REDUCE_STATES];
    reduce_tile tile = tile_at(job, i);
    int64_t lanes = tile.lanes, blocks = (job->elements + job->block - 1) / job->block;
    for (int64_t k = 0; k < lanes; k++) states[k] = (reduce_state){0, 0, -1};
    for (const reduce_op *op = job->op; op; op = op->then) {
        reduce_pass pass = {job, op, tile, parts};
        for (int64_t k = 0; k < lanes * blocks; k++) parts[k] = states[k % lanes];
        ul_parallel(s, blocks, reduce_block, &pass);
        for (int64_t k = 0; k < lanes * blocks; k++) op->merge(&states[k % lanes], &parts[k]);
    }
    reduce_finish(job, &tile, states);
}

/* Outputs may be walked in any order: those closest in x become the innermost. */
static inline void choose_lanes(reduce_job *job)
{
    ul_loop *l = &job->l;
    int lane = job->kept - 1, last = l->ndim - 1;
    job->lanes = 1;
    if (lane < 0) return;
    int best = lane;
    for (int d = 0; d < lane; d++) {
        int closer = llabs(l->stride[1][d]) < llabs(l->stride[1][best]);
        if (l->shape[d] >= 8 && (l->shape[best] < 8 || closer)) best = d;
    }
    loop_swap_dims(l, 2, best, lane);
    if (l->shape[lane] < 8) return;
    if (job->kept == l->ndim || l->shape[last] < 16 ||
        llabs(l->stride[1][lane]) < llabs(l->stride[1][last]))
        job->lanes = REDUCE_LANES;
}

/* Runs the passes of job->op over each output of l and hands the results to job->done. */
static inline void reduce_walk(ul_stream *s, reduce_job *job, const ul_loop *l, int reduced)
{
    int64_t outputs = 1;
    job->l = *l;
    job->kept = l->ndim - reduced;
    job->elements = 1;
    for (int d = 0; d < l->ndim; d++) *(d < job->kept ? &outputs : &job->elements) *= l->shape[d];
    if (outputs == 0) return;
    choose_lanes(job);
    int64_t line = job->kept > 0 ? job->l.shape[job->kept - 1] : 1;
    job->per_line = (line + job->lanes - 1) / job->lanes;
    job->tiles = outputs / line * job->per_line;
    int64_t work = smaller(job->lanes, line) * job->elements;
    if (job->tiles >= REDUCE_TILES || work <= 4 * UL_GRAIN) {
        job->piece = work < UL_GRAIN ? UL_GRAIN / (work + 1) + 1 : 1;
        ul_parallel(s, (job->tiles + job->piece - 1) / job->piece, reduce_tiles, job);
        return;
    }
    int64_t blocks = job->lanes == 1 ? REDUCE_BLOCKS : REDUCE_STATES / job->lanes;
    job->block = (job->elements + blocks - 1) / blocks;
    if (job->block < UL_GRAIN / job->lanes) job->block = UL_GRAIN / job->lanes;
    for (int64_t i = 0; i < job->tiles; i++) reduce_by_blocks(s, job, i);
}

#endif
