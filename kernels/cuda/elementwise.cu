/* elementwise.cu - arithmetic, comparison and selection for every dtype. Integers wrap. */
#include "cast.h"
#include "map.h"

#if UL_TYPE_FLOAT
__device__ __forceinline__ acc plus_of(acc a, acc b) { return a + b; }
__device__ __forceinline__ acc minus_of(acc a, acc b) { return a - b; }
__device__ __forceinline__ acc times_of(acc a, acc b) { return a * b; }
__device__ __forceinline__ int is_nan(acc x) { return x != x; }
__device__ __forceinline__ acc negative(acc x) { return -x; }
__device__ __forceinline__ acc magnitude(acc x) { return x < 0 ? -x : x + 0; }
#else
__device__ __forceinline__ acc plus_of(acc a, acc b) { return (acc)((uint64_t)a + (uint64_t)b); }
__device__ __forceinline__ acc minus_of(acc a, acc b) { return (acc)((uint64_t)a - (uint64_t)b); }
__device__ __forceinline__ acc times_of(acc a, acc b) { return (acc)((uint64_t)a * (uint64_t)b); }
__device__ __forceinline__ int is_nan(acc) { return 0; }
__device__ __forceinline__ acc negative(acc x) { return minus_of(0, x); }
__device__ __forceinline__ acc magnitude(acc x) { return x < 0 ? minus_of(0, x) : x; }
#endif

#define FORWARD_2(name)                                                                    \
    int CUDA(name)(ul_stream * s, void *y, const void *a, const void *b, const ul_loop *l) \
    {                                                                                      \
        return map_2(s, #name, name##_map(), y, a, b, l);                                  \
    }
#define FORWARD_1(name)                                                     \
    int CUDA(name)(ul_stream * s, void *y, const void *x, const ul_loop *l) \
    {                                                                       \
        return map_1(s, #name, name##_map(), y, x, l);                      \
    }

MAP_2(add, plus_of(a, b))
FORWARD_2(add)
MAP_2(sub, minus_of(a, b))
FORWARD_2(sub)
MAP_2(mul, times_of(a, b))
FORWARD_2(mul)
MAP_2(maximum, a > b || is_nan(a) ? a : b)
FORWARD_2(maximum)
MAP_2(minimum, a < b || is_nan(a) ? a : b)
FORWARD_2(minimum)

MAP_1(neg, negative(x))
FORWARD_1(neg)
MAP_1(abs, magnitude(x))
FORWARD_1(abs)

struct clamp_map {
    enum { OUT = 1, IN = 1 };
    acc low, high;
    __device__ void operator()(acc *y, const acc *in) const
    {
        acc x = in[0];
        x = x < low ? low : x;
        y[0] = x > high ? high : x;
    }
};

int CUDA(clamp)(ul_stream *s, void *y, const void *x, double low, double high, const ul_loop *l)
{
#if UL_TYPE_FLOAT
    clamp_map f = {(acc)low, (acc)high};
#else
    clamp_map f = {int_of_double(ceil(low)), int_of_double(floor(high))};
#endif
    return map_1(s, "clamp", f, y, x, l);
}

/* ---- comparisons ---- */

#define COMPARE(name, compared)                                                            \
    struct name##_body {                                                                   \
        uint8_t *y;                                                                        \
        const real *a, *b;                                                                 \
        __device__ void operator()(const int64_t *at) const                                \
        {                                                                                  \
            y[at[0]] = load(a[at[1]]) compared load(b[at[2]]);                             \
        }                                                                                  \
    };                                                                                     \
    int CUDA(name)(ul_stream * s, void *y, const void *a, const void *b, const ul_loop *l) \
    {                                                                                      \
        name##_body f = {(uint8_t *)y, (const real *)a, (const real *)b};                  \
        return loop_walk<3>(s, #name, f, l);                                               \
    }

COMPARE(eq, ==)
COMPARE(ne, !=)
COMPARE(lt, <)
COMPARE(le, <=)
COMPARE(gt, >)
COMPARE(ge, >=)

/* ---- selection ---- */

struct where_body {
    real *y;
    const uint8_t *cond;
    const real *a, *b;
    __device__ void operator()(const int64_t *at) const
    {
        y[at[0]] = cond[at[1]] ? a[at[2]] : b[at[3]];
    }
};

int CUDA(where)(ul_stream *s, void *y, const void *cond, const void *a, const void *b,
                const ul_loop *l)
{
    where_body f = {(real *)y, (const uint8_t *)cond, (const real *)a, (const real *)b};
    return loop_walk<4>(s, "where", f, l);
}
