/* softmax_test.c - softmax, log_softmax and their gradients; running sums. */
#include "runs.h"

typedef struct rows {
    int64_t rows, cols;
    const void *x, *dy;
    int option;
} rows;

static const int64_t shapes[][2] = {{1, 1},     {3, 7},   {5, 64}, {33, 1025},
                                    {2, 40003}, {700, 9}, {0, 5},  {4, 0}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void call_softmax(const ul_kernels *k, ul_grad y, const void *arg)
{
    const rows *r = arg;
    k->softmax(ul_cpu_stream(), y.data, r->x, r->rows, r->cols);
}

static void call_log_softmax(const ul_kernels *k, ul_grad y, const void *arg)
{
    const rows *r = arg;
    k->log_softmax(ul_cpu_stream(), y.data, r->x, r->rows, r->cols);
}

static void call_softmax_backward(const ul_kernels *k, ul_grad dx, const void *arg)
{
    const rows *r = arg;
    k->softmax_backward(ul_cpu_stream(), dx, r->dy, r->x, r->rows, r->cols);
}

static void call_log_softmax_backward(const ul_kernels *k, ul_grad dx, const void *arg)
{
    const rows *r = arg;
    k->log_softmax_backward(ul_cpu_stream(), dx, r->dy, r->x, r->rows, r->cols);
}

static void call_cumsum(const ul_kernels *k, ul_grad y, const void *arg)
{
    const rows *r = arg;
    k->cumsum(ul_cpu_stream(), y, r->x, r->rows, r->cols, r->option);
}

/* What the four give for one row. */
static void plain_row(int dtype, const rows *r, int64_t first, double *const want[4])
{
    double max = -INFINITY, sum = 0, dot = 0, total = 0;
    for (int64_t i = first; i < first + r->cols; i++) max = fmax(max, get(dtype, r->x, i));
    for (int64_t i = first; i < first + r->cols; i++) {
        double x = get(dtype, r->x, i), dy = get(dtype, r->dy, i);
        sum += exp(x - max);
        dot += x * dy;
        total += dy;
    }
    for (int64_t i = first; i < first + r->cols; i++) {
        double x = get(dtype, r->x, i), dy = get(dtype, r->dy, i);
        want[0][i] = exp(x - max) / sum;
        want[1][i] = x - max - log(sum);
        want[2][i] = x * (dy - dot);
        want[3][i] = dy - exp(x) * total;
    }
}

static void check_softmax(int dtype)
{
    static void (*const calls[])(const ul_kernels *, ul_grad, const void *) = {
        call_softmax, call_log_softmax, call_softmax_backward, call_log_softmax_backward};
    static const char *const names[] = {"softmax", "log_softmax", "softmax_backward",
                                        "log_softmax_backward"};
    for (int i = 0; i < N_SHAPES; i++) {
        int64_t n = shapes[i][0] * shapes[i][1];
        double width = 1 / (1 + sqrt((double)shapes[i][1])), *want[4];
        void *x = new_noise(dtype, n, -9, 9, 1), *y = new_noise(dtype, n, 0, width, 2);
        void *dy = new_noise(dtype, n, -width, width, 3);
        for (int k = 0; k < 4; k++) want[k] = malloc((size_t)(n + 1) * sizeof(double));
        for (int k = 0; k < 4; k++) {
            rows r = {shapes[i][0], shapes[i][1], k < 2 ? x : y, dy, 0};
            for (int64_t row = 0; row < r.rows; row++) plain_row(dtype, &r, row * r.cols, want);
            check_run(
                &(kernel_run){names[k], dtype, dtype, n, n, NULL, want[k], calls[k], &r, k >= 2});
        }
        for (int k = 0; k < 4; k++) free(want[k]);
        free(x), free(y), free(dy);
    }
}

static void softmaxes(void) { each_table(F64, check_softmax); }

static void check_special(int dtype)
{
    static const double x[5][3] = {{-INFINITY, -INFINITY, -INFINITY},
                                   {-INFINITY, 0, 0},
                                   {INFINITY, 0, -INFINITY},
                                   {NAN, 0, 1},
                                   {3e38, 3e38, -3e38}};
    static const double want[5][3] = {
        {NAN, NAN, NAN}, {0, 0.5, 0.5}, {NAN, NAN, NAN}, {NAN, NAN, NAN}, {0.5, 0.5, 0}};
    void *in = new_values(dtype, 15), *y = new_values(dtype, 15), *z = new_values(dtype, 15);
    for (int i = 0; i < 15; i++) put(dtype, in, i, x[i / 3][i % 3]);
    ul_cpu_kernels(dtype)->softmax(ul_cpu_stream(), y, in, 5, 3);
    ul_cpu_kernels(dtype)->log_softmax(ul_cpu_stream(), z, in, 5, 3);
    for (int i = 0; i < 12; i++) {
        double w = want[i / 3][i % 3];
        CHECK(close_to(get(dtype, y, i), w, 1e-6), "row %d: %g", i / 3, get(dtype, y, i));
        CHECK(close_to(get(dtype, z, i), log(w), tolerance_of(dtype)), "row %d: %g", i / 3,
              get(dtype, z, i));
    }
    free(in), free(y), free(z);
}

static void special_values(void) { each_table(F64, check_special); }

static void check_cumsum(int dtype)
{
    for (int i = 0; i < 2 * N_SHAPES; i++) {
        rows r = {shapes[i / 2][0], shapes[i / 2][1], NULL, NULL, i % 2};
        int64_t n = r.rows * r.cols;
        void *x = new_noise(dtype, n, dtype == U8 ? 0 : -20, dtype == U8 ? 256 : 40, 1);
        double *want = malloc((size_t)(n + 1) * sizeof *want);
        r.x = x;
        for (int64_t row = 0; row < r.rows; row++) {
            double total = 0;
            for (int64_t k = 0; k < r.cols; k++) {
                int64_t at = row * r.cols + (r.option ? r.cols - 1 - k : k);
                want[at] = total += get(dtype, x, at);
            }
        }
        check_run(&(kernel_run){"cumsum", dtype, dtype <= F64 ? dtype : I64, n, n, NULL, want,
                                call_cumsum, &r, 1});
        free(x), free(want);
    }
}

static void running_sums(void) { each_table(U8, check_cumsum); }

int main(void)
{
    RUN(softmaxes);
    RUN(special_values);
    RUN(running_sums);
    return check_done();
}
