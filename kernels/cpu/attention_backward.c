/* attention_backward.c - flash attention, backward.
 *
 * With s = scale q k^T, p = softmax(s) = exp(s - lse), o = p v, summed over a row's keys:
 *     dv = p^T do      dp = do v^T      ds = p (dp - delta), delta = sum over D of do o
 *     dq = scale ds k      dk = scale ds^T q
 *
 * An item of work is a tile of keys of one kv head: it keeps its dk and dv and walks over the query
 * heads that read it and over the query tiles that see it, in order. What it owes to dq is added to
 * a sum in memory when its turn has come: each query tile takes its key tiles in rising order, so
 * that the result is the same whoever is faster. Items are handed out in that order too, so the one
 * that all others wait for is always running.
 */
#include <sched.h>
#include <stdatomic.h>

#include "attention.h"

enum { MAX_QUERIES = 64, MAX_KEYS = 128 };

typedef struct backward {
    ul_stream *stream;
    const ul_attention_args *args;
    ul_grad dq, dk, dv;
    const real *d_o, *o, *q, *k, *v;
    const acc *lse;
    acc *delta;            /* [B, H, Tq] */
    acc *dq_sum;           /* [B, Tq, H, D]; dq itself where that holds accumulators */
    _Atomic int64_t *turn; /* [B, H, q_tiles] the key tile that may add to dq_sum next */
    char *scratch;         /* where the pool's is too small */
    int64_t width, words;  /* head_dim in elements and in words, rounded up to whole vectors */
    int64_t queries, keys; /* of one tile */
    int64_t q_tiles, k_tiles;
    int64_t scratch_bytes;                  /* for each thread */
    int64_t turn_at, dq_sum_at, scratch_at; /* in `work`, which begins with delta */
} backward;

/* Scratch of one thread. */
typedef struct space {
    acc *k_turned, *v_turned;    /* [D in words, keys] */
    acc *k;                      /* [keys in words, width] */
    acc *dk, *dv;                /* [keys, width] */
    acc *q, *d_o;                /* [queries in words, width] */
    acc *q_rows, *d_o_rows, *dq; /* [queries, words]; [queries, width] */
    acc *p, *ds, *ds_rows;       /* [queries, keys]; [queries, keys in words] */
} space;

/* A tile of queries of one head against a tile of keys. */
typedef struct meeting {
    int64_t b, head, tile; /* of queries */
    int64_t first, rows;   /* queries */
    int64_t k0, from, to;  /* keys k0 + from to k0 + to */
    int whole;             /* every query sees all of them */
} meeting;

static int64_t scratch_elements(int64_t width, int64_t queries, int64_t keys)
{
    return 5 * keys * width + (PAIRS ? 5 : 3) * queries * width + (PAIRS ? 3 : 2) * queries * keys;
}

/* Cuts the call into tiles, which shrink until they fit the pool's scratch, and lays out `work`.
 * Returns the bytes of it.
 */
static int64_t plan(backward *w, ul_stream *s, const ul_attention_args *a)
{
    const int64_t element = sizeof(acc);
    w->stream = s;
    w->args = a;
    w->width = round_up(a->head_dim, VL);
    w->words = round_up(n_words(a->head_dim), VL);
    w->queries = MAX_QUERIES;
    w->keys = MAX_KEYS;
    while (w->keys > 16 && element * scratch_elements(w->width, w->queries, w->keys) > UL_SCRATCH)
        w->keys /= 2;
    while (w->queries > 16 &&
           element * scratch_elements(w->width, w->queries, w->keys) > UL_SCRATCH)
        w->queries /= 2;
    w->q_tiles = (a->q_tokens + w->queries - 1) / w->queries;
    w->k_tiles = (a->k_tokens + w->keys - 1) / w->keys;
    w->scratch_bytes = round_up(element * scratch_elements(w->width, w->queries, w->keys), 64);

    int64_t rows = a->batch * a->n_heads * a->q_tokens;
    int64_t turns = a->batch * a->n_heads * w->q_tiles * (int64_t)sizeof *w->turn;
    int64_t dq_sum = sizeof(real) != sizeof(acc) && !a->partial ? rows * a->head_dim * element : 0;
    w->turn_at = round_up(rows * element, 64);
    w->dq_sum_at = w->turn_at + round_up(turns, 64);
    w->scratch_at = w->dq_sum_at + round_up(dq_sum, 64);
    if (w->scratch_bytes <= UL_SCRATCH) return w->scratch_at;
    return w->scratch_at + ul_pool_threads(s) * w->scratch_bytes;
}

