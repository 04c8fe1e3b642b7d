/* group.c - groups, and what happens around each call of a transport: numbers, log, comparison,
 * counts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"

static ul_group *groups; /* all there are: they live as long as the process */

int ul__group_new(ul_group **out, const ul_comm *comm, const char *name)
{
    ul_group *g = ul__alloc(sizeof *g);
    UL_REQUIRE(g, UL_ENOMEM, "group: out of memory");
    *g = (ul_group){.comm = comm, .next = groups};
    snprintf(g->name, sizeof g->name, "%s", name);
    groups = g;
    *out = g;
    return UL_OK;
}

int ul__group_sized(ul_group *g, int rank, int size)
{
    size_t each = 2 * (sizeof *g->requests + 2 * sizeof *g->offsets + sizeof *g->counts);
    g->rank = rank;
    g->size = size;
    g->requests = ul__alloc((size_t)size * each);
    UL_REQUIRE(g->requests, UL_ENOMEM, "group: out of memory");
    g->offsets = (int64_t *)(g->requests + 2 * size);
    g->places = g->offsets + 2 * size;
    g->counts = (int *)(g->places + 2 * size);
    return UL_OK;
}

void ul__groups_renumber(void)
{
    for (ul_group *g = groups; g; g = g->next) g->sequence = 0;
}

int ul_group_rank(const ul_group *group) { return group->rank; }
int ul_group_size(const ul_group *group) { return group->size; }
const char *ul_group_name(const ul_group *group) { return group->name; }
const char *ul_group_transport(const ul_group *group) { return group->comm->name; }

const char *ul_group_cuda_transport(const ul_group *group)
{
    return group->device_comm ? group->device_comm->name : "none";
}

const char *ul_comm_name(ul_comm_kind kind)
{
    static const char *const names[UL_COMM_KINDS] = {"all_reduce",
                                                     "all_gather",
                                                     "reduce_scatter",
                                                     "all_to_all",
                                                     "broadcast",
                                                     "shift",
                                                     "send",
                                                     "receive",
                                                     "barrier",
                                                     "sizes",
                                                     "the end of the script"};
    return names[kind];
}

void ul_group_count(ul_comm_count *count, const ul_group *group, ul_comm_kind kind)
{
    *count = group->count[kind];
}

void ul_group_reset_counts(ul_group *group) { memset(group->count, 0, sizeof group->count); }

/* ---- comparing calls ---- */

enum { WORDS = 128 };

/* Every rank tells all others what it is about to call; where that differs, all refuse. */
static int compare(ul_group *g, ul_comm_kind kind, const char *what)
{
    int64_t size = g->size, total = size * (WORDS + 2 * (int64_t)sizeof(int64_t));
    ul_tensor *memory;
    UL_TRY(ul_tensor_new(&memory, UL_U8, UL_CPU, 1, &total));
    int64_t *at = ul__data(memory), *bytes = at + size;
    char *words = (char *)(bytes + size), *mine = words + g->rank * WORDS;
    for (int r = 0; r < g->size; r++) {
        at[r] = r * WORDS;
        bytes[r] = WORDS;
    }
    memset(mine, 0, WORDS);
    snprintf(mine, WORDS, "%s #%lld%s%s", ul_comm_name(kind), (long long)g->sequence,
             *what ? " of " : "", what);
    const ul_pieces all = {words, at, bytes};
    int rc = g->comm->all_gather(g, &all, mine);
    for (int r = 1; r < g->size && rc == UL_OK; r++)
        if (memcmp(words, words + r * WORDS, WORDS))
            rc = ul__fail(UL_ECOMM, "group %s: rank 0 called %s, but rank %d called %s", g->name,
                          words, r, words + r * WORDS);
    ul_tensor_free(memory);
    return rc;
}

static int begin(ul_group *g, ul_comm_kind kind, const char *what, int patient)
{
    static int checking = -1;
    if (checking < 0) {
        const char *text = getenv("UL_COMM_CHECK");
        checking = text && *text && strcmp(text, "0") != 0;
    }
    if (g->comm->begin) UL_TRY(g->comm->begin(g, kind));
    g->sequence++;
    ul__watch_begin(g, kind, what, patient);
    int alone = g->size == 1 || kind == UL_COMM_SEND || kind == UL_COMM_RECEIVE;
    if (!checking || alone || g->comm == &ul__plan) return UL_OK;
    int rc = compare(g, kind, what);
    if (rc < 0) ul__watch_end();
    if (rc < 0 && g->comm->finish) g->comm->finish(g, kind, rc);
    return rc;
}

