/* ops_proof.h - what an op must prove, all at once: gradients by central differences, dtypes
 * against f64, shapes on meta, and each allocation failing once.
 */
#ifndef UL_OPS_PROOF_H
#define UL_OPS_PROOF_H

#include "ops.h"

enum { MAX_IN = 4, MAX_OUT = 2 };

/* An op under test: makes n_out results from n_in inputs, whatever views it takes between. */
typedef struct op_case {
    const char *name;
    int (*run)(ul_tensor **y, ul_tensor *const *x);
    int n_out;
    ul_tensor *x[MAX_IN]; /* owned; those of float dtype are differentiated */
} op_case;

/* Refused with this code and this sentence. */
#define REFUSED(expression, code, sentence) CHECK(failed_with(expression, code, sentence))

static inline void put(ul_tensor *t, int64_t i, double value)
{
    void *data = ul_tensor_data(t);
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    switch (ul_tensor_dtype(t)) {
    case UL_F32:
        ((float *)data)[i] = narrow;
        break;
    case UL_BF16:
        ((uint16_t *)data)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        break;
    case UL_F64:
        ((double *)data)[i] = value;
        break;
    case UL_I32:
        ((int32_t *)data)[i] = (int32_t)value;
        break;
    case UL_I64:
        ((int64_t *)data)[i] = (int64_t)value;
        break;
    default:
        ((uint8_t *)data)[i] = (uint8_t)value;
        break;
    }
}

/* Element i in row-major order, whatever the strides. */
static inline double get(const ul_tensor *t, int64_t i)
{
    int64_t index[UL_MAX_DIMS] = {0};
    double value = NAN;
    for (int d = ul_tensor_ndim(t) - 1; d >= 0; d--) {
        index[d] = i % ul_tensor_dim(t, d);
        i /= ul_tensor_dim(t, d);
    }
    must(ul_tensor_get(&value, t, index));
    return value;
}

static inline ul_tensor *new_tensor(ul_dtype dtype, int ndim, const int64_t *shape)
{
    ul_tensor *t = NULL;
    must(ul_tensor_new(&t, dtype, UL_CPU, ndim, shape));
    return t;
}

/* A vector of these values. */
#define LIST(dtype, ...)                     \
    tensor_of(dtype, VALUES(__VA_ARGS__), 1, \
              (const int64_t[]){sizeof((double[]){__VA_ARGS__}) / sizeof(double)})

/* A copy of t in another float dtype. */
static inline ul_tensor *copy_as(const ul_tensor *t, ul_dtype dtype)
{
    if (!ul_dtype_is_float(ul_tensor_dtype(t))) dtype = ul_tensor_dtype(t);
    ul_tensor *y = new_tensor(dtype, ul_tensor_ndim(t), ul_tensor_shape(t));
    for (int64_t i = 0; i < ul_tensor_size(t); i++) put(y, i, get(t, i));
    return y;
}

static inline int count_inputs(const op_case *c)
{
    int n = 0;
    while (n < MAX_IN && c->x[n]) n++;
    return n;
}

static inline int is_float(const ul_tensor *t) { return ul_dtype_is_float(ul_tensor_dtype(t)); }

static inline void free_all(ul_tensor **ts, int n)
{
    for (int i = 0; i < n; i++) {
        ul_tensor_free(ts[i]);
        ts[i] = NULL;
    }
}

static inline void free_case(op_case *c) { free_all(c->x, MAX_IN); }

static inline ul_tensor *random_as(ul_dtype dtype, int ndim, const int64_t *shape)
{
    ul_tensor *wide = random_tensor(-1, 1, ndim, shape), *t = copy_as(wide, dtype);
    ul_tensor_free(wide);
    return t;
}

#define RANDOM(...) random_as(UL_F64, SHAPE(__VA_ARGS__))

/* Random seeds for the results of a run, in their dtypes. */
static inline void make_seeds(ul_tensor **seeds, ul_tensor *const *ys, int n)
{
    for (int i = 0; i < n; i++)
        seeds[i] = random_as(ul_tensor_dtype(ys[i]), ul_tensor_ndim(ys[i]), ul_tensor_shape(ys[i]));
}

/* The scalar that is differentiated: results weighted by the seeds. */
static inline double loss_of(const op_case *c, ul_tensor *const *seeds)
{
    ul_tensor *y[MAX_OUT] = {NULL};
    double sum = 0;
    int before = ul_set_grad_enabled(0);
    must(c->run(y, c->x));
    ul_set_grad_enabled(before);
    for (int i = 0; i < c->n_out && y[i]; i++)
        for (int64_t j = 0; j < ul_tensor_size(y[i]); j++) sum += get(y[i], j) * get(seeds[i], j);
    free_all(y, MAX_OUT);
    return sum;
}

