/* nccl.c - NCCL as a transport of tensors on cuda, opened when it is needed: building needs none of
 * its files.
 *
 * All work goes to the one stream of the exchanges, whatever the group: calls of several
 * communicators that ran beside each other could wait for each other for ever. That stream waits
 * for what was computed before, and what is computed later waits for it. Sums are NCCL's own: the
 * same bits on all ranks and, for the same ranks on the same machines, in every run; another number
 * of ranks adds in another order.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../kernels/library.h"
#include "../events.h"
#include "nccl.h"

/* ---- the library ---- */

ul_nccl ul__nccl_calls;
static ul_nccl *const nccl = &ul__nccl_calls;

/* What the structure holds, in its order. */
static const char *const symbols[] = {"ncclGetVersion",
                                      "ncclGetUniqueId",
                                      "ncclCommInitRankConfig",
                                      "ncclCommSplit",
                                      "ncclCommFinalize",
                                      "ncclCommDestroy",
                                      "ncclCommAbort",
                                      "ncclCommGetAsyncError",
                                      "ncclGetErrorString",
                                      "ncclGetLastError",
                                      "ncclGroupStart",
                                      "ncclGroupEnd",
                                      "ncclAllReduce",
                                      "ncclReduce",
                                      "ncclReduceScatter",
                                      "ncclAllGather",
                                      "ncclBroadcast",
                                      "ncclSend",
                                      "ncclRecv",
                                      "ncclAlltoAll"};
enum { N_SYMBOLS = sizeof symbols / sizeof symbols[0], N_NEEDED = N_SYMBOLS - 1 };
enum { BYTES = 1 /* ncclUint8 */, OLDEST = 21800, ALL_TO_ALL_SINCE = 22803 };
_Static_assert(sizeof *nccl == N_SYMBOLS * sizeof(void *), "a name for each symbol");

static int load(int *version)
{
    static const char *const names[] = {"libnccl.so.2", NULL};
    char why[1024];
    void *library = ul_library_open(names, why, sizeof why);
    UL_REQUIRE(library, UL_ECOMM, "%s", why);
    void **slot = (void **)nccl;
    for (int i = 0; i < N_SYMBOLS; i++) slot[i] = dlsym(library, symbols[i]);
    for (int i = 0; i < N_NEEDED; i++)
        UL_REQUIRE(slot[i], UL_ECOMM, "libnccl.so.2 has no %s: it is older than 2.18", symbols[i]);
    UL_REQUIRE(nccl->get_version(version) == UL_NCCL_SUCCESS && *version >= OLDEST, UL_ECOMM,
               "libnccl.so.2 is older than 2.18 (%d)", *version);
    if (*version < ALL_TO_ALL_SINCE) nccl->all_to_all = NULL;
    return UL_OK;
}

int ul__nccl_load(int *version)
{
    static int known;
    if (!known) UL_TRY(load(&known));
    *version = known;
    return UL_OK;
}

/* rc of a function of NCCL, as ours. */
static int check(void *handle, const char *what, int rc)
{
    if (rc == UL_NCCL_SUCCESS) return UL_OK;
    ul__nccl_leave_to_watch();
    const char *more = nccl->last_error(handle); /* NULL will do */
    return ul__fail(UL_ECOMM, "group: NCCL could not %s: %s%s%s", what, nccl->error_string(rc),
                    more && *more ? ": " : "", more ? more : "");
}

int ul__nccl_settle(void *handle, const char *what, int rc)
{
    const struct timespec nap = {0, 20000};
    for (int asked = 0; rc == UL_NCCL_IN_PROGRESS; asked++) {
        int failed = ul__nccl_ask(handle, &rc);
        if (failed) rc = failed;
        if (rc == UL_NCCL_IN_PROGRESS && asked > 100) nanosleep(&nap, NULL);
    }
    return check(handle, what, rc);
}

/* ---- around each call ---- */

static int depth; /* of calls that go at once */

static void *stream(void)
{
    const ul_backend *cuda = ul__cuda();
    return cuda->native(cuda->exchange_stream());
}

