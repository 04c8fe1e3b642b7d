/* route.h - which keys go where in a ring of ranks that each hold two chunks of every row.
 *
 * A row is cut into 2 R chunks; rank r of R holds chunks r (early) and 2 R - 1 - r (late). The
 * queries of a rank stay, keys and values travel from rank to rank as far as some query sees them.
 */
#ifndef UL_ROUTE_H
#define UL_ROUTE_H

#include "../internal.h"

enum { EARLY, LATE, FAMILIES };

typedef struct ul_route {
    ul_group *group;
    int64_t tokens;          /* of a row */
    int rank, size;          /* of the group */
    int step[FAMILIES];      /* 1 or -1: early chunks all travel one way, so do late ones */
    int rounds[FAMILIES];    /* the most hops of one of them */
    int64_t *first, *length; /* [2 R] of the tokens of a chunk */
    int64_t *tables;         /* [4 R] scratch of the exchange */
    int *hops, *begin; /* [2 R] to the last and to the first rank that needs the chunk, or 0 */
    char *need;        /* [2 R, R] whether a rank's queries see some of a chunk */
} ul_route;

/* For rows of `tokens` under a's mask: batch, causal, window and docs. One block, to be freed; all
 * ranks find the same. */
int ul__route_new(ul_route **out, ul_group *group, int64_t tokens, const ul_attention_args *a);

/* The chunk of a family that a rank has at first, or the rank that has chunk c at first. */
static inline int ul__chunk_of(const ul_route *r, int family, int rank)
{
    return family == EARLY ? rank : 2 * r->size - 1 - rank;
}

static inline int ul__holder_of(const ul_route *r, int c)
{
    return c < r->size ? c : 2 * r->size - 1 - c;
}

/* The rank that is n steps away. */
static inline int ul__rank_at(const ul_route *r, int rank, int n)
{
    return ((rank + n) % r->size + r->size) % r->size;
}

/* The chunk of a family that is here after so many hops. */
static inline int ul__arrives(const ul_route *r, int family, int hop)
{
    return ul__chunk_of(r, family, ul__rank_at(r, r->rank, -hop * r->step[family]));
}

#endif
