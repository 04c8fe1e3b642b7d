/* reduce.c - sums, extremes and log-sum-exp of the trailing dims of a loop; running sums. */
#include "reduce.h"
#if UL_TYPE_FLOAT
#include "columns.h"
#include "loop.h"
#endif

/* ---- sum ---- */

static void sum_line(reduce_state *state, const real *x, int64_t step, int64_t n, int64_t flat,
                     acc shift)
{
    (void)flat, (void)shift;
#if UL_TYPE_FLOAT
    acc buffer[ROW_CHUNK];
    for (int64_t at = 0; at < n; at += ROW_CHUNK) {
        int64_t size = row_chunk(n - at);
        if (step == 1) {
            state->total += chunk_sum(row_widen(buffer, x + at, size), size);
            continue;
        }
        for (int64_t i = 0; i < size; i++) buffer[i] = load(x[(at + i) * step]);
        state->total += chunk_sum(buffer, size);
    }
#else
    int64_t total = 0;
    if (step == 1)
        for (int64_t i = 0; i < n; i++) total += x[i];
    else
        for (int64_t i = 0; i < n; i++) total += x[i * step];
    state->total += total;
#endif
}

static void sum_merge(reduce_state *state, const reduce_state *next)
{
    state->total += next->total;
}

typedef struct sum_output {
    ul_grad y;
    double scale;
} sum_output;

static void sum_done(const reduce_job *job, int64_t y_at, int64_t x_at, const reduce_state *state)
{
    (void)x_at;
    const sum_output *out = job->arg;
    sum_t *y = (sum_t *)out->y.data + y_at;
#if UL_TYPE_FLOAT
    give(y, out->y.add, (acc)(state->total * out->scale));
#else
    *y = out->y.add ? *y + state->total : state->total;
#endif
}

#if UL_TYPE_FLOAT

/* Sums whose outputs lie side by side and whose reduced elements do not: whole lines of outputs are
 * added at a time, as columns of a matrix whose rows are the reduced elements.
 */
typedef struct sum_columns {
    const ul_loop *l;
    const real *x;
    int kept;
} sum_columns;

static void sum_columns_row(const void *arg, int64_t row, int64_t begin, int64_t n,
                            acc part[][COLUMN_CHUNK])
{
    const sum_columns *job = arg;
    const ul_loop *l = job->l;
    int64_t offset = begin;
    for (int d = l->ndim - 1; d >= job->kept; d--) {
        offset += row % l->shape[d] * l->stride[1][d];
        row /= l->shape[d];
    }
    const real *x = job->x + offset;
    for (int64_t i = 0; i < n; i++) part[0][i] += load(x[i]);
}

typedef struct sum_lines_job {
    columns_job columns;
    sum_columns rows;
    sum_output out;
    const real *x;
    int64_t chunks;
} sum_lines_job;

/* One chunk of columns of one line of outputs. */
static void sum_lines_piece(void *arg, int64_t piece, int thread)
{
    const sum_lines_job *job = arg;
    const ul_loop *l = job->rows.l;
    int64_t line = piece / job->chunks, begin = piece % job->chunks * COLUMN_CHUNK;
    int64_t y_at = 0, x_at = 0, n = job->columns.cols - begin;
    for (int d = job->rows.kept - 2; d >= 0; d--) {
        int64_t k = line % l->shape[d];
        line /= l->shape[d];
        y_at += k * l->stride[0][d];
        x_at += k * l->stride[1][d];
    }
    if (n > COLUMN_CHUNK) n = COLUMN_CHUNK;
    acc sums[COLUMN_CHUNK];
    sum_columns rows = job->rows;
    rows.x = job->x + x_at + begin;
    columns_job columns = {job->columns.rows, n, sum_columns_row, &rows, {{sums, 0}, {NULL, 0}}};
    columns_piece(&columns, 0, thread);
    real *y = (real *)job->out.y.data + y_at + begin;
    for (int64_t i = 0; i < n; i++) give(y + i, job->out.y.add, sums[i] * (acc)job->out.scale);
}

