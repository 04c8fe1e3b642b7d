/* matmul.c - products of matrices: matmul with broadcast batch dims, and linear. */
#include "../internal.h"

/* The matrices of one operand: how each is stored (row-major with row stride ld, transposed where
 * trans), and how far it is from one to the next along each batch dim.
 */
typedef struct matrices {
    char *data;    /* NULL on meta */
    int64_t bytes; /* of an element */
    int64_t ld;
    int trans;
    int64_t step[UL_MAX_DIMS];
} matrices;

/* c [batch.., m, n] = a [batch.., m, k] b [batch.., k, n] + bias [n] */
typedef struct product {
    int64_t m, n, k;
    int ndim;
    int64_t batch[UL_MAX_DIMS];
    const void *bias;
} product;

static matrices transposed(matrices x)
{
    x.trans = !x.trans;
    return x;
}

/* Fills x for a tensor of this shape and these strides; a vector is one row, or one column.
 * Returns 0 where neither rows nor columns are contiguous, so that it has to be copied first.
 */
static int place(matrices *x, const product *p, int ndim, const int64_t *shape,
                 const int64_t *stride, int column)
{
    int64_t size[2] = {1, 1}, move[2] = {0, 0};
    if (ndim == 1) {
        size[column ? 0 : 1] = shape[0];
        move[column ? 0 : 1] = stride[0];
    } else {
        for (int d = 0; d < 2; d++) {
            size[d] = shape[ndim - 2 + d];
            move[d] = stride[ndim - 2 + d];
        }
    }
    int own = ndim > 2 ? ndim - 2 : 0;
    for (int d = 0; d < p->ndim; d++) {
        int of_x = d - (p->ndim - own);
        x->step[d] = of_x >= 0 && shape[of_x] != 1 ? stride[of_x] : 0;
    }
    for (x->trans = 0; x->trans < 2; x->trans++) {
        int row = x->trans, col = !x->trans;
        if ((move[col] == 1 || size[col] <= 1) && (move[row] >= size[col] || size[row] <= 1)) {
            x->ld = size[row] > 1 ? move[row] : size[col];
            x->ld = x->ld > 1 ? x->ld : 1;
            return 1;
        }
    }
    return 0;
}

static int place_tensor(matrices *x, const product *p, const ul_tensor *t, int column)
{
    x->data = ul__data(t);
    x->bytes = ul_dtype_bytes(t->dtype);
    return place(x, p, t->ndim, t->shape, t->stride, column);
}

/* Contiguous matrices [batch.., rows, cols]. */
static matrices place_result(const product *p, const ul_tensor *t, int64_t rows, int64_t cols)
{
    matrices x = {.data = ul__data(t), .bytes = ul_dtype_bytes(t->dtype)};
    int64_t shape[UL_MAX_DIMS + 2], stride[UL_MAX_DIMS + 2];
    for (int d = 0; d < p->ndim; d++) shape[d] = p->batch[d];
    shape[p->ndim] = rows;
    shape[p->ndim + 1] = cols;
    ul__contiguous_strides(stride, p->ndim + 2, shape);
    place(&x, p, p->ndim + 2, shape, stride, 0);
    return x;
}

/* Takes batch dims, innermost first, into m where one b serves rows that follow each other, and
 * into k where products that are to be summed follow each other.
 */
static void fold_batch(ul_gemm *g, ul_loop *l)
{
    for (; l->ndim > 0; l->ndim--) {
        int last = l->ndim - 1;
        int64_t c = l->stride[0][last], a = l->stride[1][last], b = l->stride[2][last];
        if (b == 0 && !g->a_trans && a == g->m * g->lda && c == g->m * g->ldc)
            g->m *= l->shape[last];
        else if (c == 0 && g->a_trans && !g->b_trans && a == g->k * g->lda && b == g->k * g->ldb)
            g->k *= l->shape[last];
        else
            return;
    }
}

/* Makes the innermost dim along which c moves the batch of g. */
static void take_batch(ul_gemm *g, ul_loop *l)
{
    int along = l->ndim - 1;
    while (along >= 0 && l->stride[0][along] == 0) along--;
    if (along < 0) return;
    g->batch = l->shape[along];
    g->c_step = l->stride[0][along];
    g->a_step = l->stride[1][along];
    g->b_step = l->stride[2][along];
    l->ndim--;
    for (int d = along; d < l->ndim; d++) {
        l->shape[d] = l->shape[d + 1];
        for (int i = 0; i < 3; i++) l->stride[i][d] = l->stride[i][d + 1];
    }
}

