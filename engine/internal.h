/* internal.h - what the engine's own files share; nothing else includes it. */
#ifndef UL_INTERNAL_H
#define UL_INTERNAL_H

#include <assert.h>
#include <stddef.h>

#include "../kernels/backend.h"
#include "../kernels/kernels.h"
#include "ulysses.h"

/* ---- tensors and what they share ---- */

/* A block of memory that tensors look into. */
typedef struct ul_storage {
    int refs;
    ul_device device;
    void *data; /* NULL on meta */
    int64_t bytes;
    uint64_t version; /* counts changes in place, so that backward can refuse stale values */
    struct ul_storage *next,
        *previous;          /* all live storages of a device, for the out-of-memory report */
    char origin[48];        /* the source line it was made for, if large */
    struct ul_shard *shard; /* owned: what gathers the values of a sharded weight; else NULL */
    int is_empty;           /* without memory until it is filled */
    struct ul_slot *slot;   /* what `data` lies in where it is kept off its device; else NULL */
    /* Offsets of documents that have been found right, at so many elements from its beginning: they
     * are read from a device once, not in each layer. n is 0 where there are none. */
    struct {
        int64_t offset, n, batch, tokens, longest;
    } docs;
    /* Owned: what i64 values on cuda (ids, labels, offsets) were on the host that they came from;
     * looking at them waits for nothing. NULL where they came from elsewhere or have changed. */
    void *known;
} ul_storage;

/* Where gradients of one value gather. It outlives the tensor's data: the tape holds these for the
 * inputs of a call, and tensors only where a gradient rule asked for the values (ul__save).
 */
typedef struct ul_variable {
    int refs;
    ul_dtype dtype; /* of the value */
    ul_device device;
    int ndim;
    int64_t shape[UL_MAX_DIMS];
    ul_tensor *grad;         /* owned; contiguous; NULL until something flows in */
    ul_tensor *kept;         /* owned; what retain_grad keeps of an op's result */
    struct ul_call *made_by; /* borrowed from the tape; NULL for a leaf */
    int index;               /* which output of made_by */
    int leaf, retain_grad;
    int spent; /* no leaf, and backward has freed the call that made it */
} ul_variable;

struct ul_tensor {
    int refs;
    ul_dtype dtype;
    int ndim;
    int64_t shape[UL_MAX_DIMS];
    int64_t stride[UL_MAX_DIMS]; /* in elements */
    int64_t offset;              /* of the first element in the storage, in elements */
    ul_storage *storage;
    ul_variable *variable;      /* NULL: takes no part in differentiation */
    struct ul_passage *passage; /* owned: what is on its way here, op/shard.c; NULL: nothing is */
};

/* Before anything writes into a storage that others may have seen: counts the change, and drops
 * what the host knows of its values. An op calls ul__change(), which calls this. (storage.c) */
void ul__storage_changed(ul_storage *s);
/* Drops what the host knows of its values alone. */
void ul__storage_forget(ul_storage *s);

static inline void *ul__data(const ul_tensor *t)
{
    return t->storage->data ? (char *)t->storage->data + t->offset * ul_dtype_bytes(t->dtype)
                            : NULL;
}

/* The data of an argument that may be left out: NULL only where t is NULL, on meta too, so that
 * what a kernel costs there counts it. */
static inline void *ul__given(ul_tensor *t)
{
    return t && !t->storage->data ? t : t ? ul__data(t) : NULL;
}

/* ---- backend.c: what is on another device's memory ---- */

const ul_backend *ul__cuda(void); /* NULL until ul_cuda_open() */
const char *ul__cuda_name(void);
/* The number of this rank on its host, as its launcher says; 0 without one. (comm/world.c) */
int ul__local_rank(void);
/* Copies bytes from where kernels of `device` see them; waits for them. */
int ul__read_values(void *host, const void *data, int64_t bytes, ul_device device);
/* The same values, contiguous, on another device; outside of the tape. */
int ul__moved(ul_tensor **out, const ul_tensor *x, ul_device device);
/* The values of x, which is contiguous, as the host knows them without asking a device;
 * NULL where it does not. */
const void *ul__known(const ul_tensor *x);
/* x's values where the host can read them: its own, unless it is on cuda. */
int ul__on_host(ul_tensor **out, const ul_tensor *x);

/* ---- the tape ---- */

