/* index.c - elements and rows chosen by index: gather, index_select. */
#include <string.h>

#include "../internal.h"

/* x seen as [outer, n, inner] around dim, from which m elements are taken; in i[0] .. i[3]. */
static void set_sizes(ul_call *call, const ul_tensor *x, int dim, int64_t m)
{
    call->i[0] = call->i[3] = 1;
    for (int d = 0; d < dim; d++) call->i[0] *= x->shape[d];
    call->i[1] = x->shape[dim];
    call->i[2] = m;
    for (int d = dim + 1; d < x->ndim; d++) call->i[3] *= x->shape[d];
}

/* ---- gather ---- */

int ul__pick_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_tensor *index = call->saved[0];
    ul_grad dx;
    UL_TRY(ul__grad_acc(&dx, call, 0));
    return ul__kernels(dy[0])->gather_backward(ul__stream(dy[0]), dx, ul__data(dy[0]),
                                               ul__data(index), call->i[0], call->i[1], call->i[2],
                                               call->i[3]);
}

static const ul_op gather = {"gather", ul__pick_backward};

int ul_gather(ul_tensor **y, ul_tensor *x, int dim, ul_tensor *index)
{
    UL_TRY(ul__dim("gather", &dim, x));
    UL_TRY(ul__check_dtype("gather", "index", index, UL_I64));
    UL_TRY(ul__check_device("gather", "x", x, "index", index));
    int fits = index->ndim == x->ndim;
    for (int d = 0; d < x->ndim && fits; d++) fits = d == dim || index->shape[d] == x->shape[d];
    UL_REQUIRE(fits, UL_ESHAPE,
               "gather: index %s must have the shape of x %s, but for the size of the dim gathered "
               "from",
               ul__shape(index), ul__shape(x));

    ul_call call = {.op = &gather, .input = {x}};
    set_sizes(&call, x, dim, index->shape[dim]);
    ul_tensor *rows = ul__contiguous(&call, x), *chosen = ul__contiguous(&call, index);
    if (call.rc == UL_OK) call.rc = ul__check_ids("gather", "index", chosen, x->shape[dim], NULL);
    ul_tensor *out = ul__output(&call, x->dtype, index->ndim, index->shape);
    ul__save(&call, chosen);
    UL_RUN(&call, x, gather, ul__data(out), ul__data(rows), ul__data(chosen), call.i[0], call.i[1],
           call.i[2], call.i[3]);
    return ul__finish(&call, y);
}

/* ---- index_select ---- */

int ul__add_rows(ul_call *call, int i, const ul_tensor *dy, const int64_t *sizes)
{
    const ul_tensor *index = call->saved[0];
    ul_tensor *work = NULL; /* for the index in order */
    ul_grad dx;
    UL_TRY(ul__grad_acc(&dx, call, i));
    if (dx.data && dy->storage->device == UL_CUDA)
        UL_TRY(ul_tensor_new(&work, UL_I64, UL_CUDA, 1, (int64_t[]){3 * sizes[2]}));
    int rc = ul__kernels(dy)->index_select_backward(ul__stream(dy), dx, ul__data(dy),
                                                    ul__data(index), sizes[0], sizes[1], sizes[2],
                                                    sizes[3], work ? ul__data(work) : NULL);
    ul_tensor_free(work);
    return rc;
}

/* dx = dy, added at the rows that y's rows came from. saved: index; i: outer, n, m, inner. */
static int index_select_backward(ul_call *call, ul_tensor *const *dy)
{
    return ul__add_rows(call, 0, dy[0], call->i);
}

static const ul_op index_select = {"index_select", index_select_backward};

int ul_index_select(ul_tensor **y, ul_tensor *x, int dim, ul_tensor *index)
{
    UL_TRY(ul__dim("index_select", &dim, x));
    UL_TRY(ul__check_dtype("index_select", "index", index, UL_I64));
    UL_TRY(ul__check_device("index_select", "x", x, "index", index));
    UL_REQUIRE(index->ndim == 1, UL_ESHAPE, "index_select: index %s must have one dim",
               ul__shape(index));

    ul_call call = {.op = &index_select, .input = {x}};
    set_sizes(&call, x, dim, index->shape[0]);
    ul_tensor *rows = ul__contiguous(&call, x), *chosen = ul__contiguous(&call, index);
    if (call.rc == UL_OK)
        call.rc = ul__check_ids("index_select", "index", chosen, x->shape[dim], NULL);
    int64_t shape[UL_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[dim] = index->shape[0];
    ul_tensor *out = ul__output(&call, x->dtype, x->ndim, shape);
    ul__save(&call, chosen);
    UL_RUN(&call, x, index_select, ul__data(out), ul__data(rows), ul__data(chosen), call.i[0],
           call.i[1], call.i[2], call.i[3]);
    return ul__finish(&call, y);
}
