/* collective.c - ops of all ranks of a group together: all_reduce, all_gather, reduce_scatter,
 * broadcast, send, receive.
 *
 * The loss that is differentiated is the sum of what all ranks call backward on, so that each rank
 * adds what the others' losses make of its values. Backward talks too: all ranks differentiate the
 * same ops, in the same order.
 */
#include <stdlib.h>
#include <string.h>

#include "parts.h"

/* What the rule of a collective op needs: the group, a dim, and [2 size] firsts and counts. */
typedef struct context {
    ul_group *group;
    int dim;
    int64_t *first, *count;
    int64_t numbers[];
} context;

static context *context_new(ul_group *g, int dim)
{
    context *c = ul__alloc(sizeof *c + 2 * (size_t)g->size * sizeof *c->numbers);
    if (!c) return NULL;
    *c = (context){g, dim, c->numbers, c->numbers + g->size};
    return c;
}

static void set_firsts(context *c)
{
    int64_t first = 0;
    for (int r = 0; r < c->group->size; r++) {
        c->first[r] = first;
        first += c->count[r];
    }
}

static int64_t bytes_of(const ul_tensor *x) { return ul_tensor_size(x) * ul_dtype_bytes(x->dtype); }

/* Of n bytes that lie in equal parts on all ranks, those that are sent to the others. */
static int64_t to_others(int64_t n, const ul_group *g) { return n / g->size * (g->size - 1); }

/* ---- the calls, on values ---- */

static int reduce_values(ul_group *g, ul_tensor *x, ul_reduction how)
{
    static const char *const words[] = {"", ", largest", ", smallest"};
    int moves = ul__collective(g, UL_COMM_ALL_REDUCE, x, -1, words[how]);
    if (moves < 0) return moves;
    int rc = UL_OK;
    if (moves)
        rc = ul__comm_on(g, x)->all_reduce(g, ul__data(x), ul_tensor_size(x), x->dtype, how);
    else
        rc = ul__all_reduce_on_meta(g, ul_tensor_size(x), x->dtype);
    return ul__comm_end(g, UL_COMM_ALL_REDUCE, 2 * to_others(bytes_of(x), g), rc);
}

static int gather_pieces(ul_group *g, const ul_pieces *pieces, ul_tensor *x, void *later)
{
    const ul_comm *comm = ul__comm_on(g, x);
    if (later) UL_TRY(comm->together(g, 1));
    UL_TRY(comm->all_gather(g, pieces, ul__data(x)));
    return later ? comm->together_later(g, later) : UL_OK;
}

int ul__gather_parts(ul_group *g, const ul_parts *parts, ul_tensor *x, void *later)
{
    int moves = ul__collective(g, UL_COMM_ALL_GATHER, x, parts->dim, "");
    if (moves < 0) return moves;
    ul_packed packed;
    int rc = ul__pack(&packed, parts, g->size, -1, 0);
    if (rc == UL_OK && moves) rc = gather_pieces(g, &packed.pieces, x, later);
    if (rc == UL_OK) rc = ul__unpack(&packed, parts, g->size, -1);
    ul__packed_free(&packed);
    return ul__comm_end(g, UL_COMM_ALL_GATHER, bytes_of(x) * (g->size - 1), rc);
}

int ul__scatter_parts(ul_group *g, const ul_parts *parts, ul_tensor *y)
{
    int moves = ul__collective(g, UL_COMM_REDUCE_SCATTER, parts->x, -1, "");
    if (moves < 0) return moves;
    ul_packed packed;
    int rc = ul__pack(&packed, parts, g->size, -1, 1);
    if (rc == UL_OK && moves)
        rc = ul__comm_on(g, y)->reduce_scatter(g, ul__data(y), &packed.pieces, y->dtype);
    else if (rc == UL_OK)
        rc = ul__reduce_scatter_on_meta(g, &packed.pieces, y->dtype);
    ul__packed_free(&packed);
    return ul__comm_end(g, UL_COMM_REDUCE_SCATTER, bytes_of(parts->x) - bytes_of(y), rc);
}

/* y, whose parts are those of all ranks, from x */
static int gather_values(const context *c, ul_tensor *y, ul_tensor *x)
{
    const ul_parts parts = {y, c->dim, c->first, c->count};
    return ul__gather_parts(c->group, &parts, x, NULL);
}

/* y = the sum of this rank's parts of x */
static int scatter_values(const context *c, ul_tensor *y, ul_tensor *x)
{
    const ul_parts parts = {x, c->dim, c->first, c->count};
    return ul__scatter_parts(c->group, &parts, y);
}

static int broadcast_values(ul_group *g, ul_tensor *x, int root)
{
    int moves = ul__collective(g, UL_COMM_BROADCAST, x, -1, "");
    if (moves < 0) return moves;
    int rc = UL_OK;
    if (moves) rc = ul__comm_on(g, x)->broadcast(g, ul__data(x), bytes_of(x), root);
    int64_t sent = g->rank == root ? bytes_of(x) * (g->size - 1) : 0;
    return ul__comm_end(g, UL_COMM_BROADCAST, sent, rc);
}

