/* ops_reduce_test.c - reductions and ops along one dim. */
#include "ops.h"

static void test_sum(void)
{
    ul_tensor *x = counting(UL_F32, 0, SHAPE(2, 3, 4)), *t, *y;
    must(ul_sum(&y, x, 0, NULL, 0));
    CHECK(is_tensor(y, VALUES(276), 0, NULL));
    ul_tensor_free(y);
    must(ul_sum(&y, x, DIMS(0, -1), 1));
    CHECK(is_tensor(y, VALUES(60, 92, 124), SHAPE(1, 3, 1)));
    ul_tensor_free(y);
    must(ul_transpose(&t, x, 0, 2));
    must(ul_sum(&y, t, DIMS(1), 0)); /* [4, 2] */
    CHECK(is_tensor(y, VALUES(12, 48, 15, 51, 18, 54, 21, 57), SHAPE(4, 2)));
    ul_tensor_free(y);
    must(ul_mean(&y, t, DIMS(2, 0), 0));
    CHECK(is_tensor(y, VALUES(7.5, 11.5, 15.5), SHAPE(3)));
    ul_tensor_free(y);
    CHECK(failed_with(ul_sum(&y, x, DIMS(1, -2), 0), UL_ESHAPE,
                      "sum: dim 2 of x [2, 3, 4] is given twice"));
    CHECK(failed_with(ul_sum(&y, x, DIMS(3), 0), UL_ESHAPE, "sum: x [2, 3, 4] has no such dim"));
    ul_tensor_free(t);
    ul_tensor_free(x);

    x = tensor_of(UL_U8, VALUES(200, 100, 250, 7), SHAPE(2, 2));
    must(ul_sum(&y, x, DIMS(0), 0));
    CHECK(is_tensor(y, VALUES(450, 107), SHAPE(2)) && ul_tensor_dtype(y) == UL_I64);
    ul_tensor_free(y);
    CHECK(failed_with(ul_mean(&y, x, 0, NULL, 0), UL_EDTYPE,
                      "mean: x must be f32, bf16 or f64, not u8"));
    ul_tensor_free(x);
    x = tensor_of(UL_F64, VALUES(5), 0, NULL);
    must(ul_sum(&y, x, 0, NULL, 1));
    CHECK(is_tensor(y, VALUES(5), 0, NULL));
    ul_tensor_free(y);
    ul_tensor_free(x);
}

static void test_nothing(void)
{
    ul_tensor *x = counting(UL_F32, 0, SHAPE(2, 0)), *y, *i;
    must(ul_sum(&y, x, DIMS(1), 0));
    CHECK(is_tensor(y, VALUES(0, 0), SHAPE(2)));
    ul_tensor_free(y);
    must(ul_mean(&y, x, DIMS(1), 1));
    CHECK(is_tensor(y, VALUES(NAN, NAN), SHAPE(2, 1)));
    ul_tensor_free(y);
    must(ul_logsumexp(&y, x, 0, NULL, 0));
    CHECK(is_tensor(y, VALUES(-INFINITY), 0, NULL));
    ul_tensor_free(y);
    CHECK(failed_with(ul_max(&y, NULL, x, 1, 0), UL_ESHAPE,
                      "max: x [2, 0] has nothing there to choose from"));
    must(ul_max(&y, &i, x, 0, 0));
    CHECK(has_shape(y, SHAPE(0)) && has_shape(i, SHAPE(0)));
    ul_tensor_free(y);
    ul_tensor_free(i);
    must(ul_softmax(&y, x, 1));
    ul_tensor_free(y);
    must(ul_softmax(&y, x, 0));
    CHECK(has_shape(y, SHAPE(2, 0)));
    ul_tensor_free(y);
    must(ul_cumsum(&y, x, 0));
    ul_tensor_free(y);
    must(ul_sort(&y, &i, x, 1, 0));
    ul_tensor_free(y);
    ul_tensor_free(i);
    must(ul_topk(&y, NULL, x, 0, 1, 1));
    CHECK(has_shape(y, SHAPE(2, 0)));
    ul_tensor_free(y);
    ul_tensor_free(x);
}

