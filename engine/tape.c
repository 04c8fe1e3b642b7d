/* tape.c - what is recorded of each call, and how long it lives.
 *
 * The tape is an array of calls in the order they were made: append order is topological, so
 * backward (backward.c) walks it from the end. A call holds the variables of its inputs and the
 * values that its rule needs; it lives until backward has passed it, or until nobody can ask for
 * the gradient of any of its outputs.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "tape.h"

_Thread_local ul_tape ul__tape = {.enabled = 1};

int ul_set_grad_enabled(int on)
{
    int before = ul__tape.enabled;
    ul__tape.enabled = on != 0;
    return before;
}

int ul_grad_enabled(void) { return ul__tape.enabled; }

int ul_grad_was_seen(void)
{
    int seen = ul__tape.seen;
    ul__tape.seen = 0;
    return seen;
}

void ul_grad_mark_seen(void) { ul__tape.seen = 1; }

/* ---- variables ---- */

static ul_variable *variable_new(const ul_tensor *t)
{
    ul_variable *v = ul__alloc(sizeof *v);
    if (!v) return NULL;
    *v = (ul_variable){.refs = 1, .dtype = t->dtype, .device = t->storage->device, .ndim = t->ndim};
    memcpy(v->shape, t->shape, sizeof v->shape);
    return v;
}

void ul__variable_free(ul_variable *v)
{
    if (!v || --v->refs > 0) return;
    ul_tensor_free(v->grad);
    ul_tensor_free(v->kept);
    if (v->made_by) {
        ul_call *call = v->made_by;
        call->made[v->index] = NULL;
        int wanted = 0;
        for (int i = 0; i < call->n_outputs; i++) wanted |= call->made[i] != NULL;
        if (!wanted) ul__call_drop(call);
    }
    free(v);
}

/* ---- calls ---- */

void ul__call_empty(ul_call *call)
{
    for (int i = 0; i < UL_MAX_SAVED; i++) {
        ul_tensor_free(call->saved[i]);
        call->saved[i] = NULL;
    }
    if (call->release) call->release(call->context);
    call->release = NULL;
}

static void call_free(ul_call *call)
{
    for (int i = 0; i < call->n_inputs; i++) {
        ul_tensor_free(call->pending[i]);
        ul__variable_free(call->variable[i]);
    }
    ul__call_empty(call);
    free(call);
}

/* Freeing a call may free the last variable of the one before it, and so on down a long chain: the
 * dead wait in a list, so that the chain is walked in a loop and not on the stack.
 */
void ul__call_drop(ul_call *call)
{
    ul_tape *tape = &ul__tape;
    if (call->running) return; /* backward frees it when the rule returns */
    tape->calls[call->position] = NULL;
    for (int i = 0; i < call->n_outputs; i++)
        if (call->made[i]) {
            call->made[i]->made_by = NULL;
            call->made[i]->spent = 1;
            call->made[i] = NULL;
        }
    call->next_dead = tape->dead;
    tape->dead = call;
    if (tape->draining) return;
    tape->draining = 1;
    while (tape->dead) {
        ul_call *gone = tape->dead;
        tape->dead = gone->next_dead;
        call_free(gone);
    }
    tape->draining = 0;
    while (tape->count > tape->floor && !tape->calls[tape->count - 1]) tape->count--;
}

static int tape_room(void)
{
    ul_tape *tape = &ul__tape;
    if (tape->count < tape->capacity) return UL_OK;
    int64_t capacity = tape->capacity ? 2 * tape->capacity : 256;
    ul_call **calls = ul__alloc((size_t)capacity * sizeof(ul_call *));
    if (!calls)
        return ul__fail(UL_ENOMEM, "tape: out of memory after %lld calls", (long long)tape->count);
    if (tape->count) memcpy(calls, tape->calls, (size_t)tape->count * sizeof(ul_call *));
    free(tape->calls);
    tape->calls = calls;
    tape->capacity = capacity;
    return UL_OK;
}

