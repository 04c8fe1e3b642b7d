/* parts.c - tensors cut along a dim, one part for each rank: packing and unpacking. */
#include <stdio.h>
#include <string.h>

#include "../events.h"
#include "parts.h"

int64_t ul_share(int64_t *first, int64_t n, int size, int rank)
{
    int64_t each = n / size, more = n % size;
    if (first) *first = rank * each + (rank < more ? rank : more);
    return each + (rank < more);
}

ul_tensor ul__part(const ul_parts *p, int r)
{
    ul_tensor part = *p->x;
    part.variable = NULL;
    part.offset += p->first[r] * part.stride[p->dim];
    part.shape[p->dim] = p->count[r];
    return part;
}

/* Whether each part is a run of memory in row-major order. */
static int are_runs(const ul_parts *p)
{
    if (!ul_tensor_is_contiguous(p->x)) return 0;
    for (int d = 0; d < p->dim; d++)
        if (p->x->shape[d] != 1) return 0;
    return 1;
}

static int follow_each_other(const ul_parts *p, int size)
{
    for (int r = 1; r < size; r++)
        if (p->first[r] != p->first[r - 1] + p->count[r - 1]) return 0;
    return 1;
}

/* What looks like the part for rank r, packed. */
static ul_tensor packed_part(const ul_packed *packed, const ul_parts *p, int r)
{
    ul_tensor part = ul__part(p, r);
    part.storage = packed->memory->storage;
    part.offset = packed->pieces.at[r] / ul_dtype_bytes(part.dtype);
    ul__contiguous_strides(part.stride, part.ndim, part.shape);
    return part;
}

int ul__pack(ul_packed *packed, const ul_parts *p, int size, int skip, int fill)
{
    int64_t tables = 2 * (int64_t)size, total = 0, row = ul_dtype_bytes(p->x->dtype);
    *packed = (ul_packed){{NULL, NULL, NULL}, NULL, NULL};
    UL_TRY(ul_tensor_new(&packed->tables, UL_I64, UL_CPU, 1, &tables));
    int64_t *at = ul__data(packed->tables), *bytes = at + size;
    int runs = are_runs(p) && (skip >= 0 || follow_each_other(p, size));
    for (int d = 0; d < p->x->ndim; d++)
        if (d != p->dim) row *= p->x->shape[d];
    for (int r = 0; r < size; r++) {
        bytes[r] = r == skip ? 0 : p->count[r] * row;
        at[r] = runs ? p->first[r] * row : total;
        total += bytes[r];
    }
    packed->pieces = (ul_pieces){ul__data(p->x), at, bytes};
    if (runs) return UL_OK;
    int rc = ul_tensor_new(&packed->memory, UL_U8, p->x->storage->device, 1, &total);
    if (rc == UL_OK) packed->pieces.data = ul__data(packed->memory);
    for (int r = 0; r < size && fill && rc == UL_OK; r++) {
        if (r == skip) continue;
        ul_tensor from = ul__part(p, r), to = packed_part(packed, p, r);
        rc = ul__assign(&to, &from);
    }
    if (rc < 0) ul__packed_free(packed);
    return rc;
}

int ul__unpack(const ul_packed *packed, const ul_parts *p, int size, int skip)
{
    for (int r = 0; r < size && packed->memory; r++) {
        if (r == skip) continue;
        ul_tensor to = ul__part(p, r), from = packed_part(packed, p, r);
        UL_TRY(ul__assign(&to, &from));
    }
    return UL_OK;
}

void ul__packed_free(ul_packed *packed)
{
    ul_tensor_free(packed->memory);
    ul_tensor_free(packed->tables);
    *packed = (ul_packed){{NULL, NULL, NULL}, NULL, NULL};
}

/* ---- exchanging parts ---- */

/* Whether the transport has a call for parts of equal size on all ranks, and these are such. All
 * ranks must find the same: along two dims they know the same counts; along one, each knows its own
 * alone.
 */
static int are_swapped(const ul_group *g, const ul_parts *to, const ul_parts *from, int n)
{
    const ul_comm *comm = ul__comm_on(g, to->x);
    if (g->size == 1 || !comm->swap || !comm->can_swap()) return 0;
    for (int i = 0; i < n; i++) {
        if (to[i].dim == from[i].dim || ul_tensor_size(to[i].x) == 0) return 0;
        for (int r = 0; r < g->size; r++)
            if (to[i].count[r] != to[i].count[0] || from[i].count[r] != from[i].count[0]) return 0;
    }
    return 1;
}

static int send_one(ul_group *g, const ul_comm *comm, const ul_pieces *in, const ul_pieces *out,
                    int swaps)
{
    if (!swaps) return comm->all_to_all(g, in, out);
    return comm->swap(g, in->data + in->at[0], out->data + out->at[0], in->bytes[0]);
}

