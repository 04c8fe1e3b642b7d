/* json.c - JSON text to Lua values and strings to JSON, by jansson; lua/ulysses/json.lua has the
 * rest.
 */
#include <string.h>

#include <jansson.h>

#include "host.h"

/* A document that is freed by the collector, should Lua raise an error in between. */
static int free_document(lua_State *L)
{
    json_t **document = lua_touserdata(L, 1);
    json_decref(*document);
    *document = NULL;
    return 0;
}

static json_t **new_document(lua_State *L)
{
    json_t **document = lua_newuserdata(L, sizeof *document);
    *document = NULL;
    if (luaL_newmetatable(L, "ulysses.json")) {
        lua_pushcfunction(L, free_document);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    return document;
}

/* Where json_decode() keeps its arguments. */
enum { TEXT = 1, NULL_VALUE, EMPTY_ARRAY, DOCUMENT };

static void push(lua_State *L, json_t *value);

static void push_array(lua_State *L, json_t *array)
{
    size_t n = json_array_size(array);
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
        push(L, json_array_get(array, i));
        lua_rawseti(L, -2, (int)i + 1);
    }
    if (n > 0) return;
    lua_pushvalue(L, EMPTY_ARRAY);
    lua_setmetatable(L, -2);
}

static void push_object(lua_State *L, json_t *object)
{
    const char *key;
    json_t *value;
    lua_createtable(L, 0, (int)json_object_size(object));
    json_object_foreach(object, key, value)
    {
        lua_pushstring(L, key);
        push(L, value);
        lua_rawset(L, -3);
    }
}

static void push(lua_State *L, json_t *value)
{
    luaL_checkstack(L, 4, "json: nested too deeply");
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        push_object(L, value);
        break;
    case JSON_ARRAY:
        push_array(L, value);
        break;
    case JSON_STRING:
        lua_pushlstring(L, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        lua_pushnumber(L, (lua_Number)json_integer_value(value));
        break;
    case JSON_REAL:
        lua_pushnumber(L, json_real_value(value));
        break;
    case JSON_NULL:
        lua_pushvalue(L, NULL_VALUE);
        break;
    default:
        lua_pushboolean(L, json_is_true(value));
    }
}

/* json_decode(text, null, metatable of empty arrays) -> value, or nil and a sentence */
static int json_decode(lua_State *L)
{
    size_t length;
    json_error_t error;
    host_arguments(L, "json.decode", 3);
    if (lua_type(L, TEXT) != LUA_TSTRING) {
        char text[64];
        host_fail(L, "json.decode: expected a string, got %s",
                  host_describe(L, TEXT, text, sizeof text));
    }
    const char *text = lua_tolstring(L, TEXT, &length);
    if (length >= 3 &&
        !memcmp(text, "\xef\xbb\xbf", 3)) { /* the mark that some programs begin with */
        text += 3;
        length -= 3;
    }
    json_t **document = new_document(L);
    /* Lua has doubles only; and published files have integers of 30 digits. */
    *document = json_loadb(text, length,
                           JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY |
                               JSON_DECODE_INT_AS_REAL,
                           &error);
    if (!*document) {
        lua_pushnil(L);
        lua_pushfstring(L, "line %d, column %d: %s", error.line, error.column, error.text);
        return 2;
    }
    push(L, *document);
    json_decref(*document);
    *document = NULL;
    return 1;
}

/* json_quote(string) -> the same as JSON, or nil where it is no UTF-8 */
static int json_quote(lua_State *L)
{
    size_t length;
    host_arguments(L, "json_quote", 1);
    const char *text = luaL_checklstring(L, 1, &length);
    json_t **document = new_document(L);
    *document = json_stringn(text, length);
    if (!*document) return 0;
    size_t size = json_dumpb(*document, NULL, 0, JSON_ENCODE_ANY);
    char *quoted = lua_newuserdata(L, size);
    json_dumpb(*document, quoted, size, JSON_ENCODE_ANY);
    lua_pushlstring(L, quoted, size);
    return 1;
}

const host_function host_json[] = {
    {"json_decode", json_decode, NULL, HOST_MODULE},
    {"json_quote", json_quote, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
