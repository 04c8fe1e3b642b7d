/* norm.cu - RMSNorm (alone or fused with the residual add) and LayerNorm. A block for each row;
 * gradients of weights are sums down the columns, in the order of the rows.
 */
#include "block.h"

__device__ __forceinline__ acc weight_of(const real *w, int64_t i) { return w ? load(w[i]) : 1; }

KERNEL rms_norm_kernel(real *y, real *h, acc *r, const real *x, const real *residual, const real *w,
                       int64_t rows, int64_t cols, double eps)
{
    ROW_STRIDE(row, rows)
    {
        int64_t at = row * cols;
        const real *from = residual ? h + at : x + at;
        acc square = 0;
        COLUMNS(i, cols)
        {
            if (residual) h[at + i] = store(load(x[at + i]) + load(residual[at + i]));
            acc v = load(from[i]);
            square += v * v;
        }
        acc mean = block_sum(square) / (acc)cols, scale = 1 / sqrt(mean + (acc)eps);
        if (threadIdx.x == 0) r[row] = scale;
        COLUMNS(i, cols) y[at + i] = store(load(from[i]) * scale * weight_of(w, i));
    }
}

int CUDA(rms_norm)(ul_stream *s, void *y, void *h, void *r, const void *x, const void *residual,
                   const void *w, int64_t rows, int64_t cols, double eps)
{
    if (rows == 0) return 0;
    UL_LAUNCH(rms_norm_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0, s->stream,
              (real *)y, (real *)h, (acc *)r, (const real *)x, (const real *)residual,
              (const real *)w, rows, cols, eps);
    return ul_cuda_launched("rms_norm");
}

/* With g = dy w: dx = r (g - x r^2 mean(g x)), plus dh. */
KERNEL rms_norm_backward_kernel(ul_grad dx, const real *dy, const real *dh, const real *x,
                                const real *w, const acc *r, int64_t rows, int64_t cols)
{
    ROW_STRIDE(row, rows)
    {
        int64_t at = row * cols;
        acc dot = 0, scale = r[row];
        COLUMNS(i, cols) dot += load(dy[at + i]) * weight_of(w, i) * load(x[at + i]);
        acc pull = scale * (scale * (block_sum(dot) / (acc)cols)) * scale;
        COLUMNS(i, cols)
        {
            acc d = load(dy[at + i]) * weight_of(w, i) * scale - load(x[at + i]) * pull;
            if (dh) d += load(dh[at + i]);
            give((real *)dx.data + at + i, dx.add, d);
        }
    }
}

/* ---- sums down the columns ---- */

enum { COLUMN_PARTS = 64 }; /* at most: runs of rows, summed one after the other at the end */

/* With n = (x - mean) r (mean NULL: 0): dw = sum dy n, db = sum dy. parts [2, n_parts, cols] */
KERNEL column_sums_kernel(acc *parts, int n_parts, const real *dy, const real *x, const acc *mean,
                          const acc *r, int64_t rows, int64_t cols)
{
    GRID_STRIDE(k, cols * n_parts)
    {
        int64_t i = k % cols, part = k / cols, each = (rows + n_parts - 1) / n_parts;
        int64_t begin = part * each, end = begin + each < rows ? begin + each : rows;
        acc dw = 0, db = 0;
        for (int64_t row = begin; row < end; row++) {
            acc g = load(dy[row * cols + i]), v = load(x[row * cols + i]);
            dw += g * ((mean ? v - mean[row] : v) * r[row]);
            db += g;
        }
        parts[k] = dw;
        parts[cols * n_parts + k] = db;
    }
}

KERNEL column_ends_kernel(ul_grad dw, ul_grad db, const acc *parts, int n_parts, int64_t cols)
{
    GRID_STRIDE(i, cols)
    {
        acc w = 0, b = 0;
        for (int p = 0; p < n_parts; p++) {
            w += parts[p * cols + i];
            b += parts[(n_parts + p) * cols + i];
        }
        acc *to_w = (acc *)dw.data, *to_b = (acc *)db.data;
        if (to_w) to_w[i] = dw.add ? to_w[i] + w : w;
        if (to_b) to_b[i] = db.add ? to_b[i] + b : b;
    }
}

