/* module.c - ulysses.core: registers the binding in a Lua state and answers the engine's callbacks.
 */
#include <string.h>

#include "host.h"

__attribute__((visibility("default"))) int luaopen_ulysses_core(lua_State *L);

/* ---- callbacks of the engine ---- */

enum { MAX_ROUNDS = 50 };

static int collect_garbage(lua_State *L)
{
    int urgent = lua_toboolean(L, 1);
    if (!urgent) {
        lua_gc(L, LUA_GCSTEP, 200);
        return 0;
    }
    /* The first round runs finalisers, the next finds what these let go: one more for each function
     * on a tape that nothing holds any more.
     */
    for (int round = 0, dropped = 1; round < 2 || (dropped && round < MAX_ROUNDS); round++) {
        int64_t before = host_dropped;
        lua_gc(L, LUA_GCCOLLECT, 0);
        dropped = host_dropped != before;
    }
    return 0;
}

/* The engine has allocated much, or is about to give up: tensors that Lua has dropped can go. */
static void on_pressure(void *context, int urgent)
{
    (void)context;
    lua_State *L = host_current;
    if (!L || host_collecting || !lua_checkstack(L, 4)) return;
    host_collecting = 1;
    lua_pushcfunction(L, collect_garbage);
    lua_pushboolean(L, urgent);
    if (lua_pcall(L, 1, 0, 0) != 0) lua_pop(L, 1); /* a finaliser of someone else's failed */
    host_collecting = 0;
}

static void on_origin(void *context, char *text, int size)
{
    (void)context;
    text[0] = 0;
    if (!host_current || host_collecting) return;
    host_where(host_current, text, size);
    size_t n = strlen(text);
    if (n >= 2) text[n - 2] = 0; /* without ": " */
}

/* ---- registration ---- */

void host_register(lua_State *L, int core, const host_function *functions)
{
    static const char *const tables[] = {"methods", NULL, "functional"};
    for (const host_function *f = functions; f->name; f++)
        for (int k = 0; k < 3; k++) {
            if (!(f->where & (1 << k))) continue;
            if (tables[k])
                lua_getfield(L, core, tables[k]);
            else
                lua_pushvalue(L, core);
            lua_pushlightuserdata(L, (void *)f->kind);
            lua_pushcclosure(L, f->call, 1);
            lua_setfield(L, -2, f->name);
            lua_pop(L, 1);
        }
}

/* library(folder): chunks whose source begins like this are the library's own, and no callers in
 * errors */
static int library(lua_State *L)
{
    luaL_checkstring(L, 1);
    lua_settop(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.library");
    return 0;
}

/* When the state closes, nothing may call into it any more. */
static int forget_state(lua_State *L)
{
    (void)L;
    host_current = NULL;
    return 0;
}

static void watch_state(lua_State *L)
{
    lua_newuserdata(L, 1);
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, forget_state);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.watch");
}

int luaopen_ulysses_core(lua_State *L)
{
    static const host_function *const all[] = {
        host_create,    host_views,       host_elementwise, host_reduce,   host_layers, host_losses,
        host_optimizer, host_nodes,       host_fields,      host_scopes,   host_engine, host_json,
        host_io,        host_safetensors, host_group,       host_tokenizer};
    host_current = L;
    lua_newtable(L);
    int core = lua_gettop(L);
    lua_newtable(L);
    lua_setfield(L, core, "methods");
    lua_newtable(L);
    lua_setfield(L, core, "functional");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) host_register(L, core, all[i]);
    lua_pushcfunction(L, library);
    lua_setfield(L, core, "library");
    host_open_tensor(L, core);
    host_open_scope(L);
    host_open_signals(L, core);
    host_open_safetensors(L);
    host_open_group(L);
    host_open_tokenizer(L);
    host_open_line(L, core);
    host_open_remote(L, core);
    host_open_system(L, core);
    host_open_off_device(L, core);
    host_open_sharded(L, core);
    watch_state(L);
    ul_memory_on_pressure(on_pressure, NULL);
    ul_memory_on_origin(on_origin, NULL);
    return 1;
}
