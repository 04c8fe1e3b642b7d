/* attention.cu - flash attention, forward: tiles of scores, never the whole matrix. A block for
 * each tile of queries of a head.
 */
#include "attention_flash.h"
#include "cudnn_run.h"

struct forward {
    ul_attention_args a;
    void *o; /* real, or acc where partial */
    acc *lse;
    const real *q, *k, *v;
    acc scale;
    int tile;
    int64_t q_tiles;
};

/* s [tile, tile] = scores of the queries from `q_first` on, -inf where they do not see the key. */
__device__ __forceinline__ void score_tile(const forward &f, acc *s, const acc *q, const acc *k,
                                           int64_t b, int64_t q_first, int64_t k_first)
{
    int64_t dim = f.a.head_dim;
    for (int i = threadIdx.x; i < f.tile * f.tile; i += blockDim.x) {
        int row = i / f.tile, key = i % f.tile;
        s[i] = (acc)-INFINITY;
        if (q_first + row >= f.a.q_tokens) continue;
        key_range seen = visible_keys(&f.a, b, q_first + row);
        if (k_first + key >= seen.low && k_first + key < seen.high)
            s[i] = f.scale * dot(q + row * dim, k + key * dim, dim);
    }
}

/* Scores become exp(score - top); top and sum are brought up to date, factor says what that makes
 * of the sums before. A warp for each row, a lane for each key.
 */
__device__ __forceinline__ void soften_tile(int tile, acc *s, acc *top, acc *sum, acc *factor)
{
    int lane = threadIdx.x % WARP;
    for (int row = threadIdx.x / WARP; row < tile; row += blockDim.x / WARP) {
        acc mine = lane < tile ? s[row * tile + lane] : (acc)-INFINITY, high = mine;
        for (int by = WARP / 2; by > 0; by /= 2) high = max_merge()(high, lane_xor(high, by));
        acc before = top[row];
        high = max_merge()(before, high);
        acc p = mine == (acc)-INFINITY ? 0 : exp(mine - high), all = p;
        for (int by = WARP / 2; by > 0; by /= 2) all += lane_xor(all, by);
        acc keep = before == (acc)-INFINITY ? 0 : exp(before - high);
        __syncwarp();
        if (lane < tile) s[row * tile + lane] = p;
        if (lane == 0) {
            top[row] = high;
            sum[row] = sum[row] * keep + all;
            factor[row] = keep;
        }
    }
}

__device__ __forceinline__ int64_t o_at(const ul_attention_args &a, int64_t b, int64_t row,
                                        int64_t head)
{
    return b * a.o_stride[0] + row * a.o_stride[1] + head * a.o_stride[2];
}

/* What other keys have made of a row's o and lse is as if they were one key with that score. */
__device__ __forceinline__ void begin_rows(const forward &f, acc *o, acc *top, acc *sum, int64_t b,
                                           int64_t head, int64_t first, int64_t rows)
{
    const ul_attention_args &a = f.a;
    const acc *lse = f.lse + (b * a.n_heads + head) * a.q_tokens + first;
    for (int64_t i = threadIdx.x; i < f.tile * a.head_dim; i += blockDim.x) {
        int64_t row = i / a.head_dim, d = i - row * a.head_dim;
        int goes_on = a.partial && row < rows;
        o[i] = goes_on ? ((const acc *)f.o)[o_at(a, b, first + row, head) + d] : 0;
    }
    for (int i = threadIdx.x; i < f.tile; i += blockDim.x) {
        int goes_on = a.partial && i < rows && lse[i] != (acc)-INFINITY;
        top[i] = goes_on ? lse[i] : (acc)-INFINITY;
        sum[i] = goes_on;
    }
}

