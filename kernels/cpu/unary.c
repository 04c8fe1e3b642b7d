/* unary.c - elementwise functions of one float, and their gradients. */
#include "map.h"
#include "vmath.h"

/* dx = expression of dy and v, where v is the input x or the output y. */
#define MAP_BACKWARD(name, expression)                                                \
    static void name##_backward_map(acc *const *out, const acc *const *in, int64_t n, \
                                    const double *option)                             \
    {                                                                                 \
        acc *dx = out[0];                                                             \
        const acc *from_dy = in[0], *from_v = in[1];                                  \
        (void)option;                                                                 \
        INDEPENDENT for (int64_t i = 0; i < n; i++)                                   \
        {                                                                             \
            acc dy = from_dy[i], v = from_v[i];                                       \
            dx[i] = expression;                                                       \
        }                                                                             \
    }

/* The kernels of one function. */
#define KERNEL(name)                                                       \
    int CPU(name)(ul_stream * s, void *y, const void *x, const ul_loop *l) \
    {                                                                      \
        return map_1(s, name##_map, y, x, NULL, l);                        \
    }
#define KERNEL_BACKWARD(name)                                                          \
    int CPU(name##_backward)(ul_stream * s, ul_grad dx, const void *dy, const void *v, \
                             const ul_loop *l)                                         \
    {                                                                                  \
        return map_1_backward(s, name##_backward_map, dx, dy, v, NULL, l);             \
    }
#define KERNELS(name) KERNEL(name) KERNEL_BACKWARD(name)

/* dx = sign(x) dy, 0 at 0. */
MAP_BACKWARD(abs, (v > 0 ? dy : v < 0 ? -dy : v * 0))
KERNEL_BACKWARD(abs)

MAP_1(exp, fast_exp(x))
MAP_BACKWARD(exp, (dy * v))
KERNELS(exp)

MAP_1(log, LIBM(log)(x))
MAP_BACKWARD(log, dy / v)
KERNELS(log)

MAP_1(sqrt, LIBM(sqrt)(x))
/* y = sqrt(x): dx = dy / (2 y). */
MAP_BACKWARD(sqrt, (dy / (2 * v)))
KERNELS(sqrt)

MAP_1(rsqrt, 1 / LIBM(sqrt)(x))
/* y = x^(-1/2): dx = -dy x^(-3/2) / 2 = -dy y^3 / 2. */
MAP_BACKWARD(rsqrt, (dy * v * v * v * (acc)-0.5))
KERNELS(rsqrt)

MAP_1(sin, LIBM(sin)(x))
MAP_BACKWARD(sin, (dy * LIBM(cos)(v)))
KERNELS(sin)

MAP_1(cos, LIBM(cos)(x))
MAP_BACKWARD(cos, (-dy * LIBM(sin)(v)))
KERNELS(cos)

MAP_1(tanh, fast_tanh(x))
/* y = tanh(x): dx = dy (1 - y^2). */
MAP_BACKWARD(tanh, (dy * (1 - v * v)))
KERNELS(tanh)

MAP_1(sigmoid, fast_sigmoid(x))
/* y = sigmoid(x): dx = dy y (1 - y). */
MAP_BACKWARD(sigmoid, (dy * v * (1 - v)))
KERNELS(sigmoid)

MAP_1(silu, silu(x))
MAP_BACKWARD(silu, (dy * silu_slope(v)))
KERNELS(silu)

#define SQRT_HALF      ((acc)0.70710678118654752440)
#define SQRT_2_OVER_PI ((acc)0.79788456080286535588)
#define INV_SQRT_2_PI  ((acc)0.39894228040143267794)
#define GELU_CUBIC     ((acc)0.044715)

/* y = x P(x), P the normal distribution function: dx = dy (P + x P'), P' = exp(-x^2 / 2) / sqrt(2
 * pi). */
static inline acc gelu_share(acc x) { return (acc)0.5 * (1 + fast_erf(x * SQRT_HALF)); }
static inline acc gelu_slope(acc x)
{
    return gelu_share(x) + x * INV_SQRT_2_PI * fast_exp(-x * x / 2);
}
MAP_1(gelu, (x * gelu_share(x)))
MAP_BACKWARD(gelu, (dy * gelu_slope(v)))
KERNELS(gelu)

/* y = x (1 + t) / 2, t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3):
 *     dx = dy ((1 + t) / 2 + x (1 - t^2) u' / 2), u' = sqrt(2 / pi) (1 + 3 0.044715 x^2).
 */
static inline acc gelu_inner(acc x) { return SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x); }
static inline acc gelu_tanh_slope(acc x)
{
    acc t = fast_tanh(gelu_inner(x));
    acc du = SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x);
    return (acc)0.5 * (1 + t + x * (1 - t * t) * du);
}
MAP_1(gelu_tanh, ((acc)0.5 * x * (1 + fast_tanh(gelu_inner(x)))))
MAP_BACKWARD(gelu_tanh, (dy * gelu_tanh_slope(v)))
KERNELS(gelu_tanh)

MAP_1(relu, x < 0 ? 0 : x)
MAP_BACKWARD(relu, v <= 0 ? 0 : dy)
KERNELS(relu)

static void clamp_backward_map(acc *const *out, const acc *const *in, int64_t n,
                               const double *option)
{
    acc *dx = out[0];
    const acc *dy = in[0], *x = in[1];
    acc low = (acc)option[0], high = (acc)option[1];
    INDEPENDENT for (int64_t i = 0; i < n; i++)
    {
        acc passed = dy[i];
        dx[i] = ((x[i] >= low) & (x[i] <= high)) ? passed : 0;
    }
}

int CPU(clamp_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *x, double low,
                        double high, const ul_loop *l)
{
    const double option[2] = {low, high};
    return map_1_backward(s, clamp_backward_map, dx, dy, x, option, l);
}
