/* random.c - Philox 4x32-10 (Salmon et al. 2011) and what is drawn from it.
 *
 * The words of a sequence are numbered: word w is the (w mod 4)th of block w / 4, whose counter is
 * {block, purpose}, each as two words, low first, and whose key is the seed. Element i of a call is
 * number g = first + i. uniform and dropout use word g; normal and randint words 2 g and 2 g + 1.
 */
#include "cast.h"
#include "loop.h"

enum { LANES = 8, WORDS = 4 * LANES };

/* One 32-bit word to a lane, in the low half: the other half is room for products. */
typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

/* LANES blocks from `block` on, one to a lane; their words in order. */
static inline void philox(uint32_t *words, const ul_random_key *key, uint64_t block)
{
    const uint64_t low = UINT32_MAX;
    lanes at = block + (lanes){0, 1, 2, 3, 4, 5, 6, 7}, zero = {0};
    lanes a = at & low, b = at >> 32, c = zero + (key->purpose & low),
          d = zero + (key->purpose >> 32);
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    for (int round = 0; round < 10; round++) {
        lanes p = a * UINT64_C(0xD2511F53), q = c * UINT64_C(0xCD9E8D57);
        a = (q >> 32) ^ b ^ k0;
        b = q & low;
        c = (p >> 32) ^ d ^ k1;
        d = p & low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    /* Two words to a lane, then the lanes of the two halves in turn. */
    lanes front = a | b << 32, back = c | d << 32;
    lanes first = __builtin_shufflevector(front, back, 0, 8, 1, 9, 2, 10, 3, 11);
    lanes second = __builtin_shufflevector(front, back, 4, 12, 5, 13, 6, 14, 7, 15);
    memcpy(words, &first, sizeof first);
    memcpy(words + WORDS / 2, &second, sizeof second);
}

/* Calls draw for elements [begin, end), as many at a time as one batch of blocks has words for;
 * `words` are those of the first. per_element is 1 or 2.
 */
typedef void drawer(const void *call, int64_t at, int n, const uint32_t *words);

static inline __attribute__((always_inline)) void draw_piece(const ul_random_key *key,
                                                             int per_element, int64_t begin,
                                                             int64_t end, drawer *draw,
                                                             const void *call)
{
    uint32_t words[WORDS];
    while (begin < end) {
        uint64_t word = (key->first + (uint64_t)begin) * (uint64_t)per_element;
        int skipped = (int)(word % 4);
        int n = (int)smaller((WORDS - skipped) / per_element, end - begin);
        philox(words, key, word / 4);
        draw(call, begin, n, words + skipped);
        begin += n;
    }
}

/* In [0, 1), 24 bits. */
static inline double unit(uint32_t word) { return (double)(int32_t)(word >> 8) * 0x1p-24; }

static inline uint64_t two_words(const uint32_t *words)
{
    return (uint64_t)words[1] << 32 | words[0];
}

/* ---- randint: high 64 bits of a 64-bit number times the width ---- */

typedef struct randint_call {
    real *y;
    int64_t low;
    uint64_t width;
    ul_random_key key;
} randint_call;

static void draw_randint(const void *call, int64_t at, int n, const uint32_t *words)
{
    const randint_call *r = call;
    for (int i = 0; i < n; i++) {
        __extension__ typedef unsigned __int128 wide;
        uint64_t above = (uint64_t)(((wide)two_words(words + 2 * i) * r->width) >> 64);
        r->y[at + i] = real_of_int((int64_t)((uint64_t)r->low + above));
    }
}

static void randint_piece(const void *arg, int64_t begin, int64_t end)
{
    const randint_call *r = arg;
    draw_piece(&r->key, 2, begin, end, draw_randint, r);
}

int CPU(randint)(ul_stream *s, void *y, int64_t low, int64_t high, int64_t n,
                 const ul_random_key *key)
{
    randint_call r = {y, low, high > low ? (uint64_t)high - (uint64_t)low : 0, *key};
    flat_walk(s, n, randint_piece, &r);
    return 0;
}

#if UL_TYPE_FLOAT

/* ---- uniform: rounded down, so that high is never reached ---- */

typedef struct uniform_call {
    real *y;
    double low, high, last; /* last: the largest number below high */
    ul_random_key key;
} uniform_call;

/* The nearest, or the one before it: one step in the bits, away from 0 where x is negative. */
static inline real round_down(double x)
{
#if UL_TYPE_IS(f64)
    return x;
#else
    union {
        float f;
        uint32_t u;
    } near = {.f = (float)x}, down;
#if UL_TYPE_IS(bf16)
    const uint32_t step = 0x10000;
    near.u &= ~(step - 1);
#else
    const uint32_t step = 1;
#endif
    down.u = near.u >> 31 ? near.u + step : near.u - step;
    near.u = (double)near.f > x ? down.u : near.u;
#if UL_TYPE_IS(bf16)
    return (real)(near.u >> 16);
#else
    return near.f;
#endif
#endif
}

static void draw_uniform(const void *call, int64_t at, int n, const uint32_t *words)
{
    const uniform_call *u = call;
    real *y = u->y + at;
    double low = u->low, high = u->high, last = u->last, width = high - low;
    INDEPENDENT for (int i = 0; i < n; i++)
    {
        double x = low + width * unit(words[i]);
        y[i] = round_down(x < high ? x : last);
    }
}

static void uniform_piece(const void *arg, int64_t begin, int64_t end)
{
    const uniform_call *u = arg;
    draw_piece(&u->key, 1, begin, end, draw_uniform, u);
}

int CPU(uniform)(ul_stream *s, void *y, double low, double high, int64_t n,
                 const ul_random_key *key)
{
    uniform_call u = {y, low, high, high > low ? nextafter(high, low) : low, *key};
    flat_walk(s, n, uniform_piece, &u);
    return 0;
}

/* ---- normal: Box and Muller 1958, the cosine of each pair of words ---- */

typedef struct normal_call {
    real *y;
    double mean, std;
    ul_random_key key;
} normal_call;

/* log x of a positive x: x = 2^e m, m in [sqrt(1/2), sqrt(2)), and log m = 2 atanh s, s = (m - 1) /
 * (m + 1), by its series in s^2 < 0.03. (The C library's would not vectorise.)
 */
static inline double log_of(double x)
{
    union {
        double f;
        uint64_t u;
    } v = {.f = x};
    const uint64_t sqrt_half = UINT64_C(0x3fe6a09e667f3bcd), exponent = UINT64_C(0xfff) << 52;
    uint64_t above = v.u - sqrt_half;
    double e = (double)(int32_t)((int64_t)above >> 52);
    v.u -= above & exponent;
    double s = (v.f - 1) / (v.f + 1), z = s * s, p = 1.0 / 21;
    p = ((p * z + 1.0 / 19) * z + 1.0 / 17) * z + 1.0 / 15;
    p = ((p * z + 1.0 / 13) * z + 1.0 / 11) * z + 1.0 / 9;
    p = ((p * z + 1.0 / 7) * z + 1.0 / 5) * z + 1.0 / 3;
    return e * 0.69314718055994530942 + 2 * (s + s * z * p);
}

/* cos(2 pi v), v = word / 2^32 of a turn: whole quarters q, and a rest a within an eighth, where
 * Taylor's series are short.
 */
static inline double cos_of_turn(uint32_t word)
{
    uint32_t q = (word + 0x20000000u) >> 30;
    double a = (double)(int32_t)(word - (q << 30)) * (6.283185307179586477 * 0x1p-32), z = a * a;
    double c = 1.0 / 20922789888000, s = -1.0 / 1307674368000;
    c = ((c * z - 1.0 / 87178291200) * z + 1.0 / 479001600) * z - 1.0 / 3628800;
    c = ((c * z + 1.0 / 40320) * z - 1.0 / 720) * z + 1.0 / 24;
    c = (c * z - 0.5) * z + 1;
    s = ((s * z + 1.0 / 6227020800) * z - 1.0 / 39916800) * z + 1.0 / 362880;
    s = ((s * z - 1.0 / 5040) * z + 1.0 / 120) * z - 1.0 / 6;
    s = a + a * z * s;
    double y = q & 1 ? s : c;
    return (q + 1) & 2 ? -y : y;
}

static void draw_normal(const void *call, int64_t at, int n, const uint32_t *words)
{
    const normal_call *c = call;
    real *y = c->y + at;
    double mean = c->mean, std = c->std;
    INDEPENDENT for (int i = 0; i < n; i++)
    {
        /* The first word as a number in (0, 1]. */
        double u = ((double)(int32_t)(words[2 * i] ^ 0x80000000u) + 0x1.00000002p31) * 0x1p-32;
        double radius = sqrt(-2 * log_of(u));
        y[i] = store((acc)(mean + std * (radius * cos_of_turn(words[2 * i + 1]))));
    }
}

static void normal_piece(const void *arg, int64_t begin, int64_t end)
{
    const normal_call *c = arg;
    draw_piece(&c->key, 2, begin, end, draw_normal, c);
}

int CPU(normal)(ul_stream *s, void *y, double mean, double std, int64_t n, const ul_random_key *key)
{
    normal_call c = {y, mean, std, *key};
    flat_walk(s, n, normal_piece, &c);
    return 0;
}

/* ---- dropout ---- */

typedef struct dropout_call {
    ul_grad y;
    const real *x;
    double p;
    ul_random_key key;
} dropout_call;

static void draw_dropout(const void *call, int64_t at, int n, const uint32_t *words)
{
    const dropout_call *d = call;
    real *y = (real *)d->y.data + at;
    const real *x = d->x + at;
    acc scale = (acc)(1 / (1 - d->p));
    double p = d->p;
    int add = d->y.add;
    INDEPENDENT for (int i = 0; i < n; i++)
    {
        acc kept = load(x[i]) * scale;
        give(y + i, add, unit(words[i]) >= p ? kept : 0);
    }
}

static void dropout_piece(const void *arg, int64_t begin, int64_t end)
{
    const dropout_call *d = arg;
    draw_piece(&d->key, 1, begin, end, draw_dropout, d);
}

int CPU(dropout)(ul_stream *s, ul_grad y, const void *x, double p, int64_t n,
                 const ul_random_key *key)
{
    dropout_call d = {y, x, p, *key};
    if (y.data) flat_walk(s, n, dropout_piece, &d);
    return 0;
}

#endif
