/* attention_flash.h - attention of bf16 by the tensor cores: what its two directions share.
 *
 * A block of four warps keeps tiles [rows, DIM] in shared memory, DIM being the head's size rounded
 * up (zeros beyond it); a warp has 16 rows of the block's own tile, or 32, against all rows of the
 * tiles that it walks over. Products are summed in f32, in an order that follows from the shapes.
 */
#ifndef UL_CUDA_ATTENTION_FLASH_H
#define UL_CUDA_ATTENTION_FLASH_H

#include "attention.h"
#include "mma.h"

/* The largest head; others are for the kernels without tensor cores. */
enum { FLASH_DIM = 256 };

extern "C" {
int ul_cuda_flash(ul_stream *s, void *o, float *lse, const void *q, const void *k, const void *v,
                  const ul_attention_args *a);
/* delta [B, H, Tq]: sums over D of do o */
int ul_cuda_flash_backward(ul_stream *s, ul_grad dq, ul_grad dk, ul_grad dv, const void *d_o,
                           const float *delta, const float *lse, const void *q, const void *k,
                           const void *v, const ul_attention_args *a);
}

#if UL_TYPE_IS(bf16)
enum { FLASH_WARPS = 4, FLASH_THREADS = FLASH_WARPS * WARP };

static const float log2_of_e = 1.44269504f, log_of_2 = 0.693147181f;

/* From one row of a tile to the next: an odd number of 16 bytes, so that eight rows at one column
 * lie in different banks. What is known of a row's query lies in the 16 bytes behind it: heads of
 * 256 leave no other room on a device that gives a block 99 KiB.
 */
__host__ __device__ constexpr int row_step(int dim) { return dim + 8; }

template <class T, int DIM> __device__ __forceinline__ T *behind_row(uint16_t *tile, int row)
{
    static_assert(sizeof(T) <= 16, "more than there is room for");
    return (T *)(tile + row * row_step(DIM) + DIM);
}

/* One head of a tensor: rows of `dim` elements, `step` from each to the next. `aligned`: every row
 * begins at a multiple of 16 bytes.
 */
struct head_rows {
    const uint16_t *data;
    int64_t step;
    int dim, aligned;
};

static inline head_rows rows_of_head(const void *x, int64_t step, int64_t dim, int aligned)
{
    head_rows rows = {(const uint16_t *)x, step, (int)dim, aligned};
    return rows;
}

/* The same rows of another place. */
__device__ __forceinline__ head_rows rows_from(const head_rows &x, int64_t at)
{
    head_rows rows = {x.data + at, x.step, x.dim, x.aligned};
    return rows;
}

/* Whether all rows of x, whose strides (in elements) are given, begin at multiples of 16 bytes. */
static inline int rows_are_aligned(const void *x, const int64_t stride[3])
{
    return is_aligned(x) && (stride[0] | stride[1] | stride[2]) % PACK == 0;
}

/* Begins to copy n rows to a tile [ROWS, DIM]; zeros beyond them. Behind copy_wait and
 * __syncthreads they are there.
 */
template <int DIM, int ROWS>
__device__ __forceinline__ void copy_rows(uint16_t *to, const head_rows &from, int n)
{
    enum { CHUNKS = DIM / PACK };
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += FLASH_THREADS) {
        int row = i / CHUNKS, d = i % CHUNKS * PACK, left = row < n ? from.dim - d : 0;
        uint16_t *at = to + row * row_step(DIM) + d;
        const uint16_t *x = left > 0 ? from.data + row * from.step + d : from.data;
        if (from.aligned) {
            copy_async(at, x, 2 * (left < 0 ? 0 : left < PACK ? left : (int)PACK));
        } else {
            for (int e = 0; e < PACK; e++) at[e] = e < left ? x[e] : 0;
        }
    }
}