/* Closes the holes that dropped calls have left, before the array would grow because of them. */
static void compact(void)
{
    ul_tape *tape = &ul__tape;
    if (tape->depth > 0 || tape->count < tape->capacity) return;
    int64_t kept = 0;
    for (int64_t i = 0; i < tape->count; i++)
        if (tape->calls[i]) {
            tape->calls[i]->position = kept;
            tape->calls[kept++] = tape->calls[i];
        }
    tape->count = kept;
}

static int n_inputs_of(const ul_call *call)
{
    return call->n_inputs ? call->n_inputs : UL_MAX_INPUTS;
}

static ul_tensor *input_of(const ul_call *call, int i)
{
    return call->n_inputs ? call->inputs[i] : call->input[i];
}

int ul__needs_grad(const ul_tensor *t) { return t && t->variable && ul__tape.enabled; }

static int touches_grad(const ul_call *call)
{
    for (int i = 0; i < n_inputs_of(call); i++)
        if (input_of(call, i) && input_of(call, i)->variable) return 1;
    return 0;
}

int ul__recording(const ul_call *call) { return ul__tape.enabled && touches_grad(call); }

static int takes_grad(const ul_call *call, int i, const ul_tensor *output)
{
    int constant = i < UL_MAX_OUTPUTS && call->constant_outputs >> i & 1;
    return output && ul_dtype_is_float(output->dtype) && !constant;
}

/* The heap copy of a call, with room for n_in variables and n_out results; nothing in it is owned
 * yet. */
static ul_call *call_copy(const ul_call *call, int n_in, int n_out)
{
    size_t bytes =
        sizeof *call + (size_t)n_in * (2 * sizeof(void *) + 1) + (size_t)n_out * sizeof(void *);
    ul_call *kept = ul__alloc(bytes);
    if (!kept) return NULL;
    *kept = *call;
    void **arrays = (void **)(kept + 1);
    memset(arrays, 0, bytes - sizeof *call);
    kept->variable = (ul_variable **)arrays;
    kept->pending = (ul_tensor **)(arrays + n_in);
    kept->made = (ul_variable **)(arrays + 2 * n_in);
    kept->asked = (char *)(arrays + 2 * n_in + n_out);
    kept->inputs = NULL;
    kept->n_inputs = n_in;
    kept->n_outputs = n_out;
    memset(kept->input, 0, sizeof kept->input);
    memset(kept->output, 0, sizeof kept->output);
    memset(kept->temporary, 0, sizeof kept->temporary);
    return kept;
}

/* Puts the call on the tape; outputs[i] get variables. On failure nothing has changed. */
static int push(ul_call *call, ul_tensor *const *outputs, int n_out)
{
    int n_in = n_inputs_of(call);
    compact();
    UL_TRY(tape_room());
    ul_call *kept = call_copy(call, n_in, n_out);
    if (!kept) return ul__fail(UL_ENOMEM, "tape: out of memory");
    for (int i = 0; i < n_out; i++) {
        if (!takes_grad(call, i, outputs[i])) continue;
        ul_variable *v = variable_new(outputs[i]);
        if (!v) {
            while (i-- > 0) free(kept->made[i]);
            free(kept);
            return ul__fail(UL_ENOMEM, "tape: out of memory");
        }
        v->made_by = kept;
        v->index = i;
        kept->made[i] = v;
    }
    for (int i = 0; i < n_out; i++)
        if (kept->made[i]) outputs[i]->variable = kept->made[i];
    for (int i = 0; i < n_in; i++) {
        ul_tensor *t = input_of(call, i);
        kept->variable[i] = t ? t->variable : NULL;
        if (kept->variable[i]) kept->variable[i]->refs++;
    }
    for (int i = 0; i < UL_MAX_SAVED; i++)
        if (kept->saved[i]) kept->version[i] = kept->saved[i]->storage->version;
    kept->position = ul__tape.count;
    ul__tape.calls[ul__tape.count++] = kept;
    return UL_OK;
}

