/* elementwise.c - arithmetic, comparison and selection for every dtype. Integers wrap. */
#include "cast.h"
#include "map.h"

#if UL_TYPE_FLOAT
static inline acc plus(acc a, acc b) { return a + b; }
static inline acc minus(acc a, acc b) { return a - b; }
static inline acc times(acc a, acc b) { return a * b; }
static inline int is_nan(acc x) { return x != x; }
static inline acc magnitude(acc x) { return x < 0 ? -x : x + 0; }
#else
static inline acc plus(acc a, acc b) { return (acc)((uint64_t)a + (uint64_t)b); }
static inline acc minus(acc a, acc b) { return (acc)((uint64_t)a - (uint64_t)b); }
static inline acc times(acc a, acc b) { return (acc)((uint64_t)a * (uint64_t)b); }
static inline int is_nan(acc x) { return (void)x, 0; }
static inline acc magnitude(acc x) { return x < 0 ? minus(0, x) : x; }
#endif

MAP_2(add, plus(a, b))
MAP_2(sub, minus(a, b))
MAP_2(mul, times(a, b))
MAP_2(maximum, a > b || is_nan(a) ? a : b)
MAP_2(minimum, a < b || is_nan(a) ? a : b)

int CPU(add)(ul_stream *s, void *y, const void *a, const void *b, const ul_loop *l)
{
    return map_2(s, add_map, y, a, b, l);
}

int CPU(sub)(ul_stream *s, void *y, const void *a, const void *b, const ul_loop *l)
{
    return map_2(s, sub_map, y, a, b, l);
}

int CPU(mul)(ul_stream *s, void *y, const void *a, const void *b, const ul_loop *l)
{
    return map_2(s, mul_map, y, a, b, l);
}

int CPU(maximum)(ul_stream *s, void *y, const void *a, const void *b, const ul_loop *l)
{
    return map_2(s, maximum_map, y, a, b, l);
}

int CPU(minimum)(ul_stream *s, void *y, const void *a, const void *b, const ul_loop *l)
{
    return map_2(s, minimum_map, y, a, b, l);
}

/* ---- one input ---- */

#if UL_TYPE_FLOAT
MAP_1(neg, -x)
#else
MAP_1(neg, minus(0, x))
#endif
MAP_1(abs, magnitude(x))

int CPU(neg)(ul_stream *s, void *y, const void *x, const ul_loop *l)
{
    return map_1(s, neg_map, y, x, NULL, l);
}

int CPU(abs)(ul_stream *s, void *y, const void *x, const ul_loop *l)
{
    return map_1(s, abs_map, y, x, NULL, l);
}

static void clamp_map(acc *const *out, const acc *const *in, int64_t n, const double *option)
{
    acc *y = out[0];
    const acc *from = in[0];
#if UL_TYPE_FLOAT
    acc low = (acc)option[0], high = (acc)option[1];
#else
    acc low = int_of_double(ceil(option[0])), high = int_of_double(floor(option[1]));
#endif
    INDEPENDENT for (int64_t i = 0; i < n; i++)
    {
        acc x = from[i];
        x = x < low ? low : x;
        y[i] = x > high ? high : x;
    }
}

int CPU(clamp)(ul_stream *s, void *y, const void *x, double low, double high, const ul_loop *l)
{
    const double option[2] = {low, high};
    return map_1(s, clamp_map, y, x, option, l);
}

/* ---- comparisons ---- */

typedef void comparison(uint8_t *y, const acc *a, const acc *b, int64_t n);

#define COMPARE(name, operator)                                                           \
    static void name##_row(uint8_t *y, const acc *a, const acc *b, int64_t n)             \
    {                                                                                     \
        INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = a[i] operator b[i];            \
    }                                                                                     \
    int CPU(name)(ul_stream * s, void *y, const void *a, const void *b, const ul_loop *l) \
    {                                                                                     \
        return compare(s, name##_row, y, a, b, l);                                        \
    }

typedef struct compared {
    comparison *run;
    uint8_t *y;
    const real *a, *b;
} compared;

static void compare_row(const void *arg, const loop_row *row)
{
    const compared *c = arg;
    acc buffer_a[MAP_CHUNK], buffer_b[MAP_CHUNK];
    uint8_t result[MAP_CHUNK];
    for (int64_t done = 0; done < row->n; done += MAP_CHUNK) {
        int64_t n = smaller(MAP_CHUNK, row->n - done), step = row->step[0];
        uint8_t *y = c->y + row->at[0] + done * step;
        const real *a = c->a + row->at[1] + done * row->step[1];
        const real *b = c->b + row->at[2] + done * row->step[2];
        c->run(step == 1 ? y : result, row_load(buffer_a, a, row->step[1], n),
               row_load(buffer_b, b, row->step[2], n), n);
        if (step != 1)
            for (int64_t i = 0; i < n; i++) y[i * step] = result[i];
    }
}

static int compare(ul_stream *s, comparison *run, void *y, const void *a, const void *b,
                   const ul_loop *l)
{
    compared c = {run, y, a, b};
    loop_walk(s, l, 3, compare_row, &c);
    return 0;
}

COMPARE(eq, ==)
COMPARE(ne, !=)
COMPARE(lt, <)
COMPARE(le, <=)
COMPARE(gt, >)
COMPARE(ge, >=)

/* ---- selection ---- */

typedef struct chosen {
    real *y;
    const uint8_t *cond;
    const real *a, *b;
} chosen;

static inline __attribute__((always_inline)) void choose(const chosen *c, const loop_row *row,
                                                         int64_t y_step, int64_t cond_step,
                                                         int64_t a_step, int64_t b_step)
{
    real *y = c->y + row->at[0];
    const uint8_t *cond = c->cond + row->at[1];
    const real *a = c->a + row->at[2], *b = c->b + row->at[3];
    int64_t n = row->n;
    INDEPENDENT for (int64_t i = 0; i < n; i++)
    {
        real yes = a[i * a_step], no = b[i * b_step];
        y[i * y_step] = cond[i * cond_step] ? yes : no;
    }
}

static void choose_row(const void *arg, const loop_row *row)
{
    const int64_t *step = row->step;
    int plain = step[0] == 1 && step[1] == 1;
    if (plain && step[2] == 1 && step[3] == 1)
        choose(arg, row, 1, 1, 1, 1);
    else if (plain && step[2] == 1 && step[3] == 0)
        choose(arg, row, 1, 1, 1, 0);
    else if (plain && step[2] == 0 && step[3] == 1)
        choose(arg, row, 1, 1, 0, 1);
    else
        choose(arg, row, step[0], step[1], step[2], step[3]);
}

int CPU(where)(ul_stream *s, void *y, const void *cond, const void *a, const void *b,
               const ul_loop *l)
{
    chosen c = {y, cond, a, b};
    loop_walk(s, l, 4, choose_row, &c);
    return 0;
}
