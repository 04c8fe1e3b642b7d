/* world.c - which ranks there are: what launchers say, and the world made of it. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nccl.h"

static ul_group *world;
const ul_comm *ul__world_comm = &ul__mpi;

/* The first of these variables that is set, as a number; *name is which. -1: none is. */
static int number_in(const char *const *names, const char **name)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (!text || !*text) continue;
        *name = *names;
        return atoi(text);
    }
    return -1;
}

int ul__local_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK",
                                        "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
    const char *name;
    int rank = number_in(names, &name);
    return rank > 0 ? rank : 0;
}

/* What a launcher says. */
typedef struct launch {
    int size, rank;
    int mpi;        /* whether it starts ranks that Open MPI can connect */
    const char *by; /* the variable with the size */
} launch;

/* SLURM_NTASKS does not tell: it is set in a batch script too, which is one process. */
static launch launched(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    static const char *const steps[] = {"SLURM_STEP_NUM_TASKS", NULL};
    static const char *const managers[] = {"PMIX_RANK", "PMI_RANK", "PMI_FD", NULL};
    static const char *const elsewhere[] = {"WORLD_SIZE", NULL}, *const others[] = {"RANK", NULL};
    static const char *const of_mpi[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", NULL};
    static const char *const ranks[] = {"SLURM_PROCID", NULL};
    const char *name;
    launch l = {.mpi = 1};
    l.size = number_in(sizes, &l.by);
    l.rank = number_in(of_mpi, &name);
    if (l.size > 0) return l;
    l.size = number_in(steps, &l.by);
    l.rank = number_in(ranks, &name);
    l.mpi = l.rank < 0 || number_in(managers, &name) >= 0;
    if (l.size > 1) return l;
    l.size = number_in(elsewhere, &l.by);
    l.rank = number_in(others, &name);
    l.mpi = 0;
    if (l.size > 1 && l.rank >= 0) return l;
    return (launch){.size = 1};
}

int ul_launched_rank(void)
{
    int rank = launched().rank;
    return rank > 0 ? rank : 0;
}

/* Without MPI there is NCCL, where there are GPUs. */
static int open_without_mpi(ul_group *g, const launch *l)
{
    char why[768];
    if (ul__nccl_open_world(g, l->rank, l->size) == UL_OK) return UL_OK;
    snprintf(why, sizeof why, "%s", ul_last_error());
    return ul__fail(UL_ECOMM,
                    "group: %s = %d, but its launcher starts no MPI, and NCCL cannot be used (%s): "
                    "start with mpirun or srun --mpi=pmix",
                    l->by, l->size, why);
}

/* Ranks on one machine share its processors, unless the launcher or the user has seen to that. */
static void share_threads(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE",
                                        "SLURM_NTASKS_PER_NODE", NULL};
    const char *name;
    int local = number_in(names, &name), threads = ul_threads();
    cpu_set_t set;
    if (local <= 1 || getenv("UL_THREADS") || sched_getaffinity(0, sizeof set, &set)) return;
    if (threads == CPU_COUNT(&set) && threads > 1)
        ul_set_threads(threads / local > 1 ? threads / local : 1);
}

/* What sched_setattr(2) takes; glibc has it from 2.41 on. */
typedef struct turns {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period; /* ns; runtime: the turn, where Linux shares by need */
} turns;

/* Asks Linux for turns as short as it has them, of 0.1 ms. Where ranks are more than processors, or
 * other programs are at work, a rank that waits hands its processor on, and the one that it waits
 * for is a turn away: with turns of milliseconds each exchange costs several of them. A rank's
 * share of the processor stays what it was, and one that is alone on it is not interrupted. Linux
 * before 6.12 does not listen. Threads that are made later have the same turns.
 */
static void take_short_turns(void)
{
    enum { OTHER = 0 };
    turns t = {.size = sizeof t};
    if (syscall(SYS_sched_getattr, 0, &t, sizeof t, 0) || t.policy != OTHER) return;
    t.runtime = 100000;
    syscall(SYS_sched_setattr, 0, &t, 0);
}

int ul_group_world(ul_group **out)
{
    *out = world;
    if (world) return UL_OK;
    ul_group *g;
    const launch l = launched();
    const ul_comm *comm = l.size == 1 ? &ul__self : l.mpi ? ul__world_comm : &ul__nccl_host;
    UL_TRY(ul__group_new(&g, comm, "world"));
    if (l.size > 1) {
        UL_TRY(l.mpi ? ul__mpi_open(g, l.size) : open_without_mpi(g, &l));
        UL_TRY(ul__watch_start());
        share_threads();
        take_short_turns();
    } else {
        UL_TRY(ul__group_sized(g, 0, 1));
    }
    *out = world = g;
    return UL_OK;
}

int ul_group_pretend(ul_group **out, int size, int rank)
{
    UL_REQUIRE(size >= 1 && rank >= 0 && rank < size, UL_EVALUE,
               "group: rank %d of %d pretended ranks", rank, size);
    UL_TRY(ul__group_new(out, &ul__plan, "world"));
    return ul__group_sized(*out, rank, size);
}

void ul_group_end(int status)
{
    if (!world) return;
    ul_group *g = world;
    world = NULL;
    if (!status && g->size > 1) {
        int rc = ul__comm_begin(g, UL_COMM_END, "");
        if (rc == UL_OK) rc = ul__comm_end(g, UL_COMM_END, 0, g->comm->barrier(g));
        status = rc < 0;
    }
    if (status)
        ul_group_give_up();
    else
        ul__nccl_end(g);
    g->comm->end(status);
}
