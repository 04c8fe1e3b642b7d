/* norm.c - RMSNorm (alone or fused with the residual add) and LayerNorm over rows. */
#include "columns.h"

typedef struct norm_job {
    real *y, *h;
    acc *mean, *r;
    const real *x, *residual, *w, *b, *dy, *dh;
    ul_grad dx;
    int64_t cols;
    double eps;
} norm_job;

static acc row_sum(const real *x, int64_t n)
{
    acc buffer[ROW_CHUNK], total = 0;
    for (int64_t at = 0; at < n; at += ROW_CHUNK) {
        int64_t size = row_chunk(n - at);
        total += chunk_sum(row_widen(buffer, x + at, size), size);
    }
    return total;
}

static inline acc weight_of(const real *w, int64_t i) { return w ? load(w[i]) : 1; }

static void rms_norm_row(const void *arg, int64_t row)
{
    const norm_job *job = arg;
    int64_t cols = job->cols;
    const real *x = job->x + row * cols;
    real *y = job->y + row * cols;
    if (job->residual) {
        const real *residual = job->residual + row * cols;
        real *h = job->h + row * cols;
        for (int64_t i = 0; i < cols; i++) h[i] = store(load(x[i]) + load(residual[i]));
        x = h;
    }
    acc r = (acc)(1 / sqrt((double)row_dot(x, x, cols) / (double)cols + job->eps));
    job->r[row] = r;
    if (job->w)
        for (int64_t i = 0; i < cols; i++) y[i] = store(load(x[i]) * r * load(job->w[i]));
    else
        for (int64_t i = 0; i < cols; i++) y[i] = store(load(x[i]) * r);
}

int CPU(rms_norm)(ul_stream *s, void *y, void *h, void *r, const void *x, const void *residual,
                  const void *w, int64_t rows, int64_t cols, double eps)
{
    norm_job job = {
        .y = y, .h = h, .r = r, .x = x, .residual = residual, .w = w, .cols = cols, .eps = eps};
    rows_walk(s, rows, cols, rms_norm_row, &job);
    return 0;
}

/* With g = dy w: dx = r (g - x r^2 mean(g x)), plus dh. */
static void rms_norm_backward_row(const void *arg, int64_t row)
{
    const norm_job *job = arg;
    int64_t cols = job->cols, at = row * cols;
    const real *x = job->x + at, *dy = job->dy + at, *dh = job->dh ? job->dh + at : NULL;
    real *dx = (real *)job->dx.data + at;
    acc r = job->r[row], dot = 0, a[ROW_CHUNK], b[ROW_CHUNK];
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++) a[i] = load(dy[from + i]) * weight_of(job->w, from + i);
        dot += chunk_dot(a, row_widen(b, x + from, n), n);
    }
    acc pull = r * r * r * dot / (acc)cols;
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++)
            a[i] = load(dy[from + i]) * weight_of(job->w, from + i) * r - load(x[from + i]) * pull;
        if (dh)
            for (int64_t i = 0; i < n; i++) a[i] += load(dh[from + i]);
        if (job->dx.add)
            for (int64_t i = 0; i < n; i++) a[i] += load(dx[from + i]);
        for (int64_t i = 0; i < n; i++) dx[from + i] = store(a[i]);
    }
}

/* dw = sum over rows of dy x r */
static void rms_norm_weight_row(const void *arg, int64_t row, int64_t begin, int64_t n,
                                acc part[][COLUMN_CHUNK])
{
    const norm_job *job = arg;
    const real *x = job->x + row * job->cols + begin, *dy = job->dy + row * job->cols + begin;
    acc r = job->r[row];
    for (int64_t i = 0; i < n; i++) part[0][i] += load(dy[i]) * load(x[i]) * r;
}

