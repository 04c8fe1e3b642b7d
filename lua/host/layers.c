/* layers.c - products, norms, rotary embedding, attention, dropout. */
#include <math.h>
#include <stdlib.h>

#include "host.h"

static int matmul(lua_State *L)
{
    host_arguments(L, "matmul", 2);
    host_box *y = host_new(L);
    ul_tensor *a = host_tensor(L, 1, "matmul");
    host_check(L, ul_matmul(&y->t, a, host_tensor(L, 2, "matmul")));
    return 1;
}

/* linear(x, w, b) */
static int linear(lua_State *L)
{
    host_arguments(L, "linear", 3);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "linear"), *w = host_tensor(L, 2, "linear");
    host_check(L, ul_linear(&y->t, x, w, host_tensor_or_nil(L, 3, "linear")));
    return 1;
}

/* rms_norm(x, w, eps = 1e-5) */
static int rms_norm(lua_State *L)
{
    host_arguments(L, "rms_norm", 3);
    double eps = host_number_or(L, 3, "rms_norm", "eps", 1e-5);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "rms_norm");
    host_check(L, ul_rms_norm(&y->t, x, host_tensor_or_nil(L, 2, "rms_norm"), eps));
    return 1;
}

/* add_rms_norm(x, residual, w, eps = 1e-5) -> y, h */
static int add_rms_norm(lua_State *L)
{
    host_arguments(L, "add_rms_norm", 4);
    double eps = host_number_or(L, 4, "add_rms_norm", "eps", 1e-5);
    host_box *y = host_new(L), *h = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "add_rms_norm"), *residual = host_tensor(L, 2, "add_rms_norm");
    ul_tensor *w = host_tensor_or_nil(L, 3, "add_rms_norm");
    host_check(L, ul_add_rms_norm(&y->t, &h->t, x, residual, w, eps));
    return 2;
}

/* layer_norm(x, w, b, eps = 1e-5) */
static int layer_norm(lua_State *L)
{
    host_arguments(L, "layer_norm", 4);
    double eps = host_number_or(L, 4, "layer_norm", "eps", 1e-5);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "layer_norm"), *w = host_tensor_or_nil(L, 2, "layer_norm");
    host_check(L, ul_layer_norm(&y->t, x, w, host_tensor_or_nil(L, 3, "layer_norm"), eps));
    return 1;
}

/* ---- rotary embedding ---- */

/* theta^(-2 i / head_dim), i = 0 .. head_dim / 2 - 1, on the device of x. */
static int frequencies(ul_tensor **y, int64_t head_dim, double theta, ul_device device)
{
    int64_t half = head_dim / 2;
    ul_tensor *t = NULL;
    int rc = ul_tensor_new(&t, UL_F64, UL_CPU, 1, &half);
    if (rc < 0) return rc;
    double *value = ul_tensor_data(t);
    for (int64_t i = 0; i < half; i++) value[i] = pow(theta, -2.0 * (double)i / (double)head_dim);
    rc = ul_to_device(y, t, device);
    ul_tensor_free(t);
    return rc;
}

/* rope_table(positions, head_dim, { theta =, inv_freq =, scale =, dtype = }) -> { cos =, sin = } */
static int rope_table(lua_State *L)
{
    static const char *const names[] = {"theta", "inv_freq", "scale", "dtype", NULL};
    const char *op = "rope_table";
    host_arguments(L, op, 3);
    host_options(L, 3, op, names, 0);
    int64_t head_dim = host_integer(L, 2, op, "head_dim");
    double theta = host_option_number(L, 3, op, "theta", 10000);
    double scale = host_option_number(L, 3, op, "scale", 1);
    int dtype = host_option_choice(L, 3, op, "dtype", host_dtypes, UL_F32);
    int given = host_option(L, 3, "inv_freq"), at = lua_gettop(L);
    if (head_dim < 2 || head_dim % 2 || head_dim > 1 << 20)
        host_fail(L, "rope_table: head_dim %lld is not an even number from 2 on",
                  (long long)head_dim);
    if (!(theta > 0)) host_fail(L, "rope_table: theta %g is not positive", theta);
    host_box *cosine = host_new(L), *sine = host_new(L);
    lua_createtable(L, 0, 2);
    ul_tensor *positions = host_tensor(L, 1, op), *own = NULL;
    ul_tensor *inv_freq = given ? host_tensor_named(L, at, op, "inv_freq") : NULL;
    int rc = UL_OK;
    if (!given) rc = frequencies(&own, head_dim, theta, ul_tensor_device(positions));
    if (given && ul_tensor_size(inv_freq) != head_dim / 2)
        host_fail(L, "rope_table: inv_freq has %lld elements, half of head_dim is %lld",
                  (long long)ul_tensor_size(inv_freq), (long long)head_dim / 2);
    if (rc == UL_OK)
        rc = ul_rope_table(&cosine->t, &sine->t, positions, own ? own : inv_freq, scale,
                           dtype == UL_BF16 ? UL_F32 : (ul_dtype)dtype);
    ul_tensor_free(own);
    host_check(L, rc);
    lua_insert(L, -3);
    lua_setfield(L, -3, "sin");
    lua_setfield(L, -2, "cos");
    return 1;
}

/* rope(x, { cos =, sin = }) */
static int rope(lua_State *L)
{
    static const char *const names[] = {"cos", "sin", NULL};
    host_arguments(L, "rope", 2);
    if (!lua_istable(L, 2)) host_fail(L, "rope: expected a table made by rope_table (argument 2)");
    host_options(L, 2, "rope", names, 0);
    host_option(L, 2, "cos");
    host_option(L, 2, "sin");
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "rope"), *cosine = host_tensor_named(L, 3, "rope", "cos");
    host_check(L, ul_rope(&y->t, x, cosine, host_tensor_named(L, 4, "rope", "sin")));
    return 1;
}

