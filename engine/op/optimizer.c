/* optimizer.c - steps of AdamW and SGD, and the norm of gradients; in place, outside of the tape.
 */
#include <math.h>
#include <stdlib.h>

#include "../internal.h"
#include "../off_device.h"

/* What goes with a parameter (its gradient, a moment, the master copy) has its shape, in
 * accumulators.
 */
static int check_beside(const char *op, const char *name, const ul_tensor *x, const ul_tensor *p)
{
    if (x == NULL) return UL_OK;
    if (!x->storage->slot || ul__home(x) != p->storage->device)
        UL_TRY(ul__check_device(op, "the parameter", p, name, x));
    UL_TRY(ul__check_dtype(op, name, x, ul_dtype_acc(p->dtype)));
    int fits = x->ndim == p->ndim;
    for (int d = 0; fits && d < p->ndim; d++) fits = x->shape[d] == p->shape[d];
    UL_REQUIRE(fits, UL_ESHAPE, "%s: %s %s does not fit the parameter %s", op, name, ul__shape(x),
               ul__shape(p));
    UL_REQUIRE(ul_tensor_is_contiguous(x), UL_ESHAPE, "%s: %s %s must be contiguous", op, name,
               ul__shape(x));
    return ul__present(x);
}

static int check_param(const char *op, const ul_tensor *p, double lr, double weight_decay)
{
    UL_TRY(ul__check_float(op, "the parameter", p));
    UL_REQUIRE(ul_tensor_is_contiguous(p), UL_ESHAPE, "%s: the parameter %s must be contiguous", op,
               ul__shape(p));
    UL_REQUIRE(ul_tensor_is_leaf(p), UL_EGRAD, "%s: the parameter %s was made by an op", op,
               ul__shape(p));
    UL_REQUIRE(!ul_is_sharded(p), UL_EVALUE, "%s: the parameter %s is sharded: change its slice",
               op, ul__shape(p));
    UL_REQUIRE(isfinite(lr) && isfinite(weight_decay), UL_EVALUE,
               "%s: lr = %g and weight_decay = %g must be finite", op, lr, weight_decay);
    return UL_OK;
}

/* A step may change leaves; values the tape has saved from before are stale from then on. */
static void count_change(ul_tensor *t)
{
    if (t != NULL) ul__storage_changed(t->storage);
}

/* A step whose state comes from off the device, piece by piece. */
typedef struct pieces {
    ul_tensor *p, *grad;
    const ul_adamw_step *step;     /* of adamw_ */
    const ul_sgd_options *options; /* of sgd_ */
} pieces;

static void *at_element(const ul_tensor *t, int64_t at)
{
    return t->storage->data ? (char *)ul__data(t) + at * ul_dtype_bytes(t->dtype) : NULL;
}

static int adamw_piece(void *context, int64_t at, int64_t n, void *const *state)
{
    const pieces *s = context;
    return ul__kernels(s->p)->adamw(ul__stream(s->p), at_element(s->p, at), state[2], state[0],
                                    state[1], at_element(s->grad, at), n, s->step);
}

/* All of the state is where x is. */
static int check_place(const char *op, const char *name, const ul_tensor *x, const char *other,
                       const ul_tensor *y)
{
    UL_REQUIRE(!x || !y || !x->storage->slot == !y->storage->slot, UL_EDEVICE,
               "%s: %s and %s must both be off the device, or neither", op, name, other);
    return UL_OK;
}

/* State of the cpu that is kept in a file goes back there. */
static void cool(const ul_tensor *x)
{
    if (x && x->storage->slot) ul__slot_cool(x->storage->slot);
}