int64_t CPU(attention_backward_bytes)(ul_stream *s, const ul_attention_args *a)
{
    backward w;
    return plan(&w, s, a);
}

static space cut_scratch(const backward *w, int thread)
{
    space x;
    int64_t tile = w->keys * w->width, strip = w->queries * w->width;
    x.k_turned = w->scratch_bytes <= UL_SCRATCH ? ul_pool_scratch(w->stream, thread)
                                                : (acc *)(w->scratch + thread * w->scratch_bytes);
    x.v_turned = x.k_turned + tile;
    x.k = x.v_turned + tile;
    x.dk = x.k + tile;
    x.dv = x.dk + tile;
    x.q = x.dv + tile;
    x.d_o = x.q + strip;
    x.dq = x.d_o + strip;
    x.p = x.dq + strip;
    x.ds = x.p + w->queries * w->keys;
    acc *rest = x.ds + w->queries * w->keys;
    x.q_rows = PAIRS ? rest : x.q;
    x.d_o_rows = PAIRS ? rest + strip : x.d_o;
    x.ds_rows = PAIRS ? rest + 2 * strip : x.ds;
    return x;
}

/* ---- before: delta, empty sums, first turns ---- */

static void prepare_head(const backward *w, int64_t b, int64_t head, int64_t first, int64_t rows)
{
    const ul_attention_args *a = w->args;
    int64_t dim = a->head_dim, whole = dim / VL * VL;
    const real *o = w->o + b * a->o_stride[0] + first * a->o_stride[1] + head * a->o_stride[2];
    int64_t step = a->n_heads * dim, at = (b * a->q_tokens + first) * step + head * dim;
    acc *delta = w->delta + (b * a->n_heads + head) * a->q_tokens + first;
    for (int64_t i = 0; i < rows; i++, o += a->o_stride[1], at += step) {
        const real *d_o = w->d_o + at;
        vec sums = {0};
        for (int64_t d = 0; d < whole; d += VL) sums += v_load(o + d) * v_load(d_o + d);
        acc sum = v_sum(sums);
        for (int64_t d = whole; d < dim; d++) sum += load(o[d]) * load(d_o[d]);
        delta[i] = sum;
        if (w->dq_sum && !(w->dq.add && (void *)w->dq_sum == w->dq.data))
            memset(w->dq_sum + at, 0, (size_t)dim * sizeof(acc));
    }
}

static void prepare_item(void *arg, int64_t item, int thread)
{
    const backward *w = arg;
    const ul_attention_args *a = w->args;
    int64_t b = item / w->q_tiles, tile = item % w->q_tiles, first = tile * w->queries;
    int64_t rows = least(w->queries, a->q_tokens - first);
    int64_t key_tile = visible_keys(a, b, first).low / w->keys;
    (void)thread;
    for (int64_t head = 0; head < a->n_heads; head++) {
        prepare_head(w, b, head, first, rows);
        atomic_init(&w->turn[(b * a->n_heads + head) * w->q_tiles + tile], key_tile);
    }
}

/* ---- the products ---- */

/* What differentiate() knows of a query; one beyond the last sees nothing. The keys it sees count
 * from k0. Where all its scores are -inf, so is its lse: taken as +inf that makes its p 0, not NaN.
 */
typedef struct query {
    acc top, delta; /* lse in base 2 */
    acc_int low, high;
} query;

