/* loop.c - shapes of elementwise work: broadcasting, and dims merged into few long loops. */
#include "internal.h"

/* Whether dims i (outer) and j (inner) of all operands are one dim of size shape[i] shape[j]. */
static int is_one_dim(const ul_loop *l, int n_operands, int i, int j)
{
    for (int k = 0; k < n_operands; k++)
        if (l->stride[k][i] != l->stride[k][j] * l->shape[j]) return 0;
    return 1;
}

static void move_dim(ul_loop *l, int n_operands, int to, int from)
{
    l->shape[to] = l->shape[from];
    for (int k = 0; k < n_operands; k++) l->stride[k][to] = l->stride[k][from];
}

static void swap_dims(ul_loop *l, int n_operands, int i, int j)
{
    int64_t size = l->shape[i];
    l->shape[i] = l->shape[j];
    l->shape[j] = size;
    for (int k = 0; k < n_operands; k++) {
        int64_t stride = l->stride[k][i];
        l->stride[k][i] = l->stride[k][j];
        l->stride[k][j] = stride;
    }
}

/* Puts the dims in the order in which the output lies in memory, so that the innermost loop walks
 * along it. A contiguous output stays as it is.
 */
static void sort_dims(ul_loop *l, int n_operands)
{
    for (int i = 1; i < l->ndim; i++)
        for (int j = i; j > 0 && l->stride[0][j - 1] < l->stride[0][j]; j--)
            swap_dims(l, n_operands, j - 1, j);
}

/* Merges the dims [from, to) and moves them up to `at`. Returns the end of what is left. */
static int merge_dims(ul_loop *l, int n_operands, int at, int from, int to)
{
    int first = at;
    for (int j = from; j < to; j++) {
        if (at > first && is_one_dim(l, n_operands, at - 1, j)) {
            int64_t size = l->shape[at - 1] * l->shape[j];
            move_dim(l, n_operands, at - 1, j);
            l->shape[at - 1] = size;
        } else {
            move_dim(l, n_operands, at++, j);
        }
    }
    return at;
}

int ul__loop(ul_loop *l, int ndim, const int64_t *shape, int n_operands,
             const int64_t *const *strides, int fixed)
{
    assert(ndim <= UL_LOOP_DIMS && n_operands <= UL_LOOP_OPERANDS && fixed <= ndim);
    *l = (ul_loop){0};
    int n = 0, n_free = 0; /* dims kept, and those among them that are not fixed */
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 1) continue;
        l->shape[n] = shape[i];
        for (int k = 0; k < n_operands; k++) l->stride[k][n] = strides[k][i];
        n++;
        if (i < ndim - fixed) n_free = n;
    }
    l->ndim = n;
    if (fixed == 0) sort_dims(l, n_operands);

    int end = merge_dims(l, n_operands, 0, 0, n_free);
    l->ndim = merge_dims(l, n_operands, end, n_free, n);
    if (fixed > 0 && l->ndim == end) { /* all fixed dims had size 1: one stands for them */
        l->shape[end] = 1;
        for (int k = 0; k < n_operands; k++) l->stride[k][end] = 0;
        l->ndim++;
    }
    return l->ndim - end;
}

void ul__broadcast_strides(int64_t *stride, const ul_tensor *t, int ndim, const int64_t *shape)
{
    int missing = ndim - t->ndim;
    for (int i = 0; i < ndim; i++) {
        int j = i - missing;
        stride[i] = j < 0 || (t->shape[j] == 1 && shape[i] != 1) ? 0 : t->stride[j];
    }
}

void ul__contiguous_strides(int64_t *stride, int ndim, const int64_t *shape)
{
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = step;
        step *= shape[i] > 0 ? shape[i] : 1;
    }
}

int ul__broadcast(const char *op, int *ndim, int64_t *shape, const ul_tensor *a, const ul_tensor *b)
{
    int n = a->ndim > b->ndim ? a->ndim : b->ndim;
    int64_t result[UL_MAX_DIMS];
    for (int i = 0; i < n; i++) {
        int in_a = i - (n - a->ndim), in_b = i - (n - b->ndim);
        int64_t size_a = in_a < 0 ? 1 : a->shape[in_a], size_b = in_b < 0 ? 1 : b->shape[in_b];
        UL_REQUIRE(size_a == size_b || size_a == 1 || size_b == 1, UL_ESHAPE,
                   "%s: shapes %s and %s do not broadcast together", op, ul__shape(a),
                   ul__shape(b));
        result[i] = size_a == 1 ? size_b : size_a;
    }
    *ndim = n;
    for (int i = 0; i < n; i++) shape[i] = result[i];
    return UL_OK;
}

int ul__dim(const char *op, int *dim, const ul_tensor *x)
{
    UL_REQUIRE(*dim >= -x->ndim && *dim < x->ndim, UL_ESHAPE, "%s: x %s has no such dim", op,
               ul__shape(x));
    if (*dim < 0) *dim += x->ndim;
    return UL_OK;
}
