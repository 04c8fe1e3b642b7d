/* create.c - new tensors: from tables, filled, random. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host.h"

/* ---- options that all share ---- */

typedef struct make {
    int dtype; /* -1: not said */
    ul_device device;
    int requires_grad;
} make;

static make make_options(lua_State *L, int i, const char *op, int list)
{
    static const char *const names[] = {"dtype", "device", "requires_grad", NULL};
    host_options(L, i, op, names, list);
    make m;
    m.dtype = host_option_choice(L, i, op, "dtype", host_dtypes, -1);
    m.device = (ul_device)host_option_choice(L, i, op, "device", host_devices, (int)host_device);
    m.requires_grad = host_option_boolean(L, i, op, "requires_grad", 0);
    return m;
}

/* Shape and options in the arguments from `first` on: (2, 3), (2, 3, options), ({2, 3}, options) or
 * {2, 3, dtype = 'f64'}.
 */
static int shape_and_options(lua_State *L, int first, const char *op, int64_t *shape, make *m)
{
    int last = lua_gettop(L);
    if (last >= first && lua_type(L, first) == LUA_TTABLE) {
        *m = make_options(L, first, op, 1);
        if (last > first) {
            static const char *const none[] = {NULL};
            host_options(L, first, op, none, 1);
            *m = make_options(L, first + 1, op, 0);
        }
        if (last > first + 1) host_fail(L, "%s: arguments after the options", op);
        return host_shape(L, first, first, op, shape);
    }
    int options = last >= first && lua_type(L, last) == LUA_TTABLE ? last : last + 1;
    *m = make_options(L, options, op, 0);
    return host_shape(L, first, options - 1, op, shape);
}

static void check_sizes(lua_State *L, const char *op, int ndim, const int64_t *shape)
{
    for (int d = 0; d < ndim; d++)
        if (shape[d] < 0)
            host_fail(L, "%s: size %lld of dim %d is negative", op, (long long)shape[d], d + 1);
}

static int finish(lua_State *L, host_box *y, const char *op, const make *m)
{
    if (m->requires_grad) host_check_as(L, op, ul_tensor_require_grad(y->t, 1));
    return 1;
}

/* ---- filled ---- */

typedef struct fill {
    const char *name;
    enum { NOTHING, VALUE, UNIFORM, NORMAL } how;
    double value;
} fill;

static int fill_in(ul_tensor *y, const fill *f, double value)
{
    switch (f->how) {
    case VALUE:
        return ul_fill_(y, value);
    case UNIFORM:
        return ul_uniform_(y, 0, 1);
    case NORMAL:
        return ul_normal_(y, 0, 1);
    default:
        return UL_OK;
    }
}

static int create(lua_State *L)
{
    const fill *f = lua_touserdata(L, lua_upvalueindex(1));
    int64_t shape[UL_MAX_DIMS];
    make m;
    int ndim = shape_and_options(L, 1, f->name, shape, &m);
    check_sizes(L, f->name, ndim, shape);
    host_box *y = host_new(L);
    host_check_as(
        L, f->name,
        ul_tensor_new(&y->t, m.dtype < 0 ? UL_F32 : (ul_dtype)m.dtype, m.device, ndim, shape));
    host_check_as(L, f->name, fill_in(y->t, f, f->value));
    return finish(L, y, f->name, &m);
}

/* name_like(x, options): x's shape, and its dtype and device unless the options say others */
static int create_like(lua_State *L)
{
    const fill *f = lua_touserdata(L, lua_upvalueindex(1));
    host_arguments(L, f->name, 2);
    make m = make_options(L, 2, f->name, 0);
    int on_device = host_option(L, 2, "device");
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, f->name);
    host_check_as(L, f->name,
                  ul_tensor_new(&y->t, m.dtype < 0 ? ul_tensor_dtype(x) : (ul_dtype)m.dtype,
                                on_device ? m.device : ul_tensor_device(x), ul_tensor_ndim(x),
                                ul_tensor_shape(x)));
    host_check_as(L, f->name, fill_in(y->t, f, f->value));
    return finish(L, y, f->name, &m);
}

/* full(shape, value, options) */
static int full(lua_State *L)
{
    static const fill with_value = {"full", VALUE, 0};
    int64_t shape[UL_MAX_DIMS];
    host_arguments(L, "full", 3);
    if (!lua_istable(L, 1)) host_fail(L, "full: the shape must be a table");
    int ndim = host_shape(L, 1, 1, "full", shape);
    double value = host_number(L, 2, "full", "the value");
    make m = make_options(L, 3, "full", 0);
    check_sizes(L, "full", ndim, shape);
    host_box *y = host_new(L);
    host_check_as(
        L, "full",
        ul_tensor_new(&y->t, m.dtype < 0 ? UL_F32 : (ul_dtype)m.dtype, m.device, ndim, shape));
    host_check_as(L, "full", fill_in(y->t, &with_value, value));
    return finish(L, y, "full", &m);
}

