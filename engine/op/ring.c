/* ring.c - attention over rows that a ring of ranks holds in chunks: keys and values go round. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "parts.h"
#include "route.h"

/* Where sums for dk and dv of a chunk are: this rank's own, what has come home, two on their way.
 */
enum { OWN, HOME, ON_WAY, SUMS = ON_WAY + 2 };

/* Keys and values of one chunk, or the sums for their gradients. */
typedef struct pair {
    ul_tensor k, v; /* borrow their storage */
} pair;

/* What one pass round the ring has at hand. */
typedef struct walk {
    ul_call *call;
    const ul_route *route;
    ul_attention_args args;    /* of all blocks: the queries of this rank */
    int64_t room;              /* elements of the longest chunk's pair */
    ul_tensor *keys[FAMILIES]; /* [2, room]: after an even and after an odd number of hops */
    ul_tensor *sums[FAMILIES]; /* [SUMS, room] accumulators; backward */
    ul_tensor *o;              /* accumulators; forward */
    ul_grad dq;                /* backward */
    const ul_tensor *d_o;
} walk;

static int begin_walk(walk *w, ul_call *call)
{
    const ul_route *r = call->context;
    const ul_tensor *k = call->saved[K];
    *w = (walk){.call = call, .route = r, .args = ul__attention_args(call)};
    int early = ul__chunk_of(r, EARLY, r->rank), late = ul__chunk_of(r, LATE, r->rank);
    w->args.row_tokens = r->tokens;
    w->args.q_start = r->first[early];
    w->args.q_cut = r->length[early];
    w->args.q_start_2 = r->first[late] - r->length[early];
    w->args.partial = 1;
    w->room = 2 * k->shape[0] * r->length[0] * k->shape[2] * k->shape[3];
    for (int f = 0; f < FAMILIES; f++)
        if (r->rounds[f] > 0)
            UL_TRY(ul_tensor_new(&w->keys[f], k->dtype, k->storage->device, 1,
                                 &(int64_t){2 * w->room}));
    return UL_OK;
}

static void end_walk(walk *w)
{
    for (int f = 0; f < FAMILIES; f++) {
        ul_tensor_free(w->keys[f]);
        ul_tensor_free(w->sums[f]);
    }
}

/* The pair of chunk c at a place of memory: k and v [B, n, Hkv, D], one behind the other. */
static pair pair_at(const walk *w, const ul_tensor *memory, int place, int c)
{
    pair p = {*w->call->saved[K], *w->call->saved[K]};
    p.k.variable = NULL;
    p.k.dtype = memory->dtype;
    p.k.storage = memory->storage;
    p.k.offset = place * w->room;
    p.k.shape[1] = w->route->length[c];
    ul__contiguous_strides(p.k.stride, p.k.ndim, p.k.shape);
    p.v = p.k;
    p.v.offset += ul_tensor_size(&p.k);
    return p;
}

/* x's part that is this rank's chunk of a family. */
static ul_tensor own_part(const walk *w, const ul_tensor *x, int family)
{
    const ul_route *r = w->route;
    int64_t early = r->length[ul__chunk_of(r, EARLY, r->rank)], first[2] = {0, early};
    int64_t count[2] = {early, r->length[ul__chunk_of(r, LATE, r->rank)]};
    ul_tensor copy = *x;
    const ul_parts parts = {&copy, 1, first, count};
    return ul__part(&parts, family);
}

static pair own_pair(const walk *w, int family)
{
    ul_tensor **saved = w->call->saved;
    return (pair){own_part(w, saved[K], family), own_part(w, saved[V], family)};
}

/* ---- the exchange ---- */

/* The pair of chunk c, to or from a rank. */
typedef struct message {
    int rank, place, c;
} message;
static const message nothing = {-1, 0, 0};

/* What is in `memory`: sends one message and receives up to two. All ranks call it, whether they
 * have a message or not.
 */
