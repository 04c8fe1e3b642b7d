/* attention.c - flash attention, forward: tiles of scores, never the whole matrix.
 *
 * Scores are kept transposed, a row to a key and a lane to a query: the maximum and the sum of the
 * softmax then run down the lanes, with nothing to reduce across a vector, and K and V are read as
 * they lie. Only the queries are transposed, once for all the keys they see.
 *
 * One item of work is a strip (64 queries) of up to STRIPS query heads that share a kv head, or a
 * few strips of one head; K and V are loaded (widened, made contiguous) once for all of them. A row
 * of the result depends on the cut of the work only through where its key tiles begin, and that
 * follows from the shapes: the same for every number of threads.
 */
#include "attention.h"

enum { STRIPS = 4, MAX_QUERIES = 64, MAX_KEYS = 128, ENOUGH_ITEMS = 64 };

typedef struct forward {
    ul_stream *stream;
    const ul_attention_args *args;
    void *o; /* real, or acc where partial */
    acc *lse;
    const real *q, *k, *v;
    char *work;
    int64_t width, words;  /* head_dim in elements and in words, rounded up to whole vectors */
    int64_t queries, keys; /* of one tile */
    int64_t scratch;       /* bytes for each thread */
    int64_t n_runs;        /* of query heads, for each batch row */
    int64_t tiles, blocks; /* query tiles of an item, items along the queries */
    acc scale;             /* of scores, to base 2 */
} forward;

/* The queries [first, first + rows) of one head, a lane to each; lanes beyond them idle. */
typedef struct strip {
    int64_t head, first, rows, lanes;
    acc *q;              /* [D in words, lanes] */
    acc *o;              /* [rows, width] */
    acc *top, *sum;      /* [lanes] running maximum (base 2) and sum */
    key_range low, high; /* what the first and the last query see */
} strip;

/* Scratch of one thread. */
typedef struct space {
    acc *k;      /* [keys, words] */
    acc *v;      /* [keys in words, width] */
    acc *scores; /* [keys, lanes] */
    acc *factor; /* [lanes] by which the sums so far are to be multiplied */
    acc *strips; /* STRIPS times q, o, top, sum */
} space;

static int64_t scratch_bytes(int64_t width, int64_t queries, int64_t keys)
{
    int64_t strips = STRIPS * (2 * width + 2) * queries;
    return (2 * keys * width + (keys + 1) * queries + strips) * (int64_t)sizeof(acc);
}

/* Tiles shrink until they fit the pool's scratch; a head_dim of many thousands gets its own. */
static void choose_tiles(forward *f)
{
    f->width = round_up(f->args->head_dim, VL);
    f->words = round_up(n_words(f->args->head_dim), VL);
    f->queries = MAX_QUERIES;
    f->keys = MAX_KEYS;
    while (f->keys > 16 && scratch_bytes(f->width, f->queries, f->keys) > UL_SCRATCH) f->keys /= 2;
    while (f->queries > 16 && scratch_bytes(f->width, f->queries, f->keys) > UL_SCRATCH)
        f->queries /= 2;
    f->scratch = round_up(scratch_bytes(f->width, f->queries, f->keys), 64);
}

static char *scratch_of(const forward *f, int thread)
{
    if (f->scratch <= UL_SCRATCH) return ul_pool_scratch(f->stream, thread);
    return f->work + thread * f->scratch;
}

static space cut_scratch(const forward *f, int thread)
{
    space x;
    x.k = (acc *)scratch_of(f, thread);
    x.v = x.k + f->keys * f->width;
    x.scores = x.v + f->keys * f->width;
    x.factor = x.scores + f->keys * f->queries;
    x.strips = x.factor + f->queries;
    return x;
}

/* How many query heads from `head` on read the same kv head, at most STRIPS. */
static int64_t run_length(const ul_attention_args *a, int64_t head)
{
    int64_t n = 1;
    while (n < STRIPS && head + n < a->n_heads && a->kv_head[head + n] == a->kv_head[head]) n++;
    return n;
}

