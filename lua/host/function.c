/* function.c - Lua functions as nodes of the tape.
 *
 * A node keeps { backward, context, places of tensors among the arguments, pinned } in the
 * registry. Tensors that the context holds, directly or in plain tables, are pinned while the node
 * lives: no scope ends them before, and what a scope has ended meanwhile is freed with the node.
 */
#include <stdio.h>
#include <stdlib.h>

#include "host.h"

typedef struct node {
    const void *vm; /* the registry that `reference` is of */
    int reference;
    char name[48];
    int n_pinned;
    host_box *pinned[];
} node;

enum { FORWARD = 1, BACKWARD, NAME, CAPTURES }; /* upvalues of a function that ul.fn has made */

static int in_state_of(const node *n, lua_State *L)
{
    return L && lua_topointer(L, LUA_REGISTRYINDEX) == n->vm;
}

/* A state that is gone has taken its boxes and its registry along. */
static void release(void *context)
{
    node *n = context;
    if (in_state_of(n, host_current)) {
        for (int i = 0; i < n->n_pinned; i++) host_unpin(n->pinned[i]);
        luaL_unref(host_current, LUA_REGISTRYINDEX, n->reference);
    }
    free(n);
}

/* ---- backward ---- */

typedef struct passing {
    node *node;
    ul_tensor **dx;
    ul_tensor *const *dy;
    int n_in, n_out;
} passing;

/* The k-th result of the Lua rule as the gradient of an argument. */
static ul_tensor *read_gradient(lua_State *L, const node *n, int at, int k)
{
    char text[64];
    if (lua_isnoneornil(L, at)) return NULL;
    if (!host_to_box(L, at))
        host_fail(L, "%s: backward returned %s as gradient %d, expected a tensor or nil", n->name,
                  host_describe(L, at, text, sizeof text), k);
    return host_tensor(L, at, n->name);
}

/* In the scope of one backward: argument 1 is what is passed in and out. Results are taken over
 * here, so that the scope ends all boxes.
 */
static int run_backward(lua_State *L)
{
    passing *p = lua_touserdata(L, 1);
    luaL_checkstack(L, p->n_out + 8, "backward");
    lua_rawgeti(L, LUA_REGISTRYINDEX, p->node->reference);
    lua_rawgeti(L, 2, 1); /* backward */
    lua_rawgeti(L, 2, 2); /* context */
    for (int i = 0; i < p->n_out; i++) {
        if (!p->dy[i]) {
            lua_pushnil(L);
            continue;
        }
        host_box *box = host_new(L);
        box->t = ul_tensor_retain(p->dy[i]);
    }
    lua_call(L, p->n_out + 1, LUA_MULTRET);

    int got = lua_gettop(L) - 2;
    luaL_checkstack(L, 8, "backward");
    lua_rawgeti(L, 2, 3); /* which arguments were tensors */
    int places = lua_gettop(L);
    for (int i = 0; i < p->n_in; i++) {
        lua_rawgeti(L, places, i + 1);
        int argument = (int)lua_tointeger(L, -1);
        lua_pop(L, 1);
        ul_tensor *g = argument <= got ? read_gradient(L, p->node, 2 + argument, argument) : NULL;
        p->dx[i] = ul_tensor_retain(g);
    }
    return 0;
}

static int protect_backward(lua_State *L)
{
    const passing *p = lua_touserdata(L, 1);
    char name[80];
    snprintf(name, sizeof name, "the backward of %s", p->node->name);
    lua_pushcfunction(L, run_backward);
    lua_insert(L, 1);
    if (host_call(L, &(host_frame){name, 0}, 1) != 0) return lua_error(L);
    return 0;
}

/* Says in the message on top of the stack whose backward it was; errors that are no text stay. */
static void add_name(lua_State *L, const char *name)
{
    if (lua_type(L, -1) != LUA_TSTRING) return;
    lua_getfield(L, LUA_REGISTRYINDEX, "ulysses.error");
    int traced = lua_rawequal(L, -1, -2);
    lua_pop(L, 1);
    lua_pushfstring(L, "%s (in the backward of %s)", lua_tostring(L, -1), name);
    lua_remove(L, -2);
    if (!traced) return;
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, "ulysses.error");
}

