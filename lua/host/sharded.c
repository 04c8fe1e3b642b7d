/* sharded.c - core.sharded: weights of which each rank keeps a slice. */
#include "host.h"

static const char metatable[] = "ulysses.sharded.unit";

static int free_unit(lua_State *L)
{
    ul_shard_unit **u = luaL_checkudata(L, 1, metatable);
    ul_shard_unit_free(*u);
    *u = NULL;
    return 0;
}

/* unit() -> what weights have in common that are needed together */
static int unit(lua_State *L)
{
    host_arguments(L, "sharded", 0);
    ul_shard_unit **u = lua_newuserdata(L, sizeof *u);
    *u = NULL;
    luaL_getmetatable(L, metatable);
    lua_setmetatable(L, -2);
    host_check(L, ul_shard_unit_new(u));
    return 1;
}

/* whole(group, mine, shape, unit) -> a weight without values, until an op needs them */
static int whole(lua_State *L)
{
    host_arguments(L, "sharded", 4);
    int64_t shape[UL_MAX_DIMS];
    ul_shard_unit **u = luaL_checkudata(L, 4, metatable);
    int ndim = host_shape(L, 3, 3, "sharded", shape);
    ul_tensor *mine = host_tensor(L, 2, "sharded");
    host_box *box = host_new(L);
    host_check(L, ul_sharded(&box->t, mine, host_to_group(L), ndim, shape, *u));
    return 1;
}

/* use(whole, mine) -> the same for ops, whose gradient goes to mine */
static int use(lua_State *L)
{
    host_arguments(L, "sharded", 2);
    host_box *box = host_new(L);
    host_check(
        L, ul_whole_weight(&box->t, host_tensor(L, 1, "sharded"), host_tensor(L, 2, "sharded")));
    return 1;
}

/* is_whole(tensor): whether its values are gathered from slices */
static int is_whole(lua_State *L)
{
    host_arguments(L, "is_whole", 1);
    lua_pushboolean(L, ul_is_sharded(host_tensor(L, 1, "is_whole")));
    return 1;
}

/* release(): gives back the memory of what is gathered */
static int release(lua_State *L)
{
    host_arguments(L, "release", 0);
    host_check(L, ul_sharded_release());
    return 0;
}

void host_open_sharded(lua_State *L, int core)
{
    static const luaL_Reg functions[] = {{"unit", unit},       {"whole", whole},
                                         {"use", use},         {"is_whole", is_whole},
                                         {"release", release}, {NULL, NULL}};
    luaL_newmetatable(L, metatable);
    lua_pushcfunction(L, free_unit);
    lua_setfield(L, -2, "__gc");
    lua_pop(L, 1);
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    lua_setfield(L, core, "sharded");
}
