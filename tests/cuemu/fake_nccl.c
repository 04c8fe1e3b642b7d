/* fake_nccl.c - the functions of NCCL that the engine calls, among processes of one machine, for
 * tests: device memory is the host's there. Each rank has a socket to each other one.
 *
 * Strict: each message says what it belongs to, and what does not fit is told and never ends; two
 * ranks of one device are refused; so is a communicator that was given up. As with NCCL, a peer
 * that is gone shows in ncclCommGetAsyncError() alone, while the call hangs until ncclCommAbort().
 *
 *   FAKE_NCCL_VERSION=22703   what it says it is
 *   FAKE_NCCL_FAIL=1,5        an error on rank 1 at its 5th call
 *   FAKE_NCCL_STUCK=1,5       rank 1's 5th call is in progress for ever
 *   FAKE_NCCL_ID=none         no rank can make an id
 *   FAKE_NCCL_LOG=file        a line for each call of rank 0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../../kernels/backend.h"
#include "fake_nccl_sums.h"

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS, CUDA_ERROR, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS };
enum { MOST_RANKS = 16, MOST_CALLS = 256 };

typedef struct id {
    char bytes[128];
} id;

typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking, a, b, c;
    const char *net;
    int split_share;
} config;

typedef struct comm {
    int size, rank, fds[MOST_RANKS], blocking;
    uint64_t context, splits;
    volatile int failed, aborted;
    int pending; /* the first question is answered by "in progress" */
    int stuck;   /* all are */
    char error[256];
} comm;

/* What precedes each message. */
typedef struct header {
    uint64_t context, bytes;
    int kind, dtype, op, root;
} header;

enum { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECEIVE, ALL_TO_ALL };
static const char *const kinds[] = {"all_reduce", "reduce", "reduce_scatter", "all_gather",
                                    "broadcast",  "send",   "receive",        "all_to_all"};

static int fail(comm *c, int code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(c->error, sizeof c->error, format, list);
    va_end(list);
    c->failed = code;
    return code;
}

/* ---- moving ---- */

typedef struct transfer {
    int peer, sends;
    header head, got;
    char *data;
    uint64_t bytes, at; /* at counts the header too */
} transfer;

/* Bytes that can be moved now; what came and is not what was expected is told. */
static int step(comm *c, transfer *t)
{
    char *from = t->sends ? (char *)&t->head : (char *)&t->got;
    int in_head = t->at < sizeof(header);
    char *data = in_head ? from + t->at : t->data + (t->at - sizeof(header));
    size_t n = in_head ? sizeof(header) - t->at : t->bytes + sizeof(header) - t->at;
    ssize_t done =
        t->sends ? send(c->fds[t->peer], data, n, MSG_NOSIGNAL) : recv(c->fds[t->peer], data, n, 0);
    if (done < 0 && (errno == EAGAIN || errno == EINTR)) return SUCCESS;
    if (done <= 0) return fail(c, REMOTE, "rank %d has closed its connection", t->peer);
    t->at += (uint64_t)done;
    if (!t->sends && t->at == sizeof(header) && memcmp(&t->head, &t->got, sizeof t->got))
        return fail(c, INTERNAL,
                    "rank %d expects %s of %llu bytes from rank %d, which sends %s of %llu",
                    c->rank, kinds[t->head.kind], (unsigned long long)t->head.bytes, t->peer,
                    kinds[t->got.kind & 7], (unsigned long long)t->got.bytes);
    return SUCCESS;
}

/* Whether an earlier one of the list uses the same way. */
static int is_behind(const transfer *list, int i)
{
    for (int k = 0; k < i; k++)
        if (list[k].peer == list[i].peer && list[k].sends == list[i].sends &&
            list[k].at < list[k].bytes + sizeof(header))
            return 1;
    return 0;
}

static int hang(comm *c)
{
    while (!c->aborted) usleep(1000);
    return INTERNAL;
}

