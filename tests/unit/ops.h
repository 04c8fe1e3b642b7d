/* ops.h - what tests of ops share: tensors of numbers, and gradients by central differences. */
#ifndef UL_OPS_H
#define UL_OPS_H

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "ulysses.h"

/* Dims of a shape and the shape, as two arguments: SHAPE(2, 3). */
#define SHAPE(...) \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
#define DIMS(...) \
    (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]) { __VA_ARGS__ }

enum { OPS_MOST = 4096 }; /* elements of a tensor in a test */

static inline void must(int rc)
{
    if (rc == UL_OK) return;
    printf("unexpected failure: %s\n", ul_last_error());
    abort();
}

/* From one index of t to the next, in row-major order. */
static inline void next_index(int64_t *index, const ul_tensor *t)
{
    for (int d = ul_tensor_ndim(t) - 1; d >= 0; d--) {
        if (++index[d] < ul_tensor_dim(t, d)) return;
        index[d] = 0;
    }
}

static inline void read_values(double *values, const ul_tensor *t)
{
    int64_t index[UL_MAX_DIMS] = {0};
    for (int64_t i = 0; i < ul_tensor_size(t); i++, next_index(index, t))
        must(ul_tensor_get(&values[i], t, index));
}

static inline ul_tensor *tensor_of(ul_dtype dtype, const double *values, int ndim,
                                   const int64_t *shape)
{
    ul_tensor *t;
    must(ul_tensor_new(&t, dtype, UL_CPU, ndim, shape));
    int64_t index[UL_MAX_DIMS] = {0};
    for (int64_t i = 0; i < ul_tensor_size(t); i++, next_index(index, t))
        must(ul_tensor_set(t, index, values[i]));
    return t;
}

#define VALUES(...) \
    (const double[]) { __VA_ARGS__ }

/* Start, start + 1, ... */
static inline ul_tensor *counting(ul_dtype dtype, double start, int ndim, const int64_t *shape)
{
    static double values[OPS_MOST];
    for (int i = 0; i < OPS_MOST; i++) values[i] = start + i;
    return tensor_of(dtype, values, ndim, shape);
}

