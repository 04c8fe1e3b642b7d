/* sharded.c - weights of which each rank keeps a slice: whole while an op needs them, no longer.
 *
 * A whole weight is a tensor without memory, until an op or a rule asks for its values: then it is
 * gathered, and weights of other units (a unit is a block of a model) lose theirs. The tape keeps
 * such a weight as it keeps any other, at no cost. All ranks run the same ops in the same order, so
 * that all gather the same.
 *
 * Where a transport goes on by itself (NCCL), the unit that came next the last time is on its way
 * while this one is computed with, so much of it as was used lately; what uses it waits for its
 * event. Where a slice changes meanwhile, what arrives is known to be stale, and gathered again.
 * Elsewhere a gather is over when the call returns, and would only cost memory.
 *
 * When a weight is dropped is for each rank's collector to say, and must not be seen in what the
 * ranks ask of each other. So nothing is gathered because it is there, but because an op asks, or
 * asked the last time: and what that may bring stays, though nobody has it, until it would no
 * longer be brought (abandoned).
 *
 * Each weight is gathered by a call of its own, straight to where it belongs: one call for all of
 * them would need a second copy of the unit, as slices are cut from each weight.
 */
#include <stdlib.h>

#include "../events.h"
#include "../tape.h"
#include "parts.h"

typedef struct ul_shard_unit {
    int refs;       /* its owner's, and one for each weight */
    int reachable;  /* the same without weights that nobody has; 0: no op will ask for it */
    int64_t visits; /* how often ops have come to it from another unit */
    struct ul_shard_unit
        *follows[2]; /* which was needed next the last time: in forward, backward */
    void *event;     /* comes when the unit is there; NULL before the first use */
    int on_way;      /* and nobody has waited for it yet */
    struct ul_shard_unit *next;
} unit;

struct ul_shard {
    ul_storage *storage; /* of the whole, which owns this */
    ul_tensor *mine;     /* owned: this rank's slice of the elements, ul_share's */
    ul_group *group;
    ul_tensor all; /* the whole, flat; borrows the storage */
    unit *unit;
    uint64_t version; /* of the slice when it was gathered */
    int64_t used;     /* the unit's last visit in which an op asked for it; 0: none */
    int abandoned;    /* nobody has it */
    struct ul_shard *next, *previous;
};

static struct ul_shard *shards; /* in the order made */
static int64_t n_abandoned;
static unit *units, *current; /* current: that of the last weight that was used */
static int current_phase;

/* Whether the values are there, or on their way, and those of the slices as they are now. */
static int is_present(const struct ul_shard *s)
{
    return !s->storage->is_empty && s->version == s->mine->storage->version;
}

/* Whether its unit will want it when it comes next, going by the last forward and backward. */
static int is_expected(const struct ul_shard *s)
{
    return s->used && s->used >= s->unit->visits - 1;
}

/* Whether a gather goes on beside what is computed; on meta the memory is counted. */
static int goes_on(const struct ul_shard *s)
{
    if (s->mine->storage->device == UL_META) return 1;
    const ul_comm *comm = ul__comm_on(s->group, s->mine);
    return comm && comm->together_later;
}

/* ---- units ---- */

int ul_shard_unit_new(unit **out)
{
    unit *u = ul__alloc(sizeof *u);
    UL_REQUIRE(u, UL_ENOMEM, "sharded: out of memory");
    *u = (unit){.refs = 1, .reachable = 1, .next = units};
    *out = units = u;
    return UL_OK;
}

/* What is computed later waits for it. */
static int arrive(unit *u)
{
    if (!u->on_way) return UL_OK;
    u->on_way = 0;
    return ul__cuda()->event_wait(ul__cuda()->stream(), u->event);
}

static void let_go(unit *u)
{
    if (--u->refs > 0) return;
    arrive(u);
    ul__event_give_back(u->event);
    unit **at = &units;
    while (*at != u) at = &(*at)->next;
    *at = u->next;
    for (unit *other = units; other; other = other->next)
        for (int phase = 0; phase < 2; phase++)
            if (other->follows[phase] == u) other->follows[phase] = NULL;
    if (current == u) current = NULL;
    free(u);
}

/* Whether ops may come to the unit, or to one that brings it. */
static int is_in_reach(const unit *u)
{
    if (u->reachable) return 1;
    for (const unit *other = units; other; other = other->next)
        if (other->reachable && (other->follows[0] == u || other->follows[1] == u)) return 1;
    return 0;
}

/* ---- weights ---- */

static int is_kept(const struct ul_shard *s)
{
    return is_expected(s) && goes_on(s) && is_in_reach(s->unit);
}

/* Frees weights that nobody has and nothing brings any more. */
static void tidy(void)
{
    struct ul_shard *next;
    for (struct ul_shard *s = n_abandoned ? shards : NULL; s; s = next) {
        next = s->next;
        if (s->abandoned && !is_kept(s)) ul__storage_free(s->storage);
    }
}