static int sum_by_columns(ul_stream *s, const sum_output *out, const real *x, const ul_loop *l,
                          int reduced)
{
    int kept = l->ndim - reduced, last = l->ndim - 1;
    if (reduced == 0 || kept == 0 || l->stride[0][kept - 1] != 1 || l->stride[1][kept - 1] != 1 ||
        l->stride[1][last] == 1 || l->shape[kept - 1] < 8)
        return 0;
    sum_lines_job job = {.rows = {l, NULL, kept}, .out = *out, .x = x};
    job.columns.rows = 1;
    job.columns.cols = l->shape[kept - 1];
    job.chunks = (job.columns.cols + COLUMN_CHUNK - 1) / COLUMN_CHUNK;
    int64_t lines = 1;
    for (int d = kept; d < l->ndim; d++) job.columns.rows *= l->shape[d];
    for (int d = 0; d < kept - 1; d++) lines *= l->shape[d];
    ul_parallel(s, lines * job.chunks, sum_lines_piece, &job);
    return 1;
}

#endif

int CPU(sum)(ul_stream *s, ul_grad y, const void *x, double scale, const ul_loop *l, int reduced)
{
    static const reduce_op sum = {{0, 0, 0}, sum_line, sum_merge};
    sum_output out = {y, scale};
    if (!y.data) return 0;
#if UL_TYPE_FLOAT
    if (sum_by_columns(s, &out, x, l, reduced)) return 0;
#endif
    reduce_job job = {.x = x, .op = &sum, .done = sum_done, .arg = &out};
    reduce_walk(s, &job, l, reduced);
    return 0;
}

/* ---- max, min ---- */

#if UL_TYPE_FLOAT
#define IS_NAN(x) ((x) != (x))
#define LEAST     (-INFINITY)
#define MOST      INFINITY
#else
#define IS_NAN(x) 0
#define LEAST     INT64_MIN
#define MOST      INT64_MAX
#endif

/* index is -1 until the first element has been seen. */
static inline int is_greater(acc a, acc best) { return a > best || (IS_NAN(a) && !IS_NAN(best)); }
static inline int is_less(acc a, acc best) { return a < best || (IS_NAN(a) && !IS_NAN(best)); }

static void max_line(reduce_state *state, const real *x, int64_t step, int64_t n, int64_t flat,
                     acc shift)
{
    (void)shift;
    acc best = state->best;
    int64_t index = state->index;
    for (int64_t i = 0; i < n; i++) {
        acc a = load(x[i * step]);
        if (is_greater(a, best) || index < 0) {
            best = a;
            index = flat + i;
        }
    }
    state->best = best;
    state->index = index;
}

static void min_line(reduce_state *state, const real *x, int64_t step, int64_t n, int64_t flat,
                     acc shift)
{
    (void)shift;
    acc best = state->best;
    int64_t index = state->index;
    for (int64_t i = 0; i < n; i++) {
        acc a = load(x[i * step]);
        if (is_less(a, best) || index < 0) {
            best = a;
            index = flat + i;
        }
    }
    state->best = best;
    state->index = index;
}

static void max_merge(reduce_state *state, const reduce_state *next)
{
    if (is_greater(next->best, state->best)) *state = *next;
}

static void min_merge(reduce_state *state, const reduce_state *next)
{
    if (is_less(next->best, state->best)) *state = *next;
}

typedef struct extreme_output {
    real *y;
    int64_t *index;
} extreme_output;

static void extreme_done(const reduce_job *job, int64_t y_at, int64_t x_at,
                         const reduce_state *state)
{
    (void)x_at;
    const extreme_output *out = job->arg;
    if (out->y) out->y[y_at] = store(state->best);
    if (out->index) out->index[y_at] = state->index;
}

int CPU(max)(ul_stream *s, void *y, int64_t *index, const void *x, const ul_loop *l, int reduced)
{
    static const reduce_op max = {{0, LEAST, -1}, max_line, max_merge};
    extreme_output out = {y, index};
    reduce_job job = {.x = x, .op = &max, .done = extreme_done, .arg = &out};
    reduce_walk(s, &job, l, reduced);
    return 0;
}

int CPU(min)(ul_stream *s, void *y, int64_t *index, const void *x, const ul_loop *l, int reduced)
{
    static const reduce_op min = {{0, MOST, -1}, min_line, min_merge};
    extreme_output out = {y, index};
    reduce_job job = {.x = x, .op = &min, .done = extreme_done, .arg = &out};
    reduce_walk(s, &job, l, reduced);
    return 0;
}