enum { UL_MAX_INPUTS = 4, UL_MAX_OUTPUTS = 4, UL_MAX_SAVED = 8 };

typedef struct ul_call ul_call;

/* A differentiable op: its name and how gradients flow back through it. dy[i] is the gradient of
 * output i, contiguous, or NULL where none arrived (never all). Rules ask ul__grad_of() and its kin
 * for where to write.
 */
typedef struct ul_op {
    const char *name;
    int (*backward)(ul_call *call, ul_tensor *const *dy);
} ul_op;

/* One call of an op. A forward function builds it on the stack: op, input[], then outputs and
 * saves. ul__finish() puts a copy on the tape if an input takes part in differentiation; backward
 * frees it as soon as it has passed.
 */
struct ul_call {
    const ul_op *op;
    ul_tensor *
        input[UL_MAX_INPUTS]; /* borrowed, gone after ul__finish(): the tape keeps variables only */
    ul_tensor *const *inputs; /* instead of input[] where there are more (cat, custom) */
    int n_inputs;             /* of inputs; 0 where input[] is used */
    ul_tensor *output[UL_MAX_OUTPUTS]; /* owned until ul__finish() hands them over */
    ul_tensor *saved[UL_MAX_SAVED];    /* owned: the values the rule needs */
    uint64_t version[UL_MAX_SAVED];
    ul_tensor *temporary[UL_MAX_INPUTS]; /* owned: contiguous copies; freed by ul__finish() */
    int n_saved, n_temporary;
    unsigned
        constant_outputs; /* bit i: output i is a constant for the tape (an index, a statistic) */
    /* Free for the rule's own numbers. */
    int64_t i[20];
    double f[4];
    void *context; /* a custom node's own */
    void (*release)(void *context);
    int rc; /* the first error, or UL_OK */

    /* the tape's */
    ul_variable **variable; /* of the inputs; NULL where an input needs no gradient */
    ul_tensor **pending;    /* gradients to be converted and added after the rule returns */
    char *asked; /* whether the rule has asked for the gradient of that input, and it was new */
    ul_variable *
        *made; /* of the outputs, borrowed; NULL once nobody can ask for that gradient any more */
    int n_outputs;
    int64_t position; /* on the tape */
    int running;      /* its rule is being run */
    int again;        /* the rule may run again: what is saved has to stay as it is */
    int passed;       /* backward has passed it and is done with it */
    ul_call *next_dead;
};

/* The ways a forward function makes tensors. They return NULL, and set call->rc, once anything has
 * failed. */
ul_tensor *ul__output(ul_call *call, ul_dtype dtype, int ndim,
                      const int64_t *shape);                   /* contiguous */
ul_tensor *ul__output_like(ul_call *call, const ul_tensor *x); /* x's shape and dtype */
ul_tensor *ul__output_view(ul_call *call, ul_tensor *x, int ndim, const int64_t *shape,
                           const int64_t *stride,
                           int64_t offset); /* shares x's storage; offset counts from its start */
/* Scratch and statistics: a new tensor, kept for the rule. */
ul_tensor *ul__save_new(ul_call *call, ul_dtype dtype, int ndim, const int64_t *shape);
/* Keeps the values of t (an input, an output, a temporary) for the rule. Returns t. NULL is kept as
 * NULL: either way the next free slot of saved[] is used up.
 */
ul_tensor *ul__save(ul_call *call, ul_tensor *t);
/* x if it is contiguous, else a contiguous copy; owned by the call and freed by ul__finish() unless
 * saved. */
ul_tensor *ul__contiguous(ul_call *call, ul_tensor *x);

/* Whether the call will be recorded: saves may be skipped where not. Valid once input[] is set. */
int ul__recording(const ul_call *call);
/* The same for one input. */
int ul__needs_grad(const ul_tensor *t);

/* Hands output 0 (and 1) over and records the call, or frees all it made. Returns call->rc. */
int ul__finish(ul_call *call, ul_tensor **out);
int ul__finish_2(ul_call *call, ul_tensor **out_0, ul_tensor **out_1);
/* The same for out [n]. */
int ul__finish_all(ul_call *call, ul_tensor **out, int n);
/* The same for any n outputs, which the caller has made into out[]; on failure they are NULL. */
int ul__finish_list(ul_call *call, ul_tensor **out, int n);

