/* elementwise.c - arithmetic of two tensors, broadcast as NumPy does. */
#include <string.h>

#include "../internal.h"

/* ---- forward ---- */

typedef int (*forward_kernel)(ul_stream *s, void *y, const void *a, const void *b,
                              const ul_loop *l);

/* Which values the gradients of a and of b need. */
enum { DA_OF_A = 1, DA_OF_B = 2, DB_OF_A = 4, DB_OF_B = 8 };

static int wanted(int needs, ul_tensor *a, ul_tensor *b, int for_da, int for_db)
{
    return (ul__needs_grad(a) && needs & for_da) || (ul__needs_grad(b) && needs & for_db);
}

/* y = kernel(a, b). saved: a, b where the rule needs their values. */
static int binary(ul_tensor **y, const ul_op *op, forward_kernel kernel, ul_tensor *a, ul_tensor *b,
                  int needs)
{
    int ndim;
    int64_t shape[UL_MAX_DIMS], a_stride[UL_MAX_DIMS], b_stride[UL_MAX_DIMS];
    UL_TRY(ul__check_same(op->name, "a", a, "b", b));
    UL_TRY(ul__broadcast(op->name, &ndim, shape, a, b));

    ul_call call = {.op = op, .input = {a, b}};
    ul_tensor *out = ul__output(&call, a->dtype, ndim, shape);
    ul__save(&call, wanted(needs, a, b, DA_OF_A, DB_OF_A) ? a : NULL);
    ul__save(&call, wanted(needs, a, b, DA_OF_B, DB_OF_B) ? b : NULL);
    if (call.rc < 0) return ul__finish(&call, y);

    ul__broadcast_strides(a_stride, a, ndim, shape);
    ul__broadcast_strides(b_stride, b, ndim, shape);
    const int64_t *strides[] = {out->stride, a_stride, b_stride};
    ul_loop l;
    ul__loop(&l, ndim, shape, 3, strides, 0);
    call.rc = kernel(ul__stream(a), ul__data(out), ul__data(a), ul__data(b), &l);
    return ul__finish(&call, y);
}

/* ---- backward ---- */

/* Where a kernel writes the gradient of one input in the shape of the result: straight into it, or,
 * where the input was broadcast, beside it, to be summed into it afterwards.
 */
typedef struct full_grad {
    ul_grad grad;
    ul_tensor *beside;
} full_grad;

static int open_grad(full_grad *full, ul_call *call, int i, const ul_tensor *dy)
{
    const ul_variable *v = call->variable[i];
    *full = (full_grad){0};
    if (!v) return UL_OK;
    if (v->ndim == dy->ndim && !memcmp(v->shape, dy->shape, (size_t)v->ndim * sizeof *v->shape))
        return ul__grad_of(&full->grad, call, i);
    UL_TRY(ul_tensor_new(&full->beside, dy->dtype, v->device, dy->ndim, dy->shape));
    full->grad.data = ul__data(full->beside);
    return UL_OK;
}

/* rc: what has gone wrong so far; passed on. */
static int close_grad(full_grad *full, ul_call *call, int i, int rc)
{
    if (rc == UL_OK && full->beside) rc = ul__grad_add(call, i, full->beside);
    ul_tensor_free(full->beside);
    return rc;
}

typedef int (*backward_kernel)(ul_stream *s, ul_grad da, ul_grad db, const void *dy, const void *a,
                               const void *b, const ul_loop *l);

