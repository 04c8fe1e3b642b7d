/* shard.c - methods of groups: exchanges, tokens for heads and back. */
#include "host.h"

/* Lists of tensors: those at 2, and as many that are to be made, in a list that is pushed. */
typedef struct lists {
    ul_tensor **x, **y;
    int n;
} lists;

/* A tensor at 2 counts as a list of one. */
static lists new_lists(lua_State *L, const char *op)
{
    lists l = {.n = lua_istable(L, 2) ? (int)lua_objlen(L, 2) : 1};
    l.y = lua_newuserdata(L, (size_t)l.n * sizeof *l.y + 1);
    l.x = lua_istable(L, 2) ? NULL : lua_newuserdata(L, sizeof *l.x);
    lua_createtable(L, l.n, 0);
    for (int i = 0; i < l.n; i++) {
        host_new(L);
        lua_rawseti(L, -2, i + 1);
    }
    if (l.x)
        *l.x = host_tensor(L, 2, op);
    else
        l.x = host_list(L, 2, op, &l.n), lua_insert(L, -2);
    return l;
}

/* Pushes what was made, as it was given: a list, or one tensor. */
static int return_list(lua_State *L, const lists *l, int rc)
{
    host_check(L, rc);
    for (int i = 0; i < l->n; i++) {
        lua_rawgeti(L, -1, i + 1);
        host_to_box(L, lua_gettop(L))->t = l->y[i];
        lua_pop(L, 1);
    }
    if (!lua_istable(L, 2)) lua_rawgeti(L, -1, 1);
    return 1;
}

/* g:all_to_all(x, { split = 1, cat = 1, sizes = list }), g:all_to_all { for each rank a tensor } */
int host_all_to_all(lua_State *L)
{
    static const char *const known[] = {"split", "cat", "sizes", NULL};
    const char *op = "all_to_all";
    host_arguments(L, op, 3);
    ul_group *g = host_to_group(L);
    if (lua_istable(L, 2)) {
        if (!lua_isnil(L, 3)) host_fail(L, "all_to_all: a list of tensors takes no options");
        lists l = new_lists(L, op);
        return return_list(L, &l, ul_all_to_all_list(l.y, l.x, l.n, g));
    }
    host_options(L, 3, op, known, 0);
    int split_dim = host_dim_option(L, op, "split", 1);
    int cat_dim = host_dim_option(L, op, "cat", 1);
    int64_t *sizes = host_sizes_option(L, op, "sizes", g);
    host_box *y = host_new(L);
    host_check(L, ul_all_to_all(&y->t, host_tensor(L, 2, op), g, split_dim, cat_dim, sizes));
    return 1;
}

/* g:shard_heads(x or list, { q_heads = , lengths = list, later = false }) */
int host_shard_heads(lua_State *L)
{
    static const char *const known[] = {"q_heads", "lengths", "later", NULL};
    const char *op = "shard_heads";
    host_arguments(L, op, 3);
    host_options(L, 3, op, known, 0);
    ul_group *g = host_to_group(L);
    int64_t q_heads = host_option_integer(L, 3, op, "q_heads", 0);
    int64_t *lengths = host_sizes_option(L, op, "lengths", g);
    int later = host_option_boolean(L, 3, op, "later", 0);
    lists l = new_lists(L, op);
    return return_list(L, &l, ul_shard_heads(l.y, l.x, l.n, g, q_heads, lengths, later));
}

/* g:shard_tokens(x or list, { heads = , lengths = list, later = false }) */
int host_shard_tokens(lua_State *L)
{
    static const char *const known[] = {"heads", "lengths", "later", NULL};
    const char *op = "shard_tokens";
    host_arguments(L, op, 3);
    host_options(L, 3, op, known, 0);
    ul_group *g = host_to_group(L);
    int64_t heads = host_option_integer(L, 3, op, "heads", 0);
    int64_t *lengths = host_sizes_option(L, op, "lengths", g);
    int later = host_option_boolean(L, 3, op, "later", 0);
    if (heads < 0) host_fail(L, "shard_tokens: %lld heads", (long long)heads);
    lists l = new_lists(L, op);
    return return_list(L, &l, ul_shard_tokens(l.y, l.x, l.n, g, heads, lengths, later));
}

/* g:arrive(x or list) */
int host_arrive(lua_State *L)
{
    host_arguments(L, "arrive", 2);
    lists l = new_lists(L, "arrive");
    return return_list(L, &l, ul_arrive(l.y, l.x, l.n));
}

/* g:head_share(heads, kv_heads = nil, rank = this rank) -> first (from 1), count */
int host_head_share(lua_State *L)
{
    const char *op = "head_share";
    host_arguments(L, op, 4);
    ul_group *g = host_to_group(L);
    int64_t heads = host_integer(L, 2, op, "heads"), first;
    int64_t kv_heads = host_integer_or(L, 3, op, "kv_heads", 0);
    int64_t rank = host_integer_or(L, 4, op, "the rank", ul_group_rank(g));
    if (heads < 0 || heads > 1 << 24 || kv_heads < 0 || kv_heads > heads)
        host_fail(L, "head_share: %lld heads, %lld kv heads", (long long)heads,
                  (long long)kv_heads);
    if (rank < 0 || rank >= ul_group_size(g))
        host_fail(L, "head_share: no rank %lld: they go from 0 to %d", (long long)rank,
                  ul_group_size(g) - 1);
    int64_t count = ul_head_share(&first, heads, kv_heads, ul_group_size(g), (int)rank);
    lua_pushnumber(L, (lua_Number)first + 1);
    lua_pushnumber(L, (lua_Number)count);
    return 2;
}
