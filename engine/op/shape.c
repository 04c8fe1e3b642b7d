/* shape.c - views: other shapes and strides on the same values. */
#include <string.h>

#include "../internal.h"

/* Whether so many elements (a size of 0 counted as 1) are more than addresses can tell apart. */
static int is_too_large(int ndim, const int64_t *shape)
{
    int64_t size = 32; /* with room for the bytes of each */
    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(size, shape[i] > 0 ? shape[i] : 1, &size)) return 1;
    return 0;
}

/* ---- reshape, view, squeeze, unsqueeze ---- */

/* y has x's elements in x's order: dx is dy in x's shape. */
static int reshape_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_variable *x = call->variable[0];
    int64_t stride[UL_MAX_DIMS];
    ul__contiguous_strides(stride, x->ndim, x->shape);
    ul_tensor *dx;
    UL_TRY(ul__view_of(&dx, dy[0], x->ndim, x->shape, stride, dy[0]->offset));
    int rc = ul__grad_add(call, 0, dx);
    ul_tensor_free(dx);
    return rc;
}

static const ul_op view = {"view", reshape_backward};
static const ul_op squeeze = {"squeeze", reshape_backward};
static const ul_op unsqueeze = {"unsqueeze", reshape_backward};

/* `shape` with the -1 in it, if any, replaced by what x's number of elements leaves for it. Where
 * there are none, any size would do: dims in front that stay as they are do not count then, so that
 * [2, 0, 32] becomes [2, 0, 4, 8] as [2, 5, 32] would become [2, 5, 4, 8].
 */
static int complete_shape(const char *op, int64_t *full, const ul_tensor *x, int ndim,
                          const int64_t *shape)
{
    UL_REQUIRE(ndim >= 0 && ndim <= UL_MAX_DIMS, UL_ESHAPE, "%s: %d dims, at most %d", op, ndim,
               UL_MAX_DIMS);
    int64_t size = ul_tensor_size(x), rest = 1, known = 1;
    int open = -1, same = 0;
    for (int i = 0; i < ndim; i++) {
        full[i] = shape[i];
        if (shape[i] == -1 && open < 0)
            open = i;
        else
            UL_REQUIRE(shape[i] >= 0, UL_ESHAPE,
                       "%s: %s is no shape: sizes are not negative, but one may be -1", op,
                       ul__shape_of(ndim, shape));
    }
    while (size == 0 && same < open && same < x->ndim && shape[same] == x->shape[same]) same++;
    for (int i = same; i < x->ndim; i++) rest *= x->shape[i];
    int fits = !is_too_large(ndim, shape);
    for (int i = same; i < ndim && fits; i++) known *= i == open ? 1 : shape[i];
    fits = fits && (open < 0 ? known == size : known > 0 && rest % known == 0);
    UL_REQUIRE(fits, UL_ESHAPE, "%s: the %lld elements of x %s do not fit %s", op, (long long)size,
               ul__shape(x), ul__shape_of(ndim, shape));
    if (open >= 0) full[open] = rest / known;
    return UL_OK;
}

/* The strides with which x's memory shows `shape`, if there are any: 0 where there are none. x is
 * a few runs of evenly spaced elements, and each new dim must lie within one of them.
 */
static int view_strides(int64_t *stride, const ul_tensor *x, int ndim, const int64_t *shape)
{
    const int64_t *strides[] = {x->stride};
    ul_loop runs;
    ul__loop(&runs, x->ndim, x->shape, 1, strides, x->ndim);
    ul__contiguous_strides(stride, ndim, shape);
    if (ul_tensor_size(x) == 0) return 1;

    int run = runs.ndim - 1;
    int64_t taken = 1; /* elements of this run that the new dims so far walk over */
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] == 1) {
            if (i + 1 < ndim) stride[i] = stride[i + 1] * shape[i + 1];
            continue;
        }
        if (taken == runs.shape[run]) {
            run--;
            taken = 1;
        }
        stride[i] = taken * runs.stride[0][run];
        taken *= shape[i];
        if (runs.shape[run] % taken != 0) return 0;
    }
    return 1;
}

static int make_view(ul_tensor **y, const ul_op *op, ul_tensor *x, int ndim, const int64_t *shape,
                     const int64_t *stride)
{
    ul_call call = {.op = op, .input = {x}};
    ul__output_view(&call, x, ndim, shape, stride, x->offset);
    return ul__finish(&call, y);
}

int ul_view(ul_tensor **y, ul_tensor *x, int ndim, const int64_t *shape)
{
    int64_t full[UL_MAX_DIMS], stride[UL_MAX_DIMS];
    UL_TRY(complete_shape("view", full, x, ndim, shape));
    UL_REQUIRE(view_strides(stride, x, ndim, full), UL_ESHAPE,
               "view: x %s does not lie in memory in a way that %s could show; use reshape",
               ul__shape(x), ul__shape_of(ndim, full));
    return make_view(y, &view, x, ndim, full, stride);
}

