/* map.h - elementwise kernels, each written as a loop over contiguous accumulators.
 *
 * What a loop's operands lack to be that - another type, a stride, a broadcast, a gradient to be
 * added to - is made up for in small buffers on the way in and out. Where they lack nothing the
 * kernel works on them in place.
 */
#ifndef UL_MAP_H
#define UL_MAP_H

#include "loop.h"

enum { MAP_CHUNK = 4096 / (int)sizeof(acc), MAP_OUTPUTS = 2, MAP_INPUTS = 3 };

/* Whether an element is its own accumulator. */
#define ACC_IS_REAL (UL_TYPE_IS(f32) || UL_TYPE_IS(f64) || UL_TYPE_IS(i64))

/* y[k] = f(x[0], x[1], ..), n elements each; y[k] is NULL where it is not wanted. */
typedef void map_function(acc *const *y, const acc *const *x, int64_t n, const double *option);

typedef struct map {
    map_function *run;
    int n_out, n_in;
    ul_grad out[MAP_OUTPUTS];
    const void *in[MAP_INPUTS];
    int operand[MAP_INPUTS]; /* which of the loop's strides in[k] has; outputs have operand 0's */
    double option[2];
} map;

/* n elements as accumulators: x itself, or buffer. */
static inline const acc *row_load(acc *buffer, const real *x, int64_t step, int64_t n)
{
#if ACC_IS_REAL
    if (step == 1) return x;
#endif
    acc first = load(*x);
    if (step == 1)
        for (int64_t i = 0; i < n; i++) buffer[i] = load(x[i]);
    else if (step == 0)
        for (int64_t i = 0; i < n; i++) buffer[i] = first;
    else
        for (int64_t i = 0; i < n; i++) buffer[i] = load(x[i * step]);
    return buffer;
}

static inline void row_give(real *y, int64_t step, int add, const acc *x, int64_t n)
{
    if (step == 1 && add)
        for (int64_t i = 0; i < n; i++) y[i] = store(load(y[i]) + x[i]);
    else if (step == 1)
        for (int64_t i = 0; i < n; i++) y[i] = store(x[i]);
    else
        for (int64_t i = 0; i < n; i++) give(y + i * step, add, x[i]);
}

static inline void map_chunk(const map *m, const loop_row *row, int64_t done, int64_t n)
{
    acc buffer[MAP_OUTPUTS + MAP_INPUTS][MAP_CHUNK];
    const acc *x[MAP_INPUTS];
    acc *y[MAP_OUTPUTS];
    int direct = ACC_IS_REAL && row->step[0] == 1;
    for (int k = 0; k < m->n_in; k++) {
        int64_t step = row->step[m->operand[k]];
        const real *from = (const real *)m->in[k] + row->at[m->operand[k]] + done * step;
        x[k] = row_load(buffer[MAP_OUTPUTS + k], from, step, n);
    }
    int64_t at = row->at[0] + done * row->step[0];
    for (int k = 0; k < m->n_out; k++) {
        y[k] = m->out[k].data ? buffer[k] : NULL;
        if (y[k] && direct && !m->out[k].add) y[k] = (acc *)m->out[k].data + at;
    }
    m->run(y, x, n, m->option);
    for (int k = 0; k < m->n_out; k++)
        if (y[k] == buffer[k])
            row_give((real *)m->out[k].data + at, row->step[0], m->out[k].add, y[k], n);
}

static inline void map_row(const void *arg, const loop_row *row)
{
    for (int64_t done = 0; done < row->n; done += MAP_CHUNK)
        map_chunk(arg, row, done, smaller(MAP_CHUNK, row->n - done));
}

/* y = f(x); l: y, x */
static inline int map_1(ul_stream *s, map_function *f, void *y, const void *x, const double *option,
                        const ul_loop *l)
{
    map m = {.run = f, .n_out = 1, .n_in = 1, .out = {{y, 0}}, .in = {x}, .operand = {1}};
    if (option) memcpy(m.option, option, sizeof m.option);
    loop_walk(s, l, 2, map_row, &m);
    return 0;
}

/* y = f(a, b); l: y, a, b */
static inline int map_2(ul_stream *s, map_function *f, void *y, const void *a, const void *b,
                        const ul_loop *l)
{
    map m = {.run = f, .n_out = 1, .n_in = 2, .out = {{y, 0}}, .in = {a, b}, .operand = {1, 2}};
    loop_walk(s, l, 3, map_row, &m);
    return 0;
}

/* dx (+)= f(dy, v); l: dx and dy, v */
static inline int map_1_backward(ul_stream *s, map_function *f, ul_grad dx, const void *dy,
                                 const void *v, const double *option, const ul_loop *l)
{
    map m = {.run = f, .n_out = 1, .n_in = 2, .out = {dx}, .in = {dy, v}, .operand = {0, 1}};
    if (option) memcpy(m.option, option, sizeof m.option);
    if (dx.data) loop_walk(s, l, 2, map_row, &m);
    return 0;
}

/* da, db (+)= f(dy, a, b); l: da, db and dy, a, b */
static inline int map_2_backward(ul_stream *s, map_function *f, ul_grad da, ul_grad db,
                                 const void *dy, const void *a, const void *b, const ul_loop *l)
{
    map m = {
        .run = f, .n_out = 2, .n_in = 3, .out = {da, db}, .in = {dy, a, b}, .operand = {0, 1, 2}};
    if (da.data || db.data) loop_walk(s, l, 3, map_row, &m);
    return 0;
}

/* Defines the map_function `name`_map: y = expression of x. */
#define MAP_1(name, expression)                                                                    \
    static void name##_map(acc *const *out, const acc *const *in, int64_t n, const double *option) \
    {                                                                                              \
        acc *y = out[0];                                                                           \
        const acc *from = in[0];                                                                   \
        (void)option;                                                                              \
        INDEPENDENT for (int64_t i = 0; i < n; i++)                                                \
        {                                                                                          \
            acc x = from[i];                                                                       \
            y[i] = expression;                                                                     \
        }                                                                                          \
    }

/* The same: y = expression of a and b. */
#define MAP_2(name, expression)                                                                    \
    static void name##_map(acc *const *out, const acc *const *in, int64_t n, const double *option) \
    {                                                                                              \
        acc *y = out[0];                                                                           \
        const acc *from_a = in[0], *from_b = in[1];                                                \
        (void)option;                                                                              \
        INDEPENDENT for (int64_t i = 0; i < n; i++)                                                \
        {                                                                                          \
            acc a = from_a[i], b = from_b[i];                                                      \
            y[i] = expression;                                                                     \
        }                                                                                          \
    }

#endif