/* A value that was not saved is not used either: the other one stands in for it. */
static int binary_backward(ul_call *call, const ul_tensor *dy, backward_kernel kernel)
{
    const ul_tensor *a = call->saved[0] ? call->saved[0] : call->saved[1];
    const ul_tensor *b = call->saved[1] ? call->saved[1] : call->saved[0];
    full_grad da = {0}, db = {0};
    int rc = open_grad(&da, call, 0, dy);
    if (rc == UL_OK) rc = open_grad(&db, call, 1, dy);
    if (rc == UL_OK) {
        int64_t dy_stride[UL_MAX_DIMS], a_stride[UL_MAX_DIMS], b_stride[UL_MAX_DIMS];
        ul__contiguous_strides(dy_stride, dy->ndim, dy->shape);
        ul__broadcast_strides(a_stride, a, dy->ndim, dy->shape);
        ul__broadcast_strides(b_stride, b, dy->ndim, dy->shape);
        const int64_t *strides[] = {dy_stride, a_stride, b_stride};
        ul_loop l;
        ul__loop(&l, dy->ndim, dy->shape, 3, strides, 0);
        rc = kernel(ul__stream(dy), da.grad, db.grad, ul__data(dy), ul__data(a), ul__data(b), &l);
    }
    rc = close_grad(&da, call, 0, rc);
    return close_grad(&db, call, 1, rc);
}

/* ---- add, sub ---- */

/* da = dy        db = dy */
static int add_backward(ul_call *call, ul_tensor *const *dy)
{
    UL_TRY(ul__grad_add(call, 0, dy[0]));
    return ul__grad_add(call, 1, dy[0]);
}

static const ul_op add = {"add", add_backward};

int ul_add(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return binary(y, &add, ul__kernels(a)->add, a, b, 0);
}

/* da = dy        db = -dy */
static int sub_backward(ul_call *call, ul_tensor *const *dy)
{
    UL_TRY(ul__grad_add(call, 0, dy[0]));
    if (!ul__wants_grad(call, 1)) return UL_OK;
    ul_tensor *db;
    UL_TRY(ul_neg(&db, dy[0]));
    int rc = ul__grad_add(call, 1, db);
    ul_tensor_free(db);
    return rc;
}

static const ul_op sub = {"sub", sub_backward};

int ul_sub(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return binary(y, &sub, ul__kernels(a)->sub, a, b, 0);
}

/* ---- mul, div, pow ---- */

/* da = dy b        db = dy a */
static int mul_backward(ul_call *call, ul_tensor *const *dy)
{
    return binary_backward(call, dy[0], ul__kernels(dy[0])->mul_backward);
}

static const ul_op mul = {"mul", mul_backward};

int ul_mul(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return binary(y, &mul, ul__kernels(a)->mul, a, b, DA_OF_B | DB_OF_A);
}

/* da = dy / b        db = -dy a / b^2 */
static int div_backward(ul_call *call, ul_tensor *const *dy)
{
    return binary_backward(call, dy[0], ul__kernels(dy[0])->div_backward);
}

static const ul_op div_op = {"div", div_backward};

int ul_div(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    UL_TRY(ul__check_float("div", "a", a));
    return binary(y, &div_op, ul__kernels(a)->div, a, b, DA_OF_B | DB_OF_A | DB_OF_B);
}

/* da = dy b a^(b - 1)        db = dy a^b log a */
static int pow_backward(ul_call *call, ul_tensor *const *dy)
{
    return binary_backward(call, dy[0], ul__kernels(dy[0])->pow_backward);
}

static const ul_op pow_op = {"pow", pow_backward};

int ul_pow(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    UL_TRY(ul__check_float("pow", "a", a));
    return binary(y, &pow_op, ul__kernels(a)->pow, a, b, DA_OF_A | DA_OF_B | DB_OF_A | DB_OF_B);
}

/* ---- maximum, minimum ---- */

/* dy goes to the larger one; half to each where they are equal. */
static int maximum_backward(ul_call *call, ul_tensor *const *dy)
{
    return binary_backward(call, dy[0], ul__kernels(dy[0])->maximum_backward);
}

static const ul_op maximum = {"maximum", maximum_backward};

int ul_maximum(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return binary(y, &maximum, ul__kernels(a)->maximum, a, b,
                  DA_OF_A | DA_OF_B | DB_OF_A | DB_OF_B);
}

