/* tensor.c - the tensor userdata: lifetime, fields, and methods that only look. */
#include <string.h>

#include "host.h"

static const char metatable_key; /* in the registry */

/* ---- lifetime ---- */

static void push_metatable(lua_State *L)
{
    lua_pushlightuserdata(L, (void *)&metatable_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
}

host_box *host_new(lua_State *L)
{
    host_current = L;
    if (host_collecting) host_fail(L, "a finaliser may not make tensors");
    luaL_checkstack(L, 4, "too many tensors");
    host_box *box = lua_newuserdata(L, sizeof *box);
    memset(box, 0, sizeof *box);
    push_metatable(L);
    lua_setmetatable(L, -2);
    host_move(box, host_scope_current(L));
    return box;
}

host_box *host_to_box(lua_State *L, int i)
{
    if (lua_type(L, i) != LUA_TUSERDATA || lua_objlen(L, i) != sizeof(host_box)) return NULL;
    if (!lua_getmetatable(L, i)) return NULL;
    push_metatable(L);
    int same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same ? lua_touserdata(L, i) : NULL;
}

void host_end(host_box *box, host_reason *reason)
{
    host_move(box, NULL);
    if (!box->t || box->ended) return;
    if (reason) reason->refs++;
    box->reason = reason;
    box->ended = 1;
    if (box->pins) return;
    ul_tensor *t = box->t;
    box->t = NULL; /* first: freeing may end in the binding again */
    ul_tensor_free(t);
}

void host_unpin(host_box *box)
{
    if (--box->pins || !box->ended) return;
    ul_tensor *t = box->t;
    box->t = NULL;
    ul_tensor_free(t);
}

static int collect(lua_State *L)
{
    host_box *box = host_to_box(L, 1);
    if (!box) return 0;
    ul_tensor *t = box->t;
    lua_State *before = host_current;
    host_dropped += t != NULL;
    host_move(box, NULL);
    host_reason_drop(box->reason);
    box->t = NULL;
    box->reason = NULL;
    host_current = L; /* nodes of the tape may go with it */
    ul_tensor_free(t);
    host_current = before;
    return 0;
}

static int keep(lua_State *L)
{
    host_arguments(L, "keep", 1);
    host_tensor(L, 1, "keep");
    host_move(host_to_box(L, 1), NULL);
    return 1;
}

static int free_now(lua_State *L)
{
    host_arguments(L, "free", 1);
    host_box *box = host_to_box(L, 1);
    if (!box || host_collecting) host_tensor(L, 1, "free");
    host_current = L;
    host_end(box, NULL);
    return 0;
}

/* swap(a, b): each is the tensor that the other was, wherever it is held */
static int swap(lua_State *L)
{
    host_arguments(L, "swap", 2);
    host_tensor(L, 1, "swap");
    host_tensor(L, 2, "swap");
    host_box *a = host_to_box(L, 1), *b = host_to_box(L, 2);
    ul_tensor *t = a->t;
    a->t = b->t;
    b->t = t;
    return 0;
}

/* ---- what it is ---- */

static int size(lua_State *L)
{
    host_arguments(L, "size", 2);
    int64_t dim = host_integer_or(L, 2, "size", "dim", 0);
    int all = lua_isnil(L, 2);
    ul_tensor *x = host_tensor(L, 1, "size");
    int ndim = ul_tensor_ndim(x);
    if (!all) {
        lua_pushnumber(L, (lua_Number)ul_tensor_dim(x, host_dim(L, "size", dim, ndim)));
        return 1;
    }
    for (int d = 0; d < ndim; d++) lua_pushnumber(L, (lua_Number)ul_tensor_dim(x, d));
    return ndim;
}

static int stride(lua_State *L)
{
    host_arguments(L, "stride", 2);
    int64_t dim = host_integer_or(L, 2, "stride", "dim", 0);
    int all = lua_isnil(L, 2);
    ul_tensor *x = host_tensor(L, 1, "stride");
    int ndim = ul_tensor_ndim(x);
    const int64_t *strides = ul_tensor_strides(x);
    if (!all) {
        lua_pushnumber(L, (lua_Number)strides[host_dim(L, "stride", dim, ndim)]);
        return 1;
    }
    for (int d = 0; d < ndim; d++) lua_pushnumber(L, (lua_Number)strides[d]);
    return ndim;
}

static int dim(lua_State *L)
{
    host_arguments(L, "dim", 1);
    lua_pushinteger(L, ul_tensor_ndim(host_tensor(L, 1, "dim")));
    return 1;
}

static int numel(lua_State *L)
{
    host_arguments(L, "numel", 1);
    lua_pushnumber(L, (lua_Number)ul_tensor_size(host_tensor(L, 1, "numel")));
    return 1;
}

static int dtype(lua_State *L)
{
    host_arguments(L, "dtype", 1);
    lua_pushstring(L, ul_dtype_name(ul_tensor_dtype(host_tensor(L, 1, "dtype"))));
    return 1;
}

static int device(lua_State *L)
{
    host_arguments(L, "device", 1);
    lua_pushstring(L, ul_device_name(ul_tensor_device(host_tensor(L, 1, "device"))));
    return 1;
}

static int is_contiguous(lua_State *L)
{
    host_arguments(L, "is_contiguous", 1);
    lua_pushboolean(L, ul_tensor_is_contiguous(host_tensor(L, 1, "is_contiguous")));
    return 1;
}

static int is_tensor(lua_State *L)
{
    lua_pushboolean(L, host_to_box(L, 1) != NULL);
    return 1;
}

/* Whether it has not been freed. */
static int is_alive(lua_State *L)
{
    host_box *box = host_to_box(L, 1);
    lua_pushboolean(L, box && box->t);
    return 1;
}

static int push_shape(lua_State *L, ul_tensor *x)
{
    int ndim = ul_tensor_ndim(x);
    int64_t shape[UL_MAX_DIMS];
    for (int d = 0; d < ndim; d++) shape[d] = ul_tensor_dim(x, d);
    lua_createtable(L, ndim, 0);
    for (int d = 0; d < ndim; d++) {
        lua_pushnumber(L, (lua_Number)shape[d]);
        lua_rawseti(L, -2, d + 1);
    }
    return 1;
}

/* ---- values ---- */

static int item(lua_State *L)
{
    static const int64_t first[UL_MAX_DIMS];
    double value;
    host_arguments(L, "item", 1);
    ul_tensor *x = host_tensor(L, 1, "item");
    if (ul_tensor_device(x) == UL_META) host_fail(L, "item: a meta tensor has no values");
    if (ul_tensor_size(x) != 1)
        host_fail(L, "item: the tensor has %lld elements, not one", (long long)ul_tensor_size(x));
    host_check(L, ul_tensor_get(&value, x, first));
    lua_pushnumber(L, value);
    return 1;
}

/* Values to be read in order: no history, on the host, contiguous, f32 for bf16. */
static int plain(ul_tensor **y, ul_tensor *x)
{
    ul_tensor *bare = NULL, *wide = NULL, *near = NULL;
    int rc = ul_detach(&bare, x);
    if (rc == UL_OK)
        rc = ul_cast(&wide, bare, ul_tensor_dtype(x) == UL_BF16 ? UL_F32 : ul_tensor_dtype(x));
    if (rc == UL_OK) rc = ul_to_device(&near, wide, UL_CPU);
    if (rc == UL_OK) rc = ul_contiguous(y, near);
    ul_tensor_free(bare);
    ul_tensor_free(wide);
    ul_tensor_free(near);
    return rc;
}

static double element(const void *data, ul_dtype type, int64_t i)
{
    switch (type) {
    case UL_F32:
        return ((const float *)data)[i];
    case UL_F64:
        return ((const double *)data)[i];
    case UL_I32:
        return ((const int32_t *)data)[i];
    case UL_I64:
        return (double)((const int64_t *)data)[i];
    default:
        return ((const uint8_t *)data)[i];
    }
}

/* Pushes the elements from *next on, nested as dims d, d + 1, ... are. */
static void push_elements(lua_State *L, ul_tensor *x, int d, int64_t *next)
{
    if (d == ul_tensor_ndim(x)) {
        lua_pushnumber(L, element(ul_tensor_data(x), ul_tensor_dtype(x), (*next)++));
        return;
    }
    int64_t n = ul_tensor_dim(x, d);
    if (n > INT32_MAX) host_fail(L, "tolist: dim %d has %lld elements", d + 1, (long long)n);
    lua_createtable(L, (int)n, 0);
    for (int64_t i = 1; i <= n; i++) {
        push_elements(L, x, d + 1, next);
        lua_rawseti(L, -2, (int)i);
    }
}

static int tolist(lua_State *L)
{
    int64_t next = 0;
    host_arguments(L, "tolist", 1);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "tolist");
    if (ul_tensor_device(x) == UL_META) host_fail(L, "tolist: a meta tensor has no values");
    host_check(L, plain(&y->t, x));
    luaL_checkstack(L, UL_MAX_DIMS + 4, "tolist");
    push_elements(L, y->t, 0, &next);
    host_end(y, NULL);
    return 1;
}