static int64_t run_start(const ul_attention_args *a, int64_t run)
{
    int64_t head = 0;
    for (; run > 0; run--) head += run_length(a, head);
    return head;
}

/* Several strips of one head share K and V where few heads do, if enough items are left. */
static void cut_work(forward *f)
{
    const ul_attention_args *a = f->args;
    int64_t longest = 1;
    f->n_runs = 0;
    for (int64_t head = 0; head < a->n_heads; f->n_runs++) {
        int64_t n = run_length(a, head);
        longest = most(longest, n);
        head += n;
    }
    int64_t tiles = (a->q_tokens + f->queries - 1) / f->queries, rows = a->batch * f->n_runs;
    f->tiles = STRIPS / longest;
    while (f->tiles > 1 && rows * tiles < ENOUGH_ITEMS * f->tiles) f->tiles--;
    f->blocks = (tiles + f->tiles - 1) / f->tiles;
}

/* Where the call's o and lse of a strip begin. */
static int64_t o_at(const forward *f, const strip *s, int64_t b)
{
    const int64_t *stride = f->args->o_stride;
    return b * stride[0] + s->first * stride[1] + s->head * stride[2];
}

static acc *lse_at(const forward *f, const strip *s, int64_t b)
{
    return f->lse + (b * f->args->n_heads + s->head) * f->args->q_tokens + s->first;
}

/* Goes on from what other keys have made of o and lse: as if they were one key with that score. */
static void resume_strip(const forward *f, strip *s, int64_t b)
{
    const ul_attention_args *a = f->args;
    const acc *o = (const acc *)f->o + o_at(f, s, b), *lse = lse_at(f, s, b);
    for (int64_t i = 0; i < s->rows; i++) {
        if (lse[i] == -(acc)INFINITY) continue;
        s->top[i] = lse[i] * (acc)LOG2_OF_E;
        s->sum[i] = 1;
        memcpy(s->o + i * f->width, o + i * a->o_stride[1], (size_t)a->head_dim * sizeof(acc));
    }
}

static void begin_strip(const forward *f, strip *s, acc *at, int64_t b, int64_t head, int64_t first)
{
    const ul_attention_args *a = f->args;
    s->head = head;
    s->first = first;
    s->rows = least(f->queries, a->q_tokens - first);
    s->lanes = round_up(s->rows, VL);
    s->o = at;
    s->q = s->o + f->queries * f->width;
    s->top = s->q + f->queries * f->width;
    s->sum = s->top + f->queries;
    s->low = visible_keys(a, b, first);
    s->high = visible_keys(a, b, first + s->rows - 1);

    const real *q = f->q + b * a->q_stride[0] + first * a->q_stride[1] + head * a->q_stride[2];
    load_turned(s->q, q, a->q_stride[1], s->rows, a->head_dim, s->lanes);
    memset(s->o, 0, (size_t)(s->rows * f->width) * sizeof(acc));
    for (int64_t i = 0; i < s->lanes; i++) {
        s->top[i] = -(acc)INFINITY;
        s->sum[i] = 0;
    }
    if (a->partial) resume_strip(f, s, b);
}

/* Scores that scale to -inf where the query of the lane does not see the key: the rows of scores
 * are the keys from `from` on.
 */
static void hide(const forward *f, const strip *s, int64_t b, int64_t from, int64_t n, acc *scores)
{
    veci low[MAX_QUERIES / VL] = {{0}}, high[MAX_QUERIES / VL] = {{0}};
    int64_t all_from = 0, all_to = n; /* keys that every query sees */
    for (int64_t i = 0; i < s->rows; i++) {
        key_range seen = visible_keys(f->args, b, s->first + i);
        int64_t l = least(most(seen.low - from, 0), n), h = least(most(seen.high - from, 0), n);
        low[i / VL][i % VL] = (acc_int)l;
        high[i / VL][i % VL] = (acc_int)h;
        all_from = most(all_from, l);
        all_to = least(all_to, h);
    }
    const veci hidden = (veci)v_splat(f->scale < 0 ? (acc)INFINITY : -(acc)INFINITY);
    for (int64_t j = 0; j < n; j++) {
        if (j == all_from && all_to > j) j = all_to;
        if (j == n) break;
        for (int64_t i = 0; i < s->lanes / VL; i++) {
            acc *at = scores + j * s->lanes + i * VL;
            veci seen = (low[i] <= (acc_int)j) & (high[i] > (acc_int)j);
            v_store_acc(at, (vec)(((veci)v_load_acc(at) & seen) | (hidden & ~seen)));
        }
    }
}

