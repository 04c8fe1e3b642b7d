/* shard.c - the exchange that turns shares of one dim into shares of another. */
#include <stdlib.h>
#include <string.h>

#include "parts.h"

/* What is sent, cut along `split` of x, and what arrives, side by side along `cat` of y. */
typedef struct context {
    ul_group *group;
    int split, cat;
    int64_t *split_first, *split_count, *cat_first, *cat_count;
    int64_t numbers[];
} context;

static context *context_new(ul_group *g, int split, int cat)
{
    context *c = ul__alloc(sizeof *c + 4 * (size_t)g->size * sizeof *c->numbers);
    if (!c) return NULL;
    *c = (context){g, split, cat, c->numbers, NULL, NULL, NULL};
    c->split_count = c->split_first + g->size;
    c->cat_first = c->split_count + g->size;
    c->cat_count = c->cat_first + g->size;
    return c;
}

static void set_firsts(int64_t *first, const int64_t *count, int size)
{
    int64_t next = 0;
    for (int r = 0; r < size; r++) {
        first[r] = next;
        next += count[r];
    }
}

/* Sends the parts of `from` and fills those of `to`. What stays on this rank is copied straight. */
static int exchange(ul_group *g, const ul_parts *to, const ul_parts *from)
{
    ul_packed out, in;
    ul_tensor mine = ul__part(from, g->rank), target = ul__part(to, g->rank);
    UL_TRY(ul__assign(&target, &mine));
    UL_TRY(ul__pack(&out, from, g->size, g->rank, 1));
    int rc = ul__pack(&in, to, g->size, g->rank, 0);
    if (rc == UL_OK) {
        rc = g->comm->all_to_all(g, &in.pieces, &out.pieces);
        if (rc == UL_OK) rc = ul__unpack(&in, to, g->size, g->rank);
        ul__packed_free(&in);
    }
    ul__packed_free(&out);
    return rc;
}

static int exchange_values(ul_group *g, const ul_parts *to, const ul_parts *from)
{
    int64_t row = ul_dtype_bytes(from->x->dtype), sent = 0;
    for (int d = 0; d < from->x->ndim; d++)
        if (d != from->dim) row *= from->x->shape[d];
    for (int r = 0; r < g->size; r++)
        if (r != g->rank) sent += from->count[r] * row;
    int moves = ul__collective(g, UL_COMM_ALL_TO_ALL, from->x, to->dim, "");
    if (moves < 0) return moves;
    return ul__comm_end(g, UL_COMM_ALL_TO_ALL, sent, moves ? exchange(g, to, from) : UL_OK);
}

/* Rank r's part for s became s's part from r: dx is dy sent the same way back. */
static int all_to_all_backward(ul_call *call, ul_tensor *const *dy)
{
    const context *c = call->context;
    const ul_variable *x = call->variable[0];
    ul_tensor *dx;
    UL_TRY(ul_tensor_new(&dx, dy[0]->dtype, x->device, x->ndim, x->shape));
    const ul_parts from = {dy[0], c->cat, c->cat_first, c->cat_count};
    const ul_parts to = {dx, c->split, c->split_first, c->split_count};
    int rc = exchange_values(c->group, &to, &from);
    if (rc == UL_OK)
        ul__grad_take(call, 0, dx);
    else
        ul_tensor_free(dx);
    return rc;
}

static const ul_op all_to_all = {"all_to_all", all_to_all_backward};

/* Along one dim, what arrives is what the others have cut off for this rank. */
static int set_arriving(context *c)
{
    int n = c->group->size;
    int64_t numbers = (int64_t)n * n;
    ul_tensor *memory;
    UL_TRY(ul_tensor_new(&memory, UL_I64, UL_CPU, 1, &numbers));
    int64_t *all = ul__data(memory);
    int rc = ul__comm_sizes(c->group, all, c->split_count, n);
    for (int r = 0; r < n && rc == UL_OK; r++) c->cat_count[r] = all[r * n + c->group->rank];
    ul_tensor_free(memory);
    return rc;
}

/* The parts of x, and what the others send. */
static int set_parts(context *c, const ul_tensor *x, const int64_t *sizes)
{
    ul_group *g = c->group;
    int64_t n = x->shape[c->split], total = 0;
    for (int r = 0; r < g->size; r++) {
        c->split_count[r] = sizes ? sizes[r] : ul_share(NULL, n, g->size, r);
        UL_REQUIRE(c->split_count[r] >= 0, UL_EVALUE, "all_to_all: size %lld of rank %d",
                   (long long)c->split_count[r], r);
        total += c->split_count[r];
    }
    UL_REQUIRE(total == n, UL_ESHAPE,
               "all_to_all: sizes add up to %lld, but x %s has %lld along dim %d", (long long)total,
               ul__shape(x), (long long)n, c->split + 1);
    set_firsts(c->split_first, c->split_count, g->size);
    if (c->split != c->cat)
        UL_TRY(ul__comm_sizes(g, c->cat_count, &x->shape[c->cat], 1));
    else
        UL_TRY(set_arriving(c));
    set_firsts(c->cat_first, c->cat_count, g->size);
    return UL_OK;
}

int ul_all_to_all(ul_tensor **y, ul_tensor *x, ul_group *group, int split, int cat,
                  const int64_t *sizes)
{
    UL_TRY(ul__dim("all_to_all", &split, x));
    UL_TRY(ul__dim("all_to_all", &cat, x));
    context *c = context_new(group, split, cat);
    UL_REQUIRE(c, UL_ENOMEM, "all_to_all: out of memory");
    ul_call call = {.op = &all_to_all, .input = {x}, .context = c, .release = free};
    call.rc = set_parts(c, x, sizes);
    int64_t shape[UL_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    if (call.rc == UL_OK) {
        shape[split] = c->split_count[group->rank];
        shape[cat] = c->cat_first[group->size - 1] + c->cat_count[group->size - 1];
    }
    ul_tensor *out = ul__output(&call, x->dtype, x->ndim, shape);
    if (call.rc == UL_OK) {
        const ul_parts from = {x, split, c->split_first, c->split_count};
        const ul_parts to = {out, cat, c->cat_first, c->cat_count};
        call.rc = exchange_values(group, &to, &from);
    }
    return ul__finish(&call, y);
}
