/* matmul_test.c - gemm at every ISA level and dtype against sums in long double; or, where the path
 * of a backend is given that works in the host's memory, that backend's.
 */
#include <dlfcn.h>

#include "backend.h"
#include "check.h"
#include "kernels.h"
#include "values.h"

enum { GUARD = 64 }; /* elements before and after every c */

/* Half a unit in the last place of an accumulator. */
static const double unit_acc[] = {0x1p-24, 0x1p-24, 0x1p-53};

/* ---- elements ---- */

static uint64_t state;

/* In [0, n). */
static int64_t draw(int64_t n) { return (int64_t)(noise(&state) * (double)n); }

/* n elements, exactly as many as are allocated, so that the sanitizer sees a read past the end. */
static void *random_elements(int dtype, int64_t n)
{
    void *x = malloc((size_t)(n > 0 ? n : 1) * dtype_sizes[dtype]);
    for (int64_t i = 0; i < n; i++) put(dtype, x, i, 2 * noise(&state) - 1);
    return x;
}

/* ---- one call ---- */

static const ul_backend *backend; /* NULL: the cpu */

static int multiply(int dtype, void *c, const void *a, const void *b, const ul_gemm *g)
{
    if (backend) return backend->kernels[dtype]->gemm(backend->stream(), c, a, b, g);
    return ul_cpu_kernels(dtype)->gemm(ul_cpu_stream(), c, a, b, g);
}

typedef struct gemm_case {
    ul_gemm g;
    int dtype, c_dtype;
    void *a, *b, *c, *before; /* c and before hold c_count elements, c starts at GUARD */
    int64_t c_count;
} gemm_case;

/* How many elements `batch` matrices of rows x cols take. */
static int64_t span(int64_t batch, int64_t step, int64_t rows, int64_t cols, int64_t ld)
{
    if (batch == 0 || rows == 0 || cols == 0) return 0;
    return (batch - 1) * step + (rows - 1) * ld + cols;
}

/* A matrix with NaN in the padding of its rows, which nobody may read into a result. */
static void *random_matrices(int dtype, const ul_gemm *g, int64_t step, int64_t rows, int64_t cols,
                             int64_t ld)
{
    int64_t n = span(g->batch, step, rows, cols, ld);
    void *x = random_elements(dtype, n);
    for (int64_t i = 0; i < n; i++)
        if (step == 0 ? i % ld >= cols : i % step % ld >= cols) put(dtype, x, i, NAN);
    return x;
}

/* Strides are as tight as pad allows. What beta would read is random, all else in c is NaN. */
static gemm_case make_case(int dtype, ul_gemm g, int64_t pad)
{
    int64_t a_rows = g.a_trans ? g.k : g.m, a_cols = g.a_trans ? g.m : g.k;
    int64_t b_rows = g.b_trans ? g.n : g.k, b_cols = g.b_trans ? g.k : g.n;
    g.lda = a_cols + pad, g.ldb = b_cols + 2 * pad, g.ldc = g.n + 3 * pad;
    g.a_step = a_rows * g.lda, g.b_step = pad ? 0 : b_rows * g.ldb, g.c_step = g.m * g.ldc + pad;
    gemm_case t = {.g = g, .dtype = dtype, .c_dtype = g.c_acc && dtype == BF16 ? F32 : dtype};
    t.a = random_matrices(dtype, &g, g.a_step, a_rows, a_cols, g.lda);
    t.b = random_matrices(dtype, &g, g.b_step, b_rows, b_cols, g.ldb);
    if (g.bias) t.g.bias = random_elements(dtype, g.n);
    t.c_count = span(g.batch, g.c_step, g.m, g.n, g.ldc) + 2 * GUARD;
    t.c = random_elements(t.c_dtype, t.c_count);
    t.before = malloc((size_t)t.c_count * dtype_sizes[t.c_dtype]);
    for (int64_t i = 0; g.beta == 0 && i < t.c_count; i++) put(t.c_dtype, t.c, i, NAN);
    memcpy(t.before, t.c, (size_t)t.c_count * dtype_sizes[t.c_dtype]);
    return t;
}

