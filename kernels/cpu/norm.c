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

static inline acc weight_of(const real *w, int64_t i) { return w ? load(w[i]) : 1; }

/* h = x + residual; returns sum h^2. */
static acc add_residual(real *h, const real *x, const real *residual, int64_t cols)
{
    acc buffer[ROW_CHUNK];
    double square = 0;
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++) buffer[i] = load(x[from + i]) + load(residual[from + i]);
        row_give(h + from, 0, buffer, n);
        const acc *stored = row_widen(buffer, h + from, n);
        square += chunk_dot(stored, stored, n);
    }
    return (acc)square;
}

static void rms_norm_row(const void *arg, int64_t row)
{
    const norm_job *job = arg;
    int64_t cols = job->cols;
    const real *x = job->x + row * cols, *w = job->w;
    real *y = job->y + row * cols;
    acc square;
    if (job->residual) {
        real *h = job->h + row * cols;
        square = add_residual(h, x, job->residual + row * cols, cols);
        x = h;
    } else {
        square = row_dot(x, x, cols);
    }
    acc r = (acc)(1 / sqrt((double)square / (double)cols + job->eps));
    job->r[row] = r;
    if (w)
        INDEPENDENT for (int64_t i = 0; i < cols; i++) y[i] = store(load(x[i]) * r * load(w[i]));
    else
        INDEPENDENT for (int64_t i = 0; i < cols; i++) y[i] = store(load(x[i]) * r);
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
    const real *w = job->w;
    real *dx = (real *)job->dx.data + at;
    acc r = job->r[row], a[ROW_CHUNK], b[ROW_CHUNK];
    double dot = 0;
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++) a[i] = load(dy[from + i]) * weight_of(w, from + i);
        dot += chunk_dot(a, row_widen(b, x + from, n), n);
    }
    acc pull = r * (r * (acc)(dot / (double)cols)) * r;
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++)
            a[i] = load(dy[from + i]) * weight_of(w, from + i) * r - load(x[from + i]) * pull;
        if (dh)
            for (int64_t i = 0; i < n; i++) a[i] += load(dh[from + i]);
        row_give(dx + from, job->dx.add, a, n);
    }
}

/* dw = sum over rows of dy x r */
static void rms_norm_weight_row(const void *arg, int64_t row, int64_t begin, int64_t n,
                                acc *const sums[2])
{
    const norm_job *job = arg;
    const real *x = job->x + row * job->cols + begin, *dy = job->dy + row * job->cols + begin;
    acc r = job->r[row], *dw = sums[0];
    INDEPENDENT for (int64_t i = 0; i < n; i++) dw[i] += load(dy[i]) * (load(x[i]) * r);
}

int CPU(rms_norm_backward)(ul_stream *s, ul_grad dx, ul_grad dw, const void *dy, const void *dh,
                           const void *x, const void *w, const void *r, int64_t rows, int64_t cols)
{
    norm_job job = {.r = (acc *)r, .x = x, .w = w, .dy = dy, .dh = dh, .dx = dx, .cols = cols};
    if (dx.data) rows_walk(s, rows, cols, rms_norm_backward_row, &job);
    columns_job weights = {.rows = rows,
                           .cols = cols,
                           .add_row = rms_norm_weight_row,
                           .arg = &job,
                           .out = {dw, {NULL, 0}}};
    if (dw.data) columns_walk(s, &weights);
    return 0;
}

static void layer_norm_row(const void *arg, int64_t row)
{
    const norm_job *job = arg;
    int64_t cols = job->cols;
    const real *x = job->x + row * cols, *w = job->w, *b = job->b;
    real *y = job->y + row * cols;
    acc mean = row_sum(x, cols) / (acc)cols, a[ROW_CHUNK];
    double square = 0;
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++) a[i] = load(x[from + i]) - mean;
        square += chunk_dot(a, a, n);
    }
    acc r = (acc)(1 / sqrt(square / (double)cols + job->eps));
    job->mean[row] = mean;
    job->r[row] = r;
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++)
            a[i] = (load(x[from + i]) - mean) * r * weight_of(w, from + i);
        if (b)
            for (int64_t i = 0; i < n; i++) a[i] += load(b[from + i]);
        row_give(y + from, 0, a, n);
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
    const real *x = job->x + at, *dy = job->dy + at, *w = job->w;
    real *dx = (real *)job->dx.data + at;
    acc r = job->r[row], mean = job->mean[row], g[ROW_CHUNK], normed[ROW_CHUNK];
    double sum = 0, dot = 0;
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++) g[i] = load(dy[from + i]) * weight_of(w, from + i);
        for (int64_t i = 0; i < n; i++) normed[i] = (load(x[from + i]) - mean) * r;
        sum += chunk_sum(g, n);
        dot += chunk_dot(g, normed, n);
    }
    acc shift = (acc)(sum / (double)cols), pull = (acc)(dot / (double)cols);
    for (int64_t from = 0; from < cols; from += ROW_CHUNK) {
        int64_t n = row_chunk(cols - from);
        for (int64_t i = 0; i < n; i++) normed[i] = (load(x[from + i]) - mean) * r * pull + shift;
        for (int64_t i = 0; i < n; i++)
            g[i] = r * (load(dy[from + i]) * weight_of(w, from + i) - normed[i]);
        row_give(dx + from, job->dx.add, g, n);
    }
}

/* dw = sum over rows of dy (x - mean) r, db = sum over rows of dy */
static void layer_norm_weight_row(const void *arg, int64_t row, int64_t begin, int64_t n,
                                  acc *const sums[2])
{
    const norm_job *job = arg;
    const real *x = job->x + row * job->cols + begin, *dy = job->dy + row * job->cols + begin;
    acc r = job->r[row], mean = job->mean[row], *dw = sums[0], *db = sums[1];
    INDEPENDENT for (int64_t i = 0; i < n; i++) dw[i] += load(dy[i]) * ((load(x[i]) - mean) * r);
    INDEPENDENT for (int64_t i = 0; i < n; i++) db[i] += load(dy[i]);
}

int CPU(layer_norm_backward)(ul_stream *s, ul_grad dx, ul_grad dw, ul_grad db, const void *dy,
                             const void *x, const void *w, const void *mean, const void *r,
                             int64_t rows, int64_t cols)
{
    norm_job job = {
        .mean = (acc *)mean, .r = (acc *)r, .x = x, .w = w, .dy = dy, .dx = dx, .cols = cols};
    if (dx.data) rows_walk(s, rows, cols, layer_norm_backward_row, &job);
    columns_job weights = {
        .rows = rows, .cols = cols, .add_row = layer_norm_weight_row, .arg = &job, .out = {dw, db}};
    if (dw.data || db.data) columns_walk(s, &weights);
    return 0;
}