/* The address and the dtype: init.lua makes a typed pointer of it. */
static int data(lua_State *L)
{
    host_arguments(L, "data", 1);
    ul_tensor *x = host_tensor(L, 1, "data");
    if (ul_tensor_device(x) == UL_META) host_fail(L, "data: a meta tensor has no values");
    if (ul_tensor_device(x) == UL_CUDA)
        host_fail(L, "data: the tensor is on %s; take x:to 'cpu'", ul_device_name(UL_CUDA));
    if (!ul_tensor_is_contiguous(x))
        host_fail(L, "data: the tensor is not contiguous; take x:contiguous()");
    if (ul_is_sharded(x))
        host_fail(L, "data: the weight is sharded, and its memory comes and goes; take x:clone()");
    lua_pushlightuserdata(L, ul_tensor_data(x));
    lua_pushstring(L, ul_dtype_name(ul_tensor_dtype(x)));
    return 2;
}

/* ---- gradients ---- */

static int require_grad(lua_State *L)
{
    host_arguments(L, "requires_grad_", 2);
    int on = host_boolean(L, 2, "requires_grad_", "argument 2", 1);
    host_check(L, ul_tensor_require_grad(host_tensor(L, 1, "requires_grad_"), on));
    lua_settop(L, 1);
    return 1;
}

