/* losses.c - cross-entropy, whole and fused with the output layer. */
#include "host.h"

static const char *const reductions[] = {"sum", "mean", NULL};
enum { IGNORE = -100 };

/* cross_entropy(logits, targets, { reduction = 'mean', ignore_index = -100 }) */
static int cross_entropy(lua_State *L)
{
    static const char *const names[] = {"reduction", "ignore_index", NULL};
    const char *op = "cross_entropy";
    host_arguments(L, op, 3);
    host_options(L, 3, op, names, 0);
    int mean = host_option_choice(L, 3, op, "reduction", reductions, 1);
    int64_t ignore = host_option_integer(L, 3, op, "ignore_index", IGNORE);
    host_box *y = host_new(L);
    ul_tensor *logits = host_tensor(L, 1, op);
    host_check(L, ul_cross_entropy(&y->t, logits, host_tensor(L, 2, op), ignore, mean));
    return 1;
}

/* linear_cross_entropy(x, w, targets, { reduction = 'sum', ignore_index = -100, tile = }) -> loss,
 * count */
static int linear_cross_entropy(lua_State *L)
{
    static const char *const names[] = {"reduction", "ignore_index", "tile", NULL};
    const char *op = "linear_cross_entropy";
    int64_t count = 0;
    host_arguments(L, op, 4);
    host_options(L, 4, op, names, 0);
    int mean = host_option_choice(L, 4, op, "reduction", reductions, 0);
    int64_t ignore = host_option_integer(L, 4, op, "ignore_index", IGNORE);
    int64_t tile = host_option_integer(L, 4, op, "tile", 0);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, op), *w = host_tensor(L, 2, op),
              *targets = host_tensor(L, 3, op);
    host_check(L, ul_linear_cross_entropy(&y->t, &count, x, w, targets, ignore, mean, tile));
    lua_pushnumber(L, (lua_Number)count);
    return 2;
}

const host_function host_losses[] = {
    {"cross_entropy", cross_entropy, NULL, HOST_FUNCTIONAL},
    {"linear_cross_entropy", linear_cross_entropy, NULL, HOST_FUNCTIONAL},
    {NULL, NULL, NULL, 0},
};
