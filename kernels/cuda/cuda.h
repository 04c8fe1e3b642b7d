/* cuda.h - what every file of this folder includes: CUDA, or tests/cuemu in its place; element
 * types, names, launching, and the walk over a ul_loop.
 *
 * Each .cu file but backend.cu and blaslt.cu is compiled once for each dtype, with UL_TYPE = f32 |
 * bf16 | f64 | i32 | i64 | u8. CUDA(name) is the kernel's symbol in that compilation, as
 * kernels.def declares it. The same sources are compiled by a C++ compiler with tests/cuemu, which
 * runs them on the CPU: so kernels are launched by UL_LAUNCH, and ask for dynamic shared memory by
 * UL_SHARED.
 */
#ifndef UL_CUDA_H
#define UL_CUDA_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#define UL_LAUNCH(kernel, grid, block, shared, stream, ...) \
    kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define UL_SHARED(type, name)                            \
    extern __shared__ __align__(16) char name##_bytes[]; \
    type *name = (type *)name##_bytes
#define UL_OPENS_CUBLASLT 1
#else
#include "cuemu.h"
#endif

#include "../kernels.h"

#define UL_PASTE(a, b) a##b
#define UL_JOIN(a, b)  UL_PASTE(a, b)
#define CUDA(name)     UL_JOIN(UL_JOIN(ul_cuda_, UL_TYPE), UL_JOIN(_, name))

/* UL_TYPE_IS(bf16) in #if */
#define UL_ID_f32     1
#define UL_ID_bf16    2
#define UL_ID_f64     3
#define UL_ID_i32     4
#define UL_ID_i64     5
#define UL_ID_u8      6
#define UL_TYPE_IS(t) (UL_JOIN(UL_ID_, UL_TYPE) == UL_ID_##t)
#define UL_TYPE_FLOAT (UL_JOIN(UL_ID_, UL_TYPE) <= 3)

/* A backend's stream: the one that all its work goes to, and scratch for results on their way to
 * the host.
 */
struct ul_stream {
    cudaStream_t stream;
    void *scratch; /* on the device */
    int64_t scratch_bytes;
    int processors;       /* SMs */
    int capability;       /* 90: Hopper */
    int64_t shared_bytes; /* of memory that a block can have */
    int64_t device_bytes;
};

/* backend.cu: what a kernel returns. Keeps the sentence of a launch that has failed. */
int ul_cuda_launched(const char *kernel);
/* Keeps a sentence of one's own; the result is what a kernel returns. */
int ul_cuda_fail(const char *sentence);
/* Copies a result of a kernel to the host, and waits for it. */
int ul_cuda_fetch(ul_stream *s, void *host, const void *data, int64_t bytes);

/* ---- bf16 as it is stored ---- */

__device__ __forceinline__ float float_of(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = bits;
    return v.f;
}

__device__ __forceinline__ uint32_t bits_of(float x)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.f = x;
    return v.u;
}

__device__ __forceinline__ float bf16_to_f32(uint16_t x) { return float_of((uint32_t)x << 16); }

/* Round to nearest even; NaN stays NaN. */
__device__ __forceinline__ uint16_t f32_to_bf16(float x)
{
#ifdef __CUDACC__
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
#endif
}

#ifdef UL_TYPE

/* real: what an element is stored as; acc: what is computed and accumulated in. */
#if UL_TYPE_IS(f32)
typedef float real;
typedef float acc;
#elif UL_TYPE_IS(bf16)
typedef uint16_t real;
typedef float acc;
#elif UL_TYPE_IS(f64)
typedef double real;
typedef double acc;
#elif UL_TYPE_IS(i32)
typedef int32_t real;
typedef int64_t acc;
#elif UL_TYPE_IS(i64)
typedef int64_t real;
typedef int64_t acc;
#elif UL_TYPE_IS(u8)
typedef uint8_t real;
typedef int64_t acc;
#endif

/* The type of sums: the element's own for floats, i64 for integers. */
#if UL_TYPE_FLOAT
typedef real sum_t;
#else
typedef int64_t sum_t;
#endif

/* Kernels that each file has for every dtype have internal linkage: one program has all of them. */
#define KERNEL static __global__ void

#if UL_TYPE_IS(bf16)
__device__ __forceinline__ acc load(real x) { return bf16_to_f32(x); }
__device__ __forceinline__ real store(acc x) { return f32_to_bf16(x); }
#else
__device__ __forceinline__ acc load(real x) { return (acc)x; }
__device__ __forceinline__ real store(acc x) { return (real)x; }
#endif

/* Writes one element of a gradient: *at (+)= x. */
__device__ __forceinline__ void give(real *at, int add, acc x)
{
    *at = store(add ? load(*at) + x : x);
}

/* As many elements as one access moves, which is 16 bytes. */
enum { PACK = 16 / (int)sizeof(real) };

static inline int is_aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }

/* 0 <= i < n, written out: what is indexed by i stays in registers. */
#ifdef __CUDACC__
#define UL_UNROLL _Pragma("unroll")
#else
#define UL_UNROLL
#endif
#define UNROLLED(i, n) UL_UNROLL for (int i = 0; i < (n); i++)

/* N neighbours, moved by as few accesses of at most 16 bytes as there can be. */
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) run {
    T v[N];
};

