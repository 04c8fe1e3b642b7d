/* ulysses.h - the whole public interface of the engine, and its manual.
 *
 * What is not declared here is not part of the interface. A function that can fail returns UL_OK or
 * a negative UL_E code and leaves one sentence in ul_last_error(); its results are then untouched.
 * Results come first, through pointers, inputs next, options last. The caller gives each tensor
 * that a function returned back with ul_tensor_free(); "borrowed" says where not.
 *
 * Dimensions are counted from 0 here and may be negative (-1 is the last). Sizes are int64_t,
 * scalars double. Indices stored in tensors are 0-based.
 * Shapes in comments: B batch, T tokens on this rank, S tokens in all, H heads, D head size,
 * C channels, V vocabulary, N any number of rows.
 *
 * One thread at a time may use the engine (kernels run on a pool of their own).
 */
#ifndef ULYSSES_H
#define ULYSSES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { UL_MAX_DIMS = 8 };

enum {
    UL_OK = 0,
    UL_ENOMEM = -1,  /* out of memory */
    UL_ESHAPE = -2,  /* shapes, sizes or dims do not fit */
    UL_EDTYPE = -3,  /* dtypes differ, or the op has none for this one */
    UL_EDEVICE = -4, /* tensors live on different devices, or the device cannot do this */
    UL_EGRAD = -5,   /* no gradient can flow here */
    UL_EVALUE = -6,  /* a value is out of range */
    UL_ECALL = -7,   /* a callback failed; its owner keeps the reason */
    UL_EIO = -8,     /* a file cannot be read or written, or is damaged; the sentence begins with
                        its path */
    UL_ECOMM = -9,   /* ranks cannot talk, or do not say the same */
    UL_ESTOP = -10,  /* interrupted (group.h, ul_group_interruptible()) */
};

typedef enum { UL_F32, UL_BF16, UL_F64, UL_I32, UL_I64, UL_U8, UL_DTYPES } ul_dtype;
typedef enum { UL_CPU, UL_META, UL_CUDA, UL_DEVICES } ul_device;

typedef struct ul_tensor ul_tensor;

/* ---- status.c ---- */

/* The sentence of the last failure on this thread. */
const char *ul_last_error(void);

const char *ul_dtype_name(ul_dtype dtype); /* "f32" ... */
int64_t ul_dtype_bytes(ul_dtype dtype);
int ul_dtype_is_float(ul_dtype dtype);
/* The type that sums, statistics and gradients of leaves have: f32 for f32 and bf16, f64 for f64,
 * i64 for integers. */
ul_dtype ul_dtype_acc(ul_dtype dtype);
const char *ul_device_name(ul_device device); /* "cpu", "meta", "cuda:0" */

/* ---- backend.c ---- */

/* Takes CUDA device `ordinal` (from 0) for all tensors of this process on UL_CUDA. -1, as the first
 * of these does: the one taken, or this rank's number on its host modulo the number of devices. */
int ul_cuda_open(int ordinal);
/* What its driver calls it ("NVIDIA H200"), and its UUID of 16 bytes; NULL: none is open. */
const char *ul_cuda_gpu(const unsigned char **uuid);
int ul_cuda_is_open(void);
int ul_cuda_wait(void); /* for all that was asked of it */

/* ---- storage.c: memory ---- */

typedef struct ul_memory_stats {
    int64_t live;               /* bytes in use by tensors, as handed out (multiples of 64) */
    int64_t peak;               /* the most that live has been since ul_memory_reset_peak() */
    int64_t reserved;           /* bytes held from the system (or the driver): in use or cached */
    int64_t cached;             /* bytes held, by pages of 2 MiB or segments, and not in use */
    int64_t system_allocations; /* how often the system was asked for memory */
    int64_t live_tensors;       /* handles, whatever they share */
    int64_t scratch;            /* bytes that kernels keep beside tensors: by threads, at most */
    int64_t off_device, off_device_peak, off_device_reserved; /* bytes kept off it (offload.h) */
} ul_memory_stats;

