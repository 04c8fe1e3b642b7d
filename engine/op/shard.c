/* shard.c - the exchange that turns shares of one dim into shares of another: tokens and heads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

/* What is sent of one tensor, cut along `split` of it, and what arrives, side by side along `cat`
 * of y. Where parts overlap, some of x goes to several ranks, and what these send back arrives side
 * by side in [back_total] first.
 */
typedef struct route {
    int overlap;
    int64_t back_total;
    int64_t *split_first, *split_count, *cat_first, *cat_count, *back_first;
} route;

/* One exchange, forward and backward. In two steps it belongs to both of their calls, and until the
 * second one to the tensor that is on its way. */
typedef struct ul_passage {
    int refs;
    ul_group *group;
    int split, cat, n;
    int later; /* it takes two steps */
    ul_flight there, back;
    ul_dtype dtype[UL_MAX_CUTS];
    int ndim[UL_MAX_CUTS], wants[UL_MAX_CUTS]; /* of x: whether it has a gradient */
    int64_t shape[UL_MAX_CUTS][UL_MAX_DIMS];
    /* of gradients that are on their way: whose, and where to */
    int n_back, input[UL_MAX_CUTS];
    ul_tensor *arriving[UL_MAX_CUTS];
    route route[UL_MAX_CUTS]; /* of n tensors */
    int64_t numbers[];
} context;

static context *context_new(ul_group *g, int split, int cat, int n)
{
    int64_t size = g->size;
    context *c = ul__alloc(sizeof *c + (size_t)(5 * n * size) * sizeof *c->numbers);
    if (!c) return NULL;
    *c = (context){.refs = 1, .group = g, .split = split, .cat = cat, .n = n};
    for (int i = 0; i < n; i++) {
        int64_t *at = c->numbers + 5 * i * size;
        c->route[i] = (route){0, 0, at, at + size, at + 2 * size, at + 3 * size, at + 4 * size};
    }
    return c;
}

static void drop_back(context *c)
{
    ul__exchange_drop(&c->back);
    for (int k = 0; k < c->n_back; k++) ul_tensor_free(c->arriving[k]);
    c->n_back = 0;
}

void ul__passage_drop(void *passage)
{
    context *c = passage;
    if (!c || --c->refs > 0) return;
    ul__exchange_drop(&c->there);
    drop_back(c);
    free(c);
}

/* Where parts that follow each other begin; returns where they end. */
static int64_t set_firsts(int64_t *first, const int64_t *count, int size)
{
    int64_t next = 0;
    for (int r = 0; r < size; r++) {
        first[r] = next;
        next += count[r];
    }
    return next;
}

/* f NULL: all of it, else its begin. */
static int exchange_values(ul_flight *f, ul_group *g, const ul_parts *to, const ul_parts *from,
                           int n)
{
    char more[32] = "";
    int64_t sent = 0;
    for (int i = 0; i < n; i++) {
        int64_t row = ul_dtype_bytes(from[i].x->dtype);
        for (int d = 0; d < from[i].x->ndim; d++)
            if (d != from[i].dim) row *= from[i].x->shape[d];
        for (int r = 0; r < g->size; r++)
            if (r != g->rank) sent += from[i].count[r] * row;
    }
    if (n > 1) snprintf(more, sizeof more, " and %d more", n - 1);
    int moves = ul__collective(g, UL_COMM_ALL_TO_ALL, from->x, to->dim, more);
    if (moves < 0) return moves;
    int rc = f ? ul__exchange_begin(f, g, to, from, n, moves) : ul__exchange(g, to, from, n, moves);
    return ul__comm_end(g, UL_COMM_ALL_TO_ALL, sent, rc);
}

/* y += x, of another dtype perhaps. */
static int add_cast(ul_tensor *y, ul_tensor *x)
{
    if (x->dtype == y->dtype) return ul__add_into(y, x);
    ul_tensor *wide;
    UL_TRY(ul_tensor_new(&wide, y->dtype, y->storage->device, y->ndim, y->shape));
    int rc = ul__assign(wide, x);
    if (rc == UL_OK) rc = ul__add_into(y, wide);
    ul_tensor_free(wide);
    return rc;
}

