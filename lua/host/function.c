/* function.c - Lua functions as nodes of the tape.
 *
 * A node keeps a table { backward, context } in the registry. Tensors that the context holds,
 * directly or in tables, are pinned while the node lives, so that no scope ends them.
 */
#include <stdio.h>
#include <stdlib.h>

#include "host.h"

typedef struct node {
    int reference; /* of { backward, context, places of tensors among the arguments, pinned } in the
                      registry */
    char name[48];
    int n_pinned;
    host_box *pinned[];
} node;

enum { FORWARD = 1, BACKWARD, NAME, CAPTURES }; /* upvalues of a function that ul.fn has made */

static void release(void *context)
{
    node *n = context;
    for (int i = 0; i < n->n_pinned; i++) host_unpin(n->pinned[i]);
    if (host_current) luaL_unref(host_current, LUA_REGISTRYINDEX, n->reference);
    free(n);
}

/* ---- backward ---- */

typedef struct passing {
    node *node;
    ul_tensor **dx;
    ul_tensor *const *dy;
    int n_in, n_out;
} passing;

/* The k-th result of the Lua rule as the gradient of an input. */
static ul_tensor *read_gradient(lua_State *L, const node *n, int at, int k)
{
    char text[64];
    if (lua_isnoneornil(L, at)) return NULL;
    if (!host_to_box(L, at))
        host_fail(L, "%s: backward returned %s as gradient %d, expected a tensor or nil", n->name,
                  host_describe(L, at, text, sizeof text), k);
    return host_tensor(L, at, n->name);
}

