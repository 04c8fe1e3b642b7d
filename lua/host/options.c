/* options.c - tables of options: strict about names, with the nearest one suggested. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

const char *const host_dtypes[] = {"f32", "bf16", "f64", "i32", "i64", "u8", NULL};
const char *const host_devices[] = {"cpu", "meta", "cuda", NULL};
ul_device host_device = UL_CPU;
int host_plans;

enum { LONGEST = 32 };

/* Edit distance (insert, delete, replace); words longer than LONGEST are far from everything. */
static int distance(const char *a, const char *b)
{
    int n = (int)strlen(a), m = (int)strlen(b), row[LONGEST + 1];
    if (n > LONGEST || m > LONGEST) return LONGEST;
    for (int j = 0; j <= m; j++) row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

void host_suggest(char *text, int size, const char *word, const char *const *names)
{
    const char *nearest = NULL;
    int best = LONGEST;
    for (const char *const *name = names; *name; name++) {
        int far = distance(word, *name);
        if (far < best) best = far, nearest = *name;
    }
    if (nearest && best <= 1 + (int)strlen(word) / 3) {
        snprintf(text, (size_t)size, "; did you mean '%s'?", nearest);
        return;
    }
    int n = 0;
    while (names[n]) n++;
    text[0] = 0;
    if (n > 16) return;
    int at = snprintf(text, (size_t)size, names[0] ? "; there is" : "; there is none");
    for (const char *const *name = names; *name && at < size; name++)
        at += snprintf(text + at, (size_t)(size - at), "%s %s", name == names ? "" : ",", *name);
}

/* Whether the last of the choices are devices. */
static int has_devices(const char *const *choices)
{
    while (*choices && strcmp(*choices, "cuda") != 0) choices++;
    return *choices != NULL;
}

/* What there is instead of a word that is no choice. Devices are few and all listed: 'gpu' must not
 * suggest 'cpu'.
 */
static void explain(char *text, int size, const char *word, const char *const *choices)
{
    if (choices != host_devices)
        host_suggest(text, size, word, choices);
    else
        snprintf(text, (size_t)size, "; there is cpu, meta, cuda (or cuda:1 ..)");
}

/* The number in "cuda:N", or -1. */
static int cuda_ordinal(const char *word)
{
    char *end;
    if (strncmp(word, "cuda:", 5) != 0 || !word[5] || strlen(word) > 9) return -1;
    long n = strtol(word + 5, &end, 10);
    return *end || n < 0 || word[5] == '+' || word[5] == ' ' ? -1 : (int)n;
}

/* Opens what is asked for, so that what is missing is said here. A script that is planned has all
 * its tensors on meta, whatever it says; the library keeps a text and its indices on the cpu.
 */
static const char *open_device(lua_State *L, const char *op, const char *word)
{
    int named = cuda_ordinal(word), is_cuda = named >= 0 || !strcmp(word, "cuda");
    if (host_plans && (is_cuda || (!strcmp(word, "cpu") && !host_of_library(L)))) return "meta";
    if (!is_cuda) return word;
    host_check_as(L, op, ul_cuda_open(named));
    return "cuda";
}

void host_options(lua_State *L, int i, const char *op, const char *const *names, int list)
{
    char text[256];
    if (lua_isnoneornil(L, i)) return;
    if (lua_type(L, i) != LUA_TTABLE)
        host_fail(L, "%s: options must be a table, got %s (argument %d)", op,
                  host_describe(L, i, text, sizeof text), i);
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
        if (list && lua_type(L, -2) == LUA_TNUMBER) continue;
        if (lua_type(L, -2) != LUA_TSTRING) {
            char key[64];
            host_fail(L, "%s: options have names, got the key %s", op,
                      host_describe(L, -2, key, sizeof key));
        }
        const char *key = lua_tostring(L, -2);
        const char *const *name = names;
        while (*name && strcmp(*name, key) != 0) name++;
        if (*name) continue;
        host_suggest(text, sizeof text, key, names);
        host_fail(L, "%s: no option '%.40s'%s", op, key, text);
    }
}

int host_option(lua_State *L, int i, const char *name)
{
    if (lua_type(L, i) != LUA_TTABLE) {
        lua_pushnil(L);
        return 0;
    }
    lua_pushstring(L, name);
    lua_rawget(L, i);
    return !lua_isnil(L, -1);
}

double host_option_number(lua_State *L, int i, const char *op, const char *name, double fallback)
{
    if (host_option(L, i, name)) fallback = host_number(L, lua_gettop(L), op, name);
    lua_pop(L, 1);
    return fallback;
}

int64_t host_option_integer(lua_State *L, int i, const char *op, const char *name, int64_t fallback)
{
    if (host_option(L, i, name)) fallback = host_integer(L, lua_gettop(L), op, name);
    lua_pop(L, 1);
    return fallback;
}

int host_option_boolean(lua_State *L, int i, const char *op, const char *name, int fallback)
{
    if (host_option(L, i, name)) fallback = host_boolean(L, lua_gettop(L), op, name, fallback);
    lua_pop(L, 1);
    return fallback;
}

int host_choice(lua_State *L, int i, const char *op, const char *what, const char *const *choices)
{
    char text[256];
    if (lua_type(L, i) != LUA_TSTRING)
        host_fail(L, "%s: %s must be a string, got %s", op, what,
                  host_describe(L, i, text, sizeof text));
    const char *word = lua_tostring(L, i);
    const char *choice = has_devices(choices) ? open_device(L, op, word) : word;
    for (int k = 0; choices[k]; k++)
        if (strcmp(choices[k], choice) == 0) return k;
    explain(text, sizeof text, word, choices);
    return host_fail(L, "%s: no %s '%.40s'%s", op, what, word, text);
}

int host_option_choice(lua_State *L, int i, const char *op, const char *name,
                       const char *const *choices, int fallback)
{
    if (host_option(L, i, name)) fallback = host_choice(L, lua_gettop(L), op, name, choices);
    lua_pop(L, 1);
    return fallback;
}