static char *moved(const matrices *x, const ul_loop *l, int operand, const int64_t *index)
{
    if (x->data == NULL) return NULL;
    int64_t elements = 0;
    for (int d = 0; d < l->ndim; d++) elements += index[d] * l->stride[operand][d];
    return x->data + elements * x->bytes;
}

/* c (+)= a b in as few kernel calls as the strides allow. A batch dim along which c does not move
 * is summed over. c is accumulators where acc.
 */
static int multiply(const ul_kernels *kernels, ul_stream *stream, const matrices *c, int acc,
                    int add, const matrices *a, const matrices *b, product p)
{
    for (int d = 0; d < p.ndim; d++) {
        if (p.batch[d] == 0 && c->step[d] == 0) { /* a sum of nothing */
            p.batch[d] = 1;
            p.k = 0;
        }
    }
    ul_loop l;
    const int64_t *steps[] = {c->step, a->step, b->step};
    ul__loop(&l, p.ndim, p.batch, 3, steps, 0);
    ul_gemm g = {.m = p.m, .n = p.n, .k = p.k, .batch = 1, .alpha = 1, .bias = p.bias};
    g.lda = a->ld, g.ldb = b->ld, g.ldc = c->ld;
    g.a_trans = a->trans, g.b_trans = b->trans, g.c_acc = acc;
    fold_batch(&g, &l);
    take_batch(&g, &l);
    for (int d = 0; d < l.ndim; d++) {
        if (l.shape[d] == 0) return UL_OK;
    }

    int64_t index[UL_LOOP_DIMS] = {0};
    for (int d = 0; d >= 0;) {
        g.beta = add;
        for (d = 0; d < l.ndim; d++) {
            if (l.stride[0][d] == 0 && index[d] > 0) g.beta = 1;
        }
        UL_TRY(ul__gemm(kernels, stream, moved(c, &l, 0, index), moved(a, &l, 1, index),
                        moved(b, &l, 2, index), &g));
        for (d = l.ndim - 1; d >= 0 && ++index[d] == l.shape[d]; d--) index[d] = 0;
    }
    return UL_OK;
}

/* Places the gradient of input i. A leaf's, and one that is summed over a batch, gathers in
 * accumulators.
 */
static int place_grad(matrices *x, int *acc, int *add, ul_call *call, int i, const product *p,
                      int column)
{
    const ul_variable *v = call->variable[i];
    int64_t stride[UL_MAX_DIMS];
    ul__contiguous_strides(stride, v->ndim, v->shape);
    place(x, p, v->ndim, v->shape, stride, column);
    *acc = v->leaf;
    for (int d = 0; d < p->ndim; d++) *acc |= x->step[d] == 0 && p->batch[d] > 1;
    ul_grad grad;
    UL_TRY(*acc ? ul__grad_acc(&grad, call, i) : ul__grad_of(&grad, call, i));
    x->data = grad.data;
    x->bytes = ul_dtype_bytes(*acc ? ul_dtype_acc(v->dtype) : v->dtype);
    *add = grad.add;
    return UL_OK;
}

/* What the gradient rules read back from call->i. */
static void keep_product(ul_call *call, const product *p)
{
    call->i[0] = p->m, call->i[1] = p->n, call->i[2] = p->k, call->i[3] = p->ndim;
    for (int d = 0; d < p->ndim; d++) call->i[4 + d] = p->batch[d];
}

static product kept_product(const ul_call *call)
{
    product p = {
        .m = call->i[0], .n = call->i[1], .k = call->i[2], .ndim = (int)call->i[3], .bias = NULL};
    for (int d = 0; d < p.ndim; d++) p.batch[d] = call->i[4 + d];
    return p;
}

/* da = dy b^T, summed over the batch dims that a was broadcast along. */
static int backward_a(ul_call *call, const ul_tensor *dy, const product *p, matrices b)
{
    if (!ul__wants_grad(call, 0)) return UL_OK;
    matrices da, d = place_result(p, dy, p->m, p->n);
    int acc, add;
    UL_TRY(place_grad(&da, &acc, &add, call, 0, p, 0));
    product q = *p;
    q.n = p->k;
    q.k = p->n;
    b = transposed(b);
    return multiply(ul__kernels(dy), ul__stream(dy), &da, acc, add, &d, &b, q);
}

