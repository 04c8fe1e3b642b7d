/* rope.cu - rotary position embedding, half-split as in Transformers. */
#include "cuda.h"

/* Angles in f64: an f32 angle is off by a radian at position 10^7. */
struct table_body {
    acc *cosine, *sine;
    const int64_t *positions;
    const double *inv_freq;
    int64_t half;
    double scale;
    __device__ void operator()(int64_t k) const
    {
        double angle = (double)positions[k / half] * inv_freq[k % half];
        cosine[k] = (acc)(scale * cos(angle));
        sine[k] = (acc)(scale * sin(angle));
    }
};

int CUDA(rope_table)(ul_stream *s, void *cosine, void *sine, const int64_t *positions,
                     const double *inv_freq, int64_t n, int64_t half, double scale)
{
    table_body f = {(acc *)cosine, (acc *)sine, positions, inv_freq, half, scale};
    return flat_walk(s, "rope_table", f, n * half);
}

/* y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin: a thread for each N neighbouring pairs of a head.
 * index_t: of what fits the number of pairs; divisions of 32 bits are many times faster.
 */
struct rope_call {
    ul_grad y;
    const real *x;
    const acc *cosine, *sine;
    int64_t tokens, heads, half, table_step;
    acc sign;
};

template <int N, class index_t> static __global__ void rope_kernel(rope_call f, int64_t n_runs)
{
    const index_t runs = (index_t)(f.half / N), heads = (index_t)f.heads;
    const index_t tokens = (index_t)f.tokens;
    GRID_STRIDE(k, n_runs)
    {
        index_t head = (index_t)k / runs, row = head / heads, batch = row / tokens;
        int64_t i = (int64_t)((index_t)k - head * runs) * N;
        int64_t at = (batch * f.table_step + (row - batch * tokens)) * f.half + i;
        int64_t first = (int64_t)head * 2 * f.half + i, second = first + f.half;
        run<real, N> a = load_run<N>(f.x + first), b = load_run<N>(f.x + second), y1, y2;
        run<acc, N> c = load_run<N>(f.cosine + at), s = load_run<N>(f.sine + at);
        real *y = (real *)f.y.data;
        if (f.y.add) y1 = load_run<N>(y + first), y2 = load_run<N>(y + second);
        UNROLLED (j, N) {
            acc u = load(a.v[j]), v = load(b.v[j]), turn = f.sign * s.v[j];
            give(y1.v + j, f.y.add, u * c.v[j] - v * turn);
            give(y2.v + j, f.y.add, v * c.v[j] + u * turn);
        }
        store_run(y + first, y1);
        store_run(y + second, y2);
    }
}

template <int N> static int rope(ul_stream *s, const rope_call &f, int64_t n_runs)
{
    dim3 grid = grid_for(s, n_runs, BLOCK);
    if (n_runs <= INT32_MAX)
        UL_LAUNCH((rope_kernel<N, uint32_t>), grid, dim3(BLOCK), 0, s->stream, f, n_runs);
    else
        UL_LAUNCH((rope_kernel<N, uint64_t>), grid, dim3(BLOCK), 0, s->stream, f, n_runs);
    return ul_cuda_launched("rope");
}

int CUDA(rope)(ul_stream *s, ul_grad y, const void *x, const void *cosine, const void *sine,
               int64_t batch, int64_t tokens, int64_t heads, int64_t dim, int64_t table_step,
               double sign)
{
    rope_call f = {y,     (const real *)x, (const acc *)cosine, (const acc *)sine, tokens,
                   heads, dim / 2,         table_step,          (acc)sign};
    int64_t n = batch * tokens * heads * (dim / 2);
    if (!y.data || n == 0) return 0;
    int aligned = f.half % PACK == 0 && is_aligned(y.data) && is_aligned(x) && is_aligned(cosine) &&
                  is_aligned(sine);
    return aligned ? rope<PACK>(s, f, n / PACK) : rope<1>(s, f, n);
}
