/* reduce.c - dims reduced away: sum, mean, logsumexp, max, min. */
#include <math.h>

#include "../internal.h"

/* ---- which dims ---- */

/* reduced[d]: whether dim d goes; n_dims = 0: all do. */
static int mark_dims(const char *op, int *reduced, const ul_tensor *x, int n_dims, const int *dims)
{
    for (int d = 0; d < UL_MAX_DIMS; d++) reduced[d] = n_dims == 0;
    for (int i = 0; i < n_dims; i++) {
        int dim = dims[i];
        UL_TRY(ul__dim(op, &dim, x));
        UL_REQUIRE(!reduced[dim]++, UL_ESHAPE, "%s: dim %d of x %s is given twice", op, dim + 1,
                   ul__shape(x));
    }
    return UL_OK;
}

/* How many elements of x make one of the result. */
static int64_t reduced_size(const ul_tensor *x, const int *reduced)
{
    int64_t size = 1;
    for (int d = 0; d < x->ndim; d++) size *= reduced[d] ? x->shape[d] : 1;
    return size;
}

/* The result's shape; returns its number of dims. */
static int result_shape(int64_t *shape, const ul_tensor *x, const int *reduced, int keep)
{
    int n = 0;
    for (int d = 0; d < x->ndim; d++)
        if (!reduced[d] || keep) shape[n++] = reduced[d] ? 1 : x->shape[d];
    return n;
}

/* The strides that the (contiguous) result has when it is broadcast back to x's dims. */
static void result_strides(int64_t *stride, int ndim, const int64_t *shape, const int *reduced)
{
    int64_t step = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = reduced[d] ? 0 : step;
        if (!reduced[d]) step *= shape[d];
    }
}

/* The loop of a reduction kernel (y, x), reduced dims last. Returns how many these are. */
static int reduction_loop(ul_loop *l, const ul_tensor *x, const int *reduced)
{
    int64_t stride[UL_MAX_DIMS], shape[UL_MAX_DIMS] = {1};
    int64_t to[UL_MAX_DIMS] = {0}, from[UL_MAX_DIMS] = {0};
    result_strides(stride, x->ndim, x->shape, reduced);
    int n = 0, fixed = 0;
    for (int last = 0; last < 2; last++)
        for (int d = 0; d < x->ndim; d++) {
            if ((reduced[d] != 0) != last) continue;
            shape[n] = x->shape[d];
            to[n] = stride[d];
            from[n++] = x->stride[d];
            fixed += last;
        }
    if (n == 0) n = fixed = 1; /* a scalar is the sum over one element */
    const int64_t *strides[] = {to, from};
    return ul__loop(l, n, shape, 2, strides, fixed);
}

static int fill(const ul_tensor *y, double value)
{
    ul_loop l = {.ndim = 1, .shape = {ul_tensor_size(y)}, .stride = {{1}}};
    return ul__kernels(y)->fill(ul__stream(y), ul__data(y), value, &l);
}

/* ---- sum, mean ---- */

/* y = scale x; scale is not rounded to x's dtype. x is contiguous. */
static int times(ul_tensor **y, ul_tensor *x, double scale)
{
    ul_tensor *out;
    if (scale == 1) {
        *y = ul_tensor_retain(x);
        return UL_OK;
    }
    UL_TRY(ul_tensor_new(&out, x->dtype, x->storage->device, x->ndim, x->shape));
    ul_loop l = {.ndim = 2, .shape = {ul_tensor_size(x), 1}, .stride = {{1}, {1}}};
    int rc =
        ul__kernels(x)->sum(ul__stream(x), (ul_grad){ul__data(out), 0}, ul__data(x), scale, &l, 1);
    if (rc < 0)
        ul_tensor_free(out);
    else
        *y = out;
    return rc;
}

/* y = scale * sum of x: dx = scale dy for every element. i[d]: whether dim d was reduced; f: scale.
 */
