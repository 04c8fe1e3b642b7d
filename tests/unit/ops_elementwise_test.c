/* ops_elementwise_test.c - arithmetic, comparisons, functions of one tensor. */
#include "ops.h"

typedef int (*binary_op)(ul_tensor **y, ul_tensor *a, ul_tensor *b);
typedef int (*unary_op)(ul_tensor **y, ul_tensor *x);

static double div_of(double a, double b) { return a / b; }
static double swiglu_of(double a, double b) { return a / (1 + exp(-a)) * b; }
static double add_of(double a, double b) { return a + b; }
static double sub_of(double a, double b) { return a - b; }
static double mul_of(double a, double b) { return a * b; }
static double eq_of(double a, double b) { return a == b; }
static double ne_of(double a, double b) { return a != b; }
static double lt_of(double a, double b) { return a < b; }
static double le_of(double a, double b) { return a <= b; }
static double gt_of(double a, double b) { return a > b; }
static double ge_of(double a, double b) { return a >= b; }

static const struct {
    const char *name;
    binary_op op;
    double (*meaning)(double a, double b);
    int integers, differentiable;
} binaries[] = {
    {"add", ul_add, add_of, 1, 1},       {"sub", ul_sub, sub_of, 1, 1},
    {"mul", ul_mul, mul_of, 1, 1},       {"div", ul_div, div_of, 0, 1},
    {"pow", ul_pow, pow, 0, 1},          {"maximum", ul_maximum, fmax, 1, 1},
    {"minimum", ul_minimum, fmin, 1, 1}, {"swiglu", ul_swiglu, swiglu_of, 0, 1},
    {"eq", ul_eq, eq_of, 1, 0},          {"ne", ul_ne, ne_of, 1, 0},
    {"lt", ul_lt, lt_of, 1, 0},          {"le", ul_le, le_of, 1, 0},
    {"gt", ul_gt, gt_of, 1, 0},          {"ge", ul_ge, ge_of, 1, 0},
};
enum { N_BINARIES = sizeof binaries / sizeof *binaries };

static double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }
static double silu_of(double x) { return x * sigmoid_of(x); }
static double rsqrt_of(double x) { return 1 / sqrt(x); }
static double relu_of(double x) { return x > 0 ? x : 0; }
static double neg_of(double x) { return -x; }
static double gelu_of(double x) { return x * 0.5 * (1 + erf(x / sqrt(2))); }

