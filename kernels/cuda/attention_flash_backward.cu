/* attention_flash_backward.cu - gradients of attention of bf16 by the tensor cores: one kernel for
 * dq, by tiles of queries, one for dk and dv, by tiles of keys.
 *
 * Each makes p = exp(scale q k - lse) again, and ds = p (do v - delta), for a tile of its own rows
 * and one of those it walks over, of which the next is on its way; dq = scale ds k, dk = scale ds^T
 * q, dv = p^T do. Nothing is added by two blocks.
 */
#include "attention_flash.h"

#if UL_TYPE_IS(bf16)

/* Rows of a block's own tile; OTHER: of those it walks over. */
enum { OWN = FLASH_WARPS * 16 };
/* What a kernel is to make. */
enum { DK = 1, DV = 2 };

struct flash_slopes {
    ul_attention_args a;
    ul_grad dq, dk, dv;
    head_rows q, k, v, d_o; /* of the first head */
    const float *lse, *delta;
    int64_t q_tiles, k_tiles;
    float scale, scale_2; /* as it is; to base 2 */
};

/* What the slopes of a query need: lse to base 2, and which keys it sees. Where all its scores are
 * -inf, so is its lse: taken as +inf that makes p 0, not NaN.
 */
struct __align__(16) query
{
    float top, delta;
    key_span seen;
};

__device__ __forceinline__ query load_query(const flash_slopes &f, int64_t b, int64_t head,
                                            int64_t i)
{
    int64_t at = (b * f.a.n_heads + head) * f.a.q_tokens + i;
    float lse = f.lse[at];
    query x = {lse == -INFINITY ? INFINITY : lse * log2_of_e, f.delta[at], {0, 0}};
    return x;
}

/* s, dp: scores and do v of 8 columns; then p and ds, where the query sees the key. */
__device__ __forceinline__ void differentiate(float &s, float &dp, const query &x, int key,
                                              float scale_2)
{
    int seen = key >= x.seen.low && key < x.seen.high;
    s = seen ? exp2_fast(s * scale_2 - x.top) : 0;
    dp = seen ? s * (dp - x.delta) : 0;
}

/* The warp's sums [16, DIM], times factor, to the first n of so many rows of a gradient. */
template <int DIM>
__device__ __forceinline__ void give_rows(const ul_grad &grad, const flash_slopes &f, int64_t at,
                                          int64_t step, int n, const float (&sums)[1][DIM / 8][4],
                                          float factor)
{
    const int lane = threadIdx.x % WARP, dim = (int)f.a.head_dim;
    UNROLLED (r, 2) {
        int row = r * 8 + lane / 4;
        UNROLLED (c, DIM / 8)
            UNROLLED (e, 2) {
                int d = c * 8 + lane % 4 * 2 + e;
                if (row < n && d < dim)
                    give_to(grad, f.a.partial, at + row * step + d, sums[0][c][r * 2 + e] * factor);
            }
    }
}

template <int DIM> __device__ __forceinline__ void clear(float (&sums)[1][DIM / 8][4])
{
    UNROLLED (n, DIM / 8)
        UNROLLED (e, 4) sums[0][n][e] = 0;
}