static int call_backward(void *context, ul_tensor **dx, int n_in, ul_tensor *const *dy, int n_out)
{
    passing p = {context, dx, dy, n_in, n_out};
    lua_State *L = host_current; /* a coroutine may be what runs backward */
    if (!in_state_of(p.node, L) || !lua_checkstack(L, 4)) return UL_ECALL;
    lua_pushcfunction(L, protect_backward);
    lua_pushlightuserdata(L, &p);
    int rc = lua_pcall(L, 1, 0, 0);
    host_current = L;
    if (rc == 0) return UL_OK;
    add_name(L, p.node->name);
    host_keep_error(L);
    return UL_ECALL;
}

/* ---- forward ---- */

typedef struct pinning {
    int n, keeper; /* the table that keeps them, once `list` is there */
    host_box **list;
} pinning;

/* Counts the tensors of a context; with a list, pins them. The value is on top of the stack. */
static void pin_box(lua_State *L, host_box *box, void *context)
{
    pinning *p = context;
    if (p->list) {
        lua_pushvalue(L, -1);
        lua_rawseti(L, p->keeper, p->n + 1);
        p->list[p->n] = box;
        box->pins++;
    }
    p->n++;
}

/* What forward's call is given and what it leaves. */
typedef struct recording {
    const char *name;
    int wanted; /* whether there is to be a node */
    node *node;
} recording;

/* The node for the context at `context`, of a call with the backward and places given. */
static node *node_new(lua_State *L, const char *name, int backward, int context, int places)
{
    pinning count = {0, 0, NULL};
    host_walk(L, context, 1, pin_box, &count);
    lua_createtable(L, 4, 0);
    lua_pushvalue(L, backward);
    lua_rawseti(L, -2, 1);
    lua_pushvalue(L, context);
    lua_rawseti(L, -2, 2);
    lua_pushvalue(L, places);
    lua_rawseti(L, -2, 3);
    lua_createtable(L, count.n, 0);
    lua_pushvalue(L, -1);
    lua_rawseti(L, -3, 4);
    int keeper = lua_gettop(L);
    node *n = malloc(sizeof *n + (size_t)count.n * sizeof *n->pinned);
    if (!n) host_fail(L, "%s: out of memory", name);
    *n = (node){.vm = lua_topointer(L, LUA_REGISTRYINDEX), .n_pinned = count.n};
    snprintf(n->name, sizeof n->name, "%s", name);
    pinning pins = {0, keeper, n->pinned};
    host_walk(L, context, 1, pin_box, &pins);
    lua_pop(L, 1);
    n->reference = luaL_ref(L, LUA_REGISTRYINDEX);
    return n;
}

/* In forward's scope: argument 1 is the recording, 2 backward, 3 the places, 4 forward, 5 the
 * context, then those of the call. Results that are tensors get boxes of their own, which the node
 * may become the history of: those that forward returned may also sit in the context, which the
 * node holds.
 */
static int run_forward(lua_State *L)
{
    recording *r = lua_touserdata(L, 1);
    int first = lua_gettop(L) + 1, n_args = lua_gettop(L) - 5;
    luaL_checkstack(L, n_args + 12, r->name);
    lua_pushvalue(L, 4);
    for (int i = 5; i < first; i++) lua_pushvalue(L, i);
    lua_call(L, n_args + 1, LUA_MULTRET);
    int last = lua_gettop(L);
    luaL_checkstack(L, 12, r->name);
    for (int i = first; i <= last; i++) {
        if (!host_to_box(L, i)) continue;
        host_box *box = host_new(L);
        box->t = ul_tensor_retain(host_tensor(L, i, r->name));
        lua_replace(L, i);
    }
    if (r->wanted) r->node = node_new(L, r->name, 2, 5, 3);
    return last - first + 1;
}

/* Places of tensors among the arguments, into the table at `places`; returns how many. */
static int find_tensors(lua_State *L, int n_args, int places)
{
    int n = 0;
    for (int i = 1; i <= n_args; i++) {
        if (!host_to_box(L, i)) continue;
        lua_pushinteger(L, i);
        lua_rawseti(L, places, ++n);
    }
    return n;
}

/* Records the node with the tensors among arguments 1 to n_args and results first to last. */
static void record(lua_State *L, recording *r, int n_args, int n_in, int first, int last, int force)
{
    int n_out = 0, count = last - first + 1, i = 0;
    ul_tensor **inputs = lua_newuserdata(L, (size_t)n_in * sizeof *inputs + 1);
    ul_tensor **outputs = lua_newuserdata(L, (size_t)count * sizeof *outputs + 1);
    host_box **boxes = lua_newuserdata(L, (size_t)count * sizeof *boxes + 1);
    for (int at = 1; at <= n_args; at++) {
        host_box *box = host_to_box(L, at);
        if (!box) continue;
        if (!box->t) { /* forward has freed it */
            release(r->node);
            host_tensor(L, at, r->name);
        }
        inputs[i++] = box->t;
    }
    for (int at = first; at <= last; at++) {
        host_box *box = host_to_box(L, at);
        if (!box) continue;
        boxes[n_out] = box;
        outputs[n_out++] = box->t;
    }
    ul_custom custom = {r->node->name, call_backward, release, r->node};
    int rc = ul_custom_record(&custom, inputs, n_in, outputs, n_out, force);
    for (int k = 0; k < n_out; k++) boxes[k]->t = outputs[k];
    host_check(L, rc);
}

