/* embedding.c - reading and adding to elements chosen by index. */
#include "loop.h"

/* ---- is any index out of range? ---- */

enum { FIND_BLOCKS = 256 };

typedef struct find_job {
    const real *x;
    int64_t n, block, low, high, except;
    int64_t found[FIND_BLOCKS];
} find_job;

static void find_block(void *arg, int64_t block, int thread)
{
    (void)thread;
    find_job *job = arg;
    int64_t begin = block * job->block, end = smaller(begin + job->block, job->n);
    job->found[block] = -1;
    for (int64_t i = begin; i < end; i++) {
        acc x = load(job->x[i]);
        if (!(x >= (acc)job->low && x < (acc)job->high) && x != (acc)job->except) {
            job->found[block] = i;
            return;
        }
    }
}

int CPU(find_outside)(ul_stream *s, int64_t *at, const void *x, int64_t n, int64_t low,
                      int64_t high, int64_t except)
{
    find_job job = {.x = x, .n = n, .low = low, .high = high, .except = except};
    job.block = (n + FIND_BLOCKS - 1) / FIND_BLOCKS;
    if (job.block < UL_GRAIN) job.block = UL_GRAIN;
    int64_t blocks = (n + job.block - 1) / job.block;
    ul_parallel(s, blocks, find_block, &job);
    *at = -1;
    for (int64_t i = 0; i < blocks && *at < 0; i++) *at = job.found[i];
    return 0;
}

/* ---- gather and index_select ---- */

typedef struct index_job {
    real *y;
    acc *dx;
    const real *x;
    const int64_t *index;
    int64_t outer, n, m, inner, piece, chunk, chunks;
} index_job;

static void gather_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const index_job *job = arg;
    int64_t begin = piece * job->piece, end = smaller(begin + job->piece, job->outer * job->m);
    int64_t inner = job->inner, m = job->m, j = begin % m;
    const real *x = job->x + begin / m * job->n * inner;
    for (int64_t row = begin; row < end; row++) {
        const int64_t *index = job->index + row * inner;
        real *y = job->y + row * inner;
        for (int64_t i = 0; i < inner; i++) y[i] = x[index[i] * inner + i];
        if (++j < m) continue;
        j = 0;
        x += job->n * inner;
    }
}

static void select_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const index_job *job = arg;
    int64_t begin = piece * job->piece, end = smaller(begin + job->piece, job->outer * job->m);
    int64_t inner = job->inner, m = job->m, j = begin % m;
    const real *x = job->x + begin / m * job->n * inner;
    for (int64_t row = begin; row < end; row++) {
        const real *from = x + job->index[j] * inner;
        if (inner == 1)
            job->y[row] = *from;
        else
            memcpy(job->y + row * inner, from, (size_t)inner * sizeof(real));
        if (++j < m) continue;
        j = 0;
        x += job->n * inner;
    }
}

/* Rows of `inner` elements, some to a piece. */
static void by_rows(ul_stream *s, index_job *job, void (*body)(void *, int64_t, int))
{
    int64_t rows = job->outer * job->m;
    if (rows == 0 || job->inner == 0) return;
    job->piece = job->inner < UL_GRAIN ? UL_GRAIN / job->inner : 1;
    ul_parallel(s, (rows + job->piece - 1) / job->piece, body, job);
}

int CPU(gather)(ul_stream *s, void *y, const void *x, const int64_t *index, int64_t outer,
                int64_t n, int64_t m, int64_t inner)
{
    index_job job = {
        .y = y, .x = x, .index = index, .outer = outer, .n = n, .m = m, .inner = inner};
    by_rows(s, &job, gather_piece);
    return 0;
}

int CPU(index_select)(ul_stream *s, void *y, const void *x, const int64_t *index, int64_t outer,
                      int64_t n, int64_t m, int64_t inner)
{
    index_job job = {
        .y = y, .x = x, .index = index, .outer = outer, .n = n, .m = m, .inner = inner};
    by_rows(s, &job, select_piece);
    return 0;
}

#if UL_TYPE_FLOAT

/* Both backwards: a piece owns some columns of some outer rows, and adds in the order of the index.
 */
static void gather_backward_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const index_job *job = arg;
    int64_t begin = piece % job->chunks * job->chunk, inner = job->inner;
    int64_t end = smaller(begin + job->chunk, inner), first = piece / job->chunks * job->piece;
    for (int64_t o = first; o < smaller(first + job->piece, job->outer); o++) {
        acc *dx = job->dx + o * job->n * inner;
        for (int64_t j = 0; j < job->m; j++) {
            const int64_t *index = job->index + (o * job->m + j) * inner;
            const real *dy = job->x + (o * job->m + j) * inner;
            for (int64_t i = begin; i < end; i++) dx[index[i] * inner + i] += load(dy[i]);
        }
    }
}

static void select_backward_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const index_job *job = arg;
    int64_t begin = piece % job->chunks * job->chunk, inner = job->inner;
    int64_t end = smaller(begin + job->chunk, inner), first = piece / job->chunks * job->piece;
    for (int64_t o = first; o < smaller(first + job->piece, job->outer); o++)
        for (int64_t j = 0; j < job->m; j++) {
            acc *dx = job->dx + (o * job->n + job->index[j]) * inner;
            const real *dy = job->x + (o * job->m + j) * inner;
            INDEPENDENT for (int64_t i = begin; i < end; i++) dx[i] += load(dy[i]);
        }
}

typedef struct zero_job {
    char *data;
    int64_t bytes;
} zero_job;

static void zero_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const zero_job *job = arg;
    int64_t begin = piece << 18, n = smaller(1 << 18, job->bytes - begin);
    memset(job->data + begin, 0, (size_t)n);
}

static int by_columns(ul_stream *s, index_job *job, int add, void (*body)(void *, int64_t, int))
{
    zero_job zero = {(char *)job->dx, job->outer * job->n * job->inner * (int64_t)sizeof(acc)};
    if (!add) ul_parallel(s, (zero.bytes + (1 << 18) - 1) >> 18, zero_piece, &zero);
    int64_t work = job->m * job->inner;
    if (work == 0 || job->outer == 0) return 0;
    job->chunk = (job->inner + 15) / 16 < 32 ? 32 : ((job->inner + 255) / 256) * 16;
    job->chunks = (job->inner + job->chunk - 1) / job->chunk;
    job->piece = work < UL_GRAIN ? UL_GRAIN / work : 1;
    ul_parallel(s, (job->outer + job->piece - 1) / job->piece * job->chunks, body, job);
    return 0;
}

int CPU(gather_backward)(ul_stream *s, ul_grad dx, const void *dy, const int64_t *index,
                         int64_t outer, int64_t n, int64_t m, int64_t inner)
{
    index_job job = {
        .dx = dx.data, .x = dy, .index = index, .outer = outer, .n = n, .m = m, .inner = inner};
    return dx.data ? by_columns(s, &job, dx.add, gather_backward_piece) : 0;
}

int CPU(index_select_backward)(ul_stream *s, ul_grad dx, const void *dy, const int64_t *index,
                               int64_t outer, int64_t n, int64_t m, int64_t inner, int64_t *work)
{
    (void)work; /* rows are added one after the other: there is nothing to sort */
    index_job job = {
        .dx = dx.data, .x = dy, .index = index, .outer = outer, .n = n, .m = m, .inner = inner};
    return dx.data ? by_columns(s, &job, dx.add, select_backward_piece) : 0;
}

#endif
