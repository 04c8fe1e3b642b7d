/* map.h - elementwise kernels, each written as a function of accumulators.
 *
 * Where all operands are contiguous (or one number), a thread moves 16 bytes of each at a time;
 * else it finds its element by the loop's strides.
 */
#ifndef UL_CUDA_MAP_H
#define UL_CUDA_MAP_H

#include "cuda.h"

/* y[k] = f(x[0], x[1], ..); an output that is NULL is not wanted. */
template <class F> struct map {
    F f;
    ul_grad out[F::OUT];
    const real *in[F::IN];
    int operand[F::IN]; /* which of the loop's strides in[k] has; outputs have operand 0's */
};

template <class F>
__device__ __forceinline__ void map_give(const map<F> &m, int64_t at, const acc *y)
{
    for (int k = 0; k < F::OUT; k++)
        if (m.out[k].data) give((real *)m.out[k].data + at, m.out[k].add, y[k]);
}

/* scalars: bit k: in[k] is one number */
template <class F>
static __global__ void map_flat_kernel(map<F> m, unsigned scalars, int64_t n, int64_t packs)
{
    GRID_STRIDE(p, packs)
    {
        run<real, PACK> from[F::IN], to[F::OUT] = {};
        for (int k = 0; k < F::IN; k++) {
            if (scalars >> k & 1)
                for (int j = 0; j < PACK; j++) from[k].v[j] = *m.in[k];
            else
                from[k] = load_run<PACK>(m.in[k] + p * PACK);
        }
        for (int k = 0; k < F::OUT; k++)
            if (m.out[k].data && m.out[k].add)
                to[k] = load_run<PACK>((const real *)m.out[k].data + p * PACK);
        for (int j = 0; j < PACK; j++) {
            acc x[F::IN], y[F::OUT];
            for (int k = 0; k < F::IN; k++) x[k] = load(from[k].v[j]);
            m.f(y, x);
            for (int k = 0; k < F::OUT; k++) give(to[k].v + j, m.out[k].add, y[k]);
        }
        for (int k = 0; k < F::OUT; k++)
            if (m.out[k].data) store_run((real *)m.out[k].data + p * PACK, to[k]);
    }
    int64_t i = packs * PACK + blockIdx.x * (int64_t)blockDim.x + threadIdx.x; /* the last few */
    if (i >= n) return;
    acc x[F::IN], y[F::OUT];
    for (int k = 0; k < F::IN; k++) x[k] = load(m.in[k][scalars >> k & 1 ? 0 : i]);
    m.f(y, x);
    map_give(m, i, y);
}

template <class F, int N> struct map_any {
    map<F> m;
    __device__ void operator()(const int64_t *at) const
    {
        acc x[F::IN], y[F::OUT];
        for (int k = 0; k < F::IN; k++) {
            int64_t place = at[0]; // chosen, not looked up: registers cannot be
            for (int o = 1; o < N; o++)
                if (m.operand[k] == o) place = at[o];
            x[k] = load(m.in[k][place]);
        }
        m.f(y, x);
        map_give(m, at[0], y);
    }
};

/* Whether an operand is one number, contiguous and aligned, or neither: 0, 1, -1. */
static inline int step_of(const ul_loop *l, int operand, const void *data)
{
    if (l->ndim == 0) return 1;
    int64_t step = l->stride[operand][0];
    if (l->ndim > 1 || step < 0 || step > 1) return -1;
    return step == 0 ? 0 : is_aligned(data) ? 1 : -1;
}

/* N: how many operands the loop has. */
template <int N, class F>
static int map_walk(ul_stream *s, const char *name, const map<F> &m, const ul_loop *l)
{
    int64_t n = loop_size(l), wanted = 0;
    int flat = 1;
    unsigned scalars = 0;
    for (int k = 0; k < F::OUT; k++) {
        if (!m.out[k].data) continue;
        wanted++;
        flat = flat && step_of(l, 0, m.out[k].data) == 1;
    }
    for (int k = 0; k < F::IN; k++) {
        int step = step_of(l, m.operand[k], m.in[k]);
        flat = flat && step >= 0;
        scalars |= (unsigned)(step == 0) << k;
    }
    if (n == 0 || wanted == 0) return 0;
    if (!flat) return loop_walk<N>(s, name, map_any<F, N>{m}, l);
    int64_t packs = n / PACK;
    dim3 grid = grid_for(s, packs > 0 ? packs : 1, BLOCK);
    UL_LAUNCH((map_flat_kernel<F>), grid, dim3(BLOCK), 0, s->stream, m, scalars, n, packs);
    return ul_cuda_launched(name);
}

/* y = f(x); l: y, x */
template <class F>
static int map_1(ul_stream *s, const char *name, F f, void *y, const void *x, const ul_loop *l)
{
    return map_walk<2>(s, name, map<F>{f, {{y, 0}}, {(const real *)x}, {1}}, l);
}

/* y = f(a, b); l: y, a, b */
template <class F>
static int map_2(ul_stream *s, const char *name, F f, void *y, const void *a, const void *b,
                 const ul_loop *l)
{
    map<F> m = {f, {{y, 0}}, {(const real *)a, (const real *)b}, {1, 2}};
    return map_walk<3>(s, name, m, l);
}

/* dx (+)= f(dy, v); l: dx and dy, v */
template <class F>
static int map_1_backward(ul_stream *s, const char *name, F f, ul_grad dx, const void *dy,
                          const void *v, const ul_loop *l)
{
    map<F> m = {f, {dx}, {(const real *)dy, (const real *)v}, {0, 1}};
    return map_walk<2>(s, name, m, l);
}

/* da, db (+)= f(dy, a, b); l: da, db and dy, a, b */
template <class F>
static int map_2_backward(ul_stream *s, const char *name, F f, ul_grad da, ul_grad db,
                          const void *dy, const void *a, const void *b, const ul_loop *l)
{
    map<F> m = {f, {da, db}, {(const real *)dy, (const real *)a, (const real *)b}, {0, 1, 2}};
    return map_walk<3>(s, name, m, l);
}

/* Defines the struct `name`_map: y = expression of x; of a and b. */
#define MAP_1(name, expression)                                 \
    struct name##_map {                                         \
        enum { OUT = 1, IN = 1 };                               \
        __device__ void operator()(acc *y, const acc *in) const \
        {                                                       \
            acc x = in[0];                                      \
            y[0] = expression;                                  \
        }                                                       \
    };
#define MAP_2(name, expression)                                 \
    struct name##_map {                                         \
        enum { OUT = 1, IN = 2 };                               \
        __device__ void operator()(acc *y, const acc *in) const \
        {                                                       \
            acc a = in[0], b = in[1];                           \
            y[0] = expression;                                  \
        }                                                       \
    };

#endif
