/* reduce_test.c - sum, max, min, logsumexp over all sorts of loops. */
#include <sys/mman.h>

#include "runs.h"

/* A loop whose last dims are reduced, and an input for it. */
typedef struct reduction {
    ul_loop l;
    int reduced;
    const void *x;
    int64_t *index; /* where max and min leave it, or NULL */
} reduction;

enum { SUM, MAX, MIN, LOGSUMEXP, N_REDUCTIONS };
static const char *const names[] = {"sum", "max", "min", "logsumexp"};

static void call_sum(const ul_kernels *k, ul_grad y, const void *arg)
{
    const reduction *r = arg;
    k->sum(ul_cpu_stream(), y, r->x, 1, &r->l, r->reduced);
}

static void call_max(const ul_kernels *k, ul_grad y, const void *arg)
{
    const reduction *r = arg;
    k->max(ul_cpu_stream(), y.data, r->index, r->x, &r->l, r->reduced);
}

static void call_min(const ul_kernels *k, ul_grad y, const void *arg)
{
    const reduction *r = arg;
    k->min(ul_cpu_stream(), y.data, r->index, r->x, &r->l, r->reduced);
}

static void call_logsumexp(const ul_kernels *k, ul_grad y, const void *arg)
{
    const reduction *r = arg;
    k->logsumexp(ul_cpu_stream(), y.data, r->x, &r->l, r->reduced);
}

static const struct {
    ul_loop l;
    int reduced;
} cases[] = {
    {{.ndim = 0}, 0},
    {{1, {70001}, {{0}, {1}}}, 1},
    {{1, {300007}, {{0}, {1}}}, 1},
    {{1, {1}, {{0}, {1}}}, 1},
    {{1, {5000}, {{0}, {3}}}, 1},
    {{1, {1000}, {{1}, {1}}}, 0},
    {{2, {1000, 1}, {{1, 0}, {1, 0}}}, 1},
    {{2, {7, 1031}, {{1, 0}, {1031, 1}}}, 1},   /* rows */
    {{2, {300, 65}, {{2, 0}, {65, 1}}}, 1},     /* into every second element */
    {{2, {1031, 7}, {{1, 0}, {7, 1}}}, 1},      /* short rows */
    {{2, {1000, 300}, {{1, 0}, {1, 1000}}}, 1}, /* columns */
    {{2, {33, 5000}, {{1, 0}, {1, 33}}}, 1},    /* a few long columns */
    {{2, {3, 70000}, {{1, 0}, {1, 3}}}, 1},
    {{2, {130, 260}, {{1, 0}, {2, 300}}}, 1},     /* columns with holes */
    {{2, {5, 130000}, {{1, 0}, {130000, 1}}}, 1}, /* a few long rows */
    {{3, {40, 37, 50}, {{37, 1, 0}, {1850, 1, 37}}}, 1},
    {{3, {37, 40, 50}, {{1, 0, 0}, {1, 1850, 37}}}, 2},
    {{3, {37, 40, 3}, {{1, 0, 0}, {120, 3, 1}}}, 2},
    {{3, {9, 21, 13}, {{21, 1, 0}, {1, 117, 9}}}, 1}, /* outermost is the closest in x */
    {{3, {4, 20, 30}, {{1, 0, 0}, {0, 30, 1}}}, 2},   /* broadcast */
    {{4, {3, 4, 20, 30}, {{4, 1, 0, 0}, {30, 1800, 90, 1}}}, 2},
    {{2, {0, 5}, {{1, 0}, {5, 1}}}, 1},
};
enum { N_CASES = sizeof cases / sizeof *cases };

typedef struct answer {
    double value[N_REDUCTIONS];
    int64_t index[N_REDUCTIONS];
} answer;

