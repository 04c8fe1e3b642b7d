/* kernels_elementwise_test.c - elementwise kernels against doubles: every ISA level and dtype, odd
 * sizes, broadcast, strided, transposed and empty loops, gradients by central differences.
 */
#include <stddef.h>

#include "check.h"
#include "values.h"

typedef int forward_1(ul_stream *, void *, const void *, const ul_loop *);
typedef int forward_2(ul_stream *, void *, const void *, const void *, const ul_loop *);
typedef int backward_1(ul_stream *, ul_grad, const void *, const void *, const ul_loop *);
typedef int backward_2(ul_stream *, ul_grad, ul_grad, const void *, const void *, const void *,
                       const ul_loop *);

/* Where a kernel is in the table: kernels are looked up there for each level and dtype. */
#define AT(name)                offsetof(ul_kernels, name)
#define KERNEL(type, table, at) (*(type *const *)((const char *)(table) + (at)))

enum { N_LOOPS = 15, N_TWO = 7 };
static ul_loop loops[N_LOOPS];

static void make_loops(void)
{
    static const int64_t sizes[] = {0, 1, 7, 64, 1025, 40001};
    static const int64_t two[N_TWO][3][2] = {
        {{65, 1}, {65, 1}, {0, 1}},   /* b is a row */
        {{65, 1}, {65, 1}, {1, 0}},   /* b is a column */
        {{65, 1}, {1, 37}, {65, 1}},  /* a is transposed */
        {{1, 37}, {65, 1}, {0, 0}},   /* y is transposed, b one element */
        {{200, 3}, {65, 1}, {65, 1}}, /* y has holes */
        {{65, 1}, {130, 2}, {0, 1}},  /* a has holes */
        {{3, 1}, {3, 1}, {1, 0}},     /* short rows */
    };
    for (int i = 0; i < 6; i++) loops[i] = loop_1(sizes[i], 1, 1, 1);
    for (int i = 0; i < N_TWO; i++)
        loops[6 + i] = loop_2(i == 6 ? 9001 : 37, i == 6 ? 3 : 65, two[i], 3);
    /* Permuted with dims before and after; tiles of 64 do not fit. */
    loops[13] = (ul_loop){3, {3, 100, 70}, {{7000, 70, 1}, {7000, 1, 100}, {0, 70, 1}}};
    loops[14] = (ul_loop){3, {100, 3, 70}, {{210, 70, 1}, {1, 7000, 100}, {210, 70, 1}}};
}

/* ---- forward ---- */

static double ref_add(double a, double b) { return a + b; }
static double ref_sub(double a, double b) { return a - b; }
static double ref_mul(double a, double b) { return a * b; }
static double ref_div(double a, double b) { return a / b; }
static double ref_swiglu(double a, double b) { return a / (1 + exp(-a)) * b; }

static const struct {
    const char *name;
    size_t at, backward_at; /* backward_at 0: add and sub have none */
    double (*ref)(double, double);
    int integers;
    double low, high; /* of a; b is in [0.5, 3) for pow, else the same */
} twos[] = {
    {"add", AT(add), 0, ref_add, 1, -9, 9},
    {"sub", AT(sub), 0, ref_sub, 1, -9, 9},
    {"mul", AT(mul), AT(mul_backward), ref_mul, 1, -9, 9},
    {"maximum", AT(maximum), AT(maximum_backward), fmax, 1, -9, 9},
    {"minimum", AT(minimum), AT(minimum_backward), fmin, 1, -9, 9},
    {"div", AT(div), AT(div_backward), ref_div, 0, 0.5, 9},
    {"pow", AT(pow), AT(pow_backward), pow, 0, 0.5, 2.5},
    {"swiglu", AT(swiglu), AT(swiglu_backward), ref_swiglu, 0, -9, 9},
};
enum { N_TWOS = sizeof twos / sizeof *twos };

static void check_two(int op, int dtype, const ul_loop *l)
{
    double low = dtype == U8 ? 1 : twos[op].low;
    void *a = new_noise(dtype, loop_span(l, 1), low, twos[op].high, 1);
    void *b = new_noise(dtype, loop_span(l, 2), low, twos[op].high, 2);
    void *y = new_values(dtype, loop_span(l, 0));
    forward_2 *kernel = KERNEL(forward_2, ul_cpu_kernels(dtype), twos[op].at);
    kernel(ul_cpu_stream(), y, a, b, l);
    for (int64_t i = 0; i < loop_count(l); i++) {
        double want =
            twos[op].ref(get(dtype, a, loop_at(l, 1, i)), get(dtype, b, loop_at(l, 2, i)));
        double got = get(dtype, y, loop_at(l, 0, i));
        if (dtype == U8 && want < 0) want += 256;
        if (!close_to(got, want, 10 * dtype_eps[dtype])) {
            CHECK(0, "%s %s %s [%d]: %.17g, not %.17g", twos[op].name, dtype_names[dtype],
                  ul_cpu_isa(), (int)i, got, want);
            break;
        }
    }
    free(a), free(b), free(y);
}