static query load_query(const backward *w, const meeting *m, int64_t i)
{
    if (i >= m->rows) return (query){.top = (acc)INFINITY};
    int64_t row = (m->b * w->args->n_heads + m->head) * w->args->q_tokens + m->first + i;
    acc lse = w->lse[row];
    query y = {.delta = w->delta[row], .high = (acc_int)w->keys};
    y.top = lse == -(acc)INFINITY ? (acc)INFINITY : lse * (acc)LOG2_OF_E;
    if (!m->whole) {
        key_range seen = visible_keys(w->args, m->b, m->first + i);
        y.low = (acc_int)least(most(seen.low - m->k0, 0), w->keys);
        y.high = (acc_int)least(most(seen.high - m->k0, 0), w->keys);
    }
    return y;
}

/* In: p = q k^T and ds = do v^T, columns [from, to) widened to whole vectors. Out: p and scale ds,
 * words along the queries, and ds_rows, words along the keys.
 */
TILE_INLINE void differentiate_rows(const backward *w, const space *x, const meeting *m, int64_t i,
                                    const query *row, const int masked)
{
    const acc scale = (acc)w->args->scale, in_base_2 = (acc)(w->args->scale * LOG2_OF_E);
    const int64_t keys = w->keys;
    acc *scores = x->p + i * keys, *dp = x->ds + i * keys;
    acc *p_out = x->p + i / WORD * keys, *ds_out = x->ds + i / WORD * keys;
    veci lanes;
    for (int n = 0; n < VL; n++) lanes[n] = n;
    for (int64_t j = m->from / VL * VL; j < m->to; j += VL) {
        vec p[WORD], ds[WORD];
        UNROLLED (n, WORD) {
            p[n] = v_exp2(v_load_acc(scores + n * keys + j) * in_base_2 - row[n].top);
            ds[n] = p[n] * scale * (v_load_acc(dp + n * keys + j) - row[n].delta);
            if (masked) {
                veci key = lanes + (acc_int)j, seen = (key >= row[n].low) & (key < row[n].high);
                p[n] = (vec)((veci)p[n] & seen);
                ds[n] = (vec)((veci)ds[n] & seen);
            }
#if PAIRS
            real *narrow = (real *)(x->ds_rows + (i + n) * keys / WORD) + j;
            _mm256_storeu_si256((__m256i *)narrow, (__m256i)_mm512_cvtneps_pbh((__m512)ds[n]));
#endif
        }
        v_store_acc(p_out + j, make_words(p));
        v_store_acc(ds_out + j, make_words(ds));
    }
}

static void differentiate(const backward *w, const space *x, const meeting *m)
{
    for (int64_t i = 0; i < m->rows; i += WORD) {
        query row[WORD];
        for (int n = 0; n < WORD; n++) row[n] = load_query(w, m, i + n);
        if (m->whole && i + WORD <= m->rows && m->to % WORD == 0)
            differentiate_rows(w, x, m, i, row, 0);
        else
            differentiate_rows(w, x, m, i, row, 1);
    }
}

/* Waits until all key tiles before this one have added to the query tile's dq. */
static void await_turn(const backward *w, const meeting *m)
{
    _Atomic int64_t *turn = &w->turn[(m->b * w->args->n_heads + m->head) * w->q_tiles + m->tile];
    int64_t mine = m->k0 / w->keys;
    for (int spins = 0; atomic_load_explicit(turn, memory_order_acquire) < mine; spins++)
        if (spins < 1000)
            __builtin_ia32_pause();
        else
            sched_yield();
}

static void pass_turn(const backward *w, const meeting *m)
{
    _Atomic int64_t *turn = &w->turn[(m->b * w->args->n_heads + m->head) * w->q_tiles + m->tile];
    atomic_store_explicit(turn, m->k0 / w->keys + 1, memory_order_release);
}