static void free_case(gemm_case *t)
{
    free(t->a);
    free(t->b);
    free(t->c);
    free(t->before);
    free((void *)(uintptr_t)t->g.bias);
}

static void run(gemm_case *t)
{
    memcpy(t->c, t->before, (size_t)t->c_count * dtype_sizes[t->c_dtype]);
    char *c = (char *)t->c + GUARD * dtype_sizes[t->c_dtype];
    int rc = multiply(t->dtype, c, t->a, t->b, &t->g);
    CHECK(rc == 0, "gemm returns %d", rc);
}

/* Whether c [matrix, i, j] is what it should be. Each of k products and sums may be off by half a
 * unit of the accumulator, the result by half a unit of c.
 */
static int element_fits(const gemm_case *t, int64_t matrix, int64_t i, int64_t j, double got,
                        double old)
{
    const ul_gemm *g = &t->g;
    long double sum = 0, size = 0;
    int64_t a_first = matrix * g->a_step + (g->a_trans ? i : i * g->lda);
    int64_t b_first = matrix * g->b_step + (g->b_trans ? j * g->ldb : j);
    for (int64_t l = 0; l < g->k; l++) {
        double x = get(t->dtype, t->a, a_first + l * (g->a_trans ? g->lda : 1));
        double y = get(t->dtype, t->b, b_first + l * (g->b_trans ? 1 : g->ldb));
        sum += (long double)x * y;
        size += fabs(x * y);
    }
    sum *= g->alpha, size *= fabs(g->alpha);
    if (g->beta != 0) sum += g->beta * old, size += fabs(g->beta * old);
    if (g->bias) sum += get(t->dtype, g->bias, j), size += fabs(get(t->dtype, g->bias, j));
    double bound = unit_acc[t->dtype] * (double)(g->k + 8) * (double)size +
                   1.01 * dtype_eps[t->c_dtype] * (double)fabsl(sum);
    return fabs(got - (double)sum) <= bound;
}

/* Whether element `at` of c, guards counted, belongs to a matrix. */
static int locate(const ul_gemm *g, int64_t at, int64_t *matrix, int64_t *i, int64_t *j)
{
    at -= GUARD;
    if (at < 0 || g->c_step == 0 || g->ldc == 0) return 0;
    *matrix = at / g->c_step;
    *i = at % g->c_step / g->ldc;
    *j = at % g->c_step % g->ldc;
    return *matrix < g->batch && *i < g->m && *j < g->n;
}

static void check_result(const gemm_case *t, const char *level)
{
    size_t size = dtype_sizes[t->c_dtype];
    int wrong = 0, spilt = 0;
    for (int64_t at = 0; at < t->c_count; at++) {
        int64_t matrix, i, j;
        double got = get(t->c_dtype, t->c, at), old = get(t->c_dtype, t->before, at);
        if (locate(&t->g, at, &matrix, &i, &j))
            wrong += !element_fits(t, matrix, i, j, got, old);
        else
            spilt += memcmp((char *)t->c + (size_t)at * size, (char *)t->before + (size_t)at * size,
                            size) != 0;
    }
    const ul_gemm *g = &t->g;
    CHECK(!wrong && !spilt,
          "%s %s: %d wrong, %d outside; m %d n %d k %d batch %d trans %d%d alpha %g beta %g "
          "bias %d c_acc %d ldc %d",
          level, dtype_names[t->dtype], wrong, spilt, (int)g->m, (int)g->n, (int)g->k,
          (int)g->batch, g->a_trans, g->b_trans, g->alpha, g->beta, g->bias != NULL, g->c_acc,
          (int)g->ldc);
}

/* Runs on one thread and checks; then on two and three, which must not change a bit. */
static void check_case(int dtype, ul_gemm g, int64_t pad, const char *level)
{
    gemm_case t = make_case(dtype, g, pad);
    size_t bytes = (size_t)t.c_count * dtype_sizes[t.c_dtype];
    ul_cpu_set_threads(1);
    run(&t);
    check_result(&t, level);
    void *first = malloc(bytes);
    memcpy(first, t.c, bytes);
    for (int n = 2; n <= 3; n++) {
        ul_cpu_set_threads(n);
        run(&t);
        CHECK(memcmp(first, t.c, bytes) == 0, "%s %s: %d threads change m %d n %d k %d", level,
              dtype_names[dtype], n, (int)g.m, (int)g.n, (int)g.k);
    }
    free(first);
    free_case(&t);
}

