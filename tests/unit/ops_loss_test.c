/* ops_loss_test.c - cross-entropy, plain and fused with its projection. */
#include "ops_proof.h"

enum { IGNORE = -100 };

static int mean;
static int64_t tile;

static int entropy(ul_tensor **y, ul_tensor *const *x)
{
    return ul_cross_entropy(y, x[0], x[1], IGNORE, mean);
}

static int fused(ul_tensor **y, ul_tensor *const *x)
{
    return ul_linear_cross_entropy(y, NULL, x[0], x[1], x[2], IGNORE, mean, tile);
}

/* Through views of x and w, and with x made by an op, as in a model. */
static int fused_of_views(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *turned = NULL, *doubled = NULL, *w = NULL;
    int rc = ul_transpose(&turned, x[0], 0, 1);
    if (rc == UL_OK) rc = ul_add(&doubled, turned, turned);
    if (rc == UL_OK) rc = ul_transpose(&w, x[1], 0, 1);
    if (rc == UL_OK) rc = ul_linear_cross_entropy(y, NULL, doubled, w, x[2], IGNORE, mean, tile);
    free_all((ul_tensor *[]){turned, doubled, w}, 3);
    return rc;
}

/* x also reaches the result another way, so that its gradient is added to. */
static int fused_and_more(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *h = NULL;
    int rc = ul_neg(&h, x[0]);
    if (rc == UL_OK) rc = ul_linear_cross_entropy(&y[0], NULL, h, x[1], x[2], IGNORE, mean, tile);
    if (rc == UL_OK) rc = ul_sum(&y[1], h, 0, NULL, 0);
    ul_tensor_free(h);
    return rc;
}

/* One row per target, some of them ignored. */
static ul_tensor *targets(void) { return LIST(UL_I64, 2, 0, IGNORE, 4, 1, IGNORE, 2); }
static ul_tensor *no_targets(void) { return LIST(UL_I64, IGNORE, IGNORE, IGNORE); }

static void gradients(void)
{
    for (mean = 0; mean < 2; mean++) {
        check_op((op_case){"cross_entropy", entropy, 1, {RANDOM(7, 5), targets()}});
        check_op((op_case){"cross_entropy of nothing", entropy, 1, {RANDOM(3, 5), no_targets()}});
        for (tile = 0; tile <= 8; tile += 1 + tile)
            check_op((op_case){"fused", fused, 1, {RANDOM(7, 3), RANDOM(5, 3), targets()}});
        tile = 2;
        check_op(
            (op_case){"fused of nothing", fused, 1, {RANDOM(3, 4), RANDOM(5, 4), no_targets()}});
        ul_tensor *grid = new_tensor(UL_I64, SHAPE(2, 3));
        for (int64_t i = 0; i < 6; i++) put(grid, i, i == 3 ? IGNORE : (double)(i % 5));
        check_op(
            (op_case){"fused of views", fused_of_views, 1, {RANDOM(3, 2, 4), RANDOM(4, 5), grid}});
        check_op((op_case){
            "fused and more", fused_and_more, 2, {RANDOM(7, 3), RANDOM(5, 3), targets()}});
        check_op((op_case){"no rows", entropy, 1, {RANDOM(0, 3), new_tensor(UL_I64, SHAPE(0))}});
        check_op((op_case){"fused, no rows",
                           fused,
                           1,
                           {RANDOM(0, 3), RANDOM(5, 3), new_tensor(UL_I64, SHAPE(0))}});
    }
    check_memory();
}

static double expected_loss(const ul_tensor *logits, const ul_tensor *ids)
{
    double loss = 0;
    int64_t cols = ul_tensor_dim(logits, 1);
    for (int64_t row = 0; row < ul_tensor_size(ids); row++) {
        double sum = 0;
        if (get(ids, row) == IGNORE) continue;
        for (int64_t i = 0; i < cols; i++) sum += exp(get(logits, row * cols + i));
        loss += log(sum) - get(logits, row * cols + (int64_t)get(ids, row));
    }
    return loss;
}

static void values(void)
{
    ul_tensor *x = RANDOM(7, 3), *w = RANDOM(5, 3), *ids = targets(), *logits = NULL, *loss = NULL;
    int64_t count = 0;
    must(ul_linear(&logits, x, w, NULL));
    double expected = expected_loss(logits, ids);
    for (mean = 0; mean < 2; mean++) {
        must(ul_cross_entropy(&loss, logits, ids, IGNORE, mean));
        CHECK(ul_tensor_ndim(loss) == 0);
        CHECK(is_near(get(loss, 0), mean ? expected / 5 : expected, 1e-14));
        ul_tensor_free(loss);
        must(ul_linear_cross_entropy(&loss, &count, x, w, ids, IGNORE, mean, 3));
        CHECK(is_near(get(loss, 0), mean ? expected / 5 : expected, 1e-14) && count == 5);
        ul_tensor_free(loss);
    }
    free_all((ul_tensor *[]){x, w, ids, logits}, 4);
    check_memory();
}

/* No label, no loss: 0 and never NaN, even where the logits overflow. */
static void nothing_counts(void)
{
    ul_tensor *x = new_tensor(UL_F32, SHAPE(3, 2)), *w = random_as(UL_F32, SHAPE(5, 2));
    ul_tensor *ids = no_targets(), *loss = NULL, *grad = NULL;
    int64_t count = -1;
    must(ul_fill_(x, INFINITY));
    must(ul_tensor_require_grad(x, 1));
    must(ul_tensor_require_grad(w, 1));
    must(ul_linear_cross_entropy(&loss, &count, x, w, ids, IGNORE, 1, 0));
    CHECK(get(loss, 0) == 0 && count == 0);
    must(ul_backward(loss, NULL, 0));
    ul_tensor *leaves[] = {x, w};
    for (int i = 0; i < 2; i++) {
        must(ul_tensor_grad(&grad, leaves[i]));
        for (int64_t j = 0; j < ul_tensor_size(grad); j++) CHECK(get(grad, j) == 0);
        ul_tensor_free(grad);
    }
    free_all((ul_tensor *[]){x, w, ids, loss}, 4);
    check_memory();
}

