/* softmax.c - softmax and its logarithm along rows. */
#include "rows.h"

typedef struct softmax_job {
    ul_grad y;
    const real *x, *dy;
    int64_t cols;
} softmax_job;

static void softmax_row(const void *arg, int64_t row)
{
    const softmax_job *job = arg;
    int64_t cols = job->cols;
    const real *x = job->x + row * cols;
    real *y = (real *)job->y.data + row * cols;
    acc buffer[ROW_CHUNK], max = row_max(x, cols), scale = 1 / row_sum_exp(x, cols, max);
    for (int64_t at = 0; at < cols; at += ROW_CHUNK) {
        int64_t n = row_chunk(cols - at);
        chunk_exp(buffer, row_widen(buffer, x + at, n), n, max, scale);
        row_give(y + at, 0, buffer, n);
    }
}

int CPU(softmax)(ul_stream *s, void *y, const void *x, int64_t rows, int64_t cols)
{
    softmax_job job = {{y, 0}, x, NULL, cols};
    rows_walk(s, rows, cols, softmax_row, &job);
    return 0;
}

static void log_softmax_row(const void *arg, int64_t row)
{
    const softmax_job *job = arg;
    int64_t cols = job->cols;
    const real *x = job->x + row * cols;
    real *y = (real *)job->y.data + row * cols;
    acc max = row_max(x, cols), log_sum = (acc)log((double)row_sum_exp(x, cols, max));
    INDEPENDENT for (int64_t i = 0; i < cols; i++) y[i] = store(load(x[i]) - max - log_sum);
}

int CPU(log_softmax)(ul_stream *s, void *y, const void *x, int64_t rows, int64_t cols)
{
    softmax_job job = {{y, 0}, x, NULL, cols};
    rows_walk(s, rows, cols, log_softmax_row, &job);
    return 0;
}

/* dx = y (dy - sum dy y) */
static void softmax_backward_row(const void *arg, int64_t row)
{
    const softmax_job *job = arg;
    int64_t cols = job->cols;
    const real *y = job->x + row * cols, *dy = job->dy + row * cols;
    real *dx = (real *)job->y.data + row * cols;
    acc buffer[ROW_CHUNK], dot = row_dot(dy, y, cols);
    for (int64_t at = 0; at < cols; at += ROW_CHUNK) {
        int64_t n = row_chunk(cols - at);
        for (int64_t i = 0; i < n; i++) buffer[i] = load(y[at + i]) * (load(dy[at + i]) - dot);
        row_give(dx + at, job->y.add, buffer, n);
    }
}

int CPU(softmax_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *y, int64_t rows,
                          int64_t cols)
{
    softmax_job job = {dx, y, dy, cols};
    if (dx.data) rows_walk(s, rows, cols, softmax_backward_row, &job);
    return 0;
}

/* dx = dy - exp(y) sum dy */
static void log_softmax_backward_row(const void *arg, int64_t row)
{
    const softmax_job *job = arg;
    int64_t cols = job->cols;
    const real *y = job->x + row * cols, *dy = job->dy + row * cols;
    real *dx = (real *)job->y.data + row * cols;
    acc buffer[ROW_CHUNK], total = row_sum(dy, cols);
    for (int64_t at = 0; at < cols; at += ROW_CHUNK) {
        int64_t n = row_chunk(cols - at);
        chunk_exp(buffer, row_widen(buffer, y + at, n), n, 0, total);
        for (int64_t i = 0; i < n; i++) buffer[i] = load(dy[at + i]) - buffer[i];
        row_give(dx + at, job->y.add, buffer, n);
    }
}

int CPU(log_softmax_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *y, int64_t rows,
                              int64_t cols)
{
    softmax_job job = {dx, y, dy, cols};
    if (dx.data) rows_walk(s, rows, cols, log_softmax_backward_row, &job);
    return 0;
}