static int retain_grad(lua_State *L)
{
    host_arguments(L, "retain_grad", 1);
    host_check(L, ul_tensor_retain_grad(host_tensor(L, 1, "retain_grad")));
    return 1;
}

static int backward(lua_State *L)
{
    static const char *const names[] = {"retain", NULL};
    host_arguments(L, "backward", 3);
    int options = lua_type(L, 2) == LUA_TTABLE ? 2 : 3;
    host_options(L, options, "backward", names, 0);
    int retain = host_option_boolean(L, options, "backward", "retain", 0);
    ul_tensor *seed = options == 2 ? NULL : host_tensor_or_nil(L, 2, "backward");
    host_check(L, ul_backward(host_tensor(L, 1, "backward"), seed, retain));
    return 0;
}

static int push_grad(lua_State *L)
{
    host_box *y = host_new(L);
    host_check(L, ul_tensor_grad(&y->t, host_tensor(L, 1, "grad")));
    if (!y->t) lua_pushnil(L);
    return 1;
}

/* ---- fields ---- */

/* x.name, x[3], x[{ {1, 3}, {} }], x['1:3, :']; the methods are upvalue 1 */
static int get_field(lua_State *L)
{
    if (lua_type(L, 2) != LUA_TSTRING) return host_index(L);
    lua_pushvalue(L, 2);
    lua_rawget(L, lua_upvalueindex(1));
    if (!lua_isnil(L, -1)) return 1;
    lua_pop(L, 1);

    const char *name = lua_tostring(L, 2);
    if (strcmp(name, "shape") == 0) return push_shape(L, host_tensor(L, 1, "shape"));
    if (strcmp(name, "grad") == 0) return push_grad(L);
    if (strcmp(name, "requires_grad") == 0) {
        lua_pushboolean(L, ul_tensor_requires_grad(host_tensor(L, 1, name)));
        return 1;
    }
    if (strcmp(name, "is_leaf") == 0) {
        lua_pushboolean(L, ul_tensor_is_leaf(host_tensor(L, 1, name)));
        return 1;
    }
    if (name[0] == 0 || strchr("0123456789+-.,: ", name[0])) return host_index(L);

    const char *names[256] = {"shape", "grad", "requires_grad", "is_leaf"};
    char text[128];
    int n = 4;
    for (lua_pushnil(L); n < 255 && lua_next(L, lua_upvalueindex(1)); lua_pop(L, 1))
        if (lua_type(L, -2) == LUA_TSTRING) names[n++] = lua_tostring(L, -2);
    host_suggest(text, sizeof text, name, names);
    return host_fail(L, "a tensor has no '%.40s'%s", name, text);
}