/* Scores become 2^(scale score - maximum), as words, in `vectors` columns of lanes; top and sum are
 * brought up to date. Returns whether a maximum moved, and in factor what that makes of the sums
 * before.
 */
TILE_INLINE int soften(acc *scores, int64_t lanes, int64_t n, acc scale, const int vectors,
                       acc *top, acc *sum, acc *factor)
{
    vec high[4], base[4], total[4];
    veci moved = {0};
    UNROLLED (i, vectors) high[i] = v_load_acc(top + i * VL);
    for (int64_t j = 0; j < n; j++) {
        const acc *row = scores + j * lanes;
        UNROLLED (i, vectors) {
            high[i] = v_max(v_load_acc(row + i * VL) * scale, high[i]);
        }
    }
    UNROLLED (i, vectors) {
        vec before = v_load_acc(top + i * VL);
        base[i] = (vec)((veci)high[i] & (high[i] != v_splat(-(acc)INFINITY)));
        moved |= high[i] != before;
        v_store_acc(top + i * VL, high[i]);
        v_store_acc(factor + i * VL, v_exp2(before - base[i]));
        total[i] = (vec){0};
    }
    for (int64_t j = 0; j < n; j += WORD) {
        const acc *row = scores + j * lanes;
        UNROLLED (i, vectors) {
            vec p[WORD] = {v_exp2(v_load_acc(row + i * VL) * scale - base[i])};
            total[i] += p[0];
            for (int w = 1; w < WORD && j + w < n; w++) {
                p[w] = v_exp2(v_load_acc(row + w * lanes + i * VL) * scale - base[i]);
                total[i] += p[w];
            }
            v_store_acc(scores + j / WORD * lanes + i * VL, make_words(p));
        }
    }
    acc_int any = 0;
    UNROLLED (i, vectors) {
        acc *at = sum + i * VL;
        v_store_acc(at, v_load_acc(at) * v_load_acc(factor + i * VL) + total[i]);
    }
    for (int i = 0; i < VL; i++) any |= moved[i];
    return any != 0;
}

static int soften_all(const strip *s, int64_t n, acc scale, acc *scores, acc *factor)
{
    int moved = 0;
    int64_t i = 0;
    for (; i + 4 * VL <= s->lanes; i += 4 * VL)
        moved |= soften(scores + i, s->lanes, n, scale, 4, s->top + i, s->sum + i, factor + i);
    for (; i < s->lanes; i += VL)
        moved |= soften(scores + i, s->lanes, n, scale, 1, s->top + i, s->sum + i, factor + i);
    return moved;
}

/* One strip against the keys [k0, k1), which x holds. */
static void attend(const forward *f, const space *x, strip *s, int64_t b, int64_t k0, int64_t k1)
{
    int64_t from = k0 + most(s->low.low - k0, 0) / WORD * WORD, to = least(k1, s->high.high);
    int64_t n = to - from;
    if (n <= 0) return;
    const acc *k = x->k + (from - k0) * f->words, *v = x->v + (from - k0) / WORD * f->width;
    product_nn(n, s->lanes, n_words(f->args->head_dim), k, f->words, s->q, s->lanes, x->scores,
               s->lanes, 0);
    if (s->high.low > from || s->low.high < to) hide(f, s, b, from, n, x->scores);
    if (soften_all(s, n, f->scale, x->scores, x->factor))
        for (int64_t i = 0; i < s->rows; i++)
            if (x->factor[i] != 1)
                for (int64_t d = 0; d < f->width; d += VL) {
                    acc *at = s->o + i * f->width + d;
                    v_store_acc(at, v_load_acc(at) * x->factor[i]);
                }
    product_tn(s->rows, f->width, n_words(n), x->scores, s->lanes, v, f->width, s->o, f->width, 1);
}

