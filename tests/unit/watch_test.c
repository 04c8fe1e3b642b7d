/* watch_test.c - the deadline of calls of a group, over a transport that is made up. */
#include "../engine/comm/comm.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

/* ---- the transport: two ranks, of which the other one never comes ---- */

static int interrupted; /* whether calls are refused, as they are behind Ctrl-C */
static atomic_int told; /* whether the deadline has passed */
static char sentence[1024];

static int begin(ul_group *g, ul_comm_kind kind)
{
    (void)kind;
    return interrupted ? ul__fail(UL_ESTOP, "group %s: interrupted", g->name) : UL_OK;
}

/* Ends when the deadline has passed, or much later. */
static int barrier(ul_group *g)
{
    const struct timespec nap = {0, 1000000};
    (void)g;
    for (int i = 0; i < 10000 && !told; i++) nanosleep(&nap, NULL);
    return UL_OK;
}

static void on_stuck(const char *text)
{
    if (told) return;
    snprintf(sentence, sizeof sentence, "%s", text);
    told = 1;
}

/* ---- the tests ---- */

static void a_barrier_that_was_refused_leaves_the_next_its_deadline(void)
{
    static const ul_comm comm = {.name = "test", .begin = begin, .barrier = barrier};
    ul_group *g;
    setenv("UL_COMM_TIMEOUT", "0.05", 1);
    unsetenv("UL_COMM_CHECK");
    ul_group_on_stuck(on_stuck);
    CHECK(ul__group_new(&g, &comm, "test") == UL_OK && ul__group_sized(g, 0, 2) == UL_OK);
    CHECK(ul__watch_start() == UL_OK);
    interrupted = 1;
    CHECK(ul_group_barrier(g, "the first", 1) == UL_ESTOP);
    interrupted = 0;
    CHECK(ul_group_barrier(g, "the second", 0) == UL_OK);
    CHECK(told && strstr(sentence, "barrier #1 (the second) of group test"));
}

int main(void)
{
    RUN(a_barrier_that_was_refused_leaves_the_next_its_deadline);
    return check_done();
}