/* embedding(ids, w) */
static int embedding(lua_State *L)
{
    host_arguments(L, "embedding", 2);
    host_box *y = host_new(L);
    ul_tensor *ids = host_tensor(L, 1, "embedding");
    host_check(L, ul_embedding(&y->t, ids, host_tensor(L, 2, "embedding")));
    return 1;
}

/* Replaces a list of integers at i by a tensor where argument 3 is. */
static void list_to_tensor(lua_State *L, int i, const char *op, ul_dtype dtype)
{
    if (!lua_istable(L, i)) return;
    host_from_table(L, i, op, (int)dtype, ul_tensor_device(host_tensor(L, 3, op)));
    lua_replace(L, i);
}

/* 0 is the engine's word for a scale that is left out. */
static double attention_scale(lua_State *L, int i, const char *op)
{
    double scale = 0;
    if (host_option(L, i, "scale")) {
        scale = host_number(L, lua_gettop(L), op, "scale");
        if (scale == 0)
            host_fail(L, "%s: scale = 0 makes all keys alike; without one it is 1 / sqrt(D)", op);
    }
    lua_pop(L, 1);
    return scale;
}

/* The options of attention at i, the last argument; docs and kv_head are pushed, see with_maps().
 */
static ul_attention_options attention_options(lua_State *L, int i, const char *op)
{
    ul_attention_options options = {0};
    options.causal = host_option_boolean(L, i, op, "causal", 0);
    options.window = host_option_integer(L, i, op, "window", 0);
    options.scale = attention_scale(L, i, op);
    host_option(L, i, "docs");
    host_option(L, i, "kv_head");
    list_to_tensor(L, i + 1, op, UL_I64);
    list_to_tensor(L, i + 2, op, UL_I32);
    return options;
}

/* What has been pushed above i, as tensors. */
static void with_maps(lua_State *L, ul_attention_options *options, int i, const char *op)
{
    if (!lua_isnil(L, i + 1)) options->docs = host_tensor_named(L, i + 1, op, "docs");
    if (!lua_isnil(L, i + 2)) options->kv_head = host_tensor_named(L, i + 2, op, "kv_head");
}

/* attention(q, k, v, { causal =, window =, docs =, scale =, kv_head =, lse = }) -> o (, lse) */
static int attention(lua_State *L)
{
    static const char *const names[] = {"causal",  "window", "docs", "scale",
                                        "kv_head", "lse",    NULL};
    const char *op = "attention";
    host_arguments(L, op, 4);
    host_options(L, 4, op, names, 0);
    int with_lse = host_option_boolean(L, 4, op, "lse", 0);
    ul_attention_options options = attention_options(L, 4, op);
    host_box *o = host_new(L), *lse = host_new(L);
    with_maps(L, &options, 4, op);
    ul_tensor *q = host_tensor(L, 1, op), *k = host_tensor(L, 2, op), *v = host_tensor(L, 3, op);
    host_check(L, ul_attention(&o->t, with_lse ? &lse->t : NULL, q, k, v, &options));
    if (with_lse) return 2;
    lua_pop(L, 1);
    return 1;
}

int host_ring_attention(lua_State *L)
{
    static const char *const names[] = {"tokens", "causal",  "window", "docs",
                                        "scale",  "kv_head", NULL};
    const char *op = "ring_attention";
    ul_group *g = host_to_group(L);
    host_arguments(L, op, 5);
    host_options(L, 5, op, names, 0);
    if (!host_option(L, 5, "tokens")) host_fail(L, "%s: tokens = S, of whole rows, is missing", op);
    int64_t tokens = host_integer(L, 6, op, "tokens");
    lua_pop(L, 1);
    ul_attention_options options = attention_options(L, 5, op);
    host_box *o = host_new(L);
    with_maps(L, &options, 5, op);
    ul_tensor *q = host_tensor(L, 2, op), *k = host_tensor(L, 3, op), *v = host_tensor(L, 4, op);
    int rc = ul_ring_attention(&o->t, q, k, v, g, tokens, &options);
    if (rc != UL_ECOMM) host_check_as(L, op, rc);
    host_check(L, rc);
    return 1;
}

/* dropout(x, p = 0.5, { training = true }) */
static int dropout(lua_State *L)
{
    static const char *const names[] = {"training", NULL};
    host_arguments(L, "dropout", 3);
    host_options(L, 3, "dropout", names, 0);
    double p = host_number_or(L, 2, "dropout", "p", 0.5);
    int training = host_option_boolean(L, 3, "dropout", "training", 1);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "dropout");
    host_check(L, ul_dropout(&y->t, x, training ? p : 0));
    return 1;
}

const host_function host_layers[] = {
    {"matmul", matmul, NULL, HOST_OP},
    {"linear", linear, NULL, HOST_OP},
    {"rms_norm", rms_norm, NULL, HOST_OP},
    {"add_rms_norm", add_rms_norm, NULL, HOST_FUNCTIONAL},
    {"layer_norm", layer_norm, NULL, HOST_OP},
    {"rope_table", rope_table, NULL, HOST_FUNCTIONAL},
    {"rope", rope, NULL, HOST_FUNCTIONAL},
    {"embedding", embedding, NULL, HOST_FUNCTIONAL},
    {"attention", attention, NULL, HOST_METHOD | HOST_FUNCTIONAL},
    {"dropout", dropout, NULL, HOST_METHOD | HOST_FUNCTIONAL},
    {NULL, NULL, NULL, 0},
};
