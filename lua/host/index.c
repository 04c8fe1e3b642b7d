/* index.c - x[3], x[{ {1, 3}, {} }], x['1:3, :'], and assignment to them.
 *
 * Positions count from 1, or from -1 backwards; ranges include both ends. A key is read into a list
 * of picks, one for each dim, and the picks are applied as views.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

typedef struct pick {
    enum { ALL, ONE, RANGE, REST } what; /* REST: as many dims as are left over */
    int has_first, has_last;
    int64_t first, last, step;
} pick;

enum { MAX_PICKS = UL_MAX_DIMS + 1 };

/* ---- reading a key ---- */

static const char *skip_space(const char *s)
{
    while (*s == ' ' || *s == '\t') s++;
    return s;
}

/* An integer at *s, if there is one. */
static int read_integer(const char **s, int64_t *value)
{
    char *end;
    *s = skip_space(*s);
    if (!strchr("0123456789-", **s) || !**s) return 0;
    *value = strtoll(*s, &end, 10);
    if (end == *s) return 0;
    *s = skip_space(end);
    return 1;
}

/* One of "3", ":", "2:", ":4", "2:4", "2:8:2", "..."; NULL where it is none. */
static const char *read_item(const char *s, pick *p)
{
    s = skip_space(s);
    if (strncmp(s, "...", 3) == 0) {
        p->what = REST;
        return skip_space(s + 3);
    }
    p->step = 1;
    p->has_first = read_integer(&s, &p->first);
    if (*s != ':') {
        p->what = ONE;
        return p->has_first ? s : NULL;
    }
    p->what = RANGE;
    s++;
    p->has_last = read_integer(&s, &p->last);
    if (*s != ':') return s;
    s++;
    return read_integer(&s, &p->step) ? s : NULL;
}

static int read_text(lua_State *L, const char *text, pick *picks)
{
    const char *s = text;
    for (int n = 0; n < MAX_PICKS;) {
        s = read_item(s, &picks[n++]);
        if (s && *s == 0) return n;
        if (!s || *s++ != ',') break;
    }
    return host_fail(L, "index: cannot read '%.60s'; it looks like '2, 1:3, :, ...'", text);
}

/* {}, {first, last} or {first, last, step}, the table on top */
static void read_range(lua_State *L, pick *p)
{
    int n = (int)lua_objlen(L, -1), keys = 0;
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) keys++;
    if (n > 3 || keys != n)
        host_fail(L, "index: a range is {}, {first, last} or {first, last, step}");
    int64_t value[3] = {0, 0, 1};
    static const char *const what[] = {"first of the range", "last of the range",
                                       "step of the range"};
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, -1, i + 1);
        value[i] = host_integer(L, lua_gettop(L), "index", what[i]);
        lua_pop(L, 1);
    }
    *p = (pick){.what = n ? RANGE : ALL,
                .has_first = n > 0,
                .has_last = n > 0,
                .first = value[0],
                .last = n == 1 ? value[0] : value[1],
                .step = value[2]};
}

static int read_table(lua_State *L, int i, pick *picks)
{
    int n = (int)lua_objlen(L, i), keys = 0;
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) keys++;
    if (keys != n) host_fail(L, "index: the table has a hole, or keys that are no positions");
    if (n > MAX_PICKS) host_fail(L, "index: %d positions, at most %d", n, MAX_PICKS);
    luaL_checkstack(L, 6, "index");
    for (int k = 0; k < n; k++) {
        lua_rawgeti(L, i, k + 1);
        if (lua_istable(L, -1)) {
            read_range(L, &picks[k]);
        } else if (lua_type(L, -1) == LUA_TSTRING) {
            const char *text = lua_tostring(L, -1), *end = read_item(text, &picks[k]);
            if (!end || *end) host_fail(L, "index: cannot read '%.60s'", text);
        } else {
            picks[k] =
                (pick){.what = ONE, .first = host_integer(L, lua_gettop(L), "index", "a position")};
        }
        lua_pop(L, 1);
    }
    return n;
}

