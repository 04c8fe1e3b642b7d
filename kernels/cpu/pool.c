/* pool.c - the threads that cpu kernels share: a persistent pool that spins, then sleeps.
 *
 * One job runs at a time. `gate` holds the job's number, whether it is open, and how many workers
 * are inside. A worker may enter an open job once; the caller works too, closes the job when
 * nothing is left to take, and waits until the workers inside have left. A worker that wakes late
 * finds the job closed and costs nobody anything. Whoever waits spins for a while, then sleeps on a
 * futex; whoever it waits for makes a system call only if somebody sleeps.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CACHE_LINE = 64, HUGE_PAGE = 2 << 20, SPIN = 2000 };

#define INSIDE UINT64_C(0xffff)  /* how many workers are inside */
#define OPEN   UINT64_C(0x10000) /* whether more may enter */
#define NUMBER UINT64_C(0x20000) /* one in the job's number */

/* A futex word that changes with every event, and how many sleep on it. */
typedef struct bell {
    _Alignas(CACHE_LINE) _Atomic uint32_t rung;
    _Atomic uint32_t sleepers;
} bell;

struct ul_stream {
    pthread_mutex_t turn; /* held while a job runs, and while the threads change */
    int n_threads, n_cpus;
    int spin; /* how often to look before sleeping */
    atomic_int running;
    pthread_t worker[UL_MAX_THREADS]; /* [0] is the caller and unused */
    char *scratch;                    /* UL_SHARED bytes, then UL_SCRATCH for each thread */
    size_t scratch_bytes;

    /* The job: written before the gate opens, read by those inside. */
    void (*body)(void *arg, int64_t i, int thread);
    void (*team)(void *arg, int thread, int n_threads);
    void *arg;
    int64_t n;
    int quit;

    _Alignas(CACHE_LINE) _Atomic uint64_t gate;
    _Alignas(CACHE_LINE) _Atomic int64_t next; /* item of the job */
    _Alignas(CACHE_LINE) _Atomic int arrived;  /* at the barrier */
    _Atomic uint32_t phase;                    /* of the barrier */
    bell opened, left, released;
};