/* name(...): runs forward(context, ...) in a scope without gradients and records it. */
static int call_function(lua_State *L)
{
    int n_args = lua_gettop(L), context = n_args + 1, places = n_args + 2, first = n_args + 3;
    int captures = lua_toboolean(L, lua_upvalueindex(CAPTURES));
    recording r = {lua_tostring(L, lua_upvalueindex(NAME)), ul_grad_enabled(), NULL};
    luaL_checkstack(L, n_args + 16, r.name);
    host_current = L;
    lua_newtable(L);
    lua_newtable(L);
    int n_in = find_tensors(L, n_args, places);
    int seen_before = ul_grad_was_seen();

    lua_pushcfunction(L, run_forward);
    lua_pushlightuserdata(L, &r);
    lua_pushvalue(L, lua_upvalueindex(BACKWARD));
    lua_pushvalue(L, places);
    lua_pushvalue(L, lua_upvalueindex(FORWARD));
    lua_pushvalue(L, context);
    for (int i = 1; i <= n_args; i++) lua_pushvalue(L, i);
    int rc = host_call(L, &(host_frame){r.name, 0}, n_args + 5);
    int force = captures && ul_grad_was_seen();
    if (seen_before || force) ul_grad_mark_seen();
    if (rc != 0) {
        if (r.node) release(r.node);
        return lua_error(L);
    }
    int last = lua_gettop(L);
    if (r.node) {
        luaL_checkstack(L, 12, r.name);
        record(L, &r, n_args, n_in, first, last, force);
        lua_settop(L, last);
    }
    return last - first + 1;
}

/* fn { forward =, backward =, name = } -> a function. forward(context, ...) returns tensors;
 * backward(context, d_output, ...), one for each tensor returned and nil where no gradient arrived,
 * returns one gradient, or nil, for each argument. `captures`: forward may use tensors that require
 * grad without being given them.
 */
static int fn(lua_State *L)
{
    static const char *const names[] = {"forward", "backward", "name", "captures", NULL};
    host_arguments(L, "fn", 1);
    if (!lua_istable(L, 1)) host_fail(L, "fn: expected a table { forward =, backward = }");
    host_options(L, 1, "fn", names, 0);
    for (int i = 0; i < 2; i++) {
        host_option(L, 1, names[i]);
        if (!lua_isfunction(L, -1)) host_fail(L, "fn: %s must be a function", names[i]);
    }
    if (!host_option(L, 1, "name")) {
        lua_pop(L, 1);
        lua_pushliteral(L, "fn");
    }
    if (lua_type(L, -1) != LUA_TSTRING) host_fail(L, "fn: name must be a string");
    lua_pushboolean(L, host_option_boolean(L, 1, "fn", "captures", 0));
    lua_pushcclosure(L, call_function, 4);
    return 1;
}

/* backward({ y, .. }, { dy or false, .. }, { retain = }): from several results at once */
static int backward_all(lua_State *L)
{
    static const char *const names[] = {"retain", NULL};
    const char *op = "backward";
    int n, any = 0;
    host_arguments(L, op, 3);
    host_options(L, 3, op, names, 0);
    int retain = host_option_boolean(L, 3, op, "retain", 0);
    if (!lua_istable(L, 2)) host_fail(L, "backward: expected a list of gradients (argument 2)");
    ul_tensor **losses = host_list(L, 1, op, &n);
    ul_tensor **seeds = lua_newuserdata(L, (size_t)n * sizeof *seeds + 1);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, 2, i + 1);
        seeds[i] =
            lua_toboolean(L, -1) ? host_tensor_named(L, lua_gettop(L), op, "a gradient") : NULL;
        any |= seeds[i] != NULL;
        lua_pop(L, 1);
    }
    if (any) host_check(L, ul_backward_all(losses, seeds, n, retain));
    return 0;
}

const host_function host_nodes[] = {
    {"fn", fn, NULL, HOST_MODULE},
    {"backward", backward_all, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
