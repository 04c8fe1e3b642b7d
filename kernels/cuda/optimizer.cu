/* optimizer.cu - parameter updates and the square of a norm. */
#include "block.h"

/* ---- AdamW (Loshchilov & Hutter 2019, algorithm 2) ---- */

/* m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
 * w -= lr (m / bias_1 / (sqrt(v / bias_2) + eps) + weight_decay w)
 */
struct adamw_body {
    real *param;
    acc *master, *m, *v;
    const acc *grad;
    acc keep_m, take_m, keep_v, take_v, rate, root, eps, decay;
    template <int N> __device__ void at(int64_t i) const
    {
        run<acc, N> g = load_run<N>(grad + i), ms = load_run<N>(m + i), vs = load_run<N>(v + i), w;
        run<real, N> to;
        if (master)
            w = load_run<N>(master + i);
        else
            to = load_run<N>(param + i);
        UNROLLED (j, N) {
            acc was = master ? w.v[j] : load(to.v[j]);
            ms.v[j] = keep_m * ms.v[j] + take_m * g.v[j];
            vs.v[j] = keep_v * vs.v[j] + take_v * g.v[j] * g.v[j];
            w.v[j] = decay * was - rate * ms.v[j] / (sqrt(vs.v[j]) * root + eps);
            to.v[j] = store(w.v[j]);
        }
        store_run(m + i, ms);
        store_run(v + i, vs);
        if (master) store_run(master + i, w);
        store_run(param + i, to);
    }
};

int CUDA(adamw)(ul_stream *s, void *param, void *master, void *m, void *v, const void *grad,
                int64_t n, const ul_adamw_step *step)
{
    adamw_body f = {(real *)param,
                    (acc *)master,
                    (acc *)m,
                    (acc *)v,
                    (const acc *)grad,
                    (acc)step->beta_1,
                    (acc)(1 - step->beta_1),
                    (acc)step->beta_2,
                    (acc)(1 - step->beta_2),
                    (acc)(step->lr / step->bias_1),
                    (acc)(1 / sqrt(step->bias_2)),
                    (acc)step->eps,
                    (acc)(1 - step->lr * step->weight_decay)};
    int aligned = is_aligned(param) && is_aligned(master) && is_aligned(m) && is_aligned(v) &&
                  is_aligned(grad);
    return runs_walk(s, "adamw", f, n, aligned);
}

/* ---- SGD ---- */

struct sgd_body {
    real *param;
    acc *master, *momentum;
    const acc *grad;
    acc lr, mu, weight_decay;
    int nesterov;
    template <int N> __device__ void at(int64_t i) const
    {
        run<acc, N> g = load_run<N>(grad + i), moved, w;
        run<real, N> to;
        if (momentum) moved = load_run<N>(momentum + i);
        if (master)
            w = load_run<N>(master + i);
        else
            to = load_run<N>(param + i);
        UNROLLED (j, N) {
            acc was = master ? w.v[j] : load(to.v[j]), d = g.v[j] + weight_decay * was;
            if (momentum) {
                moved.v[j] = mu * moved.v[j] + d;
                d = nesterov ? d + mu * moved.v[j] : moved.v[j];
            }
            w.v[j] = was - lr * d;
            to.v[j] = store(w.v[j]);
        }
        if (momentum) store_run(momentum + i, moved);
        if (master) store_run(master + i, w);
        store_run(param + i, to);
    }
};

int CUDA(sgd)(ul_stream *s, void *param, void *master, void *momentum, const void *grad, int64_t n,
              double lr, double mu, double weight_decay, int nesterov)
{
    sgd_body f = {(real *)param, (acc *)master, (acc *)momentum,   (const acc *)grad,
                  (acc)lr,       (acc)mu,       (acc)weight_decay, nesterov};
    int aligned =
        is_aligned(param) && is_aligned(master) && is_aligned(momentum) && is_aligned(grad);
    return runs_walk(s, "sgd", f, n, aligned);
}

/* ---- sum of squares: parts whose number depends on the device and n alone, summed in order ----
 */

struct add_doubles {
    __device__ double operator()(double a, double b) const { return a + b; }
};

KERNEL squares_kernel(double *parts, const real *x, int64_t n, int64_t packs)
{
    double sum = 0;
    GRID_STRIDE(p, packs)
    {
        run<real, PACK> from = load_run<PACK>(x + p * PACK);
        UNROLLED (j, PACK) {
            double v = (double)load(from.v[j]);
            sum += v * v;
        }
    }
    GRID_STRIDE(i, n - packs * PACK)
    {
        double v = (double)load(x[packs * PACK + i]);
        sum += v * v;
    }
    sum = block_reduce(sum, add_doubles());
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

KERNEL squares_end_kernel(double *out, const double *parts, int n)
{
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += parts[i];
    sum = block_reduce(sum, add_doubles());
    if (threadIdx.x == 0) *out = sum;
}

int CUDA(sum_squares)(ul_stream *s, double *out, const void *x, int64_t n)
{
    double *parts = (double *)s->scratch;
    dim3 grid(0);
    if (n > 0) {
        int64_t packs = is_aligned(x) ? n / PACK : 0;
        grid = grid_for(s, packs > 0 ? packs : n, BLOCK);
        UL_LAUNCH(squares_kernel, grid, dim3(BLOCK), 0, s->stream, parts, (const real *)x, n,
                  packs);
    }
    UL_LAUNCH(squares_end_kernel, dim3(1), dim3(BLOCK), 0, s->stream, out, parts, (int)grid.x);
    return ul_cuda_launched("sum_squares");
}