/* Runs in a protected call: argument 1 is what is passed in and out. */
static int run_backward(lua_State *L)
{
    passing *p = lua_touserdata(L, 1);
    char name[80];
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
    snprintf(name, sizeof name, "the backward of %s", p->node->name);
    if (host_call(L, &(host_frame){name, 0}, p->n_out + 1) != 0) return lua_error(L);
    int got = lua_gettop(L) - 2;
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

static int call_backward(void *context, ul_tensor **dx, int n_in, ul_tensor *const *dy, int n_out)
{
    passing p = {context, dx, dy, n_in, n_out};
    lua_State *L = host_current; /* a coroutine may be what runs backward */
    if (!lua_checkstack(L, 4)) return UL_ENOMEM;
    lua_pushcfunction(L, run_backward);
    lua_pushlightuserdata(L, &p);
    int rc = lua_pcall(L, 1, 0, 0);
    host_current = L;
    if (rc == 0) return UL_OK;
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

/* The node for the context at `context`; its table in the registry holds what it needs. */
static node *node_new(lua_State *L, int context, int places)
{
    pinning count = {0, 0, NULL};
    host_walk(L, context, 1, pin_box, &count);
    node *n = malloc(sizeof *n + (size_t)count.n * sizeof *n->pinned);
    if (!n) host_fail(L, "%s: out of memory", lua_tostring(L, lua_upvalueindex(NAME)));
    *n = (node){.n_pinned = count.n};
    snprintf(n->name, sizeof n->name, "%s", lua_tostring(L, lua_upvalueindex(NAME)));
    lua_createtable(L, 4, 0);
    lua_createtable(L, count.n, 0);
    pinning pins = {0, lua_gettop(L), n->pinned};
    host_walk(L, context, 1, pin_box, &pins);
    lua_rawseti(L, -2, 4);
    lua_pushvalue(L, lua_upvalueindex(BACKWARD));
    lua_rawseti(L, -2, 1);
    lua_pushvalue(L, context);
    lua_rawseti(L, -2, 2);
    lua_pushvalue(L, places);
    lua_rawseti(L, -2, 3);
    n->reference = luaL_ref(L, LUA_REGISTRYINDEX);
    return n;
}

/* Arguments 1 to n_args that are tensors: into inputs, and their places into the table at `places`.
 */
static int find_inputs(lua_State *L, int n_args, ul_tensor **inputs, int places)
{
    const char *name = lua_tostring(L, lua_upvalueindex(NAME));
    int n = 0;
    for (int i = 1; i <= n_args; i++) {
        if (!host_to_box(L, i)) continue;
        inputs[n++] = host_tensor(L, i, name);
        lua_pushinteger(L, i);
        lua_rawseti(L, places, n);
    }
    return n;
}

/* Replaces the results from `first` on that are tensors by boxes of their own, which the node may
 * become the history of: those that forward returned may also sit in the context, which the node
 * holds.
 */
static int fresh_outputs(lua_State *L, int first, int last, host_box **boxes)
{
    const char *name = lua_tostring(L, lua_upvalueindex(NAME));
    int n = 0;
    for (int i = first; i <= last; i++) {
        if (!host_to_box(L, i)) continue;
        host_box *box = host_new(L);
        box->t = ul_tensor_retain(host_tensor(L, i, name));
        boxes[n++] = box;
        lua_replace(L, i);
    }
    return n;
}

/* name(...): runs forward(context, ...) without gradients and records it. */
static int call_function(lua_State *L)
{
    int n_args = lua_gettop(L), context = n_args + 1, places = n_args + 2, first = n_args + 4;
    const char *name = lua_tostring(L, lua_upvalueindex(NAME));
    int captures = lua_toboolean(L, lua_upvalueindex(CAPTURES));
    luaL_checkstack(L, n_args + 16, name);
    lua_newtable(L);
    lua_newtable(L);
    ul_tensor **inputs = lua_newuserdata(L, (size_t)n_args * sizeof *inputs + 1);
    int n_in = find_inputs(L, n_args, inputs, places);
    int seen_before = ul_grad_was_seen();

    lua_pushvalue(L, lua_upvalueindex(FORWARD));
    lua_pushvalue(L, context);
    for (int i = 1; i <= n_args; i++) lua_pushvalue(L, i);
    int rc = host_call(L, &(host_frame){NULL, 0}, n_args + 1);
    int force = captures && ul_grad_was_seen();
    if (seen_before || force) ul_grad_mark_seen();
    if (rc != 0) return lua_error(L);

    int last = lua_gettop(L), count = last - first + 1;
    luaL_checkstack(L, count + 16, name);
    ul_tensor **outputs = lua_newuserdata(L, (size_t)count * sizeof *outputs + 1);
    host_box **boxes = lua_newuserdata(L, (size_t)count * sizeof *boxes + 1);
    int n_out = fresh_outputs(L, first, last, boxes);
    if (ul_grad_enabled() && n_out > 0) {
        node *n = node_new(L, context, places);
        for (int i = 0; i < n_in; i++) inputs[i] = NULL;
        for (int i = 1, k = 0; i <= n_args; i++)
            if (host_to_box(L, i)) inputs[k++] = host_tensor(L, i, name);
        for (int i = 0; i < n_out; i++) outputs[i] = boxes[i]->t;
        ul_custom custom = {n->name, call_backward, release, n};
        int recorded = ul_custom_record(&custom, inputs, n_in, outputs, n_out, force);
        for (int i = 0; i < n_out; i++) boxes[i]->t = outputs[i];
        host_check(L, recorded);
    }
    lua_settop(L, last);
    return count;
}

/* fn { forward =, backward =, name = } -> a function. forward(context, ...) returns tensors;
 * backward(context, d_output, ...) returns one gradient, or nil, for each argument. `captures`:
 * forward may use tensors that require grad without being given them.
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
    int n;
    host_arguments(L, op, 3);
    host_options(L, 3, op, names, 0);
    int retain = host_option_boolean(L, 3, op, "retain", 0);
    if (!lua_istable(L, 2)) host_fail(L, "backward: expected a list of gradients (argument 2)");
    ul_tensor **losses = host_list(L, 1, op, &n);
    ul_tensor **seeds = lua_newuserdata(L, (size_t)n * sizeof *seeds + 1);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, 2, i + 1);
        seeds[i] = lua_toboolean(L, -1) ? host_tensor(L, lua_gettop(L), op) : NULL;
        lua_pop(L, 1);
    }
    int any = 0;
    for (int i = 0; i < n; i++) any |= seeds[i] != NULL;
    if (any) host_check(L, ul_backward_all(losses, seeds, n, retain));
    return 0;
}

const host_function host_nodes[] = {
    {"fn", fn, NULL, HOST_MODULE},
    {"backward", backward_all, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
