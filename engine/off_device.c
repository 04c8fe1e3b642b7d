/* off_device.c - slots of pinned memory or of a file, and tensors that wait there for backward. */
#define _GNU_SOURCE
#include "off_device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

static ul_slot *slots, *last_parked;
static int64_t reserved[UL_DEVICES];

int64_t ul__slot_bytes(ul_device home) { return reserved[home]; }

/* ---- copies ---- */

int ul__slot_order(const ul_slot *slot, ul_stream *s)
{
    return slot->copied ? ul__cuda()->event_wait(s, slot->event) : UL_OK;
}

int ul__slot_copied(ul_slot *slot, ul_stream *s)
{
    slot->copied = 1;
    return ul__cuda()->event_record(slot->event, s);
}

static int copy(ul_slot *slot, void *to, const void *from, int64_t bytes, int to_host, ul_stream *s)
{
    if (bytes == 0) return UL_OK;
    UL_TRY(ul__slot_order(slot, s));
    UL_TRY(ul__cuda()->copy(to, from, bytes, to_host, s));
    return ul__slot_copied(slot, s);
}

int ul__slot_store(ul_slot *slot, int64_t at, const void *data, int64_t bytes, ul_stream *s)
{
    return copy(slot, slot->data + at, data, bytes, 1, s);
}

int ul__slot_load(ul_slot *slot, int64_t at, void *data, int64_t bytes, ul_stream *s)
{
    return copy(slot, data, slot->data + at, bytes, 0, s);
}

int ul__slot_finish(ul_slot *slot)
{
    if (!slot->copied) return UL_OK;
    UL_TRY(ul__cuda()->event_finish(slot->event));
    slot->copied = 0;
    return UL_OK;
}

/* ---- where slots lie ---- */

static struct {
    int descriptor; /* -1: it is not open yet */
    int64_t bytes;
    char folder[512];
} file = {.descriptor = -1};

/* It has no name any more when it is open: nothing is left of it when the process ends. */
static int open_file(void)
{
    const char *given = getenv("TMPDIR");
    char path[sizeof file.folder + 32];
    if (file.descriptor >= 0) return UL_OK;
    snprintf(file.folder, sizeof file.folder, "%s", given && *given ? given : P_tmpdir);
    snprintf(path, sizeof path, "%s/ulysses-XXXXXX", file.folder);
    file.descriptor = mkostemp(path, O_CLOEXEC);
    UL_REQUIRE(file.descriptor >= 0, UL_EIO,
               "offload: cannot make a file in %s: %s (TMPDIR names another folder)", file.folder,
               strerror(errno));
    unlink(path);
    return UL_OK;
}

/* Its room is there before anything is written: there is no error to be had from a page. */
static int map_file(ul_slot *slot)
{
    UL_TRY(open_file());
    int bad = posix_fallocate(file.descriptor, file.bytes, slot->bytes);
    void *data = MAP_FAILED;
    if (!bad) {
        data = mmap(NULL, (size_t)slot->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor,
                    file.bytes);
        bad = data == MAP_FAILED ? errno : 0;
    }
    UL_REQUIRE(!bad, UL_ENOMEM,
               "offload: no room for %.1f MiB more in %s beside %.1f MiB: %s (TMPDIR names another "
               "folder)",
               (double)slot->bytes / 1048576, file.folder, (double)reserved[UL_CPU] / 1048576,
               strerror(bad));
    slot->data = data;
    slot->offset = file.bytes;
    file.bytes += slot->bytes;
    return UL_OK;
}

static void forget(ul_slot *slot)
{
    ul__event_give_back(slot->event);
    free(slot);
}

static int pin(ul_slot *slot)
{
    const ul_backend *cuda = ul__cuda();
    if (!slot->event) UL_TRY(ul__event_take(&slot->event, cuda));
    slot->data = cuda->pin(slot->bytes);
    UL_REQUIRE(slot->data, UL_ENOMEM,
               "cuda: the host cannot pin %.1f MiB more beside %.1f MiB: it has too little "
               "memory, or may not pin as much (ulimit -l)",
               (double)slot->bytes / 1048576, (double)reserved[UL_CUDA] / 1048576);
    return UL_OK;
}

