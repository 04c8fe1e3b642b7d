/* pool_test.c - the thread pool: every item once, teams and barriers, nesting, fork, resizing. */
#include "cpu/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { N_ITEMS = 10007 };

static const int thread_counts[] = {1, 2, 3, 5, 8};
enum { N_COUNTS = sizeof thread_counts / sizeof *thread_counts };

static ul_stream *pool_of(int n)
{
    ul_cpu_set_threads(n);
    return ul_cpu_stream();
}

static void count_item(void *arg, int64_t i, int thread)
{
    (void)thread;
    atomic_fetch_add(&((atomic_int *)arg)[i], 1);
}

static void every_item_runs_once(void)
{
    static atomic_int seen[N_ITEMS];
    for (int c = 0; c < N_COUNTS; c++) {
        ul_stream *s = pool_of(thread_counts[c]);
        CHECK(ul_cpu_threads() == thread_counts[c]);
        for (int64_t n = 0; n < N_ITEMS; n = 3 * n + 1) {
            memset(seen, 0, sizeof seen);
            ul_parallel(s, n, count_item, seen);
            for (int64_t i = 0; i < N_ITEMS; i++)
                if (seen[i] != (i < n)) {
                    CHECK(0, "item %d of %d ran %d times", (int)i, (int)n, seen[i]);
                    break;
                }
        }
    }
}

/* Many short jobs one after the other: late workers must not run an item of another job. */
static void short_jobs(void)
{
    atomic_int seen[4];
    for (int c = 0; c < N_COUNTS; c++) {
        ul_stream *s = pool_of(thread_counts[c]);
        for (int i = 0; i < 4; i++) seen[i] = 0;
        for (int i = 0; i < 3000; i++) ul_parallel(s, 1 + i % 4, count_item, seen);
        CHECK(seen[0] == 3000 && seen[1] == 2250 && seen[2] == 1500 && seen[3] == 750);
    }
}

typedef struct use {
    ul_stream *s;
    atomic_int wrong;
} use;

static void use_scratch(void *arg, int64_t i, int thread)
{
    use *u = arg;
    char *mine = ul_pool_scratch(u->s, thread);
    if (thread < 0 || thread >= ul_pool_threads(u->s) || (uintptr_t)mine % 64 != 0)
        atomic_fetch_add(&u->wrong, 1);
    memset(mine, (char)i, 4096);
    mine[UL_SCRATCH - 1] = (char)i;
    for (int j = 0; j < 4096; j++)
        if (mine[j] != (char)i) atomic_fetch_add(&u->wrong, 1);
}

static void scratch_is_private(void)
{
    for (int c = 0; c < N_COUNTS; c++) {
        use u = {pool_of(thread_counts[c]), 0};
        char *shared = ul_pool_shared(u.s);
        memset(shared, 77, UL_SHARED);
        ul_parallel(u.s, 500, use_scratch, &u);
        CHECK(u.wrong == 0);
        CHECK(shared[0] == 77 && shared[UL_SHARED - 1] == 77);
    }
}

enum { PHASES = 50 };
typedef struct relay {
    ul_stream *s;
    atomic_int came[PHASES];
    atomic_int wrong, members;
} relay;

static void run_relay(void *arg, int thread, int n_threads)
{
    relay *r = arg;
    (void)thread;
    atomic_fetch_add(&r->members, 1);
    for (int phase = 0; phase < PHASES; phase++) {
        atomic_fetch_add(&r->came[phase], 1);
        ul_pool_barrier(r->s);
        if (r->came[phase] != n_threads) atomic_fetch_add(&r->wrong, 1);
    }
}

static void stay_away(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    atomic_fetch_add(&((atomic_int *)arg)[thread], 1);
}

static void teams_meet_at_barriers(void)
{
    for (int c = 0; c < N_COUNTS; c++) {
        int n = thread_counts[c];
        relay r = {.s = pool_of(n)};
        for (int i = 1; i <= 20; i++) {
            memset(r.came, 0, sizeof r.came);
            ul_pool_team(r.s, run_relay, &r);
            CHECK(r.wrong == 0 && r.members == i * n);
        }
        atomic_int seen[8] = {0};
        for (int i = 0; i < 100; i++) ul_pool_team(r.s, stay_away, seen);
        for (int i = 0; i < 8; i++) CHECK(seen[i] == (i < n ? 100 : 0));
    }
}

static void nest(void *arg, int64_t i, int thread)
{
    relay *r = arg;
    atomic_int seen[3] = {0};
    (void)i;
    ul_parallel(r->s, 3, count_item, seen);
    if (seen[0] != 1 || seen[1] != 1 || seen[2] != 1) atomic_fetch_add(&r->wrong, 1);
    atomic_int team[UL_MAX_THREADS] = {0};
    ul_pool_team(r->s, stay_away, team);
    if (team[thread] != 1) atomic_fetch_add(&r->wrong, 1);
    ul_cpu_set_threads(1); /* must do nothing here */
}

static void nested_calls_run_where_they_are(void)
{
    relay r = {.s = pool_of(3)};
    ul_parallel(r.s, 100, nest, &r);
    CHECK(r.wrong == 0);
    CHECK(ul_cpu_threads() == 3);
}

static void a_forked_child_has_a_pool(void)
{
    static atomic_int seen[100];
    ul_stream *s = pool_of(4);
    ul_parallel(s, 100, count_item, seen);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ul_parallel(s, 100, count_item, seen);
        relay r = {.s = s};
        ul_pool_team(s, run_relay, &r);
        _exit(seen[99] == 2 && r.members == 4 && r.wrong == 0 ? 0 : 1);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "status %d", status);
    ul_parallel(s, 100, count_item, seen);
    CHECK(seen[99] == 2);
}

static void sizes_are_clamped(void)
{
    ul_cpu_set_threads(-3);
    CHECK(ul_cpu_threads() == 1);
    ul_cpu_set_threads(UL_MAX_THREADS + 1);
    relay r = {.s = ul_cpu_stream()};
    ul_pool_team(r.s, run_relay, &r);
    CHECK(r.members == ul_cpu_threads() && r.wrong == 0);
}

int main(void)
{
    RUN(every_item_runs_once);
    RUN(short_jobs);
    RUN(scratch_is_private);
    RUN(teams_meet_at_barriers);
    RUN(nested_calls_run_where_they_are);
    RUN(a_forked_child_has_a_pool);
    RUN(sizes_are_clamped);
    return check_done();
}