static int read_key(lua_State *L, int i, pick *picks)
{
    char text[64];
    if (lua_type(L, i) == LUA_TSTRING) return read_text(L, lua_tostring(L, i), picks);
    if (lua_type(L, i) == LUA_TTABLE) return read_table(L, i, picks);
    if (!host_is_number(L, i))
        host_fail(L, "index: expected a position, a table or a string, got %s%s",
                  host_describe(L, i, text, sizeof text),
                  host_to_box(L, i) ? "; index_select and gather take tensors" : "");
    picks[0] = (pick){.what = ONE, .first = host_integer(L, i, "index", "a position")};
    return 1;
}

/* ---- applying it ---- */

/* A position in a dim of this size, counted from 0. */
static int64_t position(lua_State *L, int64_t at, int dim, int64_t size)
{
    if (at == 0) host_fail(L, "index: position 0 of dim %d: positions are counted from 1", dim + 1);
    if (at > size || at < -size)
        host_fail(L, "index: position %lld of dim %d, which has %lld", (long long)at, dim + 1,
                  (long long)size);
    return at > 0 ? at - 1 : at + size;
}

/* Start and count of a range; one just before its start is empty. */
static int64_t range(lua_State *L, const pick *p, int dim, int64_t size, int64_t *count)
{
    int64_t first = p->has_first ? p->first : 1, last = p->has_last ? p->last : size;
    if (first < 0) first += size + 1;
    if (last < 0) last += size + 1;
    if (p->step < 1) host_fail(L, "index: step %lld is not positive", (long long)p->step);
    if (first < 1 || last > size || last < first - 1)
        host_fail(L, "index: range %lld:%lld of dim %d, which has %lld", (long long)first,
                  (long long)last, dim + 1, (long long)size);
    *count = (last - first) / p->step + 1;
    if (last < first) *count = 0;
    return first - 1;
}

/* Applies the picks to the tensor in the box, which is replaced step by step. */
static void apply(lua_State *L, host_box *y, const pick *picks, int n)
{
    int ndim = ul_tensor_ndim(y->t), used = 0, rest = 0;
    for (int k = 0; k < n; k++) {
        if (picks[k].what == REST)
            rest++;
        else
            used++;
    }
    if (rest > 1) host_fail(L, "index: '...' stands twice");
    if (used > ndim) host_fail(L, "index: %d positions for %d dims", used, ndim);

    int dim = 0; /* of what is left */
    for (int k = 0, source = 0; k < n; k++) {
        const pick *p = &picks[k];
        ul_tensor *next = NULL;
        int64_t count = 0;
        if (p->what == REST) {
            dim += ndim - used;
            source += ndim - used;
            continue;
        }
        int64_t size = ul_tensor_dim(y->t, dim);
        if (p->what == ONE) {
            int64_t at = position(L, p->first, source, size);
            host_check(L, ul_select(&next, y->t, dim, at));
        } else {
            int64_t start = p->what == ALL ? 0 : range(L, p, source, size, &count);
            if (p->what == RANGE && (count < size || p->step > 1))
                host_check(L, ul_slice(&next, y->t, dim, start, count, p->step));
            dim++;
        }
        if (next) { /* each step replaces the one before */
            ul_tensor_free(y->t);
            y->t = next;
        }
        source++;
    }
}

static host_box *view(lua_State *L, const pick *picks, int n)
{
    host_box *y = host_new(L);
    y->t = ul_tensor_retain(host_tensor(L, 1, "index"));
    apply(L, y, picks, n);
    return y;
}

int host_index(lua_State *L)
{
    pick picks[MAX_PICKS] = {{0}};
    int n = read_key(L, 2, picks);
    view(L, picks, n);
    return 1;
}

int host_assign(lua_State *L)
{
    pick picks[MAX_PICKS] = {{0}};
    int n = read_key(L, 2, picks), from_table = lua_istable(L, 3);
    double value = 0;
    if (from_table) {
        ul_tensor *x = host_tensor(L, 1, "index");
        host_from_table(L, 3, "index", (int)ul_tensor_dtype(x), ul_tensor_device(x));
        lua_replace(L, 3);
    } else if (!host_to_box(L, 3)) {
        value = host_number(L, 3, "index", "the value");
    }
    host_box *y = view(L, picks, n);
    if (host_to_box(L, 3))
        host_check_as(L, "index", ul_copy_(y->t, host_tensor(L, 3, "index")));
    else
        host_check_as(L, "index", ul_fill_(y->t, value));
    host_end(y, NULL);
    if (from_table) host_end(host_to_box(L, 3), NULL);
    return 0;
}