/* In a rule: where the gradient of input i goes. grad->data is NULL where none is wanted;
 * contiguous, in the input's dtype (ul__grad_of) or in its accumulator type (ul__grad_acc). On meta
 * data is a token that is not NULL where one is wanted.
 */
int ul__grad_of(ul_grad *grad, ul_call *call, int i);
int ul__grad_acc(ul_grad *grad, ul_call *call, int i);
/* In a rule: adds g (any strides, input i's dtype; its shape, or one that i was broadcast to) to
 * input i's gradient. */
int ul__grad_add(ul_call *call, int i, ul_tensor *g);
/* In a rule: the same for a contiguous g of input i's shape, in its dtype or accumulator type, that
 * nobody else uses: it becomes the gradient itself where it can. Takes g over. */
void ul__grad_take(ul_call *call, int i, ul_tensor *g);
/* In a rule: the gradient of input i as a tensor to write views of, zeroed where it is new; *grad
 * is borrowed, NULL where none is wanted. */
int ul__grad_tensor(ul_tensor **grad, ul_call *call, int i);
/* In a rule: whether input i wants a gradient. */
static inline int ul__wants_grad(const ul_call *call, int i) { return call->variable[i] != NULL; }

/* The rule of ops whose output 0 is elements picked from input 0, seen as [outer, n, inner]: dx =
 * dy added at the elements picked. saved[0]: index [outer, m, inner]; i: outer, n, m, inner.
 */
int ul__pick_backward(ul_call *call, ul_tensor *const *dy);

/* In a rule: adds rows of dy to the gradient of input i at the rows that were chosen, seen as
 * [outer, m, inner] and [outer, n, inner]. saved[0]: index [m]; sizes: outer, n, m, inner.
 * (index.c) */
int ul__add_rows(ul_call *call, int i, const ul_tensor *dy, const int64_t *sizes);

/* Refuses a change in place of a tensor the tape cares about; counts it otherwise. */
int ul__change(const char *op, ul_tensor *t);

/* ---- tensors ---- */

/* A new handle on the same values, without history. */
int ul__alias(ul_tensor **out, const ul_tensor *t);
/* A view without history: for use inside rules and other ops. */
int ul__view_of(ul_tensor **out, const ul_tensor *t, int ndim, const int64_t *shape,
                const int64_t *stride, int64_t offset);
/* Drops history-bearing parts before an op on plain values: copies x into contiguous memory (no
 * tape). */
int ul__compact(ul_tensor **out, const ul_tensor *x);

/* y = x, broadcast to y's shape and converted to its dtype; no checks, no tape. */
int ul__assign(const ul_tensor *y, const ul_tensor *x);
/* y += x, equal shapes and dtypes, any strides; no checks, no tape. (backward.c) */
int ul__add_into(const ul_tensor *y, const ul_tensor *x);

/* ---- memory ---- */

int ul__storage_new(ul_storage **out, ul_device device, int64_t bytes);
/* The same in a slot (off_device.h). */
int ul__storage_off(ul_storage **out, ul_device home, int64_t bytes);
void ul__storage_free(ul_storage *s);
/* One without memory, and a tensor on it; memory, of no known values; and without it again. */
int ul__storage_hollow(ul_storage **out, ul_device device, int64_t bytes);
int ul__empty_new(ul_tensor **out, ul_dtype dtype, ul_device device, int ndim,
                  const int64_t *shape);
int ul__storage_fill(ul_storage *s);
void ul__storage_empty(ul_storage *s);
/* op/sharded.c: gathers those of the list that are sharded weights without values; NULLs are fine.
 */
int ul__gather_shards(ul_tensor *const *list, int n);
int ul__inputs_present(const ul_call *call);
/* Nobody has the weight any more: frees what is known of it, or returns 1 where it may be gathered
 * still, and the storage stays. */
int ul__shard_abandon(struct ul_shard *shard);
static inline int ul__present(const ul_tensor *t)
{
    ul_tensor *one = (ul_tensor *)t;
    return t && t->storage->shard ? ul__gather_shards(&one, 1) : 0;
}
void ul__passage_drop(void *passage); /* NULL is fine */
void ul__storage_stats(ul_memory_stats *stats, ul_device device);
/* What has been asked of `stream` until now uses t's memory: see device_arena.h for when to say so.
 * Nothing to do for the stream that computes, and for tensors that are not on cuda. */
