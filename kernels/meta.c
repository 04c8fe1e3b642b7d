/* meta.c - the tables of the meta device: every kernel counts its cost and touches no data.
 *
 * Compiled once for each dtype, with UL_TYPE = f32 | bf16 | f64 | i32 | i64 | u8.
 */
#include <math.h>

#include <stddef.h>

#include "kernels.h"

#define PASTE(a, b) a##b
#define JOIN(a, b)  PASTE(a, b)

#define ELEMENT_f32      4.0
#define ELEMENT_bf16     2.0
#define ELEMENT_f64      8.0
#define ELEMENT_i32      4.0
#define ELEMENT_i64      8.0
#define ELEMENT_u8       1.0
#define ACCUMULATOR_f32  4.0
#define ACCUMULATOR_bf16 4.0
#define ACCUMULATOR_f64  8.0
#define ACCUMULATOR_i32  8.0
#define ACCUMULATOR_i64  8.0
#define ACCUMULATOR_u8   8.0
#define IS_FLOAT_f32     1
#define IS_FLOAT_bf16    1
#define IS_FLOAT_f64     1
#define IS_FLOAT_i32     0
#define IS_FLOAT_i64     0
#define IS_FLOAT_u8      0
#define INDEX_f32        0 /* in ul_cpu_kernels() */
#define INDEX_bf16       1
#define INDEX_f64        2
#define INDEX_i32        3
#define INDEX_i64        4
#define INDEX_u8         5
#define IS_FIRST_f32     1 /* the one that holds the counters */

