/* attention_flash.cu - attention of bf16 by the tensor cores, forward.
 *
 * A block has a tile of queries of one head and walks over the keys that any of them sees. The
 * values of a tile of keys come while its scores are made, the next keys while those values are
 * summed. Scores stay in registers; a row's maximum and sum are kept to base 2.
 */
#include "attention_flash.h"

#if UL_TYPE_IS(bf16)

struct flash {
    ul_attention_args a;
    void *o; /* bf16, or f32 where partial */
    float *lse;
    head_rows q, k, v; /* of the first head */
    int64_t tiles;
    float scale; /* to base 2 */
    int o_aligned;
};

/* The warp's rows: sums, and in lane 4 g + t the maximum of rows g and g + 8 of each 16, and t's
 * share of the sum of their weights.
 */
template <int DIM, int BLOCKS> struct flash_rows {
    float o[BLOCKS][DIM / 8][4], top[2 * BLOCKS], sum[2 * BLOCKS];
};

/* Where the warp's rows are in the call: those from `first` on, as many as there are. */
struct flash_place {
    int64_t b, head, first;
    int n;
};

__device__ __forceinline__ int64_t o_at(const ul_attention_args &a, const flash_place &at, int row)
{
    return at.b * a.o_stride[0] + (at.first + row) * a.o_stride[1] + at.head * a.o_stride[2];
}

/* What other keys have made of a row's o and lse is as if they were one key with that score. */
template <int DIM, int BLOCKS>
__device__ __forceinline__ void begin_rows(flash_rows<DIM, BLOCKS> &rows, const flash &f,
                                           const flash_place &at)
{
    const int lane = threadIdx.x % WARP, dim = (int)f.a.head_dim;
    const float *lse = f.lse + (at.b * f.a.n_heads + at.head) * f.a.q_tokens + at.first;
    UNROLLED (r, 2 * BLOCKS) {
        int row = r * 8 + lane / 4, goes_on = f.a.partial && row < at.n;
        float before = goes_on ? lse[row] : -INFINITY;
        if (before == -INFINITY) goes_on = 0;
        rows.top[r] = before * log2_of_e;
        rows.sum[r] = goes_on && lane % 4 == 0;
        const float *o = (const float *)f.o + (goes_on ? o_at(f.a, at, row) : 0);
        UNROLLED (n, DIM / 8)
            UNROLLED (e, 2) {
                int d = n * 8 + lane % 4 * 2 + e;
                rows.o[r / 2][n][r % 2 * 2 + e] = goes_on && d < dim ? o[d] : 0;
            }
    }
}

/* Scores of a tile of keys: scaled, and -inf where a query, whose row is of those at q, does not
 * see the key.
 */
template <int DIM, int BLOCKS, int KEYS>
__device__ __forceinline__ void scale_and_hide(float (&s)[BLOCKS][KEYS / 8][4], float scale,
                                               uint16_t *q, int key, int whole)
{
    const int lane = threadIdx.x % WARP;
    UNROLLED (m, BLOCKS)
        UNROLLED (n, KEYS / 8)
            UNROLLED (e, 4) s[m][n][e] *= scale;
    if (whole) return;
    UNROLLED (r, 2 * BLOCKS) {
        key_span row = *behind_row<key_span, DIM>(q, r * 8 + lane / 4);
        int low = row.low - key, high = row.high - key;
        UNROLLED (n, KEYS / 8)
            UNROLLED (e, 2) {
                int column = n * 8 + lane % 4 * 2 + e;
                if (column < low || column >= high) s[r / 2][n][r % 2 * 2 + e] = -INFINITY;
            }
    }
}

