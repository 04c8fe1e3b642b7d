/* interactive.c - Open MPI with waits that can be cut short: for a prompt over all ranks.
 *
 * All there is of MPI is messages in its world, which are posted and asked about: so a rank that
 * waits may be told to stop. A message's tag says which group it belongs to and since which renewal
 * (the epoch), so that what an interruption has left on its way meets no call that comes later.
 * Groups need nothing of MPI: their ranks agree on a number for each, the context.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mpi.h"

static ul_mpi *const mpi = &ul__mpi_calls;

/* How far calls to or from one other rank are. */
typedef struct passed {
    int64_t sends, sent, receives, received;
} passed;

/* What a group's handle is here. */
typedef struct part {
    int context;
    int64_t begun, finished;
    passed *with; /* [size] */
    int *world;   /* [size] the ranks' numbers there */
    int size;
    struct part *next;
} part;

enum { CONTEXT_BITS = 16, EPOCH_BITS = 13 };

static struct {
    pthread_mutex_t lock; /* of the list and the counts in it: any thread may ask for them */
    part *parts;
    int rank; /* in the world */
    int next_context, epoch;
    int (*begins)(void), (*gives_up)(void), (*is_over)(void);
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

void ul_group_interruptible(int (*begins)(void), int (*gives_up)(void), int (*is_over)(void))
{
    all.begins = begins;
    all.gives_up = gives_up;
    all.is_over = is_over;
    ul__world_comm = &ul__interactive;
}

static part *part_new(int size)
{
    size_t each = sizeof(passed) + sizeof(int);
    part *p = ul__alloc(sizeof *p + (size_t)size * each);
    if (!p) return NULL;
    memset(p, 0, sizeof *p + (size_t)size * each);
    p->with = (passed *)(p + 1);
    p->world = (int *)(p->with + size);
    p->size = size;
    return p;
}

static void add(part *p)
{
    pthread_mutex_lock(&all.lock);
    p->next = all.parts;
    all.parts = p;
    pthread_mutex_unlock(&all.lock);
}

int ul__interactive_open(ul_group *world)
{
    part *p = part_new(world->size);
    UL_REQUIRE(p, UL_ENOMEM, "group: out of memory");
    for (int r = 0; r < world->size; r++) p->world[r] = r;
    p->context = all.next_context++;
    all.rank = world->rank;
    world->handle = p;
    add(p);
    return UL_OK;
}

/* ---- how far calls are ---- */

static void count(int64_t *number)
{
    pthread_mutex_lock(&all.lock);
    ++*number;
    pthread_mutex_unlock(&all.lock);
}

static int is_between_two(ul_comm_kind kind)
{
    return kind == UL_COMM_SEND || kind == UL_COMM_RECEIVE;
}

static int begin(ul_group *g, ul_comm_kind kind)
{
    if (g->size > 1 && all.begins()) return ul__fail(UL_ESTOP, "group %s: interrupted", g->name);
    if (!is_between_two(kind)) count(&((part *)g->handle)->begun);
    return UL_OK;
}

static void finish(ul_group *g, ul_comm_kind kind, int rc)
{
    if (rc != UL_ESTOP && !is_between_two(kind)) count(&((part *)g->handle)->finished);
}

int ul_group_progress_list(ul_group_progress *list, int most)
{
    int n = 0;
    pthread_mutex_lock(&all.lock);
    for (const part *p = all.parts; p; p = p->next) {
        if (n < most)
            list[n++] = (ul_group_progress){p->context, p->world[0], -1, p->begun, p->finished};
        for (int r = 0; r < p->size; r++) {
            const passed *with = &p->with[r];
            if (with->sends && n < most)
                list[n++] =
                    (ul_group_progress){p->context, all.rank, p->world[r], with->sends, with->sent};
            if (with->receives && n < most)
                list[n++] = (ul_group_progress){p->context, p->world[r], all.rank, with->receives,
                                                with->received};
        }
    }
    pthread_mutex_unlock(&all.lock);
    return n;
}

void ul_group_renew(int epoch)
{
    pthread_mutex_lock(&all.lock);
    all.epoch = epoch & ((1 << EPOCH_BITS) - 1);
    for (part *p = all.parts; p; p = p->next) {
        p->begun = p->finished = 0;
        memset(p->with, 0, (size_t)p->size * sizeof *p->with);
    }
    pthread_mutex_unlock(&all.lock);
    ul__groups_renumber();
}

/* ---- waiting ---- */

/* Yields first, for the others may need this processor, then sleeps. */
static void pause_after(int64_t turn)
{
    const struct timespec nap = {0, turn < 20000 ? 50000 : 1000000};
    if (turn < 500)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

/* Takes back what has not begun, and waits for what has: none of the memory may be written to
 * later. What was sent and never found a receiver is MPI's to keep; nobody will ask for it.
 */
static int give_up(int posted, int receives, void **requests)
{
    for (int i = 0; i < receives; i++)
        if (requests[i] != mpi->no_request)
            UL_TRY(ul__mpi_check("take back", mpi->cancel(&requests[i])));
    for (int64_t turn = 0;; turn++) {
        int left = 0, done;
        for (int i = 0; i < posted; i++) {
            UL_TRY(ul__mpi_check("wait", mpi->test(&requests[i], &done, NULL)));
            left += i < receives && !done;
        }
        if (left == 0 && all.is_over()) break;
        pause_after(turn);
    }
    for (int i = receives; i < posted; i++)
        if (requests[i] != mpi->no_request) mpi->request_free(&requests[i]);
    return ul__fail(UL_ESTOP, "group: interrupted");
}

/* Waits for requests, of which the first ones receive. */
static int wait_for(int posted, int receives, void **requests)
{
    for (int64_t turn = 0;; turn++) {
        int done;
        UL_TRY(ul__mpi_check("exchange", mpi->test_all(posted, requests, &done, NULL)));
        if (done) return UL_OK;
        if (all.gives_up()) return give_up(posted, receives, requests);
        pause_after(turn);
    }
}

/* ---- messages ---- */

static int tag_of(const part *p, int between_two)
{
    return ((all.epoch << CONTEXT_BITS | p->context) << 1) | between_two;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int post_receive(const part *p, void **request, char *data, int64_t n, int from, int tag)
{
    return ul__mpi_check("receive", mpi->post_receive(data, (int)n, mpi->byte, p->world[from], tag,
                                                      mpi->world, request));
}

static int post_send(const part *p, void **request, const char *data, int64_t n, int to, int tag)
{
    return ul__mpi_check(
        "send", mpi->post_send(data, (int)n, mpi->byte, p->world[to], tag, mpi->world, request));
}

/* The n bytes of a piece from `done` on that one message takes; 0: it is over. */
static int64_t next_of(const ul_pieces *p, int rank, int64_t done)
{
    return done < p->bytes[rank] ? smaller(p->bytes[rank] - done, ul__mpi_most_bytes) : 0;
}

static int all_to_all(ul_group *g, const ul_pieces *to, const ul_pieces *from)
{
    const part *p = g->handle;
    int tag = tag_of(p, 0);
    int64_t most = 0, each = ul__mpi_most_bytes, n;
    for (int r = 0; r < g->size; r++) {
        if (to->bytes[r] > most) most = to->bytes[r];
        if (from->bytes[r] > most) most = from->bytes[r];
    }
    for (int64_t done = 0; done < most; done += each) {
        int posted = 0, receives;
        for (int step = 1; step < g->size; step++) {
            int r = (g->rank - step + g->size) % g->size;
            if ((n = next_of(to, r, done)) > 0)
                UL_TRY(post_receive(p, &g->requests[posted++], to->data + to->at[r] + done, n, r,
                                    tag));
        }
        receives = posted;
        for (int step = 1; step < g->size; step++) {
            int r = (g->rank + step) % g->size;
            if ((n = next_of(from, r, done)) > 0)
                UL_TRY(post_send(p, &g->requests[posted++], from->data + from->at[r] + done, n, r,
                                 tag));
        }
        if (done == 0)
            memmove(to->data + to->at[g->rank], from->data + from->at[g->rank],
                    (size_t)to->bytes[g->rank]);
        UL_TRY(wait_for(posted, receives, g->requests));
    }
    return UL_OK;
}

static int exchange(ul_group *g, const ul_cut *to, const ul_cut *from, int n)
{
    const part *p = g->handle;
    const ul_mpi_way way = {mpi->world, p->world, tag_of(p, 0), wait_for};
    return ul__mpi_exchange(g, to, from, n, &way);
}

static int all_gather(ul_group *g, const ul_pieces *gathered, const void *mine)
{
    char *own = gathered->data + gathered->at[g->rank];
    if (mine != own) memcpy(own, mine, (size_t)gathered->bytes[g->rank]);
    for (int r = 0; r < g->size; r++) { /* the same to everyone */
        g->offsets[r] = gathered->at[g->rank];
        g->offsets[g->size + r] = gathered->bytes[g->rank];
    }
    const ul_pieces from = {gathered->data, g->offsets, g->offsets + g->size};
    return all_to_all(g, gathered, &from);
}

static int broadcast(ul_group *g, void *data, int64_t bytes, int root)
{
    const part *p = g->handle;
    int tag = tag_of(p, 0);
    for (int64_t done = 0; done < bytes; done += ul__mpi_most_bytes) {
        int64_t n = smaller(ul__mpi_most_bytes, bytes - done);
        char *at = (char *)data + done;
        int posted = 0;
        if (g->rank != root) UL_TRY(post_receive(p, &g->requests[posted++], at, n, root, tag));
        for (int r = 0; r < g->size && g->rank == root; r++)
            if (r != root) UL_TRY(post_send(p, &g->requests[posted++], at, n, r, tag));
        UL_TRY(wait_for(posted, g->rank != root, g->requests));
    }
    return UL_OK;
}

static int send(ul_group *g, const void *data, int64_t bytes, int to)
{
    part *p = g->handle;
    count(&p->with[to].sends);
    for (int64_t done = 0; done < bytes; done += ul__mpi_most_bytes) {
        int64_t n = smaller(ul__mpi_most_bytes, bytes - done);
        UL_TRY(post_send(p, g->requests, (const char *)data + done, n, to, tag_of(p, 1)));
        UL_TRY(wait_for(1, 0, g->requests));
    }
    count(&p->with[to].sent);
    return UL_OK;
}

static int receive(ul_group *g, void *data, int64_t bytes, int from)
{
    part *p = g->handle;
    count(&p->with[from].receives);
    for (int64_t done = 0; done < bytes; done += ul__mpi_most_bytes) {
        int64_t n = smaller(ul__mpi_most_bytes, bytes - done);
        UL_TRY(post_receive(p, g->requests, (char *)data + done, n, from, tag_of(p, 1)));
        UL_TRY(wait_for(1, 1, g->requests));
    }
    count(&p->with[from].received);
    return UL_OK;
}

/* In round k each rank tells the one 2^k further: after the last one, all have heard of all. */
static int barrier(ul_group *g)
{
    const part *p = g->handle;
    int tag = tag_of(p, 0);
    static char in, out;
    for (int far = 1; far < g->size; far *= 2) {
        int from = (g->rank - far + g->size) % g->size, to = (g->rank + far) % g->size;
        UL_TRY(post_receive(p, g->requests, &in, 1, from, tag));
        UL_TRY(post_send(p, g->requests + 1, &out, 1, to, tag));
        UL_TRY(wait_for(2, 1, g->requests));
    }
    return UL_OK;
}

/* ---- parts ---- */

/* numbers [size][2]: each rank's key and the first context that it does not use yet. */
static int divide(ul_group *out, ul_group *g, const int *colors, const int64_t *numbers)
{
    const part *whole = g->handle;
    int mine = colors[g->rank], context = 0;
    for (int r = 0; r < g->size; r++)
        if (numbers[2 * r + 1] > context) context = (int)numbers[2 * r + 1];
    UL_REQUIRE(context < 1 << CONTEXT_BITS, UL_ECOMM, "split: more than %d groups",
               1 << CONTEXT_BITS);
    all.next_context = context + 1;
    out->size = out->rank = 0;
    if (mine < 0) return UL_OK;
    part *p = part_new(g->size);
    UL_REQUIRE(p, UL_ENOMEM, "split: out of memory");
    p->context = context;
    p->size = 0;
    for (int r = 0; r < g->size; r++) { /* after all of its color with keys that are no larger */
        int place = 0;
        if (colors[r] != mine) continue;
        for (int s = 0; s < g->size; s++) {
            int64_t a = numbers[2 * s], b = numbers[2 * r];
            place += colors[s] == mine && (a < b || (a == b && s < r));
        }
        p->world[place] = whole->world[r];
        if (r == g->rank) out->rank = place;
        p->size++;
    }
    out->size = p->size;
    out->handle = p;
    add(p);
    return UL_OK;
}

static int split(ul_group *out, ul_group *g, const int *colors, int key)
{
    int64_t size = 2 * g->size, mine[2] = {key, all.next_context};
    ul_tensor *memory;
    UL_TRY(ul_tensor_new(&memory, UL_I64, UL_CPU, 1, &size));
    int rc = ul__comm_numbers(g, ul__data(memory), mine, 2);
    if (rc == UL_OK) rc = divide(out, g, colors, ul__data(memory));
    ul_tensor_free(memory);
    return rc;
}

static void end(int status) { ul__mpi.end(status); }

const ul_comm ul__interactive = {.name = "mpi",
                                 .all_reduce = ul__all_reduce,
                                 .reduce_scatter = ul__reduce_scatter,
                                 .all_gather = all_gather,
                                 .all_to_all = all_to_all,
                                 .exchange = exchange,
                                 .broadcast = broadcast,
                                 .send = send,
                                 .receive = receive,
                                 .barrier = barrier,
                                 .split = split,
                                 .end = end,
                                 .begin = begin,
                                 .finish = finish};
