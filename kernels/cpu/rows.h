/* rows.h - rows of contiguous elements: how threads share them, and sums along one.
 *
 * A row is handled in chunks of accumulators: the row itself where an element is its own
 * accumulator, else a small buffer of widened elements.
 */
#ifndef UL_ROWS_H
#define UL_ROWS_H

#include "loop.h"
#include "vmath.h"

enum { ROW_CHUNK = 1024 };

typedef struct rows_job {
    int64_t rows, piece;
    void (*body)(const void *arg, int64_t row);
    const void *arg;
} rows_job;

static inline void rows_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const rows_job *job = arg;
    int64_t begin = piece * job->piece, end = begin + job->piece;
    if (end > job->rows) end = job->rows;
    for (int64_t row = begin; row < end; row++) job->body(job->arg, row);
}

/* Calls body for each row; rows hold `cols` elements each (so that a thread gets enough of them).
 */
static inline void rows_walk(ul_stream *s, int64_t rows, int64_t cols,
                             void (*body)(const void *arg, int64_t row), const void *arg)
{
    int64_t piece = cols > 0 && cols < UL_GRAIN ? UL_GRAIN / cols : cols > 0 ? 1 : UL_GRAIN;
    rows_job job = {rows, piece, body, arg};
    ul_parallel(s, (rows + piece - 1) / piece, rows_piece, &job);
}

/* x[0 .. n) as accumulators, n <= ROW_CHUNK: x itself or buffer. */
static inline const acc *row_widen(acc *buffer, const real *x, int64_t n)
{
#if UL_TYPE_IS(bf16)
    for (int64_t i = 0; i < n; i++) buffer[i] = load(x[i]);
    return buffer;
#else
    (void)buffer, (void)n;
    return x;
#endif
}

static inline int64_t row_chunk(int64_t left) { return left < ROW_CHUNK ? left : ROW_CHUNK; }

/* y (+)= x, n elements. */
static inline void row_give(real *y, int add, const acc *x, int64_t n)
{
    if (add)
        INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = store(load(y[i]) + x[i]);
    else
        INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = store(x[i]);
}

/* Largest element (-inf for none). NaN may be passed over: exp(NaN - max) brings it back. */
static inline acc chunk_max(const acc *x, int64_t n)
{
    vec best = v_splat(-INFINITY);
    int64_t i = 0;
    for (; i + VL <= n; i += VL) best = v_max(v_load_acc(x + i), best);
    acc result = -INFINITY;
    for (int lane = 0; lane < VL; lane++) result = best[lane] > result ? best[lane] : result;
    for (; i < n; i++) result = x[i] > result ? x[i] : result;
    return result;
}

static inline acc chunk_sum(const acc *x, int64_t n)
{
    vec a = {0}, b = {0};
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        a += v_load_acc(x + i);
        b += v_load_acc(x + i + VL);
    }
    acc result = v_sum(a + b);
    for (; i < n; i++) result += x[i];
    return result;
}

/* out = exp(x - shift) scale; out may be x. */
static inline void chunk_exp(acc *out, const acc *x, int64_t n, acc shift, acc scale)
{
    INDEPENDENT for (int64_t i = 0; i < n; i++) out[i] = fast_exp(x[i] - shift) * scale;
}

/* sum of exp(x - shift), n <= ROW_CHUNK */
static inline acc chunk_sum_exp(const acc *x, int64_t n, acc shift)
{
    acc buffer[ROW_CHUNK];
    chunk_exp(buffer, x, n, shift, 1);
    return chunk_sum(buffer, n);
}

/* sum of a b */
static inline acc chunk_dot(const acc *x, const acc *y, int64_t n)
{
    vec a = {0}, b = {0};
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        a += v_load_acc(x + i) * v_load_acc(y + i);
        b += v_load_acc(x + i + VL) * v_load_acc(y + i + VL);
    }
    acc result = v_sum(a + b);
    for (; i < n; i++) result += x[i] * y[i];
    return result;
}

static inline acc row_max(const real *x, int64_t n)
{
    acc buffer[ROW_CHUNK], best = -INFINITY;
    for (int64_t at = 0; at < n; at += ROW_CHUNK) {
        int64_t size = row_chunk(n - at);
        acc here = chunk_max(row_widen(buffer, x + at, size), size);
        best = here > best ? here : best;
    }
    return best;
}

static inline acc row_sum(const real *x, int64_t n)
{
    acc buffer[ROW_CHUNK];
    double total = 0;
    for (int64_t at = 0; at < n; at += ROW_CHUNK) {
        int64_t size = row_chunk(n - at);
        total += chunk_sum(row_widen(buffer, x + at, size), size);
    }
    return (acc)total;
}

static inline acc row_sum_exp(const real *x, int64_t n, acc shift)
{
    acc buffer[ROW_CHUNK];
    double total = 0;
    for (int64_t at = 0; at < n; at += ROW_CHUNK) {
        int64_t size = row_chunk(n - at);
        total += chunk_sum_exp(row_widen(buffer, x + at, size), size, shift);
    }
    return (acc)total;
}

static inline acc row_dot(const real *x, const real *y, int64_t n)
{
    acc a[ROW_CHUNK], b[ROW_CHUNK];
    double total = 0;
    for (int64_t at = 0; at < n; at += ROW_CHUNK) {
        int64_t size = row_chunk(n - at);
        total += chunk_dot(row_widen(a, x + at, size), row_widen(b, y + at, size), size);
    }
    return (acc)total;
}

/* log of the sum of exponentials, given the largest element: -inf for none or only -inf, without
 * NaN. */
static inline acc log_sum_exp(acc max, acc sum)
{
    return max == -INFINITY ? max : max + (acc)log((double)sum);
}

#endif
