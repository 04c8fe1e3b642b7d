/* unary.cu - elementwise functions of one float, and their gradients. */
#include "map.h"
#include "vmath.h"

/* dx = expression of dy and v, where v is the input x or the output y. */
#define MAP_BACKWARD(name, expression)                           \
    struct name##_backward_map {                                 \
        enum { OUT = 1, IN = 2 };                                \
        __device__ void operator()(acc *dx, const acc *in) const \
        {                                                        \
            acc dy = in[0], v = in[1];                           \
            dx[0] = expression;                                  \
        }                                                        \
    };

/* The kernels of one function. */
#define FORWARD(name)                                                       \
    int CUDA(name)(ul_stream * s, void *y, const void *x, const ul_loop *l) \
    {                                                                       \
        return map_1(s, #name, name##_map(), y, x, l);                      \
    }
#define BACKWARD(name)                                                                    \
    int CUDA(name##_backward)(ul_stream * s, ul_grad dx, const void *dy, const void *v,   \
                              const ul_loop *l)                                           \
    {                                                                                     \
        return map_1_backward(s, #name "_backward", name##_backward_map(), dx, dy, v, l); \
    }
#define KERNELS(name) FORWARD(name) BACKWARD(name)

/* dx = sign(x) dy, 0 at 0. */
MAP_BACKWARD(abs, (v > 0 ? dy : v < 0 ? -dy : v * 0))
BACKWARD(abs)

MAP_1(exp, exp(x))
MAP_BACKWARD(exp, (dy * v))
KERNELS(exp)

MAP_1(log, log(x))
MAP_BACKWARD(log, dy / v)
KERNELS(log)

MAP_1(sqrt, sqrt(x))
/* y = sqrt(x): dx = dy / (2 y). */
MAP_BACKWARD(sqrt, (dy / (2 * v)))
KERNELS(sqrt)

MAP_1(rsqrt, 1 / sqrt(x))
/* y = x^(-1/2): dx = -dy x^(-3/2) / 2 = -dy y^3 / 2. */
MAP_BACKWARD(rsqrt, (dy * v * v * v * (acc)-0.5))
KERNELS(rsqrt)

MAP_1(sin, sin(x))
MAP_BACKWARD(sin, (dy * cos(v)))
KERNELS(sin)

MAP_1(cos, cos(x))
MAP_BACKWARD(cos, (-dy * sin(v)))
KERNELS(cos)

MAP_1(tanh, tanh(x))
/* y = tanh(x): dx = dy (1 - y^2). */
MAP_BACKWARD(tanh, (dy * (1 - v * v)))
KERNELS(tanh)

MAP_1(sigmoid, sigmoid_of(x))
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
__device__ __forceinline__ acc gelu_share(acc x) { return (acc)0.5 * (1 + erf(x * SQRT_HALF)); }
__device__ __forceinline__ acc gelu_slope(acc x)
{
    return gelu_share(x) + x * INV_SQRT_2_PI * exp(-x * x / 2);
}
MAP_1(gelu, (x * gelu_share(x)))
MAP_BACKWARD(gelu, (dy * gelu_slope(v)))
KERNELS(gelu)

/* y = x (1 + t) / 2, t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3):
 *     dx = dy ((1 + t) / 2 + x (1 - t^2) u' / 2), u' = sqrt(2 / pi) (1 + 3 0.044715 x^2).
 */
__device__ __forceinline__ acc gelu_inner(acc x)
{
    return SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x);
}
__device__ __forceinline__ acc gelu_tanh_slope(acc x)
{
    acc t = tanh(gelu_inner(x)), du = SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x);
    return (acc)0.5 * (1 + t + x * (1 - t * t) * du);
}
MAP_1(gelu_tanh, ((acc)0.5 * x * (1 + tanh(gelu_inner(x)))))
MAP_BACKWARD(gelu_tanh, (dy * gelu_tanh_slope(v)))
KERNELS(gelu_tanh)

MAP_1(relu, x < 0 ? 0 : x)
MAP_BACKWARD(relu, v <= 0 ? 0 : dy)
KERNELS(relu)

struct clamp_backward_map {
    enum { OUT = 1, IN = 2 };
    acc low, high;
    __device__ void operator()(acc *dx, const acc *in) const
    {
        dx[0] = in[1] >= low && in[1] <= high ? in[0] : 0;
    }
};

int CUDA(clamp_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *x, double low,
                         double high, const ul_loop *l)
{
    return map_1_backward(s, "clamp_backward", clamp_backward_map{(acc)low, (acc)high}, dx, dy, x,
                          l);
}