/* Changes x in place by `run` on contiguous values. */
typedef int in_place(ul_group *g, ul_tensor *x, int option);

static int change(const char *op, ul_tensor *x, in_place *run, ul_group *g, int option)
{
    UL_TRY(ul__change(op, x));
    if (ul_tensor_is_contiguous(x)) return run(g, x, option);
    ul_tensor *own;
    UL_TRY(ul__compact(&own, x));
    int rc = run(g, own, option);
    if (rc == UL_OK) rc = ul__assign(x, own);
    ul_tensor_free(own);
    return rc;
}

/* ---- all_reduce ---- */

/* y_r = sum over s of x_s for each r: dx = the sum over r of dy_r, the same again. */
static int all_reduce_backward(ul_call *call, ul_tensor *const *dy)
{
    context *c = call->context;
    ul_tensor *dx;
    UL_TRY(ul__compact(&dx, dy[0]));
    int rc = reduce_values(c->group, dx, UL_REDUCE_SUM);
    if (rc == UL_OK)
        ul__grad_take(call, 0, dx);
    else
        ul_tensor_free(dx);
    return rc;
}

static const ul_op all_reduce = {"all_reduce", all_reduce_backward};

int ul_all_reduce(ul_tensor **y, ul_tensor *x, ul_group *group, ul_reduction how)
{
    UL_REQUIRE(how == UL_REDUCE_SUM || !ul__needs_grad(x), UL_EGRAD,
               "all_reduce: only a sum has a gradient; detach() x first");
    context *c = context_new(group, 0);
    UL_REQUIRE(c, UL_ENOMEM, "all_reduce: out of memory");
    ul_call call = {.op = &all_reduce, .input = {x}, .context = c, .release = free};
    ul_tensor *out = ul__output_like(&call, x);
    if (call.rc == UL_OK) call.rc = ul__assign(out, x);
    if (call.rc == UL_OK) call.rc = reduce_values(group, out, how);
    return ul__finish(&call, y);
}

static int reduce_in_place(ul_group *g, ul_tensor *x, int how)
{
    return reduce_values(g, x, (ul_reduction)how);
}

int ul_all_reduce_(ul_tensor *x, ul_group *group, ul_reduction how)
{
    return change("all_reduce_", x, reduce_in_place, group, (int)how);
}

/* ---- all_gather and reduce_scatter: each the other's gradient ---- */

/* y_r = x_0 .. x_P side by side for each r: dx_s = the sum over r of part s of dy_r. */
static int all_gather_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_variable *x = call->variable[0];
    ul_tensor *dx;
    UL_TRY(ul_tensor_new(&dx, dy[0]->dtype, x->device, x->ndim, x->shape));
    int rc = scatter_values(call->context, dx, dy[0]);
    if (rc == UL_OK)
        ul__grad_take(call, 0, dx);
    else
        ul_tensor_free(dx);
    return rc;
}

/* y_r = the sum over s of part r of x_s: part r of dx_s = dy_r, whatever s. */
static int reduce_scatter_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_variable *x = call->variable[0];
    ul_tensor *dx;
    UL_TRY(ul_tensor_new(&dx, dy[0]->dtype, x->device, x->ndim, x->shape));
    int rc = gather_values(call->context, dx, dy[0]);
    if (rc == UL_OK)
        ul__grad_take(call, 0, dx);
    else
        ul_tensor_free(dx);
    return rc;
}

static const ul_op all_gather = {"all_gather", all_gather_backward};
static const ul_op reduce_scatter = {"reduce_scatter", reduce_scatter_backward};

