/* kernels_shape_test.c - fill, arange, copy (transposes, holes, far strides), casts, accumulate. */
#include <sys/mman.h>

#include "check.h"
#include "values.h"

static void check_fill(int dtype, const ul_loop *l)
{
    void *y = new_values(dtype, loop_span(l, 0));
    ul_cpu_kernels(dtype)->fill(ul_cpu_stream(), y, 7.25, l);
    double want = rounded(dtype, dtype <= F64 ? 7.25 : 7), total = 0;
    for (int64_t i = 0; i < loop_span(l, 0); i++) total += get(dtype, y, i);
    CHECK(total == want * (double)loop_count(l), "%s: %g", dtype_names[dtype], total);
    free(y);
}

static void fills(void)
{
    static const int64_t holes[1][2] = {{10, 2}}, column[1][2] = {{40, 8}};
    const ul_loop loops[] = {loop_1(0, 1, 0, 0),
                             loop_1(40003, 1, 0, 0),
                             loop_2(9, 4, holes, 1),
                             loop_2(5001, 3, column, 1),
                             {.ndim = 0}};
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype < N_DTYPES; dtype++)
            for (int i = 0; i < 5 && has_table(level, dtype); i++) check_fill(dtype, &loops[i]);
    uint8_t u[2];
    ul_loop two = loop_1(2, 1, 0, 0);
    ul_cpu_kernels(U8)->fill(ul_cpu_stream(), u, -3, &two);
    CHECK(u[0] == 0 && u[1] == 0);
    ul_cpu_kernels(U8)->fill(ul_cpu_stream(), u, 300, &two);
    CHECK(u[0] == 255 && u[1] == 255);
}

static void ranges(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype < N_DTYPES; dtype++) {
            if (!has_table(level, dtype)) continue;
            void *y = new_values(dtype, 20001);
            double start = dtype == U8 ? 0 : -5, step = dtype <= F64 ? 0.5 : 1;
            int64_t n = dtype == U8 ? 200 : 20001;
            ul_cpu_kernels(dtype)->arange(ul_cpu_stream(), y, start, step, n);
            int bad = 0;
            for (int64_t i = 0; i < n; i++)
                bad += get(dtype, y, i) != rounded(dtype, start + step * (double)i);
            CHECK(!bad, "%s: %d wrong", dtype_names[dtype], bad);
            free(y);
        }
    int64_t far[3];
    ul_cpu_kernels(I64)->arange(ul_cpu_stream(), far, 0x1p53, 1, 3);
    CHECK(far[0] == INT64_C(1) << 53 && far[1] == far[0] + 1 && far[2] == far[0] + 2);
}

/* ---- copy ---- */

static void check_copy(int dtype, const ul_loop *l)
{
    void *x = new_noise(dtype, loop_span(l, 1), 0, 250, 1);
    void *y = new_values(dtype, loop_span(l, 0));
    ul_cpu_kernels(dtype)->copy(ul_cpu_stream(), y, x, l);
    int bad = 0;
    double total = 0, total_y = 0;
    for (int64_t i = 0; i < loop_count(l); i++) {
        double want = get(dtype, x, loop_at(l, 1, i));
        bad += get(dtype, y, loop_at(l, 0, i)) != want;
        total += want;
    }
    for (int64_t i = 0; i < loop_span(l, 0); i++) total_y += get(dtype, y, i);
    CHECK(!bad && close_to(total_y, total, 1e-12), "copy %s %s %d [%d, ..]: %d wrong",
          dtype_names[dtype], ul_cpu_isa(), l->ndim, (int)l->shape[0], bad);
    free(x), free(y);
}

static void copies(void)
{
    const ul_loop loops[] = {
        {.ndim = 0},
        loop_1(0, 1, 1, 0),
        loop_1(50001, 1, 1, 0),
        loop_1(50001, 2, 3, 0),
        loop_1(3001, 1, 0, 0),
        {2, {300, 517}, {{517, 1}, {1, 300}}}, /* transposes */
        {2, {300, 517}, {{1, 300}, {517, 1}}},
        {2, {300, 517}, {{600, 1}, {1, 301}}},
        {2, {64, 0}, {{1, 64}, {1, 64}}},
        {2, {7, 9}, {{9, 1}, {1, 7}}},
        {3, {5, 33, 70}, {{2310, 70, 1}, {70, 350, 1}}}, /* permutations */
        {3, {5, 33, 70}, {{2310, 70, 1}, {1, 5, 165}}},
        {3, {70, 33, 5}, {{165, 5, 1}, {1, 350, 70}}},
        {3, {3, 40, 50}, {{2000, 50, 1}, {0, 1, 40}}},
        {3, {3, 40, 50}, {{2000, 50, 1}, {0, 1, 0}}},
        {4, {3, 4, 20, 30}, {{2400, 600, 30, 1}, {20, 60, 1, 240}}},
    };
    for (int threads = 1; threads <= 3; threads += 2) {
        ul_cpu_set_threads(threads);
        for (int level = 0; next_isa(&level); level++)
            for (int dtype = 0; dtype < N_DTYPES; dtype++)
                for (int i = 0; i < 16 && has_table(level, dtype); i++)
                    check_copy(dtype, &loops[i]);
    }
}