/* x[at] for each of n elements, in order. */
static answer reduce_plainly(int dtype, const reduction *r, int64_t first, int64_t n)
{
    answer a = {{0, -INFINITY, INFINITY, 0}, {0, -1, -1, 0}};
    for (int64_t i = 0; i < n; i++) {
        double x = get(dtype, r->x, loop_at(&r->l, 1, first + i));
        a.value[SUM] += x;
        if (a.index[MAX] < 0 || x > a.value[MAX]) a.value[MAX] = x, a.index[MAX] = i;
        if (a.index[MIN] < 0 || x < a.value[MIN]) a.value[MIN] = x, a.index[MIN] = i;
    }
    for (int64_t i = 0; i < n; i++)
        a.value[LOGSUMEXP] += exp(get(dtype, r->x, loop_at(&r->l, 1, first + i)) - a.value[MAX]);
    a.value[LOGSUMEXP] = a.value[MAX] + log(a.value[LOGSUMEXP]);
    return a;
}

static void check_reduction(int dtype, int which, reduction *r, const answer *answers,
                            int64_t outputs, const int64_t *at)
{
    static void (*const calls[])(const ul_kernels *, ul_grad,
                                 const void *) = {call_sum, call_max, call_min, call_logsumexp};
    double *want = malloc((size_t)(outputs + 1) * sizeof *want);
    for (int64_t i = 0; i < outputs; i++) want[i] = answers[i].value[which];
    int type = which == SUM && dtype >= I32 ? I64 : dtype;
    int64_t span = outputs ? at[outputs - 1] + 1 : 0;
    kernel_run run = {.name = names[which],
                      .dtype = dtype,
                      .type = type,
                      .n = outputs,
                      .span = span,
                      .at = at,
                      .want = want,
                      .call = calls[which],
                      .arg = r,
                      .adds = which == SUM};
    int has_index = which == MAX || which == MIN, bad = 0;
    if (has_index) r->index = new_values(I64, span);
    check_run(&run);
    for (int64_t i = 0; has_index && i < outputs; i++)
        bad += r->index[at[i]] != answers[i].index[which];
    CHECK(!bad, "%s %s: %d indices wrong", names[which], dtype_names[dtype], bad);
    if (has_index) { /* either output alone */
        int64_t *index = r->index;
        calls[which](ul_cpu_kernels(dtype), (ul_grad){NULL, 0}, r);
        for (int64_t i = 0; i < outputs; i++) bad += index[at[i]] != answers[i].index[which];
        CHECK(!bad, "%s without values", names[which]);
        r->index = NULL;
        check_run(&run);
        free(index);
    }
    free(want);
}

static void check_case(int dtype, int i)
{
    reduction r = {cases[i].l, cases[i].reduced, NULL, NULL};
    int64_t span = loop_span(&r.l, 1), outputs = 1, elements = 1;
    void *x = new_noise(dtype, span, dtype == U8 ? 0 : -20, dtype == U8 ? 256 : 40, 7);
    r.x = x;
    for (int d = 0; d < r.l.ndim; d++)
        *(d < r.l.ndim - r.reduced ? &outputs : &elements) *= r.l.shape[d];
    answer *answers = malloc((size_t)(outputs + 1) * sizeof *answers);
    int64_t *at = malloc((size_t)(outputs + 1) * sizeof *at);
    for (int64_t k = 0; k < outputs; k++) {
        answers[k] = reduce_plainly(dtype, &r, k * elements, elements);
        at[k] = loop_at(&r.l, 0, k * elements);
    }
    for (int which = 0; which < N_REDUCTIONS; which++)
        if (dtype <= F64 || which != LOGSUMEXP)
            check_reduction(dtype, which, &r, answers, outputs, at);
    free(answers), free(at), free(x);
}

static void check_cases(int dtype)
{
    for (int i = 0; i < N_CASES; i++) check_case(dtype, i);
}

static void reductions(void) { each_table(U8, check_cases); }

/* ---- extreme values ---- */

enum { SPECIAL_N = 3000, SPECIAL_ROWS = 10 };

/* Row i: 1 throughout but for two NaN and inf; two inf; all -inf; nothing else; all NaN; and again.
 */
static double special(int row, int i)
{
    switch (row % 5) {
    case 0:
        return i == 1500 || i == 2000 ? NAN : i == 100 ? INFINITY : 1;
    case 1:
        return i == 77 || i == 99 ? INFINITY : 1;
    case 2:
        return -INFINITY;
    case 3:
        return 1;
    default:
        return NAN;
    }
}

