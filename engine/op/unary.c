/* unary.c - elementwise functions of one tensor. */
#include "../internal.h"

typedef int (*forward_kernel)(ul_stream *s, void *y, const void *x, const ul_loop *l);
typedef int (*backward_kernel)(ul_stream *s, ul_grad dx, const void *dy, const void *v,
                               const ul_loop *l);

/* Which values the gradient is made from. */
typedef enum { SAVE_NOTHING, SAVE_X, SAVE_Y } save;

/* y = kernel(x). saved: x or y. */
static int unary(ul_tensor **y, const ul_op *op, forward_kernel kernel, ul_tensor *x, save what)
{
    ul_call call = {.op = op, .input = {x}};
    ul_tensor *out = ul__output_like(&call, x);
    if (what != SAVE_NOTHING) ul__save(&call, what == SAVE_X ? x : out);
    if (call.rc < 0) return ul__finish(&call, y);
    const int64_t *strides[] = {out->stride, x->stride};
    ul_loop l;
    ul__loop(&l, x->ndim, x->shape, 2, strides, 0);
    call.rc = kernel(ul__stream(x), ul__data(out), ul__data(x), &l);
    return ul__finish(&call, y);
}

/* The loop of a backward kernel: dx and dy are contiguous, the saved value has strides of its own.
 */
static void backward_loop(ul_loop *l, const ul_tensor *value)
{
    int64_t stride[UL_MAX_DIMS];
    ul__contiguous_strides(stride, value->ndim, value->shape);
    const int64_t *strides[] = {stride, value->stride};
    ul__loop(l, value->ndim, value->shape, 2, strides, 0);
}

static int unary_backward(ul_call *call, const ul_tensor *dy, backward_kernel kernel)
{
    const ul_tensor *value = call->saved[0];
    ul_grad dx;
    UL_TRY(ul__grad_of(&dx, call, 0));
    ul_loop l;
    backward_loop(&l, value);
    return kernel(ul__stream(dy), dx, ul__data(dy), ul__data(value), &l);
}

/* ---- neg, abs ---- */

/* dx = -dy */
static int neg_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_tensor *dx;
    UL_TRY(ul_neg(&dx, dy[0]));
    int rc = ul__grad_add(call, 0, dx);
    ul_tensor_free(dx);
    return rc;
}

static const ul_op neg = {"neg", neg_backward};

int ul_neg(ul_tensor **y, ul_tensor *x)
{
    return unary(y, &neg, ul__kernels(x)->neg, x, SAVE_NOTHING);
}

/* dx = dy sign(x) */
static int abs_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->abs_backward);
}

static const ul_op abs_op = {"abs", abs_backward};

int ul_abs(ul_tensor **y, ul_tensor *x)
{
    return unary(y, &abs_op, ul__kernels(x)->abs, x, SAVE_X);
}

/* ---- exp, log, sqrt, rsqrt ---- */

/* dx = dy y */
static int exp_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->exp_backward);
}

static const ul_op exp_op = {"exp", exp_backward};

int ul_exp(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("exp", "x", x));
    return unary(y, &exp_op, ul__kernels(x)->exp, x, SAVE_Y);
}

/* dx = dy / x */
static int log_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->log_backward);
}

static const ul_op log_op = {"log", log_backward};

int ul_log(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("log", "x", x));
    return unary(y, &log_op, ul__kernels(x)->log, x, SAVE_X);
}

/* dx = dy / (2 y) */
static int sqrt_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->sqrt_backward);
}

static const ul_op sqrt_op = {"sqrt", sqrt_backward};

int ul_sqrt(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("sqrt", "x", x));
    return unary(y, &sqrt_op, ul__kernels(x)->sqrt, x, SAVE_Y);
}

/* dx = -dy y^3 / 2 */
static int rsqrt_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->rsqrt_backward);
}

static const ul_op rsqrt = {"rsqrt", rsqrt_backward};

int ul_rsqrt(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("rsqrt", "x", x));
    return unary(y, &rsqrt, ul__kernels(x)->rsqrt, x, SAVE_Y);
}

/* ---- sin, cos, tanh, sigmoid ---- */

/* dx = dy cos x */
static int sin_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->sin_backward);
}