static void functions_of_two(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype < N_DTYPES; dtype++)
            for (int op = 0; op < N_TWOS && has_table(level, dtype); op++)
                for (int i = 0; i < N_LOOPS && (twos[op].integers || dtype <= F64); i++)
                    check_two(op, dtype, &loops[i]);
}

static double ref_rsqrt(double x) { return 1 / sqrt(x); }
static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_silu(double x) { return x / (1 + exp(-x)); }
static double ref_gelu(double x) { return x / 2 * (1 + erf(x / sqrt(2))); }
static double ref_relu(double x) { return x > 0 ? x : 0; }
static double ref_neg(double x) { return -x; }
static double ref_gelu_tanh(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static const struct {
    const char *name;
    size_t at, backward_at;
    double (*ref)(double);
    double low, high;
    int of_y; /* backward gets y */
} ones[] = {
    {"neg", AT(neg), 0, ref_neg, -9, 9, 0},
    {"abs", AT(abs), AT(abs_backward), fabs, -9, 9, 0},
    {"exp", AT(exp), AT(exp_backward), exp, -9, 3, 1},
    {"log", AT(log), AT(log_backward), log, 0.1, 9, 0},
    {"sqrt", AT(sqrt), AT(sqrt_backward), sqrt, 0.1, 9, 1},
    {"rsqrt", AT(rsqrt), AT(rsqrt_backward), ref_rsqrt, 0.2, 9, 1},
    {"sin", AT(sin), AT(sin_backward), sin, -9, 9, 0},
    {"cos", AT(cos), AT(cos_backward), cos, -9, 9, 0},
    {"tanh", AT(tanh), AT(tanh_backward), tanh, -3, 3, 1},
    {"sigmoid", AT(sigmoid), AT(sigmoid_backward), ref_sigmoid, -9, 9, 1},
    {"silu", AT(silu), AT(silu_backward), ref_silu, -9, 9, 0},
    {"gelu", AT(gelu), AT(gelu_backward), ref_gelu, -5, 5, 0},
    {"gelu_tanh", AT(gelu_tanh), AT(gelu_tanh_backward), ref_gelu_tanh, -5, 5, 0},
    {"relu", AT(relu), AT(relu_backward), ref_relu, -9, 9, 0},
};
enum { N_ONES = sizeof ones / sizeof *ones };

static void check_one(int op, int dtype, const ul_loop *l)
{
    void *x = new_noise(dtype, loop_span(l, 1), ones[op].low, ones[op].high, 3);
    void *y = new_values(dtype, loop_span(l, 0));
    KERNEL(forward_1, ul_cpu_kernels(dtype), ones[op].at)(ul_cpu_stream(), y, x, l);
    for (int64_t i = 0; i < loop_count(l); i++) {
        double want = ones[op].ref(get(dtype, x, loop_at(l, 1, i)));
        double got = get(dtype, y, loop_at(l, 0, i));
        if (!close_to(got, want, 10 * dtype_eps[dtype])) {
            CHECK(0, "%s %s %s [%d]: %.17g, not %.17g", ones[op].name, dtype_names[dtype],
                  ul_cpu_isa(), (int)i, got, want);
            break;
        }
    }
    free(x), free(y);
}

static void functions_of_one(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= F64; dtype++)
            for (int op = 0; op < N_ONES && has_table(level, dtype); op++)
                for (int i = 0; i < N_LOOPS; i++) check_one(op, dtype, &loops[i]);
}

/* ---- backward: against central differences of the double function ---- */

static double slope_1(double (*f)(double), double x)
{
    double h = 1e-4; /* fourth order: error about h^4 */
    return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
}

static double slope_2(double (*f)(double, double), double a, double b, int of_b)
{
    double da = of_b ? 0 : 1e-4, db = of_b ? 1e-4 : 0;
    return (8 * (f(a + da, b + db) - f(a - da, b - db)) -
            (f(a + 2 * da, b + 2 * db) - f(a - 2 * da, b - 2 * db))) /
           12e-4;
}

/* dx may be off by this much: f32 and bf16 compute in f32, f64 is limited by the differences. */
static double slack(int dtype) { return dtype == F64 ? 1e-9 : dtype == F32 ? 1e-5 : 0x1p-7; }