void ul_memory(ul_memory_stats *stats, ul_device device);
void ul_memory_reset_peak(ul_device device);
/* Gives back pages of 2 MiB, or segments of cuda's memory, that no tensor lies on. */
void ul_memory_trim(ul_device device);
/* At most so many live + cached bytes on `device`; 0: as many as the machine has. */
void ul_memory_set_limit(ul_device device, int64_t bytes);

/* Called when much has been allocated since the last call (urgent = 0: more than
 * max(64 MiB, live / 8) bytes), and before an allocation is refused (urgent = 1), so that the
 * owner of handles can free some. It may call ul_tensor_free() and nothing else of the engine.
 */
void ul_memory_on_pressure(void (*callback)(void *context, int urgent), void *context);
/* Asked for the source line ("llama3.lua:41") that a large allocation is made for; fills text. */
void ul_memory_on_origin(void (*callback)(void *context, char *text, int size), void *context);

/* ---- device.c ---- */

/* Threads that cpu kernels use, the caller's included (UL_THREADS, else the CPUs it may use). */
int ul_threads(void);
int ul_set_threads(int n);
/* The ISA level in force: base, avx2, avx512 or avx512bf16 (UL_ISA, else the best there is). */
const char *ul_isa(void);
int ul_set_isa(const char *name);
/* Whether cuda may round what products of f32 multiply to tf32 (the cpu never does): 0 at first. */
int ul_tf32(void);
void ul_set_tf32(int allowed);

/* FLOPs of all products and attention so far, on any device, both ways; meta: what would run. */
double ul_flops(void);
/* How many backward passes have begun so far. */
int64_t ul_backward_passes(void);
/* FLOP/s that the cpu's threads reach at best on that dtype (floats), measured for some 10 ms. */
double ul_peak_flops(ul_dtype dtype);

/* FLOPs and bytes that meta has counted since the last reset; the i-th kernel: name or NULL. */
void ul_meta_counts(double *flops, double *bytes);
const char *ul_meta_kernel(int i, ul_dtype dtype, double *calls, double *flops, double *bytes);
void ul_meta_reset(void);

/* For tests: makes the n-th allocation from now fail, of data, handles or tape alike; 0 turns that
 * off. */
void ul_debug_fail_allocation(int64_t n);
/* How many allocations there have been. */
int64_t ul_debug_allocations(void);

/* ---- tensor.c ---- */

/* A new tensor, uninitialised. */
int ul_tensor_new(ul_tensor **out, ul_dtype dtype, ul_device device, int ndim,
                  const int64_t *shape);
void ul_tensor_free(ul_tensor *t);         /* NULL is fine */
ul_tensor *ul_tensor_retain(ul_tensor *t); /* counts one more owner; returns t */

ul_dtype ul_tensor_dtype(const ul_tensor *t);
ul_device ul_tensor_device(const ul_tensor *t);
int ul_tensor_ndim(const ul_tensor *t);
int64_t ul_tensor_dim(const ul_tensor *t, int dim);   /* dim in [0, ndim) */
const int64_t *ul_tensor_shape(const ul_tensor *t);   /* borrowed */
const int64_t *ul_tensor_strides(const ul_tensor *t); /* borrowed; in elements */
int64_t ul_tensor_size(const ul_tensor *t);           /* number of elements */
int ul_tensor_is_contiguous(const ul_tensor *t);
/* The first element; NULL on meta. Writing through it is not seen by the tape. */
void *ul_tensor_data(const ul_tensor *t);
/* One element as a double / int64 (index: one number per dim). Any device but meta. */
int ul_tensor_get(double *value, const ul_tensor *t, const int64_t *index);
int ul_tensor_get_int(int64_t *value, const ul_tensor *t, const int64_t *index);
int ul_tensor_set(ul_tensor *t, const int64_t *index, double value);

/* ---- tape.c: gradients ---- */

