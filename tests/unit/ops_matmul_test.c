/* ops_matmul_test.c - matmul and linear: values, gradients, dtypes, sentences, failing memory. */
#include "ops_proof.h"

static int plain(ul_tensor **y, ul_tensor *const *x) { return ul_matmul(y, x[0], x[1]); }

/* a^T b^T, both as views. */
static int both_transposed(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *a = NULL, *b = NULL;
    int rc = ul_transpose(&a, x[0], -1, -2);
    if (rc == UL_OK) rc = ul_transpose(&b, x[1], -1, -2);
    if (rc == UL_OK) rc = ul_matmul(y, a, b);
    ul_tensor_free(a);
    ul_tensor_free(b);
    return rc;
}

/* Views that need copies: every second column of a, and b with heads in the middle. */
static int strided(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *a = NULL, *b = NULL;
    int rc = ul_slice(&a, x[0], -1, 1, 3, 2);
    if (rc == UL_OK) rc = ul_permute(&b, x[1], 3, (int[]){1, 2, 0});
    if (rc == UL_OK) rc = ul_matmul(y, a, b);
    ul_tensor_free(a);
    ul_tensor_free(b);
    return rc;
}

/* q k^T of [B, T, H, D] views, as attention without a kernel would. */
static int heads(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *a = NULL, *b = NULL;
    int rc = ul_permute(&a, x[0], 4, (int[]){0, 2, 1, 3});
    if (rc == UL_OK) rc = ul_permute(&b, x[1], 4, (int[]){0, 2, 3, 1});
    if (rc == UL_OK) rc = ul_matmul(y, a, b);
    ul_tensor_free(a);
    ul_tensor_free(b);
    return rc;
}

static int same_twice(ul_tensor **y, ul_tensor *const *x) { return ul_matmul(y, x[0], x[0]); }
static int biased(ul_tensor **y, ul_tensor *const *x) { return ul_linear(y, x[0], x[1], x[2]); }
static int unbiased(ul_tensor **y, ul_tensor *const *x) { return ul_linear(y, x[0], x[1], NULL); }

static int linear_of_view(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *a = NULL, *w = NULL;
    int rc = ul_transpose(&a, x[0], 0, 1);
    if (rc == UL_OK) rc = ul_transpose(&w, x[1], 0, 1);
    if (rc == UL_OK) rc = ul_linear(y, a, w, x[2]);
    ul_tensor_free(a);
    ul_tensor_free(w);
    return rc;
}

static void gradients(void)
{
    check_op((op_case){"matmul", plain, 1, {RANDOM(3, 4), RANDOM(4, 5)}});
    check_op((op_case){"matmul vectors", plain, 1, {RANDOM(4), RANDOM(4)}});
    check_op((op_case){"matmul vector, matrix", plain, 1, {RANDOM(4), RANDOM(4, 3)}});
    check_op((op_case){"matmul vector, batch", plain, 1, {RANDOM(4), RANDOM(2, 4, 3)}});
    check_op((op_case){"matmul batch, vector", plain, 1, {RANDOM(2, 3, 4), RANDOM(4)}});
    check_op((op_case){"matmul batch, matrix", plain, 1, {RANDOM(2, 3, 4), RANDOM(4, 2)}});
    check_op((op_case){"matmul matrix, batch", plain, 1, {RANDOM(3, 4), RANDOM(2, 4, 2)}});
    check_op((op_case){"matmul broadcast both", plain, 1, {RANDOM(2, 1, 3, 4), RANDOM(3, 4, 2)}});
    check_op((op_case){"matmul broadcast outer", plain, 1, {RANDOM(2, 3, 2, 4), RANDOM(3, 4, 2)}});
    check_op(
        (op_case){"matmul broadcast inner", plain, 1, {RANDOM(2, 3, 2, 4), RANDOM(2, 1, 4, 2)}});
    check_op((op_case){"matmul rows of one", plain, 1, {RANDOM(5, 1, 4), RANDOM(4, 3)}});
    check_op((op_case){"matmul transposed", both_transposed, 1, {RANDOM(4, 3), RANDOM(5, 4)}});
    check_op(
        (op_case){"matmul transposed batch", both_transposed, 1, {RANDOM(2, 4, 3), RANDOM(5, 4)}});
    check_op((op_case){"matmul strided", strided, 1, {RANDOM(2, 7), RANDOM(2, 4, 3)}});
    check_op((op_case){"matmul heads", heads, 1, {RANDOM(2, 3, 2, 4), RANDOM(2, 5, 2, 4)}});
    check_op((op_case){"matmul of itself", same_twice, 1, {RANDOM(3, 3)}});
    check_op((op_case){"linear", biased, 1, {RANDOM(2, 3, 4), RANDOM(5, 4), RANDOM(5)}});
    check_op((op_case){"linear without bias", unbiased, 1, {RANDOM(3, 4), RANDOM(5, 4)}});
    check_op((op_case){"linear of a vector", biased, 1, {RANDOM(4), RANDOM(5, 4), RANDOM(5)}});
    check_op((op_case){
        "linear of views", linear_of_view, 1, {RANDOM(3, 2, 4), RANDOM(4, 5), RANDOM(5)}});
    check_memory();
}

