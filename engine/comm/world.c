/* world.c - which ranks there are: what launchers say, and the world made of it. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"

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

/* How many ranks a launcher that Open MPI can talk to has started. SLURM_NTASKS does not tell: it
 * is set in a batch script too, which is one process.
 */
static int launched(int *size)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS",
                                        NULL};
    static const char *const elsewhere[] = {"WORLD_SIZE", NULL};
    const char *name = NULL;
    *size = number_in(sizes, &name);
    if (*size > 0) return UL_OK;
    int others = number_in(elsewhere, &name);
    UL_REQUIRE(others <= 1 || !getenv("RANK"), UL_ECOMM,
               "group: %s = %d, but torchrun and its like start no MPI: start with mpirun or srun "
               "--mpi=pmix",
               name, others);
    *size = 1;
    return UL_OK;
}

/* Ranks on one machine share its processors, unless the launcher or the user has seen to that. */
static void share_threads(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE",
                                        NULL};
    const char *name;
    int local = number_in(names, &name), threads = ul_threads();
    cpu_set_t set;
    if (local <= 1 || getenv("UL_THREADS") || sched_getaffinity(0, sizeof set, &set)) return;
    if (threads == CPU_COUNT(&set) && threads > 1)
        ul_set_threads(threads / local > 1 ? threads / local : 1);
}

int ul_group_world(ul_group **out)
{
    *out = world;
    if (world) return UL_OK;
    int size;
    ul_group *g;
    UL_TRY(launched(&size));
    UL_TRY(ul__group_new(&g, size > 1 ? ul__world_comm : &ul__self, "world"));
    if (size > 1) {
        UL_TRY(ul__mpi_open(g, size));
        UL_TRY(ul__watch_start());
        share_threads();
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
    g->comm->end(status);
}