static int shift(const walk *w, ul_tensor *memory, message to, const message from[2])
{
    const ul_route *r = w->route;
    ul_group *g = r->group;
    int64_t *at = r->tables, *bytes = at + r->size, *at_from = bytes + r->size;
    int64_t element = ul_dtype_bytes(memory->dtype), row = 2 * element;
    ul_tensor like = *w->call->saved[K];
    char words[40];
    for (int d = 0; d < 4; d++)
        if (d != 1) row *= like.shape[d];
    memset(at, 0, 4 * (size_t)r->size * sizeof *at);
    const message all[3] = {to, from[0], from[1]};
    for (int i = 0; i < 3; i++) {
        int64_t *table = i ? at_from : at;
        if (all[i].rank < 0) continue;
        table[all[i].rank] = all[i].place * w->room * element;
        table[r->size + all[i].rank] = r->length[all[i].c] * row;
    }
    like.dtype = memory->dtype;
    snprintf(words, sizeof words, " of %lld tokens", (long long)r->tokens);
    int moves = ul__collective(g, UL_COMM_SHIFT, &like, 1, words);
    if (moves < 0) return moves;
    const ul_pieces out = {ul__data(memory), at, bytes};
    const ul_pieces in = {ul__data(memory), at_from, at_from + r->size};
    int rc = moves ? ul__comm_on(g, memory)->all_to_all(g, &in, &out) : UL_OK;
    return ul__comm_end(g, UL_COMM_SHIFT, to.rank < 0 ? 0 : r->length[to.c] * row, rc);
}

/* Puts this rank's chunk where it can be sent from. */
static int pack_keys(const walk *w, int family)
{
    const ul_route *r = w->route;
    int c = ul__chunk_of(r, family, r->rank);
    if (r->hops[c] == 0) return UL_OK;
    pair to = pair_at(w, w->keys[family], 0, c), from = own_pair(w, family);
    UL_TRY(ul__assign(&to.k, &from.k));
    return ul__assign(&to.v, &from.v);
}

/* Keys and values make their hop number `hop`; whether this rank needs those that are here then, in
 * *c and *kv. */
static int move_keys(const walk *w, int family, int hop, int *c, pair *kv)
{
    const ul_route *r = w->route;
    int step = r->step[family], leaves = ul__arrives(r, family, hop - 1);
    message to = nothing, from[2] = {nothing, nothing};
    *c = ul__arrives(r, family, hop);
    if (r->hops[leaves] >= hop)
        to = (message){ul__rank_at(r, r->rank, step), (hop - 1) % 2, leaves};
    if (r->hops[*c] >= hop) from[0] = (message){ul__rank_at(r, r->rank, -step), hop % 2, *c};
    UL_TRY(shift(w, w->keys[family], to, from));
    *kv = pair_at(w, w->keys[family], hop % 2, *c);
    return r->need[*c * r->size + r->rank];
}

static ul_attention_args args_with(const walk *w, int c, const pair *kv)
{
    ul_attention_args a = w->args;
    a.k_start = w->route->first[c];
    a.k_tokens = w->route->length[c];
    for (int d = 0; d < 3; d++) {
        a.k_stride[d] = kv->k.stride[d];
        a.v_stride[d] = kv->v.stride[d];
    }
    return a;
}

static int most_rounds(const ul_route *r)
{
    return r->rounds[EARLY] > r->rounds[LATE] ? r->rounds[EARLY] : r->rounds[LATE];
}

/* ---- forward ---- */

/* This rank's queries meet chunk c. */
static int attend(const walk *w, int c, const pair *kv)
{
    ul_tensor **saved = w->call->saved, *work;
    ul_attention_args a = args_with(w, c, kv);
    UL_TRY(ul__attention_work(&work, saved[Q], &a, 0));
    ul__count_flops(ul_flops_of_attention(&a));
    int rc = ul__kernels(saved[Q])->attention(
        ul__stream(saved[Q]), ul__data(w->o), ul__data(saved[LSE]), ul__data(saved[Q]),
        ul__data(&kv->k), ul__data(&kv->v), &a, ul__data(work));
    ul_tensor_free(work);
    return rc;
}

static int attend_all(const walk *w)
{
    const ul_route *r = w->route;
    for (int f = 0; f < FAMILIES; f++) {
        int c = ul__chunk_of(r, f, r->rank);
        pair own = own_pair(w, f);
        if (r->need[c * r->size + r->rank]) UL_TRY(attend(w, c, &own));
        UL_TRY(pack_keys(w, f));
    }
    for (int hop = 1; hop <= most_rounds(r); hop++)
        for (int f = 0; f < FAMILIES; f++) {
            int c;
            pair kv;
            if (hop > r->rounds[f]) continue;
            int needed = move_keys(w, f, hop, &c, &kv);
            if (needed < 0) return needed;
            if (needed) UL_TRY(attend(w, c, &kv));
        }
    return UL_OK;
}

