/* mpi.h - the functions of Open MPI that are called, and how what they return is told. */
#ifndef UL_COMM_MPI_H
#define UL_COMM_MPI_H

#include "comm.h"

typedef struct ul_mpi {
    int (*init_thread)(int *, char ***, int, int *);
    int (*get_library_version)(char *, int *);
    int (*comm_rank)(void *, int *);
    int (*comm_size)(void *, int *);
    int (*comm_split)(void *, int, int, void **);
    int (*set_errhandler)(void *, void *);
    int (*error_string)(int, char *, int *);
    int (*all_gather)(const void *, int, void *, void *, const int *, const int *, void *, void *);
    int (*broadcast)(void *, int, void *, int, void *);
    int (*send)(const void *, int, void *, int, int, void *);
    int (*receive)(void *, int, void *, int, int, void *, void *);
    int (*post_send)(const void *, int, void *, int, int, void *, void **);
    int (*post_receive)(void *, int, void *, int, int, void *, void **);
    int (*wait_all)(int, void **, void *);
    int (*test_all)(int, void **, int *, void *);
    int (*test)(void **, int *, void *);
    int (*cancel)(void **);
    int (*request_free)(void **);
    int (*barrier)(void *);
    int (*abort)(void *, int);
    int (*finalize)(void);
    int (*type_vector)(int, int, intptr_t, void *, void **);
    int (*type_struct)(int, const int *, const intptr_t *, void *const *, void **);
    int (*type_commit)(void **);
    int (*type_free)(void **);
    void *world, *byte, *errors_return, *no_request;
} ul_mpi;

extern ul_mpi ul__mpi_calls;
/* The most bytes of one message: MPI counts in ints. */
extern int64_t ul__mpi_most_bytes;

/* rc of an MPI function, as ours. */
int ul__mpi_check(const char *what, int rc);

/* Where messages go: the communicator, the numbers of a group's ranks in it (NULL: the same), and
 * how to wait for requests, of which the first ones receive. */
typedef struct ul_mpi_way {
    void *handle;
    const int *ranks;
    int tag;
    int (*wait)(int posted, int receives, void **requests);
} ul_mpi_way;

/* strided.c: the exchange of a table */
int ul__mpi_exchange(ul_group *g, const ul_cut *to, const ul_cut *from, int n,
                     const ul_mpi_way *way);

/* mpi.c with waits that can be cut short (interactive.c), and its world. */
extern const ul_comm ul__interactive;
int ul__interactive_open(ul_group *world);

#endif