static int column_sums(ul_stream *s, ul_grad dw, ul_grad db, const real *dy, const real *x,
                       const acc *mean, const acc *r, int64_t rows, int64_t cols)
{
    int64_t room = s->scratch_bytes / (2 * (int64_t)sizeof(acc)) / (cols > 0 ? cols : 1);
    if (cols == 0 || (!dw.data && !db.data)) return 0;
    int n_parts = (int)smaller(smaller(COLUMN_PARTS, room), rows > 0 ? rows : 1);
    if (n_parts < 1) n_parts = 1;
    acc *parts = (acc *)s->scratch;
    UL_LAUNCH(column_sums_kernel, grid_for(s, cols * n_parts, BLOCK), dim3(BLOCK), 0, s->stream,
              parts, n_parts, dy, x, mean, r, rows, cols);
    UL_LAUNCH(column_ends_kernel, grid_for(s, cols, BLOCK), dim3(BLOCK), 0, s->stream, dw, db,
              parts, n_parts, cols);
    return ul_cuda_launched("norm_backward");
}

int CUDA(rms_norm_backward)(ul_stream *s, ul_grad dx, ul_grad dw, const void *dy, const void *dh,
                            const void *x, const void *w, const void *r, int64_t rows, int64_t cols)
{
    const ul_grad none = {NULL, 0};
    if (dx.data && rows > 0 && cols > 0)
        UL_LAUNCH(rms_norm_backward_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0,
                  s->stream, dx, (const real *)dy, (const real *)dh, (const real *)x,
                  (const real *)w, (const acc *)r, rows, cols);
    int rc = ul_cuda_launched("rms_norm_backward");
    if (rc < 0) return rc;
    return column_sums(s, dw, none, (const real *)dy, (const real *)x, NULL, (const acc *)r, rows,
                       cols);
}

/* ---- LayerNorm ---- */

KERNEL layer_norm_kernel(real *y, acc *mean, acc *r, const real *x, const real *w, const real *b,
                         int64_t rows, int64_t cols, double eps)
{
    ROW_STRIDE(row, rows)
    {
        int64_t at = row * cols;
        acc sum = 0, square = 0;
        COLUMNS(i, cols) sum += load(x[at + i]);
        acc middle = block_sum(sum) / (acc)cols;
        COLUMNS(i, cols)
        {
            acc d = load(x[at + i]) - middle;
            square += d * d;
        }
        acc scale = 1 / sqrt(block_sum(square) / (acc)cols + (acc)eps);
        if (threadIdx.x == 0) mean[row] = middle, r[row] = scale;
        COLUMNS(i, cols)
        {
            acc n = (load(x[at + i]) - middle) * scale * weight_of(w, i);
            y[at + i] = store(b ? n + load(b[i]) : n);
        }
    }
}

int CUDA(layer_norm)(ul_stream *s, void *y, void *mean, void *r, const void *x, const void *w,
                     const void *b, int64_t rows, int64_t cols, double eps)
{
    if (rows == 0) return 0;
    UL_LAUNCH(layer_norm_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0, s->stream,
              (real *)y, (acc *)mean, (acc *)r, (const real *)x, (const real *)w, (const real *)b,
              rows, cols, eps);
    return ul_cuda_launched("layer_norm");
}

/* With g = dy w and n = (x - mean) r: dx = r (g - mean(g) - n mean(g n)). */
KERNEL layer_norm_backward_kernel(ul_grad dx, const real *dy, const real *x, const real *w,
                                  const acc *mean, const acc *r, int64_t rows, int64_t cols)
{
    ROW_STRIDE(row, rows)
    {
        int64_t at = row * cols;
        acc sum = 0, dot = 0, middle = mean[row], scale = r[row];
        COLUMNS(i, cols)
        {
            acc g = load(dy[at + i]) * weight_of(w, i);
            sum += g;
            dot += g * ((load(x[at + i]) - middle) * scale);
        }
        acc shift = block_sum(sum) / (acc)cols, pull = block_sum(dot) / (acc)cols;
        COLUMNS(i, cols)
        {
            acc g = load(dy[at + i]) * weight_of(w, i), n = (load(x[at + i]) - middle) * scale;
            give((real *)dx.data + at + i, dx.add, scale * (g - (n * pull + shift)));
        }
    }
}

int CUDA(layer_norm_backward)(ul_stream *s, ul_grad dx, ul_grad dw, ul_grad db, const void *dy,
                              const void *x, const void *w, const void *mean, const void *r,
                              int64_t rows, int64_t cols)
{
    if (dx.data && rows > 0 && cols > 0)
        UL_LAUNCH(layer_norm_backward_kernel, grid_of_rows(s, rows), dim3(threads_for(cols)), 0,
                  s->stream, dx, (const real *)dy, (const real *)x, (const real *)w,
                  (const acc *)mean, (const acc *)r, rows, cols);
    int rc = ul_cuda_launched("layer_norm_backward");
    if (rc < 0) return rc;
    return column_sums(s, dw, db, (const real *)dy, (const real *)x, (const acc *)mean,
                       (const acc *)r, rows, cols);
}
