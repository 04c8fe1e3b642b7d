/* route.c - which keys go where in a ring: who needs which chunk, and the shorter way to them. */
#include <string.h>

#include "parts.h"
#include "route.h"

/* Positions [low, high) of a row. */
typedef struct span {
    int64_t low, high;
} span;

/* What chunk c has of the document [begin, end). */
static span part_of(const ul_route *r, int c, span document)
{
    int64_t low = r->first[c], high = low + r->length[c];
    if (low < document.low) low = document.low;
    if (high > document.high) high = document.high;
    return (span){low, high};
}

/* Whether a query in q sees a key in k: 0 <= q - k < window for one pair of them. */
static int sees(const ul_attention_args *a, span q, span k)
{
    if (q.low >= q.high || k.low >= k.high) return 0;
    if (!a->causal) return 1;
    int64_t most = q.high - 1 - k.low, least = q.low - (k.high - 1);
    return most >= 0 && (a->window == 0 || least < a->window);
}

/* Who needs what within one document. */
static void mark(ul_route *r, const ul_attention_args *a, span document)
{
    for (int i = 0; i < 2 * r->size; i++) {
        span q = part_of(r, i, document);
        if (q.low >= q.high) continue;
        for (int c = 0; c < 2 * r->size; c++)
            if (sees(a, q, part_of(r, c, document))) r->need[c * r->size + ul__holder_of(r, i)] = 1;
    }
}

/* How many hops it is from where chunk c is at first to the last rank that needs it. */
static int hops_of(const ul_route *r, int c, int step)
{
    for (int n = r->size - 1; n > 0; n--)
        if (r->need[c * r->size + ul__rank_at(r, ul__holder_of(r, c), n * step)]) return n;
    return 0;
}

static int begin_of(const ul_route *r, int c, int step)
{
    for (int n = 1; n < r->size; n++)
        if (r->need[c * r->size + ul__rank_at(r, ul__holder_of(r, c), n * step)]) return n;
    return 0;
}

/* The way that is shorter for all chunks of the family together. With a window the early ones are
 * needed by the next rank, the late ones by the one before. Where both ways are as long (causal
 * alone) all travel back: then each round is the same work for all ranks.
 */
static void choose_way(ul_route *r, int family)
{
    int up = 0, down = 0;
    for (int rank = 0; rank < r->size; rank++) {
        up += hops_of(r, ul__chunk_of(r, family, rank), 1);
        down += hops_of(r, ul__chunk_of(r, family, rank), -1);
    }
    int step = r->step[family] = up < down ? 1 : -1;
    for (int rank = 0; rank < r->size; rank++) {
        int c = ul__chunk_of(r, family, rank);
        r->hops[c] = hops_of(r, c, step);
        r->begin[c] = begin_of(r, c, step);
        if (r->hops[c] > r->rounds[family]) r->rounds[family] = r->hops[c];
    }
}

int ul__route_new(ul_route **out, ul_group *group, int64_t tokens, const ul_attention_args *a)
{
    size_t size = (size_t)group->size, chunks = 2 * size;
    size_t bytes = sizeof **out + (2 * chunks + 4 * size) * sizeof(int64_t) +
                   2 * chunks * sizeof(int) + chunks * size;
    ul_route *r = *out = ul__alloc(bytes);
    UL_REQUIRE(r, UL_ENOMEM, "ring_attention: out of memory");
    memset(r, 0, bytes);
    r->group = group;
    r->tokens = tokens;
    r->rank = group->rank;
    r->size = group->size;
    r->first = (int64_t *)(r + 1);
    r->length = r->first + chunks;
    r->tables = r->length + chunks;
    r->hops = (int *)(r->tables + 4 * size);
    r->begin = r->hops + chunks;
    r->need = (char *)(r->begin + chunks);
    for (int c = 0; c < 2 * r->size; c++)
        r->length[c] = ul_share(&r->first[c], tokens, 2 * r->size, c);
    if (!a->docs) mark(r, a, (span){0, tokens});
    for (int64_t i = 0; a->docs && i < a->n_docs; i++) {
        int64_t begin = a->docs[i] % tokens;
        mark(r, a, (span){begin, begin + a->docs[i + 1] - a->docs[i]});
    }
    choose_way(r, EARLY);
    choose_way(r, LATE);
    return UL_OK;
}