int ul_reshape(ul_tensor **y, ul_tensor *x, int ndim, const int64_t *shape)
{
    int64_t full[UL_MAX_DIMS], stride[UL_MAX_DIMS];
    UL_TRY(complete_shape("reshape", full, x, ndim, shape));
    if (view_strides(stride, x, ndim, full)) return make_view(y, &view, x, ndim, full, stride);
    ul_tensor *copy;
    UL_TRY(ul_contiguous(&copy, x));
    int rc = ul_view(y, copy, ndim, full);
    ul_tensor_free(copy);
    return rc;
}

int ul_unsqueeze(ul_tensor **y, ul_tensor *x, int dim)
{
    UL_REQUIRE(x->ndim < UL_MAX_DIMS, UL_ESHAPE, "unsqueeze: x %s has %d dims already",
               ul__shape(x), UL_MAX_DIMS);
    UL_REQUIRE(dim >= -x->ndim - 1 && dim <= x->ndim, UL_ESHAPE,
               "unsqueeze: x %s has no place for such a dim", ul__shape(x));
    if (dim < 0) dim += x->ndim + 1;
    int64_t shape[UL_MAX_DIMS], stride[UL_MAX_DIMS];
    for (int i = 0; i <= x->ndim; i++) {
        int from = i < dim ? i : i - 1;
        shape[i] = i == dim ? 1 : x->shape[from];
        if (i != dim) stride[i] = x->stride[from];
    }
    stride[dim] = dim < x->ndim ? x->stride[dim] * x->shape[dim] : 1;
    return make_view(y, &unsqueeze, x, x->ndim + 1, shape, stride);
}

/* x's shape and strides without dim. Returns how many dims are left. */
static int drop_dim(int64_t *shape, int64_t *stride, const ul_tensor *x, int dim)
{
    int n = 0;
    for (int i = 0; i < x->ndim; i++) {
        if (i == dim) continue;
        shape[n] = x->shape[i];
        stride[n++] = x->stride[i];
    }
    return n;
}

int ul_squeeze(ul_tensor **y, ul_tensor *x, int dim)
{
    UL_TRY(ul__dim("squeeze", &dim, x));
    UL_REQUIRE(x->shape[dim] == 1, UL_ESHAPE, "squeeze: dim %d of x %s is of size %lld, not 1",
               dim + 1, ul__shape(x), (long long)x->shape[dim]);
    int64_t shape[UL_MAX_DIMS], stride[UL_MAX_DIMS];
    int n = drop_dim(shape, stride, x, dim);
    return make_view(y, &squeeze, x, n, shape, stride);
}

/* ---- permute, transpose ---- */

/* Dim j of y is dim i[j] of x: dx is dy with its dims put back. */
static int permute_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_tensor *g = dy[0];
    int64_t stride[UL_MAX_DIMS];
    for (int j = 0; j < g->ndim; j++) stride[call->i[j]] = g->stride[j];
    ul_tensor *dx;
    UL_TRY(ul__view_of(&dx, g, g->ndim, call->variable[0]->shape, stride, g->offset));
    int rc = ul__grad_add(call, 0, dx);
    ul_tensor_free(dx);
    return rc;
}

static const ul_op permute = {"permute", permute_backward};
static const ul_op transpose = {"transpose", permute_backward};

/* dims: a permutation of 0, 1, ... */
static int permuted(ul_tensor **y, const ul_op *op, ul_tensor *x, const int *dims)
{
    ul_call call = {.op = op, .input = {x}};
    int64_t shape[UL_MAX_DIMS], stride[UL_MAX_DIMS];
    for (int j = 0; j < x->ndim; j++) {
        call.i[j] = dims[j];
        shape[j] = x->shape[dims[j]];
        stride[j] = x->stride[dims[j]];
    }
    ul__output_view(&call, x, x->ndim, shape, stride, x->offset);
    return ul__finish(&call, y);
}

int ul_permute(ul_tensor **y, ul_tensor *x, int ndim, const int *dims)
{
    UL_REQUIRE(ndim == x->ndim, UL_ESHAPE, "permute: %d dims given for x %s", ndim, ul__shape(x));
    int full[UL_MAX_DIMS], seen[UL_MAX_DIMS] = {0};
    for (int j = 0; j < ndim; j++) {
        full[j] = dims[j];
        UL_TRY(ul__dim("permute", &full[j], x));
        UL_REQUIRE(!seen[full[j]]++, UL_ESHAPE, "permute: dim %d of x %s is given twice",
                   full[j] + 1, ul__shape(x));
    }
    return permuted(y, &permute, x, full);
}