static ul_stream pool = {.turn = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The thread number where this thread is running a body, else -1; and the size of its team. */
static _Thread_local int my_thread = -1;
static _Thread_local int my_team = 1;

static void bell_sleep(bell *b, uint32_t seen)
{
    syscall(SYS_futex, &b->rung, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void bell_ring(bell *b, int n)
{
    if (atomic_load(&b->sleepers) == 0) return;
    atomic_fetch_add(&b->rung, 1);
    syscall(SYS_futex, &b->rung, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Returns once ready(s, what) holds. Whoever makes it hold does so with a sequentially consistent
 * store and rings b afterwards, so either the ringer sees the sleeper or the sleeper the store.
 */
static void wait_for(ul_stream *s, bell *b, int (*ready)(ul_stream *s, uint64_t what),
                     uint64_t what)
{
    for (int i = 0; i < s->spin; i++) {
        if (ready(s, what)) return;
        __builtin_ia32_pause();
    }
    atomic_fetch_add(&b->sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&b->rung);
        if (ready(s, what)) break;
        bell_sleep(b, seen);
    }
    atomic_fetch_sub(&b->sleepers, 1);
}

/* ---- workers ---- */

static int job_after(ul_stream *s, uint64_t number)
{
    uint64_t gate = atomic_load(&s->gate);
    return (gate & OPEN) && gate / NUMBER != number;
}

static int all_left(ul_stream *s, uint64_t unused)
{
    (void)unused;
    return (atomic_load(&s->gate) & INSIDE) == 0;
}

static void take_items(ul_stream *s, int thread)
{
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (i >= s->n) return;
        s->body(s->arg, i, thread);
    }
}

/* The barrier at the end tells the caller that all have come, so that it may close the gate. */
static void join_team(ul_stream *s)
{
    my_team = s->n_threads;
    s->team(s->arg, my_thread, s->n_threads);
    ul_pool_barrier(s);
    my_team = 1;
}

/* Enters the open job and returns its number, or 0 if it was closed first. */
static uint64_t enter(ul_stream *s)
{
    uint64_t gate = atomic_load(&s->gate);
    while (gate & OPEN)
        if (atomic_compare_exchange_weak(&s->gate, &gate, gate + 1)) return gate / NUMBER;
    return 0;
}

static void *work(void *arg)
{
    ul_stream *s = &pool;
    uint64_t number = 0; /* of the last job entered; jobs count from 1 */
    my_thread = (int)(intptr_t)arg;
    for (int quit = 0; !quit;) {
        wait_for(s, &s->opened, job_after, number);
        uint64_t entered = enter(s);
        if (!entered) continue;
        number = entered;
        quit = s->quit;
        if (s->team)
            join_team(s);
        else if (!quit)
            take_items(s, my_thread);
        uint64_t before = atomic_fetch_sub(&s->gate, 1);
        if ((before & INSIDE) == 1) bell_ring(&s->left, 1);
    }
    return NULL;
}

/* ---- jobs ---- */

static void open_gate(ul_stream *s, int64_t wanted)
{
    uint64_t gate = atomic_load_explicit(&s->gate, memory_order_relaxed);
    atomic_store(&s->gate, (gate | OPEN) + NUMBER);
    bell_ring(&s->opened, wanted < s->n_threads ? (int)wanted : s->n_threads);
}

static void close_gate(ul_stream *s)
{
    atomic_fetch_and(&s->gate, ~OPEN);
    wait_for(s, &s->left, all_left, 0);
}

/* ---- starting and stopping ---- */

/* Maps memory that starts at a huge page; NULL where there is none. */
static char *map_scratch(size_t bytes)
{
    char *p = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t before = (size_t)(-(uintptr_t)p & (HUGE_PAGE - 1));
    if (before) munmap(p, before);
    munmap(p + before + bytes, HUGE_PAGE - before);
    madvise(p + before, bytes, MADV_HUGEPAGE);
    return p + before;
}

static void start(ul_stream *s)
{
    if (atomic_load(&s->running)) return;
    if (!s->scratch) {
        s->scratch_bytes = UL_SHARED + (size_t)s->n_threads * UL_SCRATCH;
        s->scratch = map_scratch(s->scratch_bytes);
    }
    if (!s->scratch) s->n_threads = 1;
    s->spin = s->n_threads <= s->n_cpus ? SPIN : 0;

    /* Signals are for the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < s->n_threads; i++)
        if (pthread_create(&s->worker[i], NULL, work, (void *)(intptr_t)i) != 0) s->n_threads = i;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    atomic_store(&s->running, 1);
}

static void stop(ul_stream *s)
{
    if (atomic_load(&s->running)) {
        s->quit = 1;
        s->team = NULL;
        open_gate(s, INT_MAX);
        for (int i = 1; i < s->n_threads; i++) pthread_join(s->worker[i], NULL);
        close_gate(s);
        s->quit = 0;
    }
    if (s->scratch) munmap(s->scratch, s->scratch_bytes);
    s->scratch = NULL;
    atomic_store(&s->running, 0);
}

/* The CPUs this process may use. */
static int count_cpus(void)
{
    cpu_set_t set[8]; /* 8192 CPUs; one set would fail on a machine with more than 1024 */
    if (sched_getaffinity(0, sizeof set, set) != 0) return 1;
    int n = CPU_COUNT_S(sizeof set, set);
    return n > 0 ? n : 1;
}

static int clamp_threads(int64_t n) { return n < 1 ? 1 : n > UL_MAX_THREADS ? UL_MAX_THREADS : n; }

/* A fork waits for the job at hand. The child has only the thread that forked: the workers are
 * made anew when they are next needed.
 */
static void before_fork(void)
{
    if (my_thread < 0) pthread_mutex_lock(&pool.turn);
}

static void after_fork_parent(void)
{
    if (my_thread < 0) pthread_mutex_unlock(&pool.turn);
}

static void after_fork_child(void)
{
    atomic_store(&pool.running, 0);
    atomic_store(&pool.opened.sleepers, 0);
    if (my_thread < 0) pthread_mutex_unlock(&pool.turn);
}

static void initialise(void)
{
    const char *text = getenv("UL_THREADS");
    char *end = NULL;
    errno = 0;
    long n = text ? strtol(text, &end, 10) : 0;
    int given = text && end != text && *end == 0 && errno == 0 && n >= 1;
    pool.n_cpus = count_cpus();
    pool.n_threads = clamp_threads(given ? n : pool.n_cpus);
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

__attribute__((destructor)) static void finish(void)
{
    if (my_thread >= 0) return; /* exit() within a body: its job will not end any more */
    pthread_mutex_lock(&pool.turn);
    stop(&pool);
    pthread_mutex_unlock(&pool.turn);
}

ul_stream *ul_cpu_stream(void)
{
    pthread_once(&once, initialise);
    if (my_thread < 0 && !atomic_load_explicit(&pool.running, memory_order_acquire)) {
        pthread_mutex_lock(&pool.turn);
        start(&pool);
        pthread_mutex_unlock(&pool.turn);
    }
    return &pool;
}

int ul_cpu_threads(void) { return ul_pool_threads(ul_cpu_stream()); }

int64_t ul_cpu_scratch(void) { return UL_SHARED + (int64_t)ul_cpu_threads() * UL_SCRATCH; }

void ul_cpu_set_threads(int n)
{
    pthread_once(&once, initialise);
    if (my_thread >= 0) return;
    pthread_mutex_lock(&pool.turn);
    if (clamp_threads(n) != pool.n_threads) {
        stop(&pool);
        pool.n_threads = clamp_threads(n);
    }
    pthread_mutex_unlock(&pool.turn);
}

/* ---- what kernels call ---- */

/* Where mmap() gave nothing: enough for one thread, and costs nothing until it is touched. */
static _Alignas(CACHE_LINE) char last_resort[UL_SHARED + UL_SCRATCH];

int ul_pool_threads(const ul_stream *s) { return s->n_threads; }

void *ul_pool_shared(ul_stream *s) { return s->scratch ? s->scratch : last_resort; }

void *ul_pool_scratch(ul_stream *s, int thread)
{
    char *shared = ul_pool_shared(s);
    return shared + UL_SHARED + (size_t)thread * UL_SCRATCH;
}

static void begin(ul_stream *s)
{
    pthread_mutex_lock(&s->turn);
    start(s);
    my_thread = 0;
}

static void end(ul_stream *s)
{
    my_thread = -1;
    pthread_mutex_unlock(&s->turn);
}

void ul_parallel(ul_stream *s, int64_t n, void (*body)(void *arg, int64_t i, int thread), void *arg)
{
    int nested = my_thread >= 0;
    if (!nested) begin(s);
    if (nested || n <= 1 || s->n_threads == 1) {
        for (int64_t i = 0; i < n; i++) body(arg, i, my_thread);
    } else {
        s->body = body;
        s->team = NULL;
        s->arg = arg;
        s->n = n;
        atomic_store_explicit(&s->next, 0, memory_order_relaxed);
        open_gate(s, n - 1);
        take_items(s, 0);
        close_gate(s);
    }
    if (!nested) end(s);
}

void ul_pool_team(ul_stream *s, void (*body)(void *arg, int thread, int n_threads), void *arg)
{
    if (my_thread >= 0) {
        int team = my_team;
        my_team = 1;
        body(arg, my_thread, 1);
        my_team = team;
        return;
    }
    begin(s);
    s->team = body;
    s->arg = arg;
    if (s->n_threads > 1) open_gate(s, INT_MAX);
    join_team(s);
    if (s->n_threads > 1) close_gate(s);
    end(s);
}

static int phase_after(ul_stream *s, uint64_t phase) { return atomic_load(&s->phase) != phase; }

void ul_pool_barrier(ul_stream *s)
{
    if (my_team == 1) return;
    uint32_t phase = atomic_load(&s->phase);
    if (atomic_fetch_add(&s->arrived, 1) + 1 < my_team) {
        wait_for(s, &s->released, phase_after, phase);
        return;
    }
    atomic_store(&s->arrived, 0);
    atomic_store(&s->phase, phase + 1);
    bell_ring(&s->released, INT_MAX);
}