/* randint(low, high, shape, options): in [low, high) */
static int randint(lua_State *L)
{
    int64_t shape[UL_MAX_DIMS];
    host_arguments(L, "randint", 4);
    int64_t low = host_integer(L, 1, "randint", "low");
    int64_t high = host_integer(L, 2, "randint", "high");
    if (!lua_istable(L, 3)) host_fail(L, "randint: the shape must be a table");
    int ndim = host_shape(L, 3, 3, "randint", shape);
    make m = make_options(L, 4, "randint", 0);
    check_sizes(L, "randint", ndim, shape);
    host_box *y = host_new(L);
    host_check_as(
        L, "randint",
        ul_tensor_new(&y->t, m.dtype < 0 ? UL_I64 : (ul_dtype)m.dtype, m.device, ndim, shape));
    host_check_as(L, "randint", ul_randint_(y->t, low, high));
    return finish(L, y, "randint", &m);
}

/* arange(stop, options), arange(start, stop, options), arange(start, stop, step, options): stop is
 * not among them, values are data
 */
static int arange(lua_State *L)
{
    double value[3] = {0, 0, 1};
    int n = lua_gettop(L), last = n;
    if (n > 0 && lua_istable(L, n)) last = n - 1;
    make m = make_options(L, last + 1, "arange", 0);
    if (last < 1 || last > 3 || n > last + 1) host_fail(L, "arange: expected (start, stop, step)");
    for (int i = 1; i <= last; i++)
        value[last == 1 ? 1 : i - 1] = host_number(L, i, "arange", "a bound");
    double start = value[0], stop = value[1], step = value[2], count = ceil((stop - start) / step);
    if (step == 0 || !isfinite(count))
        host_fail(L, "arange: no end from %g to %g by %g", start, stop, step);
    int whole = start == floor(start) && step == floor(step);
    if (count < 0) count = 0;
    if (count > 9e18) host_fail(L, "arange: %g elements are too many", count);
    host_box *y = host_new(L);
    ul_dtype dtype = m.dtype >= 0 ? (ul_dtype)m.dtype : whole ? UL_I64 : UL_F32;
    host_check_as(L, "arange", ul_arange(&y->t, start, step, (int64_t)count, dtype, m.device));
    return finish(L, y, "arange", &m);
}

/* ---- from tables ---- */

typedef struct reader {
    const char *op;
    ul_dtype dtype;
    int ndim;
    int64_t shape[UL_MAX_DIMS];
    int64_t at[UL_MAX_DIMS]; /* where the reader is, for errors */
    int boolean;             /* whether elements are booleans */
    void *data;
    int64_t next;
} reader;

/* "element [2][1]", "table [2]" or "the table", down to depth d. */
static const char *place(const reader *r, int d, char *text, size_t size)
{
    const char *what = d == r->ndim ? "element " : d > 0 ? "table " : "the table";
    size_t at = (size_t)snprintf(text, size, "%s", what);
    for (int k = 0; k < d && at < size; k++)
        at += (size_t)snprintf(text + at, size - at, "[%lld]", (long long)r->at[k]);
    return text;
}

/* The shape as the first elements have it. */
static void read_shape(lua_State *L, int i, reader *r)
{
    lua_pushvalue(L, i);
    while (lua_type(L, -1) == LUA_TTABLE) {
        if (r->ndim == UL_MAX_DIMS)
            host_fail(L, "%s: tables nested deeper than %d", r->op, UL_MAX_DIMS);
        r->shape[r->ndim++] = (int64_t)lua_objlen(L, -1);
        lua_rawgeti(L, -1, 1);
        lua_remove(L, -2);
    }
    r->boolean = lua_type(L, -1) == LUA_TBOOLEAN;
    lua_pop(L, 1);
}

static void store(lua_State *L, reader *r, int d)
{
    static const double low[UL_DTYPES] = {[UL_I32] = INT32_MIN, [UL_I64] = -0x1p63},
                        high[UL_DTYPES] = {[UL_I32] = INT32_MAX, [UL_I64] = 0x1p63, [UL_U8] = 255};
    char where[128], what[160], text[64];
    int is_boolean = lua_type(L, -1) == LUA_TBOOLEAN;
    if (is_boolean != r->boolean || (!is_boolean && !host_is_number(L, lua_gettop(L))))
        host_fail(L, "%s: %s is %s, expected a %s", r->op, place(r, d, where, sizeof where),
                  host_describe(L, lua_gettop(L), text, sizeof text),
                  r->boolean ? "boolean" : "number");
    double value = 0;
    int64_t whole = 0;
    if (is_boolean)
        value = (double)(whole = lua_toboolean(L, -1));
    else
        value = host_number(L, lua_gettop(L), r->op, "element");
    if (!ul_dtype_is_float(r->dtype) && !is_boolean) {
        place(r, d, what, sizeof what);
        whole = host_integer(L, lua_gettop(L), r->op, what);
        if (value < low[r->dtype] || value > high[r->dtype])
            host_fail(L, "%s: %s, %.14g, does not fit %s", r->op, what, value,
                      ul_dtype_name(r->dtype));
    }
    int64_t i = r->next++;
    switch (r->dtype) {
    case UL_F32:
        ((float *)r->data)[i] = (float)value;
        break;
    case UL_F64:
        ((double *)r->data)[i] = value;
        break;
    case UL_I32:
        ((int32_t *)r->data)[i] = (int32_t)whole;
        break;
    case UL_I64:
        ((int64_t *)r->data)[i] = whole;
        break;
    default:
        ((uint8_t *)r->data)[i] = (uint8_t)whole;
    }
}