void ul_shard_unit_free(unit *u)
{
    if (!u) return;
    int reachable = --u->reachable;
    let_go(u);
    if (!reachable) tidy();
}

static void drop(struct ul_shard *s)
{
    n_abandoned--;
    if (s->previous)
        s->previous->next = s->next;
    else
        shards = s->next;
    if (s->next) s->next->previous = s->previous;
    let_go(s->unit);
    ul_tensor_free(s->mine);
    free(s);
}

int ul__shard_abandon(struct ul_shard *s)
{
    int first = !s->abandoned;
    s->abandoned = 1;
    n_abandoned += first;
    int last = first && --s->unit->reachable == 0;
    int kept = is_kept(s);
    if (!kept) drop(s);
    if (last) tidy();
    return kept;
}

static void append(struct ul_shard *s)
{
    struct ul_shard **end = &shards;
    for (; *end; end = &(*end)->next) s->previous = *end;
    *end = s;
}

int ul_sharded(ul_tensor **out, ul_tensor *mine, ul_group *group, int ndim, const int64_t *shape,
               unit *u)
{
    int64_t size = 1;
    for (int d = 0; d < ndim; d++) size *= shape[d];
    UL_REQUIRE(mine->ndim == 1 && mine->shape[0] == ul_share(NULL, size, group->size, group->rank),
               UL_ESHAPE, "sharded: a slice %s is not rank %d's of %lld elements", ul__shape(mine),
               group->rank, (long long)size);
    struct ul_shard *s = ul__alloc(sizeof *s);
    UL_REQUIRE(s, UL_ENOMEM, "sharded: out of memory");
    *s = (struct ul_shard){.group = group, .unit = u};
    int rc = ul__alias(&s->mine, mine);
    if (rc == UL_OK) rc = ul__empty_new(out, mine->dtype, mine->storage->device, ndim, shape);
    if (rc < 0) {
        ul_tensor_free(s->mine);
        free(s);
        return rc;
    }
    u->refs++;
    u->reachable++;
    s->storage = (*out)->storage;
    s->storage->shard = s;
    s->all = **out;
    s->all.ndim = 1;
    s->all.shape[0] = size;
    s->all.stride[0] = 1;
    append(s);
    return UL_OK;
}

/* ---- when ops ask ---- */

static int64_t *parts_of(ul_parts *parts, const ul_group *g, ul_tensor *all)
{
    int64_t *numbers = ul__alloc(2 * (size_t)g->size * sizeof *numbers);
    for (int r = 0; r < g->size && numbers; r++)
        numbers[g->size + r] = ul_share(&numbers[r], all->shape[0], g->size, r);
    *parts = (ul_parts){all, 0, numbers, numbers ? numbers + g->size : NULL};
    return numbers;
}

/* later: where it is not waited for; else NULL */
static int gather(struct ul_shard *s, void *later)
{
    if (is_present(s)) return UL_OK;
    if (s->storage->is_empty) UL_TRY(ul__storage_fill(s->storage));
    if (s->version != s->mine->storage->version)
        ul__storage_changed(s->storage); /* the tape's are stale */
    ul_parts parts;
    int64_t *numbers = parts_of(&parts, s->group, &s->all);
    UL_REQUIRE(numbers, UL_ENOMEM, "sharded: out of memory");
    int rc = ul__gather_parts(s->group, &parts, s->mine, later);
    ul__release(numbers);
    if (rc == UL_OK && later) {
        ul_stream *stream = ul__cuda()->exchange_stream();
        rc = ul__touch(&s->all, stream);
        if (rc == UL_OK) rc = ul__touch(s->mine, stream);
    }
    if (rc < 0)
        ul__storage_empty(s->storage);
    else
        s->version = s->mine->storage->version;
    return rc;
}

/* Gathers what is expected of the unit, where that goes on; later: NULL to wait for it. Memory for
 * a weight may cost others theirs: one is held while it is at work. */
static int bring(const unit *u, void *later)
{
    struct ul_shard *next;
    for (struct ul_shard *s = shards; s; s = next) {
        s->storage->refs++;
        int on_cuda = s->mine->storage->device == UL_CUDA, rc = UL_OK;
        if (s->unit == u && is_expected(s) && goes_on(s)) rc = gather(s, on_cuda ? later : NULL);
        next = s->next;
        ul__storage_free(s->storage);
        UL_TRY(rc);
    }
    return UL_OK;
}

static int prefetch(unit *u)
{
    if (!u || u == current) return UL_OK;
    int on_cuda = 0, wanted = 0;
    for (const struct ul_shard *s = shards; s; s = s->next) {
        if (s->unit != u || !is_expected(s) || !goes_on(s)) continue;
        on_cuda |= s->mine->storage->device == UL_CUDA;
        wanted |= !is_present(s);
    }
    if (!wanted) return UL_OK;
    if (!on_cuda) return bring(u, NULL);
    UL_TRY(arrive(u));
    if (!u->event) UL_TRY(ul__event_take(&u->event, ul__cuda()));
    u->on_way = 1;
    return bring(u, u->event);
}