/* Runs the case on its inputs as leaves; grads[i] are new handles. */
static inline int run_backward(const op_case *c, ul_tensor **y, ul_tensor **seeds,
                               ul_tensor **grads)
{
    int n = count_inputs(c);
    for (int i = 0; i < n; i++)
        if (is_float(c->x[i])) must(ul_tensor_require_grad(c->x[i], 1));
    int rc = c->run(y, c->x);
    if (rc < 0) return rc;
    if (!seeds[0]) make_seeds(seeds, y, c->n_out);
    rc = ul_backward_all(y, seeds, c->n_out, 0);
    for (int i = 0; rc == UL_OK && i < n; i++) must(ul_tensor_grad(&grads[i], c->x[i]));
    return rc;
}

static inline void forget_grads(const op_case *c)
{
    for (int i = 0; i < count_inputs(c); i++)
        if (is_float(c->x[i])) must(ul_tensor_require_grad(c->x[i], 0));
}

/* Central differences against the gradient rule, f64: within 1e-8 max(1, max |gradient|). */
static inline void check_gradient(const op_case *c)
{
    ul_tensor *y[MAX_OUT] = {NULL}, *seeds[MAX_OUT] = {NULL}, *grads[MAX_IN] = {NULL};
    const double h = 1e-6;
    must(run_backward(c, y, seeds, grads));
    for (int i = 0; i < count_inputs(c); i++) {
        if (!is_float(c->x[i])) continue;
        CHECK(grads[i] != NULL, "%s: input %d has no gradient", c->name, i);
        if (!grads[i]) continue;
        double gap = 0, largest = 1;
        double *x = ul_tensor_data(c->x[i]);
        for (int64_t j = 0; j < ul_tensor_size(c->x[i]); j++) {
            double middle = x[j], analytic = get(grads[i], j);
            x[j] = middle + h;
            double above = loss_of(c, seeds);
            x[j] = middle - h;
            double below = loss_of(c, seeds);
            x[j] = middle;
            gap = fmax(gap, fabs((above - below) / (2 * h) - analytic));
            largest = fmax(largest, fabs(analytic));
            if (isnan(analytic)) gap = INFINITY;
        }
        CHECK(gap <= 1e-8 * largest, "%s: input %d: off by %g of %g", c->name, i, gap, largest);
    }
    forget_grads(c);
    free_all(grads, MAX_IN);
    free_all(y, MAX_OUT);
    free_all(seeds, MAX_OUT);
}

/* Largest difference of a and b, relative to the largest |b| and at least 1. */
static inline double gap_of(const ul_tensor *a, const ul_tensor *b)
{
    double gap = 0, largest = 1;
    if (!a || !b || ul_tensor_size(a) != ul_tensor_size(b)) return INFINITY;
    for (int64_t i = 0; i < ul_tensor_size(a); i++) {
        double x = get(a, i), y = get(b, i);
        if (x == y || (isnan(x) && isnan(y))) continue;
        gap = fmax(gap, fabs(x - y));
        largest = fmax(largest, fabs(y));
        if (isnan(x) != isnan(y)) return INFINITY;
    }
    return gap / largest;
}

/* Results and gradients in a narrower dtype against f64 from the same (rounded) numbers; leaves'
 * gradients are accumulators.
 */
static inline void check_dtype(const op_case *c, ul_dtype dtype, double tolerance)
{
    op_case narrow = *c, wide = *c;
    int n = count_inputs(c);
    for (int i = 0; i < n; i++) {
        narrow.x[i] = copy_as(c->x[i], dtype);
        wide.x[i] = copy_as(narrow.x[i], UL_F64);
    }
    ul_tensor *y[2][MAX_OUT] = {{NULL}}, *seeds[2][MAX_OUT] = {{NULL}},
              *grads[2][MAX_IN] = {{NULL}};
    must(run_backward(&narrow, y[0], seeds[0], grads[0]));
    for (int i = 0; i < c->n_out; i++) seeds[1][i] = copy_as(seeds[0][i], UL_F64);
    must(run_backward(&wide, y[1], seeds[1], grads[1]));
    for (int i = 0; i < c->n_out; i++)
        CHECK(gap_of(y[0][i], y[1][i]) <= tolerance, "%s %s: result %d is off by %g", c->name,
              ul_dtype_name(dtype), i, gap_of(y[0][i], y[1][i]));
    for (int i = 0; i < n; i++) {
        if (!is_float(c->x[i])) continue;
        double gap = gap_of(grads[0][i], grads[1][i]);
        CHECK(gap <= tolerance, "%s %s: gradient %d is off by %g", c->name, ul_dtype_name(dtype), i,
              gap);
        CHECK(grads[0][i] && ul_tensor_dtype(grads[0][i]) == UL_F32, "%s: a leaf's gradient",
              c->name);
    }
    for (int k = 0; k < 2; k++) {
        free_all(y[k], MAX_OUT);
        free_all(seeds[k], MAX_OUT);
        free_all(grads[k], MAX_IN);
    }
    free_case(&narrow);
    free_case(&wide);
}

