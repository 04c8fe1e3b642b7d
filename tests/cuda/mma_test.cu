/* mma_test.cu - each function of kernels/cuda/mma.h against plain loops. Compiled by nvcc for a
 * GPU, and with tests/cuemu.
 */
#include "mma.h"
#include "check.h"

#include <string.h>

enum { LANES = 32, ROWS = 16, DEPTH = 16, COLUMNS = 8, CHUNKS = 96 };

#define ONE_WARP(kernel, shared, ...)                                                    \
    do {                                                                                 \
        UL_LAUNCH(kernel, dim3(1), dim3(LANES), (shared), (cudaStream_t)0, __VA_ARGS__); \
        CHECK(cudaGetLastError() == cudaSuccess);                                        \
    } while (0)

/* Memory of the device that begins with what the host has. */
template <class T> static T *on_device(const T *host, int n)
{
    T *data;
    CHECK(cudaMalloc((void **)&data, n * sizeof(T)) == cudaSuccess);
    cudaMemcpyAsync(data, host, n * sizeof(T), cudaMemcpyHostToDevice, (cudaStream_t)0);
    return data;
}

template <class T> static void to_host(T *host, T *data, int n)
{
    cudaMemcpyAsync(host, data, n * sizeof(T), cudaMemcpyDeviceToHost, (cudaStream_t)0);
    CHECK(cudaStreamSynchronize((cudaStream_t)0) == cudaSuccess);
    cudaFree(data);
}

static float widened(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float y;
    memcpy(&y, &u, sizeof y);
    return y;
}

/* Small whole numbers and halves: every sum of their products is exact. */
static uint16_t bf16_number(int i)
{
    float x = (float)((i * 7 + i / 5) % 23 - 11) / 2;
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)(u >> 16);
}

/* ---- mma_bf16 ---- */

/* d += a b, a [16, 16], b [16, 8] by rows, with fragments as mma.h describes them. */
static __global__ void product_kernel(float *d, const uint16_t *a, const uint16_t *b)
{
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    uint32_t left[4], right[2];
    float sums[4];
    for (int r = 0; r < 4; r++) {
        const uint16_t *at = a + (g + r % 2 * 8) * DEPTH + r / 2 * 8 + 2 * t;
        left[r] = at[0] | (uint32_t)at[1] << 16;
    }
    for (int r = 0; r < 2; r++) {
        const uint16_t *at = b + (8 * r + 2 * t) * COLUMNS + g;
        right[r] = at[0] | (uint32_t)at[COLUMNS] << 16;
    }
    for (int i = 0; i < 4; i++) sums[i] = d[(g + i / 2 * 8) * COLUMNS + 2 * t + i % 2];
    mma_bf16(sums, left, right);
    mma_bf16(sums, left, right);
    for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * COLUMNS + 2 * t + i % 2] = sums[i];
}

static void products_are_those_of_loops(void)
{
    uint16_t a[ROWS * DEPTH], b[DEPTH * COLUMNS];
    float d[ROWS * COLUMNS], want[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * DEPTH; i++) a[i] = bf16_number(i);
    for (int i = 0; i < DEPTH * COLUMNS; i++) b[i] = bf16_number(3 * i + 1);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        want[i] = d[i] = (float)i;
        for (int k = 0; k < DEPTH; k++)
            want[i] += 2 * widened(a[i / COLUMNS * DEPTH + k]) * widened(b[k * COLUMNS + i % 8]);
    }
    float *sums = on_device(d, ROWS * COLUMNS);
    uint16_t *left = on_device(a, ROWS * DEPTH), *right = on_device(b, DEPTH * COLUMNS);
    ONE_WARP(product_kernel, 0, sums, left, right);
    to_host(d, sums, ROWS * COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++) CHECK(d[i] == want[i]);
    cudaFree(left);
    cudaFree(right);
}

/* ---- load_matrices ---- */

/* The 32 rows of four matrices, 8 numbers each, lie in memory in another order. */
static __global__ void matrices_kernel(uint32_t *plain, uint32_t *turned, const uint16_t *x)
{
    UL_SHARED(uint16_t, shared);
    int lane = threadIdx.x, row = (lane * 5 + 3) % LANES;
    store_16(shared + row * 8, load_16(x + lane * 8));
    __syncthreads();
    uint32_t r[4];
    load_matrices(r, shared + row * 8);
    for (int m = 0; m < 4; m++) plain[m * LANES + lane] = r[m];
    load_matrices_turned(r, shared + row * 8);
    for (int m = 0; m < 4; m++) turned[m * LANES + lane] = r[m];
}