/* dy goes to the smaller one; half to each where they are equal. */
static int minimum_backward(ul_call *call, ul_tensor *const *dy)
{
    return binary_backward(call, dy[0], ul__kernels(dy[0])->minimum_backward);
}

static const ul_op minimum = {"minimum", minimum_backward};

int ul_minimum(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return binary(y, &minimum, ul__kernels(a)->minimum, a, b,
                  DA_OF_A | DA_OF_B | DB_OF_A | DB_OF_B);
}

/* ---- swiglu ---- */

/* y = a s b with s = sigmoid(a):
 *     da = dy b s (1 + a (1 - s))        db = dy a s
 */
static int swiglu_backward(ul_call *call, ul_tensor *const *dy)
{
    return binary_backward(call, dy[0], ul__kernels(dy[0])->swiglu_backward);
}

static const ul_op swiglu = {"swiglu", swiglu_backward};

int ul_swiglu(ul_tensor **y, ul_tensor *gate, ul_tensor *up)
{
    UL_TRY(ul__check_float("swiglu", "gate", gate));
    return binary(y, &swiglu, ul__kernels(gate)->swiglu, gate, up, DA_OF_A | DA_OF_B | DB_OF_A);
}

/* ---- where ---- */

/* da = dy where cond, else 0; db the other way round. Inputs: cond, a, b. */
static int where_backward(ul_call *call, ul_tensor *const *dys)
{
    const ul_tensor *cond = call->saved[0], *dy = dys[0];
    full_grad da = {0}, db = {0};
    int rc = open_grad(&da, call, 1, dy);
    if (rc == UL_OK) rc = open_grad(&db, call, 2, dy);
    if (rc == UL_OK) {
        int64_t dy_stride[UL_MAX_DIMS], cond_stride[UL_MAX_DIMS];
        ul__contiguous_strides(dy_stride, dy->ndim, dy->shape);
        ul__broadcast_strides(cond_stride, cond, dy->ndim, dy->shape);
        const int64_t *strides[] = {dy_stride, cond_stride};
        ul_loop l;
        ul__loop(&l, dy->ndim, dy->shape, 2, strides, 0);
        rc = ul__kernels(dy)->where_backward(ul__stream(dy), da.grad, db.grad, ul__data(dy),
                                             ul__data(cond), &l);
    }
    rc = close_grad(&da, call, 1, rc);
    return close_grad(&db, call, 2, rc);
}

static const ul_op where = {"where", where_backward};

int ul_where(ul_tensor **y, ul_tensor *cond, ul_tensor *a, ul_tensor *b)
{
    UL_TRY(ul__check_dtype("where", "the condition", cond, UL_U8));
    UL_TRY(ul__check_same("where", "a", a, "b", b));
    UL_TRY(ul__check_device("where", "the condition", cond, "a", a));
    ul_tensor both = {0}; /* a and b broadcast together: a shape only */
    int ndim;
    int64_t shape[UL_MAX_DIMS];
    UL_TRY(ul__broadcast("where", &both.ndim, both.shape, a, b));
    UL_TRY(ul__broadcast("where", &ndim, shape, cond, &both));

    ul_call call = {.op = &where, .input = {cond, a, b}};
    ul_tensor *out = ul__output(&call, a->dtype, ndim, shape);
    ul__save(&call, cond);
    if (call.rc < 0) return ul__finish(&call, y);
    int64_t stride[3][UL_MAX_DIMS];
    ul__broadcast_strides(stride[0], cond, ndim, shape);
    ul__broadcast_strides(stride[1], a, ndim, shape);
    ul__broadcast_strides(stride[2], b, ndim, shape);
    const int64_t *strides[] = {out->stride, stride[0], stride[1], stride[2]};
    ul_loop l;
    ul__loop(&l, ndim, shape, 4, strides, 0);
    UL_RUN(&call, a, where, ul__data(out), ul__data(cond), ul__data(a), ul__data(b), &l);
    return ul__finish(&call, y);
}
