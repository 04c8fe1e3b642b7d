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

/* y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin: a thread for each pair. */
struct rope_body {
    ul_grad y;
    const real *x;
    const acc *cosine, *sine;
    int64_t tokens, heads, half, table_step;
    acc sign;
    __device__ void operator()(int64_t k) const
    {
        int64_t i = k % half, head = k / half, row = head / heads;
        int64_t batch = row / tokens, at = (batch * table_step + row - batch * tokens) * half + i;
        int64_t first = head * 2 * half + i, second = first + half;
        acc a = load(x[first]), b = load(x[second]), c = cosine[at], s = sign * sine[at];
        give((real *)y.data + first, y.add, a * c - b * s);
        give((real *)y.data + second, y.add, b * c + a * s);
    }
};

int CUDA(rope)(ul_stream *s, ul_grad y, const void *x, const void *cosine, const void *sine,
               int64_t batch, int64_t tokens, int64_t heads, int64_t dim, int64_t table_step,
               double sign)
{
    if (!y.data) return 0;
    rope_body f = {y,     (const real *)x, (const acc *)cosine, (const acc *)sine, tokens,
                   heads, dim / 2,         table_step,          (acc)sign};
    return flat_walk(s, "rope", f, batch * tokens * heads * (dim / 2));
}
