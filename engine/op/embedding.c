/* embedding.c - rows of a table, chosen by ids. */
#include "../internal.h"

int ul__check_ids(const char *op, const char *what, const ul_tensor *ids, int64_t n,
                  const int64_t *except)
{
    int64_t size = ul_tensor_size(ids), at = -1, id = 0, index[UL_MAX_DIMS] = {0};
    if (size == 0 || ids->storage->device == UL_META) return UL_OK;
    const void *known = ul__known(ids);
    ul_device device = known ? UL_CPU : ids->storage->device;
    const ul_kernels *kernels = ul__kernels_of(device, ids->dtype);
    ul_stream *stream = known ? ul_cpu_stream() : ul__stream(ids);
    /* 0 is a row, so excepting it excepts nothing, unless there are no rows. */
    if (n == 0 && !except)
        at = 0;
    else
        UL_TRY(kernels->find_outside(stream, &at, known ? known : ul__data(ids), size, 0, n,
                                     except ? *except : 0));
    if (at < 0) return UL_OK;
    int64_t rest = at;
    for (int d = ids->ndim - 1; d >= 0; rest /= ids->shape[d--]) index[d] = rest % ids->shape[d];
    UL_TRY(ul_tensor_get_int(&id, ids, index));
    if (!except)
        return ul__fail(UL_EVALUE, "%s: %s %lld at position %lld is outside [0, %lld)", op, what,
                        (long long)id, (long long)at + 1, (long long)n);
    return ul__fail(UL_EVALUE,
                    "%s: %s %lld at position %lld is outside [0, %lld) and is not ignore_index "
                    "%lld",
                    op, what, (long long)id, (long long)at + 1, (long long)n, (long long)*except);
}

/* y[i] = w[ids[i]], so dw[v] = sum of dy[i] over the i with ids[i] = v, in the order of i. */
static int embedding_backward(ul_call *call, ul_tensor *const *dy)
{
    const int64_t *w_shape = call->variable[1]->shape;
    const int64_t sizes[4] = {1, w_shape[0], ul_tensor_size(call->saved[0]), w_shape[1]};
    return ul__add_rows(call, 1, dy[0], sizes);
}

static const ul_op embedding = {"embedding", embedding_backward};

int ul_embedding(ul_tensor **y, ul_tensor *ids, ul_tensor *w)
{
    UL_TRY(ul__check_dtype("embedding", "ids", ids, UL_I64));
    UL_TRY(ul__check_float("embedding", "weight", w));
    UL_TRY(ul__check_device("embedding", "ids", ids, "weight", w));
    UL_REQUIRE(w->ndim == 2, UL_ESHAPE, "embedding: weight %s must be [V, C]", ul__shape(w));
    UL_REQUIRE(ids->ndim < UL_MAX_DIMS, UL_ESHAPE, "embedding: ids %s have too many dimensions",
               ul__shape(ids));
    int64_t shape[UL_MAX_DIMS];
    for (int d = 0; d < ids->ndim; d++) shape[d] = ids->shape[d];
    shape[ids->ndim] = w->shape[1];

    ul_call call = {.op = &embedding, .input = {ids, w}};
    ids = ul__save(&call, ul__contiguous(&call, ids));
    if (call.rc == UL_OK) call.rc = ul__check_ids("embedding", "id", ids, w->shape[0], NULL);
    ul_tensor *out = ul__output(&call, w->dtype, ids->ndim + 1, shape);
    w = ul__contiguous(&call, w);
    UL_RUN(&call, out, index_select, ul__data(out), ul__data(w), ul__data(ids), 1, w->shape[0],
           ul_tensor_size(ids), w->shape[1]);
    return ul__finish(&call, y);
}