static void test_extremes(void)
{
    ul_tensor *x = tensor_of(UL_F32, VALUES(1, 5, 5, 4, -2, 0), SHAPE(2, 3)), *y, *i, *t;
    must(ul_max(&y, &i, x, 1, 0));
    CHECK(is_tensor(y, VALUES(5, 4), SHAPE(2)) && is_tensor(i, VALUES(1, 0), SHAPE(2)));
    CHECK(ul_tensor_dtype(i) == UL_I64);
    ul_tensor_free(y);
    ul_tensor_free(i);
    must(ul_min(NULL, &i, x, 0, 1));
    CHECK(is_tensor(i, VALUES(0, 1, 1), SHAPE(1, 3)));
    ul_tensor_free(i);
    must(ul_transpose(&t, x, 0, 1));
    must(ul_max(&y, &i, t, UL_ALL, 1)); /* of 1 4 / 5 -2 / 5 0 */
    CHECK(is_tensor(y, VALUES(5), SHAPE(1, 1)) && is_tensor(i, VALUES(2), SHAPE(1, 1)));
    ul_tensor_free(y);
    ul_tensor_free(i);
    must(ul_tensor_set(x, (const int64_t[]){0, 2}, NAN));
    must(ul_min(&y, &i, x, 1, 0));
    CHECK(is_tensor(y, VALUES(NAN, -2), SHAPE(2)) && is_tensor(i, VALUES(2, 1), SHAPE(2)));
    ul_tensor_free(y);
    ul_tensor_free(i);
    ul_tensor_free(t);
    ul_tensor_free(x);
    x = tensor_of(UL_I64, VALUES(3), 0, NULL);
    must(ul_max(&y, &i, x, UL_ALL, 0));
    CHECK(is_tensor(y, VALUES(3), 0, NULL) && is_tensor(i, VALUES(0), 0, NULL));
    ul_tensor_free(y);
    ul_tensor_free(i);
    ul_tensor_free(x);
}

static void test_along(void)
{
    ul_tensor *x = tensor_of(UL_F64, VALUES(0, log(3), 1000, 1000), SHAPE(2, 2)), *y;
    must(ul_softmax(&y, x, -1));
    CHECK(is_tensor(y, VALUES(0.25, 0.75, 0.5, 0.5), SHAPE(2, 2)));
    ul_tensor_free(y);
    must(ul_log_softmax(&y, x, 1));
    CHECK(is_tensor(y, VALUES(log(0.25), log(0.75), log(0.5), log(0.5)), SHAPE(2, 2)));
    ul_tensor_free(y);
    must(ul_softmax(&y, x, 0));
    CHECK(is_tensor(y, VALUES(0, 0, 1, 1), SHAPE(2, 2)));
    ul_tensor_free(y);
    must(ul_logsumexp(&y, x, DIMS(1), 0));
    CHECK(is_tensor(y, VALUES(log(4), 1000 + log(2)), SHAPE(2)));
    ul_tensor_free(y);
    ul_tensor_free(x);
    x = counting(UL_I32, 1, SHAPE(2, 3));
    must(ul_cumsum(&y, x, 1));
    CHECK(is_tensor(y, VALUES(1, 3, 6, 4, 9, 15), SHAPE(2, 3)) && ul_tensor_dtype(y) == UL_I64);
    ul_tensor_free(y);
    must(ul_cumsum(&y, x, 0));
    CHECK(is_tensor(y, VALUES(1, 2, 3, 5, 7, 9), SHAPE(2, 3)));
    ul_tensor_free(y);
    CHECK(failed_with(ul_softmax(&y, x, 0), UL_EDTYPE,
                      "softmax: x must be f32, bf16 or f64, not i32"));
    ul_tensor_free(x);
}