/* y = a b, so
 *     da = dy b^T        db = a^T dy
 * each summed over the batch dims that it was broadcast along.
 */
static int matmul_backward(ul_call *call, ul_tensor *const *dy)
{
    product p = kept_product(call);
    matrices a = {0}, b = {0};
    if (ul__wants_grad(call, 0)) place_tensor(&b, &p, call->saved[1], 1);
    UL_TRY(backward_a(call, dy[0], &p, b));
    if (!ul__wants_grad(call, 1)) return UL_OK;

    matrices db, d = place_result(&p, dy[0], p.m, p.n);
    int acc, add;
    UL_TRY(place_grad(&db, &acc, &add, call, 1, &p, 1));
    place_tensor(&a, &p, call->saved[0], 0);
    a = transposed(a);
    product q = p;
    q.m = p.k;
    q.k = p.m;
    return multiply(ul__kernels(dy[0]), ul__stream(dy[0]), &db, acc, add, &a, &d, q);
}

/* y = x w^T + b, so
 *     dx = dy w        dw = dy^T x        db = sum over rows of dy
 */
static int linear_backward(ul_call *call, ul_tensor *const *dy)
{
    product p = kept_product(call);
    const ul_kernels *kernels = ul__kernels(dy[0]);
    ul_stream *stream = ul__stream(dy[0]);
    matrices x = {0}, w = {0};
    if (ul__wants_grad(call, 0)) {
        place_tensor(&w, &p, call->saved[1], 0);
        w = transposed(w);
    }
    UL_TRY(backward_a(call, dy[0], &p, w));
    if (ul__wants_grad(call, 1)) {
        matrices dw, d = transposed(place_result(&p, dy[0], p.m, p.n));
        int acc, add;
        UL_TRY(place_grad(&dw, &acc, &add, call, 1, &p, 0));
        place_tensor(&x, &p, call->saved[0], 0);
        product q = p;
        q.m = p.n, q.n = p.k, q.k = p.m;
        UL_TRY(multiply(kernels, stream, &dw, acc, add, &d, &x, q));
    }
    if (!ul__wants_grad(call, 2)) return UL_OK;

    ul_grad db;
    UL_TRY(ul__grad_of(&db, call, 2));
    int64_t rows = p.m;
    for (int d = 0; d < p.ndim; d++) rows *= p.batch[d];
    const ul_loop l = {.ndim = 2, .shape = {p.n, rows}, .stride = {{1, 0}, {1, p.n}}};
    return kernels->sum(stream, db, ul__data(dy[0]), 1, &l, 1);
}

/* Batch dims of a and b broadcast together, and m, n, k; b is [.., n, k] where b_trans. */
static int plan_product(product *p, const char *op, const ul_tensor *a, const ul_tensor *b,
                        int b_trans)
{
    int own[2] = {a->ndim > 2 ? a->ndim - 2 : 0, b->ndim > 2 ? b->ndim - 2 : 0};
    p->ndim = own[0] > own[1] ? own[0] : own[1];
    p->bias = NULL;
    for (int d = 0; d < p->ndim; d++) {
        int of_a = d - (p->ndim - own[0]), of_b = d - (p->ndim - own[1]);
        int64_t size_a = of_a >= 0 ? a->shape[of_a] : 1, size_b = of_b >= 0 ? b->shape[of_b] : 1;
        UL_REQUIRE(size_a == size_b || size_a == 1 || size_b == 1, UL_ESHAPE,
                   "%s: batch dimensions differ: a %s, b %s", op, ul__shape(a), ul__shape(b));
        p->batch[d] = size_a == 1 ? size_b : size_a;
    }
    p->m = a->ndim > 1 ? a->shape[a->ndim - 2] : 1;
    p->k = a->shape[a->ndim - 1];
    p->n = b->ndim > 1 ? b->shape[b->ndim - (b_trans ? 2 : 1)] : 1;
    return UL_OK;
}

/* y = a b; makes copies of a and b where their strides ask for that, and saves what the rule needs.
 */