/* The incoming gradient is not rounded to bf16, backward may run twice, gradients add up. */
static void retained(void)
{
    ul_tensor *x = random_as(UL_BF16, SHAPE(7, 3)), *w = random_as(UL_BF16, SHAPE(5, 3));
    ul_tensor *ids = targets(), *loss = NULL, *once = NULL, *total = NULL;
    ul_tensor *seed = new_tensor(UL_F32, 0, NULL);
    must(ul_fill_(seed, 1.0 / 3));
    must(ul_tensor_require_grad(w, 1));
    must(ul_linear_cross_entropy(&loss, NULL, x, w, ids, IGNORE, 0, 2));
    must(ul_backward(loss, NULL, 1));
    must(ul_tensor_grad(&once, w));
    must(ul_tensor_set_grad(w, NULL));
    must(ul_backward(loss, seed, 1));
    must(ul_backward(loss, seed, 1));
    must(ul_backward(loss, seed, 0));
    must(ul_tensor_grad(&total, w));
    CHECK(gap_of(total, once) < 1e-6, "off by %g", gap_of(total, once));
    free_all((ul_tensor *[]){x, w, ids, loss, once, total, seed}, 7);
    check_memory();
}

/* The fused loss never holds the logits, nor the weight's gradient twice. */
static void memory(void)
{
    enum { ROWS = 512, VOCABULARY = 4096, WIDTH = 16 };
    ul_tensor *x = random_as(UL_F32, SHAPE(16, WIDTH)), *leaf = NULL, *loss = NULL, *h = NULL;
    ul_tensor *w = new_tensor(UL_F32, SHAPE(VOCABULARY, WIDTH)),
              *seed = new_tensor(UL_F32, 0, NULL);
    ul_tensor *ids = new_tensor(UL_I64, SHAPE(ROWS));
    ul_memory_stats before, after;
    must(ul_fill_(ids, 5));
    must(ul_fill_(w, 0.5));
    must(ul_fill_(seed, 0.5));
    ul_tensor_free(x);
    x = new_tensor(UL_F32, SHAPE(ROWS, WIDTH));
    must(ul_fill_(x, 0.25));
    must(ul_tensor_require_grad(w, 1));
    must(ul_tensor_require_grad(x, 1));
    must(ul_neg(&h, x));
    ul_memory(&before, UL_CPU);
    ul_memory_reset_peak(UL_CPU);
    must(ul_linear_cross_entropy(&loss, NULL, h, w, ids, IGNORE, 1, 32));
    ul_tensor_free(h);
    int64_t scratch = 32 * VOCABULARY * 4, dw = VOCABULARY * WIDTH * 4, dx = ROWS * WIDTH * 4;
    ul_memory(&after, UL_CPU);
    CHECK(after.peak - before.live < scratch + dw + dx + ROWS * 32, "%d bytes",
          (int)(after.peak - before.live));
    ul_memory_reset_peak(UL_CPU);
    must(ul_backward(loss, seed, 0));
    ul_memory(&after, UL_CPU);
    CHECK(after.peak - before.live < dw + 2 * dx + 4096, "%d bytes",
          (int)(after.peak - before.live));
    free_all((ul_tensor *[]){x, leaf, loss, w, seed, ids}, 6);
    check_memory();
}

static void sentences(void)
{
    ul_tensor *x = RANDOM(3, 5), *w = RANDOM(260, 4), *ids = LIST(UL_I64, 1, 2, 300), *loss;
    ul_tensor *y = RANDOM(3, 260), *few = LIST(UL_I64, 1, 2), *z = RANDOM(3, 4);
    REFUSED(ul_cross_entropy(&loss, y, ids, IGNORE, 0), UL_EVALUE,
            "cross_entropy: target 300 at position 3 is outside [0, 260) and is not ignore_index "
            "-100");
    REFUSED(ul_linear_cross_entropy(&loss, NULL, z, w, ids, IGNORE, 0, 0), UL_EVALUE,
            "linear_cross_entropy: target 300 at position 3 is outside [0, 260) and is not "
            "ignore_index -100");
    REFUSED(ul_cross_entropy(&loss, y, few, IGNORE, 0), UL_ESHAPE,
            "cross_entropy: targets [2] do not fit logits [3, 260]");
    REFUSED(ul_cross_entropy(&loss, y, y, IGNORE, 0), UL_EDTYPE,
            "cross_entropy: targets must be i64, not f64");
    REFUSED(ul_cross_entropy(&loss, y, ids, INT64_MAX, 0), UL_EVALUE,
            "cross_entropy: ignore_index 9223372036854775807 is out of range");
    REFUSED(ul_linear_cross_entropy(&loss, NULL, x, w, ids, IGNORE, 0, 0), UL_ESHAPE,
            "linear_cross_entropy: weight [260, 4] does not fit x [3, 5]");
    REFUSED(ul_linear_cross_entropy(&loss, NULL, z, w, ids, IGNORE, 0, -1), UL_EVALUE,
            "linear_cross_entropy: tile = -1 must not be negative");
    free_all((ul_tensor *[]){x, w, ids, y, few, z}, 6);
    check_memory();
}

int main(void)
{
    RUN(values);
    RUN(gradients);
    RUN(nothing_counts);
    RUN(retained);
    RUN(memory);
    RUN(sentences);
    return check_done();
}
