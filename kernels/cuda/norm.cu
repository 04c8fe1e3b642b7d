/* norm.cu - RMSNorm (alone or fused with the residual add) and LayerNorm. Gradients of weights are
 * sums down the columns, in an order that follows from the shape and the device.
 */
#include "rows.h"

/* The weights of a run; 1 where there are none. */
template <int N> struct weights {
    acc v[N];
};

template <int N> __device__ __forceinline__ weights<N> weights_of(const real *w, int64_t at)
{
    weights<N> to;
    if (w) {
        run<real, N> from = load_run<N>(w + at);
        UNROLLED (j, N) to.v[j] = load(from.v[j]);
    } else {
        UNROLLED (j, N) to.v[j] = 1;
    }
    return to;
}

/* x += residual, to h */
template <int N>
__device__ __forceinline__ void add_residual(run<real, N> (&x)[HELD], real *h, const real *residual,
                                             int64_t base, int64_t runs)
{
    run<real, N> y[HELD];
    read_runs<N>(y, residual, base, runs);
    RUNS (k, i, base, runs) {
        UNROLLED (j, N) x[k].v[j] = store(load(x[k].v[j]) + load(y[k].v[j]));
        store_run(h + i * N, x[k]);
    }
}

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    rms_norm_kernel(real *y, real *h, acc *r, const real *x, const real *residual, const real *w,
                    int64_t rows, int64_t runs, acc eps)
{
    ROWS(row, rows)
    {
        int64_t at = row * runs * N;
        run<real, N> from[HELD], to;
        acc square = 0;
        CHUNKS(base, runs)
        {
            read_runs<N>(from, x + at, base, runs);
            if (residual) add_residual<N>(from, h + at, residual + at, base, runs);
            RUNS (k, i, base, runs)
                UNROLLED (j, N) square += load(from[k].v[j]) * load(from[k].v[j]);
        }
        acc scale = 1 / sqrt(block_sum(square) / (acc)(runs * N) + eps);
        if (threadIdx.x == 0) r[row] = scale;
        CHUNKS(base, runs)
        {
            if (!is_one_chunk(runs)) read_runs<N>(from, (residual ? h : x) + at, base, runs);
            RUNS (k, i, base, runs) {
                weights<N> weight = weights_of<N>(w, i * N);
                UNROLLED (j, N) to.v[j] = store(load(from[k].v[j]) * scale * weight.v[j]);
                store_run(y + at + i * N, to);
            }
        }
    }
}

int CUDA(rms_norm)(ul_stream *s, void *y, void *h, void *r, const void *x, const void *residual,
                   const void *w, int64_t rows, int64_t cols, double eps)
{
    if (rows == 0) return 0;
    int aligned = is_aligned(y) && is_aligned(x) && is_aligned(w);
    if (residual) aligned = aligned && is_aligned(h) && is_aligned(residual);
    by_width(s, rows, cols, aligned, [&](auto n, const row_grid &g) {
        enum { N = decltype(n)::OF };
        UL_LAUNCH((rms_norm_kernel<N>), g.grid, g.block, 0, s->stream, (real *)y, (real *)h,
                  (acc *)r, (const real *)x, (const real *)residual, (const real *)w, rows,
                  cols / N, (acc)eps);
    });
    return ul_cuda_launched("rms_norm");
}

/* ---- sums down the columns ---- */

/* With n = (x - mean) r (mean NULL: 0): dw = sum dy n, db = sum dy. parts [2, n_parts, cols]: a
 * thread has a run of columns, and a part of the rows.
 */
template <int N>
static __global__ void column_sums_kernel(acc *parts, int n_parts, const real *dy, const real *x,
                                          const acc *mean, const acc *r, int64_t rows, int64_t runs)
{
    GRID_STRIDE(k, runs * n_parts)
    {
        int64_t part = k / runs, i = (k - part * runs) * N, cols = runs * N;
        int64_t each = (rows + n_parts - 1) / n_parts, begin = part * each;
        int64_t end = begin + each < rows ? begin + each : rows;
        run<acc, N> dw, db;
        UNROLLED (j, N) dw.v[j] = db.v[j] = 0;
        for (int64_t row = begin; row < end; row++) {
            run<real, N> g = load_run<N>(dy + row * cols + i), v = load_run<N>(x + row * cols + i);
            acc middle = mean ? mean[row] : 0, scale = r[row];
            UNROLLED (j, N) {
                dw.v[j] += load(g.v[j]) * ((load(v.v[j]) - middle) * scale);
                db.v[j] += load(g.v[j]);
            }
        }
        store_run(parts + part * cols + i, dw);
        store_run(parts + (n_parts + part) * cols + i, db);
    }
}

