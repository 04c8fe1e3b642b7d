/* attention_backward.cu - gradients of attention: one kernel for dq, by tiles of queries, one for
 * dk and dv, by tiles of keys. Each makes the scores again from q, k and lse.
 */
#include "attention_flash.h"
#include "cudnn_run.h"
#include "rows.h"

struct backward {
    ul_attention_args a;
    ul_grad dq, dk, dv;
    const real *d_o, *o, *q, *k, *v;
    const acc *lse;
    acc *delta; /* [B, H, Tq]: sum over D of do o */
    acc scale;
    int tile;
    int64_t q_tiles, k_tiles;
};

__device__ __forceinline__ int64_t q_at(const ul_attention_args &a, int64_t b, int64_t row,
                                        int64_t head)
{
    return b * a.q_stride[0] + row * a.q_stride[1] + head * a.q_stride[2];
}

/* A warp for each head of a token, in the order of memory: N elements of d_o and o to a lane. */
template <int N> static __global__ void delta_kernel(backward f)
{
    const ul_attention_args &a = f.a;
    int64_t rows = a.batch * a.q_tokens * a.n_heads, runs = a.head_dim / N;
    ROWS(i, rows)
    {
        int64_t head = i % a.n_heads, row = i / a.n_heads % a.q_tokens;
        int64_t b = i / a.n_heads / a.q_tokens;
        const real *d = f.d_o + i * a.head_dim;
        const real *o = f.o + b * a.o_stride[0] + row * a.o_stride[1] + head * a.o_stride[2];
        acc sum = 0;
        for (int64_t k = threadIdx.x; k < runs; k += WARP) {
            run<real, N> g = load_run<N>(d + k * N), y = load_run<N>(o + k * N);
            UNROLLED (j, N) sum += load(g.v[j]) * load(y.v[j]);
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) f.delta[(b * a.n_heads + head) * a.q_tokens + row] = sum;
    }
}

static void find_delta(ul_stream *s, const backward &f)
{
    const ul_attention_args &a = f.a;
    int64_t rows = a.batch * a.n_heads * a.q_tokens;
    if (rows == 0) return;
    dim3 grid((unsigned)smaller(ceil_div(rows, 8), (int64_t)s->processors * 64)), block(WARP, 8);
    int aligned = a.head_dim % PACK == 0 && is_aligned(f.d_o) && is_aligned(f.o) &&
                  (a.o_stride[0] | a.o_stride[1] | a.o_stride[2]) % PACK == 0;
    if (aligned)
        UL_LAUNCH((delta_kernel<PACK>), grid, block, 0, s->stream, f);
    else
        UL_LAUNCH((delta_kernel<1>), grid, block, 0, s->stream, f);
}

/* A tile of queries against a tile of keys: p = exp(scale q k - lse), ds = p (do v - delta) scale.
 */
struct pair {
    const acc *q, *k, *v, *d_o;
    int64_t b, head, q_first, k_first;
};

__device__ __forceinline__ void slope_tile(const backward &f, acc *p, acc *ds, const pair &x)
{
    const ul_attention_args &a = f.a;
    int64_t dim = a.head_dim, rows = (x.b * a.n_heads + x.head) * a.q_tokens + x.q_first;
    for (int i = threadIdx.x; i < f.tile * f.tile; i += blockDim.x) {
        int row = i / f.tile, key = i % f.tile;
        acc share = 0, slope = 0;
        if (x.q_first + row < a.q_tokens) {
            key_range seen = visible_keys(&a, x.b, x.q_first + row);
            if (x.k_first + key >= seen.low && x.k_first + key < seen.high) {
                acc score = f.scale * dot(x.q + row * dim, x.k + key * dim, dim);
                share = exp(score - f.lse[rows + row]);
                slope = dot(x.d_o + row * dim, x.v + key * dim, dim) - f.delta[rows + row];
                slope *= share * f.scale;
            }
        }
        p[i] = share;
        ds[i] = slope;
    }
}

KERNEL dq_kernel(backward f)
{
    UL_SHARED(acc, shared);
    const ul_attention_args &a = f.a;
    int64_t dim = a.head_dim, size = f.tile * dim;
    acc *q = shared, *k = q + size, *v = k + size, *d_o = v + size, *dq = d_o + size;
    acc *p = dq + size, *ds = p + f.tile * f.tile;
    int64_t first = blockIdx.x % f.q_tiles * f.tile, head = blockIdx.x / f.q_tiles % a.n_heads;
    int64_t b = blockIdx.x / f.q_tiles / a.n_heads, kv = a.kv_head[head];
    int64_t rows = a.q_tokens - first < f.tile ? a.q_tokens - first : f.tile;
    int64_t at = ((b * a.q_tokens + first) * a.n_heads + head) * dim, step = a.n_heads * dim;
    load_rows(q, f.q + q_at(a, b, first, head), a.q_stride[1], rows, f.tile, dim);
    load_rows(d_o, f.d_o + at, step, rows, f.tile, dim);
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) dq[i] = 0;
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
        slope_tile(f, p, ds, pair{q, k, v, d_o, b, head, first, key});
        __syncthreads();
        for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
            int64_t row = i / dim, d = i - row * dim;
            acc sum = dq[i];
            for (int j = 0; j < f.tile; j++) sum += ds[row * f.tile + j] * k[j * dim + d];
            dq[i] = sum;
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < rows * dim; i += blockDim.x)
        give_to(f.dq, a.partial, at + i / dim * step + i % dim, dq[i]);
}

