/* staged.c - tensors on a device among ranks whose transport knows the host's memory alone: what is
 * sent is copied there first, and what has arrived is copied back.
 *
 * So ranks may share one GPU, which NCCL refuses. Pieces lie in pinned memory of the host one
 * behind the other, wherever they are on the device, and are copied in the order of the stream that
 * computes: the host waits for what it sends, and for memory that is used again. A group of one
 * rank copies from device to device.
 */
#include <string.h>

#include "../off_device.h"
#include "comm.h"

enum { ROUND_BYTES = 64 << 20 }; /* of an all_reduce */

/* Pinned memory that no copy is under way of. */
static int new_memory(ul_tensor **memory, ul_dtype dtype, int64_t n)
{
    UL_TRY(ul__off_device_new(memory, dtype, UL_CUDA, 1, &n));
    int rc = ul__slot_finish((*memory)->storage->slot);
    if (rc < 0) ul_tensor_free(*memory);
    return rc;
}

/* `host` lies in memory; has_arrived() waits for all of it. */
static int to_host(const ul_tensor *memory, const char *host, const void *data, int64_t bytes)
{
    ul_slot *slot = memory->storage->slot;
    return ul__slot_store(slot, host - slot->data, data, bytes, ul__cuda()->stream());
}

static int has_arrived(const ul_tensor *memory) { return ul__slot_finish(memory->storage->slot); }

static int to_device(void *data, const ul_tensor *memory, const char *host, int64_t bytes)
{
    ul_slot *slot = memory->storage->slot;
    return ul__slot_load(slot, host - slot->data, data, bytes, ul__cuda()->stream());
}

int ul__copy_on_cuda(void *to, const void *from, int64_t bytes)
{
    const ul_loop l = {.ndim = 1, .shape = {bytes}, .stride = {{1}, {1}}};
    if (bytes == 0 || to == from) return UL_OK;
    return ul__kernels_of(UL_CUDA, UL_U8)->copy(ul__cuda()->stream(), to, from, &l);
}

/* ---- pieces ---- */

/* The host's memory for all pieces. */
typedef struct copies {
    ul_tensor *memory; /* owned */
    ul_pieces pieces;
} copies;

static int make_room(copies *c, const ul_pieces *p, int size)
{
    int64_t tables = 2 * size * (int64_t)sizeof(int64_t), total = (tables + 63) / 64 * 64;
    int64_t first = total;
    for (int r = 0; r < size; r++) total += p->bytes[r];
    UL_TRY(new_memory(&c->memory, UL_U8, total));
    int64_t *at = ul__data(c->memory), *bytes = at + size;
    c->pieces = (ul_pieces){(char *)ul__data(c->memory), at, bytes};
    for (int r = 0; r < size; r++) {
        at[r] = first;
        bytes[r] = p->bytes[r];
        first += bytes[r];
    }
    return UL_OK;
}

static char *piece(const ul_pieces *p, int r) { return p->data + p->at[r]; }

/* The same pieces, copied. */
static int stage(copies *c, const ul_pieces *p, int size)
{
    UL_TRY(make_room(c, p, size));
    int rc = UL_OK;
    for (int r = 0; r < size && rc == UL_OK; r++)
        rc = to_host(c->memory, piece(&c->pieces, r), piece(p, r), p->bytes[r]);
    if (rc == UL_OK) rc = has_arrived(c->memory);
    if (rc < 0) ul_tensor_free(c->memory);
    return rc;
}

static int unstage(const copies *c, const ul_pieces *p, int size)
{
    for (int r = 0; r < size; r++)
        UL_TRY(to_device(piece(p, r), c->memory, piece(&c->pieces, r), p->bytes[r]));
    return UL_OK;
}

/* ---- the table ---- */

static int all_reduce(ul_group *g, void *data, int64_t n, ul_dtype dtype, ul_reduction how)
{
    int64_t e = ul_dtype_bytes(dtype), round = ROUND_BYTES / e;
    if (g->size == 1 || n == 0) return UL_OK;
    if (round > n) round = n;
    ul_tensor *memory;
    UL_TRY(new_memory(&memory, dtype, round));
    char *host = ul__data(memory);
    int rc = UL_OK;
    for (int64_t done = 0; done < n && rc == UL_OK; done += round) {
        int64_t some = n - done < round ? n - done : round;
        char *at = (char *)data + done * e;
        rc = to_host(memory, host, at, some * e);
        if (rc == UL_OK) rc = has_arrived(memory);
        if (rc == UL_OK) rc = g->comm->all_reduce(g, host, some, dtype, how);
        if (rc == UL_OK) rc = to_device(at, memory, host, some * e);
    }
    ul_tensor_free(memory);
    return rc;
}

