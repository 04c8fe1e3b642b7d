/* kernels.h - what the engine asks of a backend: one table of kernels for each device and dtype.
 *
 * Kernels know pointers and sizes, never tensors. Outputs come first. They
 * run on the stream they are given, accumulate in f32 (f64 in the f64 tables,
 * i64 in the integer ones), never allocate and never wait.
 */
#ifndef UL_KERNELS_H
#define UL_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where a kernel runs: a thread pool on cpu, a CUDA stream, a set of counters on meta. */
typedef struct ul_stream ul_stream;

enum { UL_LOOP_DIMS = 8, UL_LOOP_OPERANDS = 4 };

/* A nest of loops, outermost first, and how far each operand moves with each
 * index, in elements (0 where it is broadcast). Operand 0 is the output. The
 * engine has merged the dims that can be merged; ndim may be 0 (one element)
 * and any extent may be 0 (nothing to do).
 */
typedef struct ul_loop {
    int ndim;
    int64_t shape[UL_LOOP_DIMS];
    int64_t stride[UL_LOOP_OPERANDS][UL_LOOP_DIMS];
} ul_loop;

/* A gradient to be written: skipped where data is NULL; added to what is
 * there where add is set, overwritten (never read) where it is not.
 */
typedef struct ul_grad {
    void *data;
    int add;
} ul_grad;

/* c = alpha op(a) op(b) + beta c + bias, for each of `batch` matrices.
 * op(a) is [m, k], op(b) is [k, n], c is [m, n], all row-major. Stored is
 * a [m, k] with row stride lda, or [k, m] where a_trans; the same for b.
 * bias [n] or NULL. c holds accumulators (f32 beside bf16) where c_acc.
 * c is never read where beta is 0. Any of m, n, k, batch may be 0; with k = 0
 * c = beta c + bias. Where tf32 is set, f32 elements of a and b may be rounded to tf32 (10 bits
 * after the point) by a device that is faster so.
 */
typedef struct ul_gemm {
    int64_t m, n, k, batch;
    int64_t lda, ldb, ldc;
    int64_t a_step, b_step, c_step; /* from one matrix of the batch to the next, in elements */
    double alpha, beta;
    const void *bias;
    int a_trans, b_trans, c_acc, tf32;
} ul_gemm;

enum { UL_ATTENTION_AUTO, UL_ATTENTION_CUDNN, UL_ATTENTION_NATIVE };

/* Shapes and masks of one attention call; masks.h says who sees whom.
 * q, o [B, Tq, H, D], k, v [B, Tk, Hkv, D]; strides in elements for the dims
 * B, T, H; D is contiguous. Query head h reads key/value head kv_head[h].
 * Query i stands at key position i + q_start. lse [B, H, Tq], accumulators,
 * natural logarithm, -inf (and o = 0) where a row sees no key.
 *
 * Where row_tokens is set, the keys are part of rows of so many tokens and the queries one or two
 * parts: key j stands at k_start + j, query i at q_start + i, from q_cut on at q_start_2 + i (never
 * before the one that precedes it). docs are of whole rows then.
 *
 * Where `partial` is set, the keys are some of those that the queries see. o holds accumulators:
 * the call adds its keys to what others have made of o and lse (at first 0 and -inf). Backward gets
 * lse and o of all keys, and dq, dk and dv hold accumulators.
 */
typedef struct ul_attention_args {
    int64_t batch, q_tokens, k_tokens, n_heads, n_kv_heads, head_dim;
    int64_t q_stride[3], k_stride[3], v_stride[3], o_stride[3];
    const int32_t *kv_head; /* [H] */
    const int64_t *docs;    /* NULL, or n_docs + 1 rising offsets over the flattened B * T */
    int64_t n_docs;
    int64_t q_start;
    int64_t row_tokens, k_start, q_cut, q_start_2;
    int64_t window; /* 0: none; W: a query sees W keys, its own among them (needs causal) */
    double scale;
    int causal, partial;
    int grouped;         /* kv_head [h] is h n_kv_heads / n_heads for each h; 0: not known */
    int64_t longest_doc; /* tokens of the longest document; 0: not known */
    int backend;         /* UL_ATTENTION_...: who computes it, where a backend has a choice */
    int any_order;       /* gradients may be sums in any order, with other bits in each run */
} ul_attention_args;

