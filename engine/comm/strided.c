/* strided.c - Open MPI's exchange of tensors with gaps, which its datatypes describe: nothing is
 * packed, and all that goes to one rank is one message.
 */
#include "mpi.h"

static ul_mpi *const mpi = &ul__mpi_calls;

/* A rank's part of a cut, or a piece of it; strides in bytes. */
typedef struct block {
    char *data;
    int64_t element;
    int ndim;
    int64_t shape[UL_MAX_DIMS], stride[UL_MAX_DIMS];
} block;

static int64_t bytes_of(const ul_cut *c, int rank)
{
    int64_t n = c->element * c->count[rank];
    for (int d = 0; d < c->ndim; d++)
        if (d != c->dim) n *= c->shape[d];
    return n;
}

static int64_t bytes_of_all(const ul_cut *cuts, int n, int rank)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += bytes_of(&cuts[i], rank);
    return sum;
}

static block block_of(const ul_cut *c, int rank)
{
    block b = {.data = c->data, .element = c->element, .ndim = c->ndim};
    int64_t gapless = c->element;
    for (int d = c->ndim - 1; d >= 0; d--) {
        b.shape[d] = d == c->dim ? c->count[rank] : c->shape[d];
        b.stride[d] = c->at ? gapless : c->stride[d] * c->element;
        gapless *= b.shape[d];
    }
    b.data += c->at ? c->at[rank] : c->first[rank] * b.stride[c->dim];
    return b;
}

/* ---- messages that are not too large ---- */

/* How many pieces a part makes: along the first dim of which one index is small enough, `each` at a
 * time. Depends on the shape alone, so that both sides cut alike. */
static int64_t pieces_of(int *dim, int64_t *each, const ul_cut *c, int rank)
{
    int64_t below = bytes_of(c, rank), n = 1, size = 1;
    if (below == 0) return 0;
    int d = -1;
    do {
        n *= size;
        size = ++d == c->dim ? c->count[rank] : c->shape[d];
        below /= size;
    } while (below > ul__mpi_most_bytes && d < c->ndim - 1);
    *dim = d;
    *each = below < ul__mpi_most_bytes ? ul__mpi_most_bytes / below : 1;
    if (*each > size) *each = size;
    return n * ((size + *each - 1) / *each);
}

static block piece_of(const ul_cut *c, int rank, int64_t i)
{
    block b = block_of(c, rank);
    int dim;
    int64_t each;
    pieces_of(&dim, &each, c, rank);
    int64_t along = (b.shape[dim] + each - 1) / each, first = i % along * each;
    b.data += first * b.stride[dim];
    b.shape[dim] = b.shape[dim] - first < each ? b.shape[dim] - first : each;
    i /= along;
    for (int d = dim - 1; d >= 0; d--) {
        b.data += i % b.shape[d] * b.stride[d];
        i /= b.shape[d];
        b.shape[d] = 1;
    }
    return b;
}

static int64_t messages_of(const ul_cut *cuts, int n, int rank)
{
    int64_t bytes = bytes_of_all(cuts, n, rank), sum = 0, each;
    int dim;
    if (bytes <= ul__mpi_most_bytes) return bytes > 0;
    for (int i = 0; i < n; i++) sum += pieces_of(&dim, &each, &cuts[i], rank);
    return sum;
}

/* ---- datatypes ---- */

/* *count of *type are the block; *type is to be freed where it is not MPI's byte. */
static int type_of(void **type, int *count, const block *b)
{
    int64_t run = b->element;
    int d = b->ndim - 1;
    for (; d >= 0 && (b->shape[d] == 1 || b->stride[d] == run); d--) run *= b->shape[d];
    *type = mpi->byte;
    *count = (int)run;
    while (d >= 0) { /* dims that follow each other evenly are one */
        int64_t n = b->shape[d], stride = b->stride[d];
        for (d--; d >= 0 && (b->shape[d] == 1 || b->stride[d] == stride * n); d--) n *= b->shape[d];
        void *inner = *type;
        int rc = mpi->type_vector((int)n, *count, (intptr_t)stride, inner, type);
        if (inner != mpi->byte) mpi->type_free(&inner);
        UL_TRY(ul__mpi_check("describe memory", rc));
        *count = 1;
    }
    return UL_OK;
}