static void check_special_loop(int dtype, const ul_loop *l, const void *x)
{
    static const double wanted[N_REDUCTIONS][5] = {
        [SUM] = {NAN, INFINITY, -INFINITY, SPECIAL_N, NAN},
        [MAX] = {NAN, INFINITY, -INFINITY, 1, NAN},
        [MIN] = {NAN, 1, -INFINITY, 1, NAN},
        [LOGSUMEXP] = {NAN, INFINITY, -INFINITY, 9.006367567650246, NAN},
    };
    static const int64_t wanted_index[2][5] = {{1500, 77, 0, 0, 0}, {1500, 0, 0, 0, 0}};
    const ul_kernels *k = ul_cpu_kernels(dtype);
    void *y = new_values(dtype, SPECIAL_ROWS);
    int64_t index[2][SPECIAL_ROWS];
    for (int which = 0; which < N_REDUCTIONS; which++) {
        if (which == SUM) k->sum(ul_cpu_stream(), (ul_grad){y, 0}, x, 1, l, 1);
        if (which == MAX) k->max(ul_cpu_stream(), y, index[0], x, l, 1);
        if (which == MIN) k->min(ul_cpu_stream(), y, index[1], x, l, 1);
        if (which == LOGSUMEXP) k->logsumexp(ul_cpu_stream(), y, x, l, 1);
        for (int i = 0; i < SPECIAL_ROWS; i++)
            CHECK(close_to(get(dtype, y, i), wanted[which][i % 5], tolerance_of(dtype)),
                  "%s %s row %d: %g", names[which], dtype_names[dtype], i, get(dtype, y, i));
    }
    for (int i = 0; i < 2 * SPECIAL_ROWS; i++)
        CHECK(index[i / SPECIAL_ROWS][i % SPECIAL_ROWS] ==
              wanted_index[i / SPECIAL_ROWS][i % SPECIAL_ROWS % 5]);
    free(y);
}

static void check_special(int dtype)
{
    const ul_loop rows = {2, {SPECIAL_ROWS, SPECIAL_N}, {{1, 0}, {SPECIAL_N, 1}}};
    const ul_loop columns = {2, {SPECIAL_ROWS, SPECIAL_N}, {{1, 0}, {1, SPECIAL_ROWS}}};
    const ul_loop none = {2, {SPECIAL_ROWS, 0}, {{1, 0}, {0, 1}}};
    void *x = new_values(dtype, SPECIAL_ROWS * SPECIAL_N), *y = new_values(dtype, SPECIAL_ROWS);
    for (int i = 0; i < SPECIAL_ROWS * SPECIAL_N; i++)
        put(dtype, x, i, special(i / SPECIAL_N, i % SPECIAL_N));
    check_special_loop(dtype, &rows, x);
    for (int i = 0; i < SPECIAL_ROWS * SPECIAL_N; i++)
        put(dtype, x, i, special(i % SPECIAL_ROWS, i / SPECIAL_ROWS));
    check_special_loop(dtype, &columns, x);
    put(dtype, y, SPECIAL_ROWS - 1, 5);
    ul_cpu_kernels(dtype)->sum(ul_cpu_stream(), (ul_grad){y, 0}, x, 1, &none, 1);
    CHECK(get(dtype, y, 0) == 0 && get(dtype, y, SPECIAL_ROWS - 1) == 0);
    ul_cpu_kernels(dtype)->logsumexp(ul_cpu_stream(), y, x, &none, 1);
    CHECK(get(dtype, y, 0) == -INFINITY && get(dtype, y, SPECIAL_ROWS - 1) == -INFINITY);
    free(x), free(y);
}

static void special_values(void) { each_table(F64, check_special); }

