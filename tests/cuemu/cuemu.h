/* cuemu.h - stands in for CUDA's headers, so that kernels/cuda is compiled by a C++ compiler, and
 * runs on the CPU.
 *
 * Each thread of a block is a fiber, blocks run one after another, and device memory is the host's.
 * The run aborts, with the line, where threads of a block wait for each other in vain, where a
 * warp's threads come to different lines of code, and where a grid or block is larger than a GPU
 * takes. Memory is filled with NaN before it is given out. CUEMU_ORDER=reverse|random runs threads
 * and blocks in another order: results must not change. CUEMU_STREAMS=compute|exchange|back|random
 * makes streams asynchronous (streams.cc): the first one's work is done as soon, and the others' as
 * late, as events let it; the other way round; what goes to the host alone late; now this and now
 * that. Results must not change. CUEMU_SHARED: as many bytes of shared memory as a block can have.
 * With -fsanitize=address what is out of bounds is found, with -fsanitize=thread what two threads
 * of a block touch without a barrier.
 */
#ifndef CUEMU_H
#define CUEMU_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tuple>

/* ---- language ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
#define __shared__ static /* of the one block that runs */

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };

typedef struct cuemu_stream *cudaStream_t;

/* ---- streams.cc ---- */

/* How often the host has waited for a stream; tests read it. */
extern "C" __attribute__((visibility("default"))) int64_t cuemu_waits;

namespace cuemu
{
int streams_wait(); /* else all is done when it is asked for */
/* What a stream is to do. Half the time that a file of kernels takes to compile would be
 * std::function's.
 */
struct task {
    virtual void run() = 0;
    virtual ~task() {}
};
template <class F> struct task_of : task {
    F f;
    task_of(const F &f) : f(f) {}
    void run() override { f(); }
};
/* Deletes the task when it is done; is_kernels: it shares what kernels share. */
void enqueue_task(cudaStream_t s, task *t, int is_kernels);
template <class F> void enqueue(cudaStream_t s, const F &f, int is_kernels)
{
    enqueue_task(s, new task_of<F>(f), is_kernels);
}
void wait_for(cudaStream_t s);
} // namespace cuemu

/* How often memory was asked for; tests read it. */
extern "C" __attribute__((visibility("default"))) int64_t cuemu_allocations;

/* ---- cuemu.cc ---- */

namespace cuemu
{
extern uint3 thread, block; /* of the fiber that runs */
extern dim3 block_size, grid_size;

void launch(dim3 grid, dim3 size, size_t shared, void (*run)(void *), void *kernel);
void sync_block(int line);
int sync_block_or(int predicate, int line);
/* Waits for the lanes in mask. */
void sync_warp(unsigned mask, int line);
/* Publishes `size` bytes (at most 32) and waits; the result is where lane `from` has put its. */
const void *exchange(unsigned mask, const void *value, size_t size, int from, int line);
/* Where a lane has put its bytes of the exchange just made. */
const void *published_by(int lane);
unsigned ballot(unsigned mask, int predicate, int line);
int lane();
unsigned active_lanes();
void *dynamic_shared();
[[noreturn]] void stop(const char *what, int line, int detail);

/* mma.cc: what mma.h wraps. An asynchronous copy makes its target NaN at once, and what it shall be
 * when its group is waited for: who reads before that, or writes over what others still read, is
 * seen.
 */
void multiply_matrices(float *d, const uint32_t *a, const uint32_t *b, int line);
void read_matrices(uint32_t *r, const void *row, int turned, int line);
void begin_copy(void *to, const void *from, int bytes, int line);
void end_copies(int groups_left);
void check_aligned(const void *at, int line);

/* The queue of a thread's copies: at most `bytes` of 16 are read, zeros follow. */
struct async_copy {
    void *to;
    const void *from;
    int bytes;
};
void queue_copy(const async_copy *copy, int line);
void commit_copies();
/* The oldest copy of all groups but the last `groups_left`, taken off the queue; 0: none is left.
 */
int next_copy(async_copy *copy, int groups_left);

/* memory.cc: how much shared memory a block can have; and the end of a run in which a kernel has
 * asked for more, or a launch takes more than 48 KiB that its kernel has not asked for.
 */
enum { MOST_SHARED = 227 << 10 };
size_t most_shared();
void allow_shared(const void *kernel, size_t bytes);
void check_shared(const void *kernel, size_t bytes);
void *allocate(size_t bytes);
void release(void *data);

template <class F> void call(void *f) { (*(F *)f)(); }
/* Arguments are what they are now, whenever it runs. */
template <class... P, class... A>
void launch_kernel(cudaStream_t s, dim3 grid, dim3 size, size_t shared, void (*kernel)(P...),
                   A... a)
{
    check_shared((const void *)kernel, shared);
    auto run = [=, arguments = std::tuple<P...>(a...)] {
        auto f = [&] { std::apply(kernel, arguments); };
        launch(grid, size, shared, call<decltype(f)>, &f);
    };
    if (streams_wait())
        enqueue(s, run, 1);
    else
        run();
}
template <class T> T shuffle(unsigned mask, T value, int from, int line)
{
    static_assert(sizeof(T) <= 16, "at most 16 bytes");
    T result;
    memcpy(&result, exchange(mask, &value, sizeof value, from & 31, line), sizeof result);
    return result;
}
} // namespace cuemu

