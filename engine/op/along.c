/* along.c - ops along one dim that keep it: softmax, log_softmax, cumsum, sort, topk. */
#include <string.h>

#include "../internal.h"

/* Kernels work along the last dim of contiguous memory: [rows, cols]. */
static int64_t cols_of(const ul_tensor *x) { return x->shape[x->ndim - 1]; }

static int64_t rows_of(const ul_tensor *x)
{
    return cols_of(x) > 0 ? ul_tensor_size(x) / cols_of(x) : 0;
}

/* Does op along dim: where that is not the last, it changes places with the last before and after,
 * so that gradients find their way back through the two views.
 */
static int along(ul_tensor **y, ul_tensor *x, int dim, int (*op)(ul_tensor **y, ul_tensor *x))
{
    if (dim == x->ndim - 1) return op(y, x);
    ul_tensor *turned, *result;
    UL_TRY(ul_transpose(&turned, x, dim, -1));
    int rc = op(&result, turned);
    ul_tensor_free(turned);
    UL_TRY(rc);
    rc = ul_transpose(y, result, dim, -1);
    ul_tensor_free(result);
    return rc;
}

/* ---- softmax, log_softmax ---- */

/* y = softmax(x): dx = y (dy - sum(dy y)) */
static int softmax_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_tensor *y = call->saved[0];
    ul_grad dx;
    UL_TRY(ul__grad_of(&dx, call, 0));
    return ul__kernels(y)->softmax_backward(ul__stream(y), dx, ul__data(dy[0]), ul__data(y),
                                            rows_of(y), cols_of(y));
}

static const ul_op softmax = {"softmax", softmax_backward};

static int softmax_last(ul_tensor **y, ul_tensor *x)
{
    ul_call call = {.op = &softmax, .input = {x}};
    ul_tensor *from = ul__contiguous(&call, x), *out = ul__output_like(&call, x);
    ul__save(&call, out);
    UL_RUN(&call, x, softmax, ul__data(out), ul__data(from), rows_of(x), cols_of(x));
    return ul__finish(&call, y);
}

int ul_softmax(ul_tensor **y, ul_tensor *x, int dim)
{
    UL_TRY(ul__check_float("softmax", "x", x));
    UL_TRY(ul__dim("softmax", &dim, x));
    return along(y, x, dim, softmax_last);
}

/* y = log softmax(x): dx = dy - exp(y) sum(dy) */
static int log_softmax_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_tensor *y = call->saved[0];
    ul_grad dx;
    UL_TRY(ul__grad_of(&dx, call, 0));
    return ul__kernels(y)->log_softmax_backward(ul__stream(y), dx, ul__data(dy[0]), ul__data(y),
                                                rows_of(y), cols_of(y));
}

static const ul_op log_softmax = {"log_softmax", log_softmax_backward};

static int log_softmax_last(ul_tensor **y, ul_tensor *x)
{
    ul_call call = {.op = &log_softmax, .input = {x}};
    ul_tensor *from = ul__contiguous(&call, x), *out = ul__output_like(&call, x);
    ul__save(&call, out);
    UL_RUN(&call, x, log_softmax, ul__data(out), ul__data(from), rows_of(x), cols_of(x));
    return ul__finish(&call, y);
}

/* bf16: what is saved for the gradient must be f32, since exp(y) makes a relative error of an
 * absolute one; so the whole op runs in f32 between two casts.
 */
static int log_softmax_bf16(ul_tensor **y, ul_tensor *x)
{
    ul_tensor *wide = NULL, *result = NULL;
    int rc = ul_cast(&wide, x, UL_F32);
    if (rc == UL_OK) rc = log_softmax_last(&result, wide);
    if (rc == UL_OK) rc = ul_cast(y, result, UL_BF16);
    ul_tensor_free(wide);
    ul_tensor_free(result);
    return rc;
}

int ul_log_softmax(ul_tensor **y, ul_tensor *x, int dim)
{
    UL_TRY(ul__check_float("log_softmax", "x", x));
    UL_TRY(ul__dim("log_softmax", &dim, x));
    return along(y, x, dim, x->dtype == UL_BF16 ? log_softmax_bf16 : log_softmax_last);
}

/* ---- cumsum ---- */