/* dx = what each rank has sent back for its part, summed in the order of the ranks where several
 * have had the same; in accumulators. Parts begin no earlier than the one before: what lies beyond
 * all of them so far is the first of its sum.
 */
static int add_up(ul_tensor *dx, const ul_tensor *landing, const context *c, const route *way)
{
    int64_t seen = 0;
    for (int r = 0; r < c->group->size; r++) {
        int64_t first = way->split_first[r], end = first + way->split_count[r];
        int64_t middle = seen < first ? first : seen < end ? seen : end;
        const int64_t cuts[3] = {first, middle, end}; /* added; put there */
        for (int part = 0; part < 2; part++) {
            ul_tensor from = *landing, to = *dx;
            from.shape[c->split] = to.shape[c->split] = cuts[part + 1] - cuts[part];
            if (to.shape[c->split] == 0) continue;
            from.offset += (way->back_first[r] + cuts[part] - first) * from.stride[c->split];
            to.offset += cuts[part] * to.stride[c->split];
            UL_TRY(part ? ul__assign(&to, &from) : add_cast(&to, &from));
        }
        if (end > seen) seen = end;
    }
    return UL_OK;
}

/* Gives input i the gradient that has arrived; takes it over. */
static int give(ul_call *call, int i, ul_tensor *arrived)
{
    const context *c = call->context;
    const route *way = &c->route[i];
    const ul_variable *x = call->variable[i];
    if (!way->overlap) {
        ul__grad_take(call, i, arrived);
        return UL_OK;
    }
    ul_tensor *dx;
    int rc = ul_tensor_new(&dx, ul_dtype_acc(arrived->dtype), x->device, x->ndim, x->shape);
    if (rc == UL_OK) {
        rc = add_up(dx, arrived, c, way);
        if (rc == UL_OK)
            ul__grad_take(call, i, dx);
        else
            ul_tensor_free(dx);
    }
    ul_tensor_free(arrived);
    return rc;
}

/* Rank r's part for s became s's part from r: dx is dy sent the same way back, and the sum of what
 * comes back for an element that went to several ranks. Begins that for all dy that are there. */
static int begin_back(context *c, ul_tensor *const *dy)
{
    ul_parts from[UL_MAX_CUTS], to[UL_MAX_CUTS];
    drop_back(c);
    for (int i = 0; i < c->n; i++) {
        const route *way = &c->route[i];
        int64_t shape[UL_MAX_DIMS], n = c->n_back;
        if (!dy[i] || !c->wants[i]) continue;
        memcpy(shape, c->shape[i], sizeof shape);
        if (way->overlap) shape[c->split] = way->back_total;
        UL_TRY(ul_tensor_new(&c->arriving[n], dy[i]->dtype, dy[i]->storage->device, c->ndim[i],
                             shape));
        const int64_t *first = way->overlap ? way->back_first : way->split_first;
        from[n] = (ul_parts){dy[i], c->cat, way->cat_first, way->cat_count};
        to[n] = (ul_parts){c->arriving[n], c->split, first, way->split_count};
        c->input[c->n_back++] = i;
    }
    return c->n_back ? exchange_values(c->later ? &c->back : NULL, c->group, to, from, c->n_back)
                     : UL_OK;
}

/* In two steps it has begun where the gradient of what has arrived was known. */
static int exchange_backward(ul_call *call, ul_tensor *const *dy)
{
    context *c = call->context;
    int rc = c->n_back ? UL_OK : begin_back(c, dy);
    if (rc == UL_OK) rc = ul__exchange_end(&c->back);
    int n = c->n_back;
    c->n_back = 0;
    for (int k = 0; k < n; k++)
        if (rc == UL_OK)
            rc = give(call, c->input[k], c->arriving[k]);
        else
            ul_tensor_free(c->arriving[k]);
    return rc;
}