/* A block for each 32 columns: each of its warps adds every 32nd part, the first what these have.
 */
KERNEL column_ends_kernel(ul_grad grad, const acc *parts, int n_parts, int64_t cols)
{
    __shared__ acc sums[WARP][WARP + 1];
    for (int64_t first = blockIdx.x * (int64_t)WARP; first < cols; first += gridDim.x * WARP) {
        int64_t i = first + threadIdx.x;
        acc sum = 0;
        if (i < cols)
            for (int p = threadIdx.y; p < n_parts; p += WARP) sum += parts[p * cols + i];
        sums[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && i < cols) {
            acc *to = (acc *)grad.data + i;
            for (int p = 1; p < WARP; p++) sum += sums[p][threadIdx.x];
            *to = grad.add ? *to + sum : sum;
        }
        __syncthreads();
    }
}

static void end_columns(ul_stream *s, ul_grad grad, const acc *parts, int n_parts, int64_t cols)
{
    if (grad.data)
        UL_LAUNCH(column_ends_kernel, grid_for(s, ceil_div(cols, WARP), 1), dim3(WARP, WARP), 0,
                  s->stream, grad, parts, n_parts, cols);
}

/* Rows of so many sums [cols] that scratch has room for. */
static int64_t room_for(const ul_stream *s, int64_t cols)
{
    return s->scratch_bytes / (int64_t)sizeof(acc) / (cols > 0 ? cols : 1);
}

static int column_sums(ul_stream *s, ul_grad dw, ul_grad db, const real *dy, const real *x,
                       const acc *mean, const acc *r, int64_t rows, int64_t cols)
{
    enum { MOST_PARTS = 256 };
    if (cols == 0 || (!dw.data && !db.data)) return 0;
    int n_parts = (int)smaller(smaller(MOST_PARTS, room_for(s, cols) / 2), rows > 0 ? rows : 1);
    if (n_parts < 1) return ul_cuda_fail("the rows of a norm are too long for its gradient");
    acc *parts = (acc *)s->scratch;
    by_width(s, rows, cols, is_aligned(dy) && is_aligned(x), [&](auto n, const row_grid &) {
        enum { N = decltype(n)::OF };
        UL_LAUNCH((column_sums_kernel<N>), grid_for(s, cols / N * n_parts, BLOCK), dim3(BLOCK), 0,
                  s->stream, parts, n_parts, dy, x, mean, r, rows, cols / N);
    });
    end_columns(s, dw, parts, n_parts, cols);
    end_columns(s, db, parts + n_parts * cols, n_parts, cols);
    return ul_cuda_launched("norm_backward");
}

/* ---- RMSNorm, backward ---- */

struct rms_slopes {
    ul_grad dx; /* NULL: dw alone */
    acc *parts; /* [groups, cols] of dw, where rows are one chunk; or NULL */
    const real *dy, *dh, *x, *w;
    const acc *r;
    int64_t rows, runs;
};

/* With g = dy w: dx = r (g - x r^2 mean(g x)), plus dh. */
template <int N>
__device__ __forceinline__ void give_rms_slopes(const rms_slopes &f, int64_t row, acc pull,
                                                run<real, N> (&g)[HELD], run<real, N> (&x)[HELD])
{
    int64_t at = row * f.runs * N;
    acc scale = f.r[row];
    CHUNKS(base, f.runs)
    {
        if (!is_one_chunk(f.runs)) {
            read_runs<N>(g, f.dy + at, base, f.runs);
            read_runs<N>(x, f.x + at, base, f.runs);
        }
        RUNS (k, i, base, f.runs) {
            real *out = (real *)f.dx.data + at + i * N;
            weights<N> weight = weights_of<N>(f.w, i * N);
            run<real, N> more, to;
            if (f.dh) more = load_run<N>(f.dh + at + i * N);
            if (f.dx.add) to = load_run<N>(out);
            UNROLLED (j, N) {
                acc d = load(g[k].v[j]) * weight.v[j] * scale - load(x[k].v[j]) * pull;
                give(to.v + j, f.dx.add, f.dh ? d + load(more.v[j]) : d);
            }
            store_run(out, to);
        }
    }
}

/* Of a block that keeps sums in registers besides; and how many of a multiprocessor these are for.
 */