int ul_tensor_requires_grad(const ul_tensor *t);
int ul_tensor_is_leaf(const ul_tensor *t);
/* Makes a leaf whose gradient is kept (float dtypes only; an op's result is no leaf). */
int ul_tensor_require_grad(ul_tensor *t, int on);
/* *out: a handle on the gradient so far (dtype ul_dtype_acc for a leaf), or NULL. */
int ul_tensor_grad(ul_tensor **out, ul_tensor *t);
/* Replaces the gradient (a copy of the handle is kept), or drops it (grad NULL). */
int ul_tensor_set_grad(ul_tensor *t, ul_tensor *grad);
/* An op's result keeps its gradient after backward too. */
int ul_tensor_retain_grad(ul_tensor *t);
/* y shares x's data and has no history. */
int ul_detach(ul_tensor **y, ul_tensor *x);

/* Gradients are recorded unless this is off. Returns the setting before. */
int ul_set_grad_enabled(int on);
int ul_grad_enabled(void);

/* Adds d(loss)/d(leaf), weighted by `seed` (NULL: 1, loss must then be one element), to the
 * gradient of every leaf the loss depends on. Frees what the tape saved as it passes, unless
 * `retain`.
 */
int ul_backward(ul_tensor *loss, ul_tensor *seed, int retain);
/* The same from several results at once; a NULL among the seeds: no gradient from there. */
int ul_backward_all(ul_tensor *const *losses, ul_tensor *const *seeds, int n, int retain);

/* A tape node of the caller's own. `backward` gets the gradients of the outputs (NULL where none
 * arrived) and sets those of the inputs (new handles, or NULL); it returns a UL_E code. `release`
 * ends the context.
 */
typedef struct ul_custom {
    const char *name; /* must outlive the tape */
    int (*backward)(void *context, ul_tensor **d_inputs, int n_inputs, ul_tensor *const *d_outputs,
                    int n_outputs);
    void (*release)(void *context);
    void *context;
} ul_custom;
/* Records that `outputs` were made from `inputs` and replaces each of outputs[] (floats only) by a
 * handle that shares its data and has this node as history; force: also when no input requires
 * grad. On failure, and when nothing is recorded, the context is released at once and outputs stay
 * as they were.
 */
int ul_custom_record(const ul_custom *custom, ul_tensor *const *inputs, int n_inputs,
                     ul_tensor **outputs, int n_outputs, int force);
/* Whether an op has seen an input that requires grad since this was last called, recorded or not.
 */
int ul_grad_was_seen(void);
/* Makes the next ul_grad_was_seen() say so. */
void ul_grad_mark_seen(void);

/* ---- random.c ---- */

void ul_manual_seed(uint64_t seed);
/* Where the generator stands: the key of the next call. Setting it replays. */
void ul_random_state(uint64_t *seed, uint64_t *next);
void ul_random_set_state(uint64_t seed, uint64_t next);

/* In place, float dtypes; contiguous or not. */
int ul_uniform_(ul_tensor *t, double low, double high);
int ul_normal_(ul_tensor *t, double mean, double std);
int ul_randint_(ul_tensor *t, int64_t low, int64_t high); /* [low, high), any dtype */
/* y = x / (1 - p) or 0 with probability p; x itself where p = 0. */
int ul_dropout(ul_tensor **y, ul_tensor *x, double p);

/* ---- op/shape.c ---- */

/* Views share data with x. One size may be -1. */
int ul_view(ul_tensor **y, ul_tensor *x, int ndim,
            const int64_t *shape); /* refuses what strides cannot express */
int ul_reshape(ul_tensor **y, ul_tensor *x, int ndim, const int64_t *shape); /* copies then */
int ul_permute(ul_tensor **y, ul_tensor *x, int ndim, const int *dims);
int ul_transpose(ul_tensor **y, ul_tensor *x, int dim_a, int dim_b);
int ul_select(ul_tensor **y, ul_tensor *x, int dim,
              int64_t index); /* drops dim; negative from the end */