/* Whether one of these is of the unit: an op may need two at once. */
static int is_asked(const unit *u, ul_tensor *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (list[i] && list[i]->storage->shard && list[i]->storage->shard->unit == u) return 1;
    return 0;
}

/* Makes u the unit that is computed with. */
static int enter(unit *u, ul_tensor *const *list, int n)
{
    int phase = ul__tape.depth > 0;
    if (current && current != u) current->follows[current_phase] = u;
    current = u;
    current_phase = phase;
    UL_TRY(arrive(u));
    for (struct ul_shard *s = shards; s; s = s->next) {
        if (s->storage->is_empty || is_asked(s->unit, list, n)) continue;
        if (s->unit == u->follows[phase]) continue;
        UL_TRY(arrive(s->unit));
        ul__storage_empty(s->storage);
    }
    UL_TRY(bring(u, NULL));
    u->visits++;
    tidy();
    return prefetch(u->follows[phase]);
}

int ul__gather_shards(ul_tensor *const *list, int n)
{
    for (int i = 0; i < n; i++) {
        struct ul_shard *s = list[i] ? list[i]->storage->shard : NULL;
        if (!s) continue;
        if (s->unit != current) UL_TRY(enter(s->unit, list, n));
        s->used = s->unit->visits;
        UL_TRY(gather(s, NULL));
    }
    return UL_OK;
}

int ul__inputs_present(const ul_call *call)
{
    if (!shards) return UL_OK;
    if (call->n_inputs) return ul__gather_shards(call->inputs, call->n_inputs);
    return ul__gather_shards(call->input, UL_MAX_INPUTS);
}

int ul_sharded_release(void)
{
    int rc = UL_OK;
    for (unit *u = units; u && rc == UL_OK; u = u->next) rc = arrive(u);
    for (struct ul_shard *s = shards; s; s = s->next)
        if (!s->storage->is_empty) ul__storage_empty(s->storage);
    current = NULL;
    tidy();
    return rc;
}

/* ---- the op ---- */

/* y = all slices side by side, so that dmine is this rank's slice of the sum of all dy. */
static int whole_weight_backward(ul_call *call, ul_tensor *const *dy)
{
    const struct ul_shard *s = ((const ul_storage *)call->context)->shard;
    ul_tensor flat = s->all, *dx;
    flat.dtype = dy[0]->dtype;
    flat.storage = dy[0]->storage;
    flat.offset = dy[0]->offset;
    ul_parts parts;
    int64_t mine = s->mine->shape[0], *numbers = parts_of(&parts, s->group, &flat);
    UL_REQUIRE(numbers, UL_ENOMEM, "whole_weight: out of memory");
    int rc = ul_tensor_new(&dx, flat.dtype, flat.storage->device, 1, &mine);
    if (rc == UL_OK) {
        rc = ul__scatter_parts(s->group, &parts, dx);
        if (rc == UL_OK)
            ul__grad_take(call, 0, dx);
        else
            ul_tensor_free(dx);
    }
    ul__release(numbers);
    return rc;
}

static const ul_op whole_weight = {"whole_weight", whole_weight_backward};

static void storage_release(void *storage) { ul__storage_free(storage); }

int ul_is_sharded(const ul_tensor *t) { return t->storage->shard != NULL; }

/* Where casts or moves have given the parameter other memory, that is gathered from now on. */
static int take_slice(struct ul_shard *s, ul_tensor *mine)
{
    const ul_tensor *old = s->mine;
    if (mine->storage == old->storage && mine->offset == old->offset) return UL_OK;
    UL_REQUIRE(mine->ndim == 1 && mine->shape[0] == old->shape[0] && mine->dtype == old->dtype &&
                   mine->storage->device == old->storage->device,
               UL_ESHAPE, "sharded: %s is not the slice of this weight, which is %s",
               ul__shape(mine), ul__shape(old));
    ul_tensor *next;
    UL_TRY(ul__alias(&next, mine));
    ul_tensor_free(s->mine);
    s->mine = next;
    s->version = next->storage->version - 1; /* what is there is stale */
    return UL_OK;
}

/* Its gradient is a leaf's, in accumulators: the ranks' sum is of these. */
int ul_whole_weight(ul_tensor **y, ul_tensor *whole, ul_tensor *mine)
{
    UL_REQUIRE(whole->storage->shard, UL_EVALUE, "whole_weight: %s is no sharded weight",
               ul__shape(whole));
    UL_TRY(take_slice(whole->storage->shard, mine));
    whole->storage->refs++; /* not saved[], which backward would gather */
    ul_call call = {.op = &whole_weight,
                    .input = {mine},
                    .context = whole->storage,
                    .release = storage_release};
    ul__output_view(&call, whole, whole->ndim, whole->shape, whole->stride, whole->offset);
    UL_TRY(ul__finish(&call, y));
    if ((*y)->variable) (*y)->variable->leaf = 1;
    return UL_OK;
}