/* later NULL: what is computed next waits for it */
static int send_packed(ul_group *g, const ul_comm *comm, const ul_packed *in, const ul_packed *out,
                       int n, int swaps, void *later)
{
    if (comm->together) UL_TRY(comm->together(g, 1));
    for (int i = 0; i < n; i++) UL_TRY(send_one(g, comm, &in[i].pieces, &out[i].pieces, swaps));
    if (later) return comm->together_later(g, later);
    return comm->together ? comm->together(g, 0) : UL_OK;
}

/* Nobody else gets this memory while it is sent or written to. */
static int touch(const ul_packed *packed, const ul_tensor *x)
{
    ul_stream *stream = ul__cuda()->exchange_stream();
    return ul__touch(packed->memory ? packed->memory : x, stream);
}

/* For transports that cannot do it without. skip: this rank, whose own part does not go there and
 * back, or -1. */
static int send_parts(ul_packed *in, ul_group *g, const ul_parts *to, const ul_parts *from, int n,
                      int skip, int moves, void *later)
{
    ul_packed out[UL_MAX_CUTS];
    int outs = 0, rc = UL_OK;
    memset(in, 0, (size_t)n * sizeof *in);
    while (rc == UL_OK && outs < n) {
        rc = ul__pack(&out[outs], &from[outs], g->size, skip, 1);
        outs++;
    }
    for (int i = 0; i < n && rc == UL_OK; i++) rc = ul__pack(&in[i], &to[i], g->size, skip, 0);
    if (rc == UL_OK && moves)
        rc = send_packed(g, ul__comm_on(g, to->x), in, out, n, skip < 0, later);
    for (int i = 0; i < n && rc == UL_OK && later; i++) {
        rc = touch(&out[i], from[i].x);
        if (rc == UL_OK) rc = touch(&in[i], to[i].x);
    }
    if (rc < 0 && later) ul__stream_after(ul__cuda()->stream(), ul__cuda()->exchange_stream());
    for (int i = 0; i < outs; i++) ul__packed_free(&out[i]);
    return rc;
}

/* Puts what has arrived in its place, if rc says so. */
static int take_in(ul_packed *in, const ul_parts *to, int n, int size, int skip, int rc)
{
    for (int i = 0; i < n; i++) {
        if (rc == UL_OK) rc = ul__unpack(&in[i], &to[i], size, skip);
        ul__packed_free(&in[i]);
    }
    return rc;
}

static int exchange_packed(ul_group *g, const ul_parts *to, const ul_parts *from, int n, int skip,
                           int moves)
{
    ul_packed in[UL_MAX_CUTS];
    int rc = send_parts(in, g, to, from, n, skip, moves, NULL);
    return take_in(in, to, n, g->size, skip, rc);
}

/* Parts whose memory is shorter runs than this many bytes are packed all the same: a kernel copies
 * them faster than a transport picks them up. */
enum { SHORT_RUN = 64 };

static int is_packed(const ul_parts *p, int size)
{
    int64_t run = ul_dtype_bytes(p->x->dtype), most = 0;
    for (int r = 0; r < size; r++)
        if (p->count[r] > most) most = p->count[r];
    int64_t stride = 1;
    for (int d = p->x->ndim - 1; d >= 0 && run < SHORT_RUN; d--) {
        int64_t n = d == p->dim ? most : p->x->shape[d];
        if (n != 1 && p->x->stride[d] != stride) break;
        stride *= p->x->shape[d];
        run *= n;
    }
    return run < SHORT_RUN;
}

static int cut_of(ul_cut *cut, ul_packed *packed, const ul_parts *p, const ul_group *g, int fill)
{
    const ul_tensor *x = p->x;
    *packed = (ul_packed){{NULL, NULL, NULL}, NULL, NULL};
    *cut = (ul_cut){ul__data(x), ul_dtype_bytes(x->dtype),
                    x->ndim,     p->dim,
                    x->shape,    x->stride,
                    p->first,    p->count,
                    NULL};
    if (!is_packed(p, g->size)) return UL_OK;
    UL_TRY(ul__pack(packed, p, g->size, g->rank, fill));
    cut->data = packed->pieces.data;
    cut->at = packed->pieces.at;
    return UL_OK;
}