/* One gradient in its two modes: overwritten (never read: it starts as NaN), and added to. */
typedef struct gradient {
    void *data;
    int add;
} gradient;

static gradient new_gradient(int dtype, int64_t n, int add)
{
    gradient g = {new_values(dtype, n), add};
    for (int64_t i = 0; i < n; i++) put(dtype, g.data, i, add ? 2 : NAN);
    return g;
}

static void check_gradient(const char *name, int dtype, gradient g, int64_t at, double want)
{
    double got = get(dtype, g.data, at);
    CHECK(close_to(got, want + (g.add ? 2 : 0), 8 * slack(dtype)), "%s %s %s: %.17g, not %.17g",
          name, dtype_names[dtype], ul_cpu_isa(), got, want + (g.add ? 2 : 0));
}

static void check_one_backward(int op, int dtype, const ul_loop *l, int add)
{
    void *x = new_noise(dtype, loop_span(l, 1), ones[op].low, ones[op].high, 4);
    void *v = new_values(dtype, loop_span(l, 1));
    void *dy = new_noise(dtype, loop_span(l, 0), -1, 1, 5);
    gradient dx = new_gradient(dtype, loop_span(l, 0), add);
    for (int64_t i = 0; i < loop_span(l, 1); i++)
        put(dtype, v, i, ones[op].of_y ? ones[op].ref(get(dtype, x, i)) : get(dtype, x, i));
    backward_1 *kernel = KERNEL(backward_1, ul_cpu_kernels(dtype), ones[op].backward_at);
    kernel(ul_cpu_stream(), (ul_grad){dx.data, add}, dy, v, l);
    for (int64_t i = 0; i < loop_count(l); i++) {
        int64_t at = loop_at(l, 0, i);
        double slope = slope_1(ones[op].ref, get(dtype, x, loop_at(l, 1, i)));
        check_gradient(ones[op].name, dtype, dx, at, get(dtype, dy, at) * slope);
    }
    free(x), free(v), free(dy), free(dx.data);
}

static void check_two_backward(int op, int dtype, const ul_loop *l, int add)
{
    void *a = new_noise(dtype, loop_span(l, 1), twos[op].low, twos[op].high, 6);
    void *b = new_noise(dtype, loop_span(l, 2), twos[op].low, twos[op].high, 7);
    void *dy = new_noise(dtype, loop_span(l, 0), -1, 1, 8);
    gradient da = new_gradient(dtype, loop_span(l, 0), add);
    gradient db = new_gradient(dtype, loop_span(l, 0), !add);
    backward_2 *kernel = KERNEL(backward_2, ul_cpu_kernels(dtype), twos[op].backward_at);
    ul_grad none = {NULL, 0};
    kernel(ul_cpu_stream(), none, (ul_grad){db.data, db.add}, dy, a, b, l);
    kernel(ul_cpu_stream(), (ul_grad){da.data, da.add}, none, dy, a, b, l);
    for (int64_t i = 0; i < loop_count(l); i++) {
        double x = get(dtype, a, loop_at(l, 1, i)), z = get(dtype, b, loop_at(l, 2, i));
        int64_t at = loop_at(l, 0, i);
        double d = get(dtype, dy, at);
        if (fabs(x - z) < 1e-3 && (twos[op].ref == fmax || twos[op].ref == fmin)) continue;
        check_gradient(twos[op].name, dtype, da, at, d * slope_2(twos[op].ref, x, z, 0));
        check_gradient(twos[op].name, dtype, db, at, d * slope_2(twos[op].ref, x, z, 1));
    }
    free(a), free(b), free(dy), free(da.data), free(db.data);
}

/* Loops with holes in y are not among them: holes of a gradient stay as they were. */
static void gradients(void)
{
    static const int used[] = {0, 2, 4, 6, 7, 8, 9, 12, 14};
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= F64; dtype++)
            for (int i = 0; i < 9 && has_table(level, dtype); i++)
                for (int add = 0; add < 2; add++) {
                    for (int op = 0; op < N_ONES; op++)
                        if (ones[op].backward_at)
                            check_one_backward(op, dtype, &loops[used[i]], add);
                    for (int op = 0; op < N_TWOS; op++)
                        if (twos[op].backward_at)
                            check_two_backward(op, dtype, &loops[used[i]], add);
                }
}