static void forward_product(ul_call *call, ul_tensor *y, product *p, int b_trans)
{
    ul_tensor *a = call->input[0], *b = call->input[1], *bias = call->input[2];
    matrices of_a, of_b;
    int save_a = ul__needs_grad(b), save_b = ul__needs_grad(a);
    if (!place_tensor(&of_a, p, a, 0)) a = ul__contiguous(call, a);
    if (!place_tensor(&of_b, p, b, !b_trans)) b = ul__contiguous(call, b);
    if (bias != NULL) bias = ul__contiguous(call, bias);
    ul__save(call, save_a ? a : NULL);
    ul__save(call, save_b ? b : NULL);
    keep_product(call, p);
    if (call->rc < 0) return;
    place_tensor(&of_a, p, a, 0);
    place_tensor(&of_b, p, b, !b_trans);
    if (b_trans) of_b = transposed(of_b);
    if (bias != NULL) p->bias = ul__data(bias);
    matrices of_y = place_result(p, y, p->m, p->n);
    call->rc = multiply(ul__kernels(y), ul__stream(y), &of_y, 0, 0, &of_a, &of_b, *p);
}

static const ul_op matmul = {"matmul", matmul_backward};
static const ul_op linear = {"linear", linear_backward};

static int refuse_inner(const ul_tensor *a, const ul_tensor *b)
{
    const char *hint = "";
    if (a->ndim > 1 && b->ndim > 1) {
        if (a->shape[a->ndim - 1] == b->shape[b->ndim - 1])
            hint = b->ndim == 2 ? "; did you mean b:t()?" : "; did you mean b:transpose(-2, -1)?";
        else if (a->shape[a->ndim - 2] == b->shape[b->ndim - 2])
            hint = a->ndim == 2 ? "; did you mean a:t()?" : "; did you mean a:transpose(-2, -1)?";
    }
    return ul__fail(UL_ESHAPE, "matmul: inner dimensions differ: a %s, b %s%s", ul__shape(a),
                    ul__shape(b), hint);
}

int ul_matmul(ul_tensor **y, ul_tensor *a, ul_tensor *b)
{
    UL_TRY(ul__check_same("matmul", "a", a, "b", b));
    UL_TRY(ul__check_float("matmul", "a", a));
    UL_REQUIRE(a->ndim > 0 && b->ndim > 0, UL_ESHAPE,
               "matmul: a %s and b %s must have at least one dimension", ul__shape(a),
               ul__shape(b));
    if (a->shape[a->ndim - 1] != b->shape[b->ndim > 1 ? b->ndim - 2 : 0]) return refuse_inner(a, b);
    product p;
    UL_TRY(plan_product(&p, "matmul", a, b, 0));

    int ndim = p.ndim;
    int64_t shape[UL_MAX_DIMS];
    for (int d = 0; d < ndim; d++) shape[d] = p.batch[d];
    if (a->ndim > 1) shape[ndim++] = p.m;
    if (b->ndim > 1) shape[ndim++] = p.n;
    ul_call call = {.op = &matmul, .input = {a, b}};
    ul_tensor *out = ul__output(&call, a->dtype, ndim, shape);
    forward_product(&call, out, &p, 0);
    return ul__finish(&call, y);
}

int ul_linear(ul_tensor **y, ul_tensor *x, ul_tensor *w, ul_tensor *b)
{
    UL_TRY(ul__check_same("linear", "x", x, "w", w));
    UL_TRY(ul__check_float("linear", "x", x));
    UL_REQUIRE(w->ndim == 2 && x->ndim > 0 && x->shape[x->ndim - 1] == w->shape[1], UL_ESHAPE,
               "linear: weight %s does not fit x %s", ul__shape(w), ul__shape(x));
    if (b != NULL) {
        UL_TRY(ul__check_same("linear", "x", x, "b", b));
        UL_REQUIRE(b->ndim == 1 && b->shape[0] == w->shape[0], UL_ESHAPE,
                   "linear: bias %s does not fit weight %s", ul__shape(b), ul__shape(w));
    }
    product p;
    UL_TRY(plan_product(&p, "linear", x, w, 1));

    int64_t shape[UL_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) shape[d] = x->shape[d];
    shape[x->ndim - 1] = p.n;
    ul_call call = {.op = &linear, .input = {x, w, b}};
    ul_tensor *out = ul__output(&call, x->dtype, x->ndim, shape);
    forward_product(&call, out, &p, 1);
    return ul__finish(&call, y);
}