/* The value on top of the stack, at depth d. */
static void read_value(lua_State *L, reader *r, int d)
{
    char where[128], text[64];
    if (d == r->ndim) {
        if (lua_istable(L, -1))
            host_fail(L, "%s: %s is a table, others at this depth are not", r->op,
                      place(r, d, where, sizeof where));
        store(L, r, d);
        return;
    }
    if (!lua_istable(L, -1))
        host_fail(L, "%s: %s is %s, expected a table of %lld", r->op,
                  place(r, d, where, sizeof where),
                  host_describe(L, lua_gettop(L), text, sizeof text), (long long)r->shape[d]);
    int64_t n = (int64_t)lua_objlen(L, -1), keys = 0;
    if (n != r->shape[d])
        host_fail(L, "%s: %s has %lld elements, the first at its depth has %lld", r->op,
                  place(r, d, where, sizeof where), (long long)n, (long long)r->shape[d]);
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) keys++;
    if (keys > n)
        host_fail(L, "%s: %s has a hole, or keys that are no positions", r->op,
                  place(r, d, where, sizeof where));
    for (int64_t i = 1; i <= n; i++) {
        r->at[d] = i;
        lua_rawgeti(L, -1, (int)i);
        read_value(L, r, d + 1);
        lua_pop(L, 1);
    }
}

host_box *host_from_table(lua_State *L, int i, const char *op, int dtype, ul_device device)
{
    reader r = {.op = op};
    char text[64];
    int lists = lua_istable(L, i);
    if (!lists && !host_is_number(L, i) && lua_type(L, i) != LUA_TBOOLEAN)
        host_fail(L, "%s: expected a table or a number, got %s", op,
                  host_describe(L, i, text, sizeof text));
    luaL_checkstack(L, UL_MAX_DIMS + 8, op);
    read_shape(L, i, &r);
    if (dtype < 0) dtype = r.boolean ? UL_U8 : UL_F32;
    r.dtype = dtype == UL_BF16 ? UL_F32 : (ul_dtype)dtype;

    host_box *y = host_new(L), *wide = host_new(L);
    host_check_as(L, op, ul_tensor_new(&wide->t, r.dtype, UL_CPU, r.ndim, r.shape));
    r.data = ul_tensor_data(wide->t);
    lua_pushvalue(L, i);
    read_value(L, &r, 0);
    lua_pop(L, 1);
    ul_tensor *right_type = NULL;
    int rc = ul_cast(&right_type, wide->t, (ul_dtype)dtype);
    if (rc == UL_OK) rc = ul_to_device(&y->t, right_type, device);
    ul_tensor_free(right_type);
    host_end(wide, NULL);
    lua_pop(L, 1);
    host_check(L, rc);
    return y;
}

/* tensor(table or number, options) */
static int from_values(lua_State *L)
{
    host_arguments(L, "tensor", 2);
    make m = make_options(L, 2, "tensor", 0);
    if (host_to_box(L, 1)) host_fail(L, "tensor: this is one already; x:clone() copies it");
    return finish(L, host_from_table(L, 1, "tensor", m.dtype, m.device), "tensor", &m);
}

static const fill fill_empty = {"empty", NOTHING, 0}, fill_zeros = {"zeros", VALUE, 0},
                  fill_ones = {"ones", VALUE, 1}, fill_rand = {"rand", UNIFORM, 0},
                  fill_randn = {"randn", NORMAL, 0}, fill_empty_like = {"empty_like", NOTHING, 0},
                  fill_zeros_like = {"zeros_like", VALUE, 0},
                  fill_ones_like = {"ones_like", VALUE, 1},
                  fill_rand_like = {"rand_like", UNIFORM, 0},
                  fill_randn_like = {"randn_like", NORMAL, 0};

const host_function host_create[] = {
    {"tensor", from_values, NULL, HOST_MODULE},
    {"empty", create, &fill_empty, HOST_MODULE},
    {"zeros", create, &fill_zeros, HOST_MODULE},
    {"ones", create, &fill_ones, HOST_MODULE},
    {"rand", create, &fill_rand, HOST_MODULE},
    {"randn", create, &fill_randn, HOST_MODULE},
    {"empty_like", create_like, &fill_empty_like, HOST_MODULE},
    {"zeros_like", create_like, &fill_zeros_like, HOST_MODULE},
    {"ones_like", create_like, &fill_ones_like, HOST_MODULE},
    {"rand_like", create_like, &fill_rand_like, HOST_MODULE},
    {"randn_like", create_like, &fill_randn_like, HOST_MODULE},
    {"full", full, NULL, HOST_MODULE},
    {"randint", randint, NULL, HOST_MODULE},
    {"arange", arange, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