template <int N, class T> __device__ __forceinline__ run<T, N> load_run(const T *from)
{
    return *(const run<T, N> *)from;
}

/* To global memory. */
template <class T, int N> __device__ __forceinline__ void store_run(T *to, const run<T, N> &x)
{
#ifdef __CUDACC__
    if constexpr (sizeof(T) == 2 && N == 8) { /* nvcc alone would store elements one by one */
        uint32_t w[4];
        UNROLLED (i, 4) w[i] = (uint32_t)x.v[2 * i] | (uint32_t)x.v[2 * i + 1] << 16;
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
        return;
    }
#endif
    *(run<T, N> *)to = x;
}

/* ---- launching ---- */

enum { BLOCK = 256 };

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* A grid for n items that are walked with GRID_STRIDE: enough blocks to keep the device busy. */
static inline dim3 grid_for(const ul_stream *s, int64_t n, int block)
{
    int64_t most = (int64_t)s->processors * (2048 / block) * 4;
    return dim3((unsigned)smaller(ceil_div(n, block), most));
}

#define GRID_STRIDE(i, n)                                                     \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (n); \
         i += (int64_t)gridDim.x * blockDim.x)

/* ---- loops ---- */

static inline int64_t loop_size(const ul_loop *l)
{
    int64_t n = 1;
    for (int d = 0; d < l->ndim; d++) n *= l->shape[d];
    return n;
}

/* Whether offsets of all operands and the count fit 32 bits: divisions are many times faster. */
static inline int loop_is_small(const ul_loop *l, int n_operands)
{
    const int64_t most = INT32_MAX;
    if (loop_size(l) > most) return 0;
    for (int o = 0; o < n_operands; o++) {
        int64_t reach = 0;
        for (int d = 0; d < l->ndim; d++)
            reach += (l->shape[d] - 1) * (l->stride[o][d] < 0 ? -l->stride[o][d] : l->stride[o][d]);
        if (reach > most) return 0;
    }
    return 1;
}

/* The offsets of element i of a loop, in elements of each operand. index_t: of what fits i. */
template <int N, class index_t>
__device__ __forceinline__ void loop_at(const ul_loop &l, index_t i, int64_t *at)
{
    for (int o = 0; o < N; o++) at[o] = 0;
    for (int d = l.ndim - 1; d >= 0; d--) {
        index_t extent = (index_t)l.shape[d], rest = i / extent, index = i - rest * extent;
        for (int o = 0; o < N; o++) at[o] += (int64_t)index * l.stride[o][d];
        i = rest;
    }
}

/* Calls f(offsets) for each element of a loop. */
template <int N, class index_t, class F>
static __global__ void loop_kernel(F f, ul_loop l, int64_t n)
{
    GRID_STRIDE(i, n)
    {
        int64_t at[N];
        loop_at<N, index_t>(l, (index_t)i, at);
        f(at);
    }
}

template <int N, class F>
static int loop_walk(ul_stream *s, const char *name, F f, const ul_loop *l)
{
    int64_t n = loop_size(l);
    if (n == 0) return 0;
    dim3 grid = grid_for(s, n, BLOCK);
    if (loop_is_small(l, N))
        UL_LAUNCH((loop_kernel<N, uint32_t, F>), grid, dim3(BLOCK), 0, s->stream, f, *l, n);
    else
        UL_LAUNCH((loop_kernel<N, uint64_t, F>), grid, dim3(BLOCK), 0, s->stream, f, *l, n);
    return ul_cuda_launched(name);
}

/* Calls f(i) for 0 <= i < n. */
template <class F> static __global__ void flat_kernel(F f, int64_t n) { GRID_STRIDE(i, n) f(i); }

template <class F> static int flat_walk(ul_stream *s, const char *name, F f, int64_t n)
{
    if (n == 0) return 0;
    UL_LAUNCH((flat_kernel<F>), grid_for(s, n, BLOCK), dim3(BLOCK), 0, s->stream, f, n);
    return ul_cuda_launched(name);
}

/* Calls f.at<PACK>(i) for runs of so many elements, f.at<1>(i) for those behind them. */
template <class F> static __global__ void runs_kernel(F f, int64_t n, int64_t packs)
{
    GRID_STRIDE(p, packs) f.template at<PACK>(p * PACK);
    GRID_STRIDE(i, n - packs * PACK) f.template at<1>(packs * PACK + i);
}

/* aligned: whether all that f touches begins at multiples of 16 bytes. */
template <class F> static int runs_walk(ul_stream *s, const char *name, F f, int64_t n, int aligned)
{
    if (n == 0) return 0;
    int64_t packs = aligned ? n / PACK : 0;
    UL_LAUNCH((runs_kernel<F>), grid_for(s, packs > 0 ? packs : n, BLOCK), dim3(BLOCK), 0,
              s->stream, f, n, packs);
    return ul_cuda_launched(name);
}

extern "C" {
#define UL_KERNEL_ANY(name, signature, flops, bytes) int CUDA(name) signature;
#if UL_TYPE_FLOAT
#define UL_KERNEL_FLOAT(name, signature, flops, bytes) int CUDA(name) signature;
#else
#define UL_KERNEL_FLOAT(name, signature, flops, bytes)
#endif
#include "../kernels.def"
#undef UL_KERNEL_ANY
#undef UL_KERNEL_FLOAT
}

#endif /* UL_TYPE */
#endif
