/* loss_test.c - cross-entropy, its gradient, and both at once on a tile of accumulators. */
#include "runs.h"

enum { IGNORE = -100 };

typedef struct loss {
    int64_t rows, cols;
    const int64_t *targets;
    const void *x, *d_loss;
    void *lse, *other; /* other: room for the output that is not looked at */
} loss;

static void call_loss(const ul_kernels *k, ul_grad y, const void *arg)
{
    const loss *l = arg;
    k->cross_entropy(ul_cpu_stream(), y.data, l->lse, l->x, l->targets, l->rows, l->cols, IGNORE);
}

static void call_backward(const ul_kernels *k, ul_grad dx, const void *arg)
{
    const loss *l = arg;
    k->cross_entropy_backward(ul_cpu_stream(), dx, l->d_loss, l->x, l->targets, l->lse, l->rows,
                              l->cols, IGNORE);
}

static void call_tile(const ul_kernels *k, ul_grad y, const void *arg)
{
    const loss *l = arg;
    k->cross_entropy_tile(ul_cpu_stream(), y.data, NULL, l->x, l->targets, l->rows, l->cols,
                          IGNORE);
}

static void call_tile_dx(const ul_kernels *k, ul_grad dx, const void *arg)
{
    const loss *l = arg;
    k->cross_entropy_tile(ul_cpu_stream(), l->other, dx.data, l->x, l->targets, l->rows, l->cols,
                          IGNORE);
}

/* Losses, log-sum-exps and softmax(x) - one hot, 0 in ignored rows; x is of `type`. */
static void plain(int type, const loss *l, double *losses, double *lse, double *dx)
{
    for (int64_t row = 0; row < l->rows; row++) {
        double max = -INFINITY, sum = 0;
        int64_t first = row * l->cols, target = l->targets[row];
        for (int64_t i = 0; i < l->cols; i++) max = fmax(max, get(type, l->x, first + i));
        for (int64_t i = 0; i < l->cols; i++) sum += exp(get(type, l->x, first + i) - max);
        lse[row] = max + log(sum);
        losses[row] = target == IGNORE ? 0 : lse[row] - get(type, l->x, first + target);
        for (int64_t i = 0; i < l->cols; i++) {
            double p = exp(get(type, l->x, first + i) - lse[row]) - (i == target);
            dx[first + i] = target == IGNORE ? 0 : p;
        }
    }
}

static const int64_t shapes[][2] = {{1, 1},     {3, 7},     {20, 64}, {9, 1025},
                                    {4, 32003}, {600, 257}, {0, 5}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void check_loss(int dtype, loss l, double *losses, double *lse, double *dx)
{
    int64_t rows = l.rows, n = rows * l.cols, bad = 0;
    int acc = acc_of(dtype);
    void *x = new_noise(dtype, n, -8, 12, 1), *d_loss = new_noise(acc, rows, 0.5, 1.5, 2);
    l.x = x, l.d_loss = d_loss;
    for (int64_t row = 0; row < rows; row++) /* not to be read */
        for (int64_t i = 0; i < l.cols && l.targets[row] == IGNORE; i++)
            put(dtype, x, row * l.cols + i, i % 3 ? NAN : INFINITY);
    plain(dtype, &l, losses, lse, dx);
    check_run(
        &(kernel_run){"cross_entropy", dtype, acc, rows, rows, NULL, losses, call_loss, &l, 0});
    for (int64_t row = 0; row < rows; row++) {
        if (l.targets[row] != IGNORE)
            bad += !close_to(get(acc, l.lse, row), lse[row], tolerance_of(acc));
        for (int64_t i = 0; i < l.cols; i++) dx[row * l.cols + i] *= get(acc, d_loss, row);
        if (l.targets[row] == IGNORE) put(acc, d_loss, row, NAN);
    }
    CHECK(!bad, "%s: %d lse wrong", dtype_names[dtype], (int)bad);
    check_run(&(kernel_run){"cross_entropy_backward", dtype, dtype, n, n, NULL, dx, call_backward,
                            &l, 1});
    free(x), free(d_loss);
}

static void check_tile(int dtype, loss l, double *losses, double *lse, double *dx)
{
    int64_t rows = l.rows, n = rows * l.cols;
    int acc = acc_of(dtype);
    size_t bytes = (size_t)n * dtype_sizes[acc];
    void *x = new_noise(acc, n, -8, 12, 3), *in_place = new_values(acc, n);
    void *apart = new_values(dtype, n);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < l.cols && l.targets[row] == IGNORE; i++)
            put(acc, x, row * l.cols + i, NAN);
    l.x = x;
    plain(acc, &l, losses, lse, dx);
    check_run(&(kernel_run){"tile", dtype, acc, rows, rows, NULL, losses, call_tile, &l, 0});
    check_run(&(kernel_run){"tile dx", dtype, dtype, n, n, NULL, dx, call_tile_dx, &l, 0});
    if (acc == dtype && n > 0) {
        memcpy(in_place, x, bytes);
        call_tile_dx(ul_cpu_kernels(dtype), (ul_grad){apart, 0}, &l);
        l.x = in_place;
        call_tile_dx(ul_cpu_kernels(dtype), (ul_grad){in_place, 0}, &l);
        CHECK(memcmp(in_place, apart, bytes) == 0, "%s: in place", dtype_names[dtype]);
    }
    free(x), free(in_place), free(apart);
}

