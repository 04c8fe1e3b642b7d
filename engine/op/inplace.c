/* inplace.c - changes in place, and tensors filled with numbers. */
#include <math.h>

#include "../internal.h"

/* ---- numbers ---- */

/* Integers take whole numbers in their range only. */
static int check_number(const char *op, double value, ul_dtype dtype)
{
    static const double low[UL_DTYPES] = {[UL_I32] = -0x1p31, [UL_I64] = -0x1p63, [UL_U8] = 0};
    static const double end[UL_DTYPES] = {[UL_I32] = 0x1p31, [UL_I64] = 0x1p63, [UL_U8] = 0x1p8};
    if (ul_dtype_is_float(dtype)) return UL_OK;
    UL_REQUIRE(value >= low[dtype] && value < end[dtype] && value == trunc(value), UL_EVALUE,
               "%s: %g is not a number that %s can hold; convert the tensor with :to()", op, value,
               ul_dtype_name(dtype));
    return UL_OK;
}

static int fill(const ul_tensor *y, double value)
{
    const int64_t *strides[] = {y->stride};
    ul_loop l;
    ul__loop(&l, y->ndim, y->shape, 1, strides, 0);
    return ul__kernels(y)->fill(ul__stream(y), ul__data(y), value, &l);
}

int ul_fill_(ul_tensor *y, double value)
{
    UL_TRY(check_number("fill_", value, y->dtype));
    UL_TRY(ul__change("fill_", y));
    return fill(y, value);
}

int ul_scalar_like(ul_tensor **y, const ul_tensor *x, double value)
{
    UL_TRY(check_number("number", value, x->dtype));
    ul_tensor *scalar;
    UL_TRY(ul_tensor_new(&scalar, x->dtype, x->storage->device, 0, NULL));
    int rc = fill(scalar, value);
    if (rc < 0)
        ul_tensor_free(scalar);
    else
        *y = scalar;
    return rc;
}

int ul_arange(ul_tensor **y, double start, double step, int64_t n, ul_dtype dtype, ul_device device)
{
    UL_REQUIRE(n >= 0, UL_EVALUE, "arange: %lld numbers", (long long)n);
    UL_TRY(check_number("arange", start, dtype));
    if (n > 1) UL_TRY(check_number("arange", start + step * (double)(n - 1), dtype));
    if (n > 1 && !ul_dtype_is_float(dtype))
        UL_REQUIRE(step == trunc(step), UL_EVALUE, "arange: %s cannot go in steps of %g",
                   ul_dtype_name(dtype), step);
    ul_tensor *out;
    UL_TRY(ul_tensor_new(&out, dtype, device, 1, &n));
    int rc = ul__kernels(out)->arange(ul__stream(out), ul__data(out), start, step, n);
    if (rc < 0)
        ul_tensor_free(out);
    else
        *y = out;
    return rc;
}

/* ---- a = f(a, b) ---- */

static int is_same_view(const ul_tensor *a, const ul_tensor *b)
{
    int same = a->offset == b->offset && a->ndim == b->ndim && a->dtype == b->dtype;
    for (int i = 0; i < a->ndim && same; i++)
        same = a->shape[i] == b->shape[i] && a->stride[i] == b->stride[i];
    return same;
}

/* Checks a change of a by b, which is broadcast to it, and counts it. *source is b, or a copy where
 * b shares memory with a and the change could reach elements of b before they are read. The caller
 * frees it.
 */
static int begin_change(ul_tensor **source, const char *op, ul_tensor *a, ul_tensor *b)
{
    int ndim;
    int64_t shape[UL_MAX_DIMS];
    UL_TRY(ul__check_device(op, "a", a, "b", b));
    UL_TRY(ul__broadcast(op, &ndim, shape, a, b));
    int fits = ndim == a->ndim;
    for (int i = 0; i < ndim && fits; i++) fits = shape[i] == a->shape[i];
    UL_REQUIRE(fits, UL_ESHAPE, "%s: %s does not fit into %s", op, ul__shape(b), ul__shape(a));
    for (int i = 0; i < ndim; i++)
        UL_REQUIRE(shape[i] <= 1 || a->stride[i] != 0, UL_ESHAPE,
                   "%s: several elements of the expanded %s are one in memory; use contiguous()",
                   op, ul__shape(a));
    UL_REQUIRE(!ul__needs_grad(b), UL_EGRAD,
               "%s: %s requires grad, which a change in place cannot pass on; use a pure op, or "
               "detach()",
               op, ul__shape(b));
    UL_TRY(ul__change(op, a));
    UL_TRY(ul__present(b));
    if (a->storage == b->storage && !is_same_view(a, b)) return ul__compact(source, b);
    *source = ul_tensor_retain(b);
    return UL_OK;
}

int ul_copy_(ul_tensor *y, ul_tensor *x)
{
    ul_tensor *source;
    UL_TRY(begin_change(&source, "copy_", y, x));
    int rc = ul__assign(y, source);
    ul_tensor_free(source);
    return rc;
}

typedef int (*binary_kernel)(ul_stream *s, void *y, const void *a, const void *b, const ul_loop *l);

static int change(const char *op, binary_kernel kernel, ul_tensor *a, ul_tensor *b)
{
    ul_tensor *source;
    UL_TRY(ul__check_same(op, "a", a, "b", b));
    UL_TRY(begin_change(&source, op, a, b));
    int64_t stride[UL_MAX_DIMS];
    ul__broadcast_strides(stride, source, a->ndim, a->shape);
    const int64_t *strides[] = {a->stride, a->stride, stride};
    ul_loop l;
    ul__loop(&l, a->ndim, a->shape, 3, strides, 0);
    int rc = kernel(ul__stream(a), ul__data(a), ul__data(a), ul__data(source), &l);
    ul_tensor_free(source);
    return rc;
}

int ul_add_(ul_tensor *a, ul_tensor *b) { return change("add_", ul__kernels(a)->add, a, b); }
int ul_sub_(ul_tensor *a, ul_tensor *b) { return change("sub_", ul__kernels(a)->sub, a, b); }
int ul_mul_(ul_tensor *a, ul_tensor *b) { return change("mul_", ul__kernels(a)->mul, a, b); }

int ul_div_(ul_tensor *a, ul_tensor *b)
{
    UL_TRY(ul__check_float("div_", "a", a));
    return change("div_", ul__kernels(a)->div, a, b);
}