int CPU(rms_norm_backward)(ul_stream *s, ul_grad dx, ul_grad dw, const void *dy, const void *dh,
                           const void *x, const void *w, const void *r, int64_t rows, int64_t cols)
{
    norm_job job = {.r = (acc *)r, .x = x, .w = w, .dy = dy, .dh = dh, .dx = dx, .cols = cols};
    if (dx.data) rows_walk(s, rows, cols, rms_norm_backward_row, &job);
    columns_job weights = {rows, cols, rms_norm_weight_row, &job, {dw, {NULL, 0}}};
    if (dw.data) columns_walk(s, &weights);
    return 0;
}

static void layer_norm_row(const void *arg, int64_t row)
{
    const norm_job *job = arg;
    int64_t cols = job->cols;
    const real *x = job->x + row * cols;
    real *y = job->y + row * cols;
    acc mean = row_sum(x, cols) / (acc)cols, square = 0, a[ROW_CHUNK];
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++) a[i] = load(x[from + i]) - mean;
        square += chunk_dot(a, a, n);
    }
    acc r = (acc)(1 / sqrt((double)square / (double)cols + job->eps));
    job->mean[row] = mean;
    job->r[row] = r;
    for (int64_t i = 0; i < cols; i++) {
        acc bias = job->b ? load(job->b[i]) : 0;
        y[i] = store((load(x[i]) - mean) * r * weight_of(job->w, i) + bias);
    }
}

int CPU(layer_norm)(ul_stream *s, void *y, void *mean, void *r, const void *x, const void *w,
                    const void *b, int64_t rows, int64_t cols, double eps)
{
    norm_job job = {.y = y, .mean = mean, .r = r, .x = x, .w = w, .b = b, .cols = cols, .eps = eps};
    rows_walk(s, rows, cols, layer_norm_row, &job);
    return 0;
}

/* With g = dy w and n = (x - mean) r: dx = r (g - mean(g) - n mean(g n)). */
static void layer_norm_backward_row(const void *arg, int64_t row)
{
    const norm_job *job = arg;
    int64_t cols = job->cols, at = row * cols;
    const real *x = job->x + at, *dy = job->dy + at;
    real *dx = (real *)job->dx.data + at;
    acc r = job->r[row], mean = job->mean[row], sum = 0, dot = 0, g[ROW_CHUNK], normed[ROW_CHUNK];
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++) {
            g[i] = load(dy[from + i]) * weight_of(job->w, from + i);
            normed[i] = (load(x[from + i]) - mean) * r;
        }
        sum += chunk_sum(g, n);
        dot += chunk_dot(g, normed, n);
    }
    sum /= (acc)cols;
    dot /= (acc)cols;
    for (int64_t i = 0; i < cols; i++) {
        acc g_i = load(dy[i]) * weight_of(job->w, i);
        give(dx + i, job->dx.add, r * (g_i - sum - (load(x[i]) - mean) * r * dot));
    }
}

/* dw = sum over rows of dy (x - mean) r, db = sum over rows of dy */
static void layer_norm_weight_row(const void *arg, int64_t row, int64_t begin, int64_t n,
                                  acc part[][COLUMN_CHUNK])
{
    const norm_job *job = arg;
    const real *x = job->x + row * job->cols + begin, *dy = job->dy + row * job->cols + begin;
    acc r = job->r[row], mean = job->mean[row];
    for (int64_t i = 0; i < n; i++) part[0][i] += load(dy[i]) * (load(x[i]) - mean) * r;
    for (int64_t i = 0; i < n; i++) part[1][i] += load(dy[i]);
}

int CPU(layer_norm_backward)(ul_stream *s, ul_grad dx, ul_grad dw, ul_grad db, const void *dy,
                             const void *x, const void *w, const void *mean, const void *r,
                             int64_t rows, int64_t cols)
{
    norm_job job = {
        .mean = (acc *)mean, .r = (acc *)r, .x = x, .w = w, .dy = dy, .dx = dx, .cols = cols};
    if (dx.data) rows_walk(s, rows, cols, layer_norm_backward_row, &job);
    columns_job weights = {rows, cols, layer_norm_weight_row, &job, {dw, db}};
    if (dw.data || db.data) columns_walk(s, &weights);
    return 0;
}
