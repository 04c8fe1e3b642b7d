/* reduce.c - sums, extremes and log-sum-exp of the trailing dims of a loop; running sums. */
#include "reduce.h"
#if UL_TYPE_FLOAT
#include "rows.h"
#endif

/* So many elements of a line, or rows of a panel, go into one partial sum. */
enum { REDUCE_CHUNK = 1024, REDUCE_ROWS = 256 };

#define TAKEN_AS_IT_IS (UL_TYPE_IS(f32) || UL_TYPE_IS(f64) || UL_TYPE_IS(i64))

/* n <= REDUCE_CHUNK elements as accumulators: x itself or buffer. */
static inline const acc *take(acc *buffer, const real *x, int64_t step, int64_t n)
{
    if (step == 1 && TAKEN_AS_IT_IS) return (const acc *)(const void *)x;
    if (step == 1)
        for (int64_t i = 0; i < n; i++) buffer[i] = load(x[i]);
    else
        for (int64_t i = 0; i < n; i++) buffer[i] = load(x[i * step]);
    return buffer;
}

/* ---- sum ---- */

static void sum_line(reduce_state *state, const reduce_panel *p)
{
#if UL_TYPE_FLOAT
    acc buffer[REDUCE_CHUNK];
    for (int64_t at = 0; at < p->n; at += REDUCE_CHUNK) {
        int64_t n = smaller(REDUCE_CHUNK, p->n - at);
        state->total += chunk_sum(take(buffer, p->x + at * p->step, p->step, n), n);
    }
#else
    const real *x = p->x;
    int64_t n = p->n, step = p->step;
    total_t total = 0;
    if (step == 1)
        for (int64_t i = 0; i < n; i++) total += (total_t)x[i];
    else
        for (int64_t i = 0; i < n; i++) total += (total_t)x[i * step];
    state->total += total;
#endif
}

#if UL_TYPE_FLOAT
typedef acc part_t;
#else
typedef total_t part_t;
#endif

/* Adds a row, or four of them, to the partial sums. */
static inline void add_row(part_t *part, const real *x, int64_t lanes, int64_t lane_step)
{
    if (lane_step == 1)
        for (int64_t i = 0; i < lanes; i++) part[i] += (part_t)load(x[i]);
    else
        for (int64_t i = 0; i < lanes; i++) part[i] += (part_t)load(x[i * lane_step]);
}

static inline void add_4_rows(part_t *part, const real *a, int64_t step, int64_t lanes)
{
    const real *b = a + step, *c = b + step, *d = c + step;
    for (int64_t i = 0; i < lanes; i++)
        part[i] +=
            ((part_t)load(a[i]) + (part_t)load(b[i])) + ((part_t)load(c[i]) + (part_t)load(d[i]));
}

static void sum_panel(reduce_state *states, const reduce_panel *p)
{
    int64_t lanes = p->lanes, step = p->step;
    for (int64_t row = 0; row < p->n; row += REDUCE_ROWS) {
        part_t part[REDUCE_LANES] = {0};
        int64_t n = smaller(REDUCE_ROWS, p->n - row), i = 0;
        const real *x = p->x + row * step;
        for (; p->lane_step == 1 && i + 4 <= n; i += 4) add_4_rows(part, x + i * step, step, lanes);
        for (; i < n; i++) add_row(part, x + i * step, lanes, p->lane_step);
        for (int64_t lane = 0; lane < lanes; lane++) states[lane].total += part[lane];
    }
}

static void sum_merge(reduce_state *state, const reduce_state *next)
{
    state->total += next->total;
}

typedef struct sum_output {
    ul_grad y;
    double scale;
} sum_output;

static void sum_done(const void *arg, int64_t y_at, const reduce_state *state)
{
    const sum_output *out = arg;
    sum_t *y = (sum_t *)out->y.data + y_at;
#if UL_TYPE_FLOAT
    give(y, out->y.add, (acc)(state->total * out->scale));
#else
    *y = (sum_t)((out->y.add ? (total_t)*y : 0) + state->total);
#endif
}

int CPU(sum)(ul_stream *s, ul_grad y, const void *x, double scale, const ul_loop *l, int reduced)
{
    static const reduce_op sum = {sum_line, sum_panel, sum_merge, NULL};
    sum_output out = {y, scale};
    reduce_job job = {.x = x, .op = &sum, .done = sum_done, .arg = &out};
    if (y.data) reduce_walk(s, &job, l, reduced);
    return 0;
}

/* ---- max, min: the smallest is the largest after a turn that reverses the order ---- */

#if UL_TYPE_FLOAT
#define IS_NAN(x) ((x) != (x))
#define TURN(x)   (-(x))
typedef acc_int where_t;
#else
#define IS_NAN(x) 0
#define TURN(x)   (~(x))
typedef int64_t where_t;
#endif

