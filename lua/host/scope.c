/* scope.c - scopes: what is made inside and not handed out is freed at the end.
 *
 * The scopes of a thread are a list, innermost first. A tensor belongs to the innermost one that is
 * running: of this Lua state, and not begun by a coroutine that has yielded since.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

struct host_scope {
    host_scope *outer;
    const void *vm;   /* the registry: one for each Lua state with all its coroutines */
    lua_State *owner; /* the coroutine that began it */
    host_box *first;  /* the tensors made in it */
    host_reason *reason;
};

static _Thread_local host_scope *innermost;
static _Thread_local int depth; /* of Lua calls through C */
enum { MAX_DEPTH = 180 };       /* keeps endless recursion within the C stack */

/* ---- reasons ---- */

static host_reason *reason_new(const char *name, const char *where)
{
    host_reason *reason = malloc(sizeof *reason);
    if (!reason) return NULL; /* the sentence is then less precise */
    reason->refs = 1;
    snprintf(reason->text, sizeof reason->text,
             "at the end of %.60s%.80s; return it or call :keep()", name, where);
    return reason;
}

void host_reason_drop(host_reason *reason)
{
    if (reason && --reason->refs == 0) free(reason);
}

/* " (llama3.lua:71)": where the function at i ends. */
static void function_end(lua_State *L, int i, char *text, size_t size)
{
    lua_Debug ar;
    text[0] = 0;
    if (!lua_isfunction(L, i)) return;
    lua_pushvalue(L, i);
    lua_getinfo(L, ">S", &ar);
    if (ar.what[0] != 'C') snprintf(text, size, " (%s:%d)", ar.short_src, ar.lastlinedefined);
}

/* ---- the list ---- */

static host_scope *running(host_scope *scope, lua_State *L)
{
    const void *vm = lua_topointer(L, LUA_REGISTRYINDEX);
    for (; scope; scope = scope->outer)
        if (scope->vm == vm && (scope->owner == L || lua_status(scope->owner) != LUA_YIELD)) break;
    return scope;
}

host_scope *host_scope_current(lua_State *L) { return running(innermost, L); }

void host_move(host_box *box, host_scope *scope)
{
    if (box->scope) {
        if (box->previous)
            box->previous->next = box->next;
        else
            box->scope->first = box->next;
        if (box->next) box->next->previous = box->previous;
    }
    box->scope = scope;
    box->previous = NULL;
    box->next = scope ? scope->first : NULL;
    if (box->next) box->next->previous = box;
    if (scope) scope->first = box;
}

static void open_scope(lua_State *L, host_scope *scope, host_reason *reason)
{
    *scope = (host_scope){.outer = innermost,
                          .vm = lua_topointer(L, LUA_REGISTRYINDEX),
                          .owner = L,
                          .reason = reason};
    innermost = scope;
}

static int is_open(const host_scope *scope)
{
    const host_scope *s = innermost;
    while (s && s != scope) s = s->outer;
    return s != NULL;
}

static void unlink_scope(host_scope *scope)
{
    host_scope **at = &innermost;
    while (*at && *at != scope) at = &(*at)->outer;
    if (*at) *at = scope->outer;
}

/* Scopes that this coroutine began later and left without an end, as a loop does that breaks: their
 * tensors are this one's.
 */
static void adopt_inner(host_scope *scope)
{
    host_scope *s = innermost;
    while (s && s != scope) {
        host_scope *outer = s->outer;
        if (s->owner == scope->owner) {
            while (s->first) host_move(s->first, scope);
            unlink_scope(s);
        }
        s = outer;
    }
}

static void close_scope(host_scope *scope)
{
    adopt_inner(scope);
    while (scope->first) host_end(scope->first, scope->reason);
    unlink_scope(scope);
    host_reason_drop(scope->reason);
    scope->reason = NULL;
}

/* ---- walking what is handed out ---- */

static void walk_value(lua_State *L, int seen, int skip_objects, host_visit *visit, void *context)
{
    host_box *box = host_to_box(L, -1);
    if (box) {
        visit(L, box, context);
    } else if (lua_istable(L, -1)) {
        if (skip_objects && lua_getmetatable(L, -1)) {
            lua_pop(L, 1);
            return;
        }
        lua_pushvalue(L, -1);
        lua_rawget(L, seen);
        int known = !lua_isnil(L, -1);
        lua_pop(L, 1);
        if (known) return;
        lua_pushvalue(L, -1);
        lua_pushboolean(L, 1);
        lua_rawset(L, seen);
        lua_pushvalue(L, -1);
        lua_rawseti(L, seen, (int)lua_objlen(L, seen) + 1);
    }
}