#define UL_LAUNCH(kernel, grid, block, shared, stream, ...) \
    cuemu::launch_kernel((stream), (grid), (block), (shared), kernel, __VA_ARGS__)
#define UL_SHARED(type, name) type *name = (type *)cuemu::dynamic_shared()

/* Without CUEMU_CUBLASLT=1 products need no library. With it one is opened as on a GPU: tests put
 * fake_cublaslt.cc in its place.
 */
#define UL_OPENS_CUBLASLT (getenv("CUEMU_CUBLASLT") != NULL)

#define threadIdx (cuemu::thread)
#define blockIdx  (cuemu::block)
#define blockDim  (cuemu::block_size)
#define gridDim   (cuemu::grid_size)
#define warpSize  32

#define __syncthreads()                cuemu::sync_block(__LINE__)
#define __syncthreads_or(predicate)    cuemu::sync_block_or((predicate), __LINE__)
#define __syncwarp(...)                cuemu::sync_warp(~0u, __LINE__)
#define __activemask()                 cuemu::active_lanes()
#define __shfl_sync(mask, v, from)     cuemu::shuffle((mask), (v), (from), __LINE__)
#define __shfl_xor_sync(mask, v, bits) cuemu::shuffle((mask), (v), cuemu::lane() ^ (bits), __LINE__)
#define __shfl_down_sync(mask, v, by)                                                             \
    cuemu::shuffle((mask), (v), cuemu::lane() + (by) < 32 ? cuemu::lane() + (by) : cuemu::lane(), \
                   __LINE__)
#define __shfl_up_sync(mask, v, by)                                                           \
    cuemu::shuffle((mask), (v), cuemu::lane() >= (by) ? cuemu::lane() - (by) : cuemu::lane(), \
                   __LINE__)
#define __ballot_sync(mask, predicate) cuemu::ballot((mask), (predicate), __LINE__)
#define __any_sync(mask, predicate)    (cuemu::ballot((mask), (predicate), __LINE__) != 0)

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

static inline int atomicAdd(int *at, int x) { return __atomic_fetch_add(at, x, __ATOMIC_RELAXED); }
static inline unsigned atomicAdd(unsigned *at, unsigned x)
{
    return __atomic_fetch_add(at, x, __ATOMIC_RELAXED);
}
static inline unsigned long long atomicMin(unsigned long long *at, unsigned long long x)
{
    unsigned long long before = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (x < before &&
           !__atomic_compare_exchange_n(at, &before, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
    return before;
}

/* ---- the runtime library ---- */

typedef enum {
    cudaSuccess,
    cudaErrorMemoryAllocation = 2,
    cudaErrorStubLibrary = 34,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600
} cudaError_t;
typedef enum {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice
} cudaMemcpyKind;
typedef enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 } cudaFuncAttribute;
typedef struct cuemu_event *cudaEvent_t;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

struct cudaUUID_t {
    char bytes[16];
};

struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    int major, minor, multiProcessorCount;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
};

static inline const char *cudaGetErrorString(cudaError_t) { return "cuemu"; }
static inline cudaError_t cudaGetLastError() { return cudaSuccess; }
/* CUEMU_DEVICES: how many there are. CUEMU_ERROR: what a driver answers that is of no use. */
static inline cudaError_t cudaGetDeviceCount(int *n)
{
    const char *error = getenv("CUEMU_ERROR");
    if (error) return (cudaError_t)atoi(error);
    const char *given = getenv("CUEMU_DEVICES");
    return *n = given ? atoi(given) : 2, cudaSuccess;
}
static inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static inline cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int ordinal)
{
    memset(p, 0, sizeof *p);
    snprintf(p->uuid.bytes, sizeof p->uuid.bytes, "cuemu %d", ordinal);
    const char *given = getenv("CUEMU_NAME"); /* as that of another GPU */
    snprintf(p->name, sizeof p->name, "%s", given ? given : "cuemu");
    const char *capability = getenv("CUEMU_CAPABILITY"); /* 100: B200 */
    p->major = capability ? atoi(capability) / 10 : 9;
    p->multiProcessorCount = 2;
    p->totalGlobalMem = (size_t)1 << 34;
    p->sharedMemPerBlockOptin = cuemu::most_shared();
    return cudaSuccess;
}
static inline cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    return *unused = *total = (size_t)1 << 34, cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned);
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most)
{
    return *least = *most = 0, cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned);
template <class K> cudaError_t cudaFuncSetAttribute(K kernel, cudaFuncAttribute, int bytes)
{
    return cuemu::allow_shared((const void *)kernel, (size_t)bytes), cudaSuccess;
}
static inline cudaError_t cudaMalloc(void **data, size_t bytes)
{
    *data = cuemu::allocate(bytes);
    return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
static inline cudaError_t cudaFree(void *data) { return cuemu::release(data), cudaSuccess; }
cudaError_t cudaMallocHost(void **data, size_t bytes); /* pinned */
cudaError_t cudaFreeHost(void *data);
namespace cuemu
{
cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s);
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                          cudaMemcpyKind kind, cudaStream_t s)
{
    return cuemu::copy(to, from, bytes, kind, s);
}
static inline cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t s)
{
    if (!cuemu::streams_wait()) return memset(data, value, bytes), cudaSuccess;
    return cuemu::enqueue(
               s, [=] { memset(data, value, bytes); }, 1),
           cudaSuccess;
}

#endif