/* Sums of products, element by element. */
static void values(void)
{
    ul_tensor *a = RANDOM(2, 1, 3, 4), *b = RANDOM(3, 4, 2), *y = NULL;
    must(ul_matmul(&y, a, b));
    CHECK(has_shape(y, SHAPE(2, 3, 3, 2)));
    for (int64_t i = 0; i < 36; i++) {
        int64_t col = i % 2, row = i / 2 % 3, inner = i / 6 % 3, outer = i / 18;
        double sum = 0;
        for (int64_t k = 0; k < 4; k++)
            sum += get(a, (outer * 3 + row) * 4 + k) * get(b, (inner * 4 + k) * 2 + col);
        CHECK(fabs(sum - get(y, i)) < 1e-14, "element %d", (int)i);
    }
    free_all((ul_tensor *[]){a, b, y}, 3);

    ul_tensor *x = RANDOM(3, 4), *w = RANDOM(5, 4), *bias = RANDOM(5);
    must(ul_linear(&y, x, w, bias));
    for (int64_t i = 0; i < 15; i++) {
        double sum = get(bias, i % 5);
        for (int64_t k = 0; k < 4; k++) sum += get(x, i / 5 * 4 + k) * get(w, i % 5 * 4 + k);
        CHECK(fabs(sum - get(y, i)) < 1e-14, "element %d", (int)i);
    }
    free_all((ul_tensor *[]){x, w, bias, y}, 4);
    check_memory();
}

/* A product over nothing is zero, and so is the gradient from an empty batch. */
static void empty(void)
{
    ul_tensor *a = RANDOM(3, 0), *b = RANDOM(0, 2), *y = NULL;
    must(ul_matmul(&y, a, b));
    CHECK(has_shape(y, SHAPE(3, 2)));
    for (int64_t i = 0; i < 6; i++) CHECK(get(y, i) == 0);
    free_all((ul_tensor *[]){a, b, y}, 3);
    check_op((op_case){"matmul inner 0", plain, 1, {RANDOM(3, 0), RANDOM(0, 2)}});
    check_op((op_case){"matmul no rows", plain, 1, {RANDOM(0, 3), RANDOM(3, 2)}});
    check_op((op_case){"matmul empty batch", plain, 1, {RANDOM(0, 2, 3), RANDOM(3, 2)}});
    check_op(
        (op_case){"matmul broadcast to none", plain, 1, {RANDOM(0, 1, 2, 3), RANDOM(1, 2, 3, 2)}});
    check_op((op_case){"linear no rows", biased, 1, {RANDOM(0, 3), RANDOM(2, 3), RANDOM(2)}});
    check_op((op_case){"linear no columns", biased, 1, {RANDOM(4, 0), RANDOM(2, 0), RANDOM(2)}});
    check_memory();
}

/* Gradients of several micro-batches add up in f32 beside bf16 weights. */
static void accumulation(void)
{
    ul_tensor *w = random_as(UL_BF16, SHAPE(2, 2)), *grad = NULL;
    must(ul_tensor_require_grad(w, 1));
    for (int step = 0; step < 300; step++) {
        ul_tensor *x = new_tensor(UL_BF16, SHAPE(1, 2)), *y = NULL, *loss = NULL;
        put(x, 0, 1);
        put(x, 1, 0.0078125);
        must(ul_linear(&y, x, w, NULL));
        must(ul_sum(&loss, y, 0, NULL, 0));
        must(ul_backward(loss, NULL, 0));
        free_all((ul_tensor *[]){x, y, loss}, 3);
    }
    must(ul_tensor_grad(&grad, w));
    CHECK(ul_tensor_dtype(grad) == UL_F32);
    CHECK(get(grad, 0) == 300 && get(grad, 1) == 2.34375, "%g %g", get(grad, 0), get(grad, 1));
    free_all((ul_tensor *[]){w, grad}, 2);
    check_memory();
}

static void sentences(void)
{
    ul_tensor *a = RANDOM(2, 3), *b = RANDOM(2, 4), *c = RANDOM(4, 3), *s = RANDOM(3, 2, 4),
              *t = RANDOM(2, 4, 5), *y;
    ul_tensor *f = random_as(UL_F32, SHAPE(3, 2)), *scalar = new_tensor(UL_F64, 0, NULL);
    ul_tensor *i = new_tensor(UL_I64, SHAPE(3, 3));
    REFUSED(ul_matmul(&y, a, c), UL_ESHAPE,
            "matmul: inner dimensions differ: a [2, 3], b [4, 3]; did you mean b:t()?");
    REFUSED(ul_matmul(&y, a, b), UL_ESHAPE,
            "matmul: inner dimensions differ: a [2, 3], b [2, 4]; did you mean a:t()?");
    REFUSED(ul_matmul(&y, c, b), UL_ESHAPE, "matmul: inner dimensions differ: a [4, 3], b [2, 4]");
    REFUSED(ul_matmul(&y, s, t), UL_ESHAPE,
            "matmul: batch dimensions differ: a [3, 2, 4], b [2, 4, 5]");
    REFUSED(ul_matmul(&y, a, scalar), UL_ESHAPE,
            "matmul: a [2, 3] and b [] must have at least one dimension");
    REFUSED(ul_matmul(&y, a, f), UL_EDTYPE,
            "matmul: dtypes differ (a is f64, b is f32); convert one with :to()");
    REFUSED(ul_matmul(&y, i, i), UL_EDTYPE, "matmul: a must be f32, bf16 or f64, not i64");
    REFUSED(ul_linear(&y, a, b, NULL), UL_ESHAPE, "linear: weight [2, 4] does not fit x [2, 3]");
    REFUSED(ul_linear(&y, a, c, b), UL_ESHAPE, "linear: bias [2, 4] does not fit weight [4, 3]");
    free_all((ul_tensor *[]){a, b, c, s, t, f, scalar, i}, 8);
    check_memory();
}

int main(void)
{
    RUN(values);
    RUN(gradients);
    RUN(empty);
    RUN(accumulation);
    RUN(sentences);
    return check_done();
}