/* 10^8 equal numbers, and more bytes than an int counts. */
static void large_sums(void)
{
    enum { N = 100000000 };
    float *x = new_values(F32, N), y = 0;
    for (int64_t i = 0; i < N; i++) x[i] = 0.1f;
    ul_loop l = {1, {N}, {{0}, {1}}}, columns = {2, {10, N / 10}, {{1, 0}, {1, 10}}};
    float sums[10];
    for (int level = 0; next_isa(&level); level++) {
        ul_cpu_kernels(F32)->sum(ul_cpu_stream(), (ul_grad){&y, 0}, x, 1, &l, 1);
        CHECK(close_to((double)y, N * (double)0.1f, 1e-6), "%s: %.9g", ul_cpu_isa(), (double)y);
        ul_cpu_kernels(F32)->sum(ul_cpu_stream(), (ul_grad){sums, 0}, x, 0.5, &columns, 1);
        for (int i = 0; i < 10; i++) CHECK(close_to((double)sums[i], N / 20 * (double)0.1f, 1e-6));
    }
    free(x);

    const int64_t n = (INT64_C(1) << 31) + 12345;
    uint8_t *bytes = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) return;
    int64_t total = 0, at = 0;
    bytes[n - 2] = 200;
    bytes[5] = 7;
    ul_loop all = {1, {n}, {{0}, {1}}};
    ul_cpu_kernels(U8)->sum(ul_cpu_stream(), (ul_grad){&total, 0}, bytes, 1, &all, 1);
    ul_cpu_kernels(U8)->max(ul_cpu_stream(), NULL, &at, bytes, &all, 1);
    CHECK(total == 207 && at == n - 2, "%lld at %lld", (long long)total, (long long)at);
    munmap(bytes, (size_t)n);
}

static void integers_wrap(void)
{
    int64_t x[3] = {INT64_MAX, 1, 5}, y = 1, index;
    ul_loop l = {1, {3}, {{0}, {1}}};
    ul_cpu_kernels(I64)->sum(ul_cpu_stream(), (ul_grad){&y, 0}, x, 1, &l, 1);
    CHECK(y == INT64_MIN + 5);
    ul_cpu_kernels(I64)->min(ul_cpu_stream(), &y, &index, x, &l, 1);
    CHECK(y == 1 && index == 1);
    x[2] = INT64_MIN;
    ul_cpu_kernels(I64)->min(ul_cpu_stream(), &y, &index, x, &l, 1);
    CHECK(y == INT64_MIN && index == 2);
    ul_cpu_kernels(I64)->max(ul_cpu_stream(), &y, &index, x, &l, 1);
    CHECK(y == INT64_MAX && index == 0);
}

/* ---- logsumexp_backward ---- */

typedef struct backward {
    ul_loop l;
    const void *dy, *x, *y;
} backward;

static void call_backward(const ul_kernels *k, ul_grad dx, const void *arg)
{
    const backward *b = arg;
    k->logsumexp_backward(ul_cpu_stream(), dx, b->dy, b->x, b->y, &b->l);
}

static void check_backward(int dtype)
{
    static const ul_loop loops[] = {
        {2, {300, 70}, {{70, 1}, {1, 0}, {70, 1}, {1, 0}}},
        {2, {70, 2300}, {{1, 70}, {1, 0}, {2300, 1}, {1, 0}}},
        {1, {5000}, {{1}, {0}, {1}, {0}}},
        {2, {9, 0}, {{0, 1}, {1, 0}, {0, 1}, {1, 0}}},
    };
    for (int i = 0; i < 4; i++) {
        const ul_loop *l = &loops[i];
        int64_t n = loop_count(l), *at = malloc((size_t)(n + 1) * sizeof *at);
        double *want = malloc((size_t)(n + 1) * sizeof *want);
        void *dy = new_noise(dtype, 3000, -1, 1, 1), *x = new_noise(dtype, n, -3, 3, 2);
        void *y = new_noise(dtype, 3000, 2, 4, 3);
        for (int64_t k = 0; k < n; k++) {
            at[k] = loop_at(l, 0, k);
            want[k] = get(dtype, dy, loop_at(l, 1, k)) *
                      exp(get(dtype, x, loop_at(l, 2, k)) - get(dtype, y, loop_at(l, 3, k)));
        }
        backward b = {*l, dy, x, y};
        check_run(&(kernel_run){"logsumexp_backward", dtype, dtype, n, n, at, want, call_backward,
                                &b, 1});
        free(at), free(want), free(dy), free(x), free(y);
    }
}

static void logsumexp_backwards(void) { each_table(F64, check_backward); }

int main(void)
{
    RUN(reductions);
    RUN(special_values);
    RUN(large_sums);
    RUN(integers_wrap);
    RUN(logsumexp_backwards);
    return check_done();
}