static void add_dq(const backward *w, const space *x, const meeting *m)
{
    const ul_attention_args *a = w->args;
    int64_t dim = a->head_dim, whole = dim / VL * VL, step = a->n_heads * dim;
    acc *sum = w->dq_sum + (m->b * a->q_tokens + m->first) * step + m->head * dim;
    const acc *dq = x->dq;
    for (int64_t i = 0; i < m->rows; i++, sum += step, dq += w->width) {
        for (int64_t d = 0; d < whole; d += VL) {
            __builtin_prefetch(sum + AHEAD * step + d, 1);
            v_store_acc(sum + d, v_load_acc(sum + d) + v_load_acc(dq + d));
        }
        for (int64_t d = whole; d < dim; d++) sum[d] += dq[d];
    }
}

static void multiply(const backward *w, const space *x, const meeting *m)
{
    const ul_attention_args *a = w->args;
    int64_t step = a->n_heads * a->head_dim, n = m->to - m->from;
    int64_t start = m->from / VL * VL, columns = round_up(m->to, VL) - start;
    const real *q = w->q + m->b * a->q_stride[0] + m->first * a->q_stride[1];
    const real *d_o = w->d_o + (m->b * a->q_tokens + m->first) * step;
    q += m->head * a->q_stride[2];
    d_o += m->head * a->head_dim;
    load_stacked(x->q, q, a->q_stride[1], m->rows, a->head_dim, w->width);
    load_stacked(x->d_o, d_o, step, m->rows, a->head_dim, w->width);
    if (PAIRS) load_rows(x->q_rows, q, a->q_stride[1], m->rows, a->head_dim, w->words);
    if (PAIRS) load_rows(x->d_o_rows, d_o, step, m->rows, a->head_dim, w->words);

    product_nn(m->rows, columns, n_words(a->head_dim), x->q_rows, w->words, x->k_turned + start,
               w->keys, x->p + start, w->keys, 0);
    product_nn(m->rows, columns, n_words(a->head_dim), x->d_o_rows, w->words, x->v_turned + start,
               w->keys, x->ds + start, w->keys, 0);
    differentiate(w, x, m);
    const acc *p = x->p + m->from, *ds = x->ds + m->from, *k = x->k + m->from / WORD * w->width;
    acc *dk = x->dk + m->from * w->width, *dv = x->dv + m->from * w->width;
    int64_t rows = n_words(m->rows);
    if (w->dv.data) product_tn(n, w->width, rows, p, w->keys, x->d_o, w->width, dv, w->width, 1);
    if (w->dk.data) product_tn(n, w->width, rows, ds, w->keys, x->q, w->width, dk, w->width, 1);
    if (w->dq_sum)
        product_nn(m->rows, w->width, n_words(n), x->ds_rows + m->from / WORD, w->keys / WORD, k,
                   w->width, x->dq, w->width, 0);
}

static void meet(const backward *w, const space *x, int64_t b, int64_t head, int64_t tile,
                 int64_t k0)
{
    const ul_attention_args *a = w->args;
    meeting m = {.b = b, .head = head, .tile = tile, .first = tile * w->queries, .k0 = k0};
    m.rows = least(w->queries, a->q_tokens - m.first);
    key_range low = visible_keys(a, b, m.first), high = visible_keys(a, b, m.first + m.rows - 1);
    m.from = most(low.low - k0, 0) / WORD * WORD;
    m.to = least(high.high, least(k0 + w->keys, a->k_tokens)) - k0;
    m.whole = high.low - k0 <= m.from && low.high - k0 >= m.to;
    int some = m.from < m.to;
    if (some) multiply(w, x, &m);
    if (!w->dq_sum) return;
    await_turn(w, &m);
    if (some) add_dq(w, x, &m);
    pass_turn(w, &m);
}

/* ---- the walk ---- */

