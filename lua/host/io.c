/* io.c - files and folders for the library: what is wrong with them comes back as a sentence. */
#include <errno.h>
#include <string.h>

#include "host.h"

int host_sentence(lua_State *L, int rc)
{
    if (rc != UL_EIO) host_check(L, rc);
    if (rc == UL_OK) return 0;
    lua_pushnil(L);
    lua_pushstring(L, ul_last_error());
    return 2;
}

int host_push_sum(lua_State *L, const ul_file_sum *sum)
{
    lua_pushnumber(L, (lua_Number)sum->bytes);
    lua_pushstring(L, sum->hash);
    return 2;
}

const char *host_path(lua_State *L, int i, const char *op)
{
    char text[64];
    size_t length;
    if (lua_type(L, i) != LUA_TSTRING)
        host_fail(L, "%s: the path must be a string, got %s", op,
                  host_describe(L, i, text, sizeof text));
    const char *path = lua_tolstring(L, i, &length);
    if (length == 0 || strlen(path) != length) host_fail(L, "%s: '%s' is no path", op, path);
    return path;
}

/* Every function here returns what its comment says, or nil and a sentence. */

/* file_write(path, text) -> bytes, hash */
static int file_write(lua_State *L)
{
    size_t length;
    ul_file_sum sum;
    const char *path = host_path(L, 1, "file_write"), *text = luaL_checklstring(L, 2, &length);
    int n = host_sentence(L, ul_file_write(&sum, path, text, (int64_t)length));
    return n ? n : host_push_sum(L, &sum);
}

/* file_sum(path) -> bytes, hash */
static int file_sum(lua_State *L)
{
    ul_file_sum sum;
    int n = host_sentence(L, ul_file_sum_of(&sum, host_path(L, 1, "file_sum")));
    return n ? n : host_push_sum(L, &sum);
}

/* hash(text) -> the same hash of a string */
static int hash(lua_State *L)
{
    size_t length;
    char text[33];
    const char *data = luaL_checklstring(L, 1, &length);
    ul_hash(text, data, (int64_t)length);
    lua_pushstring(L, text);
    return 1;
}

static int succeed(lua_State *L, int rc)
{
    int n = host_sentence(L, rc);
    if (n) return n;
    lua_pushboolean(L, 1);
    return 1;
}

/* file_rename(from, to) -> true */
static int file_rename(lua_State *L)
{
    const char *from = host_path(L, 1, "file_rename"), *to = host_path(L, 2, "file_rename");
    return succeed(L, ul_file_rename(from, to));
}

/* path_exchange(a, b) -> true */
static int path_exchange(lua_State *L)
{
    const char *a = host_path(L, 1, "path_exchange"), *b = host_path(L, 2, "path_exchange");
    return succeed(L, ul_path_exchange(a, b));
}

/* file_point(path, target) -> true */
static int file_point(lua_State *L)
{
    const char *path = host_path(L, 1, "file_point"), *target = host_path(L, 2, "file_point");
    return succeed(L, ul_file_point(path, target));
}

/* folder_make(path), folder_sync(path), path_remove(path) -> true */
typedef struct step {
    const char *name;
    int (*call)(const char *path);
} step;

static int one_path(lua_State *L)
{
    const step *s = lua_touserdata(L, lua_upvalueindex(1));
    return succeed(L, s->call(host_path(L, 1, s->name)));
}

/* Names one after the other, each with its zero. */
typedef struct names {
    char *text; /* NULL: only counted */
    size_t room, used;
} names;

static void add_name(void *context, const char *name)
{
    names *list = context;
    size_t length = strlen(name) + 1;
    if (list->text && list->used + length > list->room) return; /* new since they were counted */
    if (list->text) memcpy(list->text + list->used, name, length);
    list->used += length;
}

/* folder_list(path) -> list of names */
static int folder_list(lua_State *L)
{
    names counted = {0}, list = {0};
    const char *path = host_path(L, 1, "folder_list");
    int n = host_sentence(L, ul_folder_list(path, add_name, &counted));
    if (n) return n;
    list.room = counted.used;
    list.text = lua_newuserdata(L, list.room + 1);
    n = host_sentence(L, ul_folder_list(path, add_name, &list));
    if (n) return n;
    lua_newtable(L);
    int count = 0;
    for (size_t at = 0; at < list.used; at += strlen(list.text + at) + 1) {
        lua_pushstring(L, list.text + at);
        lua_rawseti(L, -2, ++count);
    }
    return 1;
}

/* disk_free(path) -> bytes */
static int disk_free(lua_State *L)
{
    int64_t bytes;
    int n = host_sentence(L, ul_disk_free(&bytes, host_path(L, 1, "disk_free")));
    if (n) return n;
    lua_pushnumber(L, (lua_Number)bytes);
    return 1;
}

/* ---- for tests ---- */

/* debug_fail_write(n, 'ENOSPC', 'EIO', 'EFBIG' or 'SIGKILL'): what happens at the n-th step from
 * now that changes the disk; 0 turns that off */
static int debug_fail_write(lua_State *L)
{
    static const char *const choices[] = {"ENOSPC", "EIO", "EFBIG", "SIGKILL", NULL};
    static const int errors[] = {ENOSPC, EIO, EFBIG, -1};
    const char *op = "debug_fail_write";
    host_arguments(L, op, 2);
    int choice = lua_isnil(L, 2) ? 0 : host_choice(L, 2, op, "error", choices);
    ul_debug_fail_write(host_integer(L, 1, op, "n"), errors[choice]);
    return 0;
}

static int debug_writes(lua_State *L)
{
    host_arguments(L, "debug_writes", 0);
    lua_pushnumber(L, (lua_Number)ul_debug_writes());
    return 1;
}

static const step step_folder_make = {"folder_make", ul_folder_make},
                  step_folder_sync = {"folder_sync", ul_folder_sync},
                  step_path_remove = {"path_remove", ul_path_remove};

const host_function host_io[] = {
    {"file_write", file_write, NULL, HOST_MODULE},
    {"file_sum", file_sum, NULL, HOST_MODULE},
    {"hash", hash, NULL, HOST_MODULE},
    {"file_rename", file_rename, NULL, HOST_MODULE},
    {"path_exchange", path_exchange, NULL, HOST_MODULE},
    {"file_point", file_point, NULL, HOST_MODULE},
    {"folder_make", one_path, &step_folder_make, HOST_MODULE},
    {"folder_sync", one_path, &step_folder_sync, HOST_MODULE},
    {"path_remove", one_path, &step_path_remove, HOST_MODULE},
    {"folder_list", folder_list, NULL, HOST_MODULE},
    {"disk_free", disk_free, NULL, HOST_MODULE},
    {"debug_fail_write", debug_fail_write, NULL, HOST_MODULE},
    {"debug_writes", debug_writes, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
