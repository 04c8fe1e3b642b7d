/* reduce.c - sums, extremes and what else runs along dims. */
#include "host.h"

static const char *const keep_names[] = {"keepdim", NULL};

/* The dims in argument i: nil (all), a number or a table of numbers. Call once the tensor's ndim is
 * known. */
static int read_dims(lua_State *L, int i, const char *op, int ndim, int *dims)
{
    if (lua_isnoneornil(L, i)) return 0;
    if (!lua_istable(L, i)) {
        dims[0] = host_dim(L, op, host_integer(L, i, op, "dim"), ndim);
        return 1;
    }
    int n = (int)lua_objlen(L, i);
    if (n > UL_MAX_DIMS) host_fail(L, "%s: %d dims, at most %d", op, n, UL_MAX_DIMS);
    if (n == 0) host_fail(L, "%s: an empty list of dims", op);
    for (int k = 0; k < n; k++) {
        lua_rawgeti(L, i, k + 1);
        dims[k] = host_dim(L, op, host_integer(L, lua_gettop(L), op, "dim"), ndim);
        lua_pop(L, 1);
    }
    return n;
}

/* Where the options are: at `last`, or the table before it, which may hold a list as well:
 * x:sum { keepdim = true }, x:sum { 1, 2, keepdim = true }. A table without a list is then no
 * argument any more.
 */
static int options_at(lua_State *L, const char *op, int last, const char *const *names)
{
    int at = last;
    for (int i = 2; i < last && lua_isnil(L, last); i++)
        if (lua_istable(L, i)) at = i;
    host_options(L, at, op, names, at < last);
    if (at < last && lua_objlen(L, at) == 0) {
        lua_pushvalue(L, at);
        lua_replace(L, last);
        lua_pushnil(L);
        lua_replace(L, at);
        at = last;
    }
    return at;
}

typedef struct reduction {
    const char *name;
    int (*op)(ul_tensor **y, ul_tensor *x, int n_dims, const int *dims, int keep);
} reduction;

/* name(x, dims, { keepdim = }) */
static int call_reduction(lua_State *L)
{
    const reduction *f = lua_touserdata(L, lua_upvalueindex(1));
    int dims[UL_MAX_DIMS];
    host_arguments(L, f->name, 3);
    int options = options_at(L, f->name, 3, keep_names);
    int keep = host_option_boolean(L, options, f->name, "keepdim", 0);
    int n = read_dims(L, 2, f->name, ul_tensor_ndim(host_tensor(L, 1, f->name)), dims);
    host_box *y = host_new(L);
    host_check(L, f->op(&y->t, host_tensor(L, 1, f->name), n, dims, keep));
    return 1;
}

typedef struct extreme {
    const char *name;
    int (*op)(ul_tensor **values, ul_tensor **index, ul_tensor *x, int dim, int keep);
    int index_only;
} extreme;

/* max(x) -> value; max(x, dim, { keepdim = }) -> values, indices; argmax(x, dim) -> indices */
static int call_extreme(lua_State *L)
{
    const extreme *f = lua_touserdata(L, lua_upvalueindex(1));
    host_arguments(L, f->name, 3);
    int options = options_at(L, f->name, 3, keep_names);
    int keep = host_option_boolean(L, options, f->name, "keepdim", 0), dim = UL_ALL;
    if (!lua_isnil(L, 2))
        dim = host_dim(L, f->name, host_integer(L, 2, f->name, "dim"),
                       ul_tensor_ndim(host_tensor(L, 1, f->name)));
    host_box *y = host_new(L);
    if (f->index_only) {
        host_check_as(L, f->name, f->op(NULL, &y->t, host_tensor(L, 1, f->name), dim, keep));
        return 1;
    }
    if (dim == UL_ALL) {
        host_check(L, f->op(&y->t, NULL, host_tensor(L, 1, f->name), dim, keep));
        return 1;
    }
    host_box *index = host_new(L);
    host_check(L, f->op(&y->t, &index->t, host_tensor(L, 1, f->name), dim, keep));
    return 2;
}

