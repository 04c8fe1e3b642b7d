/* rope_test.c - tables of the rotary embedding, and turning by them. */
#include "runs.h"

typedef struct table {
    const int64_t *positions;
    const double *inv_freq;
    int64_t n, half;
    void *other; /* where the table that is not looked at goes */
} table;

static void call_cosine(const ul_kernels *k, ul_grad y, const void *arg)
{
    const table *t = arg;
    k->rope_table(ul_cpu_stream(), y.data, t->other, t->positions, t->inv_freq, t->n, t->half, 1.5);
}

static void call_sine(const ul_kernels *k, ul_grad y, const void *arg)
{
    const table *t = arg;
    k->rope_table(ul_cpu_stream(), t->other, y.data, t->positions, t->inv_freq, t->n, t->half, 1.5);
}

static void check_tables(int dtype)
{
    enum { N = 500, MOST = 64 };
    static const int64_t halves[] = {1, 3, 64};
    int acc = acc_of(dtype);
    for (int i = 0; i < 3; i++) {
        int64_t half = halves[i], *positions = new_values(I64, N);
        double inv_freq[MOST], *cosine = malloc(N * MOST * sizeof *cosine);
        double *sine = malloc(N * MOST * sizeof *sine);
        for (int64_t k = 0; k < half; k++) inv_freq[k] = pow(500000, (double)-k / (double)half);
        for (int64_t k = 0; k < N; k++) positions[k] = k < N / 2 ? k : 10000000 + k * k;
        for (int64_t k = 0; k < N * half; k++) {
            double angle = (double)positions[k / half] * inv_freq[k % half];
            cosine[k] = rounded(acc, 1.5 * cos(angle));
            sine[k] = rounded(acc, 1.5 * sin(angle));
        }
        table t = {positions, inv_freq, N, half, new_values(acc, N * half)};
        check_run(&(kernel_run){"rope_table cos", dtype, acc, N * half, N * half, NULL, cosine,
                                call_cosine, &t, 0});
        check_run(&(kernel_run){"rope_table sin", dtype, acc, N * half, N * half, NULL, sine,
                                call_sine, &t, 0});
        free(positions), free(cosine), free(sine), free(t.other);
    }
}

static void tables(void) { each_table(F64, check_tables); }

typedef struct turn {
    int64_t batch, tokens, heads, dim, table_step;
    double sign;
    const void *x, *cosine, *sine;
} turn;

static void call_rope(const ul_kernels *k, ul_grad y, const void *arg)
{
    const turn *t = arg;
    k->rope(ul_cpu_stream(), y, t->x, t->cosine, t->sine, t->batch, t->tokens, t->heads, t->dim,
            t->table_step, t->sign);
}

static void check_rope(int dtype)
{
    static const turn turns[] = {
        {1, 1, 1, 2, 0, 1, NULL, NULL, NULL},      {2, 5, 3, 6, 0, 1, NULL, NULL, NULL},
        {2, 5, 3, 6, 5, -1, NULL, NULL, NULL},     {3, 40, 4, 64, 40, 1, NULL, NULL, NULL},
        {1, 300, 2, 128, 0, -1, NULL, NULL, NULL}, {2, 7, 1, 34, 9, 1, NULL, NULL, NULL},
        {0, 7, 1, 34, 0, 1, NULL, NULL, NULL},     {2, 0, 1, 34, 0, 1, NULL, NULL, NULL},
    };
    int acc = acc_of(dtype);
    for (int i = 0; i < 8; i++) {
        turn t = turns[i];
        int64_t half = t.dim / 2, n = t.batch * t.tokens * t.heads * t.dim;
        int64_t size = (t.batch * t.table_step + t.tokens) * half;
        void *x = new_noise(dtype, n, -2, 2, 1);
        void *cosine = new_noise(acc, size, -1, 1, 2), *sine = new_noise(acc, size, -1, 1, 3);
        double *want = malloc((size_t)(n + 1) * sizeof *want);
        t.x = x, t.cosine = cosine, t.sine = sine;
        for (int64_t k = 0; k < n; k++) {
            int64_t at = k % t.dim, token = k / t.dim / t.heads;
            int64_t row = token / t.tokens * t.table_step + token % t.tokens;
            double c = get(acc, cosine, row * half + at % half);
            double s = t.sign * get(acc, sine, row * half + at % half);
            want[k] = at < half ? get(dtype, x, k) * c - get(dtype, x, k + half) * s
                                : get(dtype, x, k) * c + get(dtype, x, k - half) * s;
        }
        check_run(&(kernel_run){"rope", dtype, dtype, n, n, NULL, want, call_rope, &t, 1});
        free(x), free(cosine), free(sine), free(want);
    }
}

static void turns_by_tables(void) { each_table(F64, check_rope); }

int main(void)
{
    RUN(tables);
    RUN(turns_by_tables);
    return check_done();
}
