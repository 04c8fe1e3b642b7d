/* lists.c - all_to_all of lists: to each rank a tensor, of any size and dtype. */
#include <stdlib.h>
#include <string.h>

#include "parts.h"

/* What may have a gradient, whether or not it is wanted: the bytes of each, 0 where it has none. */
typedef struct context {
    ul_group *group;
    int64_t *sent, *came; /* [size] */
    int64_t numbers[];
} context;

static int64_t bytes_of(const ul_tensor *x) { return ul_tensor_size(x) * ul_dtype_bytes(x->dtype); }

/* ---- moving ---- */

/* Where tensors lie, seen from the first that has memory; some may be NULL. numbers [2 size] */
static ul_pieces pieces_of(ul_tensor *const *list, int size, int64_t *numbers)
{
    int64_t *at = numbers, *bytes = numbers + size;
    char *data = NULL;
    for (int r = 0; r < size; r++) {
        char *mine = list[r] ? ul__data(list[r]) : NULL;
        if (!data) data = mine;
        bytes[r] = list[r] ? bytes_of(list[r]) : 0;
        at[r] = mine && bytes[r] ? (int64_t)((intptr_t)mine - (intptr_t)data) : 0;
    }
    return (ul_pieces){data, at, bytes};
}

/* to[r], from r; contiguous, or NULL where nothing comes or goes. */
static int move(ul_group *g, ul_tensor *const *to, ul_tensor *const *from, ul_device device)
{
    int64_t n = 4 * (int64_t)g->size, sent = 0;
    for (int r = 0; r < g->size; r++)
        if (r != g->rank && from[r]) sent += bytes_of(from[r]);
    UL_REQUIRE(device == UL_META || g->comm != &ul__plan, UL_EDEVICE,
               "all_to_all: the other ranks of a pretended world have no values; the list must be "
               "on meta");
    ul_tensor *memory;
    UL_TRY(ul_tensor_new(&memory, UL_I64, UL_CPU, 1, &n));
    int64_t *numbers = ul__data(memory);
    const ul_pieces in = pieces_of(to, g->size, numbers);
    const ul_pieces out = pieces_of(from, g->size, numbers + 2 * g->size);
    int rc = device == UL_CUDA ? ul__device_ready(g) : UL_OK;
    if (rc == UL_OK) rc = ul__comm_begin(g, UL_COMM_ALL_TO_ALL, "a list");
    if (rc == UL_OK)
        rc = ul__comm_end(g, UL_COMM_ALL_TO_ALL, sent,
                          device == UL_META ? UL_OK
                                            : ul__comm_of(g, device)->all_to_all(g, &in, &out));
    ul_tensor_free(memory);
    return rc;
}

/* ---- what arrives ---- */

enum { DTYPE, NDIM, SHAPE, NUMBERS = SHAPE + UL_MAX_DIMS };

/* Ranks tell each other what they send; theirs [size][NUMBERS]. */
static int tell(ul_group *g, int64_t *theirs, ul_tensor *const *x)
{
    int64_t n = g->size * (NUMBERS + 2), each = NUMBERS * (int64_t)sizeof(int64_t);
    ul_tensor *memory;
    UL_TRY(ul_tensor_new(&memory, UL_I64, UL_CPU, 1, &n));
    int64_t *mine = ul__data(memory), *at = mine + g->size * NUMBERS, *bytes = at + g->size;
    memset(mine, 0, (size_t)g->size * (size_t)each);
    for (int r = 0; r < g->size; r++) {
        int64_t *row = mine + r * NUMBERS;
        row[DTYPE] = x[r]->dtype;
        row[NDIM] = x[r]->ndim;
        memcpy(row + SHAPE, x[r]->shape, (size_t)x[r]->ndim * sizeof *row);
        at[r] = r * each;
        bytes[r] = each;
    }
    const ul_pieces from = {(char *)mine, at, bytes}, to = {(char *)theirs, at, bytes};
    int rc = ul__comm_begin(g, UL_COMM_SIZES, "a list");
    if (rc == UL_OK)
        rc = ul__comm_end(g, UL_COMM_SIZES, each * (g->size - 1),
                          g->comm->all_to_all(g, &to, &from));
    ul_tensor_free(memory);
    return rc;
}

static int make_outputs(ul_tensor **y, ul_tensor *const *x, ul_group *g)
{
    int64_t n = g->size * NUMBERS;
    ul_tensor *memory;
    UL_TRY(ul_tensor_new(&memory, UL_I64, UL_CPU, 1, &n));
    int64_t *theirs = ul__data(memory);
    int rc = tell(g, theirs, x);
    for (int r = 0; r < g->size && rc == UL_OK; r++) {
        const int64_t *row = theirs + r * NUMBERS;
        rc = ul_tensor_new(&y[r], (ul_dtype)row[DTYPE], x[0]->storage->device, (int)row[NDIM],
                           row + SHAPE);
    }
    ul_tensor_free(memory);
    return rc;
}

