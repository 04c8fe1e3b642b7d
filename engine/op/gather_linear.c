/* gather_linear.c - linear maps of what all ranks of a group have together.
 *
 * Megatron-LM's way into a tensor-parallel layer: ranks hold slices of the tokens outside, all of
 * the tokens and a part of each weight inside. One gather serves several maps.
 */
#include <stdlib.h>

#include "parts.h"

typedef struct context {
    ul_group *group;
    int dim, n, keep;
    int64_t inputs, rows; /* of a weight's row; of what is gathered */
    int64_t *first, *count;
    int64_t numbers[];
} context;

/* saved[]: x or, where it is kept, what was gathered; then the weights. */
enum { SAVED_X, SAVED_WEIGHTS };

static context *context_new(ul_group *g, const ul_tensor *x, int n)
{
    context *c = ul__alloc(sizeof *c + 2 * (size_t)g->size * sizeof *c->numbers);
    if (!c) return NULL;
    *c = (context){.group = g, .n = n, .inputs = x->shape[x->ndim - 1]};
    c->first = c->numbers;
    c->count = c->numbers + g->size;
    return c;
}

/* The shape of x with the tokens of all ranks. */
static void whole_shape(const context *c, int64_t *shape, int ndim, const int64_t *of_x)
{
    int last = c->group->size - 1;
    for (int d = 0; d < ndim; d++) shape[d] = of_x[d];
    shape[c->dim] = c->first[last] + c->count[last];
}

static int gather(ul_tensor **whole, const context *c, ul_tensor *x)
{
    int64_t shape[UL_MAX_DIMS];
    whole_shape(c, shape, x->ndim, x->shape);
    UL_TRY(ul_tensor_new(whole, x->dtype, x->storage->device, x->ndim, shape));
    const ul_parts parts = {*whole, c->dim, c->first, c->count};
    int rc = ul__gather_parts(c->group, &parts, x, NULL);
    if (rc < 0) {
        ul_tensor_free(*whole);
        *whole = NULL;
    }
    return rc;
}

static int multiply(void *c, const ul_tensor *a, const ul_tensor *b, ul_gemm g)
{
    int64_t *const ld[] = {&g.lda, &g.ldb, &g.ldc};
    for (int i = 0; i < 3; i++) *ld[i] = *ld[i] > 1 ? *ld[i] : 1; /* of rows of nothing */
    g.batch = 1;
    g.alpha = 1;
    return ul__gemm(ul__kernels(a), ul__stream(a), c, ul__data(a), ul__data(b), &g);
}

/* dx = this rank's part of the sum over ranks of  sum over i of dy_i w_i. */
static int backward_x(ul_call *call, ul_tensor *const *dy)
{
    const context *c = call->context;
    const ul_variable *x = call->variable[0];
    if (!x) return UL_OK;
    ul_tensor *whole, *dx = NULL;
    int64_t shape[UL_MAX_DIMS];
    whole_shape(c, shape, x->ndim, x->shape);
    UL_TRY(ul_tensor_new(&whole, x->dtype, x->device, x->ndim, shape));
    int rc = UL_OK, add = 0;
    for (int i = 0; i < c->n && rc == UL_OK; i++) {
        if (!dy[i]) continue;
        const ul_tensor *w = call->saved[SAVED_WEIGHTS + i];
        int64_t outputs = w->shape[0];
        rc = multiply(ul__data(whole), dy[i], w,
                      (ul_gemm){.m = c->rows,
                                .n = c->inputs,
                                .k = outputs,
                                .lda = outputs,
                                .ldb = c->inputs,
                                .ldc = c->inputs,
                                .beta = add});
        add = 1;
    }
    if (rc == UL_OK) rc = ul_tensor_new(&dx, x->dtype, x->device, x->ndim, x->shape);
    const ul_parts parts = {whole, c->dim, c->first, c->count};
    if (rc == UL_OK) rc = ul__scatter_parts(c->group, &parts, dx);
    ul_tensor_free(whole);
    if (rc == UL_OK)
        ul__grad_take(call, 0, dx);
    else
        ul_tensor_free(dx);
    return rc;
}

/* dw_i = dy_i^T X */
static int backward_weights(ul_call *call, ul_tensor *const *dy, const ul_tensor *whole)
{
    const context *c = call->context;
    for (int i = 0; i < c->n; i++) {
        const ul_variable *w = call->variable[1 + i];
        if (!dy[i] || !w) continue;
        ul_grad dw;
        UL_TRY(w->leaf ? ul__grad_acc(&dw, call, 1 + i) : ul__grad_of(&dw, call, 1 + i));
        int64_t outputs = w->shape[0];
        UL_TRY(multiply(dw.data, dy[i], whole,
                        (ul_gemm){.m = outputs,
                                  .n = c->inputs,
                                  .k = c->rows,
                                  .lda = outputs,
                                  .ldb = c->inputs,
                                  .ldc = c->inputs,
                                  .a_trans = 1,
                                  .c_acc = w->leaf,
                                  .beta = dw.add}));
    }
    return UL_OK;
}

