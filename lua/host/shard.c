/* shard.c - methods of groups: tokens for heads and back. */
#include "host.h"

/* g:shard_heads(x, { q_heads = , lengths = list }) */
int host_shard_heads(lua_State *L)
{
    static const char *const known[] = {"q_heads", "lengths", NULL};
    const char *op = "shard_heads";
    host_arguments(L, op, 3);
    host_options(L, 3, op, known, 0);
    ul_group *g = host_to_group(L);
    int64_t q_heads = host_option_integer(L, 3, op, "q_heads", 0);
    int64_t *lengths = host_sizes_option(L, op, "lengths", g);
    host_box *y = host_new(L);
    host_check(L, ul_shard_heads(&y->t, host_tensor(L, 2, op), g, q_heads, lengths));
    return 1;
}

/* g:shard_tokens(x, { heads = , lengths = list }) */
int host_shard_tokens(lua_State *L)
{
    static const char *const known[] = {"heads", "lengths", NULL};
    const char *op = "shard_tokens";
    host_arguments(L, op, 3);
    host_options(L, 3, op, known, 0);
    ul_group *g = host_to_group(L);
    int64_t heads = host_option_integer(L, 3, op, "heads", 0);
    int64_t *lengths = host_sizes_option(L, op, "lengths", g);
    if (heads < 0) host_fail(L, "shard_tokens: %lld heads", (long long)heads);
    host_box *y = host_new(L);
    host_check(L, ul_shard_tokens(&y->t, host_tensor(L, 2, op), g, heads, lengths));
    return 1;
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