/* The blocks as one type, which counts from address 0. */
static int type_of_all(void **type, const block *blocks, int n)
{
    void *each[UL_MAX_CUTS] = {NULL};
    intptr_t at[UL_MAX_CUTS] = {0};
    int count[UL_MAX_CUTS] = {0}, made = 0, rc = UL_OK;
    while (rc == UL_OK && made < n) {
        at[made] = (intptr_t)blocks[made].data;
        rc = type_of(&each[made], &count[made], &blocks[made]);
        made += rc == UL_OK;
    }
    if (rc == UL_OK)
        rc = ul__mpi_check("describe memory", mpi->type_struct(n, count, at, each, type));
    for (int i = 0; i < made; i++)
        if (each[i] != mpi->byte) mpi->type_free(&each[i]);
    if (rc == UL_OK) rc = ul__mpi_check("describe memory", mpi->type_commit(type));
    return rc;
}

/* ---- the exchange ---- */

/* What is posted until all of it is waited for. */
typedef struct round {
    const ul_mpi_way *way;
    void **requests;
    int posted, sends; /* sends: whether what is posted next is */
} round;

static int post(round *now, const block *blocks, int n, int other)
{
    void *const bottom = NULL; /* MPI_BOTTOM */
    const ul_mpi_way *way = now->way;
    void *type, **request = &now->requests[now->posted++];
    if (way->ranks) other = way->ranks[other];
    UL_TRY(type_of_all(&type, blocks, n));
    int rc = now->sends ? mpi->post_send(bottom, 1, type, other, way->tag, way->handle, request)
                        : mpi->post_receive(bottom, 1, type, other, way->tag, way->handle, request);
    mpi->type_free(&type); /* when the message is through */
    return ul__mpi_check(now->sends ? "send" : "receive", rc);
}

/* Posts message number i of those to or from a rank, if there is one: the n parts together where
 * they are few bytes, else a piece of one of them. */
static int post_message(round *now, const ul_cut *cuts, int n, int other, int64_t i)
{
    block blocks[UL_MAX_CUTS];
    int64_t bytes = bytes_of_all(cuts, n, other), each;
    int some = 0, dim;
    if (bytes <= ul__mpi_most_bytes) {
        if (bytes == 0 || i > 0) return UL_OK;
        for (int k = 0; k < n; k++)
            if (bytes_of(&cuts[k], other) > 0) blocks[some++] = block_of(&cuts[k], other);
        return post(now, blocks, some, other);
    }
    for (int k = 0; k < n; k++) {
        int64_t pieces = pieces_of(&dim, &each, &cuts[k], other);
        if (i < pieces) {
            blocks[0] = piece_of(&cuts[k], other, i);
            return post(now, blocks, 1, other);
        }
        i -= pieces;
    }
    return UL_OK;
}

int ul__mpi_exchange(ul_group *g, const ul_cut *to, const ul_cut *from, int n,
                     const ul_mpi_way *way)
{
    int64_t most = 0;
    for (int r = 0; r < g->size; r++) {
        if (r == g->rank) continue;
        int64_t in = messages_of(to, n, r), out = messages_of(from, n, r);
        if (in > most) most = in;
        if (out > most) most = out;
    }
    for (int64_t i = 0; i < most; i++) {
        round now = {way, g->requests, 0, 0};
        for (int step = 1; step < g->size; step++)
            UL_TRY(post_message(&now, to, n, (g->rank - step + g->size) % g->size, i));
        int receives = now.posted;
        now.sends = 1;
        for (int step = 1; step < g->size; step++)
            UL_TRY(post_message(&now, from, n, (g->rank + step) % g->size, i));
        UL_TRY(way->wait(now.posted, receives, now.requests));
    }
    return UL_OK;
}
