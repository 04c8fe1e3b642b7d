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

struct product {
    ul_gemm g;
    void *c;
    const real *a, *b;
    acc alpha, beta;
    int64_t row_tiles, col_tiles, tiles;
};

/* The element (row, k) of op(a), (k, col) of op(b); 0 outside of them. */
__device__ __forceinline__ acc a_at(const product &p, const real *a, int64_t row, int64_t k)
{
    if (row >= p.g.m || k >= p.g.k) return 0;
    return load(p.g.a_trans ? a[k * p.g.lda + row] : a[row * p.g.lda + k]);
}

__device__ __forceinline__ acc b_at(const product &p, const real *b, int64_t k, int64_t col)
{
    if (col >= p.g.n || k >= p.g.k) return 0;
    return load(p.g.b_trans ? b[col * p.g.ldb + k] : b[k * p.g.ldb + col]);
}

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

/* Neighbouring threads read what lies side by side, whichever way a and b are stored. */
__device__ __forceinline__ void load_tiles(const product &p, acc (*a)[TILE + 1], acc (*b)[TILE + 1],
                                           int64_t row, int64_t col, int64_t k, const real *from_a,
                                           const real *from_b)
{
    for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        int along = i % TILE, deep = i / TILE;
        if (!p.g.a_trans) deep = i % DEPTH, along = i / DEPTH;
        a[deep][along] = a_at(p, from_a, row + along, k + deep);
        along = i % TILE, deep = i / TILE;
        if (p.g.b_trans) deep = i % DEPTH, along = i / DEPTH;
        b[deep][along] = b_at(p, from_b, k + deep, col + along);
    }
}

static __global__ void gemm_kernel(product p)
{
    __shared__ acc a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    int first_row = threadIdx.x / (TILE / SQUARE) * SQUARE;
    int first_col = threadIdx.x % (TILE / SQUARE) * SQUARE;
    for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        int64_t batch = tile / p.col_tiles / p.row_tiles;
        int64_t row = tile / p.col_tiles % p.row_tiles * TILE, col = tile % p.col_tiles * TILE;
        acc sum[SQUARE][SQUARE] = {}, total[SQUARE][SQUARE] = {};
        for (int64_t k = 0; k < p.g.k; k += DEPTH) {
            load_tiles(p, a, b, row, col, k, p.a + batch * p.g.a_step, p.b + batch * p.g.b_step);
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

int CUDA(gemm)(ul_stream *s, void *c, const void *a, const void *b, const ul_gemm *g)
{
    if (g->m == 0 || g->n == 0 || g->batch == 0) return 0;
    int made, bad = ul_blaslt_gemm(&made, s, UL_JOIN(TYPE_, UL_TYPE), c, a, b, g);
    if (bad || made) return bad;
    product p = {*g,
                 c,
                 (const real *)a,
                 (const real *)b,
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
