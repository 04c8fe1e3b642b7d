/* norm.c - normalisation over the last dim. */
#include "../internal.h"

static int64_t rows_of(const ul_tensor *x)
{
    int64_t rows = 1;
    for (int d = 0; d < x->ndim - 1; d++) rows *= x->shape[d];
    return rows;
}

static int check_input(const char *op, const ul_tensor *x, double eps)
{
    UL_TRY(ul__check_float(op, "x", x));
    UL_REQUIRE(x->ndim > 0, UL_ESHAPE, "%s: x [] has no last dimension", op);
    UL_REQUIRE(eps >= 0, UL_EVALUE, "%s: eps = %g must not be negative", op, eps);
    return UL_OK;
}

/* w is a weight or bias [C] for x [.., C], or NULL. */
static int check_param(const char *op, const char *name, const ul_tensor *w, const ul_tensor *x)
{
    if (w == NULL) return UL_OK;
    UL_TRY(ul__check_same(op, "x", x, name, w));
    UL_REQUIRE(w->ndim == 1 && w->shape[0] == x->shape[x->ndim - 1], UL_ESHAPE,
               "%s: %s %s does not fit x %s", op, name, ul__shape(w), ul__shape(x));
    return UL_OK;
}

/* y = x r w with r = 1 / rms(x). Writing g = dy w:
 *     dx = r (g - x r^2 mean(g x))        dw = sum over rows of dy x r
 */
static int rms_norm_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_tensor *x = call->saved[0], *w = call->saved[1], *r = call->saved[2];
    ul_grad dx, dw;
    UL_TRY(ul__grad_of(&dx, call, 0));
    UL_TRY(ul__grad_acc(&dw, call, 1));
    return ul__kernels(x)->rms_norm_backward(ul__stream(x), dx, dw, ul__data(dy[0]), NULL,
                                             ul__data(x), w ? ul__data(w) : NULL, ul__data(r),
                                             ul_tensor_size(r), x->shape[x->ndim - 1]);
}

static const ul_op rms_norm = {"rms_norm", rms_norm_backward};

int ul_rms_norm(ul_tensor **y, ul_tensor *x, ul_tensor *w, double eps)
{
    UL_TRY(check_input("rms_norm", x, eps));
    UL_TRY(check_param("rms_norm", "weight", w, x));
    int64_t rows = rows_of(x), cols = x->shape[x->ndim - 1];

    ul_call call = {.op = &rms_norm, .input = {x, w}};
    ul_tensor *out = ul__output_like(&call, x);
    x = ul__save(&call, ul__contiguous(&call, x));
    w = ul__save(&call, ul__contiguous(&call, w));
    ul_tensor *r = ul__save_new(&call, ul_dtype_acc(x->dtype), 1, &rows);
    UL_RUN(&call, x, rms_norm, ul__data(out), NULL, ul__data(r), ul__data(x), NULL,
           w ? ul__data(w) : NULL, rows, cols, eps);
    return ul__finish(&call, y);
}

/* h = x + residual, y = rms_norm(h) w. h is also a result, so that the gradient dh of its other
 * uses is added to what flows back through y; x and residual then have the same gradient.
 */
static int add_rms_norm_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_tensor *h = call->saved[0], *w = call->saved[1], *r = call->saved[2], *sum = NULL;
    int wants_sum = ul__wants_grad(call, 0) || ul__wants_grad(call, 1);
    if (dy[0] == NULL) {
        UL_TRY(ul__grad_add(call, 0, dy[1]));
        return ul__grad_add(call, 1, dy[1]);
    }
    ul_grad dsum = {NULL, 0}, dw;
    UL_TRY(ul__grad_acc(&dw, call, 2));
    if (wants_sum) {
        UL_TRY(ul_tensor_new(&sum, h->dtype, h->storage->device, h->ndim, h->shape));
        dsum.data = ul__given(sum);
    }
    int rc = ul__kernels(h)->rms_norm_backward(
        ul__stream(h), dsum, dw, ul__data(dy[0]), ul__given(dy[1]), ul__data(h),
        w ? ul__data(w) : NULL, ul__data(r), ul_tensor_size(r), h->shape[h->ndim - 1]);
    if (rc == UL_OK && wants_sum) rc = ul__grad_add(call, 0, sum);
    if (rc == UL_OK && wants_sum) rc = ul__grad_add(call, 1, sum);
    ul_tensor_free(sum);
    return rc;
}

