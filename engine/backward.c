/* backward.c - reverse-mode differentiation: walking the tape, and where rules put gradients.
 *
 * The gradient of a variable gathers in variable->grad, always contiguous. That of an op's result
 * has the result's dtype and may share memory with another gradient until something must be added
 * to it; that of a leaf has the accumulator dtype and its own memory, for its owner may change it
 * in place.
 */
#include <string.h>

#include "internal.h"
#include "tape.h"

static ul_dtype grad_dtype(const ul_variable *v)
{
    return v->leaf ? ul_dtype_acc(v->dtype) : v->dtype;
}

static void *data_or_token(ul_tensor *t)
{
    return t->storage->data ? ul__data(t) : (void *)t; /* on meta: anything but NULL */
}

static int cast_into(ul_tensor *y, const ul_tensor *x)
{
    const ul_kernels *k = ul__kernels(y);
    int (*const from[UL_DTYPES])(ul_stream *, void *, const void *, const ul_loop *) = {
        [UL_F32] = k->from_f32, [UL_BF16] = k->from_bf16, [UL_F64] = k->from_f64,
        [UL_I32] = k->from_i32, [UL_I64] = k->from_i64,   [UL_U8] = k->from_u8};
    const int64_t *strides[2] = {y->stride, x->stride};
    ul_loop loop;
    ul__loop(&loop, y->ndim, y->shape, 2, strides, 0);
    return from[x->dtype](ul__stream(y), ul__data(y), ul__data(x), &loop);
}

int ul__add_into(const ul_tensor *y, const ul_tensor *x)
{
    const int64_t *strides[3] = {y->stride, y->stride, x->stride};
    ul_loop loop;
    ul__loop(&loop, y->ndim, y->shape, 3, strides, 0);
    return ul__kernels(y)->add(ul__stream(y), ul__data(y), ul__data(y), ul__data(x), &loop);
}

static int is_shared(const ul_tensor *t) { return t->refs > 1 || t->storage->refs > 1; }

/* Gives the gradient of an op's result memory of its own before something is added to it. */
static int unshare(ul_variable *v)
{
    if (v->leaf || !is_shared(v->grad)) return UL_OK;
    ul_tensor *own;
    UL_TRY(ul__compact(&own, v->grad));
    ul_tensor_free(v->grad);
    v->grad = own;
    return UL_OK;
}

/* Whether an earlier input of the call is the same variable and its gradient is already in the
 * rule's hands: two outputs of one kernel must not overlap.
 */
static int asked_before(const ul_call *call, int i)
{
    for (int j = 0; j < i; j++)
        if (call->variable[j] == call->variable[i]) return 1;
    return 0;
}

/* Where the rule may write the gradient of input i in `dtype`: the buffer itself, or one to be
 * merged later. */
static int buffer_for(ul_tensor **buffer, int *add, ul_call *call, int i, ul_dtype dtype)
{
    ul_variable *v = call->variable[i];
    assert(!call->pending[i] && "a rule asks for each gradient once");
    if (dtype != grad_dtype(v) || asked_before(call, i)) {
        UL_TRY(ul_tensor_new(&call->pending[i], dtype, v->device, v->ndim, v->shape));
        *buffer = call->pending[i];
        *add = 0;
        return UL_OK;
    }
    if (v->grad) {
        UL_TRY(unshare(v));
        *add = 1;
    } else {
        UL_TRY(ul_tensor_new(&v->grad, dtype, v->device, v->ndim, v->shape));
        call->asked[i] = 1;
        *add = 0;
    }
    *buffer = v->grad;
    return UL_OK;
}

static int grad_in(ul_grad *grad, ul_call *call, int i, ul_dtype dtype)
{
    *grad = (ul_grad){NULL, 0};
    if (!call->variable[i]) return UL_OK;
    ul_tensor *buffer;
    UL_TRY(buffer_for(&buffer, &grad->add, call, i, dtype));
    grad->data = data_or_token(buffer);
    return UL_OK;
}

int ul__grad_of(ul_grad *grad, ul_call *call, int i)
{
    return grad_in(grad, call, i, call->variable[i] ? call->variable[i]->dtype : UL_F32);
}

