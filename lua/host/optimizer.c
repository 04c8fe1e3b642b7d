/* optimizer.c - steps of the optimizers, and the norm of all gradients. */
#include "host.h"

/* Pushes the option's tensor, or nil; returns its place. */
static int option_at(lua_State *L, int i, const char *name)
{
    host_option(L, i, name);
    return lua_gettop(L);
}

static ul_tensor *option_tensor(lua_State *L, int at, const char *op, const char *name)
{
    return lua_isnil(L, at) ? NULL : host_tensor_named(L, at, op, name);
}

/* betas = { b1, b2 } */
static void read_betas(lua_State *L, int i, ul_adamw_options *options)
{
    if (host_option(L, i, "betas")) {
        int table = lua_gettop(L);
        if (!lua_istable(L, table) || lua_objlen(L, table) != 2)
            host_fail(L, "adamw_: betas must be a table of two numbers");
        lua_rawgeti(L, table, 1);
        lua_rawgeti(L, table, 2);
        options->beta_1 = host_number(L, table + 1, "adamw_", "betas[1]");
        options->beta_2 = host_number(L, table + 2, "adamw_", "betas[2]");
        lua_pop(L, 2);
    }
    lua_pop(L, 1);
}

/* adamw_(p, grad, m, v, { lr =, betas =, eps =, weight_decay =, step =, master = }) */
static int adamw_(lua_State *L)
{
    static const char *const names[] = {"lr",   "betas",  "eps", "weight_decay",
                                        "step", "master", NULL};
    const char *op = "adamw_";
    host_arguments(L, op, 5);
    host_options(L, 5, op, names, 0);
    ul_adamw_options options = {.beta_1 = 0.9, .beta_2 = 0.999};
    options.lr = host_option_number(L, 5, op, "lr", 1e-3);
    read_betas(L, 5, &options);
    options.eps = host_option_number(L, 5, op, "eps", 1e-8);
    options.weight_decay = host_option_number(L, 5, op, "weight_decay", 0.01);
    options.step = host_option_integer(L, 5, op, "step", 1);
    int at = option_at(L, 5, "master");
    ul_tensor *p = host_tensor(L, 1, op), *grad = host_tensor(L, 2, op), *m = host_tensor(L, 3, op);
    ul_tensor *v = host_tensor(L, 4, op), *master = option_tensor(L, at, op, "master");
    host_check(L, ul_adamw_(p, grad, m, v, master, &options));
    return 0;
}

/* sgd_(p, grad, { lr =, momentum =, weight_decay =, nesterov =, velocity =, master = }) */
static int sgd_(lua_State *L)
{
    static const char *const names[] = {
        "lr", "momentum", "weight_decay", "nesterov", "velocity", "master", NULL};
    const char *op = "sgd_";
    host_arguments(L, op, 3);
    host_options(L, 3, op, names, 0);
    ul_sgd_options options;
    options.lr = host_option_number(L, 3, op, "lr", 1e-2);
    options.momentum = host_option_number(L, 3, op, "momentum", 0);
    options.weight_decay = host_option_number(L, 3, op, "weight_decay", 0);
    options.nesterov = host_option_boolean(L, 3, op, "nesterov", 0);
    int velocity_at = option_at(L, 3, "velocity"), master_at = option_at(L, 3, "master");
    ul_tensor *p = host_tensor(L, 1, op), *grad = host_tensor(L, 2, op);
    ul_tensor *velocity = option_tensor(L, velocity_at, op, "velocity");
    host_check(L, ul_sgd_(p, grad, velocity, option_tensor(L, master_at, op, "master"), &options));
    return 0;
}

static int global_norm(lua_State *L)
{
    int n;
    double norm;
    host_arguments(L, "global_norm", 1);
    ul_tensor **xs = host_list(L, 1, "global_norm", &n);
    host_check(L, ul_global_norm(&norm, xs, n));
    lua_pushnumber(L, norm);
    return 1;
}

/* clip_grad_norm_(list, max_norm) -> the norm before */
static int clip_grad_norm_(lua_State *L)
{
    int n;
    double norm;
    host_arguments(L, "clip_grad_norm_", 2);
    double max_norm = host_number(L, 2, "clip_grad_norm_", "max_norm");
    ul_tensor **xs = host_list(L, 1, "clip_grad_norm_", &n);
    host_check(L, ul_clip_grad_norm_(&norm, xs, n, max_norm));
    lua_pushnumber(L, norm);
    return 1;
}

const host_function host_optimizer[] = {
    {"adamw_", adamw_, NULL, HOST_MODULE},
    {"sgd_", sgd_, NULL, HOST_MODULE},
    {"global_norm", global_norm, NULL, HOST_MODULE},
    {"clip_grad_norm_", clip_grad_norm_, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