KERNEL attention_kernel(forward f)
{
    UL_SHARED(acc, shared);
    const ul_attention_args &a = f.a;
    int64_t dim = a.head_dim, size = f.tile * dim;
    acc *q = shared, *k = q + size, *v = k + size, *o = v + size, *s = o + size;
    acc *top = s + f.tile * f.tile, *sum = top + f.tile, *factor = sum + f.tile;
    int64_t first = blockIdx.x % f.q_tiles * f.tile, head = blockIdx.x / f.q_tiles % a.n_heads;
    int64_t b = blockIdx.x / f.q_tiles / a.n_heads, kv = a.kv_head[head];
    int64_t rows = a.q_tokens - first < f.tile ? a.q_tokens - first : f.tile;
    load_rows(q, f.q + b * a.q_stride[0] + first * a.q_stride[1] + head * a.q_stride[2],
              a.q_stride[1], rows, f.tile, dim);
    begin_rows(f, o, top, sum, b, head, first, rows);
    int64_t begin = visible_keys(&a, b, first).low,
            end = visible_keys(&a, b, first + rows - 1).high;
    for (int64_t key = begin; key < end; key += f.tile) {
        int64_t n = end - key < f.tile ? end - key : f.tile;
        __syncthreads();
        load_rows(k, f.k + b * a.k_stride[0] + key * a.k_stride[1] + kv * a.k_stride[2],
                  a.k_stride[1], n, f.tile, dim);
        load_rows(v, f.v + b * a.v_stride[0] + key * a.v_stride[1] + kv * a.v_stride[2],
                  a.v_stride[1], n, f.tile, dim);
        __syncthreads();
        score_tile(f, s, q, k, b, first, key);
        __syncthreads();
        soften_tile(f.tile, s, top, sum, factor);
        __syncthreads();
        for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
            int64_t row = i / dim, d = i - row * dim;
            acc y = o[i] * factor[row];
            for (int j = 0; j < f.tile; j++) y += s[row * f.tile + j] * v[j * dim + d];
            o[i] = y;
        }
    }
    if (a.partial && begin >= end) return; /* it has all stayed as it was */
    __syncthreads();
    for (int64_t i = threadIdx.x; i < rows * dim; i += blockDim.x) {
        int64_t row = i / dim, at = o_at(a, b, first + row, head) + i - row * dim;
        acc y = sum[row] > 0 || sum[row] != sum[row] ? o[i] / sum[row] : 0;
        if (a.partial)
            ((acc *)f.o)[at] = y;
        else
            ((real *)f.o)[at] = store(y);
    }
    for (int64_t i = threadIdx.x; i < rows; i += blockDim.x)
        f.lse[(b * a.n_heads + head) * a.q_tokens + first + i] = top[i] + log(sum[i]);
}

int CUDA(attention_work)(ul_stream *s, int64_t *forward, int64_t *backward,
                         const ul_attention_args *a)
{
    if (forward) *forward = 0;
    if (backward) *backward = a->batch * a->n_heads * a->q_tokens * (int64_t)sizeof(acc);
#if UL_TYPE_IS(bf16)
    for (int way = 0; way < 2; way++) {
        int64_t *bytes = way ? backward : forward, more;
        int rc = bytes ? ul_cudnn_work(s, &more, a, way) : 0;
        if (rc < 0) return rc;
        if (bytes && *bytes < more) *bytes = more;
    }
#else
    (void)s;
#endif
    return 0;
}

int CUDA(attention)(ul_stream *s, void *o, void *lse, const void *q, const void *k, const void *v,
                    const ul_attention_args *a, void *work)
{
#if UL_TYPE_IS(bf16)
    int by_cudnn = ul_cudnn_attention(s, o, lse, q, k, v, a, work);
    if (by_cudnn) return by_cudnn < 0 ? by_cudnn : 0;
    if (a->head_dim <= FLASH_DIM) return ul_cuda_flash(s, o, (float *)lse, q, k, v, a);
#else
    (void)work;
#endif
    int64_t bytes;
    forward f = {
        *a, o, (acc *)lse, (const real *)q, (const real *)k, (const real *)v, (acc)a->scale, 0, 0};
    f.tile = tile_for(s, a->head_dim, 4, 1, &bytes);
    f.q_tiles = ceil_div(a->q_tokens, f.tile);
    int64_t blocks = f.q_tiles * a->n_heads * a->batch;
    if (blocks == 0) return 0;
    int rc = allow_shared(s, attention_kernel, bytes, a->head_dim);
    if (rc < 0) return rc;
    UL_LAUNCH(attention_kernel, dim3((unsigned)blocks), dim3(ATTEND_THREADS), bytes, s->stream, f);
    return ul_cuda_launched("attention");
}