static void end_strip(const forward *f, const strip *s, int64_t b)
{
    const ul_attention_args *a = f->args;
    int64_t at = o_at(f, s, b);
    acc *lse = lse_at(f, s, b);
    for (int64_t i = 0; i < s->rows; i++) {
        lse[i] = s->top[i] * (acc)LOG_OF_2 + (acc)log(s->sum[i]);
        s->sum[i] = s->sum[i] == 0 ? 0 : 1 / s->sum[i];
    }
    if (a->partial)
        give_sums((acc *)f->o + at, a->o_stride[1], 0, s->o, f->width, s->sum, s->rows,
                  a->head_dim);
    else
        give_rows((real *)f->o + at, a->o_stride[1], 0, s->o, f->width, s->sum, s->rows,
                  a->head_dim);
}

/* Items of the last queries come first: with a causal mask they are the longest. */
static void forward_item(void *arg, int64_t item, int thread)
{
    const forward *f = arg;
    const ul_attention_args *a = f->args;
    int64_t b = item / f->n_runs % a->batch, block = f->blocks - 1 - item / (f->n_runs * a->batch);
    int64_t head = run_start(a, item % f->n_runs), n_heads = run_length(a, head), n = 0;
    int64_t first = block * f->tiles * f->queries;
    int64_t last = least(first + f->tiles * f->queries, a->q_tokens) - 1;
    int64_t k0 = visible_keys(a, b, first).low, end = visible_keys(a, b, last).high;
    if (a->partial && k0 >= end) return;
    space x = cut_scratch(f, thread);
    strip strips[STRIPS];
    for (int64_t h = 0; h < n_heads; h++)
        for (int64_t i = first; i <= last; i += f->queries, n++)
            begin_strip(f, &strips[n], x.strips + n * (2 * f->width + 2) * f->queries, b, head + h,
                        i);

    const real *k = f->k + b * a->k_stride[0] + a->kv_head[head] * a->k_stride[2];
    const real *v = f->v + b * a->v_stride[0] + a->kv_head[head] * a->v_stride[2];
    for (; k0 < end; k0 += f->keys) {
        int64_t k1 = least(k0 + f->keys, end);
        load_rows(x.k, k + k0 * a->k_stride[1], a->k_stride[1], k1 - k0, a->head_dim, f->words);
        load_stacked(x.v, v + k0 * a->v_stride[1], a->v_stride[1], k1 - k0, a->head_dim, f->width);
        for (int64_t i = 0; i < n; i++) attend(f, &x, &strips[i], b, k0, k1);
    }
    for (int64_t i = 0; i < n; i++) end_strip(f, &strips[i], b);
}

int CPU(attention_work)(ul_stream *s, int64_t *forward_bytes, int64_t *backward_bytes,
                        const ul_attention_args *a)
{
    forward f = {.args = a};
    choose_tiles(&f);
    if (forward_bytes) *forward_bytes = f.scratch > UL_SCRATCH ? ul_pool_threads(s) * f.scratch : 0;
    if (backward_bytes) *backward_bytes = CPU(attention_backward_bytes)(s, a);
    return 0;
}

int CPU(attention)(ul_stream *s, void *o, void *lse, const void *q, const void *k, const void *v,
                   const ul_attention_args *a, void *work)
{
    forward f = {.stream = s, .args = a, .o = o, .lse = lse, .q = q, .k = k, .v = v, .work = work};
    choose_tiles(&f);
    cut_work(&f);
    f.scale = (acc)(a->scale == 0 ? 1e-30 : a->scale * LOG2_OF_E); /* 0 would make NaN of -inf */
    ul_parallel(s, a->batch * f.n_runs * f.blocks, forward_item, &f);
    return 0;
}