static int forward(ul_call *call)
{
    ul_tensor *o = call->saved[O];
    ul_dtype sums = ul_dtype_acc(o->dtype);
    walk w;
    int rc = begin_walk(&w, call);
    w.o = o;
    if (rc == UL_OK && sums != o->dtype)
        rc = ul_tensor_new(&w.o, sums, o->storage->device, o->ndim, o->shape);
    if (rc == UL_OK) rc = ul_fill_(w.o, 0);
    if (rc == UL_OK) rc = ul_fill_(call->saved[LSE], -INFINITY);
    if (rc == UL_OK) rc = attend_all(&w);
    if (w.o != o) {
        if (rc == UL_OK) rc = ul__assign(o, w.o);
        ul_tensor_free(w.o);
    }
    end_walk(&w);
    return rc;
}

/* ---- backward ---- */

/* This rank's queries and chunk c: what they make of dq, and of the chunk's dk and dv. */
static int differentiate(walk *w, int c, const pair *kv, const pair *sums, int add)
{
    ul_tensor **saved = w->call->saved, *work;
    ul_attention_args a = args_with(w, c, kv);
    ul_grad dk = {NULL, add}, dv = {NULL, add};
    if (sums)
        dk.data = ul__given((ul_tensor *)&sums->k), dv.data = ul__given((ul_tensor *)&sums->v);
    UL_TRY(ul__attention_work(&work, saved[Q], &a, 1));
    ul__count_flops(ul_flops_of_attention_backward(&a));
    int rc = ul__kernels(saved[Q])->attention_backward(
        ul__stream(saved[Q]), w->dq, dk, dv, ul__data(w->d_o), ul__data(saved[O]),
        ul__data(saved[LSE]), ul__data(saved[Q]), ul__data(&kv->k), ul__data(&kv->v), &a,
        ul__data(work));
    ul_tensor_free(work);
    w->dq.add = 1;
    return rc;
}

/* The sums of a chunk go from rank to rank behind its keys, each adding its own, and from the last
 * one home. Begun: whether chunk c has any after so many hops. */
static int begun(const ul_route *r, int c, int hop)
{
    return r->begin[c] > 0 && r->begin[c] <= hop;
}

static int move_sums(const walk *w, int family, int hop)
{
    const ul_route *r = w->route;
    int step = r->step[family], leaves = ul__arrives(r, family, hop - 1);
    int c = ul__arrives(r, family, hop), own = ul__chunk_of(r, family, r->rank);
    message to = nothing, from[2] = {nothing, nothing};
    int place = ON_WAY + (hop - 1) % 2;
    if (r->hops[leaves] >= hop && begun(r, leaves, hop - 1))
        to = (message){ul__rank_at(r, r->rank, step), place, leaves};
    else if (r->hops[leaves] == hop - 1)
        to = (message){ul__holder_of(r, leaves), place, leaves};
    if (r->hops[c] >= hop && begun(r, c, hop - 1))
        from[0] = (message){ul__rank_at(r, r->rank, -step), ON_WAY + hop % 2, c};
    if (r->hops[own] == hop - 1)
        from[1] = (message){ul__rank_at(r, r->rank, step * (hop - 1)), HOME, own};
    UL_TRY(shift(w, w->sums[family], to, from));
    if (from[1].rank < 0) return UL_OK;
    pair sum = pair_at(w, w->sums[family], OWN, own);
    pair home = pair_at(w, w->sums[family], HOME, own);
    UL_TRY(ul__add_into(&sum.k, &home.k));
    return ul__add_into(&sum.v, &home.v);
}

/* One hop of a family: keys and values arrive, and behind them what others have added to the sums.
 */
static int differentiate_hop(walk *w, int family, int hop)
{
    const ul_route *r = w->route;
    int c, needed = 0;
    pair kv, sums;
    if (hop <= r->rounds[family]) needed = move_keys(w, family, hop, &c, &kv);
    if (needed < 0) return needed;
    if (w->sums[family] && hop > 1 && hop <= r->rounds[family] + 1)
        UL_TRY(move_sums(w, family, hop));
    if (!needed) return UL_OK;
    if (!w->sums[family]) return differentiate(w, c, &kv, NULL, 0);
    sums = pair_at(w, w->sums[family], ON_WAY + hop % 2, c);
    return differentiate(w, c, &kv, &sums, begun(r, c, hop - 1));
}