/* ---- running sums ---- */

typedef struct cumsum_job {
    ul_grad y;
    const real *x;
    int64_t rows, cols, piece;
    int reverse;
} cumsum_job;

static void cumsum_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const cumsum_job *job = arg;
    int64_t begin = piece * job->piece, end = begin + job->piece, cols = job->cols;
    for (int64_t row = begin; row < end && row < job->rows; row++) {
        total_t total = 0;
        for (int64_t k = 0; k < cols; k++) {
            int64_t at = row * cols + (job->reverse ? cols - 1 - k : k);
            sum_t *y = (sum_t *)job->y.data + at;
            total += load(job->x[at]);
#if UL_TYPE_FLOAT
            give(y, job->y.add, (acc)total);
#else
            *y = job->y.add ? *y + total : total;
#endif
        }
    }
}

int CPU(cumsum)(ul_stream *s, ul_grad y, const void *x, int64_t rows, int64_t cols, int reverse)
{
    int64_t piece = cols < UL_GRAIN ? UL_GRAIN / (cols + 1) + 1 : 1;
    cumsum_job job = {y, x, rows, cols, piece, reverse};
    if (y.data) ul_parallel(s, (rows + piece - 1) / piece, cumsum_piece, &job);
    return 0;
}

#if UL_TYPE_FLOAT

/* ---- log-sum-exp: the largest element first, then the sum of what is left of each exponential
 * ---- */

static void exp_line(reduce_state *state, const real *x, int64_t step, int64_t n, int64_t flat,
                     acc shift)
{
    (void)flat;
    acc buffer[ROW_CHUNK];
    for (int64_t at = 0; at < n; at += ROW_CHUNK) {
        int64_t size = row_chunk(n - at);
        if (step == 1) {
            state->total += chunk_sum_exp(row_widen(buffer, x + at, size), size, shift);
            continue;
        }
        for (int64_t i = 0; i < size; i++) buffer[i] = load(x[(at + i) * step]);
        state->total += chunk_sum_exp(buffer, size, shift);
    }
}

/* Called with each output's largest element: does the second pass on the spot. */
static void logsumexp_done(const reduce_job *job, int64_t y_at, int64_t x_at,
                           const reduce_state *state)
{
    static const reduce_op sum_exp = {{0, 0, 0}, exp_line, sum_merge};
    reduce_job second = *job;
    second.op = &sum_exp;
    acc max = job->elements ? state->best : (acc)-INFINITY;
    int finite = max - max == 0;
    acc sum = finite ? (acc)reduce_all(&second, job->x + x_at, max).total : 1;
    ((real *)job->arg)[y_at] = store(finite ? log_sum_exp(max, sum) : max);
}

int CPU(logsumexp)(ul_stream *s, void *y, const void *x, const ul_loop *l, int reduced)
{
    static const reduce_op max = {{0, LEAST, -1}, max_line, max_merge};
    reduce_job job = {.x = x, .op = &max, .done = logsumexp_done, .arg = y};
    reduce_walk(s, &job, l, reduced);
    return 0;
}

typedef struct logsumexp_grad {
    ul_grad dx;
    const real *dy, *x, *y;
} logsumexp_grad;

static void logsumexp_backward_row(const void *arg, const loop_row *row)
{
    const logsumexp_grad *job = arg;
    real *dx = (real *)job->dx.data + row->at[0];
    const real *dy = job->dy + row->at[1], *x = job->x + row->at[2], *y = job->y + row->at[3];
    for (int64_t i = 0; i < row->n; i++) {
        acc share = fast_exp(load(x[i * row->step[2]]) - load(y[i * row->step[3]]));
        give(dx + i * row->step[0], job->dx.add, load(dy[i * row->step[1]]) * share);
    }
}

int CPU(logsumexp_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *x, const void *y,
                            const ul_loop *l)
{
    logsumexp_grad job = {dx, dy, x, y};
    if (dx.data) loop_walk(s, l, 4, logsumexp_backward_row, &job);
    return 0;
}

#endif