/* ---- the op ---- */

static void free_all(ul_tensor **list, int n)
{
    for (int i = 0; i < n; i++) {
        ul_tensor_free(list[i]);
        list[i] = NULL;
    }
}

/* The gradient of what came from r goes back to r: zeros where there is none, for r waits. */
static int send_back(ul_call *call, ul_tensor *const *dy, ul_tensor **back, ul_tensor **dx)
{
    const context *c = call->context;
    int size = c->group->size, rc = UL_OK;
    ul_device device = UL_CPU;
    for (int r = 0; r < size; r++)
        if (dy[r]) device = dy[r]->storage->device;
    for (int r = 0; r < size && rc == UL_OK; r++) {
        const ul_variable *x = call->variable[r];
        if (dy[r]) {
            back[r] = ul_tensor_retain(dy[r]);
        } else if (c->came[r]) {
            rc = ul_tensor_new(&back[r], UL_U8, device, 1, &c->came[r]);
            if (rc == UL_OK) rc = ul_fill_(back[r], 0);
        }
        if (rc < 0) break;
        if (x)
            rc = ul_tensor_new(&dx[r], x->dtype, device, x->ndim, x->shape);
        else if (c->sent[r])
            rc = ul_tensor_new(&dx[r], UL_U8, device, 1, &c->sent[r]);
    }
    return rc == UL_OK ? move(c->group, dx, back, device) : rc;
}

static int lists_backward(ul_call *call, ul_tensor *const *dy)
{
    const context *c = call->context;
    int size = c->group->size;
    ul_tensor **back = ul__alloc(2 * (size_t)size * sizeof *back);
    if (!back) return ul__fail(UL_ENOMEM, "all_to_all: out of memory");
    memset(back, 0, 2 * (size_t)size * sizeof *back);
    ul_tensor **dx = back + size;
    int rc = send_back(call, dy, back, dx);
    for (int r = 0; r < size && rc == UL_OK; r++) {
        if (!call->variable[r]) continue;
        ul__grad_take(call, r, dx[r]);
        dx[r] = NULL;
    }
    free_all(back, 2 * size);
    ul__release(back);
    return rc;
}

static const ul_op all_to_all_list = {"all_to_all", lists_backward};

static context *context_new(ul_group *g, ul_tensor *const *x)
{
    context *c = ul__alloc(sizeof *c + 2 * (size_t)g->size * sizeof *c->numbers);
    if (!c) return NULL;
    *c = (context){.group = g, .sent = c->numbers, .came = c->numbers + g->size};
    for (int r = 0; r < g->size; r++)
        c->sent[r] = ul_dtype_is_float(x[r]->dtype) ? bytes_of(x[r]) : 0;
    return c;
}

/* y from x, whose copies without gaps, where it has any, are own. */
static int exchange(ul_tensor **y, ul_tensor *const *x, ul_tensor **own, context *c)
{
    int size = c->group->size;
    UL_TRY(make_outputs(y, x, c->group));
    for (int r = 0; r < size; r++) {
        c->came[r] = ul_dtype_is_float(y[r]->dtype) ? bytes_of(y[r]) : 0;
        if (ul_tensor_is_contiguous(x[r]))
            own[r] = ul_tensor_retain(x[r]);
        else
            UL_TRY(ul__compact(&own[r], x[r]));
    }
    return move(c->group, y, own, x[0]->storage->device);
}

int ul_all_to_all_list(ul_tensor **y, ul_tensor *const *x, int n, ul_group *group)
{
    UL_REQUIRE(n == group->size, UL_EVALUE, "all_to_all: a list of %d tensors for %d ranks", n,
               group->size);
    for (int r = 1; r < n; r++)
        UL_TRY(ul__check_device("all_to_all", "x", x[r], "the first", x[0]));
    memset(y, 0, (size_t)n * sizeof *y);
    context *c = context_new(group, x);
    ul_tensor **own = ul__alloc((size_t)n * sizeof *own);
    ul_call call = {.op = &all_to_all_list, .inputs = x, .n_inputs = n, .context = c};
    call.release = free;
    if (own) memset(own, 0, (size_t)n * sizeof *own);
    if (c && own)
        call.rc = exchange(y, x, own, c);
    else
        call.rc = ul__fail(UL_ENOMEM, "all_to_all: out of memory");
    if (own) free_all(own, n);
    ul__release(own);
    return ul__finish_list(&call, y, n);
}