enum { SUM_THREADS = 256, RESIDENT = 384 };

/* A group of threads has each n_groups()th row, and sums its columns' dw in registers. */
template <int N>
static __global__ void __launch_bounds__(RESIDENT, 1) rms_norm_backward_kernel(rms_slopes f)
{
    acc dw[HELD][N];
    UNROLLED (k, HELD)
        UNROLLED (j, N) dw[k][j] = 0;
    ROWS(row, f.rows)
    {
        int64_t at = row * f.runs * N;
        run<real, N> g[HELD], x[HELD];
        acc dot = 0, scale = f.r[row];
        CHUNKS(base, f.runs)
        {
            read_runs<N>(g, f.dy + at, base, f.runs);
            read_runs<N>(x, f.x + at, base, f.runs);
            RUNS (k, i, base, f.runs) {
                weights<N> weight = weights_of<N>(f.w, i * N);
                UNROLLED (j, N) {
                    acc d = load(g[k].v[j]), v = load(x[k].v[j]);
                    dot += d * weight.v[j] * v;
                    dw[k][j] += d * (v * scale);
                }
            }
        }
        if (!f.dx.data) continue;
        acc pull = scale * (scale * (block_sum(dot) / (acc)(f.runs * N))) * scale;
        give_rms_slopes<N>(f, row, pull, g, x);
    }
    if (!f.parts) return;
    RUNS (k, i, 0, f.runs) {
        run<acc, N> to;
        UNROLLED (j, N) to.v[j] = dw[k][j];
        store_run(f.parts + (group() * f.runs + i) * N, to);
    }
}

int CUDA(rms_norm_backward)(ul_stream *s, ul_grad dx, ul_grad dw, const void *dy, const void *dh,
                            const void *x, const void *w, const void *r, int64_t rows, int64_t cols)
{
    const ul_grad none = {NULL, 0};
    rms_slopes f = {dx,
                    NULL,
                    (const real *)dy,
                    (const real *)dh,
                    (const real *)x,
                    (const real *)w,
                    (const acc *)r,
                    rows,
                    0};
    int aligned =
        is_aligned(dx.data) && is_aligned(dy) && is_aligned(dh) && is_aligned(x) && is_aligned(w);
    int64_t n_parts = 0, room = room_for(s, cols);
    if (rows == 0 || cols == 0) return column_sums(s, dw, none, f.dy, f.x, NULL, f.r, rows, cols);
    auto launch = [&](auto n, row_grid g) {
        enum { N = decltype(n)::OF };
        f.runs = cols / N;
        int64_t most =
            smaller(room / g.block.y, s->processors * (RESIDENT / (g.block.x * g.block.y)));
        if (dw.data && f.runs <= (int64_t)HELD * g.block.x && most >= s->processors) {
            g.grid.x = (unsigned)smaller(g.grid.x, most);
            f.parts = (acc *)s->scratch;
            n_parts = (int64_t)g.grid.x * g.block.y;
        }
        if (dx.data || f.parts)
            UL_LAUNCH((rms_norm_backward_kernel<N>), g.grid, g.block, 0, s->stream, f);
    };
    by_width(s, rows, cols, aligned, launch, SUM_THREADS);
    if (dw.data && !f.parts) return column_sums(s, dw, none, f.dy, f.x, NULL, f.r, rows, cols);
    if (f.parts) end_columns(s, dw, f.parts, (int)n_parts, cols);
    return ul_cuda_launched("rms_norm_backward");
}

/* ---- LayerNorm ---- */

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    layer_norm_kernel(real *y, acc *mean, acc *r, const real *x, const real *w, const real *b,
                      int64_t rows, int64_t runs, acc eps)
{
    ROWS(row, rows)
    {
        int64_t at = row * runs * N;
        run<real, N> from[HELD], to, shift;
        acc sum = 0, square = 0;
        CHUNKS(base, runs)
        {
            read_runs<N>(from, x + at, base, runs);
            RUNS (k, i, base, runs)
                UNROLLED (j, N) sum += load(from[k].v[j]);
        }
        acc middle = block_sum(sum) / (acc)(runs * N);
        CHUNKS(base, runs)
        {
            if (!is_one_chunk(runs)) read_runs<N>(from, x + at, base, runs);
            RUNS (k, i, base, runs)
                UNROLLED (j, N) {
                    acc d = load(from[k].v[j]) - middle;
                    square += d * d;
                }
        }
        acc scale = 1 / sqrt(block_sum(square) / (acc)(runs * N) + eps);
        if (threadIdx.x == 0) mean[row] = middle, r[row] = scale;
        CHUNKS(base, runs)
        {
            if (!is_one_chunk(runs)) read_runs<N>(from, x + at, base, runs);
            RUNS (k, i, base, runs) {
                weights<N> weight = weights_of<N>(w, i * N);
                if (b) shift = load_run<N>(b + i * N);
                UNROLLED (j, N) {
                    acc n = (load(from[k].v[j]) - middle) * scale * weight.v[j];
                    to.v[j] = store(b ? n + load(shift.v[j]) : n);
                }
                store_run(y + at + i * N, to);
            }
        }
    }
}