/* y[i] = sum of x[j] for j <= i: dx[j] = sum of dy[i] for i >= j */
static int cumsum_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_grad dx;
    UL_TRY(ul__grad_of(&dx, call, 0));
    return ul__kernels(dy[0])->cumsum(ul__stream(dy[0]), dx, ul__data(dy[0]), rows_of(dy[0]),
                                      cols_of(dy[0]), 1);
}

static const ul_op cumsum = {"cumsum", cumsum_backward};

static int cumsum_last(ul_tensor **y, ul_tensor *x)
{
    ul_call call = {.op = &cumsum, .input = {x}};
    ul_dtype dtype = ul_dtype_is_float(x->dtype) ? x->dtype : UL_I64;
    ul_tensor *from = ul__contiguous(&call, x);
    ul_tensor *out = ul__output(&call, dtype, x->ndim, x->shape);
    UL_RUN(&call, x, cumsum, (ul_grad){ul__data(out), 0}, ul__data(from), rows_of(x), cols_of(x),
           0);
    return ul__finish(&call, y);
}

int ul_cumsum(ul_tensor **y, ul_tensor *x, int dim)
{
    UL_TRY(ul__dim("cumsum", &dim, x));
    return along(y, x, dim, cumsum_last);
}

/* ---- sort, topk ---- */

static const ul_op sort = {"sort", ul__pick_backward};
static const ul_op topk = {"topk", ul__pick_backward};

/* The first k of each row in order. flag: descending (sort), largest (topk). */
static int pick_last(ul_tensor **values, ul_tensor **index, const ul_op *op, ul_tensor *x,
                     int64_t k, int flag)
{
    int64_t rows = rows_of(x), cols = cols_of(x), shape[UL_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = k;

    ul_call call = {.op = op, .input = {x}, .constant_outputs = 2, .i = {rows, cols, k, 1}};
    ul_tensor *from = ul__contiguous(&call, x);
    ul_tensor *out = ul__output(&call, x->dtype, x->ndim, shape);
    ul_tensor *at = ul__output(&call, UL_I64, x->ndim, shape);
    ul__save(&call, at);
    if (op == &topk) {
        UL_RUN(&call, x, topk, ul__data(out), ul__data(at), ul__data(from), rows, cols, k, flag);
    } else if (call.rc == UL_OK) {
        ul_tensor **work = &call.temporary[call.n_temporary++];
        call.rc = ul_tensor_new(work, UL_I64, x->storage->device, x->ndim, x->shape);
        UL_RUN(&call, x, sort, ul__data(out), ul__data(at), ul__data(from), rows, cols, flag,
               ul__data(*work));
    }
    return ul__finish_2(&call, values, index);
}

static int pick(ul_tensor **values, ul_tensor **index, const ul_op *op, ul_tensor *x, int dim,
                int64_t k, int flag)
{
    ul_tensor *turned, *picked[2] = {NULL, NULL}, *result[2] = {NULL, NULL};
    UL_TRY(ul_transpose(&turned, x, dim, -1));
    int rc = pick_last(&picked[0], &picked[1], op, turned, k, flag);
    ul_tensor_free(turned);
    ul_tensor **wanted[2] = {values, index};
    for (int i = 0; i < 2; i++) {
        if (rc == UL_OK && wanted[i]) rc = ul_transpose(&result[i], picked[i], dim, -1);
        ul_tensor_free(picked[i]);
    }
    for (int i = 0; i < 2; i++)
        if (rc == UL_OK && wanted[i])
            *wanted[i] = result[i];
        else
            ul_tensor_free(result[i]);
    return rc;
}

int ul_sort(ul_tensor **values, ul_tensor **index, ul_tensor *x, int dim, int descending)
{
    UL_TRY(ul__dim("sort", &dim, x));
    return pick(values, index, &sort, x, dim, x->shape[dim], descending);
}

int ul_topk(ul_tensor **values, ul_tensor **index, ul_tensor *x, int64_t k, int dim, int largest)
{
    UL_TRY(ul__dim("topk", &dim, x));
    UL_REQUIRE(k >= 0 && k <= x->shape[dim], UL_EVALUE,
               "topk: k is %lld, but dim %d of x %s has %lld elements", (long long)k, dim + 1,
               ul__shape(x), (long long)x->shape[dim]);
    return pick(values, index, &topk, x, dim, k, largest);
}
