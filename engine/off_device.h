/* off_device.h - values that are kept off the device they belong to: those of cuda in pinned memory
 * of the host, those of the cpu in a file; on meta they are only counted.
 *
 * Memory is handed out in slots that are made once and used again. Copies to and from pinned memory
 * have a stream for each direction; a slot knows the event of the last one that uses it.
 */
#ifndef UL_OFF_DEVICE_H
#define UL_OFF_DEVICE_H

#include "events.h"
#include "internal.h"

typedef struct ul_slot {
    ul_device home;        /* the device that is spared */
    char *data;            /* NULL on meta */
    int64_t bytes, offset; /* offset: in the file */
    int used;
    void *event; /* of the last copy, where there was one; cuda only */
    int copied;
    struct ul_slot *next; /* all slots, whether in use or not */
    /* of values that were parked */
    const ul_tensor *parked;        /* borrowed; NULL where there are none */
    ul_tensor *fetched;             /* owned: on its way back before it is asked for */
    struct ul_slot *before, *after; /* in the order of parking */
} ul_slot;

/* A tensor like ul_tensor_new()'s whose memory is a slot. On UL_CPU where `home` is UL_CUDA; the
 * host may use it after ul__slot_finish(). */
int ul__off_device_new(ul_tensor **out, ul_dtype dtype, ul_device home, int ndim,
                       const int64_t *shape);
/* The device that t belongs to, wherever it is kept. */
ul_device ul__home(const ul_tensor *t);
/* Copies bytes of a device's memory to the slot, or back to it, on the stream `s` of that device.
 * The host may not touch the slot before ul__slot_finish(). */
int ul__slot_store(ul_slot *slot, int64_t at, const void *data, int64_t bytes, ul_stream *s);
int ul__slot_load(ul_slot *slot, int64_t at, void *data, int64_t bytes, ul_stream *s);
/* The same in two steps, around copies that are made otherwise: later work on `s` comes after the
 * slot's last copy; and all that was asked of `s` until now is its last copy. */
int ul__slot_order(const ul_slot *slot, ul_stream *s);
int ul__slot_copied(ul_slot *slot, ul_stream *s);
/* The host waits for the last copy. */
int ul__slot_finish(ul_slot *slot);
/* Pages of a file that nobody will need soon leave the process' memory. */
void ul__slot_cool(const ul_slot *slot);

/* storage.c asks for it: a slot of at least `bytes`, or a sentence; and has done with it. */
int ul__slot_take(ul_slot **out, ul_device home, int64_t bytes);
void ul__slot_give_back(ul_slot *slot);
/* Bytes of all slots, used or not. */
int64_t ul__slot_bytes(ul_device home);

/* ---- stage.c: state that is kept off a device, for kernels that run on the device ---- */

enum { UL_MAX_STATE = 3 };

/* Runs `run` for one piece of n elements after another, `at` counted from the first: state[i] holds
 * the piece of state i on the device, which goes back afterwards. Entries of `off` may be NULL.
 */
typedef int ul_stage_run(void *context, int64_t at, int64_t n, void *const *state);
int ul__stage(ul_tensor *const *off, int n_off, ul_stage_run *run, void *context);

#endif
