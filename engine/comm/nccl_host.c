/* nccl_host.c - the host's memory by way of the device, for a world that NCCL alone connects: what
 * ranks tell each other are numbers, names and tensors that are on the cpu.
 */
#include <string.h>

#include "nccl.h"

/* The device's memory for all pieces, one behind the other; tables in the host's. */
typedef struct copies {
    ul_tensor *memory, *tables; /* owned */
    ul_pieces pieces;
} copies;

static int make_room(copies *c, const ul_pieces *p, int size)
{
    int64_t tables = 2 * (int64_t)size, total = 0;
    for (int r = 0; r < size; r++) total += p->bytes[r];
    *c = (copies){0};
    UL_TRY(ul_tensor_new(&c->tables, UL_I64, UL_CPU, 1, &tables));
    int rc = ul_tensor_new(&c->memory, UL_U8, UL_CUDA, 1, &total);
    if (rc < 0) {
        ul_tensor_free(c->tables);
        return rc;
    }
    int64_t *at = ul__data(c->tables), *bytes = at + size;
    for (int r = 0; r < size; r++) {
        bytes[r] = p->bytes[r];
        at[r] = r ? at[r - 1] + bytes[r - 1] : 0;
    }
    c->pieces = (ul_pieces){ul__data(c->memory), at, bytes};
    return UL_OK;
}

static void free_room(copies *c)
{
    ul_tensor_free(c->memory);
    ul_tensor_free(c->tables);
}

static char *piece(const ul_pieces *p, int r) { return p->data + p->at[r]; }

static int write_piece(const copies *c, int r, const void *host)
{
    int64_t bytes = c->pieces.bytes[r];
    return bytes > 0 ? ul__cuda()->write(piece(&c->pieces, r), host, bytes) : UL_OK;
}

static int read_pieces(const copies *c, const ul_pieces *p, int size)
{
    for (int r = 0; r < size; r++)
        if (p->bytes[r] > 0)
            UL_TRY(ul__cuda()->read(piece(p, r), piece(&c->pieces, r), p->bytes[r]));
    return UL_OK;
}

static int all_gather(ul_group *g, const ul_pieces *gathered, const void *mine)
{
    if (g->size == 1) return ul__self.all_gather(g, gathered, mine);
    copies c;
    UL_TRY(make_room(&c, gathered, g->size));
    int rc = write_piece(&c, g->rank, mine);
    if (rc == UL_OK) rc = ul__nccl.all_gather(g, &c.pieces, piece(&c.pieces, g->rank));
    if (rc == UL_OK) rc = read_pieces(&c, gathered, g->size);
    free_room(&c);
    return rc;
}

static int all_to_all(ul_group *g, const ul_pieces *to, const ul_pieces *from)
{
    if (g->size == 1) return ul__self.all_to_all(g, to, from);
    copies in, out;
    UL_TRY(make_room(&out, from, g->size));
    int rc = make_room(&in, to, g->size);
    if (rc == UL_OK) {
        for (int r = 0; r < g->size && rc == UL_OK; r++) rc = write_piece(&out, r, piece(from, r));
        if (rc == UL_OK) rc = ul__nccl.all_to_all(g, &in.pieces, &out.pieces);
        if (rc == UL_OK) rc = read_pieces(&in, to, g->size);
        free_room(&in);
    }
    free_room(&out);
    return rc;
}

/* Runs one of those that take one piece. */
typedef int one_piece(ul_group *g, void *data, int64_t bytes, int other);

static int run(one_piece *call, ul_group *g, void *host, int64_t bytes, int other, int reads,
               int writes)
{
    if (bytes == 0) return UL_OK;
    ul_tensor *memory;
    UL_TRY(ul_tensor_new(&memory, UL_U8, UL_CUDA, 1, &bytes));
    void *data = ul__data(memory);
    int rc = reads ? ul__cuda()->write(data, host, bytes) : UL_OK;
    if (rc == UL_OK) rc = call(g, data, bytes, other);
    if (rc == UL_OK && writes) rc = ul__cuda()->read(host, data, bytes);
    ul_tensor_free(memory);
    return rc;
}

static int broadcast(ul_group *g, void *data, int64_t bytes, int root)
{
    if (g->size == 1) return UL_OK;
    return run(ul__nccl.broadcast, g, data, bytes, root, g->rank == root, g->rank != root);
}

static int send_on(ul_group *g, void *data, int64_t bytes, int to)
{
    return ul__nccl.send(g, data, bytes, to);
}

static int send(ul_group *g, const void *data, int64_t bytes, int to)
{
    return run(send_on, g, (void *)(uintptr_t)data, bytes, to, 1, 0);
}

static int receive(ul_group *g, void *data, int64_t bytes, int from)
{
    return run(ul__nccl.receive, g, data, bytes, from, 0, 1);
}

/* Nothing of NCCL's waits for the host: reading what has come from all does. */
static int barrier(ul_group *g)
{
    int64_t mine = 1;
    return g->size > 1 ? ul__comm_numbers(g, g->offsets, &mine, 1) : UL_OK;
}

static int split(ul_group *out, ul_group *g, const int *colors, int key)
{
    int64_t *keys = ul__alloc((size_t)g->size * sizeof *keys), mine = key;
    UL_REQUIRE(keys, UL_ENOMEM, "split: out of memory");
    int rc = ul__comm_numbers(g, keys, &mine, 1);
    out->size = out->rank = 0;
    for (int r = 0; r < g->size && rc == UL_OK; r++) { /* those of its color, by key and rank */
        if (colors[r] != colors[g->rank] || colors[r] < 0) continue;
        out->size++;
        out->rank += keys[r] < mine || (keys[r] == mine && r < g->rank);
    }
    ul__release(keys);
    return rc;
}

static void end(int status) { (void)status; } /* nccl_world.c ends all communicators */

const ul_comm ul__nccl_host = {.name = "nccl",
                               .all_reduce = ul__all_reduce,
                               .reduce_scatter = ul__reduce_scatter,
                               .all_gather = all_gather,
                               .all_to_all = all_to_all,
                               .broadcast = broadcast,
                               .send = send,
                               .receive = receive,
                               .barrier = barrier,
                               .split = split,
                               .end = end};