static int reduce_scatter(ul_group *g, void *mine, const ul_pieces *all, ul_dtype dtype)
{
    int64_t bytes = all->bytes[g->rank];
    if (g->size == 1) return ul__copy_on_cuda(mine, piece(all, 0), bytes);
    copies c;
    UL_TRY(stage(&c, all, g->size));
    char *own = piece(&c.pieces, g->rank);
    int rc = g->comm->reduce_scatter(g, own, &c.pieces, dtype);
    if (rc == UL_OK) rc = to_device(mine, c.memory, own, bytes);
    ul_tensor_free(c.memory);
    return rc;
}

static int all_gather(ul_group *g, const ul_pieces *all, const void *mine)
{
    if (g->size == 1) return ul__copy_on_cuda(piece(all, 0), mine, all->bytes[0]);
    copies c;
    UL_TRY(make_room(&c, all, g->size));
    char *own = piece(&c.pieces, g->rank);
    int rc = to_host(c.memory, own, mine, all->bytes[g->rank]);
    if (rc == UL_OK) rc = has_arrived(c.memory);
    if (rc == UL_OK) rc = g->comm->all_gather(g, &c.pieces, own);
    if (rc == UL_OK) rc = unstage(&c, all, g->size);
    ul_tensor_free(c.memory);
    return rc;
}

static int all_to_all(ul_group *g, const ul_pieces *to, const ul_pieces *from)
{
    if (g->size == 1) return ul__copy_on_cuda(piece(to, 0), piece(from, 0), to->bytes[0]);
    copies out, in;
    UL_TRY(stage(&out, from, g->size));
    int rc = make_room(&in, to, g->size);
    if (rc == UL_OK) {
        rc = g->comm->all_to_all(g, &in.pieces, &out.pieces);
        if (rc == UL_OK) rc = unstage(&in, to, g->size);
        ul_tensor_free(in.memory);
    }
    ul_tensor_free(out.memory);
    return rc;
}

/* Runs one of those that take one piece of memory. reads, writes: whether the transport does. */
typedef int one_piece(ul_group *g, void *data, int64_t bytes, int other);

static int run(one_piece *call, ul_group *g, void *data, int64_t bytes, int other, int reads,
               int writes)
{
    ul_tensor *memory;
    UL_TRY(new_memory(&memory, UL_U8, bytes));
    char *host = ul__data(memory);
    int rc = reads ? to_host(memory, host, data, bytes) : UL_OK;
    if (rc == UL_OK) rc = has_arrived(memory);
    if (rc == UL_OK) rc = call(g, host, bytes, other);
    if (rc == UL_OK && writes) rc = to_device(data, memory, host, bytes);
    ul_tensor_free(memory);
    return rc;
}

static int broadcast(ul_group *g, void *data, int64_t bytes, int root)
{
    if (g->size == 1) return UL_OK;
    return run(g->comm->broadcast, g, data, bytes, root, g->rank == root, g->rank != root);
}

static int send_host(ul_group *g, void *data, int64_t bytes, int to)
{
    return g->comm->send(g, data, bytes, to);
}

static int send(ul_group *g, const void *data, int64_t bytes, int to)
{
    return run(send_host, g, (void *)(uintptr_t)data, bytes, to, 1, 0);
}

static int receive(ul_group *g, void *data, int64_t bytes, int from)
{
    return run(g->comm->receive, g, data, bytes, from, 0, 1);
}

/* What is no tensor, as numbers and barriers, is the other transport's. */
const ul_comm ul__staged = {.name = "staged",
                            .all_reduce = all_reduce,
                            .reduce_scatter = reduce_scatter,
                            .all_gather = all_gather,
                            .all_to_all = all_to_all,
                            .broadcast = broadcast,
                            .send = send,
                            .receive = receive};