static int set_field(lua_State *L)
{
    const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (strcmp(name, "grad") == 0) {
        ul_tensor *grad = host_tensor_or_nil(L, 3, "grad");
        host_check(L, ul_tensor_set_grad(host_tensor(L, 1, "grad"), grad));
        return 0;
    }
    if (strcmp(name, "requires_grad") == 0) {
        int on = host_boolean(L, 3, "requires_grad", "the value", 0);
        host_check(L, ul_tensor_require_grad(host_tensor(L, 1, "requires_grad"), on));
        return 0;
    }
    if ((name[0] >= 'a' && name[0] <= 'z') || (name[0] >= 'A' && name[0] <= 'Z') || name[0] == '_')
        host_fail(L, "a tensor's '%.40s' cannot be set; 'grad' and 'requires_grad' can", name);
    return host_assign(L);
}

static int length(lua_State *L)
{
    ul_tensor *x = host_tensor(L, 1, "#");
    if (ul_tensor_ndim(x) == 0) host_fail(L, "#: a tensor without dims has no length");
    lua_pushnumber(L, (lua_Number)ul_tensor_dim(x, 0));
    return 1;
}

void host_open_tensor(lua_State *L, int core)
{
    push_metatable(L);
    if (lua_isnil(L, -1)) { /* another require of the module reuses it */
        lua_pop(L, 1);
        lua_newtable(L);
        lua_pushlightuserdata(L, (void *)&metatable_key);
        lua_pushvalue(L, -2);
        lua_rawset(L, LUA_REGISTRYINDEX);
    }
    lua_getfield(L, core, "methods");
    lua_pushcclosure(L, get_field, 1);
    lua_setfield(L, -2, "__index");
    static const luaL_Reg functions[] = {
        {"__newindex", set_field}, {"__len", length}, {"__gc", collect}, {NULL, NULL}};
    luaL_register(L, NULL, functions);
    host_arithmetic(L);
    lua_pushliteral(L, "tensor");
    lua_setfield(L, -2, "__metatable"); /* getmetatable() gives this */
    lua_setfield(L, core, "metatable");
}

const host_function host_fields[] = {
    {"size", size, NULL, HOST_METHOD},
    {"stride", stride, NULL, HOST_METHOD},
    {"dim", dim, NULL, HOST_METHOD},
    {"numel", numel, NULL, HOST_METHOD},
    {"dtype", dtype, NULL, HOST_METHOD},
    {"device", device, NULL, HOST_METHOD},
    {"is_contiguous", is_contiguous, NULL, HOST_METHOD},
    {"is_tensor", is_tensor, NULL, HOST_MODULE},
    {"is_alive", is_alive, NULL, HOST_MODULE},
    {"swap", swap, NULL, HOST_MODULE},
    {"keep", keep, NULL, HOST_METHOD},
    {"free", free_now, NULL, HOST_METHOD},
    {"item", item, NULL, HOST_METHOD},
    {"tolist", tolist, NULL, HOST_METHOD},
    {"data", data, NULL, HOST_METHOD},
    {"requires_grad_", require_grad, NULL, HOST_METHOD},
    {"retain_grad", retain_grad, NULL, HOST_METHOD},
    {"backward", backward, NULL, HOST_METHOD},
    {NULL, NULL, NULL, 0},
};