int ul_adamw_(ul_tensor *p, ul_tensor *grad, ul_tensor *m, ul_tensor *v, ul_tensor *master,
              const ul_adamw_options *options)
{
    UL_TRY(check_param("adamw_", p, options->lr, options->weight_decay));
    UL_TRY(check_beside("adamw_", "grad", grad, p));
    UL_TRY(check_beside("adamw_", "m", m, p));
    UL_TRY(check_beside("adamw_", "v", v, p));
    UL_TRY(check_beside("adamw_", "master", master, p));
    UL_TRY(check_place("adamw_", "m", m, "v", v));
    UL_TRY(check_place("adamw_", "m", m, "master", master));
    double beta_1 = options->beta_1, beta_2 = options->beta_2;
    UL_REQUIRE(beta_1 >= 0 && beta_1 < 1 && beta_2 >= 0 && beta_2 < 1, UL_EVALUE,
               "adamw_: betas %g and %g must be in [0, 1)", beta_1, beta_2);
    UL_REQUIRE(options->eps >= 0, UL_EVALUE, "adamw_: eps = %g must not be negative", options->eps);
    UL_REQUIRE(options->step >= 1, UL_EVALUE, "adamw_: step = %lld, but the first is 1",
               (long long)options->step);

    const ul_adamw_step step = {.lr = options->lr,
                                .beta_1 = beta_1,
                                .beta_2 = beta_2,
                                .eps = options->eps,
                                .weight_decay = options->weight_decay,
                                .bias_1 = 1 - pow(beta_1, (double)options->step),
                                .bias_2 = 1 - pow(beta_2, (double)options->step)};
    count_change(p);
    count_change(m);
    count_change(v);
    count_change(master);
    if (m->storage->slot && p->storage->device != UL_CPU) {
        ul_tensor *const state[] = {m, v, master};
        return ul__stage(state, 3, adamw_piece, &(pieces){p, grad, &step, NULL});
    }
    int rc = ul__kernels(p)->adamw(ul__stream(p), ul__data(p), ul__given(master), ul__data(m),
                                   ul__data(v), ul__data(grad), ul_tensor_size(p), &step);
    cool(m);
    cool(v);
    cool(master);
    return rc;
}

static int run_sgd(const pieces *s, int64_t at, int64_t n, void *master, void *momentum)
{
    const ul_sgd_options *o = s->options;
    return ul__kernels(s->p)->sgd(ul__stream(s->p), at_element(s->p, at), master, momentum,
                                  at_element(s->grad, at), n, o->lr, o->momentum, o->weight_decay,
                                  o->nesterov);
}

static int sgd_piece(void *context, int64_t at, int64_t n, void *const *state)
{
    return run_sgd(context, at, n, state[1], state[0]);
}

/* Without momentum the copy is all of the state. */
static int sgd_piece_of_master(void *context, int64_t at, int64_t n, void *const *state)
{
    return run_sgd(context, at, n, state[0], NULL);
}

int ul_sgd_(ul_tensor *p, ul_tensor *grad, ul_tensor *momentum, ul_tensor *master,
            const ul_sgd_options *options)
{
    UL_TRY(check_param("sgd_", p, options->lr, options->weight_decay));
    UL_TRY(check_beside("sgd_", "grad", grad, p));
    UL_TRY(check_beside("sgd_", "momentum", momentum, p));
    UL_TRY(check_beside("sgd_", "master", master, p));
    UL_TRY(check_place("sgd_", "momentum", momentum, "master", master));
    UL_REQUIRE(options->momentum >= 0 && options->momentum < 1, UL_EVALUE,
               "sgd_: momentum = %g is outside [0, 1)", options->momentum);
    UL_REQUIRE(options->momentum == 0 || momentum != NULL, UL_EVALUE,
               "sgd_: momentum = %g needs a tensor to keep it in", options->momentum);
    UL_REQUIRE(!options->nesterov || options->momentum > 0, UL_EVALUE,
               "sgd_: nesterov needs a momentum above 0");
    count_change(p);
    count_change(momentum);
    count_change(master);
    pieces step = {p, grad, NULL, options};
    ul_tensor *const state[] = {momentum ? momentum : master, momentum ? master : NULL};
    if (state[0] && state[0]->storage->slot && p->storage->device != UL_CPU)
        return ul__stage(state, 2, momentum ? sgd_piece : sgd_piece_of_master, &step);
    int rc = run_sgd(&step, 0, ul_tensor_size(p), ul__given(master), ul__given(momentum));
    cool(momentum);
    cool(master);
    return rc;
}