static inline int is_greater(acc a, acc best) { return (a > best) | (IS_NAN(a) & !IS_NAN(best)); }

/* The largest of n > 0 elements, a NaN where there is one. */
static inline acc chunk_extreme(const acc *x, int64_t n)
{
    int64_t i = 1;
    acc best = x[0];
#if UL_TYPE_FLOAT
    if (n >= VL) {
        vec top = v_load_acc(x);
        veci nan = top != top;
        for (i = VL; i + VL <= n; i += VL) {
            vec here = v_load_acc(x + i);
            nan |= here != here;
            top = v_max(top, here);
        }
        for (int lane = 0; lane < VL; lane++) best = top[lane] > best ? top[lane] : best;
        for (int lane = 0; lane < VL; lane++) best = nan[lane] ? (acc)NAN : best;
    }
#endif
    for (; i < n; i++) best = is_greater(x[i], best) ? x[i] : best;
    return best;
}

static void extreme_merge(reduce_state *state, const reduce_state *next)
{
    if (next->index >= 0 && (state->index < 0 || is_greater(next->best, state->best)))
        *state = *next;
}

static inline void extreme_line(reduce_state *state, const reduce_panel *p, int turned)
{
    acc buffer[REDUCE_CHUNK];
    for (int64_t at = 0; at < p->n; at += REDUCE_CHUNK) {
        int64_t n = smaller(REDUCE_CHUNK, p->n - at), first = 0;
        const acc *x = take(buffer, p->x + at * p->step, p->step, n);
        if (turned) {
            for (int64_t i = 0; i < n; i++) buffer[i] = TURN(x[i]);
            x = buffer;
        }
        acc best = chunk_extreme(x, n);
        if (state->index >= 0 && !is_greater(best, state->best)) continue;
        if (IS_NAN(best))
            while (!IS_NAN(x[first])) first++;
        else
            while (x[first] != best) first++;
        *state = (reduce_state){state->total, x[first], p->flat + at + first};
    }
}

static inline void extreme_panel(reduce_state *states, const reduce_panel *p, int turned)
{
    int64_t lanes = p->lanes;
    for (int64_t row = 0; row < p->n; row += INT32_MAX) {
        acc best[REDUCE_LANES], buffer[REDUCE_LANES];
        where_t where[REDUCE_LANES] = {0}, n = (where_t)smaller(INT32_MAX, p->n - row);
        for (where_t k = 0; k < n; k++) {
            const acc *x = take(buffer, p->x + (row + k) * p->step, p->lane_step, lanes);
            if (turned) {
                for (int64_t i = 0; i < lanes; i++) buffer[i] = TURN(x[i]);
                x = buffer;
            }
            if (k == 0) memcpy(best, x, (size_t)lanes * sizeof *best);
            for (int64_t i = 0; i < lanes; i++) {
                int better = is_greater(x[i], best[i]);
                best[i] = better ? x[i] : best[i];
                where[i] = better ? k : where[i];
            }
        }
        for (int64_t i = 0; i < lanes; i++) {
            reduce_state next = {states[i].total, best[i], p->flat + row + where[i]};
            extreme_merge(&states[i], &next);
        }
    }
}

static void max_line(reduce_state *state, const reduce_panel *p) { extreme_line(state, p, 0); }
static void max_panel(reduce_state *states, const reduce_panel *p) { extreme_panel(states, p, 0); }
static void min_line(reduce_state *state, const reduce_panel *p) { extreme_line(state, p, 1); }
static void min_panel(reduce_state *states, const reduce_panel *p) { extreme_panel(states, p, 1); }

typedef struct extreme_output {
    real *y;
    int64_t *index;
} extreme_output;

static void max_done(const void *arg, int64_t y_at, const reduce_state *state)
{
    const extreme_output *out = arg;
    if (out->y) out->y[y_at] = store(state->best);
    if (out->index) out->index[y_at] = state->index;
}

static void min_done(const void *arg, int64_t y_at, const reduce_state *state)
{
    const extreme_output *out = arg;
    if (out->y) out->y[y_at] = store(TURN(state->best));
    if (out->index) out->index[y_at] = state->index;
}

int CPU(max)(ul_stream *s, void *y, int64_t *index, const void *x, const ul_loop *l, int reduced)
{
    static const reduce_op max = {max_line, max_panel, extreme_merge, NULL};
    extreme_output out = {y, index};
    reduce_job job = {.x = x, .op = &max, .done = max_done, .arg = &out};
    reduce_walk(s, &job, l, reduced);
    return 0;
}

