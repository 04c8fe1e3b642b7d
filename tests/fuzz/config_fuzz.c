/* config_fuzz.c - gives the input to tests/fuzz/config.lua, which reads it as a config.json.
 *
 * The reader is Lua on the JSON reader in C: the latter is what the sanitizers look at, and the
 * former must say what is wrong in a sentence of its own.
 */
#include "fuzz.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

int luaopen_ulysses_core(lua_State *L);

/* How often each line of Lua has run, which libFuzzer looks at as at branches in C. */
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t lines[1 << 12];

static void count_line(lua_State *L, lua_Debug *where)
{
    lua_getinfo(L, "Sl", where);
    uint32_t hash = (uint32_t)where->currentline;
    for (const char *p = where->short_src; *p; p++) hash = hash * 31 + (unsigned char)*p;
    lines[hash % sizeof lines]++;
}

static void must(lua_State *L, int failed)
{
    if (!failed) return;
    fprintf(stderr, "error: %s\n", lua_tostring(L, -1));
    abort();
}

static lua_State *open_state(void)
{
    lua_State *L = luaL_newstate();
    if (!L) abort();
    luaL_openlibs(L);
    lua_getglobal(L, "package");
    lua_pushstring(L, "lua/?.lua;lua/?/init.lua");
    lua_setfield(L, -2, "path");
    lua_getfield(L, -1, "preload");
    lua_pushcfunction(L, luaopen_ulysses_core);
    lua_setfield(L, -2, "ulysses.core");
    must(L, luaL_dofile(L, "tests/fuzz/config.lua"));
    must(L, luaL_dostring(L, "jit.off() jit.flush()")); /* compiled code calls no hook */
    lua_sethook(L, count_line, LUA_MASKLINE, 0);
    return L;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lua_State *L;
    if (!L) L = open_state();
    lua_pushvalue(L, -1);
    lua_pushlstring(L, (const char *)data, size);
    must(L, lua_pcall(L, 1, 0, 0));
    return 0;
}