/* Scores become 2^(score - maximum), and what has been summed is brought to the new maximum. */
template <int DIM, int BLOCKS, int KEYS>
__device__ __forceinline__ void soften(float (&s)[BLOCKS][KEYS / 8][4],
                                       flash_rows<DIM, BLOCKS> &rows)
{
    UNROLLED (r, 2 * BLOCKS) {
        const int m = r / 2, at = r % 2 * 2;
        float high = rows.top[r];
        UNROLLED (n, KEYS / 8) high = fmaxf(high, fmaxf(s[m][n][at], s[m][n][at + 1]));
        high = fmaxf(high, lane_xor(high, 1));
        high = fmaxf(high, lane_xor(high, 2));
        float base = high == -INFINITY ? 0 : high, keep = exp2_fast(rows.top[r] - base);
        float sum = rows.sum[r] * keep;
        UNROLLED (n, KEYS / 8)
            UNROLLED (e, 2) {
                float p = exp2_fast(s[m][n][at + e] - base);
                s[m][n][at + e] = p;
                sum += p;
            }
        rows.top[r] = high;
        rows.sum[r] = sum;
        UNROLLED (n, DIM / 8)
            UNROLLED (e, 2) rows.o[m][n][at + e] *= keep;
    }
}

/* The warp's results to memory; bf16 by way of its rows of the tile of queries, whole at a time. */
template <int DIM, int BLOCKS>
__device__ __forceinline__ void end_rows(flash_rows<DIM, BLOCKS> &rows, const flash &f,
                                         const flash_place &at, uint16_t *tile)
{
    const int lane = threadIdx.x % WARP, dim = (int)f.a.head_dim;
    float *lse = f.lse + (at.b * f.a.n_heads + at.head) * f.a.q_tokens + at.first;
    UNROLLED (r, 2 * BLOCKS) {
        float sum = rows.sum[r];
        sum += lane_xor(sum, 1);
        sum += lane_xor(sum, 2);
        float share = sum == 0 ? 0 : 1 / sum;
        int row = r * 8 + lane / 4;
        if (row < at.n && lane % 4 == 0) lse[row] = rows.top[r] * log_of_2 + logf(sum);
        UNROLLED (n, DIM / 8) {
            const float *o = rows.o[r / 2][n] + r % 2 * 2;
            int d = n * 8 + lane % 4 * 2;
            if (!f.a.partial)
                *(uint32_t *)(tile + row * row_step(DIM) + d) =
                    bf16_pair(o[0] * share, o[1] * share);
            else if (row < at.n)
                UNROLLED (e, 2)
                    if (d + e < dim) ((float *)f.o)[o_at(f.a, at, row) + d + e] = o[e] * share;
        }
    }
    if (f.a.partial) return;
    __syncwarp();
    for (int i = lane; i < at.n * (DIM / PACK); i += WARP) {
        int row = i / (DIM / PACK), d = i % (DIM / PACK) * PACK;
        uint16_t *to = (uint16_t *)f.o + o_at(f.a, at, row) + d;
        const uint16_t *from = tile + row * row_step(DIM) + d;
        if (f.o_aligned && d + PACK <= dim)
            store_16(to, load_16(from));
        else
            for (int e = 0; e < PACK && d + e < dim; e++) to[e] = from[e];
    }
}

