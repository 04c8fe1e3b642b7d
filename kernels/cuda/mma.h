/* mma.h - the tensor cores' instructions, one function each: products of small matrices, their
 * loads from shared memory, copies to it that do not pass through registers; sm_80 and later.
 *
 * Fragments, lane = 4 g + t: of A [16, 16] register r holds row g + r % 2 * 8, columns 2 t and 2 t
 * + 1 from r / 2 * 8 on; of B [16, 8] register r holds column g, rows 2 t and 2 t + 1 from 8 r on;
 * of D [16, 8] number i is at row g + i / 2 * 8, column 2 t + i % 2. All lanes of a warp call
 * together.
 */
#ifndef UL_CUDA_MMA_H
#define UL_CUDA_MMA_H

#include "cuda.h"

#ifdef __CUDACC__
__device__ __forceinline__ unsigned shared_address(const void *at)
{
    return (unsigned)__cvta_generic_to_shared(at);
}

/* d [16, 8] += a [16, 16] b [16, 8], bf16 summed in f32. */
__device__ __forceinline__ void mma_bf16(float *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four matrices [8, 8] of 16-bit elements from shared memory, lane i giving the address (a multiple
 * of 16 bytes) of row i % 8 of matrix i / 8. To r [m] of lane 4 g + t: elements 2 t and 2 t + 1 of
 * row g of matrix m.
 */
__device__ __forceinline__ void load_matrices(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* The same of transposed matrices: to r [m] elements g of rows 2 t and 2 t + 1. */
__device__ __forceinline__ void load_matrices_turned(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Begins a copy of 16 bytes to shared memory, of which the first `bytes` are read and the others
 * are zeros. Both addresses are multiples of 16.
 */
__device__ __forceinline__ void copy_async(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}

/* This thread's copies since the last call become a group. */
__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all groups of this thread but the last GROUPS_LEFT; others' copies are there behind the
 * __syncthreads that follows.
 */
template <int GROUPS_LEFT> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS_LEFT) : "memory");
}

/* 16 bytes at once, from and to multiples of 16. */
__device__ __forceinline__ uint4 load_16(const void *from) { return *(const uint4 *)from; }
__device__ __forceinline__ void store_16(void *to, uint4 x) { *(uint4 *)to = x; }

/* 2^x, within 2 units in the last place; 0 of -inf. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two floats as bf16 in one register, the first in its low half. */
__device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

#else
/* Under tests/cuemu: macros, so that lanes which meet at two lines are seen. */
#define mma_bf16(d, a, b)            cuemu::multiply_matrices((d), (a), (b), __LINE__)
#define load_matrices(r, row)        cuemu::read_matrices((r), (row), 0, __LINE__)
#define load_matrices_turned(r, row) cuemu::read_matrices((r), (row), 1, __LINE__)
#define copy_async(to, from, bytes)  cuemu::begin_copy((to), (from), (bytes), __LINE__)
#define copy_commit()                cuemu::commit_copies()

#define load_16(from)   (cuemu::check_aligned((from), __LINE__), *(const uint4 *)(from))
#define store_16(to, x) (cuemu::check_aligned((to), __LINE__), *(uint4 *)(to) = (x))

template <int GROUPS_LEFT> void copy_wait() { cuemu::end_copies(GROUPS_LEFT); }

static inline float exp2_fast(float x) { return exp2f(x); }

static inline uint32_t bf16_pair(float low, float high)
{
    return f32_to_bf16(low) | (uint32_t)f32_to_bf16(high) << 16;
}
#endif

#endif