/* Fails each allocation of forward and backward once: an error each time, nothing left behind. */
static inline void check_each_allocation(const op_case *c)
{
    ul_memory_stats before, after;
    ul_tensor *seeds[MAX_OUT] = {NULL}, *first[MAX_IN] = {NULL}, *y[MAX_OUT] = {NULL};
    must(run_backward(c, y, seeds, first));
    free_all(y, MAX_OUT);
    forget_grads(c);
    for (int64_t n = 1, done = 0; !done && n < 1000; n++) {
        ul_tensor *grads[MAX_IN] = {NULL};
        for (int i = 0; i < count_inputs(c); i++)
            if (is_float(c->x[i])) must(ul_tensor_require_grad(c->x[i], 1));
        ul_memory(&before, UL_CPU);
        int64_t count = ul_debug_allocations();
        ul_debug_fail_allocation(n);
        int rc = run_backward(c, y, seeds, grads);
        ul_debug_fail_allocation(0);
        done = ul_debug_allocations() - count < n;
        CHECK(done ? rc == UL_OK : rc < 0, "%s: allocation %d: %d", c->name, (int)n, rc);
        for (int i = 0; done && i < MAX_IN; i++)
            CHECK(!first[i] || gap_of(grads[i], first[i]) == 0, "%s: other gradients", c->name);
        free_all(y, MAX_OUT);
        free_all(grads, MAX_IN);
        for (int i = 0; i < count_inputs(c); i++)
            if (is_float(c->x[i])) must(ul_tensor_set_grad(c->x[i], NULL));
        ul_memory(&after, UL_CPU);
        CHECK(after.live == before.live && after.live_tensors == before.live_tensors,
              "%s: allocation %d leaves %d bytes, %d tensors", c->name, (int)n,
              (int)(after.live - before.live), (int)(after.live_tensors - before.live_tensors));
        forget_grads(c);
    }
    free_all(first, MAX_IN);
    free_all(seeds, MAX_OUT);
}

/* Shapes and dtypes on meta are those on cpu, forward and backward. */
static inline void check_meta(const op_case *c)
{
    op_case there = *c;
    ul_tensor *y[MAX_OUT] = {NULL}, *on_meta[MAX_OUT] = {NULL}, *grad = NULL;
    for (int i = 0; i < count_inputs(c); i++) {
        must(ul_tensor_new(&there.x[i], ul_tensor_dtype(c->x[i]), UL_META, ul_tensor_ndim(c->x[i]),
                           ul_tensor_shape(c->x[i])));
        if (is_float(c->x[i])) must(ul_tensor_require_grad(there.x[i], 1));
    }
    must(c->run(y, c->x));
    must(there.run(on_meta, there.x));
    ul_tensor *seeds[MAX_OUT] = {NULL};
    for (int i = 0; i < c->n_out && on_meta[i]; i++) {
        CHECK(ul_tensor_dtype(y[i]) == ul_tensor_dtype(on_meta[i]), "%s on meta", c->name);
        CHECK(has_shape(on_meta[i], ul_tensor_ndim(y[i]), ul_tensor_shape(y[i])), "%s on meta",
              c->name);
        must(ul_tensor_new(&seeds[i], ul_tensor_dtype(y[i]), UL_META, ul_tensor_ndim(y[i]),
                           ul_tensor_shape(y[i])));
    }
    if (on_meta[0]) must(ul_backward_all(on_meta, seeds, c->n_out, 0));
    for (int i = 0; i < count_inputs(c); i++) {
        if (!is_float(c->x[i])) continue;
        must(ul_tensor_grad(&grad, there.x[i]));
        CHECK(grad && has_shape(grad, ul_tensor_ndim(c->x[i]), ul_tensor_shape(c->x[i])),
              "%s: gradient %d on meta", c->name, i);
        ul_tensor_free(grad);
    }
    free_all(seeds, MAX_OUT);
    free_all(y, MAX_OUT);
    free_all(on_meta, MAX_OUT);
    free_case(&there);
}

/* All that an op must prove, then frees the case. Inputs are f64. */
static inline void check_op(op_case c)
{
    check_gradient(&c);
    check_dtype(&c, UL_F32, 1e-5);
    check_dtype(&c, UL_BF16, 2e-2);
    check_each_allocation(&c);
    check_meta(&c);
    free_case(&c);
}

/* Nothing is left of a test. */
static inline void check_memory(void)
{
    for (ul_device device = 0; device < UL_DEVICES; device++) {
        ul_memory_stats stats;
        ul_memory(&stats, device);
        CHECK(stats.live == 0 && stats.live_tensors == 0, "%s: %d bytes, %d tensors are left",
              ul_device_name(device), (int)stats.live, (int)stats.live_tensors);
    }
}

#endif
