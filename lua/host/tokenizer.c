/* tokenizer.c - tokenizers, their streaming decoders, and lists of ids that stay in C. */
#include <string.h>

#include "host.h"

enum { KEPT = 1 << 20 }; /* scratch of more elements than this is given back at once */

typedef struct box {
    ul_tokenizer *t;
    ul_ids ids; /* scratch, so that nothing is lost when Lua raises an error */
    ul_text text;
} box;

typedef struct decoder_box {
    ul_decoder d;
    ul_text text;
} decoder_box;

static const char tokenizer_type[] = "ulysses.tokenizer", decoder_type[] = "ulysses.decoder",
                  ids_type[] = "ulysses.ids", trainer_type[] = "ulysses.trainer";

static void *to(lua_State *L, const char *type, const char *what)
{
    void *found = NULL;
    if (lua_type(L, 1) == LUA_TUSERDATA && lua_getmetatable(L, 1)) {
        luaL_getmetatable(L, type);
        if (lua_rawequal(L, -1, -2)) found = lua_touserdata(L, 1);
        lua_pop(L, 2);
    }
    if (!found) host_fail(L, "tokenizer: expected %s; call its methods with a colon", what);
    return found;
}

static box *to_box(lua_State *L) { return to(L, tokenizer_type, "a tokenizer"); }

static const char *text_at(lua_State *L, int i, const char *op, size_t *n)
{
    char text[64];
    if (lua_type(L, i) != LUA_TSTRING)
        host_fail(L, "%s: the text must be a string, got %s", op,
                  host_describe(L, i, text, sizeof text));
    return lua_tolstring(L, i, n);
}

static int free_tokenizer(lua_State *L)
{
    box *b = to_box(L);
    ul_tokenizer_free(b->t);
    ul_ids_free(&b->ids);
    ul_text_free(&b->text);
    b->t = NULL;
    return 0;
}

/* tokenizer_load(path, folder of the cache or nil) -> tokenizer, or nil and a sentence */
static int load(lua_State *L)
{
    const char *path = host_path(L, 1, "tokenizer.load");
    const char *cache = lua_isnoneornil(L, 2) ? NULL : host_path(L, 2, "tokenizer.load");
    box *b = lua_newuserdata(L, sizeof *b);
    *b = (box){0};
    luaL_getmetatable(L, tokenizer_type);
    lua_setmetatable(L, -2);
    int n = host_sentence(L, ul_tokenizer_load(&b->t, path, cache));
    return n ? n : 1;
}

/* ---- what it is ---- */

static void set_id(lua_State *L, const char *name, int32_t id)
{
    if (id < 0) return;
    lua_pushnumber(L, id);
    lua_setfield(L, -2, name);
}

/* t:about() -> { split, prepend, vocab, hash, cached, bos, eos, unknown, pad } */
static int about(lua_State *L)
{
    ul_tokenizer_info info;
    ul_tokenizer_about(&info, to_box(L)->t);
    lua_newtable(L);
    lua_pushstring(L, info.split);
    lua_setfield(L, -2, "split");
    lua_pushstring(L, info.prepend);
    lua_setfield(L, -2, "prepend");
    lua_pushstring(L, info.hash);
    lua_setfield(L, -2, "hash");
    lua_pushboolean(L, info.cached);
    lua_setfield(L, -2, "cached");
    lua_pushnumber(L, (lua_Number)info.vocab);
    lua_setfield(L, -2, "vocab");
    set_id(L, "bos", info.bos);
    set_id(L, "eos", info.eos);
    set_id(L, "unknown", info.unknown);
    set_id(L, "pad", info.padding);
    return 1;
}

/* t:find(bytes) -> id, or nil */
static int find(lua_State *L)
{
    size_t n;
    box *b = to_box(L);
    const char *bytes = text_at(L, 2, "id", &n);
    int32_t id = ul_tokenizer_find(b->t, bytes, (int64_t)n);
    if (id < 0) return 0;
    lua_pushnumber(L, id);
    return 1;
}

/* t:token(id) -> bytes, whether it is special; nil where there is none */
static int token(lua_State *L)
{
    int64_t n;
    int special;
    box *b = to_box(L);
    const char *bytes =
        ul_tokenizer_token(b->t, host_integer(L, 2, "token", "the id"), &n, &special);
    if (!bytes) return 0;
    lua_pushlstring(L, bytes, (size_t)n);
    lua_pushboolean(L, special);
    return 2;
}

/* ---- text to ids ---- */