int ul_all_gather(ul_tensor **y, ul_tensor *x, ul_group *group, int dim)
{
    UL_TRY(ul__dim("all_gather", &dim, x));
    context *c = context_new(group, dim);
    UL_REQUIRE(c, UL_ENOMEM, "all_gather: out of memory");
    ul_call call = {.op = &all_gather, .input = {x}, .context = c, .release = free};
    call.rc = ul__comm_sizes(group, c->count, &x->shape[dim], 1);
    int64_t shape[UL_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    if (call.rc == UL_OK) {
        set_firsts(c);
        shape[dim] = c->first[group->size - 1] + c->count[group->size - 1];
    }
    ul_tensor *out = ul__output(&call, x->dtype, x->ndim, shape), *mine = ul__contiguous(&call, x);
    if (call.rc == UL_OK) call.rc = gather_values(c, out, mine);
    return ul__finish(&call, y);
}

int ul_reduce_scatter(ul_tensor **y, ul_tensor *x, ul_group *group, int dim, const int64_t *sizes)
{
    UL_TRY(ul__dim("reduce_scatter", &dim, x));
    int64_t total = 0;
    for (int r = 0; r < group->size; r++) {
        int64_t n = sizes ? sizes[r] : ul_share(NULL, x->shape[dim], group->size, r);
        UL_REQUIRE(n >= 0, UL_EVALUE, "reduce_scatter: size %lld of rank %d", (long long)n, r);
        total += n;
    }
    UL_REQUIRE(total == x->shape[dim], UL_ESHAPE,
               "reduce_scatter: sizes add up to %lld, but x %s has %lld along dim %d",
               (long long)total, ul__shape(x), (long long)x->shape[dim], dim + 1);
    context *c = context_new(group, dim);
    UL_REQUIRE(c, UL_ENOMEM, "reduce_scatter: out of memory");
    for (int r = 0; r < group->size; r++)
        c->count[r] = sizes ? sizes[r] : ul_share(NULL, x->shape[dim], group->size, r);
    set_firsts(c);
    ul_call call = {.op = &reduce_scatter, .input = {x}, .context = c, .release = free};
    int64_t shape[UL_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[dim] = c->count[group->rank];
    ul_tensor *out = ul__output(&call, x->dtype, x->ndim, shape);
    if (call.rc == UL_OK) call.rc = scatter_values(c, out, x);
    return ul__finish(&call, y);
}

/* ---- broadcast ---- */

/* y_r = x_root for each r: dx_root = the sum over r of dy_r; the x of others reaches nobody. */
static int broadcast_backward(ul_call *call, ul_tensor *const *dy)
{
    context *c = call->context;
    ul_tensor *dx;
    UL_TRY(ul__compact(&dx, dy[0]));
    int rc = reduce_values(c->group, dx, UL_REDUCE_SUM);
    if (rc == UL_OK && c->group->rank != c->dim) rc = ul_fill_(dx, 0);
    if (rc == UL_OK)
        ul__grad_take(call, 0, dx);
    else
        ul_tensor_free(dx);
    return rc;
}

static const ul_op broadcast = {"broadcast", broadcast_backward};

static int check_rank(const char *op, const ul_group *g, int rank)
{
    UL_REQUIRE(rank >= 0 && rank < g->size, UL_EVALUE, "%s: no rank %d: they go from 0 to %d", op,
               rank, g->size - 1);
    return UL_OK;
}

int ul_broadcast(ul_tensor **y, ul_tensor *x, ul_group *group, int root)
{
    UL_TRY(check_rank("broadcast", group, root));
    context *c = context_new(group, root);
    UL_REQUIRE(c, UL_ENOMEM, "broadcast: out of memory");
    ul_call call = {.op = &broadcast, .input = {x}, .context = c, .release = free};
    ul_tensor *out = ul__output_like(&call, x);
    if (call.rc == UL_OK) call.rc = ul__assign(out, x);
    if (call.rc == UL_OK) call.rc = broadcast_values(group, out, root);
    return ul__finish(&call, y);
}

int ul_broadcast_(ul_tensor *x, ul_group *group, int root)
{
    UL_TRY(check_rank("broadcast_", group, root));
    return change("broadcast_", x, broadcast_values, group, root);
}

/* ---- send and receive: no gradient flows through them ---- */

static int check_other(const char *op, const ul_group *g, int other)
{
    UL_TRY(check_rank(op, g, other));
    UL_REQUIRE(other != g->rank, UL_EVALUE, "%s: rank %d is this very rank", op, other);
    return UL_OK;
}

static int send_values(ul_group *g, ul_tensor *x, int to)
{
    int moves = ul__collective(g, UL_COMM_SEND, x, -1, "");
    if (moves < 0) return moves;
    int rc = moves ? ul__comm_on(g, x)->send(g, ul__data(x), bytes_of(x), to) : UL_OK;
    return ul__comm_end(g, UL_COMM_SEND, bytes_of(x), rc);
}

static int receive_values(ul_group *g, ul_tensor *x, int from)
{
    int moves = ul__collective(g, UL_COMM_RECEIVE, x, -1, "");
    if (moves < 0) return moves;
    int rc = moves ? ul__comm_on(g, x)->receive(g, ul__data(x), bytes_of(x), from) : UL_OK;
    return ul__comm_end(g, UL_COMM_RECEIVE, 0, rc);
}

int ul_group_send(ul_group *group, ul_tensor *x, int to)
{
    UL_TRY(check_other("send", group, to));
    UL_TRY(ul__present(x));
    if (ul_tensor_is_contiguous(x)) return send_values(group, x, to);
    ul_tensor *own;
    UL_TRY(ul__compact(&own, x));
    int rc = send_values(group, own, to);
    ul_tensor_free(own);
    return rc;
}

int ul_group_receive(ul_group *group, ul_tensor *x, int from)
{
    UL_TRY(check_other("receive", group, from));
    return change("receive", x, receive_values, group, from);
}