int ul__comm_begin(ul_group *g, ul_comm_kind kind, const char *what)
{
    return begin(g, kind, what, 0);
}

int ul__comm_end(ul_group *g, ul_comm_kind kind, int64_t bytes, int rc)
{
    ul_comm_count *count = &g->count[kind];
    count->seconds += ul__watch_end();
    count->calls++;
    count->bytes += bytes;
    if (g->comm->finish) g->comm->finish(g, kind, rc);
    return rc;
}

int ul__comm_numbers(ul_group *g, int64_t *all, const int64_t *mine, int n)
{
    int64_t *at = g->places, *bytes = at + g->size;
    for (int r = 0; r < g->size; r++) {
        bytes[r] = n * (int64_t)sizeof *mine;
        at[r] = r * bytes[r];
    }
    const ul_pieces pieces = {(char *)all, at, bytes};
    return g->comm->all_gather(g, &pieces, mine);
}

static int64_t bytes_of_numbers(const ul_group *g, int n)
{
    return n * (int64_t)sizeof(int64_t) * (g->size - 1);
}

static int gather_sizes(ul_group *g, int64_t *all, const int64_t *mine, int n, const char *what)
{
    UL_TRY(ul__comm_begin(g, UL_COMM_SIZES, what));
    return ul__comm_end(g, UL_COMM_SIZES, bytes_of_numbers(g, n),
                        ul__comm_numbers(g, all, mine, n));
}

int ul__comm_sizes(ul_group *g, int64_t *all, const int64_t *mine, int n)
{
    return gather_sizes(g, all, mine, n, "");
}

int ul_group_lengths(int64_t *all, ul_group *group, const int64_t *mine, int n, const char *what)
{
    return gather_sizes(group, all, mine, n, what ? what : "");
}

int ul_group_barrier(ul_group *group, const char *what, int patient)
{
    UL_TRY(begin(group, UL_COMM_BARRIER, what ? what : "", patient));
    return ul__comm_end(group, UL_COMM_BARRIER, 0, group->comm->barrier(group));
}

/* ---- parts of a group ---- */

static int split(ul_group **out, ul_group *g, const int *colors, int key)
{
    char name[sizeof g->name];
    int color = colors[g->rank];
    snprintf(name, sizeof name, "%.32s.%d", g->name, color);
    ul_group made = {0}, *part = NULL;
    UL_TRY(g->comm->split(&made, g, colors, key));
    if (color >= 0) {
        UL_TRY(ul__group_new(&part, g->comm, name));
        UL_TRY(ul__group_sized(part, made.rank, made.size));
        part->handle = made.handle;
    }
    *out = part;
    return ul__device_split(part, g, colors, key);
}

int ul_group_split(ul_group **out, ul_group *group, int color, int key)
{
    UL_REQUIRE(color >= -1, UL_EVALUE, "split: color %d is negative, and not -1 (no group)", color);
    UL_REQUIRE(group->comm != &ul__plan, UL_ECOMM,
               "split: the other ranks of a pretended world have no colors; give those of all");
    int64_t all = group->size;
    ul_tensor *memory;
    all *= (int64_t)(sizeof(int64_t) + sizeof(int));
    UL_TRY(ul_tensor_new(&memory, UL_U8, UL_CPU, 1, &all));
    int64_t *wide = ul__data(memory);
    int *colors = (int *)(wide + group->size);
    int64_t mine = color;
    int rc = ul__comm_begin(group, UL_COMM_SIZES, "a split");
    if (rc == UL_OK) {
        rc = ul__comm_numbers(group, wide, &mine, 1);
        for (int r = 0; r < group->size && rc == UL_OK; r++) colors[r] = (int)wide[r];
        if (rc == UL_OK) rc = split(out, group, colors, key);
        rc = ul__comm_end(group, UL_COMM_SIZES, bytes_of_numbers(group, 1), rc);
    }
    ul_tensor_free(memory);
    return rc;
}

int ul_group_split_known(ul_group **out, ul_group *group, const int *colors)
{
    for (int r = 0; r < group->size; r++)
        UL_REQUIRE(colors[r] >= -1, UL_EVALUE,
                   "split: the color of rank %d, %d, is negative, and not -1 (no group)", r,
                   colors[r]);
    UL_TRY(ul__comm_begin(group, UL_COMM_SIZES, "a split"));
    return ul__comm_end(group, UL_COMM_SIZES, 0, split(out, group, colors, 0));
}
