/* loss.c - cross-entropy over rows of logits. */
#include "rows.h"

typedef struct loss_job {
    acc *loss, *lse;
    ul_grad dx;
    const void *x;
    const acc *d_loss;
    const int64_t *targets;
    int64_t cols, ignore;
} loss_job;

/* loss = log sum exp(x) - x[target] */
static void cross_entropy_row(const void *arg, int64_t row)
{
    const loss_job *job = arg;
    const real *x = (const real *)job->x + row * job->cols;
    int64_t target = job->targets[row];
    acc max = row_max(x, job->cols);
    job->lse[row] = log_sum_exp(max, row_sum_exp(x, job->cols, max));
    job->loss[row] = target == job->ignore ? 0 : job->lse[row] - load(x[target]);
}

int CPU(cross_entropy)(ul_stream *s, void *loss, void *lse, const void *x, const int64_t *targets,
                       int64_t rows, int64_t cols, int64_t ignore)
{
    loss_job job = {
        .loss = loss, .lse = lse, .x = x, .targets = targets, .cols = cols, .ignore = ignore};
    rows_walk(s, rows, cols, cross_entropy_row, &job);
    return 0;
}

/* dx = d_loss (exp(x - lse) - [i = target]); an ignored row gets 0 whatever its logits are. */
static void cross_entropy_backward_row(const void *arg, int64_t row)
{
    const loss_job *job = arg;
    int64_t cols = job->cols, target = job->targets[row];
    const real *x = (const real *)job->x + row * cols;
    real *dx = (real *)job->dx.data + row * cols;
    int add = job->dx.add;
    if (target == job->ignore) {
        if (!add) memset(dx, 0, (size_t)cols * sizeof *dx);
        return;
    }
    acc buffer[ROW_CHUNK], lse = job->lse[row], weight = job->d_loss[row];
    acc chosen = weight * (fast_exp(load(x[target]) - lse) - 1);
    for (int64_t at = 0; at < cols; at += ROW_CHUNK) {
        int64_t n = row_chunk(cols - at);
        chunk_exp(buffer, row_widen(buffer, x + at, n), n, lse, weight);
        if (target >= at && target < at + n) buffer[target - at] = chosen;
        row_give(dx + at, add, buffer, n);
    }
}

int CPU(cross_entropy_backward)(ul_stream *s, ul_grad dx, const void *d_loss, const void *x,
                                const int64_t *targets, const void *lse, int64_t rows, int64_t cols,
                                int64_t ignore)
{
    loss_job job = {.lse = (acc *)lse,
                    .dx = dx,
                    .x = x,
                    .d_loss = d_loss,
                    .targets = targets,
                    .cols = cols,
                    .ignore = ignore};
    if (dx.data) rows_walk(s, rows, cols, cross_entropy_backward_row, &job);
    return 0;
}

/* Like the two above at once, from accumulators. dx may overwrite x: each chunk is read before it
 * is written.
 */
static void tile_row(const void *arg, int64_t row)
{
    const loss_job *job = arg;
    int64_t target = job->targets[row], cols = job->cols;
    const acc *x = (const acc *)job->x + row * cols;
    real *dx = job->dx.data ? (real *)job->dx.data + row * cols : NULL;
    if (target == job->ignore) {
        job->loss[row] = 0;
        if (dx) memset(dx, 0, (size_t)cols * sizeof *dx);
        return;
    }
    acc max = chunk_max(x, cols), chosen = x[target];
    double sum = 0;
    for (int64_t at = 0; at < cols; at += ROW_CHUNK)
        sum += chunk_sum_exp(x + at, row_chunk(cols - at), max);
    job->loss[row] = log_sum_exp(max, (acc)sum) - chosen;
    if (!dx) return;
    acc buffer[ROW_CHUNK], scale = (acc)(1 / sum);
    for (int64_t at = 0; at < cols; at += ROW_CHUNK) {
        int64_t n = row_chunk(cols - at);
        chunk_exp(buffer, x + at, n, max, scale);
        row_give(dx + at, 0, buffer, n);
    }
    dx[target] = store(fast_exp(chosen - max) * scale - 1);
}

int CPU(cross_entropy_tile)(ul_stream *s, void *loss, void *dx, const void *x,
                            const int64_t *targets, int64_t rows, int64_t cols, int64_t ignore)
{
    loss_job job = {
        .loss = loss, .dx = {dx, 0}, .x = x, .targets = targets, .cols = cols, .ignore = ignore};
    rows_walk(s, rows, cols, tile_row, &job);
    return 0;
}