static void push_numbers(lua_State *L, const int32_t *ids, const int64_t *first, int64_t n)
{
    lua_createtable(L, (int)n, 0);
    for (int64_t i = 0; i < n; i++) {
        lua_pushnumber(L, (lua_Number)(ids ? ids[i] : first[i]));
        lua_rawseti(L, -2, (int)i + 1);
    }
}

/* t:encode(text, flags, bos, eos, whether offsets are wanted) -> list of ids, how many pieces were
 * no UTF-8, list of offsets from 0 with the end as the last */
static int encode(lua_State *L)
{
    size_t bytes;
    box *b = to_box(L);
    const char *text = text_at(L, 2, "encode", &bytes);
    int flags = (int)luaL_checkinteger(L, 3), offsets = lua_toboolean(L, 6);
    b->ids.n = b->ids.replaced = 0;
    host_check(L, ul_tokenizer_encode(&b->ids, b->t, text, (int64_t)bytes, flags,
                                      (int32_t)luaL_checkinteger(L, 4),
                                      (int32_t)luaL_checkinteger(L, 5)));
    push_numbers(L, b->ids.data, NULL, b->ids.n);
    lua_pushnumber(L, (lua_Number)b->ids.replaced);
    if (offsets) {
        int64_t *first = lua_newuserdata(L, (size_t)(b->ids.n + 1) * sizeof *first);
        host_check(L, ul_tokenizer_offsets(first, b->t, text, (int64_t)bytes, b->ids.data, b->ids.n,
                                           flags));
        push_numbers(L, NULL, first, b->ids.n + 1);
        lua_remove(L, -2);
    }
    if (b->ids.room > KEPT) ul_ids_free(&b->ids);
    return 2 + offsets;
}

static int free_ids(lua_State *L)
{
    ul_ids_free(to(L, ids_type, "a list of ids"));
    return 0;
}

/* t:encode_ids(text, flags, bos, eos) -> list of ids in C, how many pieces were no UTF-8 */
static int encode_ids(lua_State *L)
{
    size_t bytes;
    box *b = to_box(L);
    const char *text = text_at(L, 2, "encode", &bytes);
    int flags = (int)luaL_checkinteger(L, 3);
    int32_t bos = (int32_t)luaL_checkinteger(L, 4), eos = (int32_t)luaL_checkinteger(L, 5);
    ul_ids *ids = lua_newuserdata(L, sizeof *ids);
    *ids = (ul_ids){0};
    luaL_getmetatable(L, ids_type);
    lua_setmetatable(L, -2);
    host_check(L, ul_tokenizer_encode(ids, b->t, text, (int64_t)bytes, flags, bos, eos));
    lua_pushnumber(L, (lua_Number)ids->replaced);
    return 2;
}

/* ids:view() -> pointer to i32, how many */
static int view_ids(lua_State *L)
{
    ul_ids *ids = to(L, ids_type, "a list of ids");
    lua_pushlightuserdata(L, ids->data);
    lua_pushnumber(L, (lua_Number)ids->n);
    return 2;
}

/* ---- ids to text ---- */

/* t:decode(list of ids, flags) -> text */
static int decode(lua_State *L)
{
    char text[64];
    box *b = to_box(L);
    if (lua_type(L, 2) != LUA_TTABLE)
        host_fail(L, "decode: expected a list of ids, got %s",
                  host_describe(L, 2, text, sizeof text));
    int flags = (int)luaL_checkinteger(L, 3);
    int64_t n = (int64_t)lua_objlen(L, 2);
    int32_t *ids = lua_newuserdata(L, (size_t)n * sizeof *ids + 1);
    for (int64_t i = 0; i < n; i++) {
        lua_rawgeti(L, 2, (int)i + 1);
        int64_t id = host_integer(L, lua_gettop(L), "decode", "an id");
        ids[i] = id < 0 || id > INT32_MAX ? INT32_MAX : (int32_t)id;
        lua_pop(L, 1);
    }
    b->text.n = 0;
    host_check(L, ul_tokenizer_decode(&b->text, b->t, ids, n, flags));
    lua_pushlstring(L, b->text.data ? b->text.data : "", (size_t)b->text.n);
    if (b->text.room > KEPT) ul_text_free(&b->text);
    return 1;
}

static int free_decoder(lua_State *L)
{
    decoder_box *b = to(L, decoder_type, "a decoder");
    ul_text_free(&b->text);
    return 0;
}