template <int DIM, int OTHER>
static __global__ void __launch_bounds__(FLASH_THREADS) flash_dq_kernel(flash_slopes f)
{
    enum { STEP = row_step(DIM), STAGE = 2 * OTHER * STEP };
    UL_SHARED(uint16_t, shared);
    const ul_attention_args &a = f.a;
    uint16_t *q = shared, *d_o = q + OWN * STEP, *stages = d_o + OWN * STEP;
    const int lane = threadIdx.x % WARP, from = threadIdx.x / WARP * 16;
    int64_t head = blockIdx.x % a.n_heads, b = blockIdx.x / a.n_heads % a.batch;
    int64_t first = (f.q_tiles - 1 - blockIdx.x / a.n_heads / a.batch) * OWN;
    int64_t kv = a.kv_head[head], begin = visible_keys(&a, b, first).low;
    int rows = (int)least(a.q_tokens - first, OWN), mine = (int)least(rows - from, 16);
    int end = (int)(visible_keys(&a, b, first + rows - 1).high - begin);
    int64_t at = ((b * a.q_tokens + first) * a.n_heads + head) * a.head_dim;
    int64_t q_at = b * a.q_stride[0] + first * a.q_stride[1] + head * a.q_stride[2];
    head_rows keys = rows_from(f.k, b * a.k_stride[0] + kv * a.k_stride[2] + begin * f.k.step);
    head_rows values = rows_from(f.v, b * a.v_stride[0] + kv * a.v_stride[2] + begin * f.v.step);

    copy_rows<DIM, OWN>(q, rows_from(f.q, q_at), rows);
    copy_rows<DIM, OWN>(d_o, rows_from(f.d_o, at), rows);
    if (end > 0) copy_rows<DIM, OTHER>(stages, keys, end);
    if (end > 0) copy_rows<DIM, OTHER>(stages + OTHER * STEP, values, end);
    copy_commit();
    find_visible<DIM, OWN>(q, a, b, first, rows, begin);
    query x[2] = {{0, 0, {0, 0}}, {0, 0, {0, 0}}};
    UNROLLED (r, 2) {
        int row = from + r * 8 + lane / 4;
        if (row < rows) x[r] = load_query(f, b, head, first + row);
    }
    float sums[1][DIM / 8][4];
    clear<DIM>(sums);
    for (int key = 0, turn = 0; key < end; key += OTHER, turn ^= 1) {
        uint16_t *stage = stages + turn * STAGE, *next = stages + (turn ^ 1) * STAGE;
        keys = rows_from(keys, OTHER * keys.step);
        values = rows_from(values, OTHER * values.step);
        if (key + OTHER < end) {
            copy_rows<DIM, OTHER>(next, keys, end - key - OTHER);
            copy_rows<DIM, OTHER>(next + OTHER * STEP, values, end - key - OTHER);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        key_span some = views_of<DIM>(q + from * STEP, mine).some;
        if (mine > 0 && some.low < key + OTHER && some.high > key) {
            float s[1][OTHER / 8][4], dp[1][OTHER / 8][4];
            multiply_rows<DIM, 1, OTHER>(s, q + from * STEP, stage);
            multiply_rows<DIM, 1, OTHER>(dp, d_o + from * STEP, stage + OTHER * STEP);
            UNROLLED (r, 2) {
                x[r].seen = *behind_row<key_span, DIM>(q, from + r * 8 + lane / 4);
                UNROLLED (n, OTHER / 8)
                    UNROLLED (e, 2)
                        differentiate(s[0][n][2 * r + e], dp[0][n][2 * r + e], x[r],
                                      key + n * 8 + lane % 4 * 2 + e, f.scale_2);
            }
            add_product<DIM, 1, OTHER>(sums, dp, stage);
        }
        __syncthreads();
    }
    copy_wait<0>();
    int64_t step = a.n_heads * a.head_dim;
    give_rows<DIM>(f.dq, f, at + from * step, step, mine, sums, f.scale);
}

/* ---- dk, dv ---- */

/* The call with but those documents that n keys from `key` on are of, and one on each side. What
 * queries see of these keys is the same: those of other documents, which see none, are taken to be
 * of the one before them, or behind.
 */
__device__ __forceinline__ ul_attention_args near_keys(const ul_attention_args &call, int64_t b,
                                                       int64_t key, int64_t n)
{
    ul_attention_args a = call;
    if (!a.docs || a.n_docs == 0) return a;
    int64_t at = key + (a.row_tokens ? b * a.row_tokens + a.k_start : b * a.k_tokens);
    int64_t begin = most(document_of(&call, at) - 1, 0);
    int64_t end = least(document_of(&call, at + n - 1) + 2, call.n_docs);
    a.docs += begin;
    a.n_docs = end - begin;
    return a;
}

/* The tiles of queries that meet the keys [key, key + n): a run of them, since neither bound falls.
 */
struct tile_range {
    int64_t begin, end;
};

template <int OTHER>
__device__ __forceinline__ tile_range tiles_that_see(const flash_slopes &f,
                                                     const ul_attention_args &a, int64_t b,
                                                     int64_t key, int64_t n)
{
    tile_range found;
    for (int edge = 0; edge < 2; edge++) {
        int64_t low = 0, high = f.q_tiles;
        while (low < high) {
            int64_t middle = (low + high) / 2, first = middle * OTHER;
            int64_t last = least(first + OTHER, a.q_tokens) - 1;
            int reached = edge ? visible_keys(&a, b, first).low >= key + n
                               : visible_keys(&a, b, last).high > key;
            if (reached)
                high = middle;
            else
                low = middle + 1;
        }
        (edge ? found.end : found.begin) = low;
    }
    return found;
}

/* A tile of queries of one head; beyond the last one head is n_heads. */
struct walk {
    int64_t head, tile;
};

__device__ __forceinline__ walk begin_head(const flash_slopes &f, const tile_range &tiles,
                                           int64_t head, int64_t kv)
{
    while (head < f.a.n_heads && f.a.kv_head[head] != kv) head++;
    walk w = {tiles.begin < tiles.end ? head : f.a.n_heads, tiles.begin};
    return w;
}

/* Begins to copy q and do of a tile to a stage, and finds what its queries see of n keys from `key`
 * on, to behind their rows of q; returns how many queries it has.
 */
template <int DIM, int OTHER>
__device__ __forceinline__ int copy_queries(const flash_slopes &f, const ul_attention_args &a,
                                            uint16_t *stage, const walk &w, int64_t b, int64_t key,
                                            int n)
{
    int64_t first = w.tile * OTHER;
    int rows = (int)least(a.q_tokens - first, OTHER), i = threadIdx.x;
    int64_t q_at = b * a.q_stride[0] + first * a.q_stride[1] + w.head * a.q_stride[2];
    int64_t at = ((b * a.q_tokens + first) * a.n_heads + w.head) * a.head_dim;
    copy_rows<DIM, OTHER>(stage, rows_from(f.q, q_at), rows);
    copy_rows<DIM, OTHER>(stage + OTHER * row_step(DIM), rows_from(f.d_o, at), rows);
    if (i < OTHER) {
        query x = {0, 0, {0, 0}};
        if (i < rows) {
            key_range keys = visible_keys(&a, b, first + i);
            x = load_query(f, b, w.head, first + i);
            x.seen.low = (int)least(most(keys.low - key, 0), n);
            x.seen.high = (int)least(most(keys.high - key, 0), n);
        }
        *behind_row<query, DIM>(stage, i) = x;
    }
    return rows;
}

template <int DIM, int MADE, int OTHER>
static __global__ void __launch_bounds__(FLASH_THREADS, 2) flash_dkv_kernel(flash_slopes f)
{
    enum { STEP = row_step(DIM), STAGE = 2 * OTHER * STEP };
    UL_SHARED(uint16_t, shared);
    const ul_attention_args &a = f.a;
    uint16_t *k = shared, *v = k + OWN * STEP, *stages = v + OWN * STEP;
    const int lane = threadIdx.x % WARP, from = threadIdx.x / WARP * 16;
    int64_t kv = blockIdx.x % a.n_kv_heads, b = blockIdx.x / a.n_kv_heads % a.batch;
    int64_t key = blockIdx.x / a.n_kv_heads / a.batch * OWN;
    int n = (int)least(a.k_tokens - key, OWN), rows = 0;
    int64_t k_at = b * a.k_stride[0] + key * a.k_stride[1] + kv * a.k_stride[2];
    int64_t v_at = b * a.v_stride[0] + key * a.v_stride[1] + kv * a.v_stride[2];
    copy_rows<DIM, OWN>(k, rows_from(f.k, k_at), n);
    copy_rows<DIM, OWN>(v, rows_from(f.v, v_at), n);
    const ul_attention_args near = near_keys(a, b, key, n);
    tile_range tiles = tiles_that_see<OTHER>(f, near, b, key, n);
    walk now = begin_head(f, tiles, 0, kv);
    if (now.head < a.n_heads) rows = copy_queries<DIM, OTHER>(f, near, stages, now, b, key, n);
    copy_commit();
    float dk[1][DIM / 8][4], dv[1][DIM / 8][4];
    if (MADE & DK) clear<DIM>(dk);
    if (MADE & DV) clear<DIM>(dv);
    for (int turn = 0; now.head < a.n_heads; turn ^= 1) {
        uint16_t *stage = stages + turn * STAGE;
        walk next = {now.head, now.tile + 1};
        int present = rows;
        if (next.tile == tiles.end) next = begin_head(f, tiles, now.head + 1, kv);
        if (next.head < a.n_heads)
            rows = copy_queries<DIM, OTHER>(f, near, stages + (turn ^ 1) * STAGE, next, b, key, n);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (behind_row<query, DIM>(stage, 0)->seen.low < from + 16 &&
            behind_row<query, DIM>(stage, present - 1)->seen.high > from) {
            float s[1][OTHER / 8][4], dp[1][OTHER / 8][4];
            multiply_rows<DIM, 1, OTHER>(s, k + from * STEP, stage);
            if (MADE & DK) multiply_rows<DIM, 1, OTHER>(dp, v + from * STEP, stage + OTHER * STEP);
            UNROLLED (c, OTHER / 8)
                UNROLLED (e, 2) {
                    query x = *behind_row<query, DIM>(stage, c * 8 + lane % 4 * 2 + e);
                    UNROLLED (r, 2) {
                        float unused = 0, &slope = MADE & DK ? dp[0][c][2 * r + e] : unused;
                        differentiate(s[0][c][2 * r + e], slope, x, from + r * 8 + lane / 4,
                                      f.scale_2);
                    }
                }
            if (MADE & DV) add_product<DIM, 1, OTHER>(dv, s, stage + OTHER * STEP);
            if (MADE & DK) add_product<DIM, 1, OTHER>(dk, dp, stage);
        }
        __syncthreads();
        now = next;
    }
    copy_wait<0>();
    int64_t step = a.n_kv_heads * a.head_dim;
    int64_t at = ((b * a.k_tokens + key + from) * a.n_kv_heads + kv) * a.head_dim;
    if ((MADE & DK) && f.dk.data) give_rows<DIM>(f.dk, f, at, step, n - from, dk, f.scale);
    if ((MADE & DV) && f.dv.data) give_rows<DIM>(f.dv, f, at, step, n - from, dv, 1);
}

/* Of the block's own two tiles, and two stages of the others. */
template <int DIM, int OTHER> constexpr int tile_bytes()
{
    return (2 * OWN + 4 * OTHER) * row_step(DIM) * 2;
}

template <int DIM, int MADE, int OTHER> static int launch_dkv(ul_stream *s, const flash_slopes &f)
{
    int64_t blocks = f.k_tiles * f.a.n_kv_heads * f.a.batch;
    int64_t bytes = tile_bytes<DIM, OTHER>();
    int rc = allow_shared(s, flash_dkv_kernel<DIM, MADE, OTHER>, bytes, f.a.head_dim);
    if (rc < 0 || blocks == 0) return rc;
    UL_LAUNCH((flash_dkv_kernel<DIM, MADE, OTHER>), dim3((unsigned)blocks), dim3(FLASH_THREADS),
              bytes, s->stream, f);
    return ul_cuda_launched("attention_backward");
}

template <int DIM, int OTHER> static int launch_slopes(ul_stream *s, flash_slopes f)
{
    f.q_tiles = ceil_div(f.a.q_tokens, OTHER);
    flash_slopes by_own = f; /* here the tiles of queries are the block's own */
    by_own.q_tiles = ceil_div(f.a.q_tokens, OWN);
    int64_t blocks = by_own.q_tiles * f.a.n_heads * f.a.batch;
    int64_t bytes = tile_bytes<DIM, OTHER>();
    int rc = allow_shared(s, flash_dq_kernel<DIM, OTHER>, bytes, f.a.head_dim);
    if (rc < 0) return rc;
    if (f.dq.data && blocks > 0)
        UL_LAUNCH((flash_dq_kernel<DIM, OTHER>), dim3((unsigned)blocks), dim3(FLASH_THREADS), bytes,
                  s->stream, by_own);
    rc = ul_cuda_launched("attention_backward");
    if (rc < 0 || !(f.dk.data || f.dv.data)) return rc;
    if constexpr (DIM <= 128) {
        return launch_dkv<DIM, DK | DV, OTHER>(s, f);
    } else { /* sums of both are more than the registers hold */
        if (f.dv.data) rc = launch_dkv<DIM, DV, OTHER>(s, f);
        return rc == 0 && f.dk.data ? launch_dkv<DIM, DK, OTHER>(s, f) : rc;
    }
}

int ul_cuda_flash_backward(ul_stream *s, ul_grad dq, ul_grad dk, ul_grad dv, const void *d_o,
                           const float *delta, const float *lse, const void *q, const void *k,
                           const void *v, const ul_attention_args *a)
{
    int64_t dim = a->head_dim, step = a->n_heads * dim, stride[3] = {0, 0, dim};
    flash_slopes f = {*a,
                      dq,
                      dk,
                      dv,
                      rows_of_head(q, a->q_stride[1], dim, rows_are_aligned(q, a->q_stride)),
                      rows_of_head(k, a->k_stride[1], dim, rows_are_aligned(k, a->k_stride)),
                      rows_of_head(v, a->v_stride[1], dim, rows_are_aligned(v, a->v_stride)),
                      rows_of_head(d_o, step, dim, rows_are_aligned(d_o, stride)),
                      lse,
                      delta,
                      0,
                      ceil_div(a->k_tokens, OWN),
                      (float)a->scale,
                      (float)(a->scale * 1.4426950408889634)};
    if (dim <= 32) return launch_slopes<32, 32>(s, f);
    if (dim <= 64) return launch_slopes<64, 32>(s, f);
    if (dim <= 96) return launch_slopes<96, 32>(s, f);
    if (dim <= 128) return launch_slopes<128, 32>(s, f);
    if (tile_bytes<256, 32>() <= s->shared_bytes) return launch_slopes<256, 32>(s, f);
    return launch_slopes<256, 16>(s, f); /* in 99 KiB, which every device gives a block */
}
#endif
