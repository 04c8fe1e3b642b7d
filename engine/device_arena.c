/* device_arena.c - segments of a device's memory, cut into blocks, in the order of its streams. */
#include "device_arena.h"

#include <stdlib.h>

#include "events.h"
#include "internal.h"

enum { ALIGN = 512 };
static const int64_t page = 2 << 20, small_limit = 64 << 10;
static const int64_t largest_step = 1 << 30, small_segment = 2 << 20;
/* More is taken from the device while no more than this part of what is in use waits for others. */
static const int64_t waiting_part = 4;

/* What another stream does with a block is over when the event has come. */
typedef struct ul_touch {
    ul_stream *stream;
    void *event;
    struct ul_touch *next;
} ul_touch;

static void mark(const ul_device_arena *a, void *data, int64_t bytes, ul_memory_mark how)
{
    if (a->backend->mark) a->backend->mark(data, bytes, how);
}

/* ---- touches ---- */

int ul__device_touch(ul_device_arena *a, void *data, ul_stream *stream)
{
    if (stream == a->backend->stream()) return 0;
    ul_block *b = ul__block_at(&a->blocks, data);
    ul_touch *t = b->touches;
    while (t && t->stream != stream) t = t->next;
    if (t) return a->backend->event_record(t->event, stream);
    t = malloc(sizeof *t);
    UL_REQUIRE(t, UL_ENOMEM, "cuda: out of memory: no room for an event's record");
    *t = (ul_touch){stream, NULL, b->touches};
    int rc = ul__event_take(&t->event, a->backend);
    if (rc < 0) {
        free(t);
        return rc;
    }
    b->touches = t;
    return a->backend->event_record(t->event, stream);
}

static void forget_touches(ul_block *b)
{
    while (b->touches) {
        ul_touch *t = b->touches;
        b->touches = t->next;
        ul__event_give_back(t->event);
        free(t);
    }
}

static int touches_are_over(const ul_device_arena *a, const ul_block *b)
{
    for (const ul_touch *t = b->touches; t; t = t->next)
        if (a->backend->event_has_come(t->event) == 0) return 0;
    return 1;
}

/* Makes b, which nobody touches any more, free. */
static void settle(ul_device_arena *a, ul_block *b)
{
    forget_touches(b);
    mark(a, b->data, b->bytes, UL_MEMORY_UNUSED);
    ul__block_free(&a->blocks, b);
}

/* Takes a block off those that wait. */
static ul_block *take_waiting(ul_device_arena *a, ul_block **at)
{
    ul_block *b = *at;
    *at = b->bin_after;
    a->waiting_bytes -= b->bytes;
    return b;
}

static void settle_what_is_over(ul_device_arena *a)
{
    for (ul_block **at = &a->waiting; *at;) {
        if (touches_are_over(a, *at))
            settle(a, take_waiting(a, at));
        else
            at = &(*at)->bin_after;
    }
}

/* Makes the stream that computes wait for what touches the block that waits longest, and frees it:
 * the host does not wait. */
static void settle_first(ul_device_arena *a)
{
    ul_block *b = take_waiting(a, &a->waiting);
    for (const ul_touch *t = b->touches; t; t = t->next)
        a->backend->event_wait(a->backend->stream(), t->event);
    settle(a, b);
}

/* ---- segments ---- */

/* How much is taken at once, for small blocks as little as that; else a 64th of the device, 1 GiB
 * at most, and no more than a quarter of what is left, for others need some of it too; but what is
 * asked for in any case. 0: there is less.
 */
static int64_t segment_bytes(const ul_device_arena *a, int small, int64_t bytes)
{
    int64_t unused = 0, total = 0, step = small ? 0 : largest_step;
    if (small) bytes = small_segment;
    if (a->backend->memory(&unused, &total) == 0) {
        if (a->limit && unused > a->limit - a->reserved) unused = a->limit - a->reserved;
        if (unused < bytes) return 0;
        if (step > total / 64) step = total / 64;
        if (step > unused / 4) step = unused / 4;
    }
    int64_t least = ul__round_up(bytes, page);
    if (least > unused) least = bytes;
    step = step / page * page;
    return step > least ? step : least;
}