/* t:decoder(flags) -> decoder */
static int new_decoder(lua_State *L)
{
    box *b = to_box(L);
    int flags = (int)luaL_checkinteger(L, 2);
    decoder_box *d = lua_newuserdata(L, sizeof *d);
    *d = (decoder_box){.d = {.t = b->t, .flags = flags}};
    luaL_getmetatable(L, decoder_type);
    lua_setmetatable(L, -2);
    lua_createtable(L, 1, 0); /* keeps the tokenizer */
    lua_pushvalue(L, 1);
    lua_rawseti(L, -2, 1);
    lua_setfenv(L, -2);
    return 1;
}

static int push_text(lua_State *L, decoder_box *b, int rc)
{
    host_check(L, rc);
    lua_pushlstring(L, b->text.data ? b->text.data : "", (size_t)b->text.n);
    return 1;
}

/* d:push(id) -> the text that is whole now */
static int push_id(lua_State *L)
{
    decoder_box *b = to(L, decoder_type, "a decoder");
    int64_t id = host_integer(L, 2, "decode", "an id");
    b->text.n = 0;
    return push_text(L, b, ul_decoder_push(&b->text, &b->d, id));
}

/* d:finish() -> what was not whole */
static int finish(lua_State *L)
{
    decoder_box *b = to(L, decoder_type, "a decoder");
    b->text.n = 0;
    return push_text(L, b, ul_decoder_end(&b->text, &b->d));
}

/* ---- a vocabulary of our own ---- */

static ul_trainer **to_trainer(lua_State *L) { return to(L, trainer_type, "a trainer"); }

static int free_trainer(lua_State *L)
{
    ul_trainer **t = to_trainer(L);
    ul_trainer_free(*t);
    *t = NULL;
    return 0;
}

/* tokenizer_trainer(split) -> trainer */
static int new_trainer(lua_State *L)
{
    const char *split = luaL_checkstring(L, 1);
    ul_trainer **t = lua_newuserdata(L, sizeof *t);
    *t = NULL;
    luaL_getmetatable(L, trainer_type);
    lua_setmetatable(L, -2);
    host_check(L, ul_trainer_new(t, split));
    return 1;
}

/* t:add(text) */
static int add_text(lua_State *L)
{
    size_t n;
    ul_trainer **t = to_trainer(L);
    const char *text = text_at(L, 2, "tokenizer.train", &n);
    host_check(L, ul_trainer_add(*t, text, (int64_t)n));
    return 0;
}

/* t:run(tokens, least) -> list of the tokens' bytes, list of the merges: left, right, left, ... */
static int run_trainer(lua_State *L)
{
    ul_trainer *t = *to_trainer(L);
    int64_t n;
    host_check(L,
               ul_trainer_run(t, (int64_t)luaL_checknumber(L, 2), (int64_t)luaL_checknumber(L, 3)));
    lua_createtable(L, (int)ul_trainer_tokens(t), 0);
    for (int64_t i = 0; i < ul_trainer_tokens(t); i++) {
        const char *bytes = ul_trainer_token(t, i, &n);
        lua_pushlstring(L, bytes, (size_t)n);
        lua_rawseti(L, -2, (int)i + 1);
    }
    const int32_t *merges = ul_trainer_merges(t, &n);
    push_numbers(L, merges, NULL, 2 * n);
    return 2;
}

static void open_type(lua_State *L, const char *type, const luaL_Reg *methods)
{
    luaL_newmetatable(L, type);
    luaL_register(L, NULL, methods);
    lua_pushvalue(L, -1);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}

void host_open_tokenizer(lua_State *L)
{
    static const luaL_Reg tokenizer[] = {{"about", about},
                                         {"find", find},
                                         {"token", token},
                                         {"encode", encode},
                                         {"encode_ids", encode_ids},
                                         {"decode", decode},
                                         {"decoder", new_decoder},
                                         {"__gc", free_tokenizer},
                                         {NULL, NULL}};
    static const luaL_Reg decoder[] = {
        {"push", push_id}, {"finish", finish}, {"__gc", free_decoder}, {NULL, NULL}};
    static const luaL_Reg ids[] = {
        {"view", view_ids}, {"free", free_ids}, {"__gc", free_ids}, {NULL, NULL}};
    static const luaL_Reg trainer[] = {
        {"add", add_text}, {"run", run_trainer}, {"__gc", free_trainer}, {NULL, NULL}};
    open_type(L, trainer_type, trainer);
    open_type(L, tokenizer_type, tokenizer);
    open_type(L, decoder_type, decoder);
    open_type(L, ids_type, ids);
}

const host_function host_tokenizer[] = {
    {"tokenizer_load", load, NULL, HOST_MODULE},
    {"tokenizer_trainer", new_trainer, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
