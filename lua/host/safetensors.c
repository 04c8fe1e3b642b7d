/* safetensors.c - files of tensors: an object for an open one, and writing. */
#include <ctype.h>
#include <string.h>

#include "host.h"

typedef struct box {
    ul_safetensors *file; /* NULL once closed */
} box;

static const char metatable[] = "ulysses.safetensors";

static box *to_box(lua_State *L)
{
    box *b = NULL;
    if (lua_type(L, 1) == LUA_TUSERDATA && lua_getmetatable(L, 1)) {
        luaL_getmetatable(L, metatable);
        if (lua_rawequal(L, -1, -2)) b = lua_touserdata(L, 1);
        lua_pop(L, 2);
    }
    if (!b) host_fail(L, "safetensors: expected an open file; call its methods with a colon");
    return b;
}

static ul_safetensors *to_file(lua_State *L)
{
    box *b = to_box(L);
    if (!b->file) host_fail(L, "safetensors: the file has been closed");
    return b->file;
}

static int close_file(lua_State *L)
{
    box *b = to_box(L);
    ul_safetensors_close(b->file);
    b->file = NULL;
    return 0;
}

/* safetensors_open(path) -> file, or nil and a sentence */
static int open_file(lua_State *L)
{
    const char *path = host_path(L, 1, "safetensors.open");
    box *b = lua_newuserdata(L, sizeof *b);
    b->file = NULL;
    luaL_getmetatable(L, metatable);
    lua_setmetatable(L, -2);
    int n = host_sentence(L, ul_safetensors_open(&b->file, path));
    return n ? n : 1;
}

/* ---- what there is ---- */

