/* device_arena_test.c - the arena of a device's memory, over a device that is made up: blocks
 * against a model of what is in use, and streams that come late.
 */
#include "../engine/device_arena.h"
#include "../engine/events.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

/* ---- the device ---- */

enum { STREAMS = 3, COMPUTE = 0, MOST_SEGMENTS = 256, MOST_EVENTS = 4096 };

typedef struct event {
    int stream;
    int64_t position; /* in that stream's work */
} event;

static struct {
    int real; /* segments are memory; else mere addresses */
    int64_t total, taken, taken_times, given_times;
    struct {
        char *base;
        int64_t bytes;
    } segment[MOST_SEGMENTS];
    int n_segments;
    int64_t asked[STREAMS], done[STREAMS]; /* of each stream's work */
    int64_t computes_after[STREAMS];       /* the stream that computes waits for so much of it */
    event events[MOST_EVENTS];
    int n_events, n_freed, waits;
    int64_t bad_releases;
} device;

static char streams[STREAMS];

static ul_stream *stream(int i) { return (ul_stream *)(void *)&streams[i]; }
static int number_of(const ul_stream *s) { return (int)((const char *)s - streams); }

static int memory(int64_t *unused, int64_t *total)
{
    *total = device.total;
    *unused = device.total - device.taken;
    return 0;
}

static void *take(int64_t bytes)
{
    static uintptr_t next = (uintptr_t)1 << 44; /* far apart: nothing is ever at the same place */
    if (device.taken + bytes > device.total || device.n_segments == MOST_SEGMENTS) return NULL;
    char *base =
        device.real ? aligned_alloc(512, (size_t)((bytes + 511) / 512 * 512)) : (char *)next;
    if (!base) return NULL;
    next += ((uintptr_t)bytes | 0xffffff) + 1 + (1 << 24);
    device.segment[device.n_segments].base = base;
    device.segment[device.n_segments++].bytes = bytes;
    device.taken += bytes;
    device.taken_times++;
    return base;
}

static void give_back(void *data)
{
    for (int i = 0; i < device.n_segments; i++) {
        if (device.segment[i].base != data) continue;
        device.taken -= device.segment[i].bytes;
        device.segment[i] = device.segment[--device.n_segments];
        device.given_times++;
        if (device.real) free(data);
        return;
    }
    device.bad_releases++;
}

static ul_stream *compute(void) { return stream(COMPUTE); }

/* All that computes is done, and what it waits for. */
static int wait_for_all(void)
{
    for (int s = 0; s < STREAMS; s++)
        if (device.done[s] < device.computes_after[s]) device.done[s] = device.computes_after[s];
    return 0;
}

static void *event_new(void)
{
    return device.n_events < MOST_EVENTS ? &device.events[device.n_events++] : NULL;
}

/* Each is made once. */
static void event_free(void *e) { device.n_freed += e != NULL; }

static int event_record(void *e, ul_stream *s)
{
    int i = number_of(s);
    *(event *)e = (event){i, ++device.asked[i]};
    return 0;
}

static int event_wait(ul_stream *s, void *of)
{
    const event *e = of;
    CHECK(number_of(s) == COMPUTE);
    if (device.computes_after[e->stream] < e->position)
        device.computes_after[e->stream] = e->position;
    device.waits++;
    return 0;
}

static int event_has_come(void *of)
{
    const event *e = of;
    return device.done[e->stream] >= e->position;
}

static const ul_backend backend = {.memory = memory,
                                   .alloc = take,
                                   .release = give_back,
                                   .wait = wait_for_all,
                                   .stream = compute,
                                   .event_new = event_new,
                                   .event_free = event_free,
                                   .event_record = event_record,
                                   .event_wait = event_wait,
                                   .event_has_come = event_has_come};

/* Arenas live until the process ends, as that of the engine does. */
static ul_device_arena *arena_of(int real, int64_t total)
{
    static ul_device_arena arenas[16];
    static int n;
    ul__events_trim(&backend);
    memset(&device, 0, sizeof device);
    device.real = real;
    device.total = total;
    arenas[n] = (ul_device_arena){.backend = &backend};
    return &arenas[n++];
}

static void all_goes_back(ul_device_arena *a)
{
    ul__device_trim(a);
    CHECK(a->in_use == 0 && a->reserved == 0 && device.taken == 0 && device.bad_releases == 0,
          "%lld in use, %lld reserved", (long long)a->in_use, (long long)a->reserved);
}

static unsigned seed;

static unsigned random_below(unsigned n)
{
    seed = seed * 1664525u + 1013904223u;
    return (unsigned)(((uint64_t)seed * n) >> 32);
}

/* ---- blocks ---- */