static int obtain(ul_slot *slot)
{
    if (slot->home == UL_CUDA) return pin(slot);
    return slot->home == UL_CPU ? map_file(slot) : UL_OK;
}

static void drop(ul_slot *slot)
{
    if (slot->home == UL_CUDA) {
        ul__slot_finish(slot);
        ul__cuda()->unpin(slot->data);
    } else if (slot->home == UL_CPU) {
        munmap(slot->data, (size_t)slot->bytes);
        fallocate(file.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, slot->offset,
                  slot->bytes);
    }
    reserved[slot->home] -= slot->bytes;
}

void ul__slot_cool(const ul_slot *slot)
{
    if (slot->home == UL_CPU) madvise(slot->data, (size_t)slot->bytes, MADV_DONTNEED);
}

/* ---- slots ---- */

/* The smallest that is free and no more than twice as large. */
static ul_slot *find(ul_device home, int64_t bytes)
{
    ul_slot *best = NULL;
    for (ul_slot *s = slots; s; s = s->next)
        if (!s->used && s->home == home && s->bytes >= bytes && s->bytes / 2 <= bytes &&
            (!best || s->bytes < best->bytes))
            best = s;
    return best;
}

/* Gives back what is free; whether there was any. */
static int drop_unused(ul_device home)
{
    int any = 0;
    for (ul_slot **at = &slots; *at;) {
        ul_slot *s = *at;
        if (s->used || s->home != home) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        drop(s);
        forget(s);
        any = 1;
    }
    return any;
}

int ul__slot_take(ul_slot **out, ul_device home, int64_t bytes)
{
    if (home == UL_CUDA && !ul__cuda()) UL_TRY(ul_cuda_open(-1));
    bytes = bytes > 0 ? (bytes + PAGE - 1) / PAGE * PAGE : PAGE;
    ul_slot *s = find(home, bytes);
    if (!s) {
        s = ul__alloc(sizeof *s);
        UL_REQUIRE(s, UL_ENOMEM, "out of memory: no room for a slot's record");
        *s = (ul_slot){.home = home, .bytes = bytes};
        int rc = obtain(s);
        if (rc < 0 && drop_unused(home)) rc = obtain(s);
        if (rc < 0) {
            forget(s);
            return rc;
        }
        reserved[home] += bytes;
        s->next = slots;
        slots = s;
    }
    s->used = 1;
    *out = s;
    return UL_OK;
}

/* Takes it out of the order of parking. */
static void unlink_slot(ul_slot *slot)
{
    if (!slot->parked) return;
    if (slot->before) slot->before->after = slot->after;
    if (slot->after)
        slot->after->before = slot->before;
    else
        last_parked = slot->before;
    slot->before = slot->after = NULL;
    slot->parked = NULL;
}

void ul__slot_give_back(ul_slot *slot)
{
    ul_tensor *fetched = slot->fetched;
    slot->fetched = NULL;
    unlink_slot(slot);
    ul__slot_cool(slot);
    slot->used = 0;
    ul_tensor_free(fetched);
}

/* ---- tensors ---- */

ul_device ul__home(const ul_tensor *t)
{
    return t->storage->slot ? t->storage->slot->home : t->storage->device;
}

static int64_t bytes_of(const ul_tensor *t) { return ul_tensor_size(t) * ul_dtype_bytes(t->dtype); }

/* x, whose slot is being copied to or from, may be freed at once. Where that cannot be noted the
 * copy is waited for. */
static int touch(const ul_tensor *x, ul_slot *slot, ul_stream *s)
{
    int rc = ul__touch(x, s);
    if (rc < 0) ul__slot_finish(slot);
    return rc;
}