/* Rows more than 4 GiB apart: only the pages in use exist. */
static void strides_past_32_bits(void)
{
    const int64_t far = (INT64_C(1) << 32) + 4096;
    size_t bytes = (size_t)(2 * far + 4096);
    uint8_t *x = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (x == MAP_FAILED) return;
    uint8_t y[30];
    for (int i = 0; i < 30; i++) x[i / 10 * far + i % 10] = (uint8_t)(i + 1);
    ul_loop in = {2, {3, 10}, {{10, 1}, {far, 1}}}, across = {2, {10, 3}, {{1, 10}, {1, far}}};
    const ul_kernels *k = ul_cpu_kernels(U8);
    for (int turn = 0; turn < 2; turn++) {
        memset(y, 0, sizeof y);
        k->copy(ul_cpu_stream(), y, x, turn ? &across : &in);
        for (int i = 0; i < 30; i++) CHECK(y[i] == i + 1);
    }
    k->fill(ul_cpu_stream(), x, 9, &(ul_loop){2, {3, 10}, {{far, 1}}});
    CHECK(x[0] == 9 && x[far + 9] == 9 && x[2 * far + 9] == 9 && x[2 * far + 10] == 0);
    munmap(x, bytes);
}

/* ---- casts ---- */

typedef int caster(ul_stream *, void *, const void *, const ul_loop *);

static caster *caster_of(int to, int from)
{
    const ul_kernels *k = ul_cpu_kernels(to);
    caster *const all[N_DTYPES] = {k->from_f32, k->from_bf16, k->from_f64,
                                   k->from_i32, k->from_i64,  k->from_u8};
    return all[from];
}

static double cast_of(int to, double x)
{
    static const double least[N_DTYPES] = {[I32] = -0x1p31, [I64] = -0x1p63, [U8] = 0};
    static const double most[N_DTYPES] = {[I32] = 0x1p31 - 1, [I64] = 0x1p63, [U8] = 255};
    if (to <= F64) return rounded(to, x);
    if (x != x) return 0;
    return x < least[to] ? least[to] : x > most[to] ? most[to] : trunc(x);
}

static void check_cast(int to, int from)
{
    static const double edges[] = {
        0,      0.5,     -0.5,       1.99, -1.99,    255.5,     256,        -1,      1e6,
        -1e6,   3e9,     -3e9,       1e18, -1e18,    1e30,      -1e30,      0x1p31,  -0x1p31,
        0x1p63, -0x1p63, 1.00390625, NAN,  INFINITY, -INFINITY, 1.01171875, 16777217};
    enum { N = 30011, N_EDGES = sizeof edges / sizeof *edges };
    void *x = new_noise(from, N, from == U8 ? 0 : -300, from == U8 ? 255 : 300, 3);
    for (int i = 0; i < N_EDGES; i++) {
        double v = from <= F64 ? edges[i] : cast_of(from, edges[i]);
        if (from == I64 && v >= 0x1p62) v = 0x1p62;
        put(from, x, i, v);
    }
    for (int step = 1; step <= 2; step++) {
        int64_t n = N / step;
        void *y = new_values(to, N);
        ul_loop l = loop_1(n, step, step, 0);
        caster_of(to, from)(ul_cpu_stream(), y, x, &l);
        for (int64_t i = 0; i < n; i++) {
            double want = cast_of(to, get(from, x, i * step)), got = get(to, y, i * step);
            if (!close_to(got, want, 0)) {
                CHECK(0, "%s from %s %s: %.17g from %.17g, not %.17g", dtype_names[to],
                      dtype_names[from], ul_cpu_isa(), got, get(from, x, i * step), want);
                break;
            }
        }
        free(y);
    }
    free(x);
}

static void casts(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int to = 0; to < N_DTYPES; to++)
            for (int from = 0; from < N_DTYPES && has_table(level, to); from++)
                check_cast(to, from);
}

static void bf16_keeps_nan(void)
{
    for (int level = 0; next_isa(&level); level++) {
        uint32_t bits[40];
        float x[40];
        uint16_t y[40];
        for (int i = 0; i < 40; i++) bits[i] = i % 2 ? 0x7f800001u : 0xffffffffu;
        memcpy(x, bits, sizeof x);
        ul_loop l = loop_1(40, 1, 1, 0);
        ul_cpu_kernels(BF16)->from_f32(ul_cpu_stream(), y, x, &l);
        for (int i = 0; i < 40; i++) CHECK((y[i] & 0x7fff) > 0x7f80);
    }
}

static void accumulates(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= F64; dtype++) {
            enum { N = 40001 };
            int sum = dtype == F64 ? F64 : F32;
            void *x = new_noise(dtype, N, -1, 1, 4), *y = new_noise(sum, N, -1, 1, 5);
            void *before = new_noise(sum, N, -1, 1, 5);
            ul_cpu_kernels(dtype)->accumulate(ul_cpu_stream(), y, x, N);
            int bad = 0;
            for (int64_t i = 0; i < N; i++)
                bad += get(sum, y, i) != rounded(sum, get(sum, before, i) + get(dtype, x, i));
            CHECK(!bad, "%s: %d wrong", dtype_names[dtype], bad);
            free(x), free(y), free(before);
        }
}

int main(void)
{
    RUN(fills);
    RUN(ranges);
    RUN(copies);
    RUN(strides_past_32_bits);
    RUN(casts);
    RUN(bf16_keeps_nan);
    RUN(accumulates);
    return check_done();
}