static void matrices_are_loaded_as_they_are_and_turned(void)
{
    uint16_t x[LANES * 8];
    uint32_t plain[4 * LANES] = {0}, turned[4 * LANES] = {0};
    for (int i = 0; i < LANES * 8; i++) x[i] = (uint16_t)(1000 + i);
    uint16_t *numbers = on_device(x, LANES * 8);
    uint32_t *first = on_device(plain, 4 * LANES), *second = on_device(turned, 4 * LANES);
    ONE_WARP(matrices_kernel, sizeof x, first, second, numbers);
    to_host(plain, first, 4 * LANES);
    to_host(turned, second, 4 * LANES);
    for (int m = 0; m < 4; m++)
        for (int lane = 0; lane < LANES; lane++) {
            const uint16_t *matrix = x + m * 64;
            int g = lane / 4, t = lane % 4, at = m * LANES + lane;
            CHECK(plain[at] == (matrix[g * 8 + 2 * t] | (uint32_t)matrix[g * 8 + 2 * t + 1] << 16));
            CHECK(turned[at] ==
                  (matrix[2 * t * 8 + g] | (uint32_t)matrix[(2 * t + 1) * 8 + g] << 16));
        }
    cudaFree(numbers);
}

/* ---- copy_async ---- */

/* Chunks of 16 bytes, in three groups that are waited for one after another; of each the first
 * `bytes` come, zeros behind them.
 */
static __global__ void copies_kernel(uint4 *y, const uint4 *x, int bytes)
{
    UL_SHARED(uint4, shared);
    int lane = threadIdx.x;
    for (int group = 0; group < 3; group++) {
        copy_async(shared + group * LANES + lane, x + group * LANES + lane, bytes);
        copy_commit();
    }
    copy_wait<2>();
    __syncthreads();
    store_16(y + lane, load_16(shared + LANES - 1 - lane));
    copy_wait<1>();
    __syncthreads();
    store_16(y + LANES + lane, load_16(shared + 2 * LANES - 1 - lane));
    copy_wait<0>();
    __syncthreads();
    store_16(y + 2 * LANES + lane, load_16(shared + 3 * LANES - 1 - lane));
}

static void copies_come_when_they_are_waited_for(void)
{
    for (int bytes = 0; bytes <= 16; bytes += 8) {
        uint32_t x[CHUNKS * 4], y[CHUNKS * 4] = {0};
        for (int i = 0; i < CHUNKS * 4; i++) x[i] = 77u * (unsigned)i + 1;
        uint32_t *from = on_device(x, CHUNKS * 4), *to = on_device(y, CHUNKS * 4);
        ONE_WARP(copies_kernel, sizeof x, (uint4 *)to, (const uint4 *)from, bytes);
        to_host(y, to, CHUNKS * 4);
        for (int i = 0; i < CHUNKS * 4; i++) {
            int chunk = i / 4, source = chunk / LANES * LANES + LANES - 1 - chunk % LANES;
            CHECK(y[i] == (i % 4 * 4 < bytes ? x[source * 4 + i % 4] : 0));
        }
        cudaFree(from);
    }
}

/* ---- numbers ---- */

static __global__ void numbers_kernel(float *powers, uint32_t *pairs, const float *x)
{
    int i = threadIdx.x;
    powers[i] = exp2_fast(x[i]);
    pairs[i] = bf16_pair(x[i], -x[i]);
}

/* To the nearest bf16, to the even one of two. */
static uint16_t nearest(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t low = u & 0xffff0000u, rest = u & 0xffffu;
    if (rest > 0x8000u || (rest == 0x8000u && u >> 16 & 1)) low += 0x10000u;
    return (uint16_t)(low >> 16);
}

static void numbers_are_rounded_to_the_nearest(void)
{
    float x[LANES], powers[LANES] = {0};
    uint32_t pairs[LANES] = {0};
    for (int i = 0; i < LANES; i++) x[i] = (float)(i - 20) * 1.00390625f; /* some are halfway */
    x[0] = -INFINITY;
    float *from = on_device(x, LANES), *first = on_device(powers, LANES);
    uint32_t *second = on_device(pairs, LANES);
    ONE_WARP(numbers_kernel, 0, first, second, from);
    to_host(powers, first, LANES);
    to_host(pairs, second, LANES);
    for (int i = 0; i < LANES; i++) {
        float want = exp2f(x[i]);
        CHECK(fabsf(powers[i] - want) <= 3e-7f * want);
        CHECK((pairs[i] & 0xffffu) == nearest(x[i]));
        CHECK(pairs[i] >> 16 == nearest(-x[i]));
    }
    cudaFree(from);
}

int main(void)
{
    RUN(products_are_those_of_loops);
    RUN(matrices_are_loaded_as_they_are_and_turned);
    RUN(copies_come_when_they_are_waited_for);
    RUN(numbers_are_rounded_to_the_nearest);
    return check_done();
}