/* s [16 BLOCKS, COLS] = a b^T, a [16 BLOCKS, DIM] the warp's rows of a tile, b [COLS, DIM]. */
template <int DIM, int BLOCKS, int COLS>
__device__ __forceinline__ void multiply_rows(float (&s)[BLOCKS][COLS / 8][4], const uint16_t *a,
                                              const uint16_t *b)
{
    const int lane = threadIdx.x % WARP, step = row_step(DIM);
    a += lane % 16 * step + lane / 16 * 8;
    b += (lane / 16 * 8 + lane % 8) * step + lane / 8 % 2 * 8;
    UNROLLED (m, BLOCKS)
        UNROLLED (n, COLS / 8)
            UNROLLED (i, 4) s[m][n][i] = 0;
    UNROLLED (j, DIM / 16) {
        const int d = j * 16;
        uint32_t x[BLOCKS][4];
        UNROLLED (m, BLOCKS) load_matrices(x[m], a + m * 16 * step + d);
        UNROLLED (n, COLS / 16) {
            uint32_t y[4];
            load_matrices(y, b + n * 16 * step + d);
            UNROLLED (m, BLOCKS) {
                mma_bf16(s[m][2 * n], x[m], y);
                mma_bf16(s[m][2 * n + 1], x[m], y + 2);
            }
        }
    }
}

/* What a product left in registers is as the first operand of the next one: columns n and n + 8. */
__device__ __forceinline__ void as_operand(uint32_t *x, const float *left, const float *right)
{
    x[0] = bf16_pair(left[0], left[1]);
    x[1] = bf16_pair(left[2], left[3]);
    x[2] = bf16_pair(right[0], right[1]);
    x[3] = bf16_pair(right[2], right[3]);
}

/* o [16 BLOCKS, DIM] += p b, p [16 BLOCKS, ROWS] in registers, b [ROWS, DIM] a tile. */
template <int DIM, int BLOCKS, int ROWS>
__device__ __forceinline__ void add_product(float (&o)[BLOCKS][DIM / 8][4],
                                            const float (&p)[BLOCKS][ROWS / 8][4],
                                            const uint16_t *b)
{
    const int lane = threadIdx.x % WARP, step = row_step(DIM);
    b += lane % 16 * step + lane / 16 * 8;
    UNROLLED (k, ROWS / 16) {
        uint32_t x[BLOCKS][4];
        UNROLLED (m, BLOCKS) as_operand(x[m], p[m][2 * k], p[m][2 * k + 1]);
        UNROLLED (n, DIM / 16) {
            uint32_t y[4];
            load_matrices_turned(y, b + k * 16 * step + n * 16);
            UNROLLED (m, BLOCKS) {
                mma_bf16(o[m][2 * n], x[m], y);
                mma_bf16(o[m][2 * n + 1], x[m], y + 2);
            }
        }
    }
}

/* Keys low <= j < high, counted from the first one that a block meets: a device has no room for
 * 2^31 of them.
 */
struct key_span {
    int low, high;
};

__device__ __forceinline__ int within(int bound, int size)
{
    return bound < 0 ? 0 : bound < size ? bound : size;
}

/* What n queries, whose rows lie at `tile`, see: some of them, and all of them. */
struct views {
    key_span some, all;
};

template <int DIM> __device__ __forceinline__ views views_of(uint16_t *tile, int n)
{
    key_span first = *behind_row<key_span, DIM>(tile, 0);
    key_span last = *behind_row<key_span, DIM>(tile, n - 1);
    views v = {{first.low, last.high}, {last.low, first.high}};
    return v;
}

/* What each of n queries from `first` on sees, counted from key `from`, to behind its row of a
 * tile; nothing beyond them.
 */
template <int DIM, int ROWS>
__device__ __forceinline__ void find_visible(uint16_t *tile, const ul_attention_args &a, int64_t b,
                                             int64_t first, int n, int64_t from)
{
    for (int i = threadIdx.x; i < ROWS; i += FLASH_THREADS) {
        key_span span = {0, 0};
        if (i < n) {
            key_range keys = visible_keys(&a, b, first + i);
            span.low = (int)(keys.low - from);
            span.high = (int)(keys.high - from);
        }
        *behind_row<key_span, DIM>(tile, i) = span;
    }
}
#endif
#endif
