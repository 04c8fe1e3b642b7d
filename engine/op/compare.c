/* compare.c - comparisons of two tensors: u8, 0 or 1. Nothing flows back through them. */
#include "../internal.h"

typedef int (*compare_kernel)(ul_stream *s, void *y, const void *a, const void *b,
                              const ul_loop *l);

static int compare(ul_tensor **y, const char *name, compare_kernel kernel, ul_tensor *a,
                   ul_tensor *b)
{
    int ndim;
    int64_t shape[UL_MAX_DIMS], a_stride[UL_MAX_DIMS], b_stride[UL_MAX_DIMS];
    UL_TRY(ul__check_same(name, "a", a, "b", b));
    UL_TRY(ul__broadcast(name, &ndim, shape, a, b));
    ul_tensor *out, *inputs[] = {a, b};
    UL_TRY(ul__gather_shards(inputs, 2));
    UL_TRY(ul_tensor_new(&out, UL_U8, a->storage->device, ndim, shape));
    ul__broadcast_strides(a_stride, a, ndim, shape);
    ul__broadcast_strides(b_stride, b, ndim, shape);
    const int64_t *strides[] = {out->stride, a_stride, b_stride};
    ul_loop l;
    ul__loop(&l, ndim, shape, 3, strides, 0);
    int rc = kernel(ul__stream(a), ul__data(out), ul__data(a), ul__data(b), &l);
    if (rc < 0)
        ul_tensor_free(out);
    else
        *y = out;
    return rc;
}

int ul_eq(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return compare(y, "eq", ul__kernels(a)->eq, a, b);
}

int ul_ne(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return compare(y, "ne", ul__kernels(a)->ne, a, b);
}

int ul_lt(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return compare(y, "lt", ul__kernels(a)->lt, a, b);
}

int ul_le(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return compare(y, "le", ul__kernels(a)->le, a, b);
}

int ul_gt(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return compare(y, "gt", ul__kernels(a)->gt, a, b);
}

int ul_ge(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    return compare(y, "ge", ul__kernels(a)->ge, a, b);
}