/* ---- what forward functions call ---- */

static int full(ul_call *call, int count, int most)
{
    assert(count < most && "an op saves or copies more than a call has room for");
    return call->rc < 0 || count >= most;
}

static int next_output(const ul_call *call)
{
    int i = 0;
    while (i < UL_MAX_OUTPUTS - 1 && call->output[i]) i++;
    return i;
}

ul_tensor *ul__output(ul_call *call, ul_dtype dtype, int ndim, const int64_t *shape)
{
    int i = next_output(call);
    ul_device device = input_of(call, 0)->storage->device;
    if (call->rc == UL_OK) call->rc = ul__inputs_present(call);
    if (call->rc == UL_OK) call->rc = ul_tensor_new(&call->output[i], dtype, device, ndim, shape);
    return call->rc == UL_OK ? call->output[i] : NULL;
}

ul_tensor *ul__output_like(ul_call *call, const ul_tensor *x)
{
    return ul__output(call, x->dtype, x->ndim, x->shape);
}

ul_tensor *ul__output_view(ul_call *call, ul_tensor *x, int ndim, const int64_t *shape,
                           const int64_t *stride, int64_t offset)
{
    int i = next_output(call);
    if (call->rc == UL_OK) call->rc = ul__view_of(&call->output[i], x, ndim, shape, stride, offset);
    return call->rc == UL_OK ? call->output[i] : NULL;
}

ul_tensor *ul__save_new(ul_call *call, ul_dtype dtype, int ndim, const int64_t *shape)
{
    if (full(call, call->n_saved, UL_MAX_SAVED)) return NULL;
    ul_device device = input_of(call, 0)->storage->device;
    ul_tensor **slot = &call->saved[call->n_saved++];
    call->rc = ul_tensor_new(slot, dtype, device, ndim, shape);
    return call->rc == UL_OK ? *slot : NULL;
}

/* What is saved must not keep the history of an output alive (it would hold its own call): an alias
 * has none. */
ul_tensor *ul__save(ul_call *call, ul_tensor *t)
{
    if (full(call, call->n_saved, UL_MAX_SAVED)) return t;
    ul_tensor **slot = &call->saved[call->n_saved++];
    if (t) call->rc = ul__alias(slot, t);
    return t;
}

ul_tensor *ul__contiguous(ul_call *call, ul_tensor *x)
{
    if (!x || call->rc < 0 || ul_tensor_is_contiguous(x)) return x;
    if (full(call, call->n_temporary, UL_MAX_INPUTS)) return NULL;
    ul_tensor **slot = &call->temporary[call->n_temporary];
    call->rc = ul__compact(slot, x);
    if (call->rc < 0) return x;
    call->n_temporary++;
    return *slot;
}

/* Whether a gradient could ever arrive: what only makes integers is not recorded. */
static int has_variable_output(const ul_call *call)
{
    for (int i = 0; i < UL_MAX_OUTPUTS; i++)
        if (takes_grad(call, i, call->output[i])) return 1;
    return 0;
}

int ul__finish_all(ul_call *call, ul_tensor **out, int n)
{
    if (call->rc == UL_OK && touches_grad(call)) ul__tape.seen = 1;
    int recording = call->rc == UL_OK && ul__recording(call) && has_variable_output(call);
    if (recording) call->rc = push(call, call->output, UL_MAX_OUTPUTS);
    if (!recording || call->rc < 0) ul__call_empty(call);
    for (int i = 0; i < UL_MAX_INPUTS; i++) ul_tensor_free(call->temporary[i]);
    for (int i = 0; i < UL_MAX_OUTPUTS; i++)
        if (call->rc == UL_OK && i < n)
            out[i] = call->output[i];
        else
            ul_tensor_free(call->output[i]);
    return call->rc;
}