/* A free block of at least `bytes` in a new segment, or NULL. */
static ul_block *grow(ul_device_arena *a, int small, int64_t bytes)
{
    int64_t size = segment_bytes(a, small, bytes);
    ul_chain *segment = size > 0 ? calloc(1, sizeof *segment) : NULL;
    ul_block *b = size > 0 ? calloc(1, sizeof *b) : NULL;
    if (segment && b) {
        segment->base = a->backend->alloc(size);
        if (!segment->base && size > bytes) segment->base = a->backend->alloc(size = bytes);
    }
    if (!segment || !segment->base) {
        free(segment);
        free(b);
        return NULL;
    }
    mark(a, segment->base, size, UL_MEMORY_NEW);
    *b = (ul_block){.data = segment->base, .bytes = size, .home = segment};
    *segment = (ul_chain){segment->base, size, small, b, a->segments};
    a->segments = segment;
    a->reserved += size;
    a->system_allocations++;
    ul__bin_add(&a->blocks, b);
    return b;
}

void ul__device_trim(ul_device_arena *a)
{
    while (a->waiting) settle_first(a);
    if (!a->backend || a->backend->wait() < 0) return;
    ul__events_trim(a->backend);
    for (ul_chain **at = &a->segments; *at;) {
        ul_chain *segment = *at;
        ul_block *b = segment->last;
        if (b->used || b->before) {
            at = &segment->next;
            continue;
        }
        *at = segment->next;
        ul__bin_remove(&a->blocks, b);
        a->reserved -= segment->bytes;
        a->backend->release(segment->base);
        free(b);
        free(segment);
    }
}

int64_t ul__device_largest(const ul_device_arena *a)
{
    int64_t largest = 0;
    for (const ul_chain *segment = a->segments; segment; segment = segment->next)
        for (const ul_block *b = segment->last; b; b = b->before)
            if (!b->used && b->bytes > largest) largest = b->bytes;
    return largest;
}

/* ---- blocks ---- */

/* A free block, from what there is already. Where more than `may_wait` bytes wait for other
 * streams, the one that computes waits for them. */
static ul_block *find(ul_device_arena *a, int small, int64_t bytes, int64_t may_wait)
{
    ul_block *b = ul__best_fit(&a->blocks, small, bytes);
    while (!b && a->waiting && a->waiting_bytes > may_wait) {
        settle_first(a);
        b = ul__best_fit(&a->blocks, small, bytes);
    }
    return b;
}

void *ul__device_alloc(ul_device_arena *a, int64_t bytes)
{
    if (bytes > INT64_MAX - 2 * page || !ul__blocks_make_room(&a->blocks)) return NULL;
    a->blocks.align = ALIGN;
    int64_t guard = a->backend->mark ? ALIGN : 0; /* for whoever looks for what is out of bounds */
    int64_t wanted = ul__round_up(bytes + guard, ALIGN);
    int small = wanted <= small_limit;
    settle_what_is_over(a);
    ul_block *b = find(a, small, wanted, a->in_use / waiting_part);
    if (!b) b = grow(a, small, wanted);
    if (!b) b = find(a, small, wanted, 0);
    if (!b) b = find(a, !small, wanted, 0); /* nothing else is left */
    if (!b) return NULL;
    ul__bin_remove(&a->blocks, b);
    ul__block_use(&a->blocks, b, wanted);
    a->in_use += b->bytes;
    mark(a, b->data, bytes, UL_MEMORY_USED);
    return b->data;
}

/* Freed blocks wait in the order of their freeing. */
static void wait_for_others(ul_device_arena *a, ul_block *b)
{
    ul_block **at = &a->waiting;
    while (*at) at = &(*at)->bin_after;
    *at = b;
    b->bin_after = NULL;
    a->waiting_bytes += b->bytes;
}

void ul__device_free(ul_device_arena *a, void *data)
{
    ul_block *b = ul__block_leave(&a->blocks, data);
    a->in_use -= b->bytes;
    if (touches_are_over(a, b))
        settle(a, b);
    else
        wait_for_others(a, b);
}