static void ties_share_the_gradient(void)
{
    for (int level = 0; next_isa(&level); level++) {
        float a[3] = {1, 2, NAN}, b[3] = {1, 3, 0}, dy[3] = {8, 8, 8}, da[3], db[3];
        ul_loop l = loop_1(3, 1, 1, 1);
        const ul_kernels *k = ul_cpu_kernels(F32);
        k->maximum_backward(ul_cpu_stream(), (ul_grad){da, 0}, (ul_grad){db, 0}, dy, a, b, &l);
        CHECK(da[0] == 4 && db[0] == 4 && da[1] == 0 && db[1] == 8 && da[2] == 8 && db[2] == 0);
        k->minimum_backward(ul_cpu_stream(), (ul_grad){da, 0}, (ul_grad){db, 0}, dy, a, b, &l);
        CHECK(da[0] == 4 && db[0] == 4 && da[1] == 8 && db[1] == 0 && da[2] == 8 && db[2] == 0);
    }
}

/* ---- special values, selection, clamping ---- */

static void special_values(void)
{
    for (int level = 0; next_isa(&level); level++) {
        const ul_kernels *k = ul_cpu_kernels(F32);
        float x[4] = {NAN, INFINITY, -INFINITY, -0.0f}, z[4] = {1, 1, 1, NAN}, y[4];
        ul_loop l = loop_1(4, 1, 1, 1);
        k->exp(ul_cpu_stream(), y, x, &l);
        CHECK(isnan(y[0]) && y[1] == INFINITY && y[2] == 0 && y[3] == 1);
        k->sigmoid(ul_cpu_stream(), y, x, &l);
        CHECK(isnan(y[0]) && y[1] == 1 && y[2] == 0 && y[3] == 0.5f);
        k->tanh(ul_cpu_stream(), y, x, &l);
        CHECK(isnan(y[0]) && y[1] == 1 && y[2] == -1 && y[3] == 0 && signbit(y[3]));
        k->maximum(ul_cpu_stream(), y, x, z, &l);
        CHECK(isnan(y[0]) && y[1] == INFINITY && y[2] == 1 && isnan(y[3]));
        k->minimum(ul_cpu_stream(), y, x, z, &l);
        CHECK(isnan(y[0]) && y[1] == 1 && y[2] == -INFINITY && isnan(y[3]));
        k->clamp(ul_cpu_stream(), y, x, -2, 5, &l);
        CHECK(isnan(y[0]) && y[1] == 5 && y[2] == -2 && y[3] == 0);
        k->abs(ul_cpu_stream(), y, x, &l);
        CHECK(isnan(y[0]) && y[1] == INFINITY && y[2] == INFINITY && !signbit(y[3]));
        k->relu(ul_cpu_stream(), y, x, &l);
        CHECK(isnan(y[0]) && y[1] == INFINITY && y[2] == 0 && y[3] == 0);
    }
}

static void integers_wrap_and_clamp(void)
{
    ul_loop l = loop_1(2, 1, 1, 1);
    int64_t big[2] = {INT64_MAX, INT64_MIN}, one[2] = {1, -1}, y[2];
    const ul_kernels *k = ul_cpu_kernels(I64);
    k->add(ul_cpu_stream(), y, big, one, &l);
    CHECK(y[0] == INT64_MIN && y[1] == INT64_MAX);
    k->neg(ul_cpu_stream(), y, big, &l);
    CHECK(y[0] == -INT64_MAX && y[1] == INT64_MIN);
    k->abs(ul_cpu_stream(), y, big, &l);
    CHECK(y[0] == INT64_MAX && y[1] == INT64_MIN);
    k->mul(ul_cpu_stream(), y, big, big, &l);
    CHECK(y[0] == 1 && y[1] == 0);
    k->clamp(ul_cpu_stream(), y, big, -INFINITY, 7.5, &l);
    CHECK(y[0] == 7 && y[1] == INT64_MIN);
    uint8_t u[2] = {200, 0}, v[2] = {100, 1}, w[2];
    ul_cpu_kernels(U8)->add(ul_cpu_stream(), w, u, v, &l);
    CHECK(w[0] == 44 && w[1] == 1);
    ul_cpu_kernels(U8)->sub(ul_cpu_stream(), w, v, u, &l);
    CHECK(w[0] == 156 && w[1] == 1);
}

static void clamp_passes_gradients_inside(void)
{
    for (int level = 0; next_isa(&level); level++) {
        float x[5] = {-3, -2, 0, 5, 6}, dy[5] = {1, 2, 3, 4, 5}, dx[5] = {1, 1, 1, 1, 1};
        ul_loop l = loop_1(5, 1, 1, 0);
        const ul_kernels *k = ul_cpu_kernels(F32);
        k->clamp_backward(ul_cpu_stream(), (ul_grad){dx, 1}, dy, x, -2, 5, &l);
        CHECK(dx[0] == 1 && dx[1] == 3 && dx[2] == 4 && dx[3] == 5 && dx[4] == 1);
    }
}