/* The first query tile that sees keys from `key` on (or, where `beyond`, none before `key`). */
static int64_t find_tile(const backward *w, int64_t b, int64_t key, int beyond)
{
    const ul_attention_args *a = w->args;
    int64_t low = 0, high = w->q_tiles;
    while (low < high) {
        int64_t middle = low + (high - low) / 2, first = middle * w->queries;
        int64_t last = least(first + w->queries, a->q_tokens) - 1;
        int found =
            beyond ? visible_keys(a, b, first).low >= key : visible_keys(a, b, last).high > key;
        if (found)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The n rows of dk or dv that a key tile has made, to where they begin in grad. */
static void give_tile(const backward *w, ul_grad grad, const acc *rows, int64_t at, int64_t n)
{
    int64_t dim = w->args->head_dim, step = w->args->n_kv_heads * dim;
    if (grad.data && w->args->partial)
        give_sums((acc *)grad.data + at, step, grad.add, rows, w->width, NULL, n, dim);
    else if (grad.data)
        give_rows((real *)grad.data + at, step, grad.add, rows, w->width, NULL, n, dim);
}

/* Items go key tile by key tile over all heads: neighbours rarely wait for each other. */
static void backward_item(void *arg, int64_t item, int thread)
{
    const backward *w = arg;
    const ul_attention_args *a = w->args;
    int64_t kv = item % a->n_kv_heads, b = item / a->n_kv_heads % a->batch;
    int64_t k0 = item / (a->n_kv_heads * a->batch) * w->keys;
    int64_t n = least(w->keys, a->k_tokens - k0);
    const real *k = w->k + b * a->k_stride[0] + k0 * a->k_stride[1] + kv * a->k_stride[2];
    const real *v = w->v + b * a->v_stride[0] + k0 * a->v_stride[1] + kv * a->v_stride[2];
    space x = cut_scratch(w, thread);
    load_turned(x.k_turned, k, a->k_stride[1], n, a->head_dim, w->keys);
    load_turned(x.v_turned, v, a->v_stride[1], n, a->head_dim, w->keys);
    load_stacked(x.k, k, a->k_stride[1], n, a->head_dim, w->width);
    memset(x.dk, 0, (size_t)(n * w->width) * sizeof(acc));
    memset(x.dv, 0, (size_t)(n * w->width) * sizeof(acc));

    int64_t first = find_tile(w, b, k0, 0), end = find_tile(w, b, k0 + n, 1);
    for (int64_t head = 0; head < a->n_heads; head++)
        for (int64_t tile = first; a->kv_head[head] == kv && tile < end; tile++)
            meet(w, &x, b, head, tile, k0);
    int64_t step = a->n_kv_heads * a->head_dim;
    int64_t at = (b * a->k_tokens + k0) * step + kv * a->head_dim;
    give_tile(w, w->dk, x.dk, at, n);
    give_tile(w, w->dv, x.dv, at, n);
}

static void finish_item(void *arg, int64_t item, int thread)
{
    const backward *w = arg;
    const ul_attention_args *a = w->args;
    int64_t step = a->n_heads * a->head_dim, first = item * w->queries;
    int64_t rows = least(w->queries, a->batch * a->q_tokens - first);
    (void)thread;
    give_rows((real *)w->dq.data + first * step, step, w->dq.add, w->dq_sum + first * step, step,
              NULL, rows, step);
}

int CPU(attention_backward)(ul_stream *s, ul_grad dq, ul_grad dk, ul_grad dv, const void *d_o,
                            const void *o, const void *lse, const void *q, const void *k,
                            const void *v, const ul_attention_args *a, void *work)
{
    backward w = {.dq = dq, .dk = dk, .dv = dv, .d_o = d_o, .o = o};
    w.lse = lse;
    w.q = q;
    w.k = k;
    w.v = v;
    plan(&w, s, a);
    w.delta = work;
    w.turn = (_Atomic int64_t *)((char *)work + w.turn_at);
    w.dq_sum = dq.data;
    if (sizeof(real) != sizeof(acc) && dq.data && !a->partial)
        w.dq_sum = (acc *)((char *)work + w.dq_sum_at);
    w.scratch = (char *)work + w.scratch_at;
    ul_parallel(s, a->batch * w.q_tiles, prepare_item, &w);
    ul_parallel(s, w.k_tiles * a->batch * a->n_kv_heads, backward_item, &w);
    if (w.dq_sum && (void *)w.dq_sum != dq.data)
        ul_parallel(s, (a->batch * a->q_tokens + w.queries - 1) / w.queries, finish_item, &w);
    return 0;
}