int ul__finish_2(ul_call *call, ul_tensor **out_0, ul_tensor **out_1)
{
    ul_tensor *out[2] = {NULL, NULL};
    int rc = ul__finish_all(call, out, out_1 ? 2 : 1);
    if (rc < 0) return rc;
    *out_0 = out[0];
    if (out_1) *out_1 = out[1];
    return rc;
}

int ul__finish(ul_call *call, ul_tensor **out) { return ul__finish_all(call, out, 1); }

int ul__finish_list(ul_call *call, ul_tensor **out, int n)
{
    int variables = 0;
    if (call->rc == UL_OK && touches_grad(call)) ul__tape.seen = 1;
    for (int i = 0; i < n && call->rc == UL_OK; i++) variables |= takes_grad(call, i, out[i]);
    int recording = call->rc == UL_OK && ul__recording(call) && variables;
    if (recording) call->rc = push(call, out, n);
    if (!recording || call->rc < 0) ul__call_empty(call);
    for (int i = 0; i < n && call->rc < 0; i++) {
        ul_tensor_free(out[i]);
        out[i] = NULL;
    }
    return call->rc;
}

int ul__change(const char *op, ul_tensor *t)
{
    UL_REQUIRE(!(ul__tape.enabled && t->variable), UL_EGRAD,
               "%s: this tensor %s takes part in differentiation and cannot change in place; use a "
               "pure op, or ul.no_grad",
               op, ul__shape(t));
    UL_REQUIRE(!t->storage->shard, UL_EVALUE,
               "%s: this weight %s is sharded over ranks, and cannot change in place: change the "
               "slice that named_parameters() gives",
               op, ul__shape(t));
    ul__storage_changed(t->storage);
    return UL_OK;
}

/* ---- leaves and their gradients ---- */

int ul_tensor_requires_grad(const ul_tensor *t) { return t->variable != NULL; }
int ul_tensor_is_leaf(const ul_tensor *t) { return !t->variable || t->variable->leaf; }

int ul_tensor_require_grad(ul_tensor *t, int on)
{
    UL_TRY(ul__check_float("requires_grad_", "x", t));
    if (t->variable && !t->variable->leaf) {
        UL_REQUIRE(on, UL_EGRAD,
                   "requires_grad_: this tensor was made by an op; detach() it instead");
        return UL_OK;
    }
    if (!on) {
        ul__variable_free(t->variable);
        t->variable = NULL;
    } else if (!t->variable) {
        t->variable = variable_new(t);
        if (!t->variable) return ul__fail(UL_ENOMEM, "requires_grad_: out of memory");
        t->variable->leaf = 1;
    }
    return UL_OK;
}

int ul_tensor_grad(ul_tensor **out, ul_tensor *t)
{
    ul_variable *v = t->variable;
    *out = v ? ul_tensor_retain(v->leaf ? v->grad : v->kept) : NULL;
    return UL_OK;
}

int ul_tensor_set_grad(ul_tensor *t, ul_tensor *grad)
{
    ul_variable *v = t->variable;
    UL_REQUIRE(v && v->leaf, UL_EGRAD, "grad: only a leaf that requires grad has one to set");
    if (grad) {
        UL_TRY(ul__check_device("grad", "grad", grad, "the tensor", t));
        UL_TRY(ul__check_dtype("grad", "grad", grad, ul_dtype_acc(t->dtype)));
        UL_REQUIRE(grad->ndim == t->ndim &&
                       !memcmp(grad->shape, t->shape, (size_t)t->ndim * sizeof *t->shape),
                   UL_ESHAPE, "grad: %s does not fit the tensor %s", ul__shape(grad), ul__shape(t));
        ul_tensor *own;
        if (ul_tensor_is_contiguous(grad))
            UL_TRY(ul__alias(&own, grad));
        else
            UL_TRY(ul__compact(&own, grad));
        grad = own;
    }
    ul_tensor_free(v->grad);
    v->grad = grad;
    return UL_OK;
}