/* What was computed before is done before it is sent. */
static int begin(void)
{
    const ul_backend *cuda = ul__cuda();
    if (depth++ > 0) return UL_OK;
    int rc = ul__stream_after(cuda->exchange_stream(), cuda->stream());
    if (rc == UL_OK) rc = check(NULL, "begin a group of calls", nccl->group_start());
    if (rc < 0) depth = 0;
    return rc;
}

/* The log watches the event that is behind it, *arrived; NULL: others follow in the same group. */
static int leave(void **arrived, ul_group *g, const char *what, int rc)
{
    const ul_backend *cuda = ul__cuda();
    *arrived = NULL;
    if (rc != UL_NCCL_SUCCESS && rc != UL_NCCL_IN_PROGRESS) {
        int bad = check(g->device_handle, what, rc);
        nccl->group_end();
        depth = 0;
        return bad;
    }
    if (--depth > 0) return UL_OK;
    UL_TRY(ul__nccl_settle(g->device_handle, what, nccl->group_end()));
    void **watched = ul__watch_event();
    if (!*watched) UL_TRY(ul__event_take(watched, cuda));
    UL_TRY(cuda->event_record(*watched, cuda->exchange_stream()));
    ul__watch_recorded();
    *arrived = *watched;
    return UL_OK;
}

/* And what is computed later is done when it has arrived. */
static int end(ul_group *g, const char *what, int rc)
{
    void *arrived;
    UL_TRY(leave(&arrived, g, what, rc));
    return arrived ? ul__cuda()->event_wait(ul__cuda()->stream(), arrived) : UL_OK;
}

/* The first of two failures. */
static int both(int a, int b) { return a != UL_NCCL_SUCCESS && a != UL_NCCL_IN_PROGRESS ? a : b; }

/* ---- the table ---- */

static int type_of(ul_dtype dtype)
{
    static const int types[] = {
        [UL_F32] = 7, [UL_BF16] = 9, [UL_F64] = 8, [UL_I32] = 2, [UL_I64] = 4, [UL_U8] = 1};
    return types[dtype];
}

static int op_of(ul_reduction how)
{
    return how == UL_REDUCE_SUM ? 0 : how == UL_REDUCE_MAX ? 2 : 3;
}

static char *piece(const ul_pieces *p, int r) { return p->data + p->at[r]; }

/* Whether all pieces have the same size and lie one behind the other. */
static int is_even(const ul_pieces *p, int size)
{
    for (int r = 1; r < size; r++)
        if (p->bytes[r] != p->bytes[0] || p->at[r] != p->at[0] + r * p->bytes[0]) return 0;
    return 1;
}

static int all_reduce(ul_group *g, void *data, int64_t n, ul_dtype dtype, ul_reduction how)
{
    if (n == 0) return UL_OK;
    UL_TRY(begin());
    return end(g, "all_reduce",
               nccl->all_reduce(data, data, (size_t)n, type_of(dtype), op_of(how), g->device_handle,
                                stream()));
}

static int reduce_scatter(ul_group *g, void *mine, const ul_pieces *all, ul_dtype dtype)
{
    size_t e = (size_t)ul_dtype_bytes(dtype);
    int rc = UL_NCCL_SUCCESS, type = type_of(dtype);
    UL_TRY(begin());
    if (is_even(all, g->size)) {
        size_t n = (size_t)all->bytes[0] / e;
        if (n > 0)
            rc = nccl->reduce_scatter(piece(all, 0), mine, n, type, 0, g->device_handle, stream());
        return end(g, "reduce_scatter", rc);
    }
    for (int r = 0; r < g->size; r++)
        if (all->bytes[r] > 0)
            rc = both(rc, nccl->reduce(piece(all, r), r == g->rank ? mine : piece(all, r),
                                       (size_t)all->bytes[r] / e, type, 0, r, g->device_handle,
                                       stream()));
    return end(g, "reduce_scatter", rc);
}