/* What the heads that read kv head `kv`, and see the keys from `key` on, make of these. */
KERNEL dkv_kernel(backward f)
{
    UL_SHARED(acc, shared);
    const ul_attention_args &a = f.a;
    int64_t dim = a.head_dim, size = f.tile * dim;
    acc *q = shared, *k = q + size, *v = k + size, *d_o = v + size, *dk = d_o + size;
    acc *dv = dk + size, *p = dv + size, *ds = p + f.tile * f.tile;
    int64_t key = blockIdx.x % f.k_tiles * f.tile, kv = blockIdx.x / f.k_tiles % a.n_kv_heads;
    int64_t b = blockIdx.x / f.k_tiles / a.n_kv_heads;
    int64_t n = a.k_tokens - key < f.tile ? a.k_tokens - key : f.tile;
    load_rows(k, f.k + b * a.k_stride[0] + key * a.k_stride[1] + kv * a.k_stride[2], a.k_stride[1],
              n, f.tile, dim);
    load_rows(v, f.v + b * a.v_stride[0] + key * a.v_stride[1] + kv * a.v_stride[2], a.v_stride[1],
              n, f.tile, dim);
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) dk[i] = dv[i] = 0;
    for (int64_t t = 0; t < a.n_heads * f.q_tiles; t++) {
        int64_t head = t / f.q_tiles, first = t % f.q_tiles * f.tile;
        int64_t rows = a.q_tokens - first < f.tile ? a.q_tokens - first : f.tile;
        if (a.kv_head[head] != kv || visible_keys(&a, b, first).low >= key + n ||
            visible_keys(&a, b, first + rows - 1).high <= key)
            continue;
        __syncthreads();
        load_rows(q, f.q + q_at(a, b, first, head), a.q_stride[1], rows, f.tile, dim);
        load_rows(d_o, f.d_o + ((b * a.q_tokens + first) * a.n_heads + head) * dim, a.n_heads * dim,
                  rows, f.tile, dim);
        __syncthreads();
        slope_tile(f, p, ds, pair{q, k, v, d_o, b, head, first, key});
        __syncthreads();
        for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
            int64_t row = i / dim, d = i - row * dim;
            acc to_k = dk[i], to_v = dv[i];
            for (int j = 0; j < f.tile; j++) {
                to_k += ds[j * f.tile + row] * q[j * dim + d];
                to_v += p[j * f.tile + row] * d_o[j * dim + d];
            }
            dk[i] = to_k;
            dv[i] = to_v;
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n * dim; i += blockDim.x) {
        int64_t to = ((b * a.k_tokens + key + i / dim) * a.n_kv_heads + kv) * dim + i % dim;
        if (f.dk.data) give_to(f.dk, a.partial, to, dk[i]);
        if (f.dv.data) give_to(f.dv, a.partial, to, dv[i]);
    }
}

int CUDA(attention_backward)(ul_stream *s, ul_grad dq, ul_grad dk, ul_grad dv, const void *d_o,
                             const void *o, const void *lse, const void *q, const void *k,
                             const void *v, const ul_attention_args *a, void *work)
{
#if UL_TYPE_IS(bf16)
    int by_cudnn = ul_cudnn_attention_backward(s, dq, dk, dv, d_o, o, lse, q, k, v, a, work);
    if (by_cudnn) return by_cudnn < 0 ? by_cudnn : 0;
#endif
    backward f = {*a,
                  dq,
                  dk,
                  dv,
                  (const real *)d_o,
                  (const real *)o,
                  (const real *)q,
                  (const real *)k,
                  (const real *)v,
                  (const acc *)lse,
                  (acc *)work,
                  (acc)a->scale,
                  0,
                  0,
                  0};
    int64_t bytes;
    find_delta(s, f);
#if UL_TYPE_IS(bf16)
    if (a->head_dim <= FLASH_DIM)
        return ul_cuda_flash_backward(s, dq, dk, dv, d_o, f.delta, f.lse, q, k, v, a);
#endif
    f.tile = tile_for(s, a->head_dim, 6, 2, &bytes);
    f.q_tiles = ceil_div(a->q_tokens, f.tile);
    f.k_tiles = ceil_div(a->k_tokens, f.tile);
    int rc = allow_shared(s, dq_kernel, bytes, a->head_dim);
    if (rc == 0) rc = allow_shared(s, dkv_kernel, bytes, a->head_dim);
    if (rc < 0) return rc;
    int64_t q_blocks = f.q_tiles * a->n_heads * a->batch;
    int64_t k_blocks = f.k_tiles * a->n_kv_heads * a->batch;
    if (dq.data && q_blocks > 0)
        UL_LAUNCH(dq_kernel, dim3((unsigned)q_blocks), dim3(ATTEND_THREADS), bytes, s->stream, f);
    if ((dk.data || dv.data) && k_blocks > 0)
        UL_LAUNCH(dkv_kernel, dim3((unsigned)k_blocks), dim3(ATTEND_THREADS), bytes, s->stream, f);
    return ul_cuda_launched("attention_backward");
}
