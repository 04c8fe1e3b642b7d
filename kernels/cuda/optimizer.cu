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
    __device__ void operator()(int64_t i) const
    {
        acc g = grad[i], w = master ? master[i] : load(param[i]);
        acc new_m = keep_m * m[i] + take_m * g, new_v = keep_v * v[i] + take_v * g * g;
        m[i] = new_m;
        v[i] = new_v;
        w = decay * w - rate * new_m / (sqrt(new_v) * root + eps);
        if (master) master[i] = w;
        param[i] = store(w);
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
    return flat_walk(s, "adamw", f, n);
}

/* ---- SGD ---- */

struct sgd_body {
    real *param;
    acc *master, *momentum;
    const acc *grad;
    acc lr, mu, weight_decay;
    int nesterov;
    __device__ void operator()(int64_t i) const
    {
        acc w = master ? master[i] : load(param[i]);
        acc d = grad[i] + weight_decay * w;
        if (momentum) {
            acc moved = mu * momentum[i] + d;
            momentum[i] = moved;
            d = nesterov ? d + mu * moved : moved;
        }
        w -= lr * d;
        if (master) master[i] = w;
        param[i] = store(w);
    }
};

int CUDA(sgd)(ul_stream *s, void *param, void *master, void *momentum, const void *grad, int64_t n,
              double lr, double mu, double weight_decay, int nesterov)
{
    sgd_body f = {(real *)param, (acc *)master, (acc *)momentum,   (const acc *)grad,
                  (acc)lr,       (acc)mu,       (acc)weight_decay, nesterov};
    return flat_walk(s, "sgd", f, n);
}

/* ---- sum of squares: parts whose number depends on the device and n alone, summed in order ----
 */

struct add_doubles {
    __device__ double operator()(double a, double b) const { return a + b; }
};

KERNEL squares_kernel(double *parts, const real *x, int64_t n)
{
    double sum = 0;
    GRID_STRIDE(i, n)
    {
        double v = (double)load(x[i]);
        sum += v * v;
    }
    sum = block_reduce(sum, add_doubles());
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

KERNEL squares_end_kernel(double *parts, int n)
{
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += parts[i];
    sum = block_reduce(sum, add_doubles());
    if (threadIdx.x == 0) parts[0] = sum;
}

int CUDA(sum_squares)(ul_stream *s, double *out, const void *x, int64_t n)
{
    double *parts = (double *)s->scratch;
    *out = 0;
    if (n == 0) return 0;
    dim3 grid = grid_for(s, n, BLOCK);
    UL_LAUNCH(squares_kernel, grid, dim3(BLOCK), 0, s->stream, parts, (const real *)x, n);
    UL_LAUNCH(squares_end_kernel, dim3(1), dim3(BLOCK), 0, s->stream, parts, (int)grid.x);
    int rc = ul_cuda_launched("sum_squares");
    return rc < 0 ? rc : ul_cuda_fetch(s, out, parts, sizeof *out);
}
