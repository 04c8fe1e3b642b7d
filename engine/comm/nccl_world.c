/* nccl_world.c - which groups NCCL works for: how ranks find each other, what they do where it
 * cannot be used, and its end.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../events.h"
#include "nccl.h"

static ul_nccl *const nccl = &ul__nccl_calls;

/* ---- communicators ---- */

/* All that are open, the youngest first. The thread of the deadline asks them for errors. */
typedef struct communicator {
    struct communicator *next;
    void *handle;
} communicator;

static struct {
    pthread_mutex_t lock;
    communicator *first;
    int over; /* being aborted or ended */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int keep(void *handle)
{
    communicator *c = malloc(sizeof *c);
    UL_REQUIRE(c, UL_ENOMEM, "group: out of memory");
    pthread_mutex_lock(&all.lock);
    *c = (communicator){all.first, handle};
    all.first = c;
    pthread_mutex_unlock(&all.lock);
    return ul__watch_start();
}

/* Not blocking: so a rank that waits for others can be ended. */
static ul_nccl_config config(void)
{
    return (ul_nccl_config){.size = sizeof(ul_nccl_config),
                            .magic = 0xcafebeef,
                            .version = 21800,
                            .blocking = 0,
                            .cga_cluster_size = INT_MIN,
                            .min_ctas = INT_MIN,
                            .max_ctas = INT_MIN,
                            .split_share = 1};
}

static int init(void **handle, const ul_nccl_id *id, int rank, int size)
{
    ul_nccl_config settings = config();
    *handle = NULL;
    int rc = nccl->init(handle, size, *id, rank, &settings);
    rc = ul__nccl_settle(*handle, "start", rc);
    if (rc == UL_OK) rc = keep(*handle);
    if (rc < 0 && *handle) nccl->abort(*handle);
    if (rc < 0) *handle = NULL;
    return rc;
}

int ul__nccl_failed(char *text, int size)
{
    int failed = 0;
    if (pthread_mutex_trylock(&all.lock)) return 0;
    for (const communicator *c = all.over ? NULL : all.first; c && !failed; c = c->next) {
        int rc = UL_NCCL_SUCCESS, asked = nccl->async_error(c->handle, &rc);
        if (asked != UL_NCCL_SUCCESS) rc = asked;
        failed = rc != UL_NCCL_SUCCESS && rc != UL_NCCL_IN_PROGRESS;
        if (!failed) continue;
        const char *more = nccl->last_error(c->handle);
        snprintf(text, (size_t)size, "%s%s%s", nccl->error_string(rc), more && *more ? ": " : "",
                 more ? more : "");
    }
    pthread_mutex_unlock(&all.lock);
    return failed;
}

static int given_up;

static void *abort_all(void *done)
{
    pthread_mutex_lock(&all.lock);
    all.over = 1;
    for (communicator *c = all.first; c; c = c->next) nccl->abort(c->handle);
    pthread_mutex_unlock(&all.lock);
    __atomic_store_n((int *)done, 1, __ATOMIC_RELEASE);
    return NULL;
}

int ul__nccl_ask(void *handle, int *state)
{
    pthread_mutex_lock(&all.lock);
    int gone = __atomic_load_n(&given_up, __ATOMIC_ACQUIRE);
    int rc = gone ? UL_NCCL_INTERNAL : nccl->async_error(handle, state);
    pthread_mutex_unlock(&all.lock);
    return rc;
}

void ul__nccl_leave_to_watch(void)
{
    const struct timespec nap = {3, 0};
    if (__atomic_load_n(&given_up, __ATOMIC_ACQUIRE)) nanosleep(&nap, NULL);
}

/* What runs on the device is given up too; for two seconds at most: the process is about to end. */
void ul_group_give_up(void)
{
    static int done;
    pthread_t thread;
    __atomic_store_n(&given_up, 1, __ATOMIC_RELEASE);
    const struct timespec nap = {0, 10000000};
    if (!all.first || pthread_create(&thread, NULL, abort_all, &done)) return;
    pthread_detach(thread);
    for (int i = 0; i < 200 && !__atomic_load_n(&done, __ATOMIC_ACQUIRE); i++)
        nanosleep(&nap, NULL);
}

/* Parts before what they are parts of. Each waits for the other ranks. */
void ul__nccl_end(const ul_group *world)
{
    pthread_mutex_lock(&all.lock);
    all.over = 1;
    communicator *c = all.first;
    all.first = NULL;
    pthread_mutex_unlock(&all.lock);
    if (!c) return;
    ul__watch_begin(world, UL_COMM_END, "of NCCL", 0);
    while (c) {
        communicator *next = c->next;
        if (ul__nccl_settle(c->handle, "end", nccl->finalize(c->handle)) == UL_OK)
            nccl->destroy(c->handle);
        else
            nccl->abort(c->handle);
        free(c);
        c = next;
    }
    ul__watch_end();
}

/* ---- groups that have another transport too ---- */

static void (*notice)(const char *sentence);

void ul_group_on_notice(void (*callback)(const char *sentence)) { notice = callback; }

/* What a rank tells the others before NCCL is opened. */
enum { VERSION, IDENTITY, NUMBERS = IDENTITY + 2 };

/* The first two ranks with the same device, or 0. */
static int find_shared(const int64_t *numbers, int size, int *one, int *other)
{
    for (int r = 0; r < size; r++)
        for (int s = 0; s < r; s++) {
            const int64_t *a = numbers + r * NUMBERS, *b = numbers + s * NUMBERS;
            if (a[IDENTITY] != b[IDENTITY] || a[IDENTITY + 1] != b[IDENTITY + 1]) continue;
            *one = s;
            *other = r;
            return 1;
        }
    return 0;
}

/* Why NCCL cannot be used by these ranks, in words that are the same on all; "" where it can. */
static int find_obstacle(char *text, int size, ul_group *g, const int64_t *numbers, const char *own)
{
    int one, other;
    text[0] = 0;
    for (int r = 0; r < g->size; r++) {
        if (numbers[r * NUMBERS + VERSION]) continue;
        char why[512] = "";
        if (r == g->rank) snprintf(why, sizeof why, "%s", own);
        UL_TRY(g->comm->broadcast(g, why, sizeof why, r));
        snprintf(text, (size_t)size, "rank %d has no NCCL (%s)", r, why);
        return UL_OK;
    }
    if (find_shared(numbers, g->size, &one, &other))
        snprintf(text, (size_t)size, "ranks %d and %d share one GPU, which NCCL refuses", one,
                 other);
    for (int r = 1; r < g->size && !*text; r++)
        if (numbers[r * NUMBERS] != numbers[0])
            snprintf(text, (size_t)size, "NCCL is %lld on rank 0 and %lld on rank %d",
                     (long long)numbers[0], (long long)numbers[r * NUMBERS], r);
    return UL_OK;
}

/* UL_COMM_CUDA: nccl or mpi alone, else NCCL where it can be used. */
static int settle_for(ul_group *g, const char *obstacle)
{
    static int told;
    const char *wanted = getenv("UL_COMM_CUDA");
    UL_REQUIRE(!wanted || strcmp(wanted, "nccl") != 0, UL_ECOMM, "group %s: %s", g->name, obstacle);
    char text[1024];
    snprintf(text, sizeof text, "%s: what ranks exchange goes through the host's memory, by MPI",
             obstacle);
    if (notice && !told && g->rank == 0) notice(text);
    told = 1;
    g->device_comm = &ul__staged;
    return UL_OK;
}

static int connect(ul_group *g)
{
    struct {
        ul_nccl_id id;
        int rc; /* the others need not wait for what rank 0 cannot begin */
    } first = {{{0}}, UL_NCCL_SUCCESS};
    if (g->rank == 0) first.rc = nccl->get_id(&first.id);
    UL_TRY(g->comm->broadcast(g, &first, sizeof first, 0));
    UL_TRY(ul__nccl_settle(NULL, "make an id", first.rc));
    UL_TRY(init(&g->device_handle, &first.id, g->rank, g->size));
    g->device_comm = &ul__nccl;
    return UL_OK;
}

static int choose(ul_group *g, int64_t *numbers)
{
    int version = 0;
    char own[512] = "", obstacle[768];
    int64_t mine[NUMBERS] = {0};
    if (ul__nccl_load(&version) < 0) snprintf(own, sizeof own, "%s", ul_last_error());
    mine[VERSION] = version;
    memcpy(&mine[IDENTITY], ul__cuda()->identity(), UL_BACKEND_IDENTITY);
    UL_TRY(ul__comm_numbers(g, numbers, mine, NUMBERS));
    UL_TRY(find_obstacle(obstacle, sizeof obstacle, g, numbers, own));
    return *obstacle ? settle_for(g, obstacle) : connect(g);
}

int ul__device_ready(ul_group *g)
{
    const char *wanted = getenv("UL_COMM_CUDA");
    if (g->device_comm) return UL_OK;
    UL_REQUIRE(!wanted || !*wanted || !strcmp(wanted, "nccl") || !strcmp(wanted, "mpi"), UL_EVALUE,
               "group: UL_COMM_CUDA must be nccl or mpi, not '%s'", wanted);
    int staged = g->size == 1 || g->comm == &ul__plan || (wanted && !strcmp(wanted, "mpi"));
    if (staged) {
        g->device_comm = &ul__staged;
        return UL_OK;
    }
    if (!ul__cuda()) UL_TRY(ul_cuda_open(-1));
    int64_t n = NUMBERS * (int64_t)g->size;
    ul_tensor *memory;
    UL_TRY(ul_tensor_new(&memory, UL_I64, UL_CPU, 1, &n));
    int rc = ul__comm_begin(g, UL_COMM_SIZES, "the start of NCCL");
    if (rc == UL_OK) rc = ul__comm_end(g, UL_COMM_SIZES, 0, choose(g, ul__data(memory)));
    ul_tensor_free(memory);
    return rc;
}

const ul_comm *ul__comm_of(const ul_group *g, ul_device device)
{
    if (device != UL_CUDA) return g->comm;
    return g->device_comm ? g->device_comm : &ul__staged;
}

/* ---- parts ---- */

/* NCCL wants no call on what is split to be under way. */
static int wait_for_exchanges(void)
{
    const ul_backend *cuda = ul__cuda();
    void *event;
    UL_TRY(ul__event_take(&event, cuda));
    int rc = cuda->event_record(event, cuda->exchange_stream());
    if (rc == UL_OK) rc = cuda->event_finish(event);
    ul__event_give_back(event);
    return rc;
}

int ul__nccl_split(void **handle, const ul_group *g, const int *colors, int key)
{
    int mine = colors[g->rank], size = 0;
    for (int r = 0; r < g->size; r++) size += colors[r] == mine;
    ul_nccl_config settings = config();
    *handle = NULL;
    if (size == 1) mine = -1;
    UL_TRY(wait_for_exchanges());
    int rc = nccl->split(g->device_handle, mine, key, handle, &settings);
    UL_TRY(ul__nccl_settle(g->device_handle, "split", rc));
    if (!*handle) return UL_OK;
    UL_TRY(ul__nccl_settle(*handle, "split", UL_NCCL_IN_PROGRESS));
    return keep(*handle);
}

int ul__device_split(ul_group *part, ul_group *g, const int *colors, int key)
{
    int64_t open = ul_cuda_is_open();
    if (g->size == 1 || g->comm == &ul__plan) return UL_OK;
    if (!g->device_comm) { /* it is opened with them, where all are going to need it */
        int64_t *others = ul__alloc((size_t)g->size * sizeof *others);
        UL_REQUIRE(others, UL_ENOMEM, "split: out of memory");
        int rc = ul__comm_numbers(g, others, &open, 1);
        for (int r = 0; r < g->size && rc == UL_OK; r++) open = open && others[r];
        ul__release(others);
        UL_TRY(rc);
        if (!open) return UL_OK;
        UL_TRY(ul__device_ready(g));
    }
    if (g->device_comm != &ul__nccl) {
        if (part) part->device_comm = g->device_comm;
        return UL_OK;
    }
    void *handle;
    UL_TRY(ul__nccl_split(&handle, g, colors, key));
    if (!part) return UL_OK;
    part->device_handle = handle;
    part->device_comm = handle ? &ul__nccl : &ul__staged;
    return UL_OK;
}

/* ---- a world without MPI ---- */

/* The first host of a list like gpu[03-07,12],other. */
static void first_of(char *host, int size, const char *list)
{
    size_t plain = strcspn(list, "[,");
    const char *inside = list[plain] == '[' ? list + plain + 1 : "";
    snprintf(host, (size_t)size, "%.*s%.*s", (int)plain, list, (int)strcspn(inside, "-,]"), inside);
}

/* host:port where rank 0 listens. NCCL makes its id of this, so that nobody has to send it. */
static int set_meeting_place(void)
{
    char host[256], place[300];
    const char *given = getenv("NCCL_COMM_ID"), *address = getenv("MASTER_ADDR");
    const char *list = getenv("SLURM_STEP_NODELIST"), *port = getenv("UL_COMM_PORT");
    const char *master_port = getenv("MASTER_PORT"), *job = getenv("SLURM_JOB_ID");
    if (given && *given) return UL_OK;
    if (!list) list = getenv("SLURM_JOB_NODELIST");
    UL_REQUIRE((address && *address) || (list && *list), UL_ECOMM,
               "group: rank 0 cannot be found: MASTER_ADDR must be its host");
    if (address && *address)
        snprintf(host, sizeof host, "%s", address);
    else
        first_of(host, sizeof host, list);
    /* the launcher may be at MASTER_PORT itself */
    int number = port          ? atoi(port)
                 : master_port ? atoi(master_port) + 1
                               : 20000 + (job ? atoi(job) : 0) % 20000;
    UL_REQUIRE(number > 0 && number < 65536, UL_ECOMM,
               "group: %s = %s makes no port from 1 to 65535",
               port ? "UL_COMM_PORT" : "MASTER_PORT", port ? port : master_port);
    snprintf(place, sizeof place, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, number);
    setenv("NCCL_COMM_ID", place, 1);
    return UL_OK;
}

/* NCCL's own sentence for two ranks on one GPU names a bus, and no remedy. */
static int explain(int rc)
{
    if (rc == UL_OK || !strstr(ul_last_error(), "uplicate GPU")) return rc;
    return ul__fail(UL_ECOMM, "group: two ranks share one GPU, which NCCL refuses: start one for "
                              "each GPU, or with --ranks, mpirun or srun --mpi=pmix, where MPI "
                              "carries what they exchange");
}

int ul__nccl_open_world(ul_group *world, int rank, int size)
{
    int version;
    ul_nccl_id id;
    UL_TRY(ul_cuda_open(-1));
    UL_TRY(ul__nccl_load(&version));
    UL_TRY(set_meeting_place());
    UL_TRY(ul__watch_start());
    UL_TRY(ul__group_sized(world, rank, size));
    ul__watch_begin(world, UL_COMM_SIZES, "the start of NCCL", 0);
    int rc = ul__nccl_settle(NULL, "make an id", nccl->get_id(&id));
    if (rc == UL_OK) rc = explain(init(&world->device_handle, &id, rank, size));
    ul__watch_end();
    world->device_comm = &ul__nccl;
    return rc;
}
