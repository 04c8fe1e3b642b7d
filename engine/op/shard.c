/* shard.c - the exchange that turns shares of one dim into shares of another: tokens and heads. */
#include <stdlib.h>
#include <string.h>

#include "parts.h"

/* What is sent, cut along `split` of x, and what arrives, side by side along `cat` of y. Where
 * parts overlap, some of x goes to several ranks.
 */
typedef struct context {
    ul_group *group;
    int split, cat, overlap;
    int64_t *split_first, *split_count, *cat_first, *cat_count;
    int64_t numbers[];
} context;

static context *context_new(ul_group *g, int split, int cat)
{
    context *c = ul__alloc(sizeof *c + 4 * (size_t)g->size * sizeof *c->numbers);
    if (!c) return NULL;
    *c = (context){g, split, cat, 0, c->numbers, NULL, NULL, NULL};
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

/* Sends the parts of `from` and fills those of `to`. What stays on this rank is copied straight. On
 * meta (moves 0) the memory is taken all the same. */
static int exchange(ul_group *g, const ul_parts *to, const ul_parts *from, int moves)
{
    ul_packed out, in;
    ul_tensor mine = ul__part(from, g->rank), target = ul__part(to, g->rank);
    UL_TRY(ul__assign(&target, &mine));
    UL_TRY(ul__pack(&out, from, g->size, g->rank, 1));
    int rc = ul__pack(&in, to, g->size, g->rank, 0);
    if (rc == UL_OK) {
        if (moves) rc = g->comm->all_to_all(g, &in.pieces, &out.pieces);
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
    return ul__comm_end(g, UL_COMM_ALL_TO_ALL, sent, exchange(g, to, from, moves));
}

/* dx = what each rank sends back for its part, summed in the order of the ranks where several have
 * had the same: first side by side in `landing`, then added in accumulators. */
static int add_up(ul_tensor *dx, const ul_tensor *landing, const context *c)
{
    ul_tensor from = *landing, to = *dx;
    UL_TRY(ul_fill_(dx, 0));
    from.shape[c->split] = 0;
    for (int r = 0; r < c->group->size; r++) {
        from.offset += from.shape[c->split] * from.stride[c->split];
        from.shape[c->split] = to.shape[c->split] = c->split_count[r];
        to.offset = dx->offset + c->split_first[r] * to.stride[c->split];
        if (from.dtype == to.dtype) {
            UL_TRY(ul__add_into(&to, &from));
            continue;
        }
        ul_tensor *wide;
        UL_TRY(ul_tensor_new(&wide, to.dtype, to.storage->device, to.ndim, to.shape));
        int rc = ul__assign(wide, &from);
        if (rc == UL_OK) rc = ul__add_into(&to, wide);
        ul_tensor_free(wide);
        UL_TRY(rc);
    }
    return UL_OK;
}

/* Receives into a tensor with room for all parts, and takes their sum. */
static int give_back_overlapping(ul_call *call, const ul_parts *from)
{
    const context *c = call->context;
    const ul_variable *x = call->variable[0];
    ul_tensor *landing, *dx, *firsts;
    int64_t size = c->group->size, shape[UL_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[c->split] = 0;
    UL_TRY(ul_tensor_new(&firsts, UL_I64, UL_CPU, 1, &size));
    int64_t *first = ul__data(firsts);
    for (int r = 0; r < size; r++) {
        first[r] = shape[c->split];
        shape[c->split] += c->split_count[r];
    }
    int rc = ul_tensor_new(&landing, from->x->dtype, x->device, x->ndim, shape);
    if (rc == UL_OK) {
        const ul_parts to = {landing, c->split, first, c->split_count};
        rc = exchange_values(c->group, &to, from);
        if (rc == UL_OK)
            rc = ul_tensor_new(&dx, ul_dtype_acc(from->x->dtype), x->device, x->ndim, x->shape);
        if (rc == UL_OK) {
            rc = add_up(dx, landing, c);
            if (rc == UL_OK)
                ul__grad_take(call, 0, dx);
            else
                ul_tensor_free(dx);
        }
        ul_tensor_free(landing);
    }
    ul_tensor_free(firsts);
    return rc;
}

/* Rank r's part for s became s's part from r: dx is dy sent the same way back, and the sum of what
 * comes back for an element that went to several ranks. */
static int exchange_backward(ul_call *call, ul_tensor *const *dy)
{
    const context *c = call->context;
    const ul_variable *x = call->variable[0];
    const ul_parts from = {dy[0], c->cat, c->cat_first, c->cat_count};
    if (c->overlap) return give_back_overlapping(call, &from);
    ul_tensor *dx;
    UL_TRY(ul_tensor_new(&dx, dy[0]->dtype, x->device, x->ndim, x->shape));
    const ul_parts to = {dx, c->split, c->split_first, c->split_count};
    int rc = exchange_values(c->group, &to, &from);
    if (rc == UL_OK)
        ul__grad_take(call, 0, dx);
    else
        ul_tensor_free(dx);
    return rc;
}

/* The op whose parts are known; takes c over. */
static int run(ul_tensor **y, const ul_op *op, ul_tensor *x, context *c)
{
    int last = c->group->size - 1;
    ul_call call = {.op = op, .input = {x}, .context = c, .release = free};
    int64_t shape[UL_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[c->split] = c->split_count[c->group->rank];
    shape[c->cat] = c->cat_first[last] + c->cat_count[last];
    ul_tensor *out = ul__output(&call, x->dtype, x->ndim, shape);
    if (call.rc == UL_OK) {
        const ul_parts from = {x, c->split, c->split_first, c->split_count};
        const ul_parts to = {out, c->cat, c->cat_first, c->cat_count};
        call.rc = exchange_values(c->group, &to, &from);
    }
    return ul__finish(&call, y);
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
    int rc = set_parts(c, x, sizes);
    if (rc == UL_OK) return run(y, &all_to_all, x, c);
    free(c);
    return rc;
}

/* ---- tokens and heads ---- */

static const ul_op shard_heads = {"shard_heads", exchange_backward};
static const ul_op shard_tokens = {"shard_tokens", exchange_backward};
enum { TOKENS = 1, HEADS = 2 };

static int check_heads(const char *op, const ul_tensor *x)
{
    UL_REQUIRE(x->ndim == 4, UL_ESHAPE, "%s: x %s must be [B, T, H, D]", op, ul__shape(x));
    return UL_OK;
}

static int check_lengths(const char *op, const int64_t *lengths, int size)
{
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

int ul_shard_heads(ul_tensor **y, ul_tensor *x, ul_group *group, int64_t q_heads,
                   const int64_t *lengths)
{
    UL_TRY(check_heads("shard_heads", x));
    UL_TRY(check_lengths("shard_heads", lengths, group->size));
    int64_t heads = x->shape[HEADS];
    UL_REQUIRE(q_heads >= 0 && (q_heads == 0 || heads > 0 || group->size == 1), UL_EVALUE,
               "shard_heads: %lld query heads for x %s", (long long)q_heads, ul__shape(x));
    UL_REQUIRE(!lengths || lengths[group->rank] == x->shape[TOKENS], UL_ESHAPE,
               "shard_heads: lengths say %lld tokens on rank %d, but x is %s",
               (long long)lengths[group->rank], group->rank, ul__shape(x));
    context *c = context_new(group, HEADS, TOKENS);
    UL_REQUIRE(c, UL_ENOMEM, "shard_heads: out of memory");
    int64_t next = 0;
    for (int r = 0; r < group->size; r++) {
        c->split_count[r] = ul_head_share(&c->split_first[r], q_heads ? q_heads : heads,
                                          q_heads ? heads : 0, group->size, r);
        c->overlap |= c->split_count[r] > 0 && c->split_first[r] < next;
        if (c->split_count[r] > 0) next = c->split_first[r] + c->split_count[r];
        if (lengths) c->cat_count[r] = lengths[r];
    }
    int rc = lengths ? UL_OK : ul__comm_sizes(group, c->cat_count, &x->shape[TOKENS], 1);
    if (rc < 0) {
        free(c);
        return rc;
    }
    set_firsts(c->cat_first, c->cat_count, group->size);
    return run(y, &shard_heads, x, c);
}

int ul_shard_tokens(ul_tensor **y, ul_tensor *x, ul_group *group, int64_t heads,
                    const int64_t *lengths)
{
    UL_TRY(check_heads("shard_tokens", x));
    UL_TRY(check_lengths("shard_tokens", lengths, group->size));
    int64_t total = 0, share = heads ? ul_head_share(NULL, heads, 0, group->size, group->rank) : 0;
    for (int r = 0; lengths && r < group->size; r++) total += lengths[r];
    UL_REQUIRE(!lengths || total == x->shape[TOKENS], UL_ESHAPE,
               "shard_tokens: lengths add up to %lld tokens, but x is %s", (long long)total,
               ul__shape(x));
    UL_REQUIRE(!heads || share == x->shape[HEADS], UL_ESHAPE,
               "shard_tokens: rank %d of %d has %lld of %lld heads, but x is %s", group->rank,
               group->size, (long long)share, (long long)heads, ul__shape(x));
    context *c = context_new(group, TOKENS, HEADS);
    UL_REQUIRE(c, UL_ENOMEM, "shard_tokens: out of memory");
    for (int r = 0; r < group->size; r++) {
        c->split_count[r] = lengths ? lengths[r] : ul_share(NULL, x->shape[TOKENS], group->size, r);
        if (heads) c->cat_count[r] = ul_head_share(NULL, heads, 0, group->size, r);
    }
    set_firsts(c->split_first, c->split_count, group->size);
    int rc = heads ? UL_OK : ul__comm_sizes(group, c->cat_count, &x->shape[HEADS], 1);
    if (rc < 0) {
        free(c);
        return rc;
    }
    set_firsts(c->cat_first, c->cat_count, group->size);
    return run(y, &shard_tokens, x, c);
}