static const ul_op sin_op = {"sin", sin_backward};

int ul_sin(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("sin", "x", x));
    return unary(y, &sin_op, ul__kernels(x)->sin, x, SAVE_X);
}

/* dx = -dy sin x */
static int cos_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->cos_backward);
}

static const ul_op cos_op = {"cos", cos_backward};

int ul_cos(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("cos", "x", x));
    return unary(y, &cos_op, ul__kernels(x)->cos, x, SAVE_X);
}

/* dx = dy (1 - y^2) */
static int tanh_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->tanh_backward);
}

static const ul_op tanh_op = {"tanh", tanh_backward};

int ul_tanh(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("tanh", "x", x));
    return unary(y, &tanh_op, ul__kernels(x)->tanh, x, SAVE_Y);
}

/* dx = dy y (1 - y) */
static int sigmoid_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->sigmoid_backward);
}

static const ul_op sigmoid = {"sigmoid", sigmoid_backward};

int ul_sigmoid(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("sigmoid", "x", x));
    return unary(y, &sigmoid, ul__kernels(x)->sigmoid, x, SAVE_Y);
}

/* ---- silu, gelu, relu, clamp ---- */

/* y = x s with s = sigmoid(x): dx = dy s (1 + x (1 - s)) */
static int silu_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->silu_backward);
}

static const ul_op silu = {"silu", silu_backward};

int ul_silu(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("silu", "x", x));
    return unary(y, &silu, ul__kernels(x)->silu, x, SAVE_X);
}

/* y = x Phi(x), with the normal distribution Phi and its density phi:
 *     dx = dy (Phi(x) + x phi(x))
 */
static int gelu_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->gelu_backward);
}

static const ul_op gelu = {"gelu", gelu_backward};

int ul_gelu(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("gelu", "x", x));
    return unary(y, &gelu, ul__kernels(x)->gelu, x, SAVE_X);
}

/* y = x (1 + t) / 2 with t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3):
 *     dx = dy ((1 + t) / 2 + x (1 - t^2) u' / 2), u' = sqrt(2 / pi) (1 + 0.134145 x^2)
 */
static int gelu_tanh_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->gelu_tanh_backward);
}

static const ul_op gelu_tanh = {"gelu_tanh", gelu_tanh_backward};

int ul_gelu_tanh(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("gelu_tanh", "x", x));
    return unary(y, &gelu_tanh, ul__kernels(x)->gelu_tanh, x, SAVE_X);
}

/* dx = dy where x > 0, else 0. That is where y > 0, and the next op is likely to keep y too. */
static int relu_backward(ul_call *call, ul_tensor *const *dy)
{
    return unary_backward(call, dy[0], ul__kernels(dy[0])->relu_backward);
}

static const ul_op relu = {"relu", relu_backward};

int ul_relu(ul_tensor **y, ul_tensor *x)
{
    UL_TRY(ul__check_float("relu", "x", x));
    return unary(y, &relu, ul__kernels(x)->relu, x, SAVE_Y);
}

/* dx = dy where low <= x <= high, else 0. f: low, high. */
static int clamp_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_tensor *x = call->saved[0];
    ul_grad dx;
    UL_TRY(ul__grad_of(&dx, call, 0));
    ul_loop l;
    backward_loop(&l, x);
    return ul__kernels(x)->clamp_backward(ul__stream(x), dx, ul__data(dy[0]), ul__data(x),
                                          call->f[0], call->f[1], &l);
}

static const ul_op clamp = {"clamp", clamp_backward};

int ul_clamp(ul_tensor **y, ul_tensor *x, double low, double high)
{
    UL_REQUIRE(low <= high, UL_EVALUE, "clamp: low %g is above high %g", low, high);
    ul_call call = {.op = &clamp, .input = {x}, .f = {low, high}};
    ul_tensor *out = ul__output_like(&call, x);
    ul__save(&call, x);
    if (call.rc < 0) return ul__finish(&call, y);
    const int64_t *strides[] = {out->stride, x->stride};
    ul_loop l;
    ul__loop(&l, x->ndim, x->shape, 2, strides, 0);
    UL_RUN(&call, x, clamp, ul__data(out), ul__data(x), low, high, &l);
    return ul__finish(&call, y);
}