/* Sizes of all magnitudes. */
static int64_t random_bytes(int most_bits)
{
    return 1 + (int64_t)(((uint64_t)random_below(1u << 31) << 31 | random_below(1u << 31)) >>
                         (62 - 1 - (int)random_below((unsigned)most_bits)));
}

static void blocks_keep_what_is_written(void)
{
    enum { N = 200 };
    static unsigned char *t[N];
    static int64_t bytes[N];
    ul_device_arena *a = arena_of(1, 256 << 20);
    seed = 1;
    memset(t, 0, sizeof t);
    for (int step = 0; step < 20000; step++) {
        int i = (int)random_below(N);
        if (t[i]) {
            for (int64_t k = 0; k < bytes[i]; k += 1 + bytes[i] / 16)
                CHECK(t[i][k] == (unsigned char)i);
            CHECK(t[i][bytes[i] - 1] == (unsigned char)i);
            ul__device_free(a, t[i]);
            t[i] = NULL;
            continue;
        }
        bytes[i] = random_bytes(20);
        t[i] = ul__device_alloc(a, bytes[i]);
        CHECK(t[i] && (uintptr_t)t[i] % 512 == 0);
        if (t[i]) memset(t[i], i, (size_t)bytes[i]);
    }
    CHECK(a->in_use <= a->reserved && a->reserved == device.taken);
    for (int i = 0; i < N; i++)
        if (t[i]) ul__device_free(a, t[i]);
    all_goes_back(a);
}

/* What is in use on a device of 4 TiB, block by block, never overlaps, and lies in a segment. */
static void large_blocks_do_not_overlap(void)
{
    enum { N = 64 };
    static struct {
        uintptr_t from, end;
    } t[N];
    ul_device_arena *a = arena_of(0, (int64_t)4 << 40);
    seed = 3;
    memset(t, 0, sizeof t);
    int64_t refused = 0, largest = 0;
    for (int step = 0; step < 30000; step++) {
        int i = (int)random_below(N);
        if (t[i].from) {
            ul__device_free(a, (void *)t[i].from);
            t[i].from = 0;
            continue;
        }
        int64_t bytes = random_bytes(38);
        uintptr_t from = (uintptr_t)ul__device_alloc(a, bytes);
        refused += from == 0;
        if (!from) continue;
        if (bytes > largest) largest = bytes;
        t[i].from = from;
        t[i].end = from + (uintptr_t)bytes;
        for (int k = 0; k < N; k++)
            CHECK(k == i || !t[k].from || t[k].end <= from || t[i].end <= t[k].from);
        int inside = 0;
        for (int k = 0; k < device.n_segments; k++) {
            uintptr_t base = (uintptr_t)device.segment[k].base;
            inside += base <= from && t[i].end <= base + (uintptr_t)device.segment[k].bytes;
        }
        CHECK(inside == 1);
    }
    CHECK(largest > (int64_t)128 << 30 && refused < 3000, "%lld refused", (long long)refused);
    CHECK(ul__device_alloc(a, INT64_MAX) == NULL);
    for (int i = 0; i < N; i++)
        if (t[i].from) ul__device_free(a, (void *)t[i].from);
    all_goes_back(a);
}

static void neighbours_become_one(void)
{
    ul_device_arena *a = arena_of(0, (int64_t)64 << 30);
    char *t[16];
    for (int i = 0; i < 16; i++) t[i] = ul__device_alloc(a, 64 << 20);
    CHECK(a->system_allocations == 1 && a->reserved == (int64_t)1 << 30, "%lld segments of %lld",
          (long long)a->system_allocations, (long long)a->reserved);
    CHECK(ul__device_largest(a) == 0);
    for (int i = 0; i < 16; i += 2) ul__device_free(a, t[i]);
    CHECK(ul__device_largest(a) == 64 << 20);
    for (int i = 1; i < 15; i += 2) ul__device_free(a, t[i]);
    CHECK(ul__device_largest(a) == 15 * (int64_t)(64 << 20));
    ul__device_trim(a);
    CHECK(a->reserved == (int64_t)1 << 30); /* one block of it is in use */
    char *all = ul__device_alloc(a, 15 * (int64_t)(64 << 20));
    CHECK(a->system_allocations == 1 && all == t[0]);
    ul__device_free(a, all);
    ul__device_free(a, t[15]);
    all_goes_back(a);
}

/* The same step again needs nothing of the driver, whatever the order of its sizes. */
static void steps_find_what_was_there(void)
{
    enum { N = 60 };
    ul_device_arena *a = arena_of(0, (int64_t)80 << 30);
    char *t[N];
    int64_t after_two = 0;
    for (int step = 0; step < 100; step++) {
        seed = 11;
        for (int i = 0; i < N; i++) t[i] = ul__device_alloc(a, random_bytes(28));
        for (int i = 0; i < N; i++) ul__device_free(a, t[(i * 7 + 3) % N]);
        if (step == 1) after_two = a->system_allocations;
    }
    CHECK(a->system_allocations == after_two && device.taken_times == after_two);
    all_goes_back(a);
}