static void test_sort(void)
{
    ul_tensor *x = tensor_of(UL_F32, VALUES(2, 1, 3, 1, 3, 0, NAN, 3), SHAPE(2, 4)), *y, *i;
    must(ul_sort(&y, &i, x, 1, 0));
    CHECK(is_tensor(y, VALUES(1, 1, 2, 3, 0, 3, 3, NAN), SHAPE(2, 4)));
    CHECK(is_tensor(i, VALUES(1, 3, 0, 2, 1, 0, 3, 2), SHAPE(2, 4)));
    ul_tensor_free(y);
    ul_tensor_free(i);
    must(ul_sort(&y, &i, x, 1, 1));
    CHECK(is_tensor(y, VALUES(3, 2, 1, 1, NAN, 3, 3, 0), SHAPE(2, 4)));
    CHECK(is_tensor(i, VALUES(2, 0, 1, 3, 2, 0, 3, 1), SHAPE(2, 4)));
    ul_tensor_free(y);
    ul_tensor_free(i);
    must(ul_sort(NULL, &i, x, 0, 0));
    CHECK(is_tensor(i, VALUES(0, 1, 0, 0, 1, 0, 1, 1), SHAPE(2, 4)));
    ul_tensor_free(i);
    must(ul_topk(&y, &i, x, 2, 1, 1));
    CHECK(is_tensor(y, VALUES(3, 2, NAN, 3), SHAPE(2, 2)));
    CHECK(is_tensor(i, VALUES(2, 0, 2, 0), SHAPE(2, 2)));
    ul_tensor_free(y);
    ul_tensor_free(i);
    must(ul_topk(&y, &i, x, 1, 0, 0));
    CHECK(is_tensor(y, VALUES(2, 0, 3, 1), SHAPE(1, 4)));
    CHECK(is_tensor(i, VALUES(0, 1, 0, 0), SHAPE(1, 4)));
    ul_tensor_free(y);
    ul_tensor_free(i);
    CHECK(failed_with(ul_topk(&y, &i, x, 5, 1, 1), UL_EVALUE,
                      "topk: k is 5, but dim 2 of x [2, 4] has 4 elements"));
    ul_tensor_free(x);
}

static int f_sum_all(ul_tensor **y, ul_tensor *const *x) { return ul_sum(y, x[0], 0, NULL, 0); }
static int f_sum(ul_tensor **y, ul_tensor *const *x) { return ul_sum(y, x[0], DIMS(0, 2), 1); }
static int f_mean(ul_tensor **y, ul_tensor *const *x) { return ul_mean(y, x[0], DIMS(1), 0); }

static int f_mean_of_view(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *t;
    must(ul_transpose(&t, x[0], 0, 2));
    int rc = ul_mean(y, t, DIMS(2, 1), 0);
    ul_tensor_free(t);
    return rc;
}

static int f_logsumexp(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *t;
    must(ul_transpose(&t, x[0], 0, 1));
    int rc = ul_logsumexp(y, t, DIMS(0, 2), 1);
    ul_tensor_free(t);
    return rc;
}

static int f_max(ul_tensor **y, ul_tensor *const *x) { return ul_max(y, NULL, x[0], 1, 0); }
static int f_max_all(ul_tensor **y, ul_tensor *const *x)
{
    return ul_max(y, NULL, x[0], UL_ALL, 1);
}

static int f_min(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *t, *index;
    must(ul_transpose(&t, x[0], 0, 1));
    int rc = ul_min(y, &index, t, 0, 1);
    if (rc == UL_OK) ul_tensor_free(index);
    ul_tensor_free(t);
    return rc;
}

static int f_softmax(ul_tensor **y, ul_tensor *const *x) { return ul_softmax(y, x[0], -1); }
static int f_softmax_0(ul_tensor **y, ul_tensor *const *x) { return ul_softmax(y, x[0], 0); }
static int f_log_softmax(ul_tensor **y, ul_tensor *const *x) { return ul_log_softmax(y, x[0], 1); }
static int f_cumsum(ul_tensor **y, ul_tensor *const *x) { return ul_cumsum(y, x[0], 1); }
static int f_sort(ul_tensor **y, ul_tensor *const *x) { return ul_sort(y, NULL, x[0], 2, 1); }
static int f_sort_1(ul_tensor **y, ul_tensor *const *x) { return ul_sort(y, NULL, x[0], 1, 0); }
static int f_topk(ul_tensor **y, ul_tensor *const *x) { return ul_topk(y, NULL, x[0], 2, 1, 1); }

static void test_gradients(void)
{
    static const struct {
        const char *name;
        ops_function f;
    } all[] = {
        {"sum of all", f_sum_all},
        {"sum", f_sum},
        {"mean", f_mean},
        {"mean of a view", f_mean_of_view},
        {"logsumexp", f_logsumexp},
        {"max", f_max},
        {"max of all", f_max_all},
        {"min", f_min},
        {"softmax", f_softmax},
        {"softmax along 0", f_softmax_0},
        {"log_softmax", f_log_softmax},
        {"cumsum", f_cumsum},
        {"sort", f_sort},
        {"sort along 1", f_sort_1},
        {"topk", f_topk},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_GRADIENT(all[i].f, random_tensor(-2, 2, SHAPE(3, 4, 5)));
        CHECK_GRADIENT(all[i].f, random_tensor(-2, 2, SHAPE(1, 2, 1)));
        CHECK(!check_bad, "%s", all[i].name);
    }
}