void host_walk(lua_State *L, int i, int skip_objects, host_visit *visit, void *context)
{
    luaL_checkstack(L, 10, "scope");
    host_box *box = host_to_box(L, i);
    if (box) visit(L, box, context);
    if (!lua_istable(L, i)) return;

    lua_pushvalue(L, i);
    lua_newtable(L); /* seen: both a set and a queue of tables */
    lua_insert(L, -2);
    int seen = lua_gettop(L) - 1;
    walk_value(L, seen, skip_objects, visit, context);
    lua_pop(L, 1);
    for (int k = 1; k <= (int)lua_objlen(L, seen); k++) {
        lua_rawgeti(L, seen, k);
        for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
            walk_value(L, seen, skip_objects, visit, context);
            lua_pushvalue(L, -2);
            walk_value(L, seen, skip_objects, visit, context);
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

static void hand_out(lua_State *L, host_box *box, void *context)
{
    host_scope *scope = context;
    if (box->scope == scope) host_move(box, running(scope->outer, L));
}

/* ---- calls ---- */

/* Keeps the traceback of an error for the program, since the frames are gone when it is raised
 * again; the error itself stays as it is.
 */
static int keep_traceback(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.error");
    int known = lua_rawequal(L, -1, 1);
    lua_pop(L, 1);
    if (known || lua_isnil(L, 1)) return 1;
    lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.on_error"); /* see repl.c */
    if (lua_isfunction(L, -1)) lua_pcall(L, 0, 0, 0);
    lua_settop(L, 1);
    lua_getglobal(L, "debug");
    if (lua_istable(L, -1)) {
        lua_getfield(L, -1, "traceback");
        lua_pushliteral(L, "");
        lua_pushinteger(L, 2);
        if (lua_isfunction(L, -3) && lua_pcall(L, 2, 1, 0) == 0) {
            lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.traceback");
            lua_pushvalue(L, 1);
            lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.error");
        }
    }
    lua_settop(L, 1);
    return 1;
}

/* Calls argument 2 with the others; argument 1 is the scope, or NULL. */
static int run(lua_State *L)
{
    host_scope *scope = lua_touserdata(L, 1);
    lua_call(L, lua_gettop(L) - 2, LUA_MULTRET);
    if (!scope) return lua_gettop(L) - 1;
    adopt_inner(scope);
    for (int i = 2, top = lua_gettop(L); i <= top; i++) host_walk(L, i, 0, hand_out, scope);
    return lua_gettop(L) - 1;
}

int host_call(lua_State *L, const host_frame *frame, int n_args)
{
    host_scope scope;
    int base = lua_gettop(L) - n_args; /* the function */
    luaL_checkstack(L, 8, "scope");
    if (depth >= MAX_DEPTH) host_fail(L, "calls through C are nested %d deep", depth);
    host_reason *reason = NULL;
    char where[96];
    lua_pushcfunction(L, keep_traceback);
    lua_pushcfunction(L, run);
    lua_pushlightuserdata(L, frame->scope ? &scope : NULL);
    for (int i = 0; i < 3; i++) lua_insert(L, base); /* handler, run, scope, function, arguments */
    if (frame->scope) {
        function_end(L, base + 3, where, sizeof where);
        reason = reason_new(frame->scope, where);
        open_scope(L, &scope, reason);
    }
    int grad = frame->grad < 0 ? -1 : ul_set_grad_enabled(frame->grad);
    depth++;
    int rc = lua_pcall(L, n_args + 2, LUA_MULTRET, base);
    depth--;
    if (grad >= 0) ul_set_grad_enabled(grad);
    host_current = L;
    if (frame->scope) close_scope(&scope);
    lua_remove(L, base); /* the handler */
    return rc;
}

/* name(f, ...) for what only differs in the frame, which is upvalue 1 */
static int call_in_frame(lua_State *L)
{
    const host_frame *frame = lua_touserdata(L, lua_upvalueindex(1));
    host_function_at(L, 1, frame->scope ? "scope" : frame->grad ? "enable_grad" : "no_grad");
    if (host_call(L, frame, lua_gettop(L) - 1) != 0) return lua_error(L);
    return lua_gettop(L);
}

static const char *scope_name(lua_State *L, const char *op)
{
    if (lua_type(L, 1) != LUA_TSTRING) host_fail(L, "%s: the name must be a string", op);
    return lua_tostring(L, 1);
}

/* scoped(name, f, ...): a scope that errors call by this name */
static int scoped(lua_State *L)
{
    char name[64];
    snprintf(name, sizeof name, "%s", scope_name(L, "scoped"));
    host_function_at(L, 2, "scoped");
    if (host_call(L, &(host_frame){name, -1}, lua_gettop(L) - 2) != 0) return lua_error(L);
    return lua_gettop(L) - 1;
}

/* ---- scopes with a begin and an end, for iterators ---- */

static const char *const TOKEN = "ulysses.scope";

static int begin(lua_State *L)
{
    char where[96], in_brackets[104] = "";
    const char *name = scope_name(L, "scope_begin");
    host_where(L, where, sizeof where - 2);
    if (where[0])
        snprintf(in_brackets, sizeof in_brackets, " (%.*s)", (int)strlen(where) - 2, where);

    host_scope *scope = lua_newuserdata(L, sizeof *scope);
    memset(scope, 0, sizeof *scope);
    luaL_getmetatable(L, TOKEN);
    lua_setmetatable(L, -2);
    if (!lua_pushthread(L)) { /* a coroutine lives as long as its scope */
        lua_createtable(L, 1, 0);
        lua_insert(L, -2);
        lua_rawseti(L, -2, 1);
        lua_setfenv(L, -2);
    } else {
        lua_pop(L, 1);
    }
    open_scope(L, scope, reason_new(name, in_brackets));
    return 1;
}

/* scope_end(token, ...): returns the rest, which stays */
static int end(lua_State *L)
{
    char text[64];
    int is_token = lua_isuserdata(L, 1) && lua_getmetatable(L, 1);
    if (is_token) {
        luaL_getmetatable(L, TOKEN);
        is_token = lua_rawequal(L, -1, -2);
        lua_pop(L, 2);
    }
    if (!is_token)
        host_fail(L, "scope_end: expected what scope_begin returned, got %s (argument 1)",
                  host_describe(L, 1, text, sizeof text));
    host_scope *scope = lua_touserdata(L, 1);
    host_current = L;
    if (!is_open(scope)) return lua_gettop(L) - 1;
    adopt_inner(scope);
    for (int i = 2, top = lua_gettop(L); i <= top; i++) host_walk(L, i, 0, hand_out, scope);
    close_scope(scope);
    return lua_gettop(L) - 1;
}

/* A loop that was left without an end: its tensors are the collector's. */
static int collect(lua_State *L)
{
    host_scope *scope = luaL_checkudata(L, 1, TOKEN);
    while (scope->first) host_move(scope->first, NULL);
    unlink_scope(scope);
    host_reason_drop(scope->reason);
    scope->reason = NULL;
    return 0;
}

void host_open_scope(lua_State *L)
{
    luaL_newmetatable(L, TOKEN);
    lua_pushcfunction(L, collect);
    lua_setfield(L, -2, "__gc");
    lua_pushliteral(L, "scope");
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
}

static int is_grad_enabled(lua_State *L)
{
    lua_pushboolean(L, ul_grad_enabled());
    return 1;
}

static const host_frame scope_frame = {"scope", -1}, no_grad_frame = {NULL, 0},
                        enable_grad_frame = {NULL, 1};

const host_function host_scopes[] = {
    {"scope", call_in_frame, &scope_frame, HOST_MODULE},
    {"no_grad", call_in_frame, &no_grad_frame, HOST_MODULE},
    {"enable_grad", call_in_frame, &enable_grad_frame, HOST_MODULE},
    {"is_grad_enabled", is_grad_enabled, NULL, HOST_MODULE},
    {"scoped", scoped, NULL, HOST_MODULE},
    {"scope_begin", begin, NULL, HOST_MODULE},
    {"scope_end", end, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
