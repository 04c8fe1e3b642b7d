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
    const real *x = job->x + row * job->cols;
    real *y = (real *)job->y.data + row * job->cols;
    acc max = row_max(x, job->cols), scale = 1 / row_sum_exp(x, job->cols, max);
    for (int64_t i = 0; i < job->cols; i++) y[i] = store(fast_exp(load(x[i]) - max) * scale);
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
    const real *x = job->x + row * job->cols;
    real *y = (real *)job->y.data + row * job->cols;
    acc max = row_max(x, job->cols);
    acc log_sum = (acc)log((double)row_sum_exp(x, job->cols, max));
    for (int64_t i = 0; i < job->cols; i++) y[i] = store(load(x[i]) - max - log_sum);
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
    const real *y = job->x + row * job->cols, *dy = job->dy + row * job->cols;
    real *dx = (real *)job->y.data + row * job->cols;
    acc dot = row_dot(dy, y, job->cols);
    for (int64_t i = 0; i < job->cols; i++)
        give(dx + i, job->y.add, load(y[i]) * (load(dy[i]) - dot));
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
    const real *y = job->x + row * job->cols, *dy = job->dy + row * job->cols;
    real *dx = (real *)job->y.data + row * job->cols;
    acc buffer[ROW_CHUNK], total = 0;
    for (int64_t at = 0; at < job->cols; at += ROW_CHUNK) {
        int64_t n = row_chunk(job->cols - at);
        total += chunk_sum(row_widen(buffer, dy + at, n), n);
    }
    for (int64_t i = 0; i < job->cols; i++)
        give(dx + i, job->y.add, load(dy[i]) - fast_exp(load(y[i])) * total);
}

int CPU(log_softmax_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *y, int64_t rows,
                              int64_t cols)
{
    softmax_job job = {dx, y, dy, cols};
    if (dx.data) rows_walk(s, rows, cols, log_softmax_backward_row, &job);
    return 0;
}
