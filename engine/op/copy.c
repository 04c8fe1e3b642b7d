/* copy.c - the same values elsewhere: contiguous, clone, cast, to_device, cat. */
#include <stdlib.h>
#include <string.h>

#include "../internal.h"

int ul__assign(const ul_tensor *y, const ul_tensor *x)
{
    UL_TRY(ul__present(x));
    const ul_kernels *k = ul__kernels(y);
    int (*const from[UL_DTYPES])(ul_stream *, void *, const void *, const ul_loop *) = {
        [UL_F32] = k->from_f32, [UL_BF16] = k->from_bf16, [UL_F64] = k->from_f64,
        [UL_I32] = k->from_i32, [UL_I64] = k->from_i64,   [UL_U8] = k->from_u8};
    int64_t x_stride[UL_MAX_DIMS];
    ul__broadcast_strides(x_stride, x, y->ndim, y->shape);
    const int64_t *strides[] = {y->stride, x_stride};
    ul_loop l;
    ul__loop(&l, y->ndim, y->shape, 2, strides, 0);
    return (y->dtype == x->dtype ? k->copy : from[x->dtype])(ul__stream(y), ul__data(y),
                                                             ul__data(x), &l);
}

/* ---- contiguous, clone ---- */

static int copy_backward(ul_call *call, ul_tensor *const *dy)
{
    return ul__grad_add(call, 0, dy[0]);
}

static const ul_op contiguous = {"contiguous", copy_backward};
static const ul_op clone = {"clone", copy_backward};

static int copy_of(ul_tensor **y, const ul_op *op, ul_tensor *x)
{
    ul_call call = {.op = op, .input = {x}};
    ul_tensor *out = ul__output_like(&call, x);
    if (call.rc == UL_OK) call.rc = ul__assign(out, x);
    return ul__finish(&call, y);
}

int ul_contiguous(ul_tensor **y, ul_tensor *x)
{
    if (!ul_tensor_is_contiguous(x)) return copy_of(y, &contiguous, x);
    UL_TRY(ul__present(x));
    *y = ul_tensor_retain(x);
    return UL_OK;
}

int ul_clone(ul_tensor **y, ul_tensor *x) { return copy_of(y, &clone, x); }

/* ---- cast ---- */

/* dx is dy in x's dtype, or not rounded at all where dy is as wide as x's accumulators. */
static int cast_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_variable *x = call->variable[0];
    if (dy[0]->dtype == ul_dtype_acc(x->dtype)) {
        ul_grad dx;
        UL_TRY(ul__grad_acc(&dx, call, 0));
        const int64_t *strides[] = {dy[0]->stride, dy[0]->stride, dy[0]->stride};
        ul_loop l;
        ul__loop(&l, dy[0]->ndim, dy[0]->shape, 3, strides, 0);
        const ul_kernels *k = ul__kernels(dy[0]);
        const void *from = ul__data(dy[0]);
        return dx.add ? k->add(ul__stream(dy[0]), dx.data, dx.data, from, &l)
                      : k->copy(ul__stream(dy[0]), dx.data, from, &l);
    }
    ul_tensor *dx;
    UL_TRY(ul_tensor_new(&dx, x->dtype, x->device, x->ndim, x->shape));
    int rc = ul__assign(dx, dy[0]);
    if (rc == UL_OK) rc = ul__grad_add(call, 0, dx);
    ul_tensor_free(dx);
    return rc;
}

static const ul_op cast = {"cast", cast_backward};

int ul_cast(ul_tensor **y, ul_tensor *x, ul_dtype dtype)
{
    if (x->dtype == dtype) {
        *y = ul_tensor_retain(x);
        return UL_OK;
    }
    ul_call call = {.op = &cast, .input = {x}};
    ul_tensor *out = ul__output(&call, dtype, x->ndim, x->shape);
    if (call.rc == UL_OK) call.rc = ul__assign(out, x);
    return ul__finish(&call, y);
}

/* ---- to_device ---- */

