/* random.cu - Philox 4x32-10 (Salmon et al. 2011) and what is drawn from it.
 *
 * The words of a sequence are numbered: word w is the (w mod 4)th of block w / 4, whose counter is
 * {block, purpose}, each as two words, low first, and whose key is the seed. Element i of a call is
 * number g = first + i. uniform and dropout use word g; normal and randint words 2 g and 2 g + 1.
 * A thread makes one block of four words, and the elements that they are for.
 */
#include "cast.h"

struct words {
    uint32_t v[4];
};

__device__ __forceinline__ uint32_t high_of_product(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}

__device__ __forceinline__ words philox(const ul_random_key &key, uint64_t block)
{
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = (uint32_t)key.purpose,
             d = (uint32_t)(key.purpose >> 32);
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint32_t p_high = high_of_product(a, 0xD2511F53u), p = a * 0xD2511F53u;
        uint32_t q_high = high_of_product(c, 0xCD9E8D57u), q = c * 0xCD9E8D57u;
        a = q_high ^ b ^ k0;
        b = q;
        c = p_high ^ d ^ k1;
        d = p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return words{{a, b, c, d}};
}

/* Elements [0, n) of a call: f(i, its words). EACH: words of an element. */
template <int EACH, class F> struct draw {
    F f;
    ul_random_key key;
    int64_t n;
    __device__ void operator()(int64_t k) const
    {
        const int per_block = 4 / EACH;
        uint64_t block = key.first / per_block + (uint64_t)k;
        words w = philox(key, block);
        for (int j = 0; j < per_block; j++) {
            int64_t i = (int64_t)(block * per_block + j - key.first);
            if (i >= 0 && i < n) f(i, w.v + j * EACH);
        }
    }
};

template <int EACH, class F>
static int draw_walk(ul_stream *s, const char *name, F f, int64_t n, const ul_random_key *key)
{
    const int per_block = 4 / EACH;
    int64_t skipped = (int64_t)(key->first % per_block);
    return flat_walk(s, name, draw<EACH, F>{f, *key, n}, n ? ceil_div(skipped + n, per_block) : 0);
}

/* In [0, 1), 24 bits. */
__device__ __forceinline__ double unit(uint32_t word) { return (double)(word >> 8) * 0x1p-24; }

/* ---- randint: high 64 bits of a 64-bit number times the width ---- */

__device__ __forceinline__ uint64_t high_of_wide_product(uint64_t a, uint64_t b)
{
#ifdef __CUDACC__
    return __umul64hi(a, b);
#else
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)a * b >> 64);
#endif
}

struct randint_draw {
    real *y;
    int64_t low;
    uint64_t width;
    __device__ void operator()(int64_t i, const uint32_t *w) const
    {
        uint64_t above = high_of_wide_product((uint64_t)w[1] << 32 | w[0], width);
        y[i] = real_of_int((int64_t)((uint64_t)low + above));
    }
};

int CUDA(randint)(ul_stream *s, void *y, int64_t low, int64_t high, int64_t n,
                  const ul_random_key *key)
{
    randint_draw f = {(real *)y, low, high > low ? (uint64_t)high - (uint64_t)low : 0};
    return draw_walk<2>(s, "randint", f, n, key);
}

#if UL_TYPE_FLOAT

/* ---- uniform: rounded down, so that high is never reached ---- */

/* The nearest, or the one before it: one step in the bits, away from 0 where x is negative. */
__device__ __forceinline__ real round_down(double x)
{
#if UL_TYPE_IS(f64)
    return x;
#else
    const uint32_t step = UL_TYPE_IS(bf16) ? 0x10000 : 1;
    uint32_t near = bits_of((float)x) & ~(step - 1);
    if ((double)float_of(near) > x) near = near >> 31 ? near + step : near - step;
#if UL_TYPE_IS(bf16)
    return (real)(near >> 16);
#else
    return float_of(near);
#endif
#endif
}

struct uniform_draw {
    real *y;
    double low, high, last; /* last: the largest number below high */
    __device__ void operator()(int64_t i, const uint32_t *w) const
    {
        double x = low + (high - low) * unit(w[0]);
        y[i] = round_down(x < high ? x : last);
    }
};

int CUDA(uniform)(ul_stream *s, void *y, double low, double high, int64_t n,
                  const ul_random_key *key)
{
    uniform_draw f = {(real *)y, low, high, high > low ? nextafter(high, low) : low};
    return draw_walk<1>(s, "uniform", f, n, key);
}

/* ---- normal: Box and Muller 1958, the cosine of each pair of words ---- */

struct normal_draw {
    real *y;
    double mean, std;
    __device__ void operator()(int64_t i, const uint32_t *w) const
    {
        /* The first word as a number in (0, 1]; the second as a turn. */
        double u = ((double)(int32_t)(w[0] ^ 0x80000000u) + 0x1.00000002p31) * 0x1p-32;
        double radius = sqrt(-2 * log(u));
        y[i] = store((acc)(mean + std * (radius * cos(w[1] * (6.283185307179586477 * 0x1p-32)))));
    }
};

int CUDA(normal)(ul_stream *s, void *y, double mean, double std, int64_t n,
                 const ul_random_key *key)
{
    return draw_walk<2>(s, "normal", normal_draw{(real *)y, mean, std}, n, key);
}

/* ---- dropout ---- */

struct dropout_draw {
    ul_grad y;
    const real *x;
    uint32_t dropped; /* unit(word) is below p where its 24 bits are below this */
    acc scale;
    __device__ void operator()(int64_t i, const uint32_t *w) const
    {
        give((real *)y.data + i, y.add, w[0] >> 8 >= dropped ? load(x[i]) * scale : 0);
    }
};

int CUDA(dropout)(ul_stream *s, ul_grad y, const void *x, double p, int64_t n,
                  const ul_random_key *key)
{
    if (!y.data) return 0;
    dropout_draw f = {y, (const real *)x, (uint32_t)ceil(p * 0x1p24), (acc)(1 / (1 - p))};
    return draw_walk<1>(s, "dropout", f, n, key);
}

#endif
