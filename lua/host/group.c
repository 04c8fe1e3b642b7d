/* group.c - groups of ranks: an object for each, and the ops that all its ranks call together. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "launch.h"

static const char metatable[] = "ulysses.group";
static const char *const reductions[] = {"sum", "max", "min", NULL};

/* The group at 1; methods have it there. */
ul_group *host_to_group(lua_State *L)
{
    ul_group **g = NULL;
    if (lua_type(L, 1) == LUA_TUSERDATA && lua_getmetatable(L, 1)) {
        luaL_getmetatable(L, metatable);
        if (lua_rawequal(L, -1, -2)) g = lua_touserdata(L, 1);
        lua_pop(L, 2);
    }
    if (!g) host_fail(L, "group: expected a group; call its methods with a colon");
    return *g;
}

/* Groups live as long as the process: this only points to one. */
static ul_group **new_group(lua_State *L)
{
    ul_group **g = lua_newuserdata(L, sizeof *g);
    *g = NULL;
    luaL_getmetatable(L, metatable);
    lua_setmetatable(L, -2);
    return g;
}

/* ---- the end ---- */

static void on_stuck(const char *sentence)
{
    fprintf(stderr, "ulysses: %s\n", sentence);
    host_remote_flush();
    ul_group_give_up();
    _exit(75);
}

static void on_notice(const char *sentence) { fprintf(stderr, "ulysses: %s\n", sentence); }

/* A rank that fails ends the others; one that is done waits for them. */
static void on_end(int status, void *unused)
{
    (void)unused;
    fflush(NULL);
    host_remote_flush();
    if (status > 128 && getenv("UL_RANK_FRONT")) fprintf(stderr, "%c\n", RANK_LEAVES);
    ul_group_end(status);
}

static void watch_end(void)
{
    static int watched;
    if (watched) return;
    watched = 1;
    ul_group_on_stuck(on_stuck);
    ul_group_on_notice(on_notice);
    on_exit(on_end, NULL);
}

/* ---- making groups ---- */

/* group() -> the world; group { pretend = 8, rank = 0 } -> a world for tensors on meta */
static int group(lua_State *L)
{
    static const char *const known[] = {"pretend", "rank", NULL};
    host_arguments(L, "group", 1);
    host_options(L, 1, "group", known, 0);
    int64_t size = host_option_integer(L, 1, "group", "pretend", 0);
    int64_t rank = host_option_integer(L, 1, "group", "rank", 0);
    int pretends = host_option(L, 1, "pretend");
    if (size > 1 << 20 || rank > 1 << 20) host_fail(L, "group: more than 1048576 ranks");
    if (!pretends && host_option(L, 1, "rank")) host_fail(L, "group: rank needs pretend = ranks");
    ul_group **g = new_group(L);
    watch_end();
    host_check(L, pretends ? ul_group_pretend(g, (int)size, (int)rank) : ul_group_world(g));
    return 1;
}

/* A color: a number from 0 on, or nil or false for none. */
static int color_at(lua_State *L, int i)
{
    if (lua_isnil(L, i) || (lua_isboolean(L, i) && !lua_toboolean(L, i))) return -1;
    int64_t color = host_integer(L, i, "split", "color");
    if (color < 0 || color > 1 << 30)
        host_fail(L, "split: color %lld is not in [0, 2^30]", (long long)color);
    return (int)color;
}

/* g:split(color, key = rank), g:split { color of rank 0, of rank 1, .. } -> group, or nil */
static int split(lua_State *L)
{
    host_arguments(L, "split", 3);
    ul_group *g = host_to_group(L);
    int size = ul_group_size(g);
    int64_t key = host_integer_or(L, 3, "split", "key", ul_group_rank(g));
    int is_list = lua_istable(L, 2), color = is_list ? 0 : color_at(L, 2);
    int *colors = lua_newuserdata(L, (size_t)size * sizeof *colors);
    if (key < -(1 << 30) || key > 1 << 30)
        host_fail(L, "split: key %lld is out of range", (long long)key);
    if (is_list && (int)lua_objlen(L, 2) != size)
        host_fail(L, "split: %d colors for %d ranks", (int)lua_objlen(L, 2), size);
    for (int r = 0; r < size && is_list; r++) {
        lua_rawgeti(L, 2, r + 1);
        colors[r] = color_at(L, lua_gettop(L));
        lua_pop(L, 1);
    }
    ul_group **part = new_group(L);
    host_check(L, is_list ? ul_group_split_known(part, g, colors)
                          : ul_group_split(part, g, color, (int)key));
    if (!*part) lua_pushnil(L);
    return 1;
}

