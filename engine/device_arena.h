/* device_arena.h - the caching allocator of a device's memory: blocks of large segments.
 *
 * It is ordered by the one stream that computes: what is freed is given out again at once, though
 * the device may not have come to the work that uses it yet, since whatever the new owner asks for
 * comes later on that stream. Two rules keep other streams right:
 *
 * 1. What another stream is to write or read, new tensors above all, it touches after work that
 *    computes until now: event_record() on stream(), event_wait() on the other.
 * 2. After that work has been asked for, ul__touch() notes it. A block that has been touched is not
 *    given out before the other stream has come so far. It is not needed where the stream that
 *    computes itself waits for that work before the tensor is freed.
 *
 * All functions are called from the one thread that asks for work.
 */
#ifndef UL_DEVICE_ARENA_H
#define UL_DEVICE_ARENA_H

#include "../kernels/backend.h"
#include "blocks.h"

typedef struct ul_device_arena {
    const ul_backend *backend; /* whose memory it is; the rest begins as 0 */
    ul_blocks blocks;
    ul_chain *segments;
    ul_block *waiting; /* freed, and touched by others still; by bin_after */
    int64_t in_use, waiting_bytes;
    int64_t reserved;           /* bytes of segments */
    int64_t limit;              /* that reserved may come to; 0: none but the device's */
    int64_t system_allocations; /* how many segments have been taken */
} ul_device_arena;

/* Multiples of 512 bytes from the beginning of a segment; NULL, and no sentence, where there is
 * none. */
void *ul__device_alloc(ul_device_arena *a, int64_t bytes);
void ul__device_free(ul_device_arena *a, void *data);
/* The block at `data` is in use by what has been asked of `stream` until now. Returns 0 or what the
 * backend's failures return. */
int ul__device_touch(ul_device_arena *a, void *data, ul_stream *stream);
/* Gives segments that are wholly free, and events that nobody has, back to the device; waits for
 * its work. */
void ul__device_trim(ul_device_arena *a);
/* Bytes of the largest free block. */
int64_t ul__device_largest(const ul_device_arena *a);

#endif