static const ul_op add_rms_norm = {"add_rms_norm", add_rms_norm_backward};

int ul_add_rms_norm(ul_tensor **y, ul_tensor **h, ul_tensor *x, ul_tensor *residual, ul_tensor *w,
                    double eps)
{
    UL_TRY(check_input("add_rms_norm", x, eps));
    UL_TRY(check_param("add_rms_norm", "weight", w, x));
    UL_TRY(ul__check_same("add_rms_norm", "x", x, "residual", residual));
    int fits = residual->ndim == x->ndim;
    for (int d = 0; fits && d < x->ndim; d++) fits = residual->shape[d] == x->shape[d];
    UL_REQUIRE(fits, UL_ESHAPE, "add_rms_norm: residual %s does not fit x %s", ul__shape(residual),
               ul__shape(x));
    int64_t rows = rows_of(x), cols = x->shape[x->ndim - 1];

    ul_call call = {.op = &add_rms_norm, .input = {x, residual, w}};
    ul_tensor *out = ul__output_like(&call, x), *sum = ul__output_like(&call, x);
    x = ul__contiguous(&call, x);
    residual = ul__contiguous(&call, residual);
    ul__save(&call, sum);
    w = ul__save(&call, ul__contiguous(&call, w));
    ul_tensor *r = ul__save_new(&call, ul_dtype_acc(x->dtype), 1, &rows);
    UL_RUN(&call, x, rms_norm, ul__data(out), ul__data(sum), ul__data(r), ul__data(x),
           ul__given(residual), w ? ul__data(w) : NULL, rows, cols, eps);
    return ul__finish_2(&call, y, h);
}

/* y = n w + b with n = (x - mean) r, r = 1 / sqrt(var + eps). Writing g = dy w:
 *     dx = r (g - mean(g) - n mean(g n))
 *     dw = sum over rows of dy n        db = sum over rows of dy
 */
static int layer_norm_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_tensor *x = call->saved[0], *w = call->saved[1], *mean = call->saved[2], *r = call->saved[3];
    ul_grad dx, dw, db;
    UL_TRY(ul__grad_of(&dx, call, 0));
    UL_TRY(ul__grad_acc(&dw, call, 1));
    UL_TRY(ul__grad_acc(&db, call, 2));
    return ul__kernels(x)->layer_norm_backward(
        ul__stream(x), dx, dw, db, ul__data(dy[0]), ul__data(x), w ? ul__data(w) : NULL,
        ul__data(mean), ul__data(r), ul_tensor_size(r), x->shape[x->ndim - 1]);
}

static const ul_op layer_norm = {"layer_norm", layer_norm_backward};

int ul_layer_norm(ul_tensor **y, ul_tensor *x, ul_tensor *w, ul_tensor *b, double eps)
{
    UL_TRY(check_input("layer_norm", x, eps));
    UL_TRY(check_param("layer_norm", "weight", w, x));
    UL_TRY(check_param("layer_norm", "bias", b, x));
    int64_t rows = rows_of(x), cols = x->shape[x->ndim - 1];

    ul_call call = {.op = &layer_norm, .input = {x, w, b}};
    ul_tensor *out = ul__output_like(&call, x);
    ul_dtype acc = ul_dtype_acc(x->dtype);
    x = ul__save(&call, ul__contiguous(&call, x));
    w = ul__save(&call, ul__contiguous(&call, w));
    b = ul__contiguous(&call, b);
    ul_tensor *mean = ul__save_new(&call, acc, 1, &rows), *r = ul__save_new(&call, acc, 1, &rows);
    UL_RUN(&call, out, layer_norm, ul__data(out), ul__data(mean), ul__data(r), ul__data(x),
           w ? ul__data(w) : NULL, b ? ul__data(b) : NULL, rows, cols, eps);
    return ul__finish(&call, y);
}