int CUDA(layer_norm)(ul_stream *s, void *y, void *mean, void *r, const void *x, const void *w,
                     const void *b, int64_t rows, int64_t cols, double eps)
{
    if (rows == 0) return 0;
    int aligned = is_aligned(y) && is_aligned(x) && is_aligned(w) && is_aligned(b);
    by_width(s, rows, cols, aligned, [&](auto n, const row_grid &g) {
        enum { N = decltype(n)::OF };
        UL_LAUNCH((layer_norm_kernel<N>), g.grid, g.block, 0, s->stream, (real *)y, (acc *)mean,
                  (acc *)r, (const real *)x, (const real *)w, (const real *)b, rows, cols / N,
                  (acc)eps);
    });
    return ul_cuda_launched("layer_norm");
}

/* With g = dy w and n = (x - mean) r: dx = r (g - mean(g) - n mean(g n)). */
template <int N>
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    layer_norm_backward_kernel(ul_grad dx, const real *dy, const real *x, const real *w,
                               const acc *mean, const acc *r, int64_t rows, int64_t runs)
{
    ROWS(row, rows)
    {
        int64_t at = row * runs * N;
        run<real, N> from_g[HELD], from_x[HELD], to;
        acc sum = 0, dot = 0, middle = mean[row], scale = r[row];
        CHUNKS(base, runs)
        {
            read_runs<N>(from_g, dy + at, base, runs);
            read_runs<N>(from_x, x + at, base, runs);
            RUNS (k, i, base, runs) {
                weights<N> weight = weights_of<N>(w, i * N);
                UNROLLED (j, N) {
                    acc g = load(from_g[k].v[j]) * weight.v[j];
                    sum += g;
                    dot += g * ((load(from_x[k].v[j]) - middle) * scale);
                }
            }
        }
        acc shift = block_sum(sum) / (acc)(runs * N), pull = block_sum(dot) / (acc)(runs * N);
        CHUNKS(base, runs)
        {
            if (!is_one_chunk(runs)) {
                read_runs<N>(from_g, dy + at, base, runs);
                read_runs<N>(from_x, x + at, base, runs);
            }
            RUNS (k, i, base, runs) {
                real *out = (real *)dx.data + at + i * N;
                weights<N> weight = weights_of<N>(w, i * N);
                if (dx.add) to = load_run<N>(out);
                UNROLLED (j, N) {
                    acc g = load(from_g[k].v[j]) * weight.v[j];
                    acc n = (load(from_x[k].v[j]) - middle) * scale;
                    give(to.v + j, dx.add, scale * (g - (n * pull + shift)));
                }
                store_run(out, to);
            }
        }
    }
}

int CUDA(layer_norm_backward)(ul_stream *s, ul_grad dx, ul_grad dw, ul_grad db, const void *dy,
                              const void *x, const void *w, const void *mean, const void *r,
                              int64_t rows, int64_t cols)
{
    if (dx.data && rows > 0 && cols > 0) {
        int aligned = is_aligned(dx.data) && is_aligned(dy) && is_aligned(x) && is_aligned(w);
        by_width(s, rows, cols, aligned, [&](auto n, const row_grid &g) {
            enum { N = decltype(n)::OF };
            UL_LAUNCH((layer_norm_backward_kernel<N>), g.grid, g.block, 0, s->stream, dx,
                      (const real *)dy, (const real *)x, (const real *)w, (const acc *)mean,
                      (const acc *)r, rows, cols / N);
        });
    }
    int rc = ul_cuda_launched("layer_norm_backward");
    if (rc < 0) return rc;
    return column_sums(s, dw, db, (const real *)dy, (const real *)x, (const acc *)mean,
                       (const acc *)r, rows, cols);
}