static int differentiate_all(walk *w)
{
    const ul_route *r = w->route;
    for (int f = 0; f < FAMILIES; f++) {
        int c = ul__chunk_of(r, f, r->rank);
        pair own = own_pair(w, f), sums;
        if (w->sums[f]) sums = pair_at(w, w->sums[f], OWN, c);
        if (r->need[c * r->size + r->rank])
            UL_TRY(differentiate(w, c, &own, w->sums[f] ? &sums : NULL, 0));
        UL_TRY(pack_keys(w, f));
    }
    for (int hop = 1; hop <= most_rounds(r) + 1; hop++)
        for (int f = 0; f < FAMILIES; f++) UL_TRY(differentiate_hop(w, f, hop));
    return UL_OK;
}

/* The own sums of both families as the gradient of input i. */
static int give_sums(const walk *w, int i)
{
    const ul_route *r = w->route;
    const ul_variable *x = w->call->variable[i];
    ul_tensor *dx;
    if (!x) return UL_OK;
    UL_TRY(ul_tensor_new(&dx, ul_dtype_acc(x->dtype), x->device, x->ndim, x->shape));
    int rc = UL_OK;
    for (int f = 0; f < FAMILIES && rc == UL_OK; f++) {
        pair sums = pair_at(w, w->sums[f], OWN, ul__chunk_of(r, f, r->rank));
        ul_tensor to = own_part(w, dx, f);
        rc = ul__assign(&to, i == 1 ? &sums.k : &sums.v);
    }
    if (rc == UL_OK)
        ul__grad_take(w->call, i, dx);
    else
        ul_tensor_free(dx);
    return rc;
}

/* With the lse and the o of all keys, P = exp(scale q k^T - lse) and delta = sum over D of do o
 * are those of the whole row on every block of it, and the rule of attention.c is a sum over
 * blocks: dq adds up where the queries are; dk and dv of a chunk are sums over ranks, which travel
 * in accumulators, in the order of their hops, and are added to the own ones at home.
 */
static int ring_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_tensor *k = call->saved[K];
    int wanted = ul__wants_grad(call, 1) || ul__wants_grad(call, 2);
    walk w;
    int rc = begin_walk(&w, call);
    w.d_o = dy[0];
    for (int f = 0; f < FAMILIES && wanted && rc == UL_OK; f++)
        rc = ul_tensor_new(&w.sums[f], ul_dtype_acc(k->dtype), k->storage->device, 1,
                           &(int64_t){SUMS * w.room});
    if (rc == UL_OK) rc = ul__grad_acc(&w.dq, call, 0);
    if (rc == UL_OK) rc = differentiate_all(&w);
    for (int i = 1; i <= 2 && wanted && rc == UL_OK; i++) rc = give_sums(&w, i);
    end_walk(&w);
    return rc;
}

static const ul_op ring_attention = {"ring_attention", ring_backward};

/* ---- the op ---- */

static int check_slice(const char *name, const ul_tensor *x, const ul_group *g, int64_t tokens)
{
    int64_t n = 0;
    for (int f = 0; f < FAMILIES; f++)
        n += ul_share(NULL, tokens, 2 * g->size, f ? 2 * g->size - 1 - g->rank : g->rank);
    UL_REQUIRE(x->shape[1] == n, UL_ESHAPE,
               "attention: rank %d of %d holds %lld of %lld tokens, but %s is %s", g->rank, g->size,
               (long long)n, (long long)tokens, name, ul__shape(x));
    return UL_OK;
}

static int start(ul_call *call, ul_group *group, int64_t tokens)
{
    UL_TRY(check_slice("q", call->input[0], group, tokens));
    UL_TRY(check_slice("k", call->input[1], group, tokens));
    ul_route *route;
    ul_attention_args a = ul__attention_args(call);
    UL_TRY(ul__route_new(&route, group, tokens, &a));
    call->context = route;
    call->release = free;
    return forward(call);
}

int ul_ring_attention(ul_tensor **o, ul_tensor *q, ul_tensor *k, ul_tensor *v, ul_group *group,
                      int64_t tokens, const ul_attention_options *options)
{
    UL_REQUIRE(tokens >= 0, UL_EVALUE, "attention: rows of %lld tokens", (long long)tokens);
    ul_call call = {.op = &ring_attention, .input = {q, k, v}};
    ul__attention_prepare(&call, options, tokens);
    if (call.rc == UL_OK) call.rc = start(&call, group, tokens);
    return ul__finish(&call, o);
}