/* Atomic: a program may work on meta tensors from several threads. */
static void add_to(double *total, double x)
{
    double before, after;
    __atomic_load(total, &before, __ATOMIC_RELAXED);
    do after = before + x;
    while (
        !__atomic_compare_exchange(total, &before, &after, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

static int count(ul_kernel kernel, double flops, double bytes)
{
    ul_meta_count *counted = &ul_meta_counted[kernel][JOIN(INDEX_, UL_TYPE)];
    add_to(&counted->calls, 1);
    add_to(&counted->flops, flops);
    add_to(&counted->bytes, bytes);
    return 0;
}

/* ---- the words of the cost expressions ---- */

#define E JOIN(ELEMENT_, UL_TYPE)
#define A JOIN(ACCUMULATOR_, UL_TYPE)

static inline double N(const ul_loop *l)
{
    double n = 1;
    for (int d = 0; d < l->ndim; d++) n *= (double)l->shape[d];
    return n;
}

#if JOIN(IS_FLOAT_, UL_TYPE)

/* The sum of max(0, min(t, n)) over all integers t < x. */
static double clamped_sum(int64_t x, int64_t n)
{
    if (x <= 0) return 0;
    double whole = (double)n, last = (double)x;
    if (x <= n) return last * (last - 1) / 2;
    return whole * (whole - 1) / 2 + whole * (last - whole);
}

/* How many of n keys the queries at positions [first, end) see. A query at p sees the keys in
 * (p - window, p], of which there are clamp(p + 1) - clamp(p + 1 - window), clamp to [0, n].
 */
static double visible(const ul_attention_args *a, int64_t first, int64_t end, int64_t n)
{
    if (end <= first) return 0;
    if (!a->causal) return (double)(end - first) * (double)n;
    double pairs = clamped_sum(end + 1, n) - clamped_sum(first + 1, n);
    if (a->window > 0)
        pairs -= clamped_sum(end + 1 - a->window, n) - clamped_sum(first + 1 - a->window, n);
    return pairs;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Of the document [begin, end) of a row, the pairs of the call's keys and one part of its queries:
 * those at [first, last).
 */
static double pairs_in(const ul_attention_args *a, int64_t begin, int64_t end, int64_t first,
                       int64_t last)
{
    int64_t low = larger(begin, a->k_start), n = smaller(end, a->k_start + a->k_tokens) - low;
    return n <= 0 ? 0 : visible(a, larger(first, begin) - low, smaller(last, end) - low, n);
}

/* pairs_of() where the keys are part of rows. */
static double pairs_of_part(const ul_attention_args *a)
{
    int64_t cut = smaller(a->q_cut, a->q_tokens), first = a->q_start, first_2 = a->q_start_2 + cut;
    int64_t last = first + cut, last_2 = a->q_start_2 + a->q_tokens;
    int has_docs = a->docs && a->n_docs > 0;
    double pairs = 0;
    for (int64_t i = 0; i < (has_docs ? a->n_docs : 1); i++) {
        int64_t begin = has_docs ? a->docs[i] % a->row_tokens : 0;
        int64_t length = has_docs ? a->docs[i + 1] - a->docs[i] : a->row_tokens;
        pairs += pairs_in(a, begin, begin + length, first, last) +
                 pairs_in(a, begin, begin + length, first_2, last_2);
    }
    return (double)a->n_heads * pairs * (double)(has_docs ? 1 : a->batch);
}

/* Visible (query, key) pairs of all rows and heads. */
static double pairs_of(const ul_attention_args *a)
{
    if (a->row_tokens) return pairs_of_part(a);
    int64_t q_end = a->q_start + a->q_tokens;
    if (!a->docs || a->n_docs <= 0)
        return (double)a->batch * (double)a->n_heads * visible(a, a->q_start, q_end, a->k_tokens);
    double pairs = 0;
    for (int64_t i = 0; i < a->n_docs && a->k_tokens > 0; i++) {
        int64_t begin = a->docs[i], length = a->docs[i + 1] - begin, at = begin % a->k_tokens;
        int64_t first = larger(a->q_start, at) - at, end = smaller(q_end, at + length) - at;
        pairs += visible(a, first, end, length);
    }
    return (double)a->n_heads * pairs;
}
#define PAIRS(a) pairs_of(a)

/* n_q arrays as large as q, n_kv as large as k, and lse. */
static double attention_bytes(const ul_attention_args *a, int n_q, int n_kv, double element)
{
    double q_rows = (double)a->batch * (double)a->n_heads * (double)a->q_tokens;
    double kv_rows = (double)a->batch * (double)a->n_kv_heads * (double)a->k_tokens;
    return (n_q * q_rows + n_kv * kv_rows) * (double)a->head_dim * element + q_rows * A;
}
#define ATTENTION_BYTES(a, n_q, n_kv, element) attention_bytes(a, n_q, n_kv, element)

#endif

/* ---- the kernels ---- */

/* A cost mentions few of its kernel's arguments. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* BY_HAND(name) is 1 for the kernels that must leave a result on the host, else 0: only for those
 * is there a macro that brings a second argument.
 */
#define BY_HAND_attention_work ~, 1
#define BY_HAND_find_outside   ~, 1
#define BY_HAND_sum_squares    ~, 1
#define SECOND(a, b, ...)      b
#define SECOND_OF(...)         SECOND(__VA_ARGS__)
#define BY_HAND(name)          SECOND_OF(BY_HAND_##name, 0, 0)

#define DEFINE_0(name, signature, flops, bytes) \
    static int meta_##name signature { return count(UL_KERNEL_##name, flops, bytes); }
#define DEFINE_1(name, signature, flops, bytes)
#define DEFINE(name, signature, flops, bytes) \
    JOIN(DEFINE_, BY_HAND(name))(name, signature, flops, bytes)

#define UL_KERNEL_ANY DEFINE
#if JOIN(IS_FLOAT_, UL_TYPE)
#define UL_KERNEL_FLOAT DEFINE
#else
#define UL_KERNEL_FLOAT(name, signature, flops, bytes)
#endif
#include "kernels.def"
#undef UL_KERNEL_ANY
#undef UL_KERNEL_FLOAT

static int meta_find_outside(ul_stream *s, int64_t *at, const void *x, int64_t n, int64_t low,
                             int64_t high, int64_t except)
{
    *at = -1;
    return count(UL_KERNEL_find_outside, 0, (double)n * E);
}

#if JOIN(IS_FLOAT_, UL_TYPE)

/* As much as the cpu asks for, from the same formula: meta counts what a step needs there. */
static int meta_attention_work(ul_stream *s, int64_t *forward, int64_t *backward,
                               const ul_attention_args *a)
{
    return ul_cpu_kernels(JOIN(INDEX_, UL_TYPE))
        ->attention_work(ul_cpu_stream(), forward, backward, a);
}

static int meta_sum_squares(ul_stream *s, double *out, const void *x, int64_t n)
{
    *out = NAN;
    return count(UL_KERNEL_sum_squares, 2 * (double)n, (double)n * E);
}

#endif

const ul_kernels JOIN(ul_kernels_meta_, UL_TYPE) = {
#define UL_KERNEL_ANY(name, signature, flops, bytes) .name = meta_##name,
#if JOIN(IS_FLOAT_, UL_TYPE)
#define UL_KERNEL_FLOAT(name, signature, flops, bytes) .name = meta_##name,
#else
#define UL_KERNEL_FLOAT(name, signature, flops, bytes)
#endif
#include "kernels.def"
};

#if JOIN(IS_FIRST_, UL_TYPE)

ul_meta_count ul_meta_counted[UL_KERNELS][6];

const char *ul_kernel_name(ul_kernel kernel)
{
#define NAME(name, signature, flops, bytes) [UL_KERNEL_##name] = #name,
#undef UL_KERNEL_ANY
#undef UL_KERNEL_FLOAT
#define UL_KERNEL_ANY   NAME
#define UL_KERNEL_FLOAT NAME
    static const char *const names[UL_KERNELS] = {
#include "kernels.def"
    };
    return names[kernel];
}

/* ---- the FLOPs of products and attention, for whoever runs them on another device ---- */

#define TOLD_gemm               ~, 1
#define TOLD_attention          ~, 1
#define TOLD_attention_backward ~, 1
#define TOLD(name)              SECOND_OF(TOLD_##name, 0, 0)

#define TELL_0(name, signature, flops)
#define TELL_1(name, signature, flops) \
    static double flops_of_##name signature { return flops; }
#define TELL(name, signature, flops, bytes) JOIN(TELL_, TOLD(name))(name, signature, flops)

#undef UL_KERNEL_ANY
#undef UL_KERNEL_FLOAT
#define UL_KERNEL_ANY   TELL
#define UL_KERNEL_FLOAT TELL
#include "kernels.def"

double ul_flops_of_gemm(const ul_gemm *g) { return flops_of_gemm(NULL, NULL, NULL, NULL, g); }

double ul_flops_of_attention(const ul_attention_args *a)
{
    return flops_of_attention(NULL, NULL, NULL, NULL, NULL, NULL, a, NULL);
}

double ul_flops_of_attention_backward(const ul_attention_args *a)
{
    const ul_grad none = {NULL, 0};
    return flops_of_attention_backward(NULL, none, none, none, NULL, NULL, NULL, NULL, NULL, NULL,
                                       a, NULL);
}

#endif
