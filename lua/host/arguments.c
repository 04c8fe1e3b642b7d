/* arguments.c - checks of arguments, and errors raised at the line of the recipe. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

_Thread_local lua_State *host_current;
_Thread_local int host_collecting;
_Thread_local int64_t host_dropped;

static const char pending_error; /* key in the registry */

/* ---- errors ---- */

/* Whether a chunk is one of the library's own: those do not count as callers. */
static int of_library(lua_State *L, const char *source)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.library");
    const char *folder = lua_tostring(L, -1);
    int inside = folder && strncmp(source, folder, strlen(folder)) == 0;
    lua_pop(L, 1);
    return inside;
}

int host_of_library(lua_State *L)
{
    lua_Debug ar;
    for (int level = 0; lua_getstack(L, level, &ar); level++) {
        if (!lua_getinfo(L, "S", &ar) || *ar.what == 'C') continue;
        return of_library(L, ar.source);
    }
    return 0;
}

void host_where(lua_State *L, char *text, int size)
{
    lua_Debug ar;
    text[0] = 0;
    if (!lua_checkstack(L, 1)) return;
    for (int level = 0; lua_getstack(L, level, &ar); level++) {
        if (!lua_getinfo(L, "Sl", &ar) || ar.currentline <= 0) continue;
        int inside = of_library(L, ar.source);
        if (!inside || !text[0])
            snprintf(text, (size_t)size, "%s:%d: ", ar.short_src, ar.currentline);
        if (!inside) return;
    }
}

int host_fail(lua_State *L, const char *format, ...)
{
    char text[768];
    int at;
    host_where(L, text, 128);
    at = (int)strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + at, sizeof text - (size_t)at, format, values);
    va_end(values);
    lua_pushstring(L, text);
    return lua_error(L);
}

