/* optimizer.c - parameter updates and the square of a norm. */
#include "loop.h"
#include "vmath.h"

/* ---- AdamW (Loshchilov & Hutter 2019, algorithm 2) ---- */

typedef struct adamw_call {
    real *param;
    acc *master, *m, *v;
    const acc *grad;
    const ul_adamw_step *step;
} adamw_call;

/* m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
 * w -= lr (m / bias_1 / (sqrt(v / bias_2) + eps) + weight_decay w)
 */
static void adamw_piece(const void *arg, int64_t begin, int64_t end)
{
    const adamw_call *c = arg;
    const ul_adamw_step *step = c->step;
    real *param = c->param;
    acc *master = c->master, *m = c->m, *v = c->v;
    const acc *grad = c->grad;
    acc keep_m = (acc)step->beta_1, take_m = (acc)(1 - step->beta_1);
    acc keep_v = (acc)step->beta_2, take_v = (acc)(1 - step->beta_2);
    acc rate = (acc)(step->lr / step->bias_1), root = (acc)(1 / sqrt(step->bias_2));
    acc eps = (acc)step->eps, decay = (acc)(1 - step->lr * step->weight_decay);
    INDEPENDENT for (int64_t i = begin; i < end; i++)
    {
        acc g = grad[i], w = master ? master[i] : load(param[i]);
        acc new_m = keep_m * m[i] + take_m * g, new_v = keep_v * v[i] + take_v * g * g;
        m[i] = new_m;
        v[i] = new_v;
        w = decay * w - rate * new_m / (LIBM(sqrt)(new_v) * root + eps);
        if (master) master[i] = w;
        param[i] = store(w);
    }
}

int CPU(adamw)(ul_stream *s, void *param, void *master, void *m, void *v, const void *grad,
               int64_t n, const ul_adamw_step *step)
{
    adamw_call c = {param, master, m, v, grad, step};
    flat_walk(s, n, adamw_piece, &c);
    return 0;
}

/* ---- SGD ---- */

typedef struct sgd_call {
    real *param;
    acc *master, *momentum;
    const acc *grad;
    acc lr, mu, weight_decay;
    int nesterov;
} sgd_call;

static void sgd_piece(const void *arg, int64_t begin, int64_t end)
{
    const sgd_call *c = arg;
    real *param = c->param;
    acc *master = c->master, *momentum = c->momentum;
    const acc *grad = c->grad;
    acc lr = c->lr, mu = c->mu, weight_decay = c->weight_decay;
    int nesterov = c->nesterov;
    INDEPENDENT for (int64_t i = begin; i < end; i++)
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
}

int CPU(sgd)(ul_stream *s, void *param, void *master, void *momentum, const void *grad, int64_t n,
             double lr, double mu, double weight_decay, int nesterov)
{
    sgd_call c = {param, master, momentum, grad, (acc)lr, (acc)mu, (acc)weight_decay, nesterov};
    flat_walk(s, n, sgd_piece, &c);
    return 0;
}

/* ---- sum of squares: blocks that depend on n alone, summed in order ---- */

enum { LANES = 16, MAX_BLOCKS = UL_SHARED / (int)sizeof(double) };

typedef struct squares_call {
    const real *x;
    int64_t n, block;
    double *sums;
} squares_call;

static void square_block(void *arg, int64_t i, int thread)
{
    (void)thread;
    const squares_call *c = arg;
    const real *x = c->x + i * c->block;
    int64_t n = smaller(c->block, c->n - i * c->block), whole = n - n % LANES;
    double lane[LANES] = {0};
    for (int64_t j = 0; j < whole; j += LANES)
        for (int k = 0; k < LANES; k++) {
            double v = (double)load(x[j + k]);
            lane[k] += v * v;
        }
    for (int64_t j = whole; j < n; j++) {
        double v = (double)load(x[j]);
        lane[j - whole] += v * v;
    }
    double sum = 0;
    for (int k = 0; k < LANES; k++) sum += lane[k];
    c->sums[i] = sum;
}

int CPU(sum_squares)(ul_stream *s, double *out, const void *x, int64_t n)
{
    squares_call c = {x, n, UL_GRAIN, ul_pool_shared(s)};
    while ((n + c.block - 1) / c.block > MAX_BLOCKS) c.block *= 2;
    int64_t blocks = (n + c.block - 1) / c.block;
    ul_parallel(s, blocks, square_block, &c);
    double sum = 0;
    for (int64_t i = 0; i < blocks; i++) sum += c.sums[i];
    *out = sum;
    return 0;
}
