/* elementwise.c - arithmetic, comparisons, functions of one tensor, changes in place. */
#include <math.h>

#include "host.h"

/* ---- two inputs, of which one may be a number ---- */

typedef struct binary {
    const char *name;
    int (*op)(ul_tensor **y, ul_tensor *a, ul_tensor *b);
} binary;

/* An argument that is a tensor or, until it is known what it goes with, a number. */
typedef struct operand {
    double value;
    int is_number;
    ul_tensor *t, *scalar; /* scalar: made for a number, to be freed */
} operand;

static operand read_operand(lua_State *L, int i, const char *op)
{
    operand o = {0};
    char text[64];
    if (host_to_box(L, i)) return o;
    if (!host_is_number(L, i))
        host_fail(L, "%s: expected a tensor or a number, got %s (argument %d)", op,
                  host_describe(L, i, text, sizeof text), i);
    o.is_number = 1;
    o.value = host_number(L, i, op, "the number");
    return o;
}

/* Gives both operands tensors; a number takes after the other operand. */
static int pair_up(lua_State *L, operand *a, int i, operand *b, int j, const char *op)
{
    if (!a->is_number) a->t = host_tensor(L, i, op);
    if (!b->is_number) b->t = host_tensor(L, j, op);
    int rc = UL_OK;
    if (a->is_number) rc = ul_scalar_like(&a->scalar, b->t, a->value);
    if (rc == UL_OK && b->is_number) rc = ul_scalar_like(&b->scalar, a->t, b->value);
    if (a->is_number) a->t = a->scalar;
    if (b->is_number) b->t = b->scalar;
    return rc;
}

static void forget(operand *a, operand *b)
{
    ul_tensor_free(a->scalar);
    ul_tensor_free(b->scalar);
}

static int call_binary(lua_State *L)
{
    const binary *f = lua_touserdata(L, lua_upvalueindex(1));
    host_arguments(L, f->name, 2);
    operand a = read_operand(L, 1, f->name), b = read_operand(L, 2, f->name);
    if (a.is_number && b.is_number) host_fail(L, "%s: neither argument is a tensor", f->name);
    host_box *y = host_new(L);
    int rc = pair_up(L, &a, 1, &b, 2, f->name);
    if (rc == UL_OK) rc = f->op(&y->t, a.t, b.t);
    forget(&a, &b);
    host_check_as(L, f->name, rc);
    return 1;
}

/* where(cond, a, b) */
static int where(lua_State *L)
{
    host_arguments(L, "where", 3);
    operand a = read_operand(L, 2, "where"), b = read_operand(L, 3, "where");
    if (a.is_number && b.is_number) host_fail(L, "where: neither a nor b is a tensor");
    host_box *y = host_new(L);
    ul_tensor *cond = host_tensor(L, 1, "where");
    int rc = pair_up(L, &a, 2, &b, 3, "where");
    if (rc == UL_OK) rc = ul_where(&y->t, cond, a.t, b.t);
    forget(&a, &b);
    host_check_as(L, "where", rc);
    return 1;
}

/* masked_fill(x, mask, value) = where(mask, value, x) */
static int masked_fill(lua_State *L)
{
    host_arguments(L, "masked_fill", 3);
    double value = host_number(L, 3, "masked_fill", "the value");
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "masked_fill"), *mask = host_tensor(L, 2, "masked_fill");
    ul_tensor *filler = NULL;
    int rc = ul_scalar_like(&filler, x, value);
    if (rc == UL_OK) rc = ul_where(&y->t, mask, filler, x);
    ul_tensor_free(filler);
    host_check_as(L, "masked_fill", rc);
    return 1;
}

/* ---- one input ---- */

typedef struct unary {
    const char *name;
    int (*op)(ul_tensor **y, ul_tensor *x);
} unary;

static int call_unary(lua_State *L)
{
    const unary *f = lua_touserdata(L, lua_upvalueindex(1));
    host_arguments(L, f->name, 1);
    host_box *y = host_new(L);
    host_check_as(L, f->name, f->op(&y->t, host_tensor(L, 1, f->name)));
    return 1;
}

static int square_of(ul_tensor **y, ul_tensor *x) { return ul_mul(y, x, x); }

