/* columns.h - sums down the columns of row-major matrices, in an order that no number of threads
 * changes.
 *
 * The rows are cut into blocks, whose sums stay in the scratch that all threads share; then they
 * are added up in order of the blocks, in f64.
 */
#ifndef UL_COLUMNS_H
#define UL_COLUMNS_H

#include "rows.h"

enum { COLUMN_ROWS = 256, COLUMN_PANEL = 1 << 16, COLUMN_CHUNK = 64 };

typedef struct columns_job {
    int64_t rows, cols;
    /* Adds columns [begin, begin + n) of a row to the sums of each output. */
    void (*add_row)(const void *arg, int64_t row, int64_t begin, int64_t n, acc *const sums[2]);
    const void *arg;
    ul_grad out[2]; /* acc [cols] */

    ul_stream *stream;
    int64_t begin, n, block, blocks; /* the columns at hand; how the rows are cut */
    acc *sums;                       /* [blocks, 2, n] */
} columns_job;

static inline void columns_block(const columns_job *job, int64_t block)
{
    acc *const sums[2] = {job->sums + 2 * block * job->n, job->sums + (2 * block + 1) * job->n};
    int64_t begin = block * job->block, end = smaller(begin + job->block, job->rows);
    memset(sums[0], 0, (size_t)(2 * job->n) * sizeof(acc));
    for (int64_t row = begin; row < end; row++)
        job->add_row(job->arg, row, job->begin, job->n, sums);
}

static inline void columns_add_up(const columns_job *job, int64_t begin)
{
    int64_t n = smaller(COLUMN_CHUNK, job->n - begin);
    for (int k = 0; k < 2; k++) {
        double total[COLUMN_CHUNK] = {0};
        acc *out = job->out[k].data;
        if (!out) continue;
        out += job->begin + begin;
        for (int64_t block = 0; block < job->blocks; block++) {
            const acc *sums = job->sums + (2 * block + k) * job->n + begin;
            for (int64_t i = 0; i < n; i++) total[i] += sums[i];
        }
        for (int64_t i = 0; i < n; i++)
            out[i] = (acc)(job->out[k].add ? out[i] + total[i] : total[i]);
    }
}

static inline void columns_team(void *arg, int thread, int n_threads)
{
    const columns_job *job = arg;
    for (int64_t i = thread; i < job->blocks; i += n_threads) columns_block(job, i);
    ul_pool_barrier(job->stream);
    for (int64_t i = thread * COLUMN_CHUNK; i < job->n; i += n_threads * COLUMN_CHUNK)
        columns_add_up(job, i);
}

/* One thread for what is not worth more. */
static inline void columns_alone(void *arg, int64_t unused, int thread)
{
    (void)unused, (void)thread;
    columns_job *job = arg;
    for (int64_t i = 0; i < job->blocks; i++) columns_block(job, i);
    for (int64_t i = 0; i < job->n; i += COLUMN_CHUNK) columns_add_up(job, i);
}

static inline void columns_walk(ul_stream *s, columns_job *job)
{
    job->stream = s;
    job->sums = ul_pool_shared(s);
    for (job->begin = 0; job->begin < job->cols; job->begin += COLUMN_PANEL) {
        job->n = smaller(COLUMN_PANEL, job->cols - job->begin);
        int64_t most = UL_SHARED / (2 * job->n * (int64_t)sizeof(acc));
        job->blocks = smaller((job->rows + COLUMN_ROWS - 1) / COLUMN_ROWS, most);
        job->block = job->blocks ? (job->rows + job->blocks - 1) / job->blocks : 0;
        if (job->rows * job->n > UL_GRAIN)
            ul_pool_team(s, columns_team, job);
        else
            ul_parallel(s, 1, columns_alone, job);
    }
}

#endif