static int move(comm *c, transfer *list, int n)
{
    for (int left = n; left > 0;) {
        struct pollfd waits[2 * MOST_RANKS * MOST_CALLS / 8];
        int which[2 * MOST_RANKS * MOST_CALLS / 8], count = 0;
        left = 0;
        for (int i = 0; i < n; i++) {
            if (list[i].at == list[i].bytes + sizeof(header)) continue;
            left++;
            if (is_behind(list, i)) continue;
            waits[count] =
                (struct pollfd){c->fds[list[i].peer], list[i].sends ? POLLOUT : POLLIN, 0};
            which[count++] = i;
        }
        if (left && poll(waits, (nfds_t)count, 50) < 0 && errno != EINTR) return SYSTEM;
        for (int k = 0; k < count; k++)
            if (waits[k].revents && step(c, &list[which[k]]) != SUCCESS) return hang(c);
        if (c->aborted) return INTERNAL;
    }
    return SUCCESS;
}

/* ---- calls ---- */

typedef struct call {
    comm *c;
    int kind, dtype, op, root;
    const char *in;
    char *out, *room;
    size_t count;
} call;

static call calls[MOST_CALLS];
static int n_calls, depth, ever;

static void add(transfer *list, int *n, const call *k, int peer, int sends, const char *data,
                uint64_t bytes)
{
    int kind = k->kind == RECEIVE ? SEND : k->kind;
    list[(*n)++] = (transfer){
        .peer = peer,
        .sends = sends,
        .data = (char *)(uintptr_t)data,
        .bytes = bytes,
        .head = {k->c->context, bytes, kind, k->dtype, k->op, kind == SEND ? 0 : k->root}};
}

/* What one call sends and receives: what all others have is gathered in room. */
static void plan(transfer *list, int *n, call *k)
{
    comm *c = k->c;
    size_t bytes = k->count * size_of(k->dtype);
    if (k->kind == SEND) add(list, n, k, k->root, 1, k->in, bytes);
    if (k->kind == RECEIVE) add(list, n, k, k->root, 0, k->out, bytes);
    if (k->kind == SEND || k->kind == RECEIVE) return;
    int cuts = k->kind == REDUCE_SCATTER || k->kind == ALL_TO_ALL;
    int rooted = k->kind == BROADCAST || k->kind == REDUCE;
    k->room = malloc((size_t)c->size * bytes + 1);
    for (int r = 0; r < c->size; r++) {
        const char *mine = k->in + (cuts ? (size_t)r * bytes : 0);
        int gives = !rooted || (k->kind == BROADCAST ? c->rank == k->root : r == k->root);
        int gets = !rooted || (k->kind == BROADCAST ? r == k->root : c->rank == k->root);
        if (r == c->rank) {
            memcpy(k->room + (size_t)r * bytes, mine, bytes);
            continue;
        }
        if (gives) add(list, n, k, r, 1, mine, bytes);
        if (gets) add(list, n, k, r, 0, k->room + (size_t)r * bytes, bytes);
    }
}

static void finish(call *k)
{
    comm *c = k->c;
    size_t bytes = k->count * size_of(k->dtype);
    if (!k->room) return;
    int sums = k->kind == ALL_REDUCE || k->kind == REDUCE_SCATTER;
    if (sums || (k->kind == REDUCE && c->rank == k->root)) {
        for (int r = 1; r < c->size; r++)
            combine(k->room, k->room + (size_t)r * bytes, k->count, k->dtype, k->op);
        memcpy(k->out, k->room, bytes);
    } else if (k->kind == ALL_GATHER || k->kind == ALL_TO_ALL) {
        memcpy(k->out, k->room, (size_t)c->size * bytes);
    } else if (k->kind == BROADCAST) {
        memcpy(k->out, k->room + (size_t)k->root * bytes, bytes);
    }
    free(k->room);
}

/* Communicators of one process share its connections, each with its own numbers of ranks: calls of
 * different ones in a group go one after the other. */
