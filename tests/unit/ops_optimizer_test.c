/* ops_optimizer_test.c - optimizer steps and gradient norms; random fills and dropout. */
#include "ops_proof.h"

static const ul_adamw_options adamw = {
    .lr = 0.1, .beta_1 = 0.9, .beta_2 = 0.95, .eps = 1e-8, .weight_decay = 0.2, .step = 1};

static ul_tensor *zeros_like(const ul_tensor *t, ul_dtype dtype)
{
    ul_tensor *y = new_tensor(dtype, ul_tensor_ndim(t), ul_tensor_shape(t));
    must(ul_fill_(y, 0));
    return y;
}

/* Loshchilov & Hutter's algorithm 2, element by element. */
static void adamw_steps(void)
{
    ul_tensor *p = RANDOM(3, 5), *m = zeros_like(p, UL_F64), *v = zeros_like(p, UL_F64);
    double expected[15], first[15] = {0}, second[15] = {0};
    read_values(expected, p);
    must(ul_tensor_require_grad(p, 1)); /* a step may change a leaf */
    for (int64_t step = 1; step <= 4; step++) {
        ul_tensor *grad = RANDOM(3, 5);
        ul_adamw_options options = adamw;
        options.step = step;
        must(ul_adamw_(p, grad, m, v, NULL, &options));
        for (int i = 0; i < 15; i++) {
            double g = get(grad, i);
            first[i] = 0.9 * first[i] + 0.1 * g;
            second[i] = 0.95 * second[i] + 0.05 * g * g;
            double a = first[i] / (1 - pow(0.9, (double)step));
            double b = second[i] / (1 - pow(0.95, (double)step));
            expected[i] -= 0.1 * (a / (sqrt(b) + 1e-8) + 0.2 * expected[i]);
            CHECK(is_near(get(p, i), expected[i], 1e-14), "step %d", (int)step);
        }
        ul_tensor_free(grad);
    }
    free_all((ul_tensor *[]){p, m, v}, 3);
    check_memory();
}

/* d = g + decay p; momentum = mu momentum + d; p -= lr (nesterov ? d + mu momentum : momentum) */
static void sgd_steps(void)
{
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        ul_tensor *p = RANDOM(7), *momentum = zeros_like(p, UL_F64);
        const ul_sgd_options options = {
            .lr = 0.1, .momentum = 0.9, .weight_decay = 0.2, .nesterov = nesterov};
        double expected[7], moving[7] = {0};
        read_values(expected, p);
        for (int step = 0; step < 3; step++) {
            ul_tensor *grad = RANDOM(7);
            must(ul_sgd_(p, grad, momentum, NULL, &options));
            for (int i = 0; i < 7; i++) {
                double d = get(grad, i) + 0.2 * expected[i];
                moving[i] = 0.9 * moving[i] + d;
                expected[i] -= 0.1 * (nesterov ? d + 0.9 * moving[i] : moving[i]);
                CHECK(is_near(get(p, i), expected[i], 1e-14), "step %d", step);
            }
            ul_tensor_free(grad);
        }
        free_all((ul_tensor *[]){p, momentum}, 2);
    }
    const ul_sgd_options plain = {.lr = 0.5};
    ul_tensor *p = LIST(UL_F32, 1, 2), *grad = LIST(UL_F32, 2, -2);
    must(ul_sgd_(p, grad, NULL, NULL, &plain));
    CHECK(get(p, 0) == 0 && get(p, 1) == 3);
    free_all((ul_tensor *[]){p, grad}, 2);
    check_memory();
}

/* Steps too small for bf16 gather in the master copy. */
static void master_copy(void)
{
    ul_tensor *p = LIST(UL_BF16, 1, 1), *master = LIST(UL_F32, 1, 1), *grad = LIST(UL_F32, 1, -1);
    const ul_sgd_options options = {.lr = 1e-4};
    for (int step = 0; step < 100; step++) must(ul_sgd_(p, grad, NULL, master, &options));
    CHECK(is_near(get(master, 0), 0.99, 1e-5) && is_near(get(master, 1), 1.01, 1e-5));
    CHECK(get(p, 0) == 0.98828125 && get(p, 1) == 1.0078125, "%g %g", get(p, 0), get(p, 1));
    free_all((ul_tensor *[]){p, master, grad}, 3);
    check_memory();
}

