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
    const real *x = (const real *)job->x + row * job->cols;
    real *dx = (real *)job->dx.data + row * job->cols;
    int64_t target = job->targets[row];
    int add = job->dx.add;
    if (target == job->ignore) {
        if (!add) memset(dx, 0, (size_t)job->cols * sizeof *dx);
        return;
    }
    acc lse = job->lse[row], weight = job->d_loss[row];
    for (int64_t i = 0; i < target; i++) give(dx + i, add, weight * fast_exp(load(x[i]) - lse));
    give(dx + target, add, weight * (fast_exp(load(x[target]) - lse) - 1));
    for (int64_t i = target + 1; i < job->cols; i++)
        give(dx + i, add, weight * fast_exp(load(x[i]) - lse));
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

/* Like the two above at once, from accumulators; dx may overwrite x (it is read before it is
 * written). */
static void tile_row(const void *arg, int64_t row)
{
    const loss_job *job = arg;
    const acc *x = (const acc *)job->x + row * job->cols;
    real *dx = job->dx.data ? (real *)job->dx.data + row * job->cols : NULL;
    int64_t target = job->targets[row], cols = job->cols;
    if (target == job->ignore) {
        job->loss[row] = 0;
        if (dx) memset(dx, 0, (size_t)cols * sizeof *dx);
        return;
    }
    acc max = chunk_max(x, cols), sum = chunk_sum_exp(x, cols, max), lse = log_sum_exp(max, sum);
    acc chosen = x[target];
    job->loss[row] = lse - chosen;
    if (!dx) return;
    acc scale = 1 / sum;
    int64_t i = 0;
    for (; i + VL <= cols; i += VL) v_store(dx + i, v_exp(v_load_acc(x + i) - max) * scale);
    for (; i < cols; i++) dx[i] = store(fast_exp(x[i] - max) * scale);
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