int ul_transpose(ul_tensor **y, ul_tensor *x, int dim_a, int dim_b)
{
    UL_TRY(ul__dim("transpose", &dim_a, x));
    UL_TRY(ul__dim("transpose", &dim_b, x));
    int dims[UL_MAX_DIMS];
    for (int j = 0; j < x->ndim; j++) dims[j] = j == dim_a ? dim_b : j == dim_b ? dim_a : j;
    return permuted(y, &transpose, x, dims);
}

/* ---- slice, select ---- */

/* y is the elements start, start + step, ... (count of them) of dim: dy is added to these elements
 * of dx, the others get nothing. i: dim, start, count, step.
 */
static int slice_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_tensor *dx;
    UL_TRY(ul__grad_tensor(&dx, call, 0));
    if (!dx) return UL_OK;
    int64_t dim = call->i[0], start = call->i[1], count = call->i[2], step = call->i[3];
    ul_tensor part = *dx;
    part.offset += start * part.stride[dim];
    part.shape[dim] = count;
    part.stride[dim] *= step;
    int64_t dy_stride[UL_MAX_DIMS];
    ul__contiguous_strides(dy_stride, part.ndim, part.shape);
    const int64_t *strides[] = {part.stride, part.stride, dy_stride};
    ul_loop l;
    ul__loop(&l, part.ndim, part.shape, 3, strides, 0);
    void *to = ul__data(&part);
    return ul__kernels(dx)->add(ul__stream(dx), to, to, ul__data(dy[0]), &l);
}

static const ul_op slice = {"slice", slice_backward};
static const ul_op select_op = {"select", slice_backward};

int ul_slice(ul_tensor **y, ul_tensor *x, int dim, int64_t start, int64_t count, int64_t step)
{
    UL_TRY(ul__dim("slice", &dim, x));
    int64_t size = x->shape[dim];
    UL_REQUIRE(step >= 1 && count >= 0, UL_EVALUE,
               "slice: the count may not be %lld, nor the step %lld", (long long)count,
               (long long)step);
    int fits = start >= 0 && start <= size &&
               (count == 0 || (start < size && count - 1 <= (size - 1 - start) / step));
    UL_REQUIRE(fits, UL_ESHAPE, "slice: start %lld, count %lld, step %lld leave [0, %lld)",
               (long long)start, (long long)count, (long long)step, (long long)size);
    if (count <= 1) step = 1; /* never made, and as large as one likes */
    ul_call call = {.op = &slice, .input = {x}, .i = {dim, start, count, step}};
    int64_t shape[UL_MAX_DIMS], stride[UL_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    memcpy(stride, x->stride, sizeof stride);
    shape[dim] = count;
    stride[dim] *= step;
    ul__output_view(&call, x, x->ndim, shape, stride, x->offset + start * x->stride[dim]);
    return ul__finish(&call, y);
}

int ul_select(ul_tensor **y, ul_tensor *x, int dim, int64_t index)
{
    UL_TRY(ul__dim("select", &dim, x));
    int64_t size = x->shape[dim];
    UL_REQUIRE(index >= -size && index < size, UL_EVALUE,
               "select: index %lld is outside [0, %lld) of x %s", (long long)index, (long long)size,
               ul__shape(x));
    if (index < 0) index += size;
    ul_call call = {.op = &select_op, .input = {x}, .i = {dim, index, 1, 1}};
    int64_t shape[UL_MAX_DIMS], stride[UL_MAX_DIMS];
    int n = drop_dim(shape, stride, x, dim);
    ul__output_view(&call, x, n, shape, stride, x->offset + index * x->stride[dim]);
    return ul__finish(&call, y);
}

/* ---- expand ---- */

/* Each element of x appears several times in y: its gradient is their sum. */
static int expand_backward(ul_call *call, ul_tensor *const *dy)
{
    return ul__grad_add(call, 0, dy[0]);
}

static const ul_op expand = {"expand", expand_backward};

int ul_expand(ul_tensor **y, ul_tensor *x, int ndim, const int64_t *shape)
{
    UL_REQUIRE(ndim >= x->ndim && ndim <= UL_MAX_DIMS, UL_ESHAPE,
               "expand: x %s does not expand to %d dims", ul__shape(x), ndim);
    int64_t full[UL_MAX_DIMS], stride[UL_MAX_DIMS];
    for (int i = 0; i < ndim; i++) {
        int from = i - (ndim - x->ndim);
        int64_t size = from < 0 ? 1 : x->shape[from];
        full[i] = shape[i] == -1 && from >= 0 ? size : shape[i];
        UL_REQUIRE(full[i] >= 0 && (full[i] == size || size == 1), UL_ESHAPE,
                   "expand: x %s does not expand to %s", ul__shape(x), ul__shape_of(ndim, shape));
    }
    UL_REQUIRE(!is_too_large(ndim, full), UL_ESHAPE, "expand: %s is too large",
               ul__shape_of(ndim, full));
    ul__broadcast_strides(stride, x, ndim, full);
    return make_view(y, &expand, x, ndim, full, stride);
}
