/* binary.c - elementwise functions of two floats that only floats have, and all their gradients. */
#include "map.h"
#include "vmath.h"

/* da, db = expressions of dy, a and b. */
#define MAP_BACKWARD(name, da_expression, db_expression)                              \
    static void name##_backward_map(acc *const *out, const acc *const *in, int64_t n, \
                                    const double *option)                             \
    {                                                                                 \
        acc *da = out[0], *db = out[1];                                               \
        const acc *from_dy = in[0], *from_a = in[1], *from_b = in[2];                 \
        (void)option;                                                                 \
        if (da) {                                                                     \
            INDEPENDENT for (int64_t i = 0; i < n; i++)                               \
            {                                                                         \
                acc dy = from_dy[i], a = from_a[i], b = from_b[i];                    \
                (void)a, (void)b;                                                     \
                da[i] = da_expression;                                                \
            }                                                                         \
        }                                                                             \
        if (db) {                                                                     \
            INDEPENDENT for (int64_t i = 0; i < n; i++)                               \
            {                                                                         \
                acc dy = from_dy[i], a = from_a[i], b = from_b[i];                    \
                (void)a, (void)b;                                                     \
                db[i] = db_expression;                                                \
            }                                                                         \
        }                                                                             \
    }

#define KERNEL(name)                                                                      \
    int CPU(name)(ul_stream * s, void *y, const void *a, const void *b, const ul_loop *l) \
    {                                                                                     \
        return map_2(s, name##_map, y, a, b, l);                                          \
    }
#define KERNEL_BACKWARD(name)                                                                      \
    int CPU(name##_backward)(ul_stream * s, ul_grad da, ul_grad db, const void *dy, const void *a, \
                             const void *b, const ul_loop *l)                                      \
    {                                                                                              \
        return map_2_backward(s, name##_backward_map, da, db, dy, a, b, l);                        \
    }

MAP_2(div, a / b)
/* y = a / b: da = dy / b, db = -dy a / b^2. */
MAP_BACKWARD(div, dy / b, -(dy / b) * (a / b))
KERNEL(div)
KERNEL_BACKWARD(div)

/* y = a b: da = dy b, db = dy a. */
MAP_BACKWARD(mul, (dy * b), (dy * a))
KERNEL_BACKWARD(mul)

/* Squares are common and worth a branch. */
static inline acc power(acc a, acc b) { return b == 2 ? a * a : LIBM(pow)(a, b); }
MAP_2(pow, power(a, b))
/* y = a^b: da = dy b a^(b - 1), db = dy a^b log a. A constant (b = 0, or a = 0 where 0^b is 0 or 1)
 * has gradient 0, not 0 times infinity.
 */
MAP_BACKWARD(pow, b == 0 ? 0 : dy * b * (b == 2 ? a : LIBM(pow)(a, b - 1)),
             a == 0 && b >= 0 ? 0 : dy * power(a, b) * LIBM(log)(a))
KERNEL(pow)
KERNEL_BACKWARD(pow)

/* The share of dy that goes to the operand at hand: all if it wins, half of it in a tie. */
#define SHARE(wins, ties) ((wins) ? 1 : (ties) ? (acc)0.5 : 0)

/* As forward: a wins where it is NaN. */
MAP_BACKWARD(maximum, (dy * SHARE(a > b || a != a, a == b)),
             (dy * SHARE(!(a >= b) && a == a, a == b)))
KERNEL_BACKWARD(maximum)

MAP_BACKWARD(minimum, (dy * SHARE(a < b || a != a, a == b)),
             (dy * SHARE(!(a <= b) && a == a, a == b)))
KERNEL_BACKWARD(minimum)

MAP_2(swiglu, (silu(a) * b))
/* y = silu(a) b: da = dy b silu'(a), db = dy silu(a). */
MAP_BACKWARD(swiglu, (dy * b * silu_slope(a)), (dy * silu(a)))
KERNEL(swiglu)
KERNEL_BACKWARD(swiglu)

/* ---- where: each element of dy goes to the operand it came from ---- */

typedef struct chosen_backward {
    ul_grad da, db;
    const real *dy;
    const uint8_t *cond;
} chosen_backward;

static inline __attribute__((always_inline)) void choose_backward(const chosen_backward *c,
                                                                  const loop_row *row, ul_grad grad,
                                                                  int wanted, int64_t step)
{
    real *to = (real *)grad.data + row->at[0];
    const real *dy = c->dy + row->at[0];
    int64_t n = row->n, cond_step = row->step[1];
    const uint8_t *cond = c->cond + row->at[1];
    INDEPENDENT for (int64_t i = 0; i < n; i++)
    {
        acc passed = load(dy[i * step]);
        give(to + i * step, grad.add, !cond[i * cond_step] == !wanted ? passed : 0);
    }
}

static void choose_backward_row(const void *arg, const loop_row *row)
{
    const chosen_backward *c = arg;
    int plain = row->step[0] == 1;
    if (c->da.data && plain) choose_backward(c, row, c->da, 1, 1);
    if (c->da.data && !plain) choose_backward(c, row, c->da, 1, row->step[0]);
    if (c->db.data && plain) choose_backward(c, row, c->db, 0, 1);
    if (c->db.data && !plain) choose_backward(c, row, c->db, 0, row->step[0]);
}

int CPU(where_backward)(ul_stream *s, ul_grad da, ul_grad db, const void *dy, const void *cond,
                        const ul_loop *l)
{
    chosen_backward c = {da, db, dy, cond};
    loop_walk(s, l, 2, choose_backward_row, &c);
    return 0;
}