int ul__grad_acc(ul_grad *grad, ul_call *call, int i)
{
    return grad_in(grad, call, i,
                   call->variable[i] ? ul_dtype_acc(call->variable[i]->dtype) : UL_F32);
}

int ul__grad_tensor(ul_tensor **grad, ul_call *call, int i)
{
    *grad = NULL;
    if (!call->variable[i]) return UL_OK;
    int add;
    UL_TRY(buffer_for(grad, &add, call, i, call->variable[i]->dtype));
    if (add) return UL_OK;
    ul_loop loop;
    const int64_t *strides[1] = {(*grad)->stride};
    ul__loop(&loop, (*grad)->ndim, (*grad)->shape, 1, strides, 0);
    return ul__kernels(*grad)->fill(ul__stream(*grad), ul__data(*grad), 0, &loop);
}

static int same_shape(const ul_variable *v, const ul_tensor *g)
{
    return v->ndim == g->ndim && !memcmp(v->shape, g->shape, (size_t)v->ndim * sizeof *v->shape);
}

/* Sums g over the dims in which an input of v's shape was broadcast, into the input's gradient. */
static int add_reduced(ul_call *call, int i, const ul_tensor *g)
{
    const ul_variable *v = call->variable[i];
    int lead = g->ndim - v->ndim, kept = 0, reduced = 0;
    int64_t shape[UL_MAX_DIMS], from[UL_MAX_DIMS], to[UL_MAX_DIMS], grad_stride[UL_MAX_DIMS];
    ul__contiguous_strides(grad_stride, v->ndim, v->shape);
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < g->ndim; d++) {
            int is_reduced = d < lead || v->shape[d - lead] != g->shape[d];
            if (is_reduced != pass) continue;
            shape[kept + reduced] = g->shape[d];
            from[kept + reduced] = g->stride[d];
            to[kept + reduced] = pass ? 0 : grad_stride[d - lead];
            if (pass)
                reduced++;
            else
                kept++;
        }
    ul_grad grad;
    UL_TRY(ul__grad_of(&grad, call, i));
    const int64_t *strides[2] = {to, from};
    ul_loop loop;
    int left = ul__loop(&loop, kept + reduced, shape, 2, strides, reduced);
    return ul__kernels(g)->sum(ul__stream(g), grad, ul__data(g), 1.0, &loop, left);
}

int ul__grad_add(ul_call *call, int i, ul_tensor *g)
{
    ul_variable *v = call->variable[i];
    if (!v) return UL_OK;
    assert(g->dtype == v->dtype && "a gradient has the dtype of its input");
    if (!same_shape(v, g)) return add_reduced(call, i, g);
    if (!v->leaf && !v->grad && ul_tensor_is_contiguous(g)) {
        v->grad = ul_tensor_retain(g);
        return UL_OK;
    }
    ul_tensor *buffer;
    int add;
    UL_TRY(buffer_for(&buffer, &add, call, i, v->dtype));
    return add ? ul__add_into(buffer, g) : cast_into(buffer, g);
}

void ul__grad_take(ul_call *call, int i, ul_tensor *g)
{
    assert(!call->pending[i] && "a rule asks for each gradient once");
    if (call->variable[i])
        call->pending[i] = g; /* merge_pending() moves it where nothing has arrived yet */
    else
        ul_tensor_free(g);
}

/* Converts and adds what the rule wrote beside the gradient itself. */
static int merge_pending(ul_call *call)
{
    for (int i = 0; i < call->n_inputs; i++) {
        ul_tensor *g = call->pending[i];
        ul_variable *v = call->variable[i];
        if (!g) continue;
        ul_dtype dtype = grad_dtype(v);
        if (!v->grad && g->dtype == dtype) {
            v->grad = g;
            call->pending[i] = NULL;
            continue;
        }
        if (!v->grad) {
            UL_TRY(ul_tensor_new(&v->grad, dtype, v->device, v->ndim, v->shape));
            UL_TRY(cast_into(v->grad, g));
        } else if (g->dtype == dtype) {
            UL_TRY(unshare(v));
            UL_TRY(ul__add_into(v->grad, g));
        } else if (dtype == ul_dtype_acc(g->dtype)) {
            UL_TRY(ul__kernels(g)->accumulate(ul__stream(g), ul__data(v->grad), ul__data(g),
                                              ul_tensor_size(g)));
        } else {
            ul_tensor *narrow;
            UL_TRY(ul_tensor_new(&narrow, dtype, v->device, v->ndim, v->shape));
            int rc = cast_into(narrow, g);
            if (rc == UL_OK) rc = unshare(v);
            if (rc == UL_OK) rc = ul__add_into(v->grad, narrow);
            ul_tensor_free(narrow);
            UL_TRY(rc);
        }
        ul_tensor_free(g);
        call->pending[i] = NULL;
    }
    return UL_OK;
}