/* ---- calls ---- */

/* What a rank that waits too long says it waits for, or NULL. */
static const char *what_at(lua_State *L, int i, const char *op)
{
    if (lua_isnoneornil(L, i)) return NULL;
    if (lua_type(L, i) != LUA_TSTRING)
        host_fail(L, "%s: what it is for must be a string, got a %s", op, luaL_typename(L, i));
    return lua_tostring(L, i);
}

/* g:barrier(what, { patient = false }) */
static int barrier(lua_State *L)
{
    static const char *const known[] = {"patient", NULL};
    host_arguments(L, "barrier", 3);
    host_options(L, 3, "barrier", known, 0);
    int patient = host_option_boolean(L, 3, "barrier", "patient", 0);
    host_check(L, ul_group_barrier(host_to_group(L), what_at(L, 2, "barrier"), patient));
    return 0;
}

/* g:lengths(n, what) -> list of each rank's n; or n is a list, and so is each rank's */
static int lengths_of(lua_State *L)
{
    host_arguments(L, "lengths", 3);
    ul_group *g = host_to_group(L);
    const char *what = what_at(L, 3, "lengths");
    int size = ul_group_size(g), is_list = lua_istable(L, 2);
    int n = is_list ? (int)lua_objlen(L, 2) : 1;
    int64_t *mine = lua_newuserdata(L, (size_t)n * (size_t)(size + 1) * sizeof *mine),
            *all = mine + n;
    for (int i = 0; i < n; i++) {
        if (is_list) lua_rawgeti(L, 2, i + 1);
        mine[i] = host_integer(L, is_list ? lua_gettop(L) : 2, "lengths", "n");
        if (is_list) lua_pop(L, 1);
    }
    host_check(L, ul_group_lengths(all, g, mine, n, what));
    lua_createtable(L, size, 0);
    for (int r = 0; r < size; r++) {
        if (is_list) lua_createtable(L, n, 0);
        for (int i = 0; i < n; i++) {
            lua_pushnumber(L, (lua_Number)all[r * n + i]);
            if (is_list) lua_rawseti(L, -2, i + 1);
        }
        lua_rawseti(L, -2, r + 1);
    }
    return 1;
}

static ul_reduction reduction(lua_State *L, const char *op)
{
    static const char *const known[] = {"op", NULL};
    host_arguments(L, op, 3);
    host_options(L, 3, op, known, 0);
    return (ul_reduction)host_option_choice(L, 3, op, "op", reductions, UL_REDUCE_SUM);
}

/* g:all_reduce(x, { op = 'sum' }) */
static int all_reduce(lua_State *L)
{
    ul_reduction how = reduction(L, "all_reduce");
    ul_group *g = host_to_group(L);
    host_box *y = host_new(L);
    host_check(L, ul_all_reduce(&y->t, host_tensor(L, 2, "all_reduce"), g, how));
    return 1;
}

/* g:all_reduce_(x, { op = 'sum' }) -> x */
static int all_reduce_(lua_State *L)
{
    ul_reduction how = reduction(L, "all_reduce_");
    ul_group *g = host_to_group(L);
    host_check(L, ul_all_reduce_(host_tensor(L, 2, "all_reduce_"), g, how));
    lua_settop(L, 2);
    return 1;
}

int host_dim_option(lua_State *L, const char *op, const char *name, int fallback)
{
    int64_t dim = host_option_integer(L, 3, op, name, fallback);
    return host_dim(L, op, dim, ul_tensor_ndim(host_tensor(L, 2, op)));
}

int64_t *host_sizes_option(lua_State *L, const char *op, const char *name, const ul_group *g)
{
    int size = ul_group_size(g);
    if (!host_option(L, 3, name)) return NULL;
    int at = lua_gettop(L);
    if (!lua_istable(L, at) || (int)lua_objlen(L, at) != size)
        host_fail(L, "%s: %s must be a list with one for each of %d ranks", op, name, size);
    int64_t *sizes = lua_newuserdata(L, (size_t)size * sizeof *sizes);
    for (int r = 0; r < size; r++) {
        lua_rawgeti(L, at, r + 1);
        sizes[r] = host_integer(L, lua_gettop(L), op, name);
        lua_pop(L, 1);
    }
    return sizes;
}

/* g:all_gather(x, { dim = 1 }) */
static int all_gather(lua_State *L)
{
    static const char *const known[] = {"dim", NULL};
    const char *op = "all_gather";
    host_arguments(L, op, 3);
    host_options(L, 3, op, known, 0);
    ul_group *g = host_to_group(L);
    int dim = host_dim_option(L, op, "dim", 1);
    host_box *y = host_new(L);
    host_check(L, ul_all_gather(&y->t, host_tensor(L, 2, op), g, dim));
    return 1;
}