static double gelu_tanh_of(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static const struct {
    const char *name;
    unary_op op;
    double (*meaning)(double x);
    int integers;
} unaries[] = {
    {"neg", ul_neg, neg_of, 1},
    {"abs", ul_abs, fabs, 1},
    {"exp", ul_exp, exp, 0},
    {"log", ul_log, log, 0},
    {"sqrt", ul_sqrt, sqrt, 0},
    {"rsqrt", ul_rsqrt, rsqrt_of, 0},
    {"sin", ul_sin, sin, 0},
    {"cos", ul_cos, cos, 0},
    {"tanh", ul_tanh, tanh, 0},
    {"sigmoid", ul_sigmoid, sigmoid_of, 0},
    {"silu", ul_silu, silu_of, 0},
    {"gelu", ul_gelu, gelu_of, 0},
    {"gelu_tanh", ul_gelu_tanh, gelu_tanh_of, 0},
    {"relu", ul_relu, relu_of, 0},
};
enum { N_UNARIES = sizeof unaries / sizeof *unaries };

/* Every op, in every dtype it has, on [3, 1, 5] and a transposed [5, 4] -> [4, 5]. */
static void test_binary_values(void)
{
    double expected[60], av[15], bv[20];
    for (int op = 0; op < N_BINARIES; op++)
        for (int dtype = 0; dtype < UL_DTYPES; dtype++) {
            if (!ul_dtype_is_float(dtype) && !binaries[op].integers) continue;
            for (int i = 0; i < 15; i++) av[i] = 3 + i % 4;
            for (int i = 0; i < 20; i++) bv[i] = 1 + i % 3;
            ul_tensor *a = tensor_of(dtype, av, SHAPE(3, 1, 5)), *t, *y;
            ul_tensor *b = tensor_of(dtype, bv, SHAPE(5, 4));
            must(ul_transpose(&t, b, 0, 1));
            for (int i = 0; i < 60; i++)
                expected[i] =
                    binaries[op].meaning(av[i / 20 * 5 + i % 5], bv[i % 5 * 4 + i / 5 % 4]);
            must(binaries[op].op(&y, a, t));
            CHECK(ul_tensor_dtype(y) == (binaries[op].differentiable ? (ul_dtype)dtype : UL_U8));
            double got[60];
            CHECK(has_shape(y, SHAPE(3, 4, 5)));
            read_values(got, y);
            for (int i = 0; i < 60; i++)
                CHECK(is_near(got[i], expected[i], dtype == UL_BF16 ? 4e-3 : 1e-6),
                      "%s %s: %g, not %g", binaries[op].name, ul_dtype_name(dtype), got[i],
                      expected[i]);
            ul_tensor_free(y);
            ul_tensor_free(t);
            ul_tensor_free(b);
            ul_tensor_free(a);
        }
}

static void test_unary_values(void)
{
    double values[21], got[21];
    for (int op = 0; op < N_UNARIES; op++)
        for (int dtype = 0; dtype < UL_DTYPES; dtype++) {
            if (!ul_dtype_is_float(dtype) && !unaries[op].integers) continue;
            int positive =
                unaries[op].op == ul_log || unaries[op].op == ul_sqrt || unaries[op].op == ul_rsqrt;
            for (int i = 0; i < 21; i++)
                values[i] = ul_dtype_is_float(dtype)
                                ? (i - 10 * !positive) * 0.375 + 0.125 * positive
                                : i % 2;
            if (dtype == UL_U8 && unaries[op].op == ul_neg) continue;
            ul_tensor *x = tensor_of(dtype, values, SHAPE(3, 7)), *t, *y;
            must(ul_transpose(&t, x, 0, 1));
            must(unaries[op].op(&y, t));
            CHECK(ul_tensor_is_contiguous(y) && has_shape(y, SHAPE(7, 3)));
            read_values(got, y);
            for (int i = 0; i < 21; i++) {
                double expected = unaries[op].meaning(values[i % 3 * 7 + i / 3]);
                CHECK(is_near(got[i], expected, dtype == UL_BF16 ? 4e-3 : 2e-6),
                      "%s %s: %.9g, not %.9g", unaries[op].name, ul_dtype_name(dtype), got[i],
                      expected);
            }
            ul_tensor_free(y);
            ul_tensor_free(t);
            ul_tensor_free(x);
        }
}

static int current; /* the op that f_binary and f_unary do */

/* b stands transposed, so that strides matter. */
static int f_binary(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *t;
    must(ul_transpose(&t, x[1], 0, 1));
    int rc = binaries[current].op(y, x[0], t);
    ul_tensor_free(t);
    return rc;
}

static int f_with_itself(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *twice;
    must(ul_add(&twice, x[0], x[0]));
    int rc = binaries[current].op(y, twice, twice);
    ul_tensor_free(twice);
    return rc;
}

/* Only one of the two needs a gradient. */
static ul_tensor *constant;
static int f_left(ul_tensor **y, ul_tensor *const *x)
{
    return binaries[current].op(y, x[0], constant);
}
static int f_right(ul_tensor **y, ul_tensor *const *x)
{
    return binaries[current].op(y, constant, x[0]);
}

static void test_binary_gradients(void)
{
    for (current = 0; current < N_BINARIES; current++) {
        if (!binaries[current].differentiable) continue;
        CHECK_GRADIENT(f_binary, random_tensor(0.5, 2, SHAPE(3, 4)),
                       random_tensor(0.5, 2, SHAPE(4, 3)));
        CHECK_GRADIENT(f_binary, random_tensor(0.5, 2, SHAPE(2, 1, 4)),
                       random_tensor(0.5, 2, SHAPE(1, 3)));
        CHECK_GRADIENT(f_binary, random_tensor(0.5, 2, 0, NULL),
                       random_tensor(0.5, 2, SHAPE(2, 3)));
        if (strcmp(binaries[current].name, "maximum") && strcmp(binaries[current].name, "minimum"))
            CHECK_GRADIENT(f_with_itself, random_tensor(0.5, 1, SHAPE(7)));
        constant = random_tensor(0.5, 2, SHAPE(3, 1));
        CHECK_GRADIENT(f_left, random_tensor(0.5, 2, SHAPE(3, 4)));
        CHECK_GRADIENT(f_right, random_tensor(0.5, 2, SHAPE(3, 4)));
        CHECK_GRADIENT(f_left, random_tensor(0.5, 2, SHAPE(4)));
        CHECK_GRADIENT(f_right, random_tensor(0.5, 2, SHAPE(4)));
        ul_tensor_free(constant);
        CHECK(!check_bad, "%s", binaries[current].name);
    }
}

static int f_unary(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *t;
    must(ul_transpose(&t, x[0], 0, 1));
    int rc = unaries[current].op(y, t);
    ul_tensor_free(t);
    return rc;
}

static int f_unary_of_op(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *twice, *f;
    must(ul_add(&twice, x[0], x[0]));
    must(unaries[current].op(&f, twice));
    int rc = ul_mul(y, f, twice); /* two gradients meet in `twice` */
    ul_tensor_free(f);
    ul_tensor_free(twice);
    return rc;
}

static int f_clamp(ul_tensor **y, ul_tensor *const *x) { return ul_clamp(y, x[0], -0.5, INFINITY); }

static int f_where(ul_tensor **y, ul_tensor *const *x) { return ul_where(y, constant, x[0], x[1]); }

static void test_unary_gradients(void)
{
    for (current = 0; current < N_UNARIES; current++) {
        CHECK_GRADIENT(f_unary, random_tensor(0.25, 2, SHAPE(3, 5)));
        CHECK_GRADIENT(f_unary_of_op, random_tensor(0.25, 1, SHAPE(4)));
        int positive = unaries[current].op == ul_log || unaries[current].op == ul_sqrt ||
                       unaries[current].op == ul_rsqrt;
        if (!positive) CHECK_GRADIENT(f_unary, random_tensor(-2, -0.25, SHAPE(3, 5)));
        CHECK(!check_bad, "%s", unaries[current].name);
    }
    CHECK_GRADIENT(f_clamp, random_tensor(-1, 1, SHAPE(12)));
    constant = tensor_of(UL_U8, VALUES(0, 1, 1), SHAPE(3, 1));
    CHECK_GRADIENT(f_where, random_tensor(-1, 1, SHAPE(4)), random_tensor(-1, 1, SHAPE(2, 3, 4)));
    CHECK_GRADIENT(f_where, random_tensor(-1, 1, SHAPE(3, 2)), random_tensor(-1, 1, SHAPE(3, 2)));
    ul_tensor_free(constant);
}

/* Ties share the gradient, so that max(x, x) has gradient 1. */
static void test_ties(void)
{
    ul_tensor *x = counting(UL_F32, 1, SHAPE(3)), *y, *s, *grad;
    must(ul_tensor_require_grad(x, 1));
    must(ul_maximum(&y, x, x));
    must(ul_sum(&s, y, 0, NULL, 0));
    must(ul_backward(s, NULL, 0));
    must(ul_tensor_grad(&grad, x));
    CHECK(is_tensor(grad, VALUES(1, 1, 1), SHAPE(3)));
    ul_tensor_free(grad);
    ul_tensor_free(s);
    ul_tensor_free(y);
    ul_tensor_free(x);
}

static void test_clamp_where(void)
{
    ul_tensor *x = tensor_of(UL_F32, VALUES(-2, NAN, 0.5, 3), SHAPE(4)), *y, *cond;
    must(ul_clamp(&y, x, -1, 2));
    CHECK(is_tensor(y, VALUES(-1, NAN, 0.5, 2), SHAPE(4)));
    ul_tensor_free(y);
    CHECK(failed_with(ul_clamp(&y, x, 2, 1), UL_EVALUE, "clamp: low 2 is above high 1"));
    ul_tensor *i = counting(UL_I64, -2, SHAPE(5));
    must(ul_clamp(&y, i, -INFINITY, 1));
    CHECK(is_tensor(y, VALUES(-2, -1, 0, 1, 1), SHAPE(5)));
    ul_tensor_free(y);
    ul_tensor *two;
    must(ul_scalar_like(&two, x, 2));
    must(ul_lt(&cond, x, two));
    CHECK(is_tensor(cond, VALUES(1, 0, 1, 0), SHAPE(4)));
    must(ul_where(&y, cond, x, two));
    CHECK(is_tensor(y, VALUES(-2, 2, 0.5, 2), SHAPE(4)));
    ul_tensor_free(y);
    CHECK(failed_with(ul_where(&y, x, x, two), UL_EDTYPE,
                      "where: the condition must be u8, not f32"));
    CHECK(ul_where(&y, cond, x, i) == UL_EDTYPE);
    ul_tensor_free(two);
    CHECK(failed_with(ul_scalar_like(&two, i, 0.5), UL_EVALUE,
                      "number: 0.5 is not a number that i64 can hold; convert the tensor with "
                      ":to()"));
    ul_tensor_free(i);
    ul_tensor_free(cond);
    ul_tensor_free(x);
}

static void test_in_place(void)
{
    ul_tensor *x = counting(UL_F32, 0, SHAPE(2, 3)), *b = counting(UL_F32, 1, SHAPE(3)), *t, *row;
    must(ul_add_(x, b));
    CHECK(is_tensor(x, VALUES(1, 3, 5, 4, 6, 8), SHAPE(2, 3)));
    must(ul_select(&row, x, 0, 0));
    must(ul_sub_(x, row)); /* b is a part of a */
    CHECK(is_tensor(x, VALUES(0, 0, 0, 3, 3, 3), SHAPE(2, 3)));
    must(ul_transpose(&t, x, 0, 1));
    ul_tensor *pair = counting(UL_F32, 1, SHAPE(2));
    must(ul_add_(t, pair));
    CHECK(is_tensor(x, VALUES(1, 1, 1, 5, 5, 5), SHAPE(2, 3)));
    must(ul_mul_(x, x));
    must(ul_div_(x, b));
    CHECK(is_tensor(x, VALUES(1, 0.5, 1 / 3.0, 25, 12.5, 25 / 3.0), SHAPE(2, 3)));
    CHECK(failed_with(ul_add_(b, x), UL_ESHAPE, "add_: [2, 3] does not fit into [3]"));
    ul_tensor *i = counting(UL_I64, 0, SHAPE(3));
    CHECK(failed_with(ul_div_(i, i), UL_EDTYPE, "div_: a must be f32, bf16 or f64, not i64"));
    CHECK(ul_add_(b, i) == UL_EDTYPE);
    ul_tensor_free(i);
    ul_tensor_free(pair);
    ul_tensor_free(t);
    ul_tensor_free(row);
    ul_tensor_free(b);
    ul_tensor_free(x);
}

static void test_errors(void)
{
    ul_tensor *f = counting(UL_F32, 0, SHAPE(2, 3)), *i = counting(UL_I64, 0, SHAPE(2, 3)), *y;
    ul_tensor *other = counting(UL_F32, 0, SHAPE(2)), *meta = on_meta(UL_F32, SHAPE(2, 3));
    CHECK(failed_with(ul_exp(&y, i), UL_EDTYPE, "exp: x must be f32, bf16 or f64, not i64"));
    CHECK(failed_with(ul_pow(&y, i, i), UL_EDTYPE, "pow: a must be f32, bf16 or f64, not i64"));
    CHECK(failed_with(ul_add(&y, f, other), UL_ESHAPE,
                      "add: shapes [2, 3] and [2] do not broadcast together"));
    CHECK(ul_add(&y, f, i) == UL_EDTYPE && strstr(ul_last_error(), "convert one with :to()"));
    CHECK(ul_mul(&y, f, meta) == UL_EDEVICE && ul_eq(&y, meta, f) == UL_EDEVICE);
    ul_tensor_free(f);
    ul_tensor_free(i);
    ul_tensor_free(other);
    ul_tensor_free(meta);
}

static void test_meta(void)
{
    int64_t many = (int64_t)1 << 33;
    ul_tensor *a = on_meta(UL_BF16, SHAPE(many, 1)), *b = on_meta(UL_BF16, SHAPE(8)), *y, *z, *c;
    must(ul_tensor_require_grad(a, 1));
    must(ul_tensor_require_grad(b, 1));
    must(ul_swiglu(&y, a, b));
    CHECK(has_shape(y, SHAPE(many, 8)) && ul_tensor_dtype(y) == UL_BF16);
    must(ul_gelu(&z, y));
    must(ul_gt(&c, z, y));
    CHECK(has_shape(c, SHAPE(many, 8)) && ul_tensor_device(c) == UL_META);
    must(ul_backward(z, y, 0));
    ul_tensor *grad;
    must(ul_tensor_grad(&grad, b));
    CHECK(grad && has_shape(grad, SHAPE(8)) && ul_tensor_dtype(grad) == UL_F32);
    ul_tensor_free(grad);
    ul_tensor_free(c);
    ul_tensor_free(z);
    ul_tensor_free(y);
    ul_tensor_free(b);
    ul_tensor_free(a);
}

static ul_tensor *row;
static int f_div(ul_tensor **y, ul_tensor *const *x) { return ul_div(y, x[0], row); }
static int f_square(ul_tensor **y, ul_tensor *const *x) { return ul_mul(y, x[0], x[0]); }
static int f_sub(ul_tensor **y, ul_tensor *const *x) { return ul_sub(y, row, x[0]); }
static int f_exp(ul_tensor **y, ul_tensor *const *x) { return ul_exp(y, x[0]); }

static void test_allocation_failures(void)
{
    row = random_tensor(1, 2, SHAPE(4));
    check_allocations("div", f_div, random_tensor(1, 2, SHAPE(3, 1)));
    check_allocations("mul", f_square, random_tensor(1, 2, SHAPE(3)));
    check_allocations("sub", f_sub, random_tensor(1, 2, SHAPE(3, 4)));
    check_allocations("exp", f_exp, random_tensor(1, 2, SHAPE(3)));
    ul_tensor_free(row);
}

int main(void)
{
    RUN_OP(test_binary_values);
    RUN_OP(test_unary_values);
    RUN_OP(test_binary_gradients);
    RUN_OP(test_unary_gradients);
    RUN_OP(test_ties);
    RUN_OP(test_clamp_where);
    RUN_OP(test_in_place);
    RUN_OP(test_errors);
    RUN_OP(test_meta);
    RUN_OP(test_allocation_failures);
    return check_done();
}