static int check_versions(const ul_call *call)
{
    for (int i = 0; i < UL_MAX_SAVED; i++)
        UL_REQUIRE(!call->saved[i] || call->saved[i]->storage->version == call->version[i],
                   UL_EGRAD,
                   "backward: a value %s that %s needs for its gradient was changed in place",
                   ul__shape(call->saved[i]), call->op->name);
    return UL_OK;
}

static int keep_grad(ul_variable *v, ul_tensor *g)
{
    if (!v->kept) return ul__compact(&v->kept, g);
    return ul__add_into(v->kept, g);
}

static int check_spent(const ul_call *call)
{
    for (int i = 0; i < call->n_inputs; i++)
        UL_REQUIRE(!call->variable[i] || !call->variable[i]->spent, UL_EGRAD,
                   "backward: an earlier backward has freed the history of an input of %s; pass "
                   "retain = true to that one",
                   call->op->name);
    return UL_OK;
}

/* Runs the rule of one call with the gradients that have arrived, if any. */
static int run_rule(ul_call *call, ul_tensor **dy)
{
    for (int i = 0; i < call->n_outputs; i++) {
        ul_variable *v = call->made[i];
        dy[i] = v ? v->grad : NULL;
        if (v) v->grad = NULL;
    }
    int rc = ul__gather_shards(call->saved, UL_MAX_SAVED);
    if (rc == UL_OK) rc = check_versions(call);
    if (rc == UL_OK) rc = check_spent(call);
    for (int i = 0; i < call->n_outputs && rc == UL_OK; i++)
        if (dy[i] && call->made[i]->retain_grad) rc = keep_grad(call->made[i], dy[i]);
    memset(call->asked, 0, (size_t)call->n_inputs);
    if (rc == UL_OK) rc = call->op->backward(call, dy);
    if (rc == UL_OK) rc = merge_pending(call);
    for (int i = 0; i < call->n_inputs && rc < 0; i++) {
        ul_tensor_free(call->pending[i]);
        call->pending[i] = NULL;
        if (!call->asked[i]) continue;
        ul_tensor_free(call->variable[i]->grad); /* half written */
        call->variable[i]->grad = NULL;
    }
    for (int i = 0; i < call->n_outputs; i++) ul_tensor_free(dy[i]);
    return rc;
}

static int has_grad(const ul_call *call)
{
    for (int i = 0; i < call->n_outputs; i++)
        if (call->made[i] && call->made[i]->grad) return 1;
    return 0;
}

/* After a failure: gradients on their way to calls that will not run any more are dropped. */
static void drop_grads(ul_call *call)
{
    for (int i = 0; i < call->n_outputs; i++)
        if (call->made[i]) {
            ul_tensor_free(call->made[i]->grad);
            call->made[i]->grad = NULL;
        }
}

static int is_wanted(const ul_call *call)
{
    for (int i = 0; i < call->n_outputs; i++)
        if (call->made[i]) return 1;
    return 0;
}

/* A call that has run keeps the variables of its inputs, with the gradients in them, until the
 * calls that made those have run too: nothing else may hold them.
 */
static void drop_passed(int64_t top, int64_t floor)
{
    for (int64_t at = top; at >= floor; at--) {
        ul_call *call = at < ul__tape.count ? ul__tape.calls[at] : NULL;
        if (call && call->passed) ul__call_drop(call);
    }
}