/* g:reduce_scatter(x, { dim = 1, sizes = list }) */
static int reduce_scatter(lua_State *L)
{
    static const char *const known[] = {"dim", "sizes", NULL};
    const char *op = "reduce_scatter";
    host_arguments(L, op, 3);
    host_options(L, 3, op, known, 0);
    ul_group *g = host_to_group(L);
    int dim = host_dim_option(L, op, "dim", 1);
    int64_t *sizes = host_sizes_option(L, op, "sizes", g);
    host_box *y = host_new(L);
    host_check(L, ul_reduce_scatter(&y->t, host_tensor(L, 2, op), g, dim, sizes));
    return 1;
}

/* g:gather_linear(x, weights, { dim = -2, keep = false }) -> y of each weight */
static int gather_linear(lua_State *L)
{
    static const char *const known[] = {"dim", "keep", NULL};
    const char *op = "gather_linear";
    enum { MOST = 4 };
    ul_tensor *w[MOST], *y[MOST];
    host_box *boxes[MOST];
    host_arguments(L, op, 4);
    host_options(L, 4, op, known, 0);
    ul_group *g = host_to_group(L);
    ul_tensor *x = host_tensor(L, 2, op);
    int64_t dim = host_option_integer(L, 4, op, "dim", -2);
    int keep = host_option_boolean(L, 4, op, "keep", 0);
    int n = lua_istable(L, 3) ? (int)lua_objlen(L, 3) : 0;
    if (n < 1 || n > MOST) host_fail(L, "%s: expected a list of 1 to %d weights", op, MOST);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, 3, i + 1);
        w[i] = host_tensor(L, lua_gettop(L), op);
    }
    for (int i = 0; i < n; i++) boxes[i] = host_new(L);
    int at = host_dim(L, op, dim, ul_tensor_ndim(x));
    host_check(L, ul_gather_linear(y, x, w, n, g, at, keep));
    for (int i = 0; i < n; i++) boxes[i]->t = y[i];
    return n;
}

/* A rank, counted from 0. */
static int rank_at(lua_State *L, int i, const char *op, const char *what)
{
    int64_t rank = host_integer(L, i, op, what);
    return rank < 0 || rank > 1 << 30 ? -1 : (int)rank;
}

/* g:broadcast(x, root = 0) */
static int broadcast(lua_State *L)
{
    host_arguments(L, "broadcast", 3);
    int root = lua_isnil(L, 3) ? 0 : rank_at(L, 3, "broadcast", "root");
    ul_group *g = host_to_group(L);
    host_box *y = host_new(L);
    host_check(L, ul_broadcast(&y->t, host_tensor(L, 2, "broadcast"), g, root));
    return 1;
}

/* g:broadcast_(x, root = 0) -> x */
static int broadcast_(lua_State *L)
{
    host_arguments(L, "broadcast_", 3);
    int root = lua_isnil(L, 3) ? 0 : rank_at(L, 3, "broadcast_", "root");
    ul_group *g = host_to_group(L);
    host_check(L, ul_broadcast_(host_tensor(L, 2, "broadcast_"), g, root));
    lua_settop(L, 2);
    return 1;
}

/* g:send(x, to) */
static int send_to(lua_State *L)
{
    host_arguments(L, "send", 3);
    int to = rank_at(L, 3, "send", "the rank");
    ul_group *g = host_to_group(L);
    host_check(L, ul_group_send(g, host_tensor(L, 2, "send"), to));
    return 0;
}

/* g:recv(x, from) -> x, filled */
static int receive(lua_State *L)
{
    host_arguments(L, "recv", 3);
    int from = rank_at(L, 3, "recv", "the rank");
    ul_group *g = host_to_group(L);
    host_check_as(L, "recv", ul_group_receive(g, host_tensor(L, 2, "recv"), from));
    lua_settop(L, 2);
    return 1;
}

/* ---- what a group knows ---- */

