/* sort_test.c - sort and topk: order, stability, NaN, ties. */
#include "runs.h"

/* Whether element a of the row stands before b. */
static int stands_before(double x, int64_t a, double y, int64_t b, int descending)
{
    int x_nan = x != x, y_nan = y != y;
    if (x_nan && y_nan) return a < b;
    if (x_nan || y_nan) return x_nan == descending;
    if (x == y) return a < b;
    return descending ? x > y : x < y;
}

/* The first k of a row are the right ones in the right order: each stands before the next, and
 * k-th before all that were left out.
 */
static int row_is_right(int dtype, const void *x, const void *values, const int64_t *index,
                        int64_t cols, int64_t k, int descending)
{
    char *taken = calloc((size_t)cols + 1, 1);
    int good = 1;
    for (int64_t i = 0; i < k && good; i++) {
        int64_t at = index[i], last = i ? index[i - 1] : 0;
        good = at >= 0 && at < cols && !taken[at];
        if (!good) break;
        double here = get(dtype, x, at);
        taken[at] = 1;
        good = close_to(get(dtype, values, i), here, 0) &&
               (i == 0 || stands_before(get(dtype, x, last), last, here, at, descending));
    }
    for (int64_t i = 0; i < cols && good && k > 0; i++)
        good = taken[i] || stands_before(get(dtype, x, index[k - 1]), index[k - 1],
                                         get(dtype, x, i), i, descending);
    free(taken);
    return good;
}

static const int64_t shapes[][2] = {{1, 0},  {1, 1},   {3, 2},    {5, 15},    {4, 16},
                                    {4, 17}, {7, 100}, {3, 1025}, {2, 20000}, {300, 33}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Few values, so that many are equal, or many; NaN, both zeros and infinities among the floats. */
static void *new_rows(int dtype, int64_t n, int many)
{
    void *x = new_noise(dtype, n, dtype == U8 ? 0 : -6, 7, (uint64_t)n);
    uint64_t state = 5;
    for (int64_t i = 0; i < n; i++) {
        if (!many) put(dtype, x, i, floor(get(dtype, x, i) / 2));
        double chance = noise(&state);
        if (dtype > F64 || chance > 0.1) continue;
        put(dtype, x, i, chance < 0.02 ? NAN : chance < 0.04 ? -0.0 : chance < 0.06 ? 0 : INFINITY);
    }
    return x;
}

static void *at(int dtype, void *p, int64_t i)
{
    return (char *)p + (size_t)i * dtype_sizes[dtype];
}

static void check_sort(int dtype, int64_t rows, int64_t cols, int descending, void *x)
{
    void *values = new_values(dtype, rows * cols), *again = new_values(dtype, rows * cols);
    int64_t *index = new_values(I64, rows * cols), *work = new_values(I64, rows * cols);
    int64_t *other = new_values(I64, rows * cols);
    const ul_kernels *k = ul_cpu_kernels(dtype);
    ul_cpu_set_threads(1);
    k->sort(ul_cpu_stream(), values, index, x, rows, cols, descending, work);
    int good = 1;
    for (int64_t row = 0; row < rows; row++)
        good &= row_is_right(dtype, at(dtype, x, row * cols), at(dtype, values, row * cols),
                             index + row * cols, cols, cols, descending);
    CHECK(good, "%s [%d, %d]", dtype_names[dtype], (int)rows, (int)cols);
    ul_cpu_set_threads(3);
    k->sort(ul_cpu_stream(), again, other, x, rows, cols, descending, work);
    CHECK(!memcmp(index, other, (size_t)(rows * cols) * sizeof *index));
    CHECK(!memcmp(values, again, (size_t)(rows * cols) * dtype_sizes[dtype]));
    free(values), free(again), free(index), free(other), free(work);
}

static void check_topk(int dtype, int64_t rows, int64_t cols, int64_t k, int largest, void *x)
{
    void *values = new_values(dtype, rows * k);
    int64_t *index = new_values(I64, rows * k);
    ul_cpu_kernels(dtype)->topk(ul_cpu_stream(), values, index, x, rows, cols, k, largest);
    int good = 1;
    for (int64_t row = 0; row < rows; row++)
        good &= row_is_right(dtype, at(dtype, x, row * cols), at(dtype, values, row * k),
                             index + row * k, cols, k, largest);
    CHECK(good, "%s [%d, %d] k %d largest %d", dtype_names[dtype], (int)rows, (int)cols, (int)k,
          largest);
    free(values), free(index);
}

static void check_shapes(int dtype)
{
    for (int i = 0; i < 4 * N_SHAPES; i++) {
        int64_t rows = shapes[i / 4][0], cols = shapes[i / 4][1];
        void *x = new_rows(dtype, rows * cols, i & 1);
        check_sort(dtype, rows, cols, i >> 1 & 1, x);
        const int64_t ks[] = {0, 1, 2, 10, cols / 2, cols};
        for (int k = 0; k < 6; k++)
            if (ks[k] <= cols) check_topk(dtype, rows, cols, ks[k], i >> 1 & 1, x);
        free(x);
    }
}

static void shapes_and_dtypes(void) { each_table(U8, check_shapes); }

static void edges_of_integers(void)
{
    int64_t x[4] = {INT64_MAX, -1, INT64_MIN, 0}, values[4], index[4], work[4];
    const ul_kernels *k = ul_cpu_kernels(I64);
    k->sort(ul_cpu_stream(), values, index, x, 1, 4, 0, work);
    CHECK(index[0] == 2 && index[1] == 1 && index[2] == 3 && index[3] == 0);
    CHECK(values[0] == INT64_MIN && values[3] == INT64_MAX);
    k->topk(ul_cpu_stream(), values, index, x, 1, 4, 1, 0);
    CHECK(index[0] == 2 && values[0] == INT64_MIN);
}

int main(void)
{
    RUN(shapes_and_dtypes);
    RUN(edges_of_integers);
    return check_done();
}