/* Calls body for every level that this CPU has and every dtype that has kernels of its own there.
 */
static void every_table(void (*body)(int dtype, const char *level))
{
    for (int dtype = F32; dtype <= F64 && backend; dtype++) body(dtype, "the backend");
    if (backend) return;
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = F32; dtype <= F64; dtype++)
            if (has_table(level, dtype)) body(dtype, isa_names[level]);
    ul_cpu_set_threads(2);
}

/* ---- tests ---- */

static const double marker = 1; /* a bias is wanted; make_case() puts the real one in its place */

/* Odd sizes around those of vectors and tiles, with everything else drawn at random. */
static void odd_sizes(int dtype, const char *level)
{
    static const int64_t some[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  13, 15,  16,
                                   17, 24, 31, 33, 40, 48, 63, 64, 65, 80, 100, 129};
    enum { N = sizeof some / sizeof *some };
    state = 1;
    for (int i = 0; i < 120; i++) {
        int64_t bits = draw(256);
        ul_gemm g = {.m = some[draw(N)],
                     .n = some[draw(N)],
                     .k = some[draw(N)],
                     .batch = 1 + draw(8) / 6,
                     .alpha = bits & 16 ? 1 : -0.75,
                     .beta = bits & 32 ? 0 : 1.5,
                     .bias = bits & 64 ? NULL : &marker,
                     .a_trans = bits & 1,
                     .b_trans = bits >> 1 & 1,
                     .c_acc = bits >> 2 & 1};
        check_case(dtype, g, bits & 128 ? 0 : 3, level);
    }
}

static void test_odd_sizes(void) { every_table(odd_sizes); }

/* Past every limit at which gemm cuts: blocks, panels, pieces of k, strips. */
static void cut_sizes(int dtype, const char *level)
{
    static const int64_t shape[][3] = {{1030, 70, 9}, {9, 2000, 11}, {33, 17, 3100}, {2, 37, 4500},
                                       {41, 3, 8300}, {1, 2500, 13}, {70, 150, 130}};
    for (int i = 0; i < 7; i++)
        for (int trans = 0; trans < 4; trans++) {
            ul_gemm g = {.m = shape[i][0],
                         .n = shape[i][1],
                         .k = shape[i][2],
                         .batch = 1,
                         .alpha = 1,
                         .beta = trans == 1,
                         .bias = trans < 2 ? &marker : NULL,
                         .a_trans = trans & 1,
                         .b_trans = trans >> 1};
            check_case(dtype, g, trans, level);
        }
}

static void test_cut_sizes(void) { every_table(cut_sizes); }

static void batches(int dtype, const char *level)
{
    ul_gemm g = {.m = 20, .n = 24, .k = 30, .batch = 150, .alpha = 1, .b_trans = 1};
    check_case(dtype, g, 0, level);
    check_case(dtype, g, 1, level);
    g.m = 1, g.batch = 1000, g.bias = &marker;
    check_case(dtype, g, 0, level);
}

static void test_batches(void) { every_table(batches); }

/* Nothing to sum: c = beta c + bias; nothing to write: nothing is touched. */
static void empty_sizes(int dtype, const char *level)
{
    for (int i = 0; i < 16; i++) {
        ul_gemm g = {.m = i & 1 ? 0 : 7,
                     .n = i & 2 ? 0 : 9,
                     .k = 0,
                     .batch = i & 4 ? 0 : 2,
                     .alpha = 1,
                     .beta = i & 8 ? 0.5 : 0,
                     .bias = &marker};
        check_case(dtype, g, 1, level);
    }
    double c[4] = {1, 2, 3, 4};
    ul_gemm g = {
        .m = 2, .n = 2, .batch = 1, .lda = 5, .ldb = 5, .ldc = 2, .alpha = 1, .a_trans = 1};
    multiply(dtype, c, NULL, NULL, &g);
    CHECK(get(dtype, c, 0) == 0 && get(dtype, c, 3) == 0, "%s %s", level, dtype_names[dtype]);
}

