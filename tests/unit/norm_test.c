/* norm_test.c - RMSNorm, with a residual or without, LayerNorm, and their gradients. */
#include "runs.h"

/* Operands of a norm; what a pointer of doubles would hold is read with get(). */
typedef struct norm {
    int64_t rows, cols;
    void *x, *residual, *w, *b, *dy, *dh; /* NULL: not given */
    void *h, *mean, *r;                   /* made by the forward kernels */
    int dtype;
} norm;

static const double eps = 1e-5;
static const int64_t shapes[][2] = {{1, 1},    {3, 5},    {9, 64},     {17, 100}, {4, 1025},
                                    {700, 33}, {5, 4099}, {1300, 257}, {0, 8},    {3, 70001}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static double value(const norm *n, const void *p, int64_t i, double otherwise)
{
    return p ? get(n->dtype, p, i) : otherwise;
}

/* Mean and 1 / deviation of a row of h; the mean is 0 for RMSNorm. */
static void row_statistics(const norm *n, int64_t row, int layer, double *mean, double *r)
{
    double sum = 0, square = 0;
    for (int64_t i = 0; i < n->cols; i++) sum += get(n->dtype, n->h, row * n->cols + i);
    *mean = layer ? sum / (double)n->cols : 0;
    for (int64_t i = 0; i < n->cols; i++) {
        double x = get(n->dtype, n->h, row * n->cols + i) - *mean;
        square += x * x;
    }
    *r = 1 / sqrt(square / (double)n->cols + eps);
}

static void call_rms(const ul_kernels *k, ul_grad y, const void *arg)
{
    const norm *n = arg;
    void *h = n->residual ? n->h : NULL;
    k->rms_norm(ul_cpu_stream(), y.data, h, n->r, n->x, n->residual, n->w, n->rows, n->cols, eps);
}

static void call_layer(const ul_kernels *k, ul_grad y, const void *arg)
{
    const norm *n = arg;
    k->layer_norm(ul_cpu_stream(), y.data, n->mean, n->r, n->x, n->w, n->b, n->rows, n->cols, eps);
}

static void rms_backward(const ul_kernels *k, ul_grad dx, ul_grad dw, const norm *n)
{
    k->rms_norm_backward(ul_cpu_stream(), dx, dw, n->dy, n->dh, n->h, n->w, n->r, n->rows, n->cols);
}

static void call_rms_dx(const ul_kernels *k, ul_grad dx, const void *arg)
{
    rms_backward(k, dx, (ul_grad){NULL, 0}, arg);
}

static void call_rms_dw(const ul_kernels *k, ul_grad dw, const void *arg)
{
    rms_backward(k, (ul_grad){NULL, 0}, dw, arg);
}

static void layer_backward(const ul_kernels *k, ul_grad dx, ul_grad dw, ul_grad db, const norm *n)
{
    k->layer_norm_backward(ul_cpu_stream(), dx, dw, db, n->dy, n->h, n->w, n->mean, n->r, n->rows,
                           n->cols);
}

static void call_layer_dx(const ul_kernels *k, ul_grad dx, const void *arg)
{
    layer_backward(k, dx, (ul_grad){NULL, 0}, (ul_grad){NULL, 0}, arg);
}

static void call_layer_dw(const ul_kernels *k, ul_grad dw, const void *arg)
{
    layer_backward(k, (ul_grad){NULL, 0}, dw, (ul_grad){NULL, 0}, arg);
}

static void call_layer_db(const ul_kernels *k, ul_grad db, const void *arg)
{
    layer_backward(k, (ul_grad){NULL, 0}, (ul_grad){NULL, 0}, db, arg);
}

static void check_forward(const norm *n, int layer)
{
    int64_t size = n->rows * n->cols, bad = 0;
    double *want = malloc((size_t)(size + 1) * sizeof *want), tolerance = tolerance_of(F32);
    for (int64_t i = 0; i < size; i++) /* h as stored: the statistics are of rounded numbers */
        put(n->dtype, n->h, i, value(n, n->x, i, 0) + value(n, n->residual, i, 0));
    for (int64_t row = 0; row < n->rows; row++) {
        double mean, r;
        row_statistics(n, row, layer, &mean, &r);
        for (int64_t i = 0; i < n->cols; i++)
            want[row * n->cols + i] =
                (get(n->dtype, n->h, row * n->cols + i) - mean) * r * value(n, n->w, i, 1) +
                value(n, n->b, i, 0);
    }
    check_run(&(kernel_run){layer ? "layer_norm" : "rms_norm", n->dtype, n->dtype, size, size, NULL,
                            want, layer ? call_layer : call_rms, n, 0});
    for (int64_t row = 0; row < n->rows; row++) {
        double mean, r;
        row_statistics(n, row, layer, &mean, &r);
        bad += !close_to(get(acc_of(n->dtype), n->r, row), r, tolerance);
        if (layer) bad += !close_to(get(acc_of(n->dtype), n->mean, row), mean, tolerance);
    }
    for (int64_t i = 0; i < size; i++)
        bad += n->residual &&
               get(n->dtype, n->h, i) !=
                   rounded(n->dtype, get(n->dtype, n->x, i) + get(n->dtype, n->residual, i));
    CHECK(!bad, "%s [%d, %d]: %d statistics or sums wrong", dtype_names[n->dtype], (int)n->rows,
          (int)n->cols, (int)bad);
    free(want);
}

/* With g = dy w and the normed row n = (h - mean) r:
 * dx = r (g - mean(g) - n mean(g n)) + dh, RMSNorm without mean(g); dw = sum dy n; db = sum dy.
 */
static void check_backward(const norm *n, int layer)
{
    int64_t size = n->rows * n->cols, cols = n->cols;
    int acc = acc_of(n->dtype);
    double *dx = malloc((size_t)(size + 1) * sizeof *dx);
    double *dw = calloc((size_t)cols, sizeof *dw), *db = calloc((size_t)cols, sizeof *db);
    for (int64_t row = 0; row < n->rows; row++) {
        double mean, r, sum = 0, dot = 0;
        row_statistics(n, row, layer, &mean, &r);
        for (int64_t i = 0; i < cols; i++) {
            double dy = get(n->dtype, n->dy, row * cols + i), g = dy * value(n, n->w, i, 1);
            double normed = (get(n->dtype, n->h, row * cols + i) - mean) * r;
            sum += g / (double)cols;
            dot += g * normed / (double)cols;
            dw[i] += dy * normed;
            db[i] += dy;
        }
        for (int64_t i = 0; i < cols; i++) {
            double g = get(n->dtype, n->dy, row * cols + i) * value(n, n->w, i, 1);
            double normed = (get(n->dtype, n->h, row * cols + i) - mean) * r;
            dx[row * cols + i] = r * (g - (layer ? sum : 0) - normed * dot) +
                                 (layer ? 0 : value(n, n->dh, row * cols + i, 0));
        }
    }
    check_run(&(kernel_run){layer ? "layer_norm dx" : "rms_norm dx", n->dtype, n->dtype, size, size,
                            NULL, dx, layer ? call_layer_dx : call_rms_dx, n, 1});
    check_run(&(kernel_run){layer ? "layer_norm dw" : "rms_norm dw", n->dtype, acc, cols, cols,
                            NULL, dw, layer ? call_layer_dw : call_rms_dw, n, 1});
    if (layer)
        check_run(&(kernel_run){"layer_norm db", n->dtype, acc, cols, cols, NULL, db, call_layer_db,
                                n, 1});
    free(dx), free(dw), free(db);
}

/* With all operands, or the bare norm. */
static void check_norm(int dtype, int64_t rows, int64_t cols, int all, int layer)
{
    int64_t size = rows * cols;
    norm n = {.rows = rows, .cols = cols, .dtype = dtype};
    n.x = new_noise(dtype, size, -1, 2, 1);
    n.dy = new_noise(dtype, size, -0.1, 0.2, 2);
    n.h = new_values(dtype, size);
    n.mean = new_values(acc_of(dtype), rows);
    n.r = new_values(acc_of(dtype), rows);
    if (all) {
        n.residual = layer ? NULL : new_noise(dtype, size, -1, 1, 3);
        n.dh = layer ? NULL : new_noise(dtype, size, -1, 1, 4);
        n.w = new_noise(dtype, cols, 0.5, 1.5, 5);
        n.b = layer ? new_noise(dtype, cols, -1, 1, 6) : NULL;
    }
    check_forward(&n, layer);
    check_backward(&n, layer);
    void *const made[] = {n.x, n.residual, n.w, n.b, n.dy, n.dh, n.h, n.mean, n.r};
    for (int i = 0; i < 9; i++) free(made[i]);
}

static void check_rms(int dtype)
{
    for (int i = 0; i < 2 * N_SHAPES; i++)
        check_norm(dtype, shapes[i / 2][0], shapes[i / 2][1], i % 2, 0);
}

static void check_layer(int dtype)
{
    for (int i = 0; i < 2 * N_SHAPES; i++)
        check_norm(dtype, shapes[i / 2][0], shapes[i / 2][1], i % 2, 1);
}

static void rms_norms(void) { each_table(F64, check_rms); }
static void layer_norms(void) { each_table(F64, check_layer); }

/* Far from 0 a variance as a difference of squares would be noise. */
static void layer_norm_far_from_zero(void)
{
    enum { COLS = 1000 };
    float x[COLS], y[COLS], mean, r;
    for (int i = 0; i < COLS; i++) x[i] = 10000 + (float)(i % 2);
    for (int level = 0; next_isa(&level); level++) {
        ul_cpu_kernels(F32)->layer_norm(ul_cpu_stream(), y, &mean, &r, x, NULL, NULL, 1, COLS, 0);
        CHECK(close_to((double)mean, 10000.5, 1e-6) && close_to((double)r, 2, 1e-5), "%g %g",
              (double)mean, (double)r);
        CHECK(close_to((double)y[0], -1, 1e-4) && close_to((double)y[COLS - 1], 1, 1e-4));
    }
}

int main(void)
{
    RUN(rms_norms);
    RUN(layer_norms);
    RUN(layer_norm_far_from_zero);
    return check_done();
}