static void norms(void)
{
    double norm = 0, big = 0;
    ul_tensor *a = LIST(UL_F32, 3, 0), *b = LIST(UL_F64, 4, 12), *c = new_tensor(UL_F32, SHAPE(0));
    ul_tensor *xs[] = {a, b, c};
    must(ul_global_norm(&norm, xs, 3));
    CHECK(norm == 13);
    must(ul_clip_grad_norm_(&norm, xs, 3, 20));
    CHECK(norm == 13 && get(a, 0) == 3);
    must(ul_clip_grad_norm_(&norm, xs, 3, 6.5));
    CHECK(norm == 13 && is_near(get(a, 0), 1.5, 1e-6) && is_near(get(b, 1), 6, 1e-6));
    put(a, 0, NAN);
    must(ul_clip_grad_norm_(&norm, xs, 3, 1));
    CHECK(isnan(norm) && is_near(get(b, 1), 6, 1e-6));
    must(ul_global_norm(&norm, NULL, 0));
    CHECK(norm == 0);

    ul_tensor *wide = RANDOM(4, 6), *turned = NULL, *part = NULL;
    must(ul_transpose(&turned, wide, 0, 1));
    must(ul_slice(&part, turned, 1, 0, 2, 2));
    must(ul_global_norm(&big, &part, 1));
    must(ul_clip_grad_norm_(&norm, &part, 1, big / 2));
    must(ul_global_norm(&norm, &part, 1));
    CHECK(is_near(norm, big / 2, 1e-6) && norm > 0);

    ul_tensor *m = on_meta(UL_F32, SHAPE(4));
    must(ul_clip_grad_norm_(&norm, &m, 1, 1));
    CHECK(isnan(norm));
    free_all((ul_tensor *[]){a, b, c, wide, turned, part, m}, 7);
    check_memory();
}

/* The tape refuses values that a step has changed since. */
static void versions(void)
{
    ul_tensor *w = RANDOM(2, 2), *x = RANDOM(1, 2), *y = NULL, *grad = RANDOM(2, 2);
    const ul_sgd_options options = {.lr = 0.5};
    must(ul_tensor_require_grad(w, 1));
    must(ul_tensor_require_grad(x, 1));
    must(ul_linear(&y, x, w, NULL));
    must(ul_sgd_(w, grad, NULL, NULL, &options));
    REFUSED(ul_backward(y, x, 0), UL_EGRAD,
            "backward: a value [2, 2] that linear needs for its gradient was changed in place");
    REFUSED(ul_sgd_(y, x, NULL, NULL, &options), UL_EGRAD,
            "sgd_: the parameter [1, 2] was made by an op");
    free_all((ul_tensor *[]){w, x, y, grad}, 4);
    check_memory();
}

static void optimizer_sentences(void)
{
    ul_tensor *p = RANDOM(2, 3), *g = RANDOM(2, 3), *few = RANDOM(2), *turned = NULL;
    ul_tensor *f = random_as(UL_F32, SHAPE(2, 3)), *half = random_as(UL_BF16, SHAPE(2, 3));
    ul_adamw_options bad = adamw;
    ul_sgd_options sgd = {.lr = 0.1, .momentum = 0.9};
    double norm;
    REFUSED(ul_adamw_(p, few, g, g, NULL, &adamw), UL_ESHAPE,
            "adamw_: grad [2] does not fit the parameter [2, 3]");
    REFUSED(ul_adamw_(p, f, g, g, NULL, &adamw), UL_EDTYPE, "adamw_: grad must be f64, not f32");
    REFUSED(ul_adamw_(half, f, f, half, NULL, &adamw), UL_EDTYPE,
            "adamw_: v must be f32, not bf16");
    must(ul_transpose(&turned, p, 0, 1));
    REFUSED(ul_adamw_(turned, g, g, g, NULL, &adamw), UL_ESHAPE,
            "adamw_: the parameter [3, 2] must be contiguous");
    bad.beta_2 = 1;
    REFUSED(ul_adamw_(p, g, g, g, NULL, &bad), UL_EVALUE,
            "adamw_: betas 0.9 and 1 must be in [0, 1)");
    bad = adamw;
    bad.step = 0;
    REFUSED(ul_adamw_(p, g, g, g, NULL, &bad), UL_EVALUE, "adamw_: step = 0, but the first is 1");
    bad = adamw;
    bad.lr = NAN;
    REFUSED(ul_adamw_(p, g, g, g, NULL, &bad), UL_EVALUE,
            "adamw_: lr = nan and weight_decay = 0.2 must be finite");
    REFUSED(ul_sgd_(p, g, NULL, NULL, &sgd), UL_EVALUE,
            "sgd_: momentum = 0.9 needs a tensor to keep it in");
    sgd.momentum = 0;
    sgd.nesterov = 1;
    REFUSED(ul_sgd_(p, g, NULL, NULL, &sgd), UL_EVALUE, "sgd_: nesterov needs a momentum above 0");
    REFUSED(ul_clip_grad_norm_(&norm, &p, 1, -1), UL_EVALUE,
            "clip_grad_norm_: max_norm = -1 must not be negative");
    free_all((ul_tensor *[]){p, g, few, turned, f, half}, 6);
    check_memory();
}