static void check_compare(int dtype, const ul_loop *l)
{
    const ul_kernels *k = ul_cpu_kernels(dtype);
    forward_2 *kernels[6] = {k->eq, k->ne, k->lt, k->le, k->gt, k->ge};
    void *a = new_noise(dtype, loop_span(l, 1), 0, 4, 9);
    void *b = new_noise(dtype, loop_span(l, 2), 0, 4, 10);
    if (dtype <= F64 && loop_count(l) > 0) put(dtype, a, 0, NAN);
    uint8_t *y = new_values(U8, loop_span(l, 0));
    for (int op = 0; op < 6; op++) {
        kernels[op](ul_cpu_stream(), y, a, b, l);
        for (int64_t i = 0; i < loop_count(l); i++) {
            double p = get(dtype, a, loop_at(l, 1, i)), q = get(dtype, b, loop_at(l, 2, i));
            int want[6] = {p == q, p != q, p<q, p <= q, p> q, p >= q};
            if (y[loop_at(l, 0, i)] != want[op]) {
                CHECK(0, "comparison %d %s [%d]", op, dtype_names[dtype], (int)i);
                break;
            }
        }
    }
    free(a), free(b), free(y);
}

static void comparisons(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype < N_DTYPES; dtype++)
            for (int i = 0; i < N_LOOPS && has_table(level, dtype); i++)
                check_compare(dtype, &loops[i]);
}

/* cond takes a's place in the loops, a and b take b's. */
static void check_where(int dtype, ul_loop l)
{
    const ul_kernels *k = ul_cpu_kernels(dtype);
    for (int d = 0; d < l.ndim; d++) l.stride[3][d] = l.stride[0][d];
    uint8_t *cond = new_noise(U8, loop_span(&l, 1), 0, 2, 11);
    void *a = new_noise(dtype, loop_span(&l, 2), 0, 100, 12);
    void *b = new_noise(dtype, loop_span(&l, 3), 0, 100, 13);
    void *y = new_values(dtype, loop_span(&l, 0));
    k->where(ul_cpu_stream(), y, cond, a, b, &l);
    int bad = 0;
    for (int64_t i = 0; i < loop_count(&l); i++) {
        double want = cond[loop_at(&l, 1, i)] ? get(dtype, a, loop_at(&l, 2, i))
                                              : get(dtype, b, loop_at(&l, 3, i));
        bad += get(dtype, y, loop_at(&l, 0, i)) != want;
    }
    CHECK(!bad, "where %s: %d wrong", dtype_names[dtype], bad);
    if (dtype <= F64) {
        gradient da = new_gradient(dtype, loop_span(&l, 0), 0);
        gradient db = new_gradient(dtype, loop_span(&l, 0), 1);
        k->where_backward(ul_cpu_stream(), (ul_grad){da.data, 0}, (ul_grad){db.data, 1}, b, cond,
                          &l);
        for (int64_t i = 0; i < loop_count(&l); i++) {
            int64_t at = loop_at(&l, 0, i);
            double d = get(dtype, b, at);
            int yes = cond[loop_at(&l, 1, i)];
            check_gradient("where", dtype, da, at, yes ? d : 0);
            check_gradient("where", dtype, db, at, yes ? 0 : d);
        }
        free(da.data), free(db.data);
    }
    free(cond), free(a), free(b), free(y);
}

static void selection(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype < N_DTYPES; dtype++)
            for (int i = 0; i < N_LOOPS && has_table(level, dtype); i++)
                check_where(dtype, loops[i]);
}

static void in_place(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= F64; dtype++) {
            ul_loop l = loop_1(5003, 1, 1, 1);
            void *x = new_noise(dtype, 5003, 0, 9, 14), *y = new_noise(dtype, 5003, 0, 9, 14);
            ul_cpu_kernels(dtype)->add(ul_cpu_stream(), x, x, y, &l);
            for (int64_t i = 0; i < 5003; i++)
                CHECK(get(dtype, x, i) == rounded(dtype, 2 * get(dtype, y, i)));
            free(x), free(y);
        }
}

int main(void)
{
    make_loops();
    for (int threads = 1; threads <= 3; threads += 2) {
        ul_cpu_set_threads(threads);
        RUN(functions_of_two);
        RUN(functions_of_one);
        RUN(comparisons);
        RUN(selection);
    }
    RUN(gradients);
    RUN(ties_share_the_gradient);
    RUN(special_values);
    RUN(integers_wrap_and_clamp);
    RUN(clamp_passes_gradients_inside);
    RUN(in_place);
    return check_done();
}