/* g:counts() -> { all_reduce = { calls =, bytes =, seconds = }, .. } of what has been called */
static int counts(lua_State *L)
{
    host_arguments(L, "counts", 1);
    ul_group *g = host_to_group(L);
    lua_newtable(L);
    for (int kind = 0; kind < UL_COMM_END; kind++) {
        ul_comm_count count;
        ul_group_count(&count, g, (ul_comm_kind)kind);
        if (count.calls == 0) continue;
        lua_createtable(L, 0, 3);
        lua_pushnumber(L, (lua_Number)count.calls);
        lua_setfield(L, -2, "calls");
        lua_pushnumber(L, (lua_Number)count.bytes);
        lua_setfield(L, -2, "bytes");
        lua_pushnumber(L, count.seconds);
        lua_setfield(L, -2, "seconds");
        lua_setfield(L, -2, kind == UL_COMM_RECEIVE ? "recv" : ul_comm_name((ul_comm_kind)kind));
    }
    return 1;
}

static int reset_counts(lua_State *L)
{
    host_arguments(L, "reset_counts", 1);
    ul_group_reset_counts(host_to_group(L));
    return 0;
}

/* launched_rank() -> which of the ranks of a launcher this is, without opening the group */
static int launched_rank(lua_State *L)
{
    host_arguments(L, "launched_rank", 0);
    lua_pushinteger(L, ul_launched_rank());
    return 1;
}

/* group_log() -> the last calls of this rank in words, the latest first */
static int group_log(lua_State *L)
{
    char text[320];
    host_arguments(L, "group_log", 0);
    lua_newtable(L);
    for (int i = 0; ul_group_log(text, sizeof text, i); i++) {
        lua_pushstring(L, text);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* g.rank, g.size, g.name, g.transport, and methods, which are the upvalue */
static int get(lua_State *L)
{
    ul_group *g = host_to_group(L);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (!strcmp(key, "rank"))
        lua_pushinteger(L, ul_group_rank(g));
    else if (!strcmp(key, "size"))
        lua_pushinteger(L, ul_group_size(g));
    else if (!strcmp(key, "name"))
        lua_pushstring(L, ul_group_name(g));
    else if (!strcmp(key, "transport"))
        lua_pushstring(L, ul_group_transport(g));
    else if (!strcmp(key, "cuda_transport"))
        lua_pushstring(L, ul_group_cuda_transport(g));
    else
        lua_pushvalue(L, 2), lua_rawget(L, lua_upvalueindex(1));
    if (lua_isnil(L, -1)) {
        static const char *const names[] = {
            "rank",       "size",           "name",          "transport",      "cuda_transport",
            "split",      "barrier",        "lengths",       "all_reduce",     "all_reduce_",
            "all_gather", "all_to_all",     "broadcast",     "broadcast_",     "send",
            "recv",       "reduce_scatter", "shard_heads",   "shard_tokens",   "head_share",
            "counts",     "reset_counts",   "gather_linear", "ring_attention", "arrive",
            NULL};
        char more[256];
        host_suggest(more, sizeof more, key, names);
        host_fail(L, "a group has no '%.40s'%s", key, more);
    }
    return 1;
}

static int set(lua_State *L) { return host_fail(L, "a group cannot be changed"); }

static int to_string(lua_State *L)
{
    ul_group *g = host_to_group(L);
    lua_pushfstring(L, "group %s: rank %d of %d (%s)", ul_group_name(g), ul_group_rank(g),
                    ul_group_size(g), ul_group_transport(g));
    return 1;
}

void host_open_group(lua_State *L)
{
    static const luaL_Reg methods[] = {{"split", split},
                                       {"barrier", barrier},
                                       {"lengths", lengths_of},
                                       {"all_reduce", all_reduce},
                                       {"all_reduce_", all_reduce_},
                                       {"all_gather", all_gather},
                                       {"reduce_scatter", reduce_scatter},
                                       {"gather_linear", gather_linear},
                                       {"all_to_all", host_all_to_all},
                                       {"shard_heads", host_shard_heads},
                                       {"arrive", host_arrive},
                                       {"shard_tokens", host_shard_tokens},
                                       {"head_share", host_head_share},
                                       {"ring_attention", host_ring_attention},
                                       {"broadcast", broadcast},
                                       {"broadcast_", broadcast_},
                                       {"send", send_to},
                                       {"recv", receive},
                                       {"counts", counts},
                                       {"reset_counts", reset_counts},
                                       {NULL, NULL}};
    luaL_newmetatable(L, metatable);
    lua_newtable(L);
    luaL_register(L, NULL, methods);
    lua_pushcclosure(L, get, 1);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, set);
    lua_setfield(L, -2, "__newindex");
    lua_pushcfunction(L, to_string);
    lua_setfield(L, -2, "__tostring");
    lua_pop(L, 1);
}

const host_function host_group[] = {
    {"group", group, NULL, HOST_MODULE},
    {"group_log", group_log, NULL, HOST_MODULE},
    {"launched_rank", launched_rank, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