/* What is on its way to y. */
static void set_passage(ul_tensor *y, context *c)
{
    c->refs++;
    y->passage = c;
}

/* The op on n tensors whose parts are known; takes c over. On failure y [n] is NULL. */
static int run(ul_tensor **y, const ul_op *op, ul_tensor *const *x, context *c)
{
    ul_call call = {
        .op = op, .inputs = x, .n_inputs = c->n, .context = c, .release = ul__passage_drop};
    ul_parts from[UL_MAX_CUTS], to[UL_MAX_CUTS];
    int size = c->group->size, n = c->n;
    for (int i = 0; i < n; i++) {
        route *way = &c->route[i];
        int64_t shape[UL_MAX_DIMS];
        memcpy(shape, x[i]->shape, sizeof shape);
        memcpy(c->shape[i], x[i]->shape, sizeof shape);
        c->ndim[i] = x[i]->ndim;
        c->wants[i] = ul__needs_grad(x[i]);
        shape[c->split] = way->split_count[c->group->rank];
        shape[c->cat] = set_firsts(way->cat_first, way->cat_count, size);
        way->back_total = set_firsts(way->back_first, way->split_count, size);
        y[i] = NULL;
        if (call.rc == UL_OK)
            call.rc = ul_tensor_new(&y[i], x[i]->dtype, x[i]->storage->device, x[i]->ndim, shape);
        from[i] = (ul_parts){x[i], c->split, way->split_first, way->split_count};
        to[i] = (ul_parts){y[i], c->cat, way->cat_first, way->cat_count};
    }
    if (call.rc == UL_OK)
        call.rc = exchange_values(c->later ? &c->there : NULL, c->group, to, from, n);
    if (call.rc == UL_OK && c->later) set_passage(y[0], c);
    return ul__finish_list(&call, y, n);
}

/* ---- the second step ---- */

/* The identity; what will be sent back is sent as soon as it is known. */
static int arrive_backward(ul_call *call, ul_tensor *const *dy)
{
    context *c = call->context;
    UL_TRY(begin_back(c, dy));
    for (int i = 0; i < c->n; i++) {
        ul_tensor *same;
        if (!dy[i]) continue;
        UL_TRY(ul__alias(&same, dy[i]));
        ul__grad_take(call, i, same);
    }
    return UL_OK;
}

static const ul_op arrive = {"arrive", arrive_backward};

int ul_arrive(ul_tensor **y, ul_tensor *const *x, int n)
{
    context *c = n > 0 ? x[0]->passage : NULL;
    for (int i = 0; i < n; i++) y[i] = NULL;
    UL_REQUIRE(c && c->n == n, UL_EVALUE,
               "arrive: expected all that one exchange with later = true has given, once");
    x[0]->passage = NULL;
    ul_call call = {
        .op = &arrive, .inputs = x, .n_inputs = n, .context = c, .release = ul__passage_drop};
    call.rc = ul__exchange_end(&c->there);
    for (int i = 0; i < n && call.rc == UL_OK; i++) call.rc = ul__alias(&y[i], x[i]);
    return ul__finish_list(&call, y, n);
}

/* ---- all_to_all ---- */

static const ul_op all_to_all = {"all_to_all", exchange_backward};

/* Along one dim, what arrives is what the others have cut off for this rank. */
static int set_arriving(context *c)
{
    int n = c->group->size;
    int64_t numbers = (int64_t)n * n;
    ul_tensor *memory;
    UL_TRY(ul_tensor_new(&memory, UL_I64, UL_CPU, 1, &numbers));
    int64_t *all = ul__data(memory);
    int rc = ul__comm_sizes(c->group, all, c->route->split_count, n);
    for (int r = 0; r < n && rc == UL_OK; r++) c->route->cat_count[r] = all[r * n + c->group->rank];
    ul_tensor_free(memory);
    return rc;
}