static int exchange_cut(ul_group *g, const ul_parts *to, const ul_parts *from, int n, int moves)
{
    ul_packed in[UL_MAX_CUTS], out[UL_MAX_CUTS];
    ul_cut cuts_in[UL_MAX_CUTS], cuts_out[UL_MAX_CUTS];
    int ins = 0, outs = 0, rc = UL_OK;
    while (rc == UL_OK && outs < n) {
        rc = cut_of(&cuts_out[outs], &out[outs], &from[outs], g, 1);
        outs++;
    }
    while (rc == UL_OK && ins < n) {
        rc = cut_of(&cuts_in[ins], &in[ins], &to[ins], g, 0);
        ins++;
    }
    if (rc == UL_OK && moves) rc = ul__comm_on(g, to->x)->exchange(g, cuts_in, cuts_out, n);
    for (int i = 0; i < outs; i++) ul__packed_free(&out[i]);
    for (int i = 0; i < ins; i++) {
        if (rc == UL_OK) rc = ul__unpack(&in[i], &to[i], g->size, g->rank);
        ul__packed_free(&in[i]);
    }
    return rc;
}

/* What stays on this rank, unless it goes with the others; *skip: what is there then. */
static int copy_own(int *skip, const ul_group *g, const ul_parts *to, const ul_parts *from, int n)
{
    *skip = are_swapped(g, to, from, n) ? -1 : g->rank;
    if (*skip < 0) return UL_OK;
    for (int i = 0; i < n; i++) {
        ul_tensor mine = ul__part(&from[i], g->rank), target = ul__part(&to[i], g->rank);
        UL_TRY(ul__assign(&target, &mine));
    }
    return UL_OK;
}

int ul__exchange(ul_group *g, const ul_parts *to, const ul_parts *from, int n, int moves)
{
    int skip;
    UL_TRY(copy_own(&skip, g, to, from, n));
    if (g->size == 1) return UL_OK;
    if (ul__comm_on(g, to->x)->exchange) return exchange_cut(g, to, from, n, moves);
    return exchange_packed(g, to, from, n, skip, moves);
}

/* ---- in two steps ---- */

int ul__exchange_begin(ul_flight *f, ul_group *g, const ul_parts *to, const ul_parts *from, int n,
                       int moves)
{
    *f = (ul_flight){.size = g->size};
    if (g->size == 1 || !moves || !ul__comm_on(g, to->x)->together_later)
        return ul__exchange(g, to, from, n, moves);
    UL_TRY(ul__event_take(&f->event, ul__cuda()));
    int rc = copy_own(&f->skip, g, to, from, n);
    if (rc == UL_OK) rc = send_parts(f->in, g, to, from, n, f->skip, moves, f->event);
    for (; f->n < n && rc == UL_OK; f->n++) {
        f->to[f->n] = to[f->n];
        rc = ul__alias(&f->to[f->n].x, to[f->n].x);
        if (rc < 0) break;
    }
    if (rc < 0) {
        for (int i = f->n; i < n; i++) ul__packed_free(&f->in[i]);
        ul__exchange_drop(f);
    }
    return rc;
}

int ul__exchange_end(ul_flight *f)
{
    int rc = UL_OK;
    if (f->event) rc = ul__cuda()->event_wait(ul__cuda()->stream(), f->event);
    rc = take_in(f->in, f->to, f->n, f->size, f->skip, rc);
    ul__exchange_drop(f);
    return rc;
}

void ul__exchange_drop(ul_flight *f)
{
    for (int i = 0; i < f->n; i++) {
        ul__packed_free(&f->in[i]);
        ul_tensor_free(f->to[i].x);
    }
    ul__event_give_back(f->event);
    *f = (ul_flight){0};
}

const ul_comm *ul__comm_on(const ul_group *g, const ul_tensor *x)
{
    return ul__comm_of(g, x->storage->device);
}

int ul__collective(ul_group *g, ul_comm_kind kind, const ul_tensor *x, int dim, const char *more)
{
    char what[80];
    int at = snprintf(what, sizeof what, "%s [", ul_dtype_name(x->dtype));
    for (int d = 0; d < x->ndim && at < 70; d++) {
        const char *comma = d ? ", " : "";
        if (d == dim)
            at += snprintf(what + at, sizeof what - (size_t)at, "%s*", comma);
        else
            at += snprintf(what + at, sizeof what - (size_t)at, "%s%lld", comma,
                           (long long)x->shape[d]);
    }
    const char *where = x->storage->device == UL_CUDA ? " on cuda" : "";
    if (at < 78) snprintf(what + at, sizeof what - (size_t)at, "]%s%s", where, more);
    int moves = x->storage->device != UL_META;
    UL_REQUIRE(!moves || g->comm != &ul__plan, UL_EDEVICE,
               "%s: the other ranks of a pretended world have no values; x %s must be on meta",
               ul_comm_name(kind), ul__shape(x));
    int pair = kind == UL_COMM_SEND || kind == UL_COMM_RECEIVE;
    if (x->storage->device == UL_CUDA && !pair) UL_TRY(ul__device_ready(g));
    UL_TRY(ul__comm_begin(g, kind, what));
    return moves;
}