static int walk(int64_t top, int64_t floor, int retain)
{
    ul_tape *tape = &ul__tape;
    int rc = UL_OK;
    for (int64_t at = top; at >= floor; at--) {
        ul_call *call = at < tape->count ? tape->calls[at] : NULL;
        if (!call || !has_grad(call)) continue;
        if (rc < 0) {
            drop_grads(call);
            continue;
        }
        ul_tensor *few[UL_MAX_OUTPUTS], **dy = few;
        if (call->n_outputs > UL_MAX_OUTPUTS) dy = ul__alloc((size_t)call->n_outputs * sizeof *dy);
        if (!dy) {
            rc = ul__fail(UL_ENOMEM, "backward: out of memory");
            drop_grads(call);
            continue;
        }
        int64_t floor_before = tape->floor;
        tape->floor = tape->count;
        call->running = 1;
        call->again = retain;
        rc = run_rule(call, dy);
        call->running = 0;
        tape->floor = floor_before;
        if (dy != few) ul__release(dy);
        call->passed = !retain || !is_wanted(call);
        if (call->passed) ul__call_empty(call);
    }
    drop_passed(top, floor);
    return rc;
}

/* The gradient of the loss with respect to itself. */
static int seed_loss(ul_tensor *loss, ul_tensor *seed)
{
    ul_variable *v = loss->variable;
    UL_REQUIRE(v, UL_EGRAD, "backward: nothing that made this tensor requires grad");
    UL_REQUIRE(
        !v->spent, UL_EGRAD,
        "backward: an earlier backward has freed the history of this tensor; pass retain = true "
        "to that one");
    ul_tensor *g;
    if (seed) {
        UL_TRY(ul__check_same("backward", "the seed", seed, "the tensor", loss));
        UL_REQUIRE(same_shape(v, seed), UL_ESHAPE, "backward: seed %s does not fit the tensor %s",
                   ul__shape(seed), ul__shape(loss));
        UL_TRY(ul__compact(&g, seed));
    } else {
        UL_REQUIRE(ul_tensor_size(loss) == 1, UL_EGRAD,
                   "backward: a tensor %s of more than one element needs a seed of its shape",
                   ul__shape(loss));
        UL_TRY(ul_tensor_new(&g, loss->dtype, v->device, v->ndim, v->shape));
        ul_loop one = {.ndim = 0};
        int rc = ul__kernels(g)->fill(ul__stream(g), ul__data(g), 1.0, &one);
        if (rc < 0) ul_tensor_free(g);
        UL_TRY(rc);
    }
    ul_tensor *pending = NULL;
    char asked = 0;
    ul_call call = {.variable = &v, .pending = &pending, .asked = &asked, .n_inputs = 1};
    int rc = ul__grad_add(&call, 0, g);
    if (rc == UL_OK) rc = merge_pending(&call);
    ul_tensor_free(pending);
    ul_tensor_free(g);
    return rc;
}

static int64_t passes;
int64_t ul_backward_passes(void) { return passes; }

int ul_backward_all(ul_tensor *const *losses, ul_tensor *const *seeds, int n, int retain)
{
    ul_tape *tape = &ul__tape;
    int64_t top = -1, floor = tape->depth ? tape->floor : 0;
    int rc = UL_OK;
    passes++;
    for (int i = 0; i < n && rc == UL_OK; i++) {
        ul_variable *v = losses[i]->variable;
        if (n > 1 && seeds && !seeds[i]) continue;
        rc = seed_loss(losses[i], seeds ? seeds[i] : NULL);
        if (rc == UL_OK && v->made_by && v->made_by->position > top) top = v->made_by->position;
    }
    if (rc < 0) {
        for (int64_t at = top; at >= floor; at--)
            if (tape->calls[at]) drop_grads(tape->calls[at]);
        return rc;
    }
    int enabled = ul_set_grad_enabled(0);
    tape->depth++;
    rc = walk(top, floor, retain);
    tape->depth--;
    int released = tape->depth ? UL_OK : ul_sharded_release();
    ul_set_grad_enabled(enabled);
    return rc == UL_OK ? released : rc;
}

int ul_backward(ul_tensor *loss, ul_tensor *seed, int retain)
{
    return ul_backward_all(&loss, seed ? &seed : NULL, 1, retain);
}