/* Elements start, start + step, ... (count of them) of dim. step >= 1. */
int ul_slice(ul_tensor **y, ul_tensor *x, int dim, int64_t start, int64_t count, int64_t step);
int ul_expand(ul_tensor **y, ul_tensor *x, int ndim, const int64_t *shape); /* -1 keeps a size */
int ul_unsqueeze(ul_tensor **y, ul_tensor *x, int dim);
int ul_squeeze(ul_tensor **y, ul_tensor *x, int dim); /* dim must be of size 1 */

int ul_contiguous(ul_tensor **y, ul_tensor *x); /* x itself where it is */
int ul_clone(ul_tensor **y, ul_tensor *x);
int ul_cast(ul_tensor **y, ul_tensor *x,
            ul_dtype dtype); /* x itself where it is; to integers: towards zero */
int ul_to_device(ul_tensor **y, ul_tensor *x,
                 ul_device device); /* to meta: shape only; from meta: refused */
int ul_cat(ul_tensor **y, ul_tensor *const *xs, int n, int dim);
/* index i64, of x's shape except in dim. y has index's shape. */
int ul_gather(ul_tensor **y, ul_tensor *x, int dim, ul_tensor *index);
int ul_index_select(ul_tensor **y, ul_tensor *x, int dim, ul_tensor *index); /* index i64 [n] */

/* In place; refused where the tape needs to know (see tape.c). x is broadcast, and cast, to y. */
int ul_copy_(ul_tensor *y, ul_tensor *x);
int ul_fill_(ul_tensor *y, double value);
int ul_arange(ul_tensor **y, double start, double step, int64_t n, ul_dtype dtype,
              ul_device device);

/* ---- op/elementwise.c: broadcasting as NumPy, equal dtypes ---- */