static int run_list(call *calls, int n_all)
{
    int rc = SUCCESS;
    for (int first = 0; first < n_all && rc == SUCCESS;) {
        static transfer list[2 * MOST_RANKS * MOST_CALLS / 8];
        comm *c = calls[first].c;
        int n = 0, end = first;
        for (; end < n_all && calls[end].c == c; end++) plan(list, &n, &calls[end]);
        rc = move(c, list, n);
        for (int i = first; i < end && rc == SUCCESS; i++) finish(&calls[i]);
        first = end;
        c->pending = 1;
        if (rc == SUCCESS && !c->blocking) continue;
        if (rc) return rc;
    }
    return n_all && !calls[0].c->blocking ? IN_PROGRESS : rc;
}

typedef struct work {
    int n;
    call calls[];
} work;

static int outstanding; /* pieces of work that streams have not done */

static void run_work(void *argument)
{
    work *w = argument;
    run_list(w->calls, w->n);
    __atomic_sub_fetch(&outstanding, 1, __ATOMIC_RELEASE);
    free(w);
}

static void *last_stream;

/* Streams that run later are the emulator's (streams.cc): work is theirs then. */
static int run(void)
{
    void *backend = dlopen(getenv("UL_CUDA_BACKEND"), RTLD_NOW | RTLD_NOLOAD);
    int (*enqueue)(void *, void (*)(void *), void *), n = n_calls;
    n_calls = 0;
    *(void **)&enqueue = backend ? dlsym(backend, "cuemu_enqueue") : NULL;
    if (!n || !enqueue) return run_list(calls, n);
    work *w = malloc(sizeof *w + (size_t)n * sizeof *calls);
    w->n = n;
    memcpy(w->calls, calls, (size_t)n * sizeof *calls);
    int is_blocking = calls[0].c->blocking;
    for (int i = 0; i < n; i++) calls[i].c->pending = 1;
    __atomic_add_fetch(&outstanding, 1, __ATOMIC_RELAXED);
    if (enqueue(last_stream, run_work, w)) return is_blocking ? SUCCESS : IN_PROGRESS;
    __atomic_sub_fetch(&outstanding, 1, __ATOMIC_RELAXED);
    free(w);
    return run_list(calls, n);
}

static void note(const call *k)
{
    const char *name = getenv("FAKE_NCCL_LOG");
    FILE *file = name && k->c->rank == 0 ? fopen(name, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %zu of %d, ranks %d, depth %d\n", kinds[k->kind], k->count, k->dtype,
            k->c->size, depth);
    fclose(file);
}

static int is_due(const char *name, const comm *c)
{
    int rank, at;
    const char *given = getenv(name);
    return given && sscanf(given, "%d,%d", &rank, &at) == 2 && rank == c->rank && ever >= at;
}

static int enter(call k, void *stream)
{
    if (k.c->aborted) {
        fprintf(stderr, "fake NCCL: %s after ncclCommAbort\n", kinds[k.kind]);
        return USAGE;
    }
    if (n_calls == MOST_CALLS) return INTERNAL;
    note(&k);
    last_stream = stream;
    ever++;
    if (is_due("FAKE_NCCL_STUCK", k.c)) k.c->stuck = 1;
    if (is_due("FAKE_NCCL_FAIL", k.c)) {
        fail(k.c, SYSTEM, "the network is down, as a test asked for");
        return hang(k.c);
    }
    calls[n_calls++] = k;
    return depth ? SUCCESS : run();
}

EXPORT int ncclGroupStart(void) { return depth++, SUCCESS; }

EXPORT int ncclGroupEnd(void)
{
    if (depth == 0) {
        fprintf(stderr, "fake NCCL: ncclGroupEnd without ncclGroupStart\n");
        return USAGE;
    }
    return --depth ? SUCCESS : run();
}