/* ---- little memory ---- */

static void what_is_left_is_taken_in_smaller_pieces(void)
{
    ul_device_arena *a = arena_of(0, (int64_t)80 << 30);
    device.taken = ((int64_t)80 << 30) - (40 << 20); /* another process has the rest */
    char *t = ul__device_alloc(a, 1 << 20), *u = ul__device_alloc(a, 25 << 20);
    CHECK(t && u && a->reserved <= 40 << 20, "%lld", (long long)a->reserved);
    CHECK(!ul__device_alloc(a, 25 << 20));
    ul__device_free(a, t);
    ul__device_free(a, u);
    ul__device_trim(a);
    CHECK(a->reserved == 0);
}

static void a_limit_holds(void)
{
    ul_device_arena *a = arena_of(0, (int64_t)80 << 30);
    a->limit = 10 << 20;
    char *t = ul__device_alloc(a, 6 << 20);
    CHECK(t && a->reserved <= a->limit && !ul__device_alloc(a, 6 << 20));
    a->limit = 0;
    char *u = ul__device_alloc(a, 6 << 20);
    CHECK(u);
    ul__device_free(a, t);
    ul__device_free(a, u);
    all_goes_back(a);
}

static void small_blocks_leave_room_for_large_ones(void)
{
    ul_device_arena *a = arena_of(0, (int64_t)80 << 30);
    char *small = ul__device_alloc(a, 1000);
    CHECK(small && a->reserved <= 2 << 20, "%lld", (long long)a->reserved);
    a->limit = 20 << 20;
    char *large = ul__device_alloc(a, 16 << 20);
    CHECK(large);
    a->limit = a->reserved;
    char *beside = ul__device_alloc(a, 1 << 20); /* what small ones have left is all there is */
    CHECK(beside && a->reserved == a->limit);
    ul__device_free(a, small);
    ul__device_free(a, large);
    ul__device_free(a, beside);
    all_goes_back(a);
}

/* ---- other streams ---- */

static void freed_is_used_again_at_once_unless_touched(void)
{
    ul_device_arena *a = arena_of(0, (int64_t)64 << 30);
    int64_t n = 600 << 20;
    char *t = ul__device_alloc(a, n);
    CHECK(ul__device_touch(a, t, stream(COMPUTE)) == 0); /* the one that computes does not count */
    ul__device_free(a, t);
    CHECK(ul__device_alloc(a, n) == t && device.n_events == 0);

    CHECK(ul__device_touch(a, t, stream(1)) == 0);
    ul__device_free(a, t);
    char *u = ul__device_alloc(a, n); /* all that is in use waits: rather than take more .. */
    CHECK(u == t && device.waits == 1 && device.computes_after[1] == 1); /* .. it computes later */

    char *held = ul__device_alloc(a, (int64_t)4 << 30);
    ul__device_touch(a, u, stream(1));
    ul__device_touch(a, u, stream(2));
    ul__device_touch(a, u, stream(1)); /* later: this is what counts */
    ul__device_free(a, u);
    char *v = ul__device_alloc(a, n);
    CHECK(v != u && device.waits == 1); /* a seventh of what is in use may wait */
    device.done[1] = 2;
    device.done[2] = 1;
    char *w = ul__device_alloc(a, n);
    CHECK(w != u);
    device.done[1] = 3;
    CHECK(ul__device_alloc(a, n) == u && device.waits == 1);
    CHECK(device.n_events == 2); /* they are used again */
    ul__device_free(a, u);
    ul__device_free(a, v);
    ul__device_free(a, w);
    ul__device_free(a, held);
    all_goes_back(a);
}

/* A long run makes no more events than are in use at once; in the end all of them are freed. */
static void events_are_made_once(void)
{
    ul_device_arena *a = arena_of(0, (int64_t)64 << 30);
    for (int step = 0; step < 1000; step++) {
        char *t[8];
        for (int i = 0; i < 8; i++) {
            t[i] = ul__device_alloc(a, 1 << 20);
            CHECK(ul__device_touch(a, t[i], stream(1 + i % 2)) == 0);
        }
        for (int i = 0; i < 8; i++) ul__device_free(a, t[i]);
        if (step % 3 == 0) continue; /* given back while the stream that computes waits for them */
        device.done[1] = device.asked[1];
        device.done[2] = device.asked[2];
    }
    CHECK(device.n_events <= 24, "%d events", device.n_events);
    all_goes_back(a);
    CHECK(device.n_freed == device.n_events, "%d of %d", device.n_freed, device.n_events);
}