int ul_tensor_retain_grad(ul_tensor *t)
{
    UL_REQUIRE(t->variable, UL_EGRAD, "retain_grad: this tensor does not require grad");
    t->variable->retain_grad = 1;
    return UL_OK;
}

int ul_detach(ul_tensor **y, ul_tensor *x) { return ul__alias(y, x); }

/* ---- nodes of the caller's own ---- */

static int custom_backward(ul_call *call, ul_tensor *const *dy)
{
    const ul_custom *custom = call->context;
    int n = call->n_inputs;
    ul_tensor **dx = ul__alloc((size_t)n * sizeof *dx);
    if (!dx) return ul__fail(UL_ENOMEM, "%s: out of memory", custom->name);
    memset(dx, 0, (size_t)n * sizeof *dx);
    int rc = custom->backward(custom->context, dx, n, dy, call->n_outputs);
    for (int i = 0; i < n; i++) {
        const ul_variable *v = call->variable[i];
        if (rc == UL_OK && dx[i] && v) {
            if (dx[i]->dtype != v->dtype || dx[i]->storage->device != v->device ||
                dx[i]->ndim != v->ndim ||
                memcmp(dx[i]->shape, v->shape, (size_t)v->ndim * sizeof *v->shape))
                rc = ul__fail(UL_ESHAPE, "%s: gradient %d is %s %s, its input %s %s", custom->name,
                              i + 1, ul_dtype_name(dx[i]->dtype), ul__shape(dx[i]),
                              ul_dtype_name(v->dtype), ul__shape_of(v->ndim, v->shape));
            else
                rc = ul__grad_add(call, i, dx[i]);
        }
        ul_tensor_free(dx[i]);
    }
    free(dx);
    return rc;
}

static void custom_release(void *context)
{
    ul_custom *custom = context;
    if (custom->release) custom->release(custom->context);
    free(custom);
}

static const ul_op custom_op = {"custom", custom_backward};

int ul_custom_record(const ul_custom *custom, ul_tensor *const *inputs, int n_inputs,
                     ul_tensor **outputs, int n_outputs, int force)
{
    int touches = 0, floats = 0, rc = UL_OK; /* without a float nothing would own the node */
    for (int i = 0; i < n_outputs; i++) floats |= ul_dtype_is_float(outputs[i]->dtype);
    for (int i = 0; i < n_inputs; i++) touches |= inputs[i]->variable != NULL;
    ul__tape.seen |= touches;
    ul_custom *own = NULL;
    ul_tensor **made = NULL;
    int recording = ul__tape.enabled && (touches || force) && floats;
    if (recording) {
        own = ul__alloc(sizeof *own);
        made = ul__alloc((size_t)n_outputs * sizeof *made);
        if (!own || !made) rc = ul__fail(UL_ENOMEM, "%s: out of memory", custom->name);
        if (made) memset(made, 0, (size_t)n_outputs * sizeof *made);
    }
    for (int i = 0; recording && rc == UL_OK && i < n_outputs; i++)
        rc = ul__alias(&made[i], outputs[i]);
    if (recording && rc == UL_OK) {
        *own = *custom;
        /* n_inputs = 0 would mean input[]; one NULL input says the same as none. */
        ul_tensor *none = NULL;
        ul_call call = {.op = &custom_op,
                        .inputs = n_inputs ? inputs : &none,
                        .n_inputs = n_inputs ? n_inputs : 1,
                        .context = own,
                        .release = custom_release};
        rc = push(&call, made, n_outputs);
    }
    if (recording && rc == UL_OK) {
        for (int i = 0; i < n_outputs; i++) {
            ul_tensor_free(outputs[i]);
            outputs[i] = made[i];
        }
        free(made);
        return UL_OK;
    }
    for (int i = 0; made && i < n_outputs; i++) ul_tensor_free(made[i]);
    free(made);
    free(own);
    if (custom->release) custom->release(custom->context);
    return rc;
}