int CPU(min)(ul_stream *s, void *y, int64_t *index, const void *x, const ul_loop *l, int reduced)
{
    static const reduce_op min = {min_line, min_panel, extreme_merge, NULL};
    extreme_output out = {y, index};
    reduce_job job = {.x = x, .op = &min, .done = min_done, .arg = &out};
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
    int64_t end = smaller((piece + 1) * job->piece, job->rows), cols = job->cols;
    int64_t first = job->reverse ? cols - 1 : 0, step = job->reverse ? -1 : 1;
    int add = job->y.add;
    for (int64_t row = piece * job->piece; row < end; row++) {
        const real *x = job->x + row * cols + first;
        sum_t *y = (sum_t *)job->y.data + row * cols + first;
        total_t total = 0;
        for (int64_t i = 0; i < cols; i++, x += step, y += step) {
            total += (total_t)load(*x);
#if UL_TYPE_FLOAT
            give(y, add, (acc)total);
#else
            *y = (sum_t)((add ? (total_t)*y : 0) + total);
#endif
        }
    }
}

int CPU(cumsum)(ul_stream *s, ul_grad y, const void *x, int64_t rows, int64_t cols, int reverse)
{
    int64_t piece = cols < UL_GRAIN ? UL_GRAIN / (cols + 1) + 1 : 1;
    cumsum_job job = {y, x, rows, cols, piece, reverse};
    if (y.data && cols > 0) ul_parallel(s, (rows + piece - 1) / piece, cumsum_piece, &job);
    return 0;
}

#if UL_TYPE_FLOAT

/* ---- log-sum-exp: the largest element, then the sum of exp(x - largest) ---- */

static void exp_line(reduce_state *state, const reduce_panel *p)
{
    acc buffer[REDUCE_CHUNK];
    for (int64_t at = 0; at < p->n; at += REDUCE_CHUNK) {
        int64_t n = smaller(REDUCE_CHUNK, p->n - at);
        const acc *x = take(buffer, p->x + at * p->step, p->step, n);
        state->total += chunk_sum_exp(x, n, state->best);
    }
}

static void exp_panel(reduce_state *states, const reduce_panel *p)
{
    acc shift[REDUCE_LANES], part[REDUCE_LANES], buffer[REDUCE_LANES];
    int64_t lanes = p->lanes;
    for (int64_t i = 0; i < lanes; i++) shift[i] = states[i].best;
    for (int64_t row = 0; row < p->n; row += REDUCE_ROWS) {
        memset(part, 0, sizeof part);
        for (int64_t k = row; k < smaller(row + REDUCE_ROWS, p->n); k++) {
            const acc *x = take(buffer, p->x + k * p->step, p->lane_step, lanes);
            for (int64_t i = 0; i < lanes; i++) part[i] += fast_exp(x[i] - shift[i]);
        }
        for (int64_t i = 0; i < lanes; i++) states[i].total += part[i];
    }
}

/* Nothing, or only -inf, gives -inf; inf gives inf. */
static void logsumexp_done(const void *arg, int64_t y_at, const reduce_state *state)
{
    acc best = state->index < 0 ? (acc)-INFINITY : state->best;
    int finite = best - best == 0;
    *((real *)arg + y_at) = store(finite ? (acc)((double)best + log(state->total)) : best);
}

int CPU(logsumexp)(ul_stream *s, void *y, const void *x, const ul_loop *l, int reduced)
{
    static const reduce_op sum_exp = {exp_line, exp_panel, sum_merge, NULL};
    static const reduce_op max = {max_line, max_panel, extreme_merge, &sum_exp};
    reduce_job job = {.x = x, .op = &max, .done = logsumexp_done, .arg = y};
    reduce_walk(s, &job, l, reduced);
    return 0;
}

typedef struct logsumexp_grad {
    ul_grad dx;
    const real *dy, *x, *y;
} logsumexp_grad;

/* dx = dy exp(x - y) */
static void logsumexp_backward_row(const void *arg, const loop_row *row)
{
    const logsumexp_grad *job = arg;
    acc dy[REDUCE_CHUNK], x[REDUCE_CHUNK], y[REDUCE_CHUNK], share[REDUCE_CHUNK];
    for (int64_t at = 0; at < row->n; at += REDUCE_CHUNK) {
        int64_t n = smaller(REDUCE_CHUNK, row->n - at), step = row->step[0];
        real *dx = (real *)job->dx.data + row->at[0] + at * step;
        const acc *from = take(x, job->x + row->at[2] + at * row->step[2], row->step[2], n);
        const acc *less = take(y, job->y + row->at[3] + at * row->step[3], row->step[3], n);
        const acc *times = take(dy, job->dy + row->at[1] + at * row->step[1], row->step[1], n);
        for (int64_t i = 0; i < n; i++) share[i] = times[i] * fast_exp(from[i] - less[i]);
        if (step == 1)
            row_give(dx, job->dx.add, share, n);
        else
            for (int64_t i = 0; i < n; i++) give(dx + i * step, job->dx.add, share[i]);
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