void host_keep_error(lua_State *L)
{
    lua_pushlightuserdata(L, (void *)&pending_error);
    lua_insert(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
}

void host_check(lua_State *L, int rc)
{
    if (rc >= 0) return;
    if (rc == UL_ECALL) {
        lua_pushlightuserdata(L, (void *)&pending_error);
        lua_rawget(L, LUA_REGISTRYINDEX);
        lua_pushnil(L);
        host_keep_error(L);
        if (lua_isnil(L, -1)) host_fail(L, "a function on the tape could not be called");
        lua_error(L);
    }
    if (rc == UL_ESTOP) {
        lua_pushliteral(L, "interrupted!");
        lua_error(L);
    }
    host_fail(L, "%s", ul_last_error());
}

void host_check_as(lua_State *L, const char *op, int rc)
{
    const char *colon = strstr(ul_last_error(), ": ");
    if (rc >= 0 || rc == UL_ECALL || rc == UL_ENOMEM || rc == UL_ESTOP || !colon)
        host_check(L, rc);
    else
        host_fail(L, "%s%s", op, colon);
}

const char *host_describe(lua_State *L, int i, char *text, int size)
{
    host_box *box = host_to_box(L, i);
    if (box)
        snprintf(text, (size_t)size, "a tensor");
    else if (lua_type(L, i) == LUA_TNUMBER && lua_tonumber(L, i) != lua_tonumber(L, i))
        snprintf(text, (size_t)size, "nan"); /* whatever its sign */
    else if (lua_type(L, i) == LUA_TNUMBER)
        snprintf(text, (size_t)size, "%.14g", lua_tonumber(L, i));
    else if (lua_type(L, i) == LUA_TSTRING)
        snprintf(text, (size_t)size, "'%.40s'", lua_tostring(L, i));
    else if (lua_isnoneornil(L, i))
        snprintf(text, (size_t)size, "nil");
    else
        snprintf(text, (size_t)size, "a %s", luaL_typename(L, i));
    return text;
}

/* ---- arguments ---- */

void host_arguments(lua_State *L, const char *op, int most)
{
    int n = lua_gettop(L);
    if (n > most) {
        while (n > most && lua_isnil(L, n)) n--; /* f(x, maybe_nil) */
        if (n > most) host_fail(L, "%s: %d arguments, at most %d are known", op, n, most);
    }
    lua_settop(L, most);
}

ul_tensor *host_tensor(lua_State *L, int i, const char *op)
{
    host_box *box = host_to_box(L, i);
    host_current = L;
    if (!box) {
        char text[64];
        host_fail(L, "%s: expected a tensor, got %s (argument %d)", op,
                  host_describe(L, i, text, sizeof text), i);
    }
    if (host_collecting) host_fail(L, "%s: a finaliser may not use tensors", op);
    if (!box->t)
        host_fail(L, "%s: tensor freed %s", op,
                  box->reason ? box->reason->text : "by :free(), and used after that");
    return box->t;
}

ul_tensor *host_tensor_or_nil(lua_State *L, int i, const char *op)
{
    return lua_isnoneornil(L, i) ? NULL : host_tensor(L, i, op);
}

ul_tensor *host_tensor_named(lua_State *L, int i, const char *op, const char *what)
{
    char text[64];
    if (!host_to_box(L, i))
        host_fail(L, "%s: %s must be a tensor, got %s", op, what,
                  host_describe(L, i, text, sizeof text));
    return host_tensor(L, i, op);
}

ul_tensor **host_list(lua_State *L, int i, const char *op, int *n)
{
    char text[64];
    if (!lua_istable(L, i))
        host_fail(L, "%s: expected a list of tensors, got %s (argument %d)", op,
                  host_describe(L, i, text, sizeof text), i);
    *n = (int)lua_objlen(L, i);
    ul_tensor **list = lua_newuserdata(L, (size_t)*n * sizeof *list + 1);
    for (int k = 0; k < *n; k++) {
        lua_rawgeti(L, i, k + 1);
        if (!host_to_box(L, lua_gettop(L)))
            host_fail(L, "%s: element %d of the list is %s, not a tensor", op, k + 1,
                      host_describe(L, lua_gettop(L), text, sizeof text));
        list[k] = host_tensor(L, lua_gettop(L), op);
        lua_pop(L, 1);
    }
    return list;
}

/* LuaJIT's boxed 64-bit integers have no API: their text is "5LL" or "5ULL". */
static int read_boxed(lua_State *L, int i, int64_t *value, int *is_unsigned)
{
    enum { CDATA = 10 };
    if (lua_type(L, i) != CDATA || !luaL_callmeta(L, i, "__tostring")) return 0;
    const char *text = lua_tostring(L, -1);
    char *end = NULL;
    int ok = 0;
    if (text && text[0]) {
        *is_unsigned = strstr(text, "ULL") != NULL;
        *value = *is_unsigned ? (int64_t)strtoull(text, &end, 10) : strtoll(text, &end, 10);
        ok = end != text && strcmp(end, *is_unsigned ? "ULL" : "LL") == 0;
    }
    lua_pop(L, 1);
    return ok;
}

int host_is_number(lua_State *L, int i)
{
    int64_t value;
    int is_unsigned;
    return lua_type(L, i) == LUA_TNUMBER || read_boxed(L, i, &value, &is_unsigned);
}

double host_number(lua_State *L, int i, const char *op, const char *what)
{
    int64_t value;
    int is_unsigned = 0;
    char text[64];
    if (lua_type(L, i) == LUA_TNUMBER) return lua_tonumber(L, i);
    if (read_boxed(L, i, &value, &is_unsigned))
        return is_unsigned ? (double)(uint64_t)value : (double)value;
    return host_fail(L, "%s: %s must be a number, got %s", op, what,
                     host_describe(L, i, text, sizeof text));
}

double host_number_or(lua_State *L, int i, const char *op, const char *what, double fallback)
{
    return lua_isnoneornil(L, i) ? fallback : host_number(L, i, op, what);
}

int64_t host_integer(lua_State *L, int i, const char *op, const char *what)
{
    const double exact = 9007199254740992.0;
    int64_t value;
    int is_unsigned = 0;
    char text[64];
    if (lua_type(L, i) == LUA_TNUMBER) {
        double n = lua_tonumber(L, i);
        if (n >= -exact && n <= exact && n == floor(n)) return (int64_t)n;
    } else if (read_boxed(L, i, &value, &is_unsigned) && !(is_unsigned && value < 0)) {
        return value;
    }
    return host_fail(L, "%s: %s must be an integer, got %s", op, what,
                     host_describe(L, i, text, sizeof text));
}

int64_t host_integer_or(lua_State *L, int i, const char *op, const char *what, int64_t fallback)
{
    return lua_isnoneornil(L, i) ? fallback : host_integer(L, i, op, what);
}

uint64_t host_seed(lua_State *L, int i, const char *op)
{
    int64_t value;
    int is_unsigned;
    if (read_boxed(L, i, &value, &is_unsigned)) return (uint64_t)value;
    if (lua_type(L, i) == LUA_TSTRING) { /* as host_push_seed() writes large ones */
        char *end;
        const char *text = lua_tostring(L, i);
        unsigned long long number = strtoull(text, &end, 10);
        if (end != text && !*end) return number;
    }
    return (uint64_t)host_integer(L, i, op, "seed");
}

void host_push_seed(lua_State *L, uint64_t seed)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    if (seed <= (uint64_t)1 << 53)
        lua_pushnumber(L, (lua_Number)seed);
    else
        lua_pushstring(L, text);
}

