/* parts.h - tensors cut along a dim, one part for each rank. */
#ifndef UL_PARTS_H
#define UL_PARTS_H

#include "../comm/comm.h"

/* x's part for rank r: count[r] elements of dim from first[r] on. Parts that are sent may overlap.
 */
typedef struct ul_parts {
    ul_tensor *x;
    int dim;
    const int64_t *first, *count;
} ul_parts;

/* The bytes of all parts, each without gaps: within x itself where they lie so, else in a copy. */
typedef struct ul_packed {
    ul_pieces pieces;
    ul_tensor *memory; /* owned */
    ul_tensor *tables;
} ul_packed;

/* A tensor that looks like x's part for rank r; borrows x's storage, and is not to be freed. */
ul_tensor ul__part(const ul_parts *p, int r);
/* Room for all parts but `skip`'s (-1: all parts, one behind the other): x itself where each of
 * them is a run of memory, else new memory; fill: the parts are copied there. */
int ul__pack(ul_packed *packed, const ul_parts *p, int size, int skip, int fill);
/* Copies what has arrived to where it belongs, unless it is there already. */
int ul__unpack(const ul_packed *packed, const ul_parts *p, int size, int skip);
void ul__packed_free(ul_packed *packed);

/* An exchange that has begun: what has arrived is where it belongs only when it has ended. */
typedef struct ul_flight {
    ul_packed in[UL_MAX_CUTS];
    ul_parts to[UL_MAX_CUTS]; /* of tensors of its own */
    void *event;              /* NULL where it was over at once */
    int n, size, skip;        /* skip: the rank whose part is there already, or -1 */
} ul_flight;

/* ul__exchange() in two steps, what is computed between them going on beside it. to[i].first and
 * .count stay until the end. The tensors of from[i] may be freed, but not changed. */
int ul__exchange_begin(ul_flight *f, ul_group *g, const ul_parts *to, const ul_parts *from, int n,
                       int moves);
int ul__exchange_end(ul_flight *f);
/* Drops one that has not ended; nothing to do for others. */
void ul__exchange_drop(ul_flight *f);

/* Sends the parts of from[i] and fills those of to[i], i < n; what stays on this rank is copied.
 * moves 0 (on meta): takes the memory that it would, and sends nothing. */
int ul__exchange(ul_group *g, const ul_parts *to, const ul_parts *from, int n, int moves);

/* What moves tensors that are where x is. */
const ul_comm *ul__comm_on(const ul_group *g, const ul_tensor *x);

/* Starts a call of the group on tensors like x: whether there is something to be moved (0 on meta),
 * or an error. `dim`: one whose size may differ from rank to rank, or -1. */
int ul__collective(ul_group *g, ul_comm_kind kind, const ul_tensor *x, int dim, const char *more);

/* ---- collective.c: on values, no tape ---- */

/* Fills all parts of parts->x with the ranks' x, contiguous. later, of transports that have
 * together_later: an event that comes when they are there, which nobody has waited for; the parts
 * are runs of memory then. Else NULL. */
int ul__gather_parts(ul_group *g, const ul_parts *parts, ul_tensor *x, void *later);
/* y, contiguous, = the sum over all ranks of their parts for this one. */
int ul__scatter_parts(ul_group *g, const ul_parts *parts, ul_tensor *y);

#endif