int ul_add(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_sub(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_mul(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_div(ul_tensor **y, ul_tensor *a, ul_tensor *b); /* floats */
int ul_pow(ul_tensor **y, ul_tensor *a, ul_tensor *b); /* floats */
int ul_maximum(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_minimum(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_swiglu(ul_tensor **y, ul_tensor *gate, ul_tensor *up); /* silu(gate) up */
/* In place: a = a op b; b is broadcast to a. */
int ul_add_(ul_tensor *a, ul_tensor *b);
int ul_sub_(ul_tensor *a, ul_tensor *b);
int ul_mul_(ul_tensor *a, ul_tensor *b);
int ul_div_(ul_tensor *a, ul_tensor *b);
/* A 0-dim tensor of x's dtype and device, for ops with a number; integers refuse fractions. */
int ul_scalar_like(ul_tensor **y, const ul_tensor *x, double value);

int ul_eq(ul_tensor **y, ul_tensor *a, ul_tensor *b); /* u8, 0 or 1 */
int ul_ne(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_lt(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_le(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_gt(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_ge(ul_tensor **y, ul_tensor *a, ul_tensor *b);
int ul_where(ul_tensor **y, ul_tensor *cond, ul_tensor *a, ul_tensor *b); /* cond u8 */

int ul_neg(ul_tensor **y, ul_tensor *x);
int ul_abs(ul_tensor **y, ul_tensor *x);
int ul_exp(ul_tensor **y, ul_tensor *x); /* this and those below: floats */
int ul_log(ul_tensor **y, ul_tensor *x);
int ul_sqrt(ul_tensor **y, ul_tensor *x);
int ul_rsqrt(ul_tensor **y, ul_tensor *x);
int ul_sin(ul_tensor **y, ul_tensor *x);
int ul_cos(ul_tensor **y, ul_tensor *x);
int ul_tanh(ul_tensor **y, ul_tensor *x);
int ul_sigmoid(ul_tensor **y, ul_tensor *x);
int ul_silu(ul_tensor **y, ul_tensor *x);
int ul_gelu(ul_tensor **y, ul_tensor *x);      /* x Phi(x) */
int ul_gelu_tanh(ul_tensor **y, ul_tensor *x); /* its tanh approximation */
int ul_relu(ul_tensor **y, ul_tensor *x);
int ul_clamp(ul_tensor **y, ul_tensor *x, double low, double high); /* +-INFINITY: no bound */

/* ---- op/reduce.c: n_dims = 0 reduces all; keep leaves dims of size 1 ---- */

int ul_sum(ul_tensor **y, ul_tensor *x, int n_dims, const int *dims, int keep);  /* integers: i64 */
int ul_mean(ul_tensor **y, ul_tensor *x, int n_dims, const int *dims, int keep); /* floats */
int ul_logsumexp(ul_tensor **y, ul_tensor *x, int n_dims, const int *dims, int keep);
/* Along one dim, or over all with dim = UL_ALL. Either result may be NULL: values; index i64, the
 * first of equals; NaN wins. The gradient goes to the element chosen.
 */
enum { UL_ALL = 1000 };
int ul_max(ul_tensor **values, ul_tensor **index, ul_tensor *x, int dim, int keep);
int ul_min(ul_tensor **values, ul_tensor **index, ul_tensor *x, int dim, int keep);
int ul_softmax(ul_tensor **y, ul_tensor *x, int dim);
int ul_log_softmax(ul_tensor **y, ul_tensor *x, int dim);
int ul_cumsum(ul_tensor **y, ul_tensor *x, int dim); /* integers: i64 */
int ul_sort(ul_tensor **values, ul_tensor **index, ul_tensor *x, int dim,
            int descending); /* stable */
int ul_topk(ul_tensor **values, ul_tensor **index, ul_tensor *x, int64_t k, int dim, int largest);

/* ---- op/matmul.c ---- */

/* [.., m, k] x [.., k, n], batch dims broadcast; 1-dim operands as PyTorch. Transposed views are
 * not copied. */
int ul_matmul(ul_tensor **y, ul_tensor *a, ul_tensor *b);
/* y [.., O] = x [.., I] w^T + b; w [O, I], b [O] or NULL */
int ul_linear(ul_tensor **y, ul_tensor *x, ul_tensor *w, ul_tensor *b);

/* ---- op/norm.c ---- */

/* y [.., C] = x w / sqrt(mean(x^2) + eps); w [C] or NULL */
int ul_rms_norm(ul_tensor **y, ul_tensor *x, ul_tensor *w, double eps);
/* h = x + residual, y = rms_norm(h, w): one pass */
int ul_add_rms_norm(ul_tensor **y, ul_tensor **h, ul_tensor *x, ul_tensor *residual, ul_tensor *w,
                    double eps);
/* y [.., C] = (x - mean) / sqrt(var + eps) w + b; w, b [C] or NULL */
int ul_layer_norm(ul_tensor **y, ul_tensor *x, ul_tensor *w, ul_tensor *b, double eps);

/* ---- op/rope.c ---- */

/* cosine, sine [.., D/2] (dtype f32 or f64) for integer positions [..] (i64) and inv_freq [D/2]
 * (f64), angles in f64, both multiplied by scale.
 */
int ul_rope_table(ul_tensor **cosine, ul_tensor **sine, ul_tensor *positions, ul_tensor *inv_freq,
                  double scale, ul_dtype dtype);
/* Half-split rotation as in Transformers. x [B, T, H, D]; tables [T, D/2] or [B, T, D/2], in
 * ul_dtype_acc(x). */
int ul_rope(ul_tensor **y, ul_tensor *x, ul_tensor *cosine, ul_tensor *sine);

/* ---- op/embedding.c ---- */

/* y [.., C] = w [ids, C]; ids i64, w [V, C] */
int ul_embedding(ul_tensor **y, ul_tensor *ids, ul_tensor *w);

/* ---- op/attention.c ---- */

typedef struct ul_attention_options {
    double scale;    /* 0: 1 / sqrt(D) */
    int causal;      /* query i sees keys up to i + (Tk - Tq) */
    int64_t window;  /* W keys including itself; 0: none. Needs causal */
    ul_tensor *docs; /* i64 [n + 1] offsets over the flattened B T, rising from 0 to B T, row edges
                        included; NULL: each row one document. Needs Tq = Tk */
    ul_tensor *kv_head; /* i32 [H]: which kv head each query head reads; NULL: h Hkv / H */
} ul_attention_options;
/* o [B, Tq, H, D] from q [B, Tq, H, D], k, v [B, Tk, Hkv, D]; never a Tq x Tk matrix.
 * lse (may be NULL) [B, H, Tq]: log of the sum of exponentials, in ul_dtype_acc.
 */
int ul_attention(ul_tensor **o, ul_tensor **lse, ul_tensor *q, ul_tensor *k, ul_tensor *v,
                 const ul_attention_options *options);

/* Who computes attention of bf16 on cuda: "cudnn" (an error where it does not take a shape),
 * "native", or "auto", as it begins: cuDNN where it takes the shape, in a fixed order. */
const char *ul_attention_backend(void);
int ul_set_attention_backend(const char *name);
/* Whether each run gives the same bits, as it begins, or sums may come in any order. */
int ul_deterministic(void);
void ul_set_deterministic(int yes);
/* Lines: who has computed how many calls of it, and why cuDNN has not. */
const char *ul_attention_report(void);

/* ---- op/loss.c: results in ul_dtype_acc; a target equal to ignore_index does not count ---- */

/* Sum (or mean over the counted, 0 where there is none) of -log softmax(logits)[target].
 * logits [.., V], targets i64 [..]
 */
int ul_cross_entropy(ul_tensor **loss, ul_tensor *logits, ul_tensor *targets, int64_t ignore_index,
                     int mean);
/* The same for logits = x w^T, in tiles of `tile` rows (0: about 64 MiB of f32 each): logits are
 * never whole. x [.., C], w [V, C]. *count (may be NULL) receives the number of counted targets.
 */
int ul_linear_cross_entropy(ul_tensor **loss, int64_t *count, ul_tensor *x, ul_tensor *w,
                            ul_tensor *targets, int64_t ignore_index, int mean, int64_t tile);

/* ---- op/optimizer.c: in place, outside of the tape; gradients f32 beside bf16 parameters ---- */

typedef struct ul_adamw_options {
    double lr, beta_1, beta_2, eps, weight_decay;
    int64_t step; /* 1 for the first */
} ul_adamw_options;
/* m, v (and master, or NULL): ul_dtype_acc, of p's shape, zero (a copy of p) at first. */
int ul_adamw_(ul_tensor *p, ul_tensor *grad, ul_tensor *m, ul_tensor *v, ul_tensor *master,
              const ul_adamw_options *options);
typedef struct ul_sgd_options {
    double lr, momentum, weight_decay;
    int nesterov;
} ul_sgd_options;
int ul_sgd_(ul_tensor *p, ul_tensor *grad, ul_tensor *momentum, ul_tensor *master,
            const ul_sgd_options *options);
/* sqrt of the sum of squares over all tensors, summed in f64 in the order given; NaN on meta. */
int ul_global_norm(double *norm, ul_tensor *const *xs, int n);
/* Scales all by max_norm / (norm + 1e-6) where that is below 1 (as PyTorch); *norm is the norm
 * before. */
int ul_clip_grad_norm_(double *norm, ul_tensor *const *xs, int n, double max_norm);

/* ---- io/file.c: what has to be whole on the disk, or not there ---- */

typedef struct ul_file_sum {
    int64_t bytes;
    char hash[33]; /* XXH3, 128 bits, in hexadecimal */
} ul_file_sum;

/* A new file, or an old one's new contents, that is on the disk when this returns. Not atomic: a
 * reader may see half of it. sum may be NULL.
 */
int ul_file_write(ul_file_sum *sum, const char *path, const void *data, int64_t bytes);
int ul_file_sum_of(ul_file_sum *sum, const char *path);
/* The same hash of bytes in memory. */
void ul_hash(char hash[33], const void *data, int64_t bytes);
/* Replaces a file `to`, or an empty folder, all at once. */
int ul_file_rename(const char *from, const char *to);
/* Each of two files or folders gets the name of the other, in one step; UL_EIO too where the file
 * system knows no such thing.
 */
int ul_path_exchange(const char *a, const char *b);
/* A symbolic link, all at once in place of the one before. */
int ul_file_point(const char *path, const char *target);
/* A folder, and those that it is in, unless they are there. */
int ul_folder_make(const char *path);
/* The names in the folder are on the disk when this returns. */
int ul_folder_sync(const char *path);
/* Calls visit for each name in the folder, in no order. */
int ul_folder_list(const char *path, void (*visit)(void *context, const char *name), void *context);
/* A file, or a folder and all in it; what is not there is fine. */
int ul_path_remove(const char *path);
/* How many more bytes fit where path is. */
int ul_disk_free(int64_t *bytes, const char *path);

/* For tests: the n-th step from now that changes the disk (making, writing, syncing, renaming)
 * fails with this errno; -1: the process is killed there. n = 0 turns that off.
 */
void ul_debug_fail_write(int64_t n, int error);
/* How many such steps there have been. */
int64_t ul_debug_writes(void);

/* ---- io/safetensors.c: tensors by name in a file ---- */

/* An open file: its header is checked and in memory, tensors are read when they are asked for. */
typedef struct ul_safetensors ul_safetensors;

typedef struct ul_safetensors_entry {
    const char *name;
    const char *dtype; /* as the file has it: "F32", "BF16", "F16", "F8_E4M3", ... */
    int ndim;
    int64_t shape[UL_MAX_DIMS];
    int64_t offset, bytes; /* in the file */
} ul_safetensors_entry;

/* Refuses (UL_EIO) a file that breaks any rule of the format. */
int ul_safetensors_open(ul_safetensors **out, const char *path);
void ul_safetensors_close(ul_safetensors *file); /* NULL is fine */
/* Entries in the order in which they lie in the file; borrowed. */
int64_t ul_safetensors_count(const ul_safetensors *file);
const ul_safetensors_entry *ul_safetensors_at(const ul_safetensors *file, int64_t i);
const ul_safetensors_entry *ul_safetensors_find(const ul_safetensors *file, const char *name);
/* Calls visit for each pair of the metadata. */
void ul_safetensors_metadata(const ul_safetensors *file,
                             void (*visit)(void *context, const char *key, const char *value),
                             void *context);

/* What read() gives unless asked otherwise: F16 is read as UL_F32, BOOL as UL_U8. UL_EDTYPE where
 * there is none.
 */
int ul_safetensors_dtype(ul_dtype *dtype, const ul_safetensors *file,
                         const ul_safetensors_entry *entry);
/* Fills `into` in place, whatever its dtype: all of the entry, or the rows of dim 0 from `first`
 * on that `into` has room for.
 */
int ul_safetensors_read(ul_tensor *into, const ul_safetensors *file,
                        const ul_safetensors_entry *entry, int64_t first);

/* ---- io/safetensors_save.c ---- */

typedef struct ul_safetensors_item {
    const char *name;
    ul_tensor *tensor;
} ul_safetensors_item;

/* Writes under a temporary name first: afterwards the file, or what a link of this name leads to,
 * is whole and on the disk, or the one before is still there. metadata (may be NULL): key, value,
 * ..., NULL, beside "format": "pt", which readers expect. sum may be NULL.
 */
int ul_safetensors_save(ul_file_sum *sum, const char *path, const ul_safetensors_item *items, int n,
                        const char *const *metadata);

#include "group.h"     /* several ranks */
#include "offload.h"   /* what waits off its device */
#include "tokenizer.h" /* text to token ids */

#ifdef __cplusplus
}
#endif

#endif