/* gelu(x, { approximate = 'tanh' }) */
static int gelu(lua_State *L)
{
    static const char *const names[] = {"approximate", NULL}, *const kinds[] = {"none", "tanh",
                                                                                NULL};
    host_arguments(L, "gelu", 2);
    host_options(L, 2, "gelu", names, 0);
    int tanh_form = host_option_choice(L, 2, "gelu", "approximate", kinds, 0);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "gelu");
    host_check_as(L, "gelu", tanh_form ? ul_gelu_tanh(&y->t, x) : ul_gelu(&y->t, x));
    return 1;
}

/* clamp(x, min, max), either may be nil; clamp(x, { min =, max = }) */
static int clamp(lua_State *L)
{
    static const char *const names[] = {"min", "max", NULL};
    double low = -INFINITY, high = INFINITY;
    host_arguments(L, "clamp", 3);
    if (lua_istable(L, 2)) {
        host_options(L, 2, "clamp", names, 0);
        low = host_option_number(L, 2, "clamp", "min", low);
        high = host_option_number(L, 2, "clamp", "max", high);
    } else {
        low = host_number_or(L, 2, "clamp", "min", low);
        high = host_number_or(L, 3, "clamp", "max", high);
    }
    host_box *y = host_new(L);
    host_check(L, ul_clamp(&y->t, host_tensor(L, 1, "clamp"), low, high));
    return 1;
}

/* ---- in place: all return x ---- */

typedef struct change {
    const char *name;
    int (*op)(ul_tensor *a, ul_tensor *b);
} change;

static int call_change(lua_State *L)
{
    const change *f = lua_touserdata(L, lua_upvalueindex(1));
    host_arguments(L, f->name, 2);
    operand a = {0}, b = read_operand(L, 2, f->name);
    int rc = pair_up(L, &a, 1, &b, 2, f->name);
    if (rc == UL_OK) rc = f->op(a.t, b.t);
    forget(&a, &b);
    host_check_as(L, f->name, rc);
    lua_settop(L, 1);
    return 1;
}

static int fill_(lua_State *L)
{
    host_arguments(L, "fill_", 2);
    double value = host_number(L, 2, "fill_", "the value");
    host_check(L, ul_fill_(host_tensor(L, 1, "fill_"), value));
    lua_settop(L, 1);
    return 1;
}

static int zero_(lua_State *L)
{
    host_arguments(L, "zero_", 1);
    host_check_as(L, "zero_", ul_fill_(host_tensor(L, 1, "zero_"), 0));
    return 1;
}

static int copy_(lua_State *L)
{
    host_arguments(L, "copy_", 2);
    ul_tensor *y = host_tensor(L, 1, "copy_");
    host_check(L, ul_copy_(y, host_tensor(L, 2, "copy_")));
    lua_settop(L, 1);
    return 1;
}

typedef struct noise {
    const char *name, *first_name, *second_name;
    double first, second;
    int (*op)(ul_tensor *t, double a, double b);
} noise;

static int call_noise(lua_State *L)
{
    const noise *f = lua_touserdata(L, lua_upvalueindex(1));
    host_arguments(L, f->name, 3);
    double a = host_number_or(L, 2, f->name, f->first_name, f->first);
    double b = host_number_or(L, 3, f->name, f->second_name, f->second);
    host_check(L, f->op(host_tensor(L, 1, f->name), a, b));
    lua_settop(L, 1);
    return 1;
}

/* ---- registration ---- */

static const binary add = {"add", ul_add}, sub = {"sub", ul_sub}, mul = {"mul", ul_mul},
                    divide = {"div", ul_div}, power = {"pow", ul_pow},
                    maximum = {"maximum", ul_maximum}, minimum = {"minimum", ul_minimum},
                    swiglu = {"swiglu", ul_swiglu}, eq = {"eq", ul_eq}, ne = {"ne", ul_ne},
                    lt = {"lt", ul_lt}, le = {"le", ul_le}, gt = {"gt", ul_gt}, ge = {"ge", ul_ge};