/* The parts of x, and what the others send. */
static int set_parts(context *c, const ul_tensor *x, const int64_t *sizes)
{
    ul_group *g = c->group;
    route *way = c->route;
    int64_t n = x->shape[c->split];
    for (int r = 0; r < g->size; r++) {
        way->split_count[r] = sizes ? sizes[r] : ul_share(NULL, n, g->size, r);
        UL_REQUIRE(way->split_count[r] >= 0, UL_EVALUE, "all_to_all: size %lld of rank %d",
                   (long long)way->split_count[r], r);
    }
    int64_t total = set_firsts(way->split_first, way->split_count, g->size);
    UL_REQUIRE(total == n, UL_ESHAPE,
               "all_to_all: sizes add up to %lld, but x %s has %lld along dim %d", (long long)total,
               ul__shape(x), (long long)n, c->split + 1);
    if (c->split != c->cat) return ul__comm_sizes(g, way->cat_count, &x->shape[c->cat], 1);
    return set_arriving(c);
}

int ul_all_to_all(ul_tensor **y, ul_tensor *x, ul_group *group, int split, int cat,
                  const int64_t *sizes)
{
    UL_TRY(ul__dim("all_to_all", &split, x));
    UL_TRY(ul__dim("all_to_all", &cat, x));
    context *c = context_new(group, split, cat, 1);
    UL_REQUIRE(c, UL_ENOMEM, "all_to_all: out of memory");
    int rc = set_parts(c, x, sizes);
    if (rc == UL_OK) return run(y, &all_to_all, &x, c);
    ul__passage_drop(c);
    return rc;
}

/* ---- tokens and heads ---- */

static const ul_op shard_heads = {"shard_heads", exchange_backward};
static const ul_op shard_tokens = {"shard_tokens", exchange_backward};
enum { TOKENS = 1, HEADS = 2 };

/* n tensors [B, T, H, D] of one T, and the lengths that ranks hold. */
static int check(const char *op, ul_tensor *const *x, int n, const int64_t *lengths, int size)
{
    UL_REQUIRE(n >= 1 && n <= UL_MAX_CUTS, UL_EVALUE, "%s: %d tensors, not 1 to %d", op, n,
               UL_MAX_CUTS);
    for (int i = 0; i < n; i++) {
        UL_REQUIRE(x[i]->ndim == 4, UL_ESHAPE, "%s: x %s must be [B, T, H, D]", op,
                   ul__shape(x[i]));
        UL_REQUIRE(x[i]->shape[TOKENS] == x[0]->shape[TOKENS], UL_ESHAPE,
                   "%s: x %s and %s are not of the same tokens", op, ul__shape(x[0]),
                   ul__shape(x[i]));
        UL_TRY(ul__check_device(op, "x", x[i], "the first", x[0]));
    }
    for (int r = 0; lengths && r < size; r++)
        UL_REQUIRE(lengths[r] >= 0, UL_EVALUE, "%s: length %lld of rank %d", op,
                   (long long)lengths[r], r);
    return UL_OK;
}

int64_t ul_head_share(int64_t *first, int64_t heads, int64_t kv_heads, int size, int rank)
{
    int64_t begin = rank * heads / size, end = (rank + 1) * heads / size;
    if (kv_heads > 0 && heads > 0) { /* those that these heads read */
        int64_t last = (end - 1) * kv_heads / heads;
        int any = end > begin;
        begin = begin * kv_heads / heads;
        end = any ? last + 1 : begin;
    }
    if (first) *first = begin;
    return end - begin;
}

/* Cuts the heads of one tensor. */
static void cut_heads(route *way, int64_t heads, int64_t q_heads, int size)
{
    int64_t next = 0;
    for (int r = 0; r < size; r++) {
        way->split_count[r] = ul_head_share(&way->split_first[r], q_heads ? q_heads : heads,
                                            q_heads ? heads : 0, size, r);
        way->overlap |= way->split_count[r] > 0 && way->split_first[r] < next;
        if (way->split_count[r] > 0) next = way->split_first[r] + way->split_count[r];
    }
}