/* x is contiguous; its memory may be freed at once. */
static int store(ul_slot *slot, const ul_tensor *x)
{
    if (slot->home == UL_META) return UL_OK;
    if (slot->home == UL_CPU) {
        memcpy(slot->data, ul__data(x), (size_t)bytes_of(x));
        ul__slot_cool(slot);
        return UL_OK;
    }
    ul_stream *s = ul__cuda()->copy_stream(1);
    UL_TRY(ul__stream_after(s, ul__cuda()->stream()));
    UL_TRY(ul__slot_store(slot, 0, ul__data(x), bytes_of(x), s));
    return touch(x, slot, s);
}

static int put_off(ul_tensor **out, ul_tensor *x)
{
    ul_tensor *whole = NULL, *y = NULL;
    UL_REQUIRE(!x->storage->slot, UL_EVALUE, "offload: %s is off its device already", ul__shape(x));
    UL_TRY(ul__present(x));
    UL_TRY(ul_tensor_is_contiguous(x) ? ul__alias(&whole, x) : ul__compact(&whole, x));
    int rc = ul__off_device_new(&y, x->dtype, x->storage->device, x->ndim, x->shape);
    if (rc == UL_OK) rc = store(y->storage->slot, whole);
    ul_tensor_free(whole);
    if (rc < 0)
        ul_tensor_free(y);
    else
        *out = y;
    return rc;
}

int ul_off_device(ul_tensor **out, ul_tensor *x)
{
    UL_TRY(put_off(out, x));
    int rc = ul__slot_finish((*out)->storage->slot);
    if (rc < 0) ul_tensor_free(*out);
    return rc;
}

static void share_history(ul_tensor *y, const ul_tensor *x)
{
    y->variable = x->variable;
    if (y->variable) y->variable->refs++;
}

int ul_park(ul_tensor **out, ul_tensor *x)
{
    UL_TRY(put_off(out, x));
    ul_slot *slot = (*out)->storage->slot;
    share_history(*out, x);
    slot->parked = *out;
    slot->before = last_parked;
    if (last_parked) last_parked->after = slot;
    last_parked = slot;
    return UL_OK;
}

/* Begins the way back. */
static int fetch(ul_slot *slot)
{
    const ul_tensor *parked = slot->parked;
    ul_tensor *y;
    if (slot->home == UL_CPU) {
        madvise(slot->data, (size_t)slot->bytes, MADV_WILLNEED);
        return UL_OK;
    }
    if (slot->fetched) return UL_OK;
    UL_TRY(ul_tensor_new(&y, parked->dtype, slot->home, parked->ndim, parked->shape));
    int rc = UL_OK;
    if (slot->home == UL_CUDA) {
        ul_stream *s = ul__cuda()->copy_stream(0);
        rc = ul__stream_after(s, ul__cuda()->stream());
        if (rc == UL_OK) rc = ul__slot_load(slot, 0, ul__data(y), bytes_of(y), s);
        if (rc == UL_OK) rc = touch(y, slot, s);
    }
    if (rc < 0)
        ul_tensor_free(y);
    else
        slot->fetched = y;
    return rc;
}

int ul_unpark(ul_tensor **out, ul_tensor *parked)
{
    ul_slot *slot = parked->storage->slot;
    UL_REQUIRE(slot && slot->parked == parked, UL_EVALUE, "unpark: %s was not parked",
               ul__shape(parked));
    UL_TRY(fetch(slot));
    if (slot->home == UL_CPU) {
        UL_TRY(ul__alias(out, parked));
    } else {
        *out = slot->fetched;
        slot->fetched = NULL;
    }
    share_history(*out, parked);
    int rc = slot->home == UL_CUDA ? ul__slot_order(slot, ul__cuda()->stream()) : UL_OK;
    if (rc < 0)
        ul_tensor_free(*out);
    else if (slot->before)
        fetch(slot->before); /* where it fails it is asked for again */
    return rc;
}