static int sum_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_variable *x = call->variable[0];
    int reduced[UL_MAX_DIMS];
    int64_t stride[UL_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) reduced[d] = call->i[d] != 0;
    result_strides(stride, x->ndim, x->shape, reduced);

    ul_tensor *scaled, *dx;
    UL_TRY(times(&scaled, dy[0], call->f[0]));
    int rc = ul__view_of(&dx, scaled, x->ndim, x->shape, stride, scaled->offset);
    ul_tensor_free(scaled);
    UL_TRY(rc);
    rc = ul__grad_add(call, 0, dx);
    ul_tensor_free(dx);
    return rc;
}

static int scaled_sum(ul_tensor **y, const ul_op *op, ul_tensor *x, const int *reduced, int keep,
                      double scale)
{
    ul_call call = {.op = op, .input = {x}, .f = {scale}};
    for (int d = 0; d < x->ndim; d++) call.i[d] = reduced[d];
    int64_t shape[UL_MAX_DIMS];
    int ndim = result_shape(shape, x, reduced, keep);
    ul_tensor *out =
        ul__output(&call, ul_dtype_is_float(x->dtype) ? x->dtype : UL_I64, ndim, shape);
    if (call.rc < 0) return ul__finish(&call, y);
    if (ul_tensor_size(x) == 0) {
        call.rc = fill(out, 0 * scale);
        return ul__finish(&call, y);
    }
    ul_loop l;
    int n_reduced = reduction_loop(&l, x, reduced);
    UL_RUN(&call, x, sum, (ul_grad){ul__data(out), 0}, ul__data(x), scale, &l, n_reduced);
    return ul__finish(&call, y);
}

static const ul_op sum = {"sum", sum_backward};
static const ul_op mean = {"mean", sum_backward};

int ul_sum(ul_tensor **y, ul_tensor *x, int n_dims, const int *dims, int keep)
{
    int reduced[UL_MAX_DIMS];
    UL_TRY(mark_dims("sum", reduced, x, n_dims, dims));
    return scaled_sum(y, &sum, x, reduced, keep, 1);
}

int ul_mean(ul_tensor **y, ul_tensor *x, int n_dims, const int *dims, int keep)
{
    int reduced[UL_MAX_DIMS];
    UL_TRY(ul__check_float("mean", "x", x));
    UL_TRY(mark_dims("mean", reduced, x, n_dims, dims));
    int64_t n = reduced_size(x, reduced);
    return scaled_sum(y, &mean, x, reduced, keep, n > 0 ? 1 / (double)n : NAN);
}

/* ---- logsumexp ---- */

/* y = log of the sum of exp x: dx = dy exp(x - y). saved: x, y. i[d]: whether dim d was reduced. */
static int logsumexp_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_tensor *x = call->saved[0], *y = call->saved[1];
    int reduced[UL_MAX_DIMS];
    int64_t dx_stride[UL_MAX_DIMS], y_stride[UL_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) reduced[d] = call->i[d] != 0;
    ul__contiguous_strides(dx_stride, x->ndim, x->shape);
    result_strides(y_stride, x->ndim, x->shape, reduced);
    const int64_t *strides[] = {dx_stride, y_stride, x->stride, y_stride};
    ul_loop l;
    ul__loop(&l, x->ndim, x->shape, 4, strides, 0);
    ul_grad dx;
    UL_TRY(ul__grad_of(&dx, call, 0));
    return ul__kernels(x)->logsumexp_backward(ul__stream(x), dx, ul__data(dy[0]), ul__data(x),
                                              ul__data(y), &l);
}

static const ul_op logsumexp = {"logsumexp", logsumexp_backward};

/* bf16: what is saved for the gradient must be f32, since exp(x - y) makes a relative error of an
 * absolute one; so the whole op runs in f32 between two casts.
 */
static int logsumexp_bf16(ul_tensor **y, ul_tensor *x, int n_dims, const int *dims, int keep)
{
    ul_tensor *wide = NULL, *result = NULL;
    int rc = ul_cast(&wide, x, UL_F32);
    if (rc == UL_OK) rc = ul_logsumexp(&result, wide, n_dims, dims, keep);
    if (rc == UL_OK) rc = ul_cast(y, result, UL_BF16);
    ul_tensor_free(wide);
    ul_tensor_free(result);
    return rc;
}