EXPORT int ncclAllReduce(const void *in, void *out, size_t n, int dtype, int op, comm *c,
                         void *stream)
{
    return enter((call){c, ALL_REDUCE, dtype, op, 0, in, out, NULL, n}, stream);
}
EXPORT int ncclReduce(const void *in, void *out, size_t n, int dtype, int op, int root, comm *c,
                      void *stream)
{
    return enter((call){c, REDUCE, dtype, op, root, in, out, NULL, n}, stream);
}
EXPORT int ncclReduceScatter(const void *in, void *out, size_t n, int dtype, int op, comm *c,
                             void *stream)
{
    return enter((call){c, REDUCE_SCATTER, dtype, op, 0, in, out, NULL, n}, stream);
}
EXPORT int ncclAllGather(const void *in, void *out, size_t n, int dtype, comm *c, void *stream)
{
    return enter((call){c, ALL_GATHER, dtype, 0, 0, in, out, NULL, n}, stream);
}
EXPORT int ncclAlltoAll(const void *in, void *out, size_t n, int dtype, comm *c, void *stream)
{
    size_t bytes = (size_t)c->size * n * size_of(dtype);
    if ((const char *)in < (char *)out + bytes && (char *)out < (const char *)in + bytes)
        return fail(c, USAGE, "ncclAlltoAll in place");
    return enter((call){c, ALL_TO_ALL, dtype, 0, 0, in, out, NULL, n}, stream);
}
EXPORT int ncclBroadcast(const void *in, void *out, size_t n, int dtype, int root, comm *c,
                         void *stream)
{
    return enter((call){c, BROADCAST, dtype, 0, root, in, out, NULL, n}, stream);
}
EXPORT int ncclSend(const void *in, size_t n, int dtype, int peer, comm *c, void *stream)
{
    return enter((call){c, SEND, dtype, 0, peer, in, NULL, NULL, n}, stream);
}
EXPORT int ncclRecv(void *out, size_t n, int dtype, int peer, comm *c, void *stream)
{
    return enter((call){c, RECEIVE, dtype, 0, peer, NULL, out, NULL, n}, stream);
}

/* ---- communicators ---- */

EXPORT int ncclGetVersion(int *version)
{
    const char *given = getenv("FAKE_NCCL_VERSION");
    return *version = given ? atoi(given) : 22809, SUCCESS;
}

EXPORT int ncclGetUniqueId(id *made)
{
    if (getenv("FAKE_NCCL_ID")) return SYSTEM;
    struct timespec now;
    const char *place = getenv("NCCL_COMM_ID");
    clock_gettime(CLOCK_REALTIME, &now);
    memset(made, 0, sizeof *made);
    if (place)
        snprintf(made->bytes, sizeof made->bytes, "%s", place);
    else
        snprintf(made->bytes, sizeof made->bytes, "%d.%ld", (int)getpid(), now.tv_nsec);
    return SUCCESS;
}

static socklen_t name_of(struct sockaddr_un *address, const id *world, int rank)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "fake-nccl-%.60s-%d",
                     world->bytes, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* The first words of two ranks. */
typedef struct greeting {
    int rank, size;
    unsigned char device[UL_BACKEND_IDENTITY];
} greeting;

static int greet(comm *c, int fd, greeting mine, greeting *other)
{
    struct timeval limit = {20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (send(fd, &mine, sizeof mine, MSG_NOSIGNAL) != sizeof mine ||
        recv(fd, other, sizeof *other, MSG_WAITALL) != sizeof *other)
        return fail(c, SYSTEM, "a rank does not answer");
    if (other->size != mine.size) return fail(c, ARGUMENT, "ranks of worlds of other sizes");
    if (!memcmp(other->device, mine.device, sizeof mine.device))
        return fail(c, USAGE, "Duplicate GPU detected : rank %d and rank %d both on one device",
                    c->rank, other->rank);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    c->fds[other->rank] = fd;
    return SUCCESS;
}

static int meet(comm *c, const id *world)
{
    greeting mine = {.rank = c->rank, .size = c->size}, other;
    ul_backend_getter *get = NULL;
    int abi, rc = SUCCESS, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    void *backend = dlopen(getenv("UL_CUDA_BACKEND"), RTLD_NOW | RTLD_NOLOAD);
    if (backend) *(void **)&get = dlsym(backend, UL_BACKEND_GETTER);
    if (!get) return fail(c, CUDA_ERROR, "there is no device");
    memcpy(mine.device, get(UL_BACKEND_ABI, &abi)->identity(), sizeof mine.device);
    struct sockaddr_un address;
    socklen_t length = name_of(&address, world, c->rank);
    if (bind(fd, (struct sockaddr *)&address, length) || listen(fd, MOST_RANKS))
        return fail(c, SYSTEM, "no place to listen");
    for (int r = 0; r < c->rank && rc == SUCCESS; r++) {
        int to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), tries = 0;
        length = name_of(&address, world, r);
        while (connect(to, (struct sockaddr *)&address, length)) {
            if (++tries > 20000) return fail(c, SYSTEM, "rank %d is not there", r);
            usleep(1000);
        }
        rc = greet(c, to, mine, &other);
    }
    for (int r = c->rank + 1; r < c->size && rc == SUCCESS; r++)
        rc = greet(c, accept4(fd, NULL, NULL, SOCK_CLOEXEC), mine, &other);
    close(fd);
    return rc;
}