static void trim_gives_whole_segments(void)
{
    ul_device_arena *a = arena_of(0, (int64_t)64 << 30);
    char *first = ul__device_alloc(a, 64 << 20), *last = ul__device_alloc(a, 960 << 20);
    char *other = ul__device_alloc(a, 1 << 20);
    CHECK(a->system_allocations == 2 && last == first + (64 << 20));
    ul__device_free(a, last);
    ul__device_free(a, other);
    ul__device_trim(a);
    CHECK(device.given_times == 1 && a->reserved == (int64_t)1 << 30 &&
          device.taken == a->reserved);
    CHECK(ul__device_alloc(a, 960 << 20) == last);
    ul__device_free(a, last);
    ul__device_free(a, first);
    all_goes_back(a);
}

static void trim_waits_for_others(void)
{
    ul_device_arena *a = arena_of(0, (int64_t)64 << 30);
    char *t = ul__device_alloc(a, 64 << 20);
    ul__device_touch(a, t, stream(2));
    ul__device_free(a, t);
    CHECK(a->waiting && device.done[2] == 0);
    ul__device_trim(a);
    CHECK(!a->waiting && device.done[2] == 1 && a->reserved == 0 && device.given_times == 1);
}

static void what_waits_is_had_before_memory_is_out(void)
{
    ul_device_arena *a = arena_of(0, 64 << 20);
    char *held = ul__device_alloc(a, 40 << 20), *t = ul__device_alloc(a, 8 << 20);
    ul__device_touch(a, t, stream(1));
    ul__device_free(a, t);
    char *u = ul__device_alloc(a, 8 << 20), *v = ul__device_alloc(a, 8 << 20);
    CHECK(u && v && u != t && v != t && device.waits == 0);
    CHECK(ul__device_alloc(a, 8 << 20) == t && device.waits == 1);
    CHECK(!ul__device_alloc(a, 1));
    ul__device_free(a, t);
    CHECK(ul__device_alloc(a, 1) == t); /* small ones would have a segment of their own */
    ul__device_free(a, t);
    ul__device_free(a, held);
    ul__device_free(a, u);
    ul__device_free(a, v);
    all_goes_back(a);
}

/* Blocks come and go while streams lag behind at random: nobody is given what another stream has
 * yet to be done with, unless what computes waits for that. */
static void nothing_is_given_out_too_early(void)
{
    enum { N = 48, MOST = 1 << 16 };
    static struct {
        char *data;
        int64_t bytes, until[STREAMS];
    } t[N], past[MOST];
    ul_device_arena *a = arena_of(0, (int64_t)2 << 30);
    int n_past = 0, early = 0;
    seed = 5;
    memset(t, 0, sizeof t);
    for (int step = 0; step < 40000; step++) {
        int i = (int)random_below(N), s = 1 + (int)random_below(STREAMS - 1);
        if (random_below(4) == 0 && device.done[s] < device.asked[s]) device.done[s]++;
        if (t[i].data && random_below(2)) {
            ul__device_touch(a, t[i].data, stream(s));
            t[i].until[s] = device.asked[s];
        } else if (t[i].data) {
            ul__device_free(a, t[i].data);
            if (n_past < MOST) past[n_past++] = t[i];
            t[i].data = NULL;
        } else {
            int64_t bytes = random_bytes(27);
            char *data = ul__device_alloc(a, bytes);
            if (!data) continue;
            memset(&t[i], 0, sizeof t[i]);
            t[i].data = data;
            t[i].bytes = bytes;
            int kept = 0; /* what is over is forgotten */
            for (int k = 0; k < n_past; k++) {
                int over = 1;
                for (int o = 1; o < STREAMS; o++)
                    over &= past[k].until[o] <= device.done[o] ||
                            past[k].until[o] <= device.computes_after[o];
                if (over) continue;
                early += past[k].data < data + bytes && data < past[k].data + past[k].bytes;
                past[kept++] = past[k];
            }
            n_past = kept;
        }
    }
    CHECK(early == 0 && device.waits > 100, "%d too early, %d waits", early, device.waits);
    for (int i = 0; i < N; i++)
        if (t[i].data) ul__device_free(a, t[i].data);
    all_goes_back(a);
}

int main(void)
{
    RUN(blocks_keep_what_is_written);
    RUN(large_blocks_do_not_overlap);
    RUN(neighbours_become_one);
    RUN(steps_find_what_was_there);
    RUN(what_is_left_is_taken_in_smaller_pieces);
    RUN(a_limit_holds);
    RUN(small_blocks_leave_room_for_large_ones);
    RUN(freed_is_used_again_at_once_unless_touched);
    RUN(events_are_made_once);
    RUN(trim_gives_whole_segments);
    RUN(trim_waits_for_others);
    RUN(what_waits_is_had_before_memory_is_out);
    RUN(nothing_is_given_out_too_early);
    return check_done();
}
