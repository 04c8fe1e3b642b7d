/* matmul.cu - products of matrices: by cuBLASLt, and of tiles in shared memory what it does not
 * take.
 *
 * A block makes a tile of c; each thread a square of it, summed over k in order: the result is the
 * same in every run.
 */
#include "blaslt.h"
#include "cuda.h"

/* So many products of tiles go into one partial sum: a long one loses less. */
enum { RUN = 32 };
enum { TYPE_f32 = UL_BLASLT_F32, TYPE_bf16 = UL_BLASLT_BF16, TYPE_f64 = UL_BLASLT_F64 };
enum { TILE = 64, DEPTH = 16, SQUARE = 4, THREADS = (TILE / SQUARE) * (TILE / SQUARE) };

/* a or b: `extent` is m or n. Side by side lie elements of one m or n (by_k), or of one k; wide: 16
 * bytes of them at multiples of 16, none of which are in part outside.
 */
struct operand {
    const real *data;
    int64_t step, stride, extent; /* step: from one matrix to the next */
    int by_k, wide;
};

struct product {
    ul_gemm g;
    void *c;
    operand a, b;
    acc alpha, beta;
    int64_t row_tiles, col_tiles, tiles;
};

/* c = alpha sum + beta c + bias, at one element */
__device__ __forceinline__ void put(const product &p, int64_t at, int64_t col, acc sum)
{
    acc y = p.alpha * sum;
    if (p.g.bias) y += load(((const real *)p.g.bias)[col]);
    if (p.g.c_acc) {
        acc *c = (acc *)p.c + at;
        *c = p.beta != 0 ? y + p.beta * *c : y;
    } else {
        real *c = (real *)p.c + at;
        *c = store(p.beta != 0 ? y + p.beta * load(*c) : y);
    }
}

/* to [k][m or n], N elements at a time; 0 outside of the operand. Neighbouring threads read what
 * lies side by side.
 */
template <int N>
__device__ __forceinline__ void load_tile(acc (*to)[TILE + 1], const operand &x, int64_t batch,
                                          int64_t first, int64_t k, int64_t k_extent)
{
    for (int i = threadIdx.x * N; i < TILE * DEPTH; i += THREADS * N) {
        int deep = x.by_k ? i % DEPTH : i / TILE, along = x.by_k ? i / DEPTH : i % TILE;
        int64_t row = x.by_k ? first + along : k + deep, col = x.by_k ? k + deep : first + along;
        int inside = first + along < x.extent && k + deep < k_extent;
        run<real, N> from;
        if (inside) from = load_run<N>(x.data + batch * x.step + row * x.stride + col);
        UNROLLED (j, N)
            to[x.by_k ? deep + j : deep][x.by_k ? along : along + j] = inside ? load(from.v[j]) : 0;
    }
}

__device__ __forceinline__ void load_operand(acc (*to)[TILE + 1], const operand &x, int64_t batch,
                                             int64_t first, int64_t k, int64_t k_extent)
{
    if (x.wide)
        load_tile<PACK>(to, x, batch, first, k, k_extent);
    else
        load_tile<1>(to, x, batch, first, k, k_extent);
}

/* As many blocks to a multiprocessor as the sums of f32, and of f64, leave registers for. */
static __global__ void __launch_bounds__(THREADS, sizeof(acc) == 4 ? 3 : 2) gemm_kernel(product p)
{
    __shared__ acc a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    int first_row = threadIdx.x / (TILE / SQUARE) * SQUARE;
    int first_col = threadIdx.x % (TILE / SQUARE) * SQUARE;
    for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        int64_t batch = tile / p.col_tiles / p.row_tiles;
        int64_t row = tile / p.col_tiles % p.row_tiles * TILE, col = tile % p.col_tiles * TILE;
        acc sum[SQUARE][SQUARE] = {}, total[SQUARE][SQUARE] = {};
        for (int64_t k = 0; k < p.g.k; k += DEPTH) {
            load_operand(a, p.a, batch, row, k, p.g.k);
            load_operand(b, p.b, batch, col, k, p.g.k);
            __syncthreads();
            for (int deep = 0; deep < DEPTH; deep++)
                for (int i = 0; i < SQUARE; i++)
                    for (int j = 0; j < SQUARE; j++)
                        sum[i][j] += a[deep][first_row + i] * b[deep][first_col + j];
            __syncthreads();
            if (k / DEPTH % RUN == RUN - 1 || k + DEPTH >= p.g.k)
                for (int i = 0; i < SQUARE; i++)
                    for (int j = 0; j < SQUARE; j++) total[i][j] += sum[i][j], sum[i][j] = 0;
        }
        for (int i = 0; i < SQUARE; i++)
            for (int j = 0; j < SQUARE; j++) {
                int64_t r = row + first_row + i, c = col + first_col + j;
                if (r < p.g.m && c < p.g.n)
                    put(p, batch * p.g.c_step + r * p.g.ldc + c, c, total[i][j]);
            }
    }
}

static operand operand_of(const void *x, int64_t step, int64_t stride, int64_t extent, int64_t k,
                          int by_k)
{
    int wide = is_aligned(x) && (step | stride | (by_k ? k : extent)) % PACK == 0;
    return operand{(const real *)x, step, stride, extent, by_k, wide};
}

int CUDA(gemm)(ul_stream *s, void *c, const void *a, const void *b, const ul_gemm *g)
{
    if (g->m == 0 || g->n == 0 || g->batch == 0) return 0;
    int made, bad = ul_blaslt_gemm(&made, s, UL_JOIN(TYPE_, UL_TYPE), c, a, b, g);
    if (bad || made) return bad;
    product p = {*g,
                 c,
                 operand_of(a, g->a_step, g->lda, g->m, g->k, !g->a_trans),
                 operand_of(b, g->b_step, g->ldb, g->n, g->k, g->b_trans),
                 (acc)g->alpha,
                 (acc)g->beta,
                 ceil_div(g->m, TILE),
                 ceil_div(g->n, TILE),
                 0};
    p.tiles = p.row_tiles * p.col_tiles * g->batch;
    dim3 grid((unsigned)smaller(p.tiles, INT32_MAX));
    UL_LAUNCH(gemm_kernel, grid, dim3(THREADS), 0, s->stream, p);
    return ul_cuda_launched("gemm");
}
