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
} entry;

static struct {
    pthread_mutex_t lock;
    entry log[LOG];
    int64_t count;
    double limit; /* seconds; 0: none */
    int started, patient;
    void (*stuck)(const char *sentence);
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void ul__watch_patiently(void) { watch.patient = 1; }

void ul__watch_begin(const ul_group *g, ul_comm_kind kind, const char *what)
{
    pthread_mutex_lock(&watch.lock);
    entry *e = &watch.log[watch.count++ % LOG];
    *e = (entry){.group = g,
                 .kind = kind,
                 .number = g->sequence,
                 .begun = now(),
                 .took = -1,
                 .patient = watch.patient};
    watch.patient = 0;
    snprintf(e->what, sizeof e->what, "%s", what);
    pthread_mutex_unlock(&watch.lock);
}

double ul__watch_end(void)
{
    pthread_mutex_lock(&watch.lock);
    entry *e = &watch.log[(watch.count - 1) % LOG];
    double took = e->took = now() - e->begun;
    pthread_mutex_unlock(&watch.lock);
    return took;
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

/* Whether the call at hand has waited too long, and the sentence that says so. */
static int is_stuck(char *text, int size)
{
    pthread_mutex_lock(&watch.lock);
    const entry *e = watch.count ? &watch.log[(watch.count - 1) % LOG] : NULL;
    double waited = e && e->took < 0 && !e->patient ? now() - e->begun : 0;
    int stuck = waited > watch.limit;
    if (stuck) {
        char words[256], before[256] = "none";
        describe(words, sizeof words, e);
        if (watch.count > 1) describe(before, sizeof before, &watch.log[(watch.count - 2) % LOG]);
        snprintf(text, (size_t)size,
                 "rank %d of %d has waited %.1f s in %s; the call before it was %s. Another rank "
                 "is dead, slow, or has called something else%s",
                 e->group->rank, e->group->size, waited, words, before,
                 getenv("UL_COMM_CHECK") ? "." : ": UL_COMM_CHECK=1 finds out which.");
    }
    pthread_mutex_unlock(&watch.lock);
    return stuck;
}

static void *look(void *unused)
{
    (void)unused;
    char text[1024];
    double pause = fmin(0.2, watch.limit / 4);
    const struct timespec nap = {(time_t)pause, (long)(1e9 * (pause - floor(pause)))};
    for (;;) {
        nanosleep(&nap, NULL);
        if (is_stuck(text, sizeof text) && watch.stuck) watch.stuck(text);
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
    if (watch.limit == 0) return UL_OK;
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
