/* views.c - other shapes, dtypes and devices of a tensor; joining and picking. */
#include <string.h>

#include "host.h"

/* ---- shapes ---- */

typedef struct reshaping {
    const char *name;
    int (*op)(ul_tensor **y, ul_tensor *x, int ndim, const int64_t *shape);
} reshaping;

/* name(x, 2, -1) or name(x, { 2, -1 }) */
static int call_reshaping(lua_State *L)
{
    const reshaping *f = lua_touserdata(L, lua_upvalueindex(1));
    int64_t shape[UL_MAX_DIMS];
    if (lua_gettop(L) < 2) host_fail(L, "%s: no shape", f->name);
    int ndim = host_shape(L, 2, lua_gettop(L), f->name, shape);
    host_box *y = host_new(L);
    host_check(L, f->op(&y->t, host_tensor(L, 1, f->name), ndim, shape));
    return 1;
}

static int flatten(lua_State *L)
{
    int64_t all = -1;
    host_arguments(L, "flatten", 1);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "flatten");
    if (ul_tensor_size(x) == 0) all = 0;
    host_check_as(L, "flatten", ul_reshape(&y->t, x, 1, &all));
    return 1;
}

static int permute(lua_State *L)
{
    int64_t list[UL_MAX_DIMS];
    int dims[UL_MAX_DIMS];
    int n = host_integers(L, 2, lua_gettop(L), "permute", "dim in place", list);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "permute");
    for (int i = 0; i < n; i++) dims[i] = host_dim(L, "permute", list[i], ul_tensor_ndim(x));
    host_check(L, ul_permute(&y->t, x, n, dims));
    return 1;
}

static int transpose(lua_State *L)
{
    host_arguments(L, "transpose", 3);
    int64_t a = host_integer(L, 2, "transpose", "dim"), b = host_integer(L, 3, "transpose", "dim");
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "transpose");
    int ndim = ul_tensor_ndim(x);
    host_check(L, ul_transpose(&y->t, x, host_dim(L, "transpose", a, ndim),
                               host_dim(L, "transpose", b, ndim)));
    return 1;
}

static int t(lua_State *L)
{
    host_arguments(L, "t", 1);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "t");
    if (ul_tensor_ndim(x) != 2)
        host_fail(L, "t: the tensor has %d dims, not 2; transpose(a, b) names them",
                  ul_tensor_ndim(x));
    host_check(L, ul_transpose(&y->t, x, 0, 1));
    return 1;
}

/* A position counted from 1, or from -1 backwards -> from 0 */
static int64_t position(lua_State *L, const char *op, int64_t at, int dim, int64_t size)
{
    if (at == 0)
        host_fail(L, "%s: position 0 of dim %d: positions are counted from 1", op, dim + 1);
    if (at > size || at < -size)
        host_fail(L, "%s: position %lld of dim %d, which has %lld", op, (long long)at, dim + 1,
                  (long long)size);
    return at > 0 ? at - 1 : at + size;
}

static int select_one(lua_State *L)
{
    host_arguments(L, "select", 3);
    int64_t dim = host_integer(L, 2, "select", "dim"),
            at = host_integer(L, 3, "select", "the position");
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "select");
    int d = host_dim(L, "select", dim, ul_tensor_ndim(x));
    host_check(L, ul_select(&y->t, x, d, position(L, "select", at, d, ul_tensor_dim(x, d))));
    return 1;
}

/* narrow(x, dim, start, length) */
static int narrow(lua_State *L)
{
    host_arguments(L, "narrow", 4);
    int64_t dim = host_integer(L, 2, "narrow", "dim"),
            start = host_integer(L, 3, "narrow", "start");
    int64_t length = host_integer(L, 4, "narrow", "length");
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "narrow");
    int d = host_dim(L, "narrow", dim, ul_tensor_ndim(x));
    int64_t size = ul_tensor_dim(x, d);
    if (start < 0) start += size + 1;
    if (start < 1 || length < 0 || start > size + 1 || length > size - start + 1)
        host_fail(L, "narrow: %lld from position %lld on of dim %d, which has %lld",
                  (long long)length, (long long)start, d + 1, (long long)size);
    host_check(L, ul_slice(&y->t, x, d, start - 1, length, 1));
    return 1;
}

static int unsqueeze(lua_State *L)
{
    host_arguments(L, "unsqueeze", 2);
    int64_t dim = host_integer(L, 2, "unsqueeze", "dim");
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "unsqueeze");
    host_check(L, ul_unsqueeze(&y->t, x, host_dim(L, "unsqueeze", dim, ul_tensor_ndim(x) + 1)));
    return 1;
}

/* squeeze(x, dim), or all dims of size 1 */
static int squeeze(lua_State *L)
{
    host_arguments(L, "squeeze", 2);
    int all = lua_isnil(L, 2);
    int64_t dim = host_integer_or(L, 2, "squeeze", "dim", 1);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "squeeze");
    if (!all) {
        host_check(L, ul_squeeze(&y->t, x, host_dim(L, "squeeze", dim, ul_tensor_ndim(x))));
        return 1;
    }
    int64_t shape[UL_MAX_DIMS];
    int ndim = 0;
    for (int d = 0; d < ul_tensor_ndim(x); d++)
        if (ul_tensor_dim(x, d) != 1) shape[ndim++] = ul_tensor_dim(x, d);
    host_check_as(L, "squeeze", ul_view(&y->t, x, ndim, shape));
    return 1;
}