static void test_empty_sizes(void) { every_table(empty_sizes); }

/* A NaN spoils its row of c and an infinity its column, nothing else. */
static void not_finite(int dtype, const char *level)
{
    enum { M = 23, N = 45, K = 19 };
    ul_gemm g = {.m = M, .n = N, .k = K, .batch = 1, .alpha = 1, .b_trans = 1};
    gemm_case t = make_case(dtype, g, 0);
    put(dtype, t.a, 5 * K + 7, NAN);
    put(dtype, t.b, 40 * K + 18, INFINITY);
    run(&t);
    int wrong = 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double x = get(t.c_dtype, t.c, GUARD + i * N + j);
            wrong += i == 5 ? !isnan(x) : j == 40 ? isfinite(x) : !isfinite(x);
        }
    CHECK(!wrong, "%s %s: %d", level, dtype_names[dtype], wrong);
    free_case(&t);
}

static void test_not_finite(void) { every_table(not_finite); }

/* x = op(matrix) v for a rows x cols matrix, in f64. */
static void apply(double *x, const void *matrix, int dtype, int64_t rows, int64_t cols, int trans,
                  const double *v)
{
    for (int64_t i = 0; i < rows; i++) {
        x[i] = 0;
        for (int64_t j = 0; j < cols; j++)
            x[i] += get(dtype, matrix, trans ? j * rows + i : i * cols + j) * v[j];
    }
}

/* Freivalds: C v = A (B v) for a random v of signs, at a size where all of C is too much to check.
 */
static void large(int dtype, const char *level)
{
    enum { M = 300, N = 1000, K = 1600 };
    static double v[N], bv[K], abv[M], cv[M];
    for (int j = 0; j < N; j++) v[j] = draw(2) ? 1 : -1;
    for (int trans = 1; trans < 3; trans++) {
        ul_gemm g = {.m = M, .n = N, .k = K, .batch = 1, .alpha = 1, .c_acc = 1};
        g.a_trans = trans & 1, g.b_trans = trans >> 1;
        gemm_case t = make_case(dtype, g, 0);
        run(&t);
        char *c = (char *)t.c + GUARD * dtype_sizes[t.c_dtype];
        apply(bv, t.b, dtype, K, N, g.b_trans, v);
        apply(abv, t.a, dtype, M, K, g.a_trans, bv);
        apply(cv, c, t.c_dtype, M, N, 0, v);
        /* Rounding errors are independent: sqrt(k) of them in an element, sqrt(n) elements. */
        double worst = 0, bound = 8 * unit_acc[dtype] * K * sqrt(N);
        for (int i = 0; i < M; i++) worst = fmax(worst, fabs(cv[i] - abv[i]));
        CHECK(worst < bound, "%s %s trans %d: %g, not below %g", level, dtype_names[dtype], trans,
              worst, bound);
        free_case(&t);
    }
}

static void test_large(void) { every_table(large); }

static int say(const char *sentence)
{
    fprintf(stderr, "%s\n", sentence);
    return -1;
}

static void open_backend(const char *path)
{
    int abi;
    ul_backend_getter *get = NULL;
    void *library = dlopen(path, RTLD_NOW);
    if (library) *(void **)&get = dlsym(library, UL_BACKEND_GETTER);
    CHECK(get, "%s", path);
    backend = get ? get(UL_BACKEND_ABI, &abi) : NULL;
    CHECK(backend && backend->open(0, say) == 0, "%s", path);
}

int main(int argc, char **argv)
{
    if (argc > 1) open_backend(argv[1]);
    if (check_bad) return 1;
    RUN(test_odd_sizes);
    RUN(test_cut_sizes);
    RUN(test_batches);
    RUN(test_empty_sizes);
    RUN(test_not_finite);
    RUN(test_large);
    return check_done();
}
