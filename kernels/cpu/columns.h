/* columns.h - sums down the columns of row-major matrices, in an order that no number of threads
 * changes. */
#ifndef UL_COLUMNS_H
#define UL_COLUMNS_H

#include "rows.h"

/* A chunk of columns is one piece of work; its partial sums over COLUMN_ROWS rows are added up in
 * f64. */
enum { COLUMN_CHUNK = 64, COLUMN_ROWS = 512 };

typedef struct columns_job {
    int64_t rows, cols;
    /* Adds row's columns [begin, begin + n) of each of the outputs into part. */
    void (*add_row)(const void *arg, int64_t row, int64_t begin, int64_t n,
                    acc part[][COLUMN_CHUNK]);
    const void *arg;
    ul_grad out[2]; /* acc [cols] */
} columns_job;

static inline void columns_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const columns_job *job = arg;
    int64_t begin = piece * COLUMN_CHUNK, n = job->cols - begin;
    if (n > COLUMN_CHUNK) n = COLUMN_CHUNK;
    double total[2][COLUMN_CHUNK] = {{0}};
    for (int64_t row = 0; row < job->rows; row += COLUMN_ROWS) {
        int64_t end = row + COLUMN_ROWS < job->rows ? row + COLUMN_ROWS : job->rows;
        acc part[2][COLUMN_CHUNK] = {{0}};
        for (int64_t r = row; r < end; r++) job->add_row(job->arg, r, begin, n, part);
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < n; i++) total[k][i] += part[k][i];
    }
    for (int k = 0; k < 2; k++) {
        acc *out = job->out[k].data;
        for (int64_t i = 0; out && i < n; i++)
            out[begin + i] = (acc)((job->out[k].add ? out[begin + i] : 0) + total[k][i]);
    }
}

static inline void columns_walk(ul_stream *s, columns_job *job)
{
    ul_parallel(s, (job->cols + COLUMN_CHUNK - 1) / COLUMN_CHUNK, columns_piece, job);
}

#endif
