/* nccl.h - the functions of NCCL that are called, and how what they return is told. */
#ifndef UL_COMM_NCCL_H
#define UL_COMM_NCCL_H

#include "comm.h"

/* NCCL's own: an id by which ranks find each other, and the settings of a communicator as 2.18 has
 * them; newer ones take these as they are.
 */
typedef struct ul_nccl_id {
    char bytes[128];
} ul_nccl_id;

typedef struct ul_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} ul_nccl_config;

enum { UL_NCCL_SUCCESS = 0, UL_NCCL_INTERNAL = 3, UL_NCCL_IN_PROGRESS = 7 };

/* A communicator is a void *, so is a stream. */
typedef struct ul_nccl {
    int (*get_version)(int *);
    int (*get_id)(ul_nccl_id *);
    int (*init)(void **, int, ul_nccl_id, int, ul_nccl_config *);
    int (*split)(void *, int, int, void **, ul_nccl_config *);
    int (*finalize)(void *);
    int (*destroy)(void *);
    int (*abort)(void *);
    int (*async_error)(void *, int *);
    const char *(*error_string)(int);
    const char *(*last_error)(void *);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*reduce)(const void *, void *, size_t, int, int, int, void *, void *);
    int (*reduce_scatter)(const void *, void *, size_t, int, int, void *, void *);
    int (*all_gather)(const void *, void *, size_t, int, void *, void *);
    int (*broadcast)(const void *, void *, size_t, int, int, void *, void *);
    int (*send)(const void *, size_t, int, int, void *, void *);
    int (*receive)(void *, size_t, int, int, void *, void *);
    /* from 2.28.3 on; else NULL */
    int (*all_to_all)(const void *, void *, size_t, int, void *, void *);
} ul_nccl;

extern ul_nccl ul__nccl_calls;

/* Opens the library, once; UL_ECOMM, and why, where there is none that will do. */
int ul__nccl_load(int *version);
/* Waits until a call on a communicator that has returned rc is through, and tells how it ended. */
int ul__nccl_settle(void *handle, const char *what, int rc);

/* nccl.c: of tensors on cuda. nccl_host.c: the same of the host's memory, by way of the device, for
 * a world without MPI. */
extern const ul_comm ul__nccl, ul__nccl_host;

/* ---- nccl_world.c ---- */

/* How far the call at hand on a communicator is; returns NCCL's code. Nobody gives it up meanwhile,
 * and nothing is asked of one that was given up. */
int ul__nccl_ask(void *handle, int *state);

/* Where a call has failed because another thread has given up all of them: that one says why, and
 * ends the process. */
void ul__nccl_leave_to_watch(void);

/* The world of a launcher that starts no MPI. */
int ul__nccl_open_world(ul_group *world, int rank, int size);
/* A part of a group: *handle stays NULL where there is nobody to talk to. */
int ul__nccl_split(void **handle, const ul_group *g, const int *colors, int key);

#endif