/* *sum, which kernels of x see, = sum of x^2. */
static int sum_squares(double *sum, const ul_tensor *x)
{
    ul_tensor *flat;
    UL_TRY(ul__present(x));
    UL_TRY(ul_tensor_is_contiguous(x) ? ul__alias(&flat, x) : ul__compact(&flat, x));
    int rc = ul__kernels(x)->sum_squares(ul__stream(x), sum, ul__data(flat), ul_tensor_size(x));
    ul_tensor_free(flat);
    return rc;
}

/* The sums of those of xs that are on cuda, one behind the other in `sums` there. */
static int sums_on_cuda(ul_tensor *sums, ul_tensor *const *xs, int n)
{
    double *at = ul__data(sums);
    for (int i = 0; i < n; i++)
        if (xs[i]->storage->device == UL_CUDA) UL_TRY(sum_squares(at++, xs[i]));
    return UL_OK;
}

/* Writes those sums to the host, which waits for the device once, whatever n_cuda > 0 is. */
static int read_sums(double *sum, ul_tensor *const *xs, int n, int64_t n_cuda)
{
    ul_tensor *sums;
    UL_TRY(ul_tensor_new(&sums, UL_F64, UL_CUDA, 1, &n_cuda));
    int rc = sums_on_cuda(sums, xs, n);
    if (rc == UL_OK)
        rc = ul__read_values(sum, ul__data(sums), n_cuda * (int64_t)sizeof *sum, UL_CUDA);
    ul_tensor_free(sums);
    return rc;
}

static int add_squares(double *total, ul_tensor *const *xs, int n, double *of_cuda, int64_t n_cuda)
{
    if (n_cuda > 0) UL_TRY(read_sums(of_cuda, xs, n, n_cuda));
    *total = 0;
    for (int i = 0; i < n; i++) { /* in their order, wherever they are */
        double sum = 0;
        if (xs[i]->storage->device == UL_CUDA)
            sum = *of_cuda++;
        else
            UL_TRY(sum_squares(&sum, xs[i]));
        *total += sum;
    }
    return UL_OK;
}

int ul_global_norm(double *norm, ul_tensor *const *xs, int n)
{
    double total, *of_cuda = NULL;
    int64_t n_cuda = 0;
    for (int i = 0; i < n; i++) {
        UL_TRY(ul__check_float("global_norm", "x", xs[i]));
        n_cuda += xs[i]->storage->device == UL_CUDA;
    }
    if (n_cuda > 0) {
        of_cuda = ul__alloc((size_t)n_cuda * sizeof *of_cuda);
        UL_REQUIRE(of_cuda, UL_ENOMEM, "global_norm: out of memory");
    }
    int rc = add_squares(&total, xs, n, of_cuda, n_cuda);
    free(of_cuda);
    if (rc == UL_OK) *norm = sqrt(total);
    return rc;
}

static int scale_in_place(ul_tensor *x, double factor)
{
    ul_tensor *scalar;
    const int64_t *strides[] = {x->stride, x->stride, (const int64_t[UL_MAX_DIMS]){0}};
    ul_loop l;
    ul__loop(&l, x->ndim, x->shape, 3, strides, 0);
    UL_TRY(ul_scalar_like(&scalar, x, factor));
    count_change(x);
    int rc = ul__kernels(x)->mul(ul__stream(x), ul__data(x), ul__data(x), ul__data(scalar), &l);
    ul_tensor_free(scalar);
    return rc;
}

int ul_clip_grad_norm_(double *norm, ul_tensor *const *xs, int n, double max_norm)
{
    double before;
    UL_REQUIRE(max_norm >= 0, UL_EVALUE, "clip_grad_norm_: max_norm = %g must not be negative",
               max_norm);
    UL_TRY(ul_global_norm(&before, xs, n));
    double factor = max_norm / (before + 1e-6);
    for (int i = 0; i < n; i++) /* on meta, where no norm is known, for what it costs */
        if (factor < 1 || xs[i]->storage->device == UL_META) UL_TRY(scale_in_place(xs[i], factor));
    *norm = before;
    return UL_OK;
}