/* ---- parts ---- */

/* Pushes views of x along dim with the sizes given; x is argument 1. */
static int push_parts(lua_State *L, const char *op, int dim, int64_t n, const int64_t *sizes)
{
    int64_t start = 0;
    if (n > 1000) host_fail(L, "%s: %lld parts, at most 1000", op, (long long)n);
    luaL_checkstack(L, (int)n + 8, op);
    for (int64_t i = 0; i < n; i++) {
        host_box *y = host_new(L);
        host_check(L, ul_slice(&y->t, host_tensor(L, 1, op), dim, start, sizes[i], 1));
        start += sizes[i];
    }
    return (int)n;
}

/* Parts of `each` elements, the last one smaller where it does not come out even. */
static int equal_parts(lua_State *L, const char *op, int dim, int64_t size, int64_t each)
{
    int64_t sizes[1000], n = size > 0 ? (size - 1) / each + 1 : 1; /* nothing is one part, too */
    if (n > 1000) host_fail(L, "%s: %lld parts, at most 1000", op, (long long)n);
    for (int64_t i = 0; i < n; i++) sizes[i] = size - i * each < each ? size - i * each : each;
    return push_parts(L, op, dim, n, sizes);
}

/* split(x, size or { sizes }, dim = 1) -> the parts */
static int split(lua_State *L)
{
    host_arguments(L, "split", 3);
    int64_t each = 0, sizes[1000], total = 0;
    int n = 0, list = lua_istable(L, 2);
    if (list) {
        n = (int)lua_objlen(L, 2);
        if (n > 1000) host_fail(L, "split: %d parts, at most 1000", n);
        for (int i = 0; i < n; i++) {
            lua_rawgeti(L, 2, i + 1);
            sizes[i] = host_integer(L, lua_gettop(L), "split", "a size");
            lua_pop(L, 1);
            if (sizes[i] < 0) host_fail(L, "split: size %lld is negative", (long long)sizes[i]);
            if (__builtin_add_overflow(total, sizes[i], &total)) total = -1;
        }
    } else {
        each = host_integer(L, 2, "split", "the size");
        if (each < 1) host_fail(L, "split: size %lld is not positive", (long long)each);
    }
    int64_t dim_given = host_integer_or(L, 3, "split", "dim", 1);
    ul_tensor *x = host_tensor(L, 1, "split");
    int dim = host_dim(L, "split", dim_given, ul_tensor_ndim(x));
    int64_t size = ul_tensor_dim(x, dim);
    if (!list) return equal_parts(L, "split", dim, size, each);
    if (total != size)
        host_fail(L, "split: the sizes sum to %lld, dim %d has %lld", (long long)total, dim + 1,
                  (long long)size);
    return push_parts(L, "split", dim, n, sizes);
}

/* chunk(x, n, dim = 1): at most n parts of equal size but the last */
static int chunk(lua_State *L)
{
    host_arguments(L, "chunk", 3);
    int64_t n = host_integer(L, 2, "chunk", "the number of parts");
    int64_t dim_given = host_integer_or(L, 3, "chunk", "dim", 1);
    if (n < 1) host_fail(L, "chunk: %lld parts", (long long)n);
    ul_tensor *x = host_tensor(L, 1, "chunk");
    int dim = host_dim(L, "chunk", dim_given, ul_tensor_ndim(x));
    int64_t size = ul_tensor_dim(x, dim);
    return equal_parts(L, "chunk", dim, size, size > 0 ? (size - 1) / n + 1 : 1);
}

/* ---- copies ---- */

typedef struct copying {
    const char *name;
    int (*op)(ul_tensor **y, ul_tensor *x);
} copying;

static int call_copying(lua_State *L)
{
    const copying *f = lua_touserdata(L, lua_upvalueindex(1));
    host_arguments(L, f->name, 1);
    host_box *y = host_new(L);
    host_check(L, f->op(&y->t, host_tensor(L, 1, f->name)));
    return 1;
}

static int index_of(const char *word, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], word) == 0) return i;
    return -1;
}

/* One word of to(): a dtype or a device. */
static void read_target(lua_State *L, int i, int *dtype, int *device)
{
    static const char *const all[] = {"f32", "bf16", "f64",  "i32",  "i64",
                                      "u8",  "cpu",  "meta", "cuda", NULL};
    int which = host_choice(L, i, "to", "dtype or device", all);
    if (which < UL_DTYPES)
        *dtype = which;
    else
        *device = index_of(all[which], host_devices);
}