static int to_device_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_tensor *dx;
    UL_TRY(ul__moved(&dx, dy[0], call->variable[0]->device));
    ul__grad_take(call, 0, dx);
    return UL_OK;
}

static const ul_op to_device = {"to", to_device_backward};

int ul_to_device(ul_tensor **y, ul_tensor *x, ul_device device)
{
    ul_device from = x->storage->device;
    UL_REQUIRE(from == device || from != UL_META, UL_EDEVICE,
               "to: x %s is on meta and has no values to bring to %s", ul__shape(x),
               ul_device_name(device));
    if (from == device) {
        *y = ul_tensor_retain(x);
        return UL_OK;
    }
    if (device == UL_META) return ul_tensor_new(y, x->dtype, device, x->ndim, x->shape);
    ul_call call = {.op = &to_device, .input = {x}};
    call.rc = ul__moved(&call.output[0], x, device);
    return ul__finish(&call, y);
}

/* ---- cat ---- */

/* Where along dim each input begins; the context of a call of cat. */
typedef struct cat_context {
    int dim;
    int64_t start[];
} cat_context;

/* A gradient of one input is the part of dy that it became. */
static int cat_backward(ul_call *call, ul_tensor *const *dy)
{
    const cat_context *context = call->context;
    const ul_tensor *g = dy[0];
    int64_t step = g->stride[context->dim];
    for (int i = 0; i < call->n_inputs; i++) {
        const ul_variable *x = call->variable[i];
        if (!x) continue;
        ul_tensor *part;
        UL_TRY(ul__view_of(&part, g, g->ndim, x->shape, g->stride,
                           g->offset + context->start[i] * step));
        int rc = ul__grad_add(call, i, part);
        ul_tensor_free(part);
        UL_TRY(rc);
    }
    return UL_OK;
}

static const ul_op cat = {"cat", cat_backward};

/* All equal but for their sizes along dim. */
static int check_cat(ul_tensor *const *xs, int n, int dim)
{
    for (int i = 1; i < n; i++) {
        UL_TRY(ul__check_same("cat", "the first tensor", xs[0], "another", xs[i]));
        int fits = xs[i]->ndim == xs[0]->ndim;
        for (int j = 0; j < xs[0]->ndim && fits; j++)
            fits = j == dim || xs[i]->shape[j] == xs[0]->shape[j];
        UL_REQUIRE(fits, UL_ESHAPE, "cat: %s does not fit beside %s", ul__shape(xs[i]),
                   ul__shape(xs[0]));
    }
    return UL_OK;
}

int ul_cat(ul_tensor **y, ul_tensor *const *xs, int n, int dim)
{
    UL_REQUIRE(n > 0, UL_ESHAPE, "cat: no tensors given");
    UL_TRY(ul__dim("cat", &dim, xs[0]));
    UL_TRY(check_cat(xs, n, dim));
    int64_t shape[UL_MAX_DIMS];
    memcpy(shape, xs[0]->shape, sizeof shape);
    for (int i = 1; i < n; i++)
        UL_REQUIRE(!__builtin_add_overflow(shape[dim], xs[i]->shape[dim], &shape[dim]), UL_ESHAPE,
                   "cat: the result is too large");

    cat_context *context = ul__alloc(sizeof *context + (size_t)n * sizeof *context->start);
    UL_REQUIRE(context, UL_ENOMEM, "cat: out of memory");
    context->dim = dim;
    ul_call call = {.op = &cat, .inputs = xs, .n_inputs = n, .context = context, .release = free};
    ul_tensor *out = ul__output(&call, xs[0]->dtype, xs[0]->ndim, shape);
    int64_t start = 0;
    for (int i = 0; i < n && call.rc == UL_OK; i++) {
        ul_tensor part = *out;
        part.offset = start * out->stride[dim];
        part.shape[dim] = xs[i]->shape[dim];
        context->start[i] = start;
        start += xs[i]->shape[dim];
        call.rc = ul__assign(&part, xs[i]);
    }
    return ul__finish(&call, y);
}
