/* storage.c - blocks of memory that tensors share, counted by device, and what happens when there
 * is none left. */
#include <stdio.h>
#include <stdlib.h>

#include "device_arena.h"
#include "internal.h"
#include "off_device.h"

static struct {
    int64_t live, peak, limit; /* limit: the arenas keep their own too */
    int64_t off, off_peak;
    ul_storage *first;
} devices[UL_DEVICES];

static ul_device_arena arena; /* of cuda */

static int64_t fail_in, allocations, since_pressure;
static void (*pressure)(void *context, int urgent);
static void *pressure_context;
static void (*origin)(void *context, char *text, int size);
static void *origin_context;

static const int64_t large = 1 << 20; /* from here on a storage knows the line it was made for */

void ul_debug_fail_allocation(int64_t n) { fail_in = n; }
int64_t ul_debug_allocations(void) { return allocations; }

int ul__fail_now(void)
{
    allocations++;
    return fail_in > 0 && --fail_in == 0;
}

void *ul__alloc(size_t bytes) { return ul__fail_now() ? NULL : malloc(bytes); }
void ul__release(void *p) { free(p); }

void ul_memory_on_pressure(void (*callback)(void *context, int urgent), void *context)
{
    pressure = callback;
    pressure_context = context;
}

void ul_memory_on_origin(void (*callback)(void *context, char *text, int size), void *context)
{
    origin = callback;
    origin_context = context;
}

void ul_memory_set_limit(ul_device device, int64_t bytes)
{
    devices[device].limit = bytes;
    if (device == UL_CPU) ul__arena_set_limit(bytes);
    if (device == UL_CUDA) arena.limit = bytes;
}

void ul_memory_trim(ul_device device)
{
    if (device == UL_CPU) ul__arena_trim();
    if (device == UL_CUDA && arena.backend) ul__device_trim(&arena);
}

void ul_memory_reset_peak(ul_device device)
{
    devices[device].peak = devices[device].live;
    devices[device].off_peak = devices[device].off;
}

void ul__storage_stats(ul_memory_stats *stats, ul_device device)
{
    *stats = (ul_memory_stats){
        .live = devices[device].live, .peak = devices[device].peak, .scratch = ul_cpu_scratch()};
    stats->off_device = devices[device].off;
    stats->off_device_peak = devices[device].off_peak;
    stats->off_device_reserved = ul__slot_bytes(device);
    if (device == UL_CPU) ul__arena_stats(&stats->cached, &stats->system_allocations);
    if (device == UL_CUDA) {
        stats->cached = arena.reserved - arena.in_use;
        stats->system_allocations = arena.system_allocations;
    }
    stats->reserved = stats->cached + (device == UL_CUDA ? arena.in_use : stats->live);
}