static inline double noise(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

/* Numbers in [low, high) that no other is very close to, so that max and sort have no near ties. */
static inline ul_tensor *random_tensor(double low, double high, int ndim, const int64_t *shape)
{
    static double values[OPS_MOST];
    for (int i = 0; i < OPS_MOST; i++) values[i] = low + (high - low) * noise();
    return tensor_of(UL_F64, values, ndim, shape);
}

static inline ul_tensor *on_meta(ul_dtype dtype, int ndim, const int64_t *shape)
{
    ul_tensor *t;
    must(ul_tensor_new(&t, dtype, UL_META, ndim, shape));
    return t;
}

static inline int has_shape(const ul_tensor *t, int ndim, const int64_t *shape)
{
    return ul_tensor_ndim(t) == ndim &&
           (ndim == 0 || !memcmp(ul_tensor_shape(t), shape, (size_t)ndim * sizeof *shape));
}

static inline int is_near(double a, double b, double tolerance)
{
    if (isnan(a) || isnan(b) || isinf(a) || isinf(b)) return (isnan(a) && isnan(b)) || a == b;
    return fabs(a - b) <= tolerance * fmax(1, fabs(b));
}

/* Whether t has this shape and these values. */
static inline int is_tensor(const ul_tensor *t, const double *values, int ndim,
                            const int64_t *shape)
{
    static double got[OPS_MOST];
    if (!has_shape(t, ndim, shape)) return 0;
    read_values(got, t);
    for (int64_t i = 0; i < ul_tensor_size(t); i++)
        if (!is_near(got[i], values[i], 1e-6)) {
            printf("element %lld is %.17g, not %.17g\n", (long long)i, got[i], values[i]);
            return 0;
        }
    return 1;
}

/* Whether a call failed as it should. */
static inline int failed_with(int rc, int code, const char *sentence)
{
    if (rc == code && !strcmp(ul_last_error(), sentence)) return 1;
    printf("rc %d: %s\n", rc, rc < 0 ? ul_last_error() : "no failure");
    return 0;
}

typedef int (*ops_function)(ul_tensor **y, ul_tensor *const *x);

/* sum(seed f(x)) */
static inline double weighted(ops_function f, ul_tensor *const *x, const double *seed)
{
    static double values[OPS_MOST];
    ul_tensor *y;
    int before = ul_set_grad_enabled(0);
    must(f(&y, x));
    ul_set_grad_enabled(before);
    read_values(values, y);
    double sum = 0;
    for (int64_t i = 0; i < ul_tensor_size(y); i++) sum += seed[i] * values[i];
    ul_tensor_free(y);
    return sum;
}

/* The largest gap, relative to max(1, |gradient|), between the gradients of f at the n inputs
 * x (f64, contiguous) and central differences. Frees x. The second backward checks that gradients
 * are added up.
 */
static inline double gradient_gap(ops_function f, int n, ul_tensor **x)
{
    static double seed[OPS_MOST], got[OPS_MOST];
    const double h = 1e-6;
    double gap = 0;
    for (int i = 0; i < OPS_MOST; i++) seed[i] = 2 * noise() - 1;
    for (int i = 0; i < n; i++) must(ul_tensor_require_grad(x[i], 1));
    for (int pass = 1; pass <= 2; pass++) {
        ul_tensor *y, *weights;
        must(f(&y, x));
        weights = tensor_of(UL_F64, seed, ul_tensor_ndim(y), ul_tensor_shape(y));
        must(ul_backward(y, weights, 0));
        ul_tensor_free(y);
        ul_tensor_free(weights);
    }
    for (int i = 0; i < n; i++) {
        ul_tensor *grad;
        must(ul_tensor_grad(&grad, x[i]));
        if (!grad) return INFINITY;
        read_values(got, grad);
        ul_tensor_free(grad);
        double *data = ul_tensor_data(x[i]);
        for (int64_t j = 0; j < ul_tensor_size(x[i]); j++) {
            double value = data[j];
            data[j] = value + h;
            double up = weighted(f, x, seed);
            data[j] = value - h;
            double down = weighted(f, x, seed);
            data[j] = value;
            double expected = (up - down) / (2 * h), found = got[j] / 2;
            double this_gap = fabs(found - expected) / fmax(1, fabs(expected));
            if (!(this_gap <= gap)) gap = this_gap;
        }
    }
    for (int i = 0; i < n; i++) ul_tensor_free(x[i]);
    return gap;
}

#define CHECK_GRADIENT(f, ...)                                                           \
    do {                                                                                 \
        ul_tensor *inputs_[] = {__VA_ARGS__};                                            \
        double gap_ = gradient_gap(f, (int)(sizeof inputs_ / sizeof *inputs_), inputs_); \
        CHECK(gap_ <= 1e-8, "%s: gap %g", #f, gap_);                                     \
    } while (0)

static inline int64_t live_tensors(void)
{
    ul_memory_stats cpu, meta;
    ul_memory(&cpu, UL_CPU);
    ul_memory(&meta, UL_META);
    return cpu.live_tensors + meta.live_tensors;
}

/* Makes each allocation of f and its backward fail in turn: a code, and nothing kept. The functions
 * given here must free what they made when something in them fails. Frees x.
 */
static inline void check_allocations(const char *name, ops_function f, ul_tensor *x)
{
    must(ul_tensor_require_grad(x, 1));
    ul_tensor *y, *seed;
    must(f(&seed, &x)); /* any numbers of the right shape */
    int64_t live = live_tensors();
    int rc = UL_ENOMEM;
    for (int n = 1; n < 300 && rc != UL_OK; n++) {
        y = NULL;
        ul_debug_fail_allocation(n);
        rc = f(&y, &x);
        if (rc == UL_OK) rc = ul_backward(y, seed, 0);
        ul_debug_fail_allocation(0);
        CHECK(rc == UL_OK || rc == UL_ENOMEM, "%s, allocation %d: %d", name, n, rc);
        ul_tensor_free(y);
        must(ul_tensor_set_grad(x, NULL));
        CHECK(live_tensors() == live, "%s, allocation %d leaks", name, n);
    }
    CHECK(rc == UL_OK, "%s", name);
    ul_tensor_free(seed);
    ul_tensor_free(x);
}

/* Runs a test and checks that it has freed all it made, and the tape with it. */
#define RUN_OP(test)                                                                               \
    do {                                                                                           \
        int64_t before_ = live_tensors();                                                          \
        RUN(test);                                                                                 \
        if (live_tensors() != before_) {                                                           \
            check_failed++;                                                                        \
            printf("FAIL %s: leaks %lld tensors\n", #test, (long long)(live_tensors() - before_)); \
        }                                                                                          \
    } while (0)

#endif
