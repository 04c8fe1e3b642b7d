/* parts.c - tensors cut along a dim, one part for each rank: packing and unpacking. */
#include <stdio.h>
#include <string.h>

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
    int runs = are_runs(p);
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
    if (at < 78) snprintf(what + at, sizeof what - (size_t)at, "]%s", more);
    int moves = x->storage->device == UL_CPU;
    UL_REQUIRE(!moves || g->comm != &ul__plan, UL_EDEVICE,
               "%s: the other ranks of a pretended world have no values; x %s must be on meta",
               ul_comm_name(kind), ul__shape(x));
    UL_TRY(ul__comm_begin(g, kind, what));
    return moves;
}
