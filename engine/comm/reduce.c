/* reduce.c - reductions for transports that only move bytes.
 *
 * Each element has one rank that sums it, in the order of the ranks and in accumulators, and hands
 * the result to all: so every rank has the same bits, whatever the transport and the sizes. Done
 * in rounds of a few MiB: the memory needed does not grow with the tensor.
 */
#include "comm.h"

enum { ROUND_BYTES = 4 << 20, SMALL_BYTES = 16 << 10 };

static ul_loop loop_of(int64_t n, int operands)
{
    ul_loop l = {.ndim = 1, .shape = {n}};
    for (int i = 0; i < operands; i++) l.stride[i][0] = 1;
    return l;
}

/* y [n] = the reduction of x [parts][n], of which part i begins at x + i step; all of `dtype`.
 * wide: room for n floats where dtype is bf16. */
static int combine(void *y, const char *x, int parts, int64_t step, int64_t n, ul_dtype dtype,
                   ul_reduction how, void *wide)
{
    const ul_kernels *k = ul__kernels_of(UL_CPU, dtype), *f32 = ul__kernels_of(UL_CPU, UL_F32);
    ul_stream *s = ul_cpu_stream();
    ul_loop one = loop_of(n, 2), two = loop_of(n, 3);
    if (dtype == UL_BF16 && how == UL_REDUCE_SUM) {
        UL_TRY(f32->from_bf16(s, wide, x, &one));
        for (int i = 1; i < parts; i++) UL_TRY(k->accumulate(s, wide, x + i * step, n));
        return k->from_f32(s, y, wide, &one);
    }
    int (*const pair)(ul_stream *, void *, const void *, const void *, const ul_loop *) =
        how == UL_REDUCE_SUM   ? k->add
        : how == UL_REDUCE_MAX ? k->maximum
                               : k->minimum;
    if (parts == 1) return k->copy(s, y, x, &one);
    UL_TRY(pair(s, y, x, x + step, &two));
    for (int i = 2; i < parts; i++) UL_TRY(pair(s, y, y, x + i * step, &two));
    return UL_OK;
}

/* Memory for one reduction: where pieces arrive, where bf16 is summed, and offsets. */
typedef struct room {
    ul_tensor *memory;
    char *parts, *wide;
    int64_t *at, *bytes, *from_at, *from_bytes; /* [size] each */
} room;

static int64_t wide_of(int64_t n, ul_dtype dtype)
{
    return dtype == UL_BF16 ? (n * 4 + 63) / 64 * 64 : 0;
}