int ul_logsumexp(ul_tensor **y, ul_tensor *x, int n_dims, const int *dims, int keep)
{
    int reduced[UL_MAX_DIMS];
    UL_TRY(ul__check_float("logsumexp", "x", x));
    UL_TRY(mark_dims("logsumexp", reduced, x, n_dims, dims));
    if (x->dtype == UL_BF16) return logsumexp_bf16(y, x, n_dims, dims, keep);

    ul_call call = {.op = &logsumexp, .input = {x}};
    for (int d = 0; d < x->ndim; d++) call.i[d] = reduced[d];
    int64_t shape[UL_MAX_DIMS];
    int ndim = result_shape(shape, x, reduced, keep);
    ul_tensor *out = ul__output(&call, x->dtype, ndim, shape);
    ul__save(&call, x);
    ul__save(&call, out);
    if (call.rc < 0) return ul__finish(&call, y);
    if (ul_tensor_size(x) == 0) {
        call.rc = fill(out, -INFINITY);
        return ul__finish(&call, y);
    }
    ul_loop l;
    int n_reduced = reduction_loop(&l, x, reduced);
    UL_RUN(&call, x, logsumexp, ul__data(out), ul__data(x), &l, n_reduced);
    return ul__finish(&call, y);
}

/* ---- max, min ---- */

static const ul_op max_op = {"max", ul__pick_backward};
static const ul_op min_op = {"min", ul__pick_backward};

typedef int (*extreme_kernel)(ul_stream *s, void *y, int64_t *index, const void *x,
                              const ul_loop *l, int reduced);

static int extreme(ul_tensor **values, ul_tensor **index, const ul_op *op, extreme_kernel kernel,
                   ul_tensor *x, int dim, int keep)
{
    int reduced[UL_MAX_DIMS];
    UL_TRY(mark_dims(op->name, reduced, x, dim == UL_ALL ? 0 : 1, &dim));
    int64_t n = reduced_size(x, reduced);
    UL_REQUIRE(n > 0, UL_ESHAPE, "%s: x %s has nothing there to choose from", op->name,
               ul__shape(x));

    ul_call call = {.op = op, .input = {x}, .constant_outputs = values ? 2 : 1};
    int64_t shape[UL_MAX_DIMS], inner = 1;
    for (int d = x->ndim - 1; d >= 0 && !reduced[d]; d--) inner *= x->shape[d];
    call.i[0] = ul_tensor_size(x) / (inner > 0 ? n * inner : n); /* [outer, n, inner]: 1 is taken */
    call.i[1] = n;
    call.i[2] = 1;
    call.i[3] = inner;
    int ndim = result_shape(shape, x, reduced, keep);
    ul_tensor *largest = NULL, *at = NULL;
    if (values) largest = ul__output(&call, x->dtype, ndim, shape);
    if (index)
        ul__save(&call, at = ul__output(&call, UL_I64, ndim, shape));
    else if (ul__recording(&call))
        at = ul__save_new(&call, UL_I64, ndim, shape);
    if (call.rc == UL_OK) {
        ul_loop l;
        int n_reduced = reduction_loop(&l, x, reduced);
        call.rc = kernel(ul__stream(x), largest ? ul__data(largest) : NULL,
                         at ? ul__data(at) : NULL, ul__data(x), &l, n_reduced);
    }
    return values ? ul__finish_2(&call, values, index) : ul__finish(&call, index);
}

int ul_max(ul_tensor **values, ul_tensor **index, ul_tensor *x, int dim, int keep)
{
    return extreme(values, index, &max_op, ul__kernels(x)->max, x, dim, keep);
}

int ul_min(ul_tensor **values, ul_tensor **index, ul_tensor *x, int dim, int keep)
{
    return extreme(values, index, &min_op, ul__kernels(x)->min, x, dim, keep);
}