static void check_shapes(int dtype)
{
    for (int i = 0; i < N_SHAPES; i++) {
        loss l = {.rows = shapes[i][0], .cols = shapes[i][1]};
        int64_t n = l.rows * l.cols, *targets = new_values(I64, l.rows);
        uint64_t state = 8;
        for (int64_t row = 0; row < l.rows; row++)
            targets[row] = row % 4 == 2 ? IGNORE : (int64_t)(noise(&state) * (double)l.cols);
        l.targets = targets;
        l.lse = new_values(F64, l.rows);
        l.other = new_values(F64, l.rows);
        double *losses = malloc((size_t)(l.rows + 1) * sizeof *losses);
        double *lse = malloc((size_t)(l.rows + 1) * sizeof *lse);
        double *dx = malloc((size_t)(n + 1) * sizeof *dx);
        check_loss(dtype, l, losses, lse, dx);
        check_tile(dtype, l, losses, lse, dx);
        free(targets), free(l.lse), free(l.other), free(losses), free(lse), free(dx);
    }
}

static void losses_and_gradients(void) { each_table(F64, check_shapes); }

/* An ignored row gives exactly 0, whatever is in it; a sure one gives 0 without a NaN. */
static void check_extremes(int dtype)
{
    int acc = acc_of(dtype);
    int64_t targets[3] = {IGNORE, 0, 1};
    double x[9] = {NAN, INFINITY, -INFINITY, 3e38, -3e38, -INFINITY, -INFINITY, 0, 0};
    double loss_wanted[3] = {0, 0, log(2)}, dx_wanted[9] = {0, 0, 0, 0, 0, 0, 0, -0.5, 0.5};
    double logits[9], losses[3], lse[3], ones[3], dx[9];
    for (int i = 0; i < 9; i++) put(dtype, logits, i, x[i]);
    for (int i = 0; i < 3; i++) put(acc, ones, i, 1);
    const ul_kernels *k = ul_cpu_kernels(dtype);
    k->cross_entropy(ul_cpu_stream(), losses, lse, logits, targets, 3, 3, IGNORE);
    k->cross_entropy_backward(ul_cpu_stream(), (ul_grad){dx, 0}, ones, logits, targets, lse, 3, 3,
                              IGNORE);
    for (int i = 0; i < 3; i++)
        CHECK(close_to(get(acc, losses, i), loss_wanted[i], 1e-6), "%d: %g", i,
              get(acc, losses, i));
    for (int i = 0; i < 9; i++)
        CHECK(close_to(get(dtype, dx, i), dx_wanted[i], 1e-6), "%d: %g", i, get(dtype, dx, i));
}

static void extremes(void) { each_table(F64, check_extremes); }

int main(void)
{
    RUN(losses_and_gradients);
    RUN(extremes);
    return check_done();
}