EXPORT int ncclCommInitRankConfig(comm **made, int size, id world, int rank, const config *given)
{
    comm *c = *made = calloc(1, sizeof *c);
    if (given->magic != 0xcafebeef || size > MOST_RANKS) return ARGUMENT;
    c->size = size;
    c->rank = rank;
    c->blocking = given->blocking;
    for (const char *at = world.bytes; *at; at++) c->context = c->context * 31 + (unsigned char)*at;
    int rc = meet(c, &world);
    c->pending = 1;
    return rc == SUCCESS && !c->blocking ? IN_PROGRESS : rc;
}

EXPORT int ncclCommSplit(comm *c, int color, int key, comm **made, const config *given)
{
    int32_t mine[2] = {color, key}, all[2 * MOST_RANKS];
    call k = {c, ALL_GATHER, 2, 0, 0, (const char *)mine, (char *)all, NULL, 2};
    *made = NULL;
    if (__atomic_load_n(&outstanding, __ATOMIC_ACQUIRE))
        return fail(c, USAGE, "ncclCommSplit while calls are under way");
    int rc = run_list(&k, 1);
    if (rc != SUCCESS && rc != IN_PROGRESS) return rc;
    c->splits++;
    if (color < 0) return rc;
    comm *part = *made = calloc(1, sizeof *part);
    part->blocking = given->blocking;
    part->context = (c->context * 31 + c->splits) * 31 + (uint64_t)color;
    for (int r = 0; r < c->size; r++) { /* by key, then by rank */
        int place = 0;
        if (all[2 * r] != color) continue;
        for (int s = 0; s < c->size; s++)
            place += all[2 * s] == color && (all[2 * s + 1] < all[2 * r + 1] ||
                                             (all[2 * s + 1] == all[2 * r + 1] && s < r));
        part->fds[place] = c->fds[r];
        if (r == c->rank) part->rank = place;
        part->size++;
    }
    part->pending = 1;
    return rc;
}

EXPORT int ncclCommFinalize(comm *c) { return c->failed; }
EXPORT int ncclCommDestroy(comm *c) { return (void)c, SUCCESS; }
EXPORT int ncclCommAbort(comm *c) { return c->aborted = 1, SUCCESS; }

EXPORT int ncclCommGetAsyncError(comm *c, int *error)
{
    if (c->aborted) {
        fprintf(stderr, "fake NCCL: ncclCommGetAsyncError after ncclCommAbort\n");
        abort();
    }
    *error = c->failed ? c->failed : c->pending || c->stuck ? IN_PROGRESS : SUCCESS;
    c->pending = 0;
    return SUCCESS;
}

EXPORT const char *ncclGetErrorString(int code)
{
    static const char *const all[] = {"no error",       "unhandled cuda error", "system error",
                                      "internal error", "invalid argument",     "invalid usage",
                                      "remote error",   "in progress"};
    return all[code & 7];
}

EXPORT const char *ncclGetLastError(comm *c) { return c ? c->error : ""; }