static int all_gather(ul_group *g, const ul_pieces *all, const void *mine)
{
    int rc = UL_NCCL_SUCCESS;
    UL_TRY(begin());
    if (is_even(all, g->size)) {
        if (all->bytes[0] > 0)
            rc = nccl->all_gather(mine, piece(all, 0), (size_t)all->bytes[0], BYTES,
                                  g->device_handle, stream());
        return end(g, "all_gather", rc);
    }
    for (int r = 0; r < g->size; r++)
        if (all->bytes[r] > 0)
            rc = both(rc,
                      nccl->broadcast(r == g->rank ? mine : piece(all, r), piece(all, r),
                                      (size_t)all->bytes[r], BYTES, r, g->device_handle, stream()));
    return end(g, "all_gather", rc);
}

/* What stays on this rank is copied, not sent. */
static int all_to_all(ul_group *g, const ul_pieces *to, const ul_pieces *from)
{
    int rc = UL_NCCL_SUCCESS;
    UL_TRY(begin());
    for (int step = 1; step < g->size; step++) {
        int source = (g->rank - step + g->size) % g->size, target = (g->rank + step) % g->size;
        if (from->bytes[target] > 0)
            rc = both(rc, nccl->send(piece(from, target), (size_t)from->bytes[target], BYTES,
                                     target, g->device_handle, stream()));
        if (to->bytes[source] > 0)
            rc = both(rc, nccl->receive(piece(to, source), (size_t)to->bytes[source], BYTES, source,
                                        g->device_handle, stream()));
    }
    UL_TRY(end(g, "all_to_all", rc));
    return ul__copy_on_cuda(piece(to, g->rank), piece(from, g->rank), to->bytes[g->rank]);
}

/* All ranks have the same version of NCCL: else it would not have begun. */
static int can_swap(void) { return nccl->all_to_all != NULL; }

static int swap(ul_group *g, void *to, const void *from, int64_t bytes)
{
    UL_TRY(begin());
    return end(g, "all_to_all",
               nccl->all_to_all(from, to, (size_t)bytes, BYTES, g->device_handle, stream()));
}

static int broadcast(ul_group *g, void *data, int64_t bytes, int root)
{
    if (bytes == 0) return UL_OK;
    UL_TRY(begin());
    return end(g, "broadcast",
               nccl->broadcast(data, data, (size_t)bytes, BYTES, root, g->device_handle, stream()));
}

/* Two ranks alone may be on their way to each other before the others have opened NCCL with them:
 * where there is another transport, it carries what goes from one to one.
 */
static int send(ul_group *g, const void *data, int64_t bytes, int to)
{
    if (g->comm != &ul__nccl_host) return ul__staged.send(g, data, bytes, to);
    if (bytes == 0) return UL_OK;
    UL_TRY(begin());
    return end(g, "send", nccl->send(data, (size_t)bytes, BYTES, to, g->device_handle, stream()));
}

static int receive(ul_group *g, void *data, int64_t bytes, int from)
{
    if (g->comm != &ul__nccl_host) return ul__staged.receive(g, data, bytes, from);
    if (bytes == 0) return UL_OK;
    UL_TRY(begin());
    return end(g, "receive",
               nccl->receive(data, (size_t)bytes, BYTES, from, g->device_handle, stream()));
}

static int together(ul_group *g, int begins)
{
    if (begins) return begin();
    return end(g, "exchange", UL_NCCL_SUCCESS);
}

/* The event is the caller's: the log uses its own again. */
static int together_later(ul_group *g, void *event)
{
    void *arrived;
    UL_TRY(leave(&arrived, g, "exchange", UL_NCCL_SUCCESS));
    return ul__cuda()->event_record(event, ul__cuda()->exchange_stream());
}

const ul_comm ul__nccl = {.name = "nccl",
                          .all_reduce = all_reduce,
                          .reduce_scatter = reduce_scatter,
                          .all_gather = all_gather,
                          .all_to_all = all_to_all,
                          .swap = swap,
                          .can_swap = can_swap,
                          .together = together,
                          .together_later = together_later,
                          .broadcast = broadcast,
                          .send = send,
                          .receive = receive};