/* A whole step with each allocation failing: an error each time, and the next step works. */
static void failing_step(void)
{
    for (int64_t n = 1, done = 0; !done; n++) {
        ul_tensor *p = RANDOM(3, 5), *grad = RANDOM(5, 3), *turned = NULL, *m = NULL, *v = NULL;
        double norm;
        m = zeros_like(p, UL_F64);
        v = zeros_like(p, UL_F64);
        must(ul_transpose(&turned, grad, 0, 1));
        ul_debug_fail_allocation(n);
        int64_t count = ul_debug_allocations();
        int rc = ul_clip_grad_norm_(&norm, &turned, 1, 0.1);
        if (rc == UL_OK) rc = ul_uniform_(turned, -1, 1);
        if (rc == UL_OK) rc = ul_adamw_(p, m, m, v, NULL, &adamw);
        done = ul_debug_allocations() - count < n;
        ul_debug_fail_allocation(0);
        CHECK(done ? rc == UL_OK : rc == UL_ENOMEM, "allocation %d: %d", (int)n, rc);
        free_all((ul_tensor *[]){p, grad, turned, m, v}, 5);
        check_memory();
    }
}

/* ---- random numbers ---- */

static int drop(ul_tensor **y, ul_tensor *const *x)
{
    ul_random_set_state(7, 40); /* each run with the same mask */
    return ul_dropout(y, x[0], 0.4);
}

static void dropout(void)
{
    check_op((op_case){"dropout", drop, 1, {RANDOM(5, 7)}});
    ul_tensor *x = new_tensor(UL_F32, SHAPE(100000)), *y = NULL, *z = NULL;
    must(ul_fill_(x, 1));
    ul_manual_seed(3);
    must(ul_dropout(&y, x, 0.25));
    int kept = 0;
    const float *data = ul_tensor_data(y);
    for (int i = 0; i < 100000; i++) {
        CHECK(data[i] == 0 || fabsf(data[i] - 1 / 0.75F) < 1e-6F);
        kept += data[i] != 0;
    }
    CHECK(abs(kept - 75000) < 600, "%d kept", kept);
    must(ul_dropout(&z, x, 0));
    CHECK(z == x);
    ul_tensor_free(z);
    REFUSED(ul_dropout(&z, x, 1), UL_EVALUE, "dropout: p = 1 is outside [0, 1)");
    REFUSED(ul_dropout(&z, x, NAN), UL_EVALUE, "dropout: p = nan is outside [0, 1)");
    free_all((ul_tensor *[]){x, y}, 2);
    check_memory();
}

/* The same numbers whatever the strides; the state says where the next call begins. */
static void fills(void)
{
    ul_tensor *x = new_tensor(UL_F64, SHAPE(3, 5)), *base = new_tensor(UL_F64, SHAPE(5, 3));
    ul_tensor *y = NULL, *ids = new_tensor(UL_I64, SHAPE(1000));
    uint64_t seed, next;
    must(ul_transpose(&y, base, 0, 1));
    ul_manual_seed(11);
    must(ul_uniform_(x, -2, 3));
    ul_random_state(&seed, &next);
    CHECK(seed == 11 && next == 16);
    ul_random_set_state(11, 0);
    must(ul_uniform_(y, -2, 3));
    CHECK(gap_of(x, y) == 0);
    for (int i = 0; i < 15; i++) CHECK(get(x, i) >= -2 && get(x, i) < 3);
    must(ul_normal_(y, 1, 2));
    CHECK(gap_of(x, y) > 0.1);
    must(ul_randint_(ids, -3, 4));
    int seen[7] = {0};
    for (int i = 0; i < 1000; i++) {
        int64_t id = (int64_t)get(ids, i);
        CHECK(id >= -3 && id < 4);
        if (id >= -3 && id < 4) seen[id + 3]++;
    }
    for (int i = 0; i < 7; i++) CHECK(seen[i] > 90, "%d: %d times", i - 3, seen[i]);

    ul_tensor *bytes = new_tensor(UL_U8, SHAPE(4));
    must(ul_randint_(bytes, 0, 256));
    REFUSED(ul_randint_(bytes, 0, 257), UL_EVALUE, "randint_: [0, 257) does not fit u8");
    REFUSED(ul_randint_(ids, 4, 4), UL_EVALUE, "randint_: low = 4 must be below high = 4");
    REFUSED(ul_uniform_(x, 1, 0), UL_EVALUE, "uniform_: low = 1 must not be above high = 0");
    REFUSED(ul_normal_(x, 0, -1), UL_EVALUE,
            "normal_: mean = 0 and std = -1 must be finite, and std not negative");
    REFUSED(ul_uniform_(ids, 0, 1), UL_EDTYPE, "uniform_: x must be f32, bf16 or f64, not i64");
    must(ul_tensor_require_grad(x, 1));
    REFUSED(ul_normal_(x, 0, 1), UL_EGRAD,
            "normal_: this tensor [3, 5] takes part in differentiation and cannot change in "
            "place; use a pure op, or ul.no_grad");
    free_all((ul_tensor *[]){x, base, y, ids, bytes}, 5);
    check_memory();
}

int main(void)
{
    RUN(adamw_steps);
    RUN(sgd_steps);
    RUN(master_copy);
    RUN(norms);
    RUN(versions);
    RUN(optimizer_sentences);
    RUN(failing_step);
    RUN(dropout);
    RUN(fills);
    return check_done();
}