int ul__touch(const ul_tensor *t, ul_stream *stream);
void ul__variable_free(ul_variable *v); /* drops one count; NULL is fine */
/* malloc for the engine's own records, except that ul_debug_fail_allocation() can make it fail.
 * NULL then. */
void *ul__alloc(size_t bytes);
void ul__release(void *p);
/* Counts one allocation; whether it is the one that ul_debug_fail_allocation() wants to fail. */
int ul__fail_now(void);

/* arena.c: blocks of host memory, 64-byte aligned; NULL, and no sentence, where there is none. */
void *ul__arena_alloc(int64_t bytes);
void ul__arena_free(void *data);
void ul__arena_trim(void);
void ul__arena_set_limit(int64_t bytes);
int64_t ul__arena_limit(void);
void ul__arena_stats(int64_t *cached, int64_t *system_allocations);

/* ---- devices ---- */

const ul_kernels *ul__kernels(const ul_tensor *t);
const ul_kernels *ul__kernels_of(ul_device device, ul_dtype dtype);
ul_stream *ul__stream(const ul_tensor *t);
/* Adds to ul_flops(). */
void ul__count_flops(double flops);
/* kernels->gemm, counted. */
int ul__gemm(const ul_kernels *kernels, ul_stream *stream, void *c, const void *a, const void *b,
             const ul_gemm *g);

/* ---- loops (shape.c of kernels' arguments): checks nothing ---- */

/* Fills l for operands of equal (broadcast) shape, merging dims. Operand i has the strides
 * strides[i] for `shape`. `fixed` last dims are not mixed with the others (0 for elementwise, the
 * number reduced for reductions). Returns how many of l's last dims are the fixed ones (at least 1
 * where fixed > 0).
 */
int ul__loop(ul_loop *l, int ndim, const int64_t *shape, int n_operands,
             const int64_t *const *strides, int fixed);
/* The strides t has when it is broadcast to `shape` (0 in broadcast dims). */
void ul__broadcast_strides(int64_t *stride, const ul_tensor *t, int ndim, const int64_t *shape);
/* Row-major strides. */
void ul__contiguous_strides(int64_t *stride, int ndim, const int64_t *shape);
/* Shape of a and b broadcast together; UL_ESHAPE names op. */
int ul__broadcast(const char *op, int *ndim, int64_t *shape, const ul_tensor *a,
                  const ul_tensor *b);
/* dim in [-ndim, ndim) -> [0, ndim), or UL_ESHAPE naming op. */
int ul__dim(const char *op, int *dim, const ul_tensor *x);

/* ---- errors ---- */

/* Returns `code` after leaving a sentence for ul_last_error(). */
int ul__fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "[3, 8]", for error messages; one of eight buffers in turn. */
const char *ul__shape(const ul_tensor *t);
const char *ul__shape_of(int ndim, const int64_t *shape);
/* The checks nearly every op starts with: no NULL, same device, same dtype. Names are for the
 * sentence. */
int ul__check_same(const char *op, const char *name_a, const ul_tensor *a, const char *name_b,
                   const ul_tensor *b);
int ul__check_device(const char *op, const char *name_a, const ul_tensor *a, const char *name_b,
                     const ul_tensor *b);
int ul__check_float(const char *op, const char *name, const ul_tensor *x);
int ul__check_dtype(const char *op, const char *name, const ul_tensor *x, ul_dtype dtype);

/* Whether all ids (i64, contiguous) are rows of a table of n, or equal to *except where that is
 * given; else UL_EVALUE names the first that is not, as `what`. (embedding.c) */
int ul__check_ids(const char *op, const char *what, const ul_tensor *ids, int64_t n,
                  const int64_t *except);

#define UL_TRY(expression)       \
    do {                         \
        int rc_ = (expression);  \
        if (rc_ < 0) return rc_; \
    } while (0)

#define UL_REQUIRE(condition, code, ...)                      \
    do {                                                      \
        if (!(condition)) return ul__fail(code, __VA_ARGS__); \
    } while (0)

/* Runs a kernel of the call's table unless something has failed: UL_RUN(&call, x, softmax, y->...,
 * ...). */
#define UL_RUN(call, t, kernel, ...)                                                              \
    do {                                                                                          \
        if ((call)->rc == UL_OK) (call)->rc = ul__kernels(t)->kernel(ul__stream(t), __VA_ARGS__); \
    } while (0)

#endif
