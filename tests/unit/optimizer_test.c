/* optimizer_test.c - AdamW and SGD steps and sums of squares, against doubles. */
#include "check.h"
#include "values.h"

enum { N = 20011, STEPS = 5 };

/* The parameter of a step, with its f32 master copy beside bf16, and the doubles it should be. */
typedef struct state {
    int dtype, sum; /* sum: of m, v, momentum, grad and master */
    void *param, *master, *first, *second, *grad;
    double *want, *want_first, *want_second;
} state;

static state new_state(int dtype, int master)
{
    int sum = dtype == F64 ? F64 : F32;
    state s = {dtype,
               sum,
               new_noise(dtype, N, -1, 1, 1),
               master ? new_values(sum, N) : NULL,
               new_values(sum, N),
               new_values(sum, N),
               NULL,
               new_values(F64, N),
               new_values(F64, N),
               new_values(F64, N)};
    for (int64_t i = 0; i < N; i++) {
        s.want[i] = get(dtype, s.param, i);
        if (master) put(sum, s.master, i, s.want[i]);
    }
    return s;
}

static void new_grad(state *s, uint64_t seed)
{
    free(s->grad);
    s->grad = new_noise(s->sum, N, -1, 1, seed);
}

static void check_state(const char *name, state *s)
{
    double slack = s->master || s->dtype != BF16 ? 40 * dtype_eps[s->sum] : STEPS * 0x1p-8;
    int bad = 0, bad_param = 0;
    for (int64_t i = 0; i < N; i++) {
        double got = s->master ? get(s->sum, s->master, i) : get(s->dtype, s->param, i);
        bad += !close_to(got, s->want[i], slack);
        if (s->master) bad_param += get(s->dtype, s->param, i) != rounded(s->dtype, got);
    }
    CHECK(!bad && !bad_param, "%s %s %s master %d: %d and %d wrong", name, dtype_names[s->dtype],
          ul_cpu_isa(), s->master != NULL, bad, bad_param);
    free(s->param), free(s->master), free(s->first), free(s->second), free(s->grad);
    free(s->want), free(s->want_first), free(s->want_second);
}

static void adamw(int dtype, int master)
{
    state s = new_state(dtype, master);
    const double lr = 0.01, b1 = 0.9, b2 = 0.95, eps = 1e-8, decay = 0.1;
    for (int t = 1; t <= STEPS; t++) {
        ul_adamw_step step = {lr, b1, b2, eps, decay, 1 - pow(b1, t), 1 - pow(b2, t)};
        new_grad(&s, (uint64_t)t);
        ul_cpu_kernels(dtype)->adamw(ul_cpu_stream(), s.param, s.master, s.first, s.second, s.grad,
                                     N, &step);
        for (int64_t i = 0; i < N; i++) {
            double g = get(s.sum, s.grad, i);
            double m = s.want_first[i] = b1 * s.want_first[i] + (1 - b1) * g;
            double v = s.want_second[i] = b2 * s.want_second[i] + (1 - b2) * g * g;
            double moved = m / step.bias_1 / (sqrt(v / step.bias_2) + eps);
            s.want[i] -= lr * (moved + decay * s.want[i]);
        }
    }
    check_state("adamw", &s);
}

static void sgd(int dtype, int master, int momentum, int nesterov)
{
    state s = new_state(dtype, master);
    const double lr = 0.1, mu = 0.9, decay = 0.01;
    for (int t = 1; t <= STEPS; t++) {
        new_grad(&s, (uint64_t)t);
        ul_cpu_kernels(dtype)->sgd(ul_cpu_stream(), s.param, s.master, momentum ? s.first : NULL,
                                   s.grad, N, lr, mu, decay, nesterov);
        for (int64_t i = 0; i < N; i++) {
            double d = get(s.sum, s.grad, i) + decay * s.want[i];
            if (momentum) {
                s.want_first[i] = mu * s.want_first[i] + d;
                d = nesterov ? d + mu * s.want_first[i] : s.want_first[i];
            }
            s.want[i] -= lr * d;
        }
    }
    check_state("sgd", &s);
}

static void steps(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= F64; dtype++)
            for (int master = 0; master < 2 && has_table(level, dtype); master++) {
                adamw(dtype, master);
                sgd(dtype, master, 0, 0);
                sgd(dtype, master, 1, 0);
                sgd(dtype, master, 1, 1);
            }
}

static double squares(int dtype, const void *x, int64_t n)
{
    double sum = -1;
    ul_cpu_kernels(dtype)->sum_squares(ul_cpu_stream(), &sum, x, n);
    return sum;
}

static void sums_of_squares(void)
{
    static const int64_t sizes[] = {0, 1, 15, 16384, 100003};
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= F64; dtype++)
            for (int i = 0; i < 5; i++) {
                void *x = new_noise(dtype, sizes[i], -9, 9, 3);
                long double want = 0;
                for (int64_t j = 0; j < sizes[i]; j++) {
                    long double v = get(dtype, x, j);
                    want += v * v;
                }
                ul_cpu_set_threads(1);
                double one = squares(dtype, x, sizes[i]);
                CHECK(close_to(one, (double)want, 1e-13), "%.17g, not %.17g", one, (double)want);
                for (int threads = 2; threads <= 5; threads++) {
                    ul_cpu_set_threads(threads);
                    CHECK(squares(dtype, x, sizes[i]) == one);
                }
                put(dtype, x, sizes[i] / 2, NAN);
                if (sizes[i] > 0) CHECK(isnan(squares(dtype, x, sizes[i])));
                free(x);
            }
}

int main(void)
{
    RUN(steps);
    RUN(sums_of_squares);
    return check_done();
}