/* For `size` parts of n elements. */
static int make_room(room *m, ul_device device, int size, int64_t n, ul_dtype dtype)
{
    int64_t parts = (n * ul_dtype_bytes(dtype) * size + 63) / 64 * 64, wide = wide_of(n, dtype);
    int64_t total = parts + wide + 4 * (int64_t)size * (int64_t)sizeof(int64_t);
    *m = (room){0};
    UL_TRY(ul_tensor_new(&m->memory, UL_U8, device, 1, &total));
    if (device == UL_META) return UL_OK;
    m->parts = ul__data(m->memory);
    m->wide = m->parts + parts;
    m->at = (int64_t *)(m->wide + wide);
    m->bytes = m->at + size;
    m->from_at = m->bytes + size;
    m->from_bytes = m->from_at + size;
    return UL_OK;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* How many elements of n one rank sums in one round; all of them where they are few. */
static int64_t share_of(const ul_group *g, int64_t n, ul_dtype dtype)
{
    int64_t e = ul_dtype_bytes(dtype), round = smaller(n, ROUND_BYTES / e);
    return n * e * g->size <= SMALL_BYTES ? n : (round + g->size - 1) / g->size;
}

static int64_t most_of(const ul_group *g, const ul_pieces *p)
{
    int64_t most = 0;
    for (int r = 0; r < g->size; r++) most = larger(most, p->bytes[r]);
    return most;
}

/* The elements of each piece that one round of a reduce_scatter sums. */
static int64_t piece_of(const ul_group *g, const ul_pieces *all, ul_dtype dtype)
{
    int64_t e = ul_dtype_bytes(dtype);
    return smaller(most_of(g, all) / e, larger(1, ROUND_BYTES / e / g->size));
}

/* Every rank gets all and sums for itself: one exchange, for what is small. */
static int reduce_small(ul_group *g, void *data, int64_t n, ul_dtype dtype, ul_reduction how)
{
    int64_t bytes = n * ul_dtype_bytes(dtype);
    room m;
    UL_TRY(make_room(&m, UL_CPU, g->size, n, dtype));
    for (int r = 0; r < g->size; r++) {
        m.at[r] = r * bytes;
        m.bytes[r] = bytes;
    }
    const ul_pieces all = {m.parts, m.at, m.bytes};
    int rc = g->comm->all_gather(g, &all, data);
    if (rc == UL_OK) rc = combine(data, m.parts, g->size, bytes, n, dtype, how, m.wide);
    ul_tensor_free(m.memory);
    return rc;
}

/* One round of an all_reduce: n elements, of which each rank sums its share. */
static int reduce_round(ul_group *g, room *m, char *data, int64_t n, ul_dtype dtype,
                        ul_reduction how)
{
    int64_t e = ul_dtype_bytes(dtype), mine = ul_share(NULL, n, g->size, g->rank);
    for (int r = 0; r < g->size; r++) {
        int64_t first;
        m->from_bytes[r] = e * ul_share(&first, n, g->size, r);
        m->from_at[r] = first * e;
        m->bytes[r] = mine * e;
        m->at[r] = r * mine * e;
    }
    const ul_pieces to = {m->parts, m->at, m->bytes}, from = {data, m->from_at, m->from_bytes};
    UL_TRY(g->comm->all_to_all(g, &to, &from));
    char *result = data + m->from_at[g->rank];
    if (mine > 0) UL_TRY(combine(result, m->parts, g->size, mine * e, mine, dtype, how, m->wide));
    return g->comm->all_gather(g, &from, result);
}

int ul__all_reduce(ul_group *g, void *data, int64_t n, ul_dtype dtype, ul_reduction how)
{
    int64_t e = ul_dtype_bytes(dtype);
    if (n == 0) return UL_OK;
    if (n * e * g->size <= SMALL_BYTES) return reduce_small(g, data, n, dtype, how);
    int64_t round = smaller(n, ROUND_BYTES / e);
    room m;
    UL_TRY(make_room(&m, UL_CPU, g->size, share_of(g, n, dtype), dtype));
    int rc = UL_OK;
    for (int64_t done = 0; done < n && rc == UL_OK; done += round)
        rc = reduce_round(g, &m, (char *)data + done * e, smaller(round, n - done), dtype, how);
    ul_tensor_free(m.memory);
    return rc;
}

int ul__reduce_scatter(ul_group *g, void *mine, const ul_pieces *all, ul_dtype dtype)
{
    int64_t e = ul_dtype_bytes(dtype), most = most_of(g, all), piece = piece_of(g, all, dtype) * e;
    if (most == 0) return UL_OK;
    room m;
    UL_TRY(make_room(&m, UL_CPU, g->size, piece / e, dtype));
    int rc = UL_OK;
    for (int64_t done = 0; done < most && rc == UL_OK; done += piece) {
        int64_t own = larger(0, smaller(piece, all->bytes[g->rank] - done));
        for (int r = 0; r < g->size; r++) {
            m.from_bytes[r] = larger(0, smaller(piece, all->bytes[r] - done));
            m.from_at[r] = m.from_bytes[r] ? all->at[r] + done : all->at[r];
            m.bytes[r] = own;
            m.at[r] = r * own;
        }
        const ul_pieces to = {m.parts, m.at, m.bytes};
        const ul_pieces from = {all->data, m.from_at, m.from_bytes};
        rc = g->comm->all_to_all(g, &to, &from);
        if (rc == UL_OK && own > 0)
            rc = combine((char *)mine + done, m.parts, g->size, own, own / e, dtype, UL_REDUCE_SUM,
                         m.wide);
    }
    ul_tensor_free(m.memory);
    return rc;
}

static int room_on_meta(const ul_group *g, int64_t n, ul_dtype dtype)
{
    room m;
    if (n == 0 || g->size == 1) return UL_OK;
    UL_TRY(make_room(&m, UL_META, g->size, n, dtype));
    ul_tensor_free(m.memory);
    return UL_OK;
}

int ul__all_reduce_on_meta(const ul_group *g, int64_t n, ul_dtype dtype)
{
    return room_on_meta(g, share_of(g, n, dtype), dtype);
}

int ul__reduce_scatter_on_meta(const ul_group *g, const ul_pieces *all, ul_dtype dtype)
{
    return room_on_meta(g, piece_of(g, all, dtype), dtype);
}