template <int DIM, int BLOCKS, int KEYS>
static __global__ void __launch_bounds__(FLASH_THREADS) flash_kernel(flash f)
{
    enum { QUERIES = FLASH_WARPS * BLOCKS * 16, STEP = row_step(DIM) };
    UL_SHARED(uint16_t, shared);
    const ul_attention_args &a = f.a;
    uint16_t *q = shared, *k = q + QUERIES * STEP, *v = k + KEYS * STEP;
    /* the last queries, which see the most keys, come first */
    int64_t head = blockIdx.x % a.n_heads, b = blockIdx.x / a.n_heads % a.batch;
    int64_t first = (f.tiles - 1 - blockIdx.x / a.n_heads / a.batch) * QUERIES;
    int rows = (int)least(a.q_tokens - first, QUERIES), from = threadIdx.x / WARP * BLOCKS * 16;
    flash_place at = {b, head, first + from, (int)most(least(rows - from, BLOCKS * 16), 0)};
    int64_t kv = a.kv_head[head], begin = visible_keys(&a, b, first).low;
    int end = (int)(visible_keys(&a, b, first + rows - 1).high - begin);
    head_rows keys = rows_from(f.k, b * a.k_stride[0] + kv * a.k_stride[2] + begin * f.k.step);
    head_rows values = rows_from(f.v, b * a.v_stride[0] + kv * a.v_stride[2] + begin * f.v.step);
    if (a.partial && end <= 0) return; /* it all stays as it is */

    int64_t q_at = b * a.q_stride[0] + first * a.q_stride[1] + head * a.q_stride[2];
    copy_rows<DIM, QUERIES>(q, rows_from(f.q, q_at), rows);
    copy_rows<DIM, KEYS>(k, keys, end);
    copy_commit();
    find_visible<DIM, QUERIES>(q, a, b, first, rows, begin);
    flash_rows<DIM, BLOCKS> mine;
    begin_rows(mine, f, at);
    for (int key = 0; key < end; key += KEYS) {
        float s[BLOCKS][KEYS / 8][4];
        copy_wait<0>();
        __syncthreads();
        copy_rows<DIM, KEYS>(v, values, end - key);
        copy_commit();
        values = rows_from(values, KEYS * values.step);
        keys = rows_from(keys, KEYS * keys.step);
        views view = views_of<DIM>(q + from * STEP, at.n);
        int busy = at.n > 0 && view.some.low < key + KEYS && view.some.high > key;
        if (busy) {
            multiply_rows<DIM, BLOCKS, KEYS>(s, q + from * STEP, k);
            int whole = view.all.low <= key && view.all.high >= key + KEYS;
            scale_and_hide<DIM, BLOCKS, KEYS>(s, f.scale, q + from * STEP, key, whole);
            soften<DIM, BLOCKS, KEYS>(s, mine);
        }
        copy_wait<0>();
        __syncthreads();
        if (key + KEYS < end) copy_rows<DIM, KEYS>(k, keys, end - key - KEYS);
        copy_commit();
        if (busy) add_product<DIM, BLOCKS, KEYS>(mine.o, s, v);
    }
    copy_wait<0>();
    /* where no key is seen, others' copies to the warp's rows of q may still be on their way */
    __syncthreads();
    end_rows(mine, f, at, q + from * STEP);
}

template <int DIM, int BLOCKS, int KEYS> static int launch_flash(ul_stream *s, flash f)
{
    enum { QUERIES = FLASH_WARPS * BLOCKS * 16 };
    int64_t bytes = (QUERIES + 2 * KEYS) * row_step(DIM) * 2;
    f.tiles = ceil_div(f.a.q_tokens, QUERIES);
    int64_t blocks = f.tiles * f.a.n_heads * f.a.batch;
    if (blocks == 0) return 0;
    int rc = allow_shared(s, flash_kernel<DIM, BLOCKS, KEYS>, bytes, f.a.head_dim);
    if (rc < 0) return rc;
    UL_LAUNCH((flash_kernel<DIM, BLOCKS, KEYS>), dim3((unsigned)blocks), dim3(FLASH_THREADS), bytes,
              s->stream, f);
    return ul_cuda_launched("attention");
}

int ul_cuda_flash(ul_stream *s, void *o, float *lse, const void *q, const void *k, const void *v,
                  const ul_attention_args *a)
{
    int64_t dim = a->head_dim;
    flash f = {*a,
               o,
               lse,
               rows_of_head(q, a->q_stride[1], dim, rows_are_aligned(q, a->q_stride)),
               rows_of_head(k, a->k_stride[1], dim, rows_are_aligned(k, a->k_stride)),
               rows_of_head(v, a->v_stride[1], dim, rows_are_aligned(v, a->v_stride)),
               0,
               (float)(a->scale * 1.4426950408889634),
               rows_are_aligned(o, a->o_stride)};
    if (dim <= 32) return launch_flash<32, 2, 64>(s, f);
    if (dim <= 64) return launch_flash<64, 2, 64>(s, f);
    if (dim <= 96) return launch_flash<96, 2, 64>(s, f);
    if (dim <= 128) return launch_flash<128, 2, 48>(s, f);
    return launch_flash<256, 1, 64>(s, f);
}
#endif