typedef struct along {
    const char *name;
    int (*op)(ul_tensor **y, ul_tensor *x, int dim);
} along;

/* name(x, dim), the last dim where none is said */
static int call_along(lua_State *L)
{
    const along *f = lua_touserdata(L, lua_upvalueindex(1));
    host_arguments(L, f->name, 2);
    int64_t dim = host_integer_or(L, 2, f->name, "dim", -1);
    host_box *y = host_new(L);
    ul_tensor *x = host_tensor(L, 1, f->name);
    host_check(L, f->op(&y->t, x, host_dim(L, f->name, dim, ul_tensor_ndim(x))));
    return 1;
}

/* sort(x, dim, { descending = }) -> values, indices */
static int sort(lua_State *L)
{
    static const char *const names[] = {"descending", NULL};
    host_arguments(L, "sort", 3);
    int options = options_at(L, "sort", 3, names);
    int descending = host_option_boolean(L, options, "sort", "descending", 0);
    int64_t dim = host_integer_or(L, 2, "sort", "dim", -1);
    host_box *y = host_new(L), *index = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "sort");
    int at = host_dim(L, "sort", dim, ul_tensor_ndim(x));
    host_check(L, ul_sort(&y->t, &index->t, x, at, descending));
    return 2;
}

/* topk(x, k, dim, { largest = }) -> values, indices */
static int topk(lua_State *L)
{
    static const char *const names[] = {"largest", NULL};
    host_arguments(L, "topk", 4);
    int options = options_at(L, "topk", 4, names);
    int largest = host_option_boolean(L, options, "topk", "largest", 1);
    int64_t k = host_integer(L, 2, "topk", "k"), dim = host_integer_or(L, 3, "topk", "dim", -1);
    host_box *y = host_new(L), *index = host_new(L);
    ul_tensor *x = host_tensor(L, 1, "topk");
    int at = host_dim(L, "topk", dim, ul_tensor_ndim(x));
    host_check(L, ul_topk(&y->t, &index->t, x, k, at, largest));
    return 2;
}

/* sqrt of the sum of squares */
static int norm_of(ul_tensor **y, ul_tensor *x)
{
    ul_tensor *square = NULL, *sum = NULL;
    int rc = ul_mul(&square, x, x);
    if (rc == UL_OK) rc = ul_sum(&sum, square, 0, NULL, 0);
    if (rc == UL_OK) rc = ul_sqrt(y, sum);
    ul_tensor_free(square);
    ul_tensor_free(sum);
    return rc;
}

static int norm(lua_State *L)
{
    host_arguments(L, "norm", 1);
    host_box *y = host_new(L);
    host_check_as(L, "norm", norm_of(&y->t, host_tensor(L, 1, "norm")));
    return 1;
}

static const reduction sum = {"sum", ul_sum}, mean = {"mean", ul_mean},
                       logsumexp = {"logsumexp", ul_logsumexp};
static const extreme max = {"max", ul_max, 0}, min = {"min", ul_min, 0},
                     argmax = {"argmax", ul_max, 1}, argmin = {"argmin", ul_min, 1};
static const along softmax = {"softmax", ul_softmax}, log_softmax = {"log_softmax", ul_log_softmax},
                   cumsum = {"cumsum", ul_cumsum};

const host_function host_reduce[] = {
    {"sum", call_reduction, &sum, HOST_OP},
    {"mean", call_reduction, &mean, HOST_OP},
    {"logsumexp", call_reduction, &logsumexp, HOST_OP},
    {"max", call_extreme, &max, HOST_OP},
    {"min", call_extreme, &min, HOST_OP},
    {"argmax", call_extreme, &argmax, HOST_OP},
    {"argmin", call_extreme, &argmin, HOST_OP},
    {"softmax", call_along, &softmax, HOST_OP},
    {"log_softmax", call_along, &log_softmax, HOST_OP},
    {"cumsum", call_along, &cumsum, HOST_OP},
    {"sort", sort, NULL, HOST_OP},
    {"topk", topk, NULL, HOST_OP},
    {"norm", norm, NULL, HOST_OP},
    {NULL, NULL, NULL, 0},
};