int ul_shard_heads(ul_tensor **y, ul_tensor *const *x, int n, ul_group *group, int64_t q_heads,
                   const int64_t *lengths, int later)
{
    int size = group->size;
    UL_TRY(check("shard_heads", x, n, lengths, size));
    for (int i = 0; i < n; i++)
        UL_REQUIRE(q_heads >= 0 && (q_heads == 0 || x[i]->shape[HEADS] > 0 || size == 1), UL_EVALUE,
                   "shard_heads: %lld query heads for x %s", (long long)q_heads, ul__shape(x[i]));
    UL_REQUIRE(!lengths || lengths[group->rank] == x[0]->shape[TOKENS], UL_ESHAPE,
               "shard_heads: lengths say %lld tokens on rank %d, but x is %s",
               (long long)lengths[group->rank], group->rank, ul__shape(x[0]));
    context *c = context_new(group, HEADS, TOKENS, n);
    UL_REQUIRE(c, UL_ENOMEM, "shard_heads: out of memory");
    c->later = later;
    int64_t *arriving = c->route->cat_count;
    int rc = lengths ? UL_OK : ul__comm_sizes(group, arriving, &x[0]->shape[TOKENS], 1);
    if (rc < 0) {
        ul__passage_drop(c);
        return rc;
    }
    if (lengths) memcpy(arriving, lengths, (size_t)size * sizeof *lengths);
    for (int i = 0; i < n; i++) {
        cut_heads(&c->route[i], x[i]->shape[HEADS], q_heads, size);
        memmove(c->route[i].cat_count, arriving, (size_t)size * sizeof *arriving);
    }
    return run(y, &shard_heads, x, c);
}

static int check_shares(ul_tensor *const *x, int n, const ul_group *g, int64_t heads,
                        const int64_t *lengths)
{
    int64_t total = 0, share = heads ? ul_head_share(NULL, heads, 0, g->size, g->rank) : 0;
    for (int r = 0; lengths && r < g->size; r++) total += lengths[r];
    UL_REQUIRE(!lengths || total == x[0]->shape[TOKENS], UL_ESHAPE,
               "shard_tokens: lengths add up to %lld tokens, but x is %s", (long long)total,
               ul__shape(x[0]));
    for (int i = 0; i < n; i++)
        UL_REQUIRE(!heads || share == x[i]->shape[HEADS], UL_ESHAPE,
                   "shard_tokens: rank %d of %d has %lld of %lld heads, but x is %s", g->rank,
                   g->size, (long long)share, (long long)heads, ul__shape(x[i]));
    return UL_OK;
}

int ul_shard_tokens(ul_tensor **y, ul_tensor *const *x, int n, ul_group *group, int64_t heads,
                    const int64_t *lengths, int later)
{
    UL_TRY(check("shard_tokens", x, n, lengths, group->size));
    UL_TRY(check_shares(x, n, group, heads, lengths));
    context *c = context_new(group, TOKENS, HEADS, n);
    UL_REQUIRE(c, UL_ENOMEM, "shard_tokens: out of memory");
    c->later = later;
    for (int i = 0; i < n; i++) {
        route *way = &c->route[i];
        for (int r = 0; r < group->size; r++) {
            way->split_count[r] =
                lengths ? lengths[r] : ul_share(NULL, x[0]->shape[TOKENS], group->size, r);
            if (heads) way->cat_count[r] = ul_head_share(NULL, heads, 0, group->size, r);
        }
        set_firsts(way->split_first, way->split_count, group->size);
        int rc = heads ? UL_OK : ul__comm_sizes(group, way->cat_count, &x[i]->shape[HEADS], 1);
        if (rc < 0) {
            ul__passage_drop(c);
            return rc;
        }
    }
    return run(y, &shard_tokens, x, c);
}