static int64_t counted(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Asks the owner of handles to free some: a step now and then, all it can before giving up. */
static void relieve(ul_device device, int64_t bytes, int urgent)
{
    int64_t eighth = devices[device].live / 8, floor = 64 << 20;
    since_pressure += bytes;
    if (!urgent && since_pressure <= (eighth > floor ? eighth : floor)) return;
    since_pressure = 0;
    if (pressure) pressure(pressure_context, urgent);
}

/* The five largest storages, for the sentence of the error. */
static void describe_largest(ul_device device, char *text, int size)
{
    ul_storage *top[5] = {NULL};
    for (ul_storage *s = devices[device].first; s; s = s->next) {
        ul_storage *candidate = s;
        for (int i = 0; i < 5 && candidate; i++)
            if (!top[i] || candidate->bytes > top[i]->bytes) {
                ul_storage *smaller = top[i];
                top[i] = candidate;
                candidate = smaller;
            }
    }
    int at = 0;
    for (int i = 0; i < 5 && top[i] && at < size; i++)
        at += snprintf(text + at, (size_t)(size - at), "%s%.1f MiB%s%s", i ? ", " : "",
                       (double)top[i]->bytes / 1048576, top[i]->origin[0] ? " from " : "",
                       top[i]->origin);
}

/* What there is on cuda beside tensors: others may use the same GPU, and what is free in segments
 * may be in pieces. */
static void describe_rest(char *text, int size, int64_t *limit)
{
    int64_t unused = 0, total = 0, pieces = arena.reserved - arena.in_use;
    int at = 0;
    if (ul__cuda()->memory(&unused, &total) == 0 && !*limit) *limit = total;
    if (pieces > 0)
        at = snprintf(text, (size_t)size, ", %.1f MiB free in pieces, the largest of %.1f MiB,",
                      (double)pieces / 1048576, (double)ul__device_largest(&arena) / 1048576);
    snprintf(text + at, (size_t)(size - at), " and %.1f MiB free", (double)unused / 1048576);
}

static int out_of_memory(ul_device device, int64_t bytes)
{
    char largest[512] = "none";
    describe_largest(device, largest, sizeof largest);
    int64_t limit = device == UL_CPU ? ul__arena_limit() : devices[device].limit;
    char rest[160] = "";
    if (device == UL_CUDA) describe_rest(rest, sizeof rest, &limit);
    return ul__fail(
        UL_ENOMEM,
        "out of memory on %s: %.1f MiB wanted, %.1f MiB in use%s of %.1f MiB; the largest "
        "tensors: %s",
        ul_device_name(device), (double)bytes / 1048576, (double)devices[device].live / 1048576,
        rest, (double)limit / 1048576, largest);
}

static int obtain(void **data, ul_device device, int64_t bytes)
{
    *data = NULL;
    if (device == UL_META) {
        int64_t limit = devices[device].limit;
        return limit && devices[device].live + bytes > limit ? UL_ENOMEM : UL_OK;
    }
    if (device == UL_CUDA) {
        int64_t limit = devices[device].limit;
        if (limit && devices[device].live + bytes > limit) return UL_ENOMEM;
        arena.backend = ul__cuda();
        *data = ul__device_alloc(&arena, bytes > 0 ? bytes : 1);
    } else {
        *data = ul__arena_alloc(bytes > 0 ? bytes : 1);
    }
    return *data ? UL_OK : UL_ENOMEM;
}

static void give_back(void *data, ul_device device)
{
    if (!data) return;
    if (device == UL_CUDA)
        ul__device_free(&arena, data);
    else
        ul__arena_free(data);
}

int ul__touch(const ul_tensor *t, ul_stream *stream)
{
    const ul_storage *s = t->storage;
    return s->device == UL_CUDA ? ul__device_touch(&arena, s->data, stream) : UL_OK;
}

/* Memory, after which the device may ask for some back. */
static int obtain_or_fail(void **data, ul_device device, int64_t bytes)
{
    if (device == UL_CUDA && !ul__cuda()) UL_TRY(ul_cuda_open(-1));
    relieve(device, bytes, 0);
    if (ul__fail_now()) return ul__fail(UL_ENOMEM, "out of memory: a test asked for it");
    if (obtain(data, device, bytes) == UL_OK) return UL_OK;
    relieve(device, bytes, 1);
    ul_memory_trim(device);
    return obtain(data, device, bytes) < 0 ? out_of_memory(device, bytes) : UL_OK;
}

/* In the list and in the counts, and out of them. */
static void enter(ul_storage *s)
{
    ul_device device = s->device;
    s->next = devices[device].first;
    s->previous = NULL;
    if (s->next) s->next->previous = s;
    devices[device].first = s;
    devices[device].live += counted(s->bytes);
    if (devices[device].live > devices[device].peak) devices[device].peak = devices[device].live;
}

static void leave(ul_storage *s)
{
    if (s->next) s->next->previous = s->previous;
    if (s->previous)
        s->previous->next = s->next;
    else
        devices[s->device].first = s->next;
    devices[s->device].live -= counted(s->bytes);
    give_back(s->data, s->device);
    s->data = NULL;
}

int ul__storage_new(ul_storage **out, ul_device device, int64_t bytes)
{
    void *data;
    UL_TRY(obtain_or_fail(&data, device, bytes));
    ul_storage *s = ul__alloc(sizeof *s);
    if (!s) {
        give_back(data, device);
        return ul__fail(UL_ENOMEM, "out of memory: no room for a tensor's record");
    }
    *s = (ul_storage){.refs = 1, .device = device, .data = data, .bytes = bytes};
    enter(s);
    if (origin && bytes >= large) origin(origin_context, s->origin, sizeof s->origin);
    *out = s;
    return UL_OK;
}

void ul__storage_forget(ul_storage *s)
{
    free(s->known);
    s->known = NULL;
    s->docs.n = 0;
}

void ul__storage_changed(ul_storage *s)
{
    s->version++;
    ul__storage_forget(s);
}

int ul__storage_hollow(ul_storage **out, ul_device device, int64_t bytes)
{
    ul_storage *s = ul__alloc(sizeof *s);
    if (!s) return ul__fail(UL_ENOMEM, "out of memory: no room for a tensor's record");
    *s = (ul_storage){.refs = 1, .device = device, .bytes = bytes, .is_empty = 1};
    *out = s;
    return UL_OK;
}

int ul__storage_fill(ul_storage *s)
{
    UL_TRY(obtain_or_fail(&s->data, s->device, s->bytes));
    s->is_empty = 0;
    enter(s);
    return UL_OK;
}

void ul__storage_empty(ul_storage *s)
{
    leave(s);
    s->is_empty = 1;
}

int ul__storage_off(ul_storage **out, ul_device home, int64_t bytes)
{
    if (ul__fail_now()) return ul__fail(UL_ENOMEM, "out of memory: a test asked for it");
    ul_slot *slot;
    UL_TRY(ul__slot_take(&slot, home, bytes));
    ul_storage *s = ul__alloc(sizeof *s);
    if (!s) {
        ul__slot_give_back(slot);
        return ul__fail(UL_ENOMEM, "out of memory: no room for a tensor's record");
    }
    *s = (ul_storage){.refs = 1, .device = home, .data = slot->data, .bytes = bytes, .slot = slot};
    if (home == UL_CUDA) s->device = UL_CPU;
    devices[home].off += counted(bytes);
    if (devices[home].off > devices[home].off_peak) devices[home].off_peak = devices[home].off;
    *out = s;
    return UL_OK;
}

void ul__storage_free(ul_storage *s)
{
    if (--s->refs > 0) return;
    if (s->slot) {
        devices[s->slot->home].off -= counted(s->bytes);
        ul__slot_give_back(s->slot);
        free(s);
        return;
    }
    if (s->shard && ul__shard_abandon(s->shard)) {
        s->refs = 1;
        return;
    }
    if (!s->is_empty) leave(s);
    free(s->known);
    free(s);
}
