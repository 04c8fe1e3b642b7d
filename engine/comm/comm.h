/* comm.h - what a transport offers to a group of ranks, and what all transports share.
 *
 * A transport moves bytes, of the host's memory or of a device's. It knows neither tensors nor
 * gradients; checks, numbers, the log, the deadline and the counts are above it, once for all
 * (group.c, watch.c).
 */
#ifndef UL_COMM_H
#define UL_COMM_H

#include "../internal.h"

/* One piece of memory for each rank: `bytes` of them from data + at. */
typedef struct ul_pieces {
    char *data;
    const int64_t *at, *bytes;
} ul_pieces;

/* Memory cut along a dim, one part for each rank: part r is count[r] of it from first[r] on, in
 * row-major order. Strides count elements. at not NULL: part r lies at data + at[r] instead,
 * without gaps.
 */
typedef struct ul_cut {
    char *data;
    int64_t element; /* bytes */
    int ndim, dim;
    const int64_t *shape, *stride, *first, *count, *at;
} ul_cut;

/* All ranks of a group call the same functions with sizes that fit each other. Nothing may
 * overlap but where said.
 */
typedef struct ul_comm {
    const char *name;
    /* data [n] = the reduction of all ranks' data */
    int (*all_reduce)(ul_group *g, void *data, int64_t n, ul_dtype dtype, ul_reduction how);
    /* mine = the sum of all ranks' piece for this rank, which mine may be itself */
    int (*reduce_scatter)(ul_group *g, void *mine, const ul_pieces *all, ul_dtype dtype);
    /* all = every rank's `mine`, which may be its piece of all */
    int (*all_gather)(ul_group *g, const ul_pieces *all, const void *mine);
    int (*all_to_all)(ul_group *g, const ul_pieces *to, const ul_pieces *from);
    /* The same where all ranks' pieces are of so many bytes, one behind the other: to's r-th is
     * what r has for this rank, its own among them. For ranks that can_swap(), which all answer
     * alike; both are NULL where that gains nothing. */
    int (*swap)(ul_group *g, void *to, const void *from, int64_t bytes);
    int (*can_swap)(void);
    /* Around several all_to_all or swap, which then go at once. begins: whether it is the one
     * before them; NULL where that gains nothing. */
    int (*together)(ul_group *g, int begins);
    /* Ends what together(g, 1) has begun, but what is computed next does not wait for it: `event`
     * comes when it has arrived. NULL where calls are over when they return. */
    int (*together_later)(ul_group *g, void *event);
    /* The same of n tensors in one go, without what stays on this rank, and whatever their strides.
     * NULL where memory has to be packed. */
    int (*exchange)(ul_group *g, const ul_cut *to, const ul_cut *from, int n);
    int (*broadcast)(ul_group *g, void *data, int64_t bytes, int root);
    int (*send)(ul_group *g, const void *data, int64_t bytes, int to);
    int (*receive)(ul_group *g, void *data, int64_t bytes, int from);
    int (*barrier)(ul_group *g);
    /* out: rank, size and handle; size 0 where color is negative. colors: of all ranks. */
    int (*split)(ul_group *out, ul_group *g, const int *colors, int key);
    void (*end)(int status);
    /* Around each numbered call; may be NULL. begin may refuse it. */
    int (*begin)(ul_group *g, ul_comm_kind kind);
    void (*finish)(ul_group *g, ul_comm_kind kind, int rc);
} ul_comm;

struct ul_group {
    const ul_comm *comm;
    int rank, size;
    char name[48];
    void *handle;     /* the transport's own, like the scratch that follows */
    void **requests;  /* [2 size] */
    int64_t *offsets; /* [2 size] */
    int *counts;      /* [2 size] */
    int64_t *places;  /* [2 size], ul__comm_sizes()'s */
    int64_t sequence;
    ul_comm_count count[UL_COMM_KINDS];
    const ul_comm *device_comm; /* of tensors on cuda; NULL until the ranks have agreed on it */
    void *device_handle;        /* its own */
    struct ul_group *next;      /* of all groups of the process */
};

enum { UL_MAX_CUTS = 8 }; /* tensors of one exchange */

extern const ul_comm ul__self, ul__mpi, ul__plan, ul__staged;
/* What the world of several ranks is made with. */
extern const ul_comm *ul__world_comm;
/* Fills rank, size and handle of the world that a launcher says has `size` ranks. */
int ul__mpi_open(ul_group *world, int size);

/* ---- nccl_world.c: tensors on cuda ---- */

/* What moves the tensors of a device; numbers, barriers and splits are g->comm's. */
const ul_comm *ul__comm_of(const ul_group *g, ul_device device);
/* Before the first call on tensors on cuda, by all ranks: opens NCCL for them, or settles for the
 * host's memory where they share a GPU or NCCL is missing. */
int ul__device_ready(ul_group *g);
/* The same for a part of g, by all ranks of g; part: this rank's, or NULL. */
int ul__device_split(ul_group *part, ul_group *g, const int *colors, int key);
/* Whether NCCL has failed since it was asked to do something, and how; from any thread. */
int ul__nccl_failed(char *text, int size);
/* Closes what is open, after all that was asked for. */
void ul__nccl_end(const ul_group *world);
/* From device to device, in the order of the compute stream. (staged.c) */
int ul__copy_on_cuda(void *to, const void *from, int64_t bytes);

/* A group in the list of all; its size, and scratch for that. */
int ul__group_new(ul_group **out, const ul_comm *comm, const char *name);
int ul__group_sized(ul_group *g, int rank, int size);
/* The calls of all groups are numbered from 1 again. */
void ul__groups_renumber(void);

/* ---- group.c: around each call of a transport ---- */

/* Numbers and logs the call, and compares it with the other ranks' where UL_COMM_CHECK is set.
 * what: dtype and shape, the same words on all ranks.
 */
int ul__comm_begin(ul_group *g, ul_comm_kind kind, const char *what);
/* After it: counts the bytes sent to others. Returns rc. */
int ul__comm_end(ul_group *g, ul_comm_kind kind, int64_t bytes, int rc);
/* all [size][n] = each rank's n numbers; mine may be its place in all. The second is a numbered
 * call of its own. */
int ul__comm_numbers(ul_group *g, int64_t *all, const int64_t *mine, int n);
int ul__comm_sizes(ul_group *g, int64_t *all, const int64_t *mine, int n);

/* ---- watch.c: the log and the deadline ---- */

/* patient: the call knows no deadline */
void ul__watch_begin(const ul_group *g, ul_comm_kind kind, const char *what, int patient);
double ul__watch_end(void); /* how many seconds it took */
/* For calls that are over later than they return. Where the event of the last call is kept, from
 * one call to another of the same place in the log; and that it was recorded. */
void **ul__watch_event(void);
void ul__watch_recorded(void);
/* Starts the thread, once. */
int ul__watch_start(void);

/* ---- reduce.c: sums in the order of the ranks, for transports that only move bytes ---- */

int ul__all_reduce(ul_group *g, void *data, int64_t n, ul_dtype dtype, ul_reduction how);
int ul__reduce_scatter(ul_group *g, void *mine, const ul_pieces *all, ul_dtype dtype);
/* The memory that these take for a while, on meta. */
int ul__all_reduce_on_meta(const ul_group *g, int64_t n, ul_dtype dtype);
int ul__reduce_scatter_on_meta(const ul_group *g, const ul_pieces *all, ul_dtype dtype);

#endif