/* to('bf16'), to('meta'), to('bf16', 'meta'), to { dtype =, device = }, to(other) */
static int to(lua_State *L)
{
    static const char *const names[] = {"dtype", "device", NULL};
    int dtype = -1, device = -1;
    host_arguments(L, "to", 3);
    host_box *like = host_to_box(L, 2);
    if (!like && lua_istable(L, 2)) {
        host_options(L, 2, "to", names, 0);
        dtype = host_option_choice(L, 2, "to", "dtype", host_dtypes, -1);
        device = host_option_choice(L, 2, "to", "device", host_devices, -1);
    } else if (!like) {
        read_target(L, 2, &dtype, &device);
        if (!lua_isnil(L, 3)) read_target(L, 3, &dtype, &device);
    }
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "to"), *middle = NULL;
    if (like) {
        ul_tensor *other = host_tensor(L, 2, "to");
        dtype = (int)ul_tensor_dtype(other);
        device = (int)ul_tensor_device(other);
    }
    int rc = ul_cast(&middle, x, dtype < 0 ? ul_tensor_dtype(x) : (ul_dtype)dtype);
    if (rc == UL_OK)
        rc = ul_to_device(&y->t, middle, device < 0 ? ul_tensor_device(x) : (ul_device)device);
    ul_tensor_free(middle);
    host_check(L, rc);
    return 1;
}

/* ---- joining ---- */

/* cat(list, dim = 1) */
static int cat(lua_State *L)
{
    int n;
    host_arguments(L, "cat", 2);
    int64_t dim = host_integer_or(L, 2, "cat", "dim", 1);
    host_box *y = host_new(L);
    ul_tensor **xs = host_list(L, 1, "cat", &n);
    if (n == 0) host_fail(L, "cat: the list is empty");
    lua_pushvalue(L, -2);
    host_check(L, ul_cat(&y->t, xs, n, host_dim(L, "cat", dim, ul_tensor_ndim(xs[0]))));
    return 1;
}

/* stack(list, dim = 1): along a new dim */
static int stack(lua_State *L)
{
    int n;
    host_arguments(L, "stack", 2);
    int64_t dim_given = host_integer_or(L, 2, "stack", "dim", 1);
    host_box *y = host_new(L);
    ul_tensor **xs = host_list(L, 1, "stack", &n);
    if (n == 0) host_fail(L, "stack: the list is empty");
    int dim = host_dim(L, "stack", dim_given, ul_tensor_ndim(xs[0]) + 1), rc = UL_OK, made = 0;
    lua_pushvalue(L, -2);
    for (; made < n && rc == UL_OK; made++) {
        ul_tensor *wide = NULL;
        rc = ul_unsqueeze(&wide, xs[made], dim);
        if (rc < 0) break;
        xs[made] = wide;
    }
    if (rc == UL_OK) rc = ul_cat(&y->t, xs, n, dim);
    for (int i = 0; i < made; i++) ul_tensor_free(xs[i]);
    host_check_as(L, "stack", rc);
    return 1;
}

typedef struct picking {
    const char *name;
    int (*op)(ul_tensor **y, ul_tensor *x, int dim, ul_tensor *index);
} picking;

/* name(x, dim, index), 0-based indices */
static int call_picking(lua_State *L)
{
    const picking *f = lua_touserdata(L, lua_upvalueindex(1));
    host_arguments(L, f->name, 3);
    int64_t dim = host_integer(L, 2, f->name, "dim");
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, f->name), *index = host_tensor(L, 3, f->name);
    host_check(L, f->op(&y->t, x, host_dim(L, f->name, dim, ul_tensor_ndim(x)), index));
    return 1;
}

static const reshaping view = {"view", ul_view}, reshape = {"reshape", ul_reshape},
                       expand = {"expand", ul_expand};
static const copying contiguous = {"contiguous", ul_contiguous}, clone = {"clone", ul_clone},
                     detach = {"detach", ul_detach};
static const picking gather = {"gather", ul_gather},
                     index_select = {"index_select", ul_index_select};

const host_function host_views[] = {
    {"view", call_reshaping, &view, HOST_METHOD},
    {"reshape", call_reshaping, &reshape, HOST_OP},
    {"expand", call_reshaping, &expand, HOST_METHOD},
    {"flatten", flatten, NULL, HOST_OP},
    {"permute", permute, NULL, HOST_OP},
    {"transpose", transpose, NULL, HOST_OP},
    {"t", t, NULL, HOST_OP},
    {"select", select_one, NULL, HOST_OP},
    {"narrow", narrow, NULL, HOST_OP},
    {"unsqueeze", unsqueeze, NULL, HOST_OP},
    {"squeeze", squeeze, NULL, HOST_OP},
    {"split", split, NULL, HOST_OP},
    {"chunk", chunk, NULL, HOST_OP},
    {"contiguous", call_copying, &contiguous, HOST_METHOD},
    {"clone", call_copying, &clone, HOST_OP},
    {"detach", call_copying, &detach, HOST_METHOD},
    {"to", to, NULL, HOST_METHOD},
    {"cat", cat, NULL, HOST_MODULE | HOST_FUNCTIONAL},
    {"stack", stack, NULL, HOST_MODULE | HOST_FUNCTIONAL},
    {"gather", call_picking, &gather, HOST_OP},
    {"index_select", call_picking, &index_select, HOST_OP},
    {NULL, NULL, NULL, 0},
};
