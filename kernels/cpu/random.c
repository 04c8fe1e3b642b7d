/* random.c - Philox 4x32-10 (Salmon et al. 2011) and what is drawn from it.
 *
 * The words of a sequence are numbered: word w is the (w mod 4)th of block w / 4, whose counter is
 * {block, purpose}, each as two words, low first, and whose key is the seed. Element i of a call is
 * number g = first + i. uniform and dropout use word g; normal and randint words 2 g and 2 g + 1.
 */
#include "cast.h"
#include "loop.h"

enum { LANES = 16, WORDS = 4 * LANES };

/* LANES blocks from `block` on, one to a lane so that the loops vectorise; words in order. */
static void philox(uint32_t *words, const ul_random_key *key, uint64_t block)
{
    uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
    for (int i = 0; i < LANES; i++) {
        a[i] = (uint32_t)(block + (uint64_t)i);
        b[i] = (uint32_t)((block + (uint64_t)i) >> 32);
        c[i] = (uint32_t)key->purpose;
        d[i] = (uint32_t)(key->purpose >> 32);
    }
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < LANES; i++) {
            uint64_t p = (uint64_t)a[i] * 0xD2511F53u, q = (uint64_t)c[i] * 0xCD9E8D57u;
            a[i] = (uint32_t)(q >> 32) ^ b[i] ^ k0;
            b[i] = (uint32_t)q;
            c[i] = (uint32_t)(p >> 32) ^ d[i] ^ k1;
            d[i] = (uint32_t)p;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < LANES; i++) {
        words[4 * i] = a[i];
        words[4 * i + 1] = b[i];
        words[4 * i + 2] = c[i];
        words[4 * i + 3] = d[i];
    }
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
static inline double unit(uint32_t word) { return (double)(word >> 8) * 0x1p-24; }

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

static inline real round_down(double x)
{
    float near = (float)x;
#if UL_TYPE_IS(f32)
    return (double)near > x ? nextafterf(near, -INFINITY) : near;
#elif UL_TYPE_IS(bf16)
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    real towards_zero = (real)(bits >> 16);
    if ((double)load(towards_zero) <= x) return towards_zero;
    return (real)(towards_zero & 0x8000 ? towards_zero + 1 : towards_zero - 1);
#else
    return (void)near, x;
#endif
}

static void draw_uniform(const void *call, int64_t at, int n, const uint32_t *words)
{
    const uniform_call *u = call;
    for (int i = 0; i < n; i++) {
        double x = u->low + (u->high - u->low) * unit(words[i]);
        u->y[at + i] = round_down(x < u->high ? x : u->last);
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

static void draw_normal(const void *call, int64_t at, int n, const uint32_t *words)
{
    const normal_call *c = call;
    const double two_pi = 6.283185307179586477;
    for (int i = 0; i < n; i++) {
        double u = ((double)words[2 * i] + 1) * 0x1p-32, v = (double)words[2 * i + 1] * 0x1p-32;
        c->y[at + i] = store((acc)(c->mean + c->std * (sqrt(-2 * log(u)) * cos(two_pi * v))));
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
