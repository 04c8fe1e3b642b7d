/* binary.cu - elementwise functions of two floats that only floats have, and all their gradients.
 */
#include "map.h"
#include "vmath.h"

/* da, db = expressions of dy, a and b. */
#define MAP_BACKWARD(name, da_expression, db_expression)        \
    struct name##_backward_map {                                \
        enum { OUT = 2, IN = 3 };                               \
        __device__ void operator()(acc *d, const acc *in) const \
        {                                                       \
            acc dy = in[0], a = in[1], b = in[2];               \
            (void)a, (void)b;                                   \
            d[0] = da_expression;                               \
            d[1] = db_expression;                               \
        }                                                       \
    };

#define FORWARD(name)                                                                      \
    int CUDA(name)(ul_stream * s, void *y, const void *a, const void *b, const ul_loop *l) \
    {                                                                                      \
        return map_2(s, #name, name##_map(), y, a, b, l);                                  \
    }
#define BACKWARD(name)                                                                           \
    int CUDA(name##_backward)(ul_stream * s, ul_grad da, ul_grad db, const void *dy,             \
                              const void *a, const void *b, const ul_loop *l)                    \
    {                                                                                            \
        return map_2_backward(s, #name "_backward", name##_backward_map(), da, db, dy, a, b, l); \
    }

MAP_2(div, a / b)
/* y = a / b: da = dy / b, db = -dy a / b^2. */
MAP_BACKWARD(div, dy / b, -(dy / b) * (a / b))
FORWARD(div)
BACKWARD(div)

/* y = a b: da = dy b, db = dy a. */
MAP_BACKWARD(mul, (dy * b), (dy * a))
BACKWARD(mul)

/* Squares are common and worth a branch. */
__device__ __forceinline__ acc power(acc a, acc b) { return b == 2 ? a * a : pow(a, b); }
MAP_2(pow, power(a, b))
/* y = a^b: da = dy b a^(b - 1), db = dy a^b log a. A constant (b = 0, or a = 0 where 0^b is 0 or 1)
 * has gradient 0, not 0 times infinity.
 */
MAP_BACKWARD(pow, b == 0 ? 0 : dy * b * (b == 2 ? a : pow(a, b - 1)),
             a == 0 && b >= 0 ? 0 : dy * power(a, b) * log(a))
FORWARD(pow)
BACKWARD(pow)

/* The share of dy that goes to the operand at hand: all if it wins, half of it in a tie. */
#define SHARE(wins, ties) ((wins) ? 1 : (ties) ? (acc)0.5 : 0)

/* As forward: a wins where it is NaN. */
MAP_BACKWARD(maximum, (dy * SHARE(a > b || a != a, a == b)),
             (dy * SHARE(!(a >= b) && a == a, a == b)))
BACKWARD(maximum)

MAP_BACKWARD(minimum, (dy * SHARE(a < b || a != a, a == b)),
             (dy * SHARE(!(a <= b) && a == a, a == b)))
BACKWARD(minimum)

MAP_2(swiglu, (silu(a) * b))
/* y = silu(a) b: da = dy b silu'(a), db = dy silu(a). */
MAP_BACKWARD(swiglu, (dy * b * silu_slope(a)), (dy * silu(a)))
FORWARD(swiglu)
BACKWARD(swiglu)

/* ---- selection ---- */

struct where_backward_body {
    ul_grad da, db;
    const real *dy;
    const uint8_t *cond;
    __device__ void operator()(const int64_t *at) const
    {
        acc g = load(dy[at[0]]);
        int yes = cond[at[1]] != 0;
        if (da.data) give((real *)da.data + at[0], da.add, yes ? g : 0);
        if (db.data) give((real *)db.data + at[0], db.add, yes ? 0 : g);
    }
};

int CUDA(where_backward)(ul_stream *s, ul_grad da, ul_grad db, const void *dy, const void *cond,
                         const ul_loop *l)
{
    where_backward_body f = {da, db, (const real *)dy, (const uint8_t *)cond};
    return loop_walk<2>(s, "where_backward", f, l);
}
