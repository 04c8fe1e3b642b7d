/* index_test.c - find_outside, gather, index_select and their gradients. */
#include "runs.h"

typedef struct indexing {
    const void *x;
    const int64_t *index;
    int64_t outer, n, m, inner;
} indexing;

static void call_gather(const ul_kernels *k, ul_grad y, const void *arg)
{
    const indexing *g = arg;
    k->gather(ul_cpu_stream(), y.data, g->x, g->index, g->outer, g->n, g->m, g->inner);
}

static void call_select(const ul_kernels *k, ul_grad y, const void *arg)
{
    const indexing *g = arg;
    k->index_select(ul_cpu_stream(), y.data, g->x, g->index, g->outer, g->n, g->m, g->inner);
}

static void call_gather_backward(const ul_kernels *k, ul_grad dx, const void *arg)
{
    const indexing *g = arg;
    k->gather_backward(ul_cpu_stream(), dx, g->x, g->index, g->outer, g->n, g->m, g->inner);
}

static void call_select_backward(const ul_kernels *k, ul_grad dx, const void *arg)
{
    const indexing *g = arg;
    k->index_select_backward(ul_cpu_stream(), dx, g->x, g->index, g->outer, g->n, g->m, g->inner,
                             NULL);
}

static const indexing shapes[] = {
    {NULL, NULL, 1, 50, 300, 96}, {NULL, NULL, 1, 1000, 77, 1}, {NULL, NULL, 300, 40, 1, 1},
    {NULL, NULL, 7, 11, 13, 5},   {NULL, NULL, 3, 4, 30, 700},  {NULL, NULL, 1, 10, 5000, 33},
    {NULL, NULL, 200, 3, 2, 64},  {NULL, NULL, 2, 5, 0, 8},     {NULL, NULL, 0, 5, 3, 8},
    {NULL, NULL, 4, 5, 3, 0},     {NULL, NULL, 1, 1, 20000, 1}, {NULL, NULL, 5, 9, 400, 1},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* The element of x that element i of y is. */
static int64_t source(const indexing *g, int64_t i, int select)
{
    int64_t column = i % g->inner, row = i / g->inner;
    int64_t chosen = select ? g->index[row % g->m] : g->index[i];
    return (row / g->m * g->n + chosen) * g->inner + column;
}

static void check_reading(int dtype, indexing g, int select)
{
    int64_t size = g.outer * g.n * g.inner, n = g.outer * g.m * g.inner;
    void *x = new_noise(dtype, size, 0, 250, 4);
    double *want = malloc((size_t)(n + 1) * sizeof *want);
    g.x = x;
    for (int64_t i = 0; i < n; i++) want[i] = get(dtype, x, source(&g, i, select));
    check_run(&(kernel_run){select ? "index_select" : "gather", dtype, dtype, n, n, NULL, want,
                            select ? call_select : call_gather, &g, 0});
    free(x), free(want);
}

static void check_adding(int dtype, indexing g, int select)
{
    int64_t size = g.outer * g.n * g.inner, n = g.outer * g.m * g.inner;
    void *dy = new_noise(dtype, n, -1, 2, 5);
    double *want = calloc((size_t)size + 1, sizeof *want);
    g.x = dy;
    for (int64_t i = 0; i < n; i++) want[source(&g, i, select)] += get(dtype, dy, i);
    check_run(&(kernel_run){select ? "index_select_backward" : "gather_backward", dtype,
                            acc_of(dtype), size, size, NULL, want,
                            select ? call_select_backward : call_gather_backward, &g, 1});
    free(dy), free(want);
}

static void check_shapes(int dtype)
{
    for (int i = 0; i < 2 * N_SHAPES; i++) {
        indexing g = shapes[i / 2];
        int select = i % 2;
        int64_t n = select ? g.m : g.outer * g.m * g.inner, *index = new_values(I64, n);
        uint64_t state = 3;
        for (int64_t k = 0; k < n; k++) index[k] = (int64_t)(noise(&state) * (double)g.n);
        g.index = index;
        check_reading(dtype, g, select);
        if (dtype <= F64) check_adding(dtype, g, select);
        free(index);
    }
}

static void shapes_and_dtypes(void) { each_table(U8, check_shapes); }

static void check_find(int dtype)
{
    enum { N = 100001 };
    static const int64_t planted[][2] = {{-1, -1}, {0, 5}, {N - 1, 3}, {70000, 20000}, {17, 16}};
    for (int i = 0; i < 5; i++)
        for (int threads = 1; threads <= 3; threads++) {
            void *x = new_values(dtype, N);
            for (int64_t k = 0; k < N; k++) put(dtype, x, k, (double)(k % 10));
            put(dtype, x, 40, 99); /* the exception */
            int64_t want = -1, at = 7;
            for (int k = 0; k < 2; k++) {
                if (planted[i][k] < 0) continue;
                put(dtype, x, planted[i][k], 10 + k);
                want = want < 0 || planted[i][k] < want ? planted[i][k] : want;
            }
            ul_cpu_set_threads(threads);
            ul_cpu_kernels(dtype)->find_outside(ul_cpu_stream(), &at, x, N, 0, 10, 99);
            CHECK(at == want, "%s: %lld, not %lld", dtype_names[dtype], (long long)at,
                  (long long)want);
            ul_cpu_kernels(dtype)->find_outside(ul_cpu_stream(), &at, x, 0, 0, 10, 99);
            CHECK(at == -1);
            free(x);
        }
}

static void finds(void)
{
    each_table(U8, check_find);
    int64_t x[3] = {INT64_MIN, -1, INT64_MAX}, at;
    ul_cpu_kernels(I64)->find_outside(ul_cpu_stream(), &at, x, 3, INT64_MIN, INT64_MAX, 0);
    CHECK(at == 2);
    double nan[2] = {1, NAN};
    ul_cpu_kernels(F64)->find_outside(ul_cpu_stream(), &at, nan, 2, 0, 5, 0);
    CHECK(at == 1);
}

int main(void)
{
    RUN(shapes_and_dtypes);
    RUN(finds);
    return check_done();
}