/* Which random numbers: element i of a call gets number `first` + i of the
 * sequence named by seed and purpose, however the work is cut up.
 */
typedef struct ul_random_key {
    uint64_t seed, purpose, first;
} ul_random_key;

/* One AdamW step (Loshchilov & Hutter 2019, algorithm 2). bias_1 = 1 - beta_1^t, bias_2 = 1 -
 * beta_2^t. */
typedef struct ul_adamw_step {
    double lr, beta_1, beta_2, eps, weight_decay, bias_1, bias_2;
} ul_adamw_step;

typedef struct ul_kernels {
#define UL_KERNEL_ANY(name, signature, flops, bytes)   int(*name) signature;
#define UL_KERNEL_FLOAT(name, signature, flops, bytes) int(*name) signature;
#include "kernels.def"
#undef UL_KERNEL_ANY
#undef UL_KERNEL_FLOAT
} ul_kernels;

/* Tables of the meta device (no arithmetic, counts only), indexed by dtype
 * name. The integer tables hold NULL for the float-only kernels.
 */
extern const ul_kernels ul_kernels_meta_f32, ul_kernels_meta_bf16, ul_kernels_meta_f64;
extern const ul_kernels ul_kernels_meta_i32, ul_kernels_meta_i64, ul_kernels_meta_u8;

/* The kernels in the order of their list. */
typedef enum ul_kernel {
#define UL_KERNEL_ANY(name, signature, flops, bytes)   UL_KERNEL_##name,
#define UL_KERNEL_FLOAT(name, signature, flops, bytes) UL_KERNEL_##name,
#include "kernels.def"
#undef UL_KERNEL_ANY
#undef UL_KERNEL_FLOAT
    UL_KERNELS
} ul_kernel;
const char *ul_kernel_name(ul_kernel kernel);

/* What the meta tables have counted, by kernel and dtype, all threads of work together. */
typedef struct ul_meta_count {
    double calls, flops, bytes;
} ul_meta_count;
extern ul_meta_count ul_meta_counted[UL_KERNELS][6];

/* The same FLOPs for a call on any device. */
double ul_flops_of_gemm(const ul_gemm *g);
double ul_flops_of_attention(const ul_attention_args *a);
double ul_flops_of_attention_backward(const ul_attention_args *a);

/* The cpu tables for the ISA level in force. Dtypes in the order f32 bf16 f64 i32 i64 u8. */
const ul_kernels *ul_cpu_kernels(int dtype_index);

/* "base", "avx2", "avx512" or "avx512bf16": the level chosen at first use, by
 * what the CPU has or by the environment variable UL_ISA.
 */
const char *ul_cpu_isa(void);

/* Forces a level; 0 where the CPU lacks it or there is no such level (nothing changes then). */
int ul_cpu_set_isa(const char *name);

/* The pool the cpu kernels share, made at first use. Threads: UL_THREADS, else the CPUs this
 * process may use. Setting another count ends the old threads first.
 */
ul_stream *ul_cpu_stream(void);
int ul_cpu_threads(void);
void ul_cpu_set_threads(int n);
/* Bytes of scratch that the pool keeps for kernels; they touch as much of it as they need. */
int64_t ul_cpu_scratch(void);

/* FLOP/s of all threads of the pool together at the level in force, from registers, a multiply-add
 * counting as two: f32, or (bf16) products of bf16 summed in f32 by the level's fastest
 * instructions. One sample of some 10 ms.
 */
double ul_cpu_peak_flops(int bf16);

#ifdef __cplusplus
}
#endif
#endif