/* The scale of a mean's gradient is not rounded to bf16: 1/3 comes back to within one rounding. */
static void test_bf16_mean(void)
{
    ul_tensor *x = counting(UL_BF16, 1, SHAPE(3)), *y, *seed, *grad;
    must(ul_tensor_require_grad(x, 1));
    must(ul_mean(&y, x, 0, NULL, 0));
    CHECK(is_tensor(y, VALUES(2), 0, NULL));
    seed = tensor_of(UL_BF16, VALUES(3), 0, NULL);
    must(ul_backward(y, seed, 0));
    must(ul_tensor_grad(&grad, x));
    CHECK(is_tensor(grad, VALUES(1, 1, 1), SHAPE(3)));
    ul_tensor_free(grad);
    ul_tensor_free(seed);
    ul_tensor_free(y);
    ul_tensor_free(x);
}

/* An index is no history: neither kept alive by the tape nor on it. */
static void test_index_is_constant(void)
{
    ul_tensor *x = counting(UL_F32, 1, SHAPE(3, 4)), *index;
    must(ul_tensor_require_grad(x, 1));
    for (int i = 0; i < 3; i++) {
        must(ul_max(NULL, &index, x, 1, 0));
        CHECK(!ul_tensor_requires_grad(index));
        ul_tensor_free(index);
    }
    must(ul_topk(NULL, &index, x, 2, 0, 1));
    ul_tensor_free(index);
    ul_tensor_free(x);
}

static int f_logsumexp_0(ul_tensor **y, ul_tensor *const *x)
{
    return ul_logsumexp(y, x[0], DIMS(0), 0);
}

static void test_allocation_failures(void)
{
    check_allocations("sum", f_sum, random_tensor(-1, 1, SHAPE(3, 2, 2)));
    check_allocations("mean", f_mean, random_tensor(-1, 1, SHAPE(3, 2, 2)));
    check_allocations("logsumexp", f_logsumexp_0, random_tensor(-1, 1, SHAPE(3, 2)));
    check_allocations("max", f_max, random_tensor(-1, 1, SHAPE(3, 2)));
    check_allocations("softmax", f_softmax_0, random_tensor(-1, 1, SHAPE(3, 2)));
    check_allocations("cumsum", f_cumsum, random_tensor(-1, 1, SHAPE(3, 2)));
    check_allocations("sort", f_sort_1, random_tensor(-1, 1, SHAPE(3, 2, 2)));
    check_allocations("topk", f_topk, random_tensor(-1, 1, SHAPE(3, 2)));
}

static void test_meta(void)
{
    int64_t many = (int64_t)1 << 33;
    ul_tensor *x = on_meta(UL_F32, SHAPE(4, many)), *y, *i, *s;
    must(ul_tensor_require_grad(x, 1));
    must(ul_softmax(&y, x, 0));
    must(ul_topk(&s, &i, y, 3, 1, 1));
    CHECK(has_shape(s, SHAPE(4, 3)) && has_shape(i, SHAPE(4, 3)) && ul_tensor_dtype(i) == UL_I64);
    must(ul_backward(s, s, 0));
    ul_tensor_free(i);
    ul_tensor_free(s);
    ul_tensor_free(y);
    must(ul_mean(&y, x, DIMS(1), 0));
    CHECK(has_shape(y, SHAPE(4)));
    must(ul_max(&s, NULL, y, UL_ALL, 0));
    must(ul_backward(s, NULL, 0));
    ul_tensor *grad;
    must(ul_tensor_grad(&grad, x));
    CHECK(grad && has_shape(grad, SHAPE(4, many)));
    ul_tensor_free(grad);
    ul_tensor_free(s);
    ul_tensor_free(y);
    ul_tensor_free(x);
}

int main(void)
{
    RUN_OP(test_sum);
    RUN_OP(test_nothing);
    RUN_OP(test_extremes);
    RUN_OP(test_along);
    RUN_OP(test_sort);
    RUN_OP(test_gradients);
    RUN_OP(test_bf16_mean);
    RUN_OP(test_index_is_constant);
    RUN_OP(test_allocation_failures);
    RUN_OP(test_meta);
    return check_done();
}