static const unary neg = {"neg", ul_neg}, absolute = {"abs", ul_abs}, exponential = {"exp", ul_exp},
                   logarithm = {"log", ul_log}, root = {"sqrt", ul_sqrt},
                   rsqrt = {"rsqrt", ul_rsqrt}, sine = {"sin", ul_sin}, cosine = {"cos", ul_cos},
                   tangent = {"tanh", ul_tanh}, sigmoid = {"sigmoid", ul_sigmoid},
                   silu = {"silu", ul_silu}, relu = {"relu", ul_relu},
                   square = {"square", square_of};
static const change add_ = {"add_", ul_add_}, sub_ = {"sub_", ul_sub_}, mul_ = {"mul_", ul_mul_},
                    div_ = {"div_", ul_div_};
static const noise uniform_ = {"uniform_", "low", "high", 0, 1, ul_uniform_},
                   normal_ = {"normal_", "mean", "std", 0, 1, ul_normal_};

/* __unm is called with its operand twice. */
static int negate(lua_State *L)
{
    lua_settop(L, 1);
    host_box *y = host_new(L);
    host_check(L, ul_neg(&y->t, host_tensor(L, 1, "neg")));
    return 1;
}

void host_arithmetic(lua_State *L)
{
    static const struct {
        const char *event;
        const binary *f;
    } events[] = {
        {"__add", &add}, {"__sub", &sub}, {"__mul", &mul}, {"__div", &divide}, {"__pow", &power}};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        lua_pushlightuserdata(L, (void *)events[i].f);
        lua_pushcclosure(L, call_binary, 1);
        lua_setfield(L, -2, events[i].event);
    }
    lua_pushcfunction(L, negate);
    lua_setfield(L, -2, "__unm");
}

const host_function host_elementwise[] = {
    {"add", call_binary, &add, HOST_OP},
    {"sub", call_binary, &sub, HOST_OP},
    {"mul", call_binary, &mul, HOST_OP},
    {"div", call_binary, &divide, HOST_OP},
    {"pow", call_binary, &power, HOST_OP},
    {"maximum", call_binary, &maximum, HOST_OP},
    {"minimum", call_binary, &minimum, HOST_OP},
    {"swiglu", call_binary, &swiglu, HOST_FUNCTIONAL},
    {"eq", call_binary, &eq, HOST_OP},
    {"ne", call_binary, &ne, HOST_OP},
    {"lt", call_binary, &lt, HOST_OP},
    {"le", call_binary, &le, HOST_OP},
    {"gt", call_binary, &gt, HOST_OP},
    {"ge", call_binary, &ge, HOST_OP},
    {"where", where, NULL, HOST_MODULE | HOST_FUNCTIONAL},
    {"masked_fill", masked_fill, NULL, HOST_OP},
    {"neg", call_unary, &neg, HOST_OP},
    {"abs", call_unary, &absolute, HOST_OP},
    {"exp", call_unary, &exponential, HOST_OP},
    {"log", call_unary, &logarithm, HOST_OP},
    {"sqrt", call_unary, &root, HOST_OP},
    {"rsqrt", call_unary, &rsqrt, HOST_OP},
    {"sin", call_unary, &sine, HOST_OP},
    {"cos", call_unary, &cosine, HOST_OP},
    {"tanh", call_unary, &tangent, HOST_OP},
    {"sigmoid", call_unary, &sigmoid, HOST_OP},
    {"silu", call_unary, &silu, HOST_OP},
    {"relu", call_unary, &relu, HOST_OP},
    {"square", call_unary, &square, HOST_OP},
    {"gelu", gelu, NULL, HOST_OP},
    {"clamp", clamp, NULL, HOST_OP},
    {"add_", call_change, &add_, HOST_METHOD},
    {"sub_", call_change, &sub_, HOST_METHOD},
    {"mul_", call_change, &mul_, HOST_METHOD},
    {"div_", call_change, &div_, HOST_METHOD},
    {"fill_", fill_, NULL, HOST_METHOD},
    {"zero_", zero_, NULL, HOST_METHOD},
    {"copy_", copy_, NULL, HOST_METHOD},
    {"uniform_", call_noise, &uniform_, HOST_METHOD},
    {"normal_", call_noise, &normal_, HOST_METHOD},
    {NULL, NULL, NULL, 0},
};