/* f:names() -> list, in the order in which the tensors lie in the file */
static int names(lua_State *L)
{
    ul_safetensors *file = to_file(L);
    int64_t n = ul_safetensors_count(file);
    lua_createtable(L, (int)n, 0);
    for (int64_t i = 0; i < n; i++) {
        lua_pushstring(L, ul_safetensors_at(file, i)->name);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

/* The entry named by the string at 2, or NULL. */
static const ul_safetensors_entry *find(lua_State *L, const char *op)
{
    char text[64];
    ul_safetensors *file = to_file(L);
    if (lua_type(L, 2) != LUA_TSTRING)
        host_fail(L, "%s: the name must be a string, got %s", op,
                  host_describe(L, 2, text, sizeof text));
    return ul_safetensors_find(file, lua_tostring(L, 2));
}

/* f:shape(name) -> list of sizes, or nil where there is no such tensor */
static int shape(lua_State *L)
{
    const ul_safetensors_entry *entry = find(L, "shape");
    if (!entry) return 0;
    lua_createtable(L, entry->ndim, 0);
    for (int d = 0; d < entry->ndim; d++) {
        lua_pushnumber(L, (lua_Number)entry->shape[d]);
        lua_rawseti(L, -2, d + 1);
    }
    return 1;
}

/* f:dtype(name) -> 'f32', 'bf16', 'f16', 'f8_e4m3', .., or nil where there is no such tensor */
static int dtype(lua_State *L)
{
    char text[32];
    const ul_safetensors_entry *entry = find(L, "dtype");
    if (!entry) return 0;
    int i = 0;
    for (; entry->dtype[i] && i < 31; i++) text[i] = (char)tolower((unsigned char)entry->dtype[i]);
    text[i] = 0;
    lua_pushstring(L, text);
    return 1;
}

static void add_pair(void *context, const char *key, const char *value)
{
    lua_State *L = context;
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
}

/* f:metadata() -> table of strings */
static int metadata(lua_State *L)
{
    ul_safetensors *file = to_file(L);
    lua_newtable(L);
    ul_safetensors_metadata(file, add_pair, L);
    return 1;
}

/* ---- reading ---- */

typedef struct want {
    int into;  /* where it is on the stack, or 0 */
    int dtype; /* -1: as the file has it */
    ul_device device;
    int64_t first, last; /* rows, from 1; last is included */
} want;

static want read_options(lua_State *L, const ul_safetensors_entry *entry)
{
    static const char *const known[] = {"into", "dtype", "device", "first", "last", NULL};
    const char *op = "get";
    host_options(L, 3, op, known, 0);
    int64_t rows = entry->ndim ? entry->shape[0] : 1;
    want w;
    w.dtype = host_option_choice(L, 3, op, "dtype", host_dtypes, -1);
    w.device = (ul_device)host_option_choice(L, 3, op, "device", host_devices, (int)host_device);
    w.first = host_option_integer(L, 3, op, "first", 1);
    w.into = host_option(L, 3, "into") ? lua_gettop(L) : 0;
    if (w.into && entry->ndim) { /* as many as it has room for */
        ul_tensor *into = host_tensor_named(L, w.into, op, "into");
        if (ul_tensor_ndim(into)) rows = w.first - 1 + ul_tensor_dim(into, 0);
    }
    w.last = host_option_integer(L, 3, op, "last", rows);
    rows = entry->ndim ? entry->shape[0] : 1;
    if (w.into && w.dtype >= 0)
        host_fail(L, "get: dtype: what is read into a tensor has its dtype");
    if (entry->ndim == 0 && (w.first != 1 || w.last != 1))
        host_fail(L, "get: '%.80s' has no dims, and so no rows", entry->name);
    if (w.first < 1 || w.last > rows || w.last < w.first - 1)
        host_fail(L, "get: rows %lld to %lld of '%.80s', which has %lld", (long long)w.first,
                  (long long)w.last, entry->name, (long long)rows);
    return w;
}

static int get_into(lua_State *L, ul_safetensors *file, const ul_safetensors_entry *entry,
                    const want *w)
{
    ul_tensor *into = host_tensor_named(L, w->into, "get", "into");
    if (ul_tensor_ndim(into) > 0 && ul_tensor_dim(into, 0) != w->last - w->first + 1)
        host_fail(L, "get: into has %lld rows, and %lld of '%.80s' were asked for",
                  (long long)ul_tensor_dim(into, 0), (long long)(w->last - w->first + 1),
                  entry->name);
    int n = host_sentence(L, ul_safetensors_read(into, file, entry, w->first - 1));
    if (n) return n;
    lua_pushvalue(L, w->into);
    return 1;
}

/* f:get(name, { into =, dtype =, device =, first =, last = }) -> tensor, nil where there is no
 * such tensor, or nil and a sentence */
static int get(lua_State *L)
{
    host_arguments(L, "get", 3);
    ul_safetensors *file = to_file(L);
    const ul_safetensors_entry *entry = find(L, "get");
    if (!entry) return 0;
    want w = read_options(L, entry);
    if (w.into) return get_into(L, file, entry, &w);
    ul_dtype type;
    host_check(L, ul_safetensors_dtype(&type, file, entry));
    if (w.dtype >= 0) type = (ul_dtype)w.dtype;
    int64_t sizes[UL_MAX_DIMS];
    memcpy(sizes, entry->shape, sizeof sizes);
    if (entry->ndim) sizes[0] = w.last - w.first + 1;
    host_box *y = host_new(L);
    host_check_as(L, "get", ul_tensor_new(&y->t, type, w.device, entry->ndim, sizes));
    int n = host_sentence(L, ul_safetensors_read(y->t, file, entry, w.first - 1));
    if (n) host_end(y, NULL);
    return n ? n : 1;
}

/* ---- writing ---- */

/* safetensors_save(path, names, tensors, pairs of metadata) -> bytes, hash, or nil and a sentence
 */
static int save(lua_State *L)
{
    const char *op = "safetensors.save", *path = host_path(L, 1, op);
    int n;
    int pairs = (int)lua_objlen(L, 4);
    const char **metadata = lua_newuserdata(L, (size_t)(pairs + 1) * sizeof *metadata);
    for (int i = 0; i < pairs; i++) {
        lua_rawgeti(L, 4, i + 1); /* stays in the table */
        metadata[i] = lua_tostring(L, -1);
        lua_pop(L, 1);
    }
    metadata[pairs] = NULL;
    int count = (int)lua_objlen(L, 3);
    ul_safetensors_item *items = lua_newuserdata(L, (size_t)(count + 1) * sizeof *items);
    ul_tensor **tensors = host_list(L, 3, op, &n);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, 2, i + 1);
        items[i] = (ul_safetensors_item){lua_tostring(L, -1), tensors[i]};
        lua_pop(L, 1);
    }
    ul_file_sum sum;
    int results = host_sentence(L, ul_safetensors_save(&sum, path, items, n, metadata));
    return results ? results : host_push_sum(L, &sum);
}

void host_open_safetensors(lua_State *L)
{
    static const luaL_Reg methods[] = {
        {"names", names}, {"shape", shape},      {"dtype", dtype},     {"metadata", metadata},
        {"get", get},     {"close", close_file}, {"__gc", close_file}, {NULL, NULL}};
    luaL_newmetatable(L, metatable);
    luaL_register(L, NULL, methods);
    lua_pushvalue(L, -1);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}

const host_function host_safetensors[] = {
    {"safetensors_open", open_file, NULL, HOST_MODULE},
    {"safetensors_save", save, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
