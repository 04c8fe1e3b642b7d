/* watch.c - the log of the last calls, and a thread that notices when one of them waits too long.
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm.h"

enum { LOG = 64 };

typedef struct entry {
    const ul_group *group;
    ul_comm_kind kind;
    int64_t number;
    char what[80];
    double begun, took; /* seconds; took < 0: not over yet */
    int patient;        /* the others may take as long as they like */
    int recorded;       /* it is over when its event has come */
} entry;

static struct {
    pthread_mutex_t lock;
    entry log[LOG];
    void *events[LOG]; /* of each place of the log */
    int64_t count;
    double limit; /* seconds; 0: none */
    int started;
    void (*stuck)(const char *sentence);
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Notes which of the calls that run on a device are over; they end in the order of their begin. */
static void look_at_events(void)
{
    for (int i = LOG; i > 0; i--) {
        entry *e = i <= watch.count ? &watch.log[(watch.count - i) % LOG] : NULL;
        if (!e || e->took >= 0 || !e->recorded) continue;
        if (ul__cuda()->event_has_come(watch.events[e - watch.log]) == 0) return;
        e->took = now() - e->begun;
    }
}

/* The oldest call is over: its place in the log is taken by a new one. */
static void make_place(void)
{
    const struct timespec nap = {0, 50000};
    for (;;) {
        pthread_mutex_lock(&watch.lock);
        const entry *oldest = watch.count >= LOG ? &watch.log[watch.count % LOG] : NULL;
        if (oldest && oldest->took < 0 && oldest->recorded) look_at_events();
        int over = !oldest || oldest->took >= 0 || !oldest->recorded;
        pthread_mutex_unlock(&watch.lock);
        if (over) return;
        nanosleep(&nap, NULL);
    }
}

void ul__watch_begin(const ul_group *g, ul_comm_kind kind, const char *what, int patient)
{
    make_place();
    pthread_mutex_lock(&watch.lock);
    entry *e = &watch.log[watch.count++ % LOG];
    *e = (entry){.group = g,
                 .kind = kind,
                 .number = g->sequence,
                 .begun = now(),
                 .took = -1,
                 .patient = patient};
    snprintf(e->what, sizeof e->what, "%s", what);
    pthread_mutex_unlock(&watch.lock);
}

double ul__watch_end(void)
{
    pthread_mutex_lock(&watch.lock);
    entry *e = &watch.log[(watch.count - 1) % LOG];
    double took = now() - e->begun;
    if (!e->recorded) e->took = took;
    pthread_mutex_unlock(&watch.lock);
    return took;
}

void **ul__watch_event(void) { return &watch.events[(watch.count - 1) % LOG]; }

void ul__watch_recorded(void)
{
    pthread_mutex_lock(&watch.lock);
    watch.log[(watch.count - 1) % LOG].recorded = 1;
    pthread_mutex_unlock(&watch.lock);
}

void ul_group_on_stuck(void (*callback)(const char *sentence)) { watch.stuck = callback; }

static void describe(char *text, int size, const entry *e)
{
    snprintf(text, (size_t)size, "%s #%lld%s%s%s of group %s", ul_comm_name(e->kind),
             (long long)e->number, e->what[0] ? " (" : "", e->what, e->what[0] ? ")" : "",
             e->group->name);
}

int ul_group_log(char *text, int size, int i)
{
    pthread_mutex_lock(&watch.lock);
    look_at_events();
    int there = i >= 0 && i < LOG && i < watch.count;
    if (there) {
        const entry *e = &watch.log[(watch.count - 1 - i) % LOG];
        char words[256];
        describe(words, sizeof words, e);
        if (e->took < 0)
            snprintf(text, (size_t)size, "%s: not over", words);
        else
            snprintf(text, (size_t)size, "%s: %.3f ms", words, 1e3 * e->took);
    }
    pthread_mutex_unlock(&watch.lock);
    return there;
}

/* The place of the first call that is not over, counted from the last one; -1: all are. */
static int first_at_work(void)
{
    look_at_events();
    for (int i = LOG - 1; i >= 0; i--)
        if (i < watch.count && watch.log[(watch.count - 1 - i) % LOG].took < 0) return i;
    return -1;
}

/* Whether the call at hand has waited too long, and the sentence that says so. */
static int is_stuck(char *text, int size)
{
    pthread_mutex_lock(&watch.lock);
    int back = first_at_work();
    const entry *e = back < 0 ? NULL : &watch.log[(watch.count - 1 - back) % LOG];
    double waited = e && !e->patient ? now() - e->begun : 0;
    int stuck = watch.limit > 0 && waited > watch.limit;
    if (stuck) {
        char words[256], before[256] = "none";
        describe(words, sizeof words, e);
        if (watch.count > back + 1 && back + 1 < LOG)
            describe(before, sizeof before, &watch.log[(watch.count - 2 - back) % LOG]);
        snprintf(text, (size_t)size,
                 "rank %d of %d has waited %.1f s in %s; the call before it was %s. Another rank "
                 "is dead, slow, or has called something else%s",
                 e->group->rank, e->group->size, waited, words, before,
                 getenv("UL_COMM_CHECK") ? "." : ": UL_COMM_CHECK=1 finds out which.");
    }
    pthread_mutex_unlock(&watch.lock);
    return stuck;
}

/* Whether NCCL has failed, in a sentence with the call at hand, or else the last one. */
static int has_failed(char *text, int size)
{
    char why[512], words[256] = "no call";
    if (!ul__nccl_failed(why, sizeof why)) return 0;
    pthread_mutex_lock(&watch.lock);
    int back = first_at_work();
    const entry *e =
        watch.count ? &watch.log[(watch.count - 1 - (back > 0 ? back : 0)) % LOG] : NULL;
    if (e) describe(words, sizeof words, e);
    snprintf(text, (size_t)size, "rank %d of %d: NCCL has failed in %s: %s", e ? e->group->rank : 0,
             e ? e->group->size : 1, words, why);
    pthread_mutex_unlock(&watch.lock);
    return 1;
}

static void *look(void *unused)
{
    (void)unused;
    char text[1024];
    double pause = watch.limit > 0 ? fmin(0.2, watch.limit / 4) : 0.2;
    const struct timespec nap = {(time_t)pause, (long)(1e9 * (pause - floor(pause)))};
    for (;;) {
        nanosleep(&nap, NULL);
        if ((is_stuck(text, sizeof text) || has_failed(text, sizeof text)) && watch.stuck)
            watch.stuck(text);
    }
    return NULL;
}

int ul__watch_start(void)
{
    if (watch.started) return UL_OK;
    const char *text = getenv("UL_COMM_TIMEOUT");
    char *end = NULL;
    watch.limit = text && *text ? strtod(text, &end) : 600;
    UL_REQUIRE(!end || (end != text && !*end && watch.limit >= 0), UL_EVALUE,
               "group: UL_COMM_TIMEOUT must be seconds (0: no limit), not '%s'", text);
    watch.started = 1;
    /* Signals are the main thread's. */
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&thread, NULL, look, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    UL_REQUIRE(rc == 0, UL_ENOMEM, "group: no thread for the deadline");
    pthread_detach(thread);
    return UL_OK;
}
