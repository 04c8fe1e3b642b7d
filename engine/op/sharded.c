/* sharded.c - weights of which each rank keeps a slice: whole while an op needs them, no longer.
 *
 * A whole weight is a tensor without memory, until an op or a rule asks for its values: then all
 * weights of its unit (a block of a model) are gathered, and those of other units lose theirs. The
 * tape keeps such a weight as it keeps any other, at no cost. All ranks run the same ops in the
 * same order, so that all gather the same.
 *
 * Each weight is gathered by a call of its own, straight to where it belongs: one call for all of
 * them would need a second copy of the unit, as slices are cut from each weight. NCCL gets them in
 * one go.
 */
#include <stdlib.h>

#include "parts.h"

struct ul_shard {
    ul_storage *storage; /* of the whole, which owns this */
    ul_tensor *mine;     /* owned: this rank's slice of the elements, ul_share's */
    ul_group *group;
    ul_tensor all; /* the whole, flat; borrows the storage */
    int64_t unit;
    uint64_t version; /* of the slice when it was gathered */
    struct ul_shard *next, *previous;
};

static struct ul_shard *shards; /* in the order made */

/* Whether the values are there, and those of the slices as they are now. */
static int is_present(const struct ul_shard *s)
{
    return !s->storage->is_empty && s->version == s->mine->storage->version;
}

void ul__shard_free(struct ul_shard *s)
{
    if (s->previous)
        s->previous->next = s->next;
    else
        shards = s->next;
    if (s->next) s->next->previous = s->previous;
    ul_tensor_free(s->mine);
    free(s);
}

int ul_sharded(ul_tensor **out, ul_tensor *mine, ul_group *group, int ndim, const int64_t *shape,
               int64_t unit)
{
    int64_t size = 1;
    for (int d = 0; d < ndim; d++) size *= shape[d];
    UL_REQUIRE(mine->ndim == 1 && mine->shape[0] == ul_share(NULL, size, group->size, group->rank),
               UL_ESHAPE, "sharded: a slice %s is not rank %d's of %lld elements", ul__shape(mine),
               group->rank, (long long)size);
    struct ul_shard *s = ul__alloc(sizeof *s);
    UL_REQUIRE(s, UL_ENOMEM, "sharded: out of memory");
    *s = (struct ul_shard){.group = group, .unit = unit, .next = NULL};
    int rc = ul__alias(&s->mine, mine);
    if (rc == UL_OK) rc = ul__empty_new(out, mine->dtype, mine->storage->device, ndim, shape);
    if (rc < 0) {
        if (s->mine) ul_tensor_free(s->mine);
        free(s);
        return rc;
    }
    s->storage = (*out)->storage;
    s->storage->shard = s;
    s->all = **out;
    s->all.ndim = 1;
    s->all.shape[0] = size;
    s->all.stride[0] = 1;
    struct ul_shard **end = &shards, *last = NULL;
    for (; *end; end = &(*end)->next) last = *end;
    s->previous = last;
    *end = s;
    return UL_OK;
}

/* ---- when ops ask ---- */

static int parts_of(ul_parts *parts, int64_t *numbers, const ul_group *g, ul_tensor *all)
{
    for (int r = 0; r < g->size; r++)
        numbers[g->size + r] = ul_share(&numbers[r], all->shape[0], g->size, r);
    *parts = (ul_parts){all, 0, numbers, numbers + g->size};
    return UL_OK;
}

static int64_t *numbers_for(const ul_group *g)
{
    return ul__alloc(2 * (size_t)g->size * sizeof(int64_t));
}

static int gather(struct ul_shard *s)
{
    if (is_present(s)) return UL_OK;
    if (s->storage->is_empty) UL_TRY(ul__storage_fill(s->storage));
    if (s->version != s->mine->storage->version) s->storage->version++; /* other values: stale */
    int64_t *numbers = numbers_for(s->group);
    UL_REQUIRE(numbers, UL_ENOMEM, "sharded: out of memory");
    ul_parts parts;
    parts_of(&parts, numbers, s->group, &s->all);
    int rc = ul__gather_parts(s->group, &parts, s->mine);
    ul__release(numbers);
    if (rc < 0)
        ul__storage_empty(s->storage);
    else
        s->version = s->mine->storage->version;
    return rc;
}

/* Whether one of these is of the unit: an op may need two at once. */
static int is_asked(int64_t unit, ul_tensor *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (list[i] && list[i]->storage->shard && list[i]->storage->shard->unit == unit) return 1;
    return 0;
}

/* Memory for a weight may cost others theirs: one is held while it is at work. */
static int gather_unit(int64_t unit)
{
    struct ul_shard *next;
    for (struct ul_shard *s = shards; s; s = next) {
        s->storage->refs++;
        int rc = s->unit == unit ? gather(s) : UL_OK;
        next = s->next;
        ul__storage_free(s->storage);
        UL_TRY(rc);
    }
    return UL_OK;
}

int ul__gather_shards(ul_tensor *const *list, int n)
{
    for (int i = 0; i < n; i++) {
        struct ul_shard *wanted = list[i] ? list[i]->storage->shard : NULL;
        if (!wanted || is_present(wanted)) continue;
        for (struct ul_shard *s = shards; s; s = s->next)
            if (!s->storage->is_empty && !is_asked(s->unit, list, n)) ul__storage_empty(s->storage);
        UL_TRY(gather_unit(wanted->unit));
    }
    return UL_OK;
}

int ul__inputs_present(const ul_call *call)
{
    if (!shards) return UL_OK;
    if (call->n_inputs) return ul__gather_shards(call->inputs, call->n_inputs);
    return ul__gather_shards(call->input, UL_MAX_INPUTS);
}

void ul_sharded_release(void)
{
    for (struct ul_shard *s = shards; s; s = s->next)
        if (!s->storage->is_empty) ul__storage_empty(s->storage);
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
    int64_t mine = s->mine->shape[0], *numbers = numbers_for(s->group);
    UL_REQUIRE(numbers, UL_ENOMEM, "whole_weight: out of memory");
    ul_parts parts;
    parts_of(&parts, numbers, s->group, &flat);
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

/* Its gradient is a leaf's, in accumulators: the ranks' sum is of these. */
int ul_whole_weight(ul_tensor **y, ul_tensor *whole, ul_tensor *mine)
{
    UL_REQUIRE(whole->storage->shard, UL_EVALUE, "whole_weight: %s is no sharded weight",
               ul__shape(whole));
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