/* y_i = X w_i^T with X = x_0 .. x_P side by side, so
 *     dX = sum over i of dy_i w_i        dw_i = dy_i^T X
 * and dx is this rank's part of the sum of all ranks' dX. X is gathered again unless it was kept: a
 * rank would else hold the tokens of all from forward to backward, once for each region of each
 * layer, which is what it shares the work to avoid.
 */
static int gather_linear_backward(ul_call *call, ul_tensor *const *dy)
{
    const context *c = call->context;
    UL_TRY(backward_x(call, dy));
    int wanted = 0;
    for (int i = 0; i < c->n; i++) wanted |= ul__wants_grad(call, 1 + i);
    if (!wanted) return UL_OK;
    ul_tensor *x = call->saved[SAVED_X], *whole = NULL;
    if (!c->keep) UL_TRY(gather(&whole, c, x));
    int rc = backward_weights(call, dy, c->keep ? x : whole);
    ul_tensor_free(whole);
    return rc;
}

static const ul_op gather_linear = {"gather_linear", gather_linear_backward};

static int check(const ul_tensor *x, ul_tensor *const *w, int n)
{
    UL_TRY(ul__check_float("gather_linear", "x", x));
    UL_REQUIRE(n > 0 && n <= UL_MAX_OUTPUTS, UL_EVALUE, "gather_linear: %d weights; 1 to %d go", n,
               UL_MAX_OUTPUTS);
    for (int i = 0; i < n; i++) {
        UL_TRY(ul__check_same("gather_linear", "x", x, "a weight", w[i]));
        UL_REQUIRE(w[i]->ndim == 2 && x->ndim > 1 && x->shape[x->ndim - 1] == w[i]->shape[1],
                   UL_ESHAPE, "gather_linear: weight %s does not fit x %s", ul__shape(w[i]),
                   ul__shape(x));
    }
    return UL_OK;
}

/* Sets where each rank's tokens stand, which they tell each other. */
static int set_parts(context *c, const ul_tensor *x)
{
    UL_TRY(ul__comm_sizes(c->group, c->count, &x->shape[c->dim], 1));
    int64_t first = 0;
    for (int r = 0; r < c->group->size; r++) {
        c->first[r] = first;
        first += c->count[r];
    }
    int64_t shape[UL_MAX_DIMS];
    whole_shape(c, shape, x->ndim, x->shape);
    c->rows = 1;
    for (int d = 0; d < x->ndim - 1; d++) c->rows *= shape[d];
    return UL_OK;
}

/* The outputs from what was gathered; weights are contiguous. */
static void forward(ul_call *call, const context *c, const ul_tensor *whole, ul_tensor **w)
{
    int64_t shape[UL_MAX_DIMS];
    for (int d = 0; d < whole->ndim; d++) shape[d] = whole->shape[d];
    for (int i = 0; i < c->n; i++) {
        int64_t outputs = shape[whole->ndim - 1] = w[i]->shape[0];
        ul_tensor *y = ul__output(call, whole->dtype, whole->ndim, shape);
        if (call->rc < 0) return;
        call->rc = multiply(ul__data(y), whole, w[i],
                            (ul_gemm){.m = c->rows,
                                      .n = outputs,
                                      .k = c->inputs,
                                      .lda = c->inputs,
                                      .ldb = c->inputs,
                                      .ldc = outputs,
                                      .b_trans = 1});
        if (call->rc < 0) return;
    }
}

int ul_gather_linear(ul_tensor **y, ul_tensor *x, ul_tensor *const *w, int n, ul_group *group,
                     int dim, int keep)
{
    UL_TRY(check(x, w, n));
    UL_TRY(ul__dim("gather_linear", &dim, x));
    UL_REQUIRE(dim < x->ndim - 1, UL_ESHAPE,
               "gather_linear: dim %d is the one that is mapped; tokens stand before it", dim + 1);
    context *c = context_new(group, x, n);
    UL_REQUIRE(c, UL_ENOMEM, "gather_linear: out of memory");
    c->dim = dim;
    c->keep = keep;
    ul_tensor *inputs[1 + UL_MAX_OUTPUTS] = {x}, *own = NULL, *whole = NULL;
    ul_tensor *plain[UL_MAX_OUTPUTS];
    for (int i = 0; i < n; i++) inputs[1 + i] = w[i];
    ul_call call = {
        .op = &gather_linear, .inputs = inputs, .n_inputs = 1 + n, .context = c, .release = free};
    call.rc = set_parts(c, x);
    if (call.rc == UL_OK && !ul_tensor_is_contiguous(x)) call.rc = ul__compact(&own, x);
    if (call.rc == UL_OK) call.rc = gather(&whole, c, own ? own : x);
    int trains = 0;
    for (int i = 0; i < n; i++) trains |= ul__needs_grad(w[i]);
    if (call.rc == UL_OK) ul__save(&call, !trains ? NULL : keep ? whole : own ? own : x);
    for (int i = 0; i < n && call.rc == UL_OK; i++) {
        plain[i] = ul__contiguous(&call, w[i]);
        if (call.rc == UL_OK) ul__save(&call, ul__needs_grad(x) ? plain[i] : NULL);
    }
    if (call.rc == UL_OK) forward(&call, c, whole, plain);
    ul_tensor_free(whole);
    ul_tensor_free(own);
    return ul__finish_all(&call, y, n);
}