int host_boolean(lua_State *L, int i, const char *op, const char *what, int fallback)
{
    char text[64];
    if (lua_isnoneornil(L, i)) return fallback;
    if (lua_type(L, i) != LUA_TBOOLEAN)
        host_fail(L, "%s: %s must be true or false, got %s", op, what,
                  host_describe(L, i, text, sizeof text));
    return lua_toboolean(L, i);
}

void host_function_at(lua_State *L, int i, const char *op)
{
    char text[64];
    if (lua_isfunction(L, i)) return;
    if (luaL_getmetafield(L, i, "__call")) {
        lua_pop(L, 1);
        return;
    }
    host_fail(L, "%s: expected a function, got %s (argument %d)", op,
              host_describe(L, i, text, sizeof text), i);
}

/* ---- dims and shapes ---- */

int host_dim(lua_State *L, const char *op, int64_t dim, int ndim)
{
    if (dim == 0) host_fail(L, "%s: dim 0: dims are counted from 1, or from -1 backwards", op);
    if (dim > ndim || dim < -ndim)
        host_fail(L, "%s: dim %lld of a tensor with %d dims", op, (long long)dim, ndim);
    return (int)(dim > 0 ? dim - 1 : dim + ndim);
}

/* Whether the table at i has more positions than its length tells. */
static int has_hole(lua_State *L, int i, int64_t length)
{
    int64_t n = 0;
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) n += lua_type(L, -2) == LUA_TNUMBER;
    return n != length;
}

int host_integers(lua_State *L, int first, int last, const char *op, const char *what,
                  int64_t *list)
{
    char name[48];
    int in_table = first == last && lua_type(L, first) == LUA_TTABLE;
    int64_t n = in_table ? (int64_t)lua_objlen(L, first) : (int64_t)(last - first + 1);
    if (in_table && has_hole(L, first, n))
        host_fail(L, "%s: the table has a hole, or keys that are no positions", op);
    if (n < 0) n = 0;
    if (n > UL_MAX_DIMS) host_fail(L, "%s: %lld dims, at most %d", op, (long long)n, UL_MAX_DIMS);
    for (int d = 0; d < n; d++) {
        snprintf(name, sizeof name, "%s %d", what, d + 1);
        if (in_table) lua_rawgeti(L, first, d + 1);
        list[d] = host_integer(L, in_table ? lua_gettop(L) : first + d, op, name);
        if (in_table) lua_pop(L, 1);
    }
    return (int)n;
}

int host_shape(lua_State *L, int first, int last, const char *op, int64_t *shape)
{
    return host_integers(L, first, last, op, "size of dim", shape);
}
