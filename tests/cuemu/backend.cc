/* backend.cc - backend.cu on a device with as little memory as the environment says:
 * CUEMU_MEMORY, in bytes; and at most CUEMU_PINNED of the host's memory are pinned.
 *
 * Memory is NaN where it is not in use, and where it has just been given out. With
 * -fsanitize=address it may not be touched where it is not in use.
 */
#include <sys/mman.h>
#include <unordered_map>

#include "../backend.h"
#include "cuemu.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n)   (void)(p), (void)(n)
#define UNPOISON(p, n) (void)(p), (void)(n)
#endif

namespace
{
/* What is larger than any test's ordinary tensor is not filled: only what is touched costs. */
const size_t LARGE = (size_t)1 << 30;

size_t in_use;
auto &sizes = *new std::unordered_map<void *, size_t>; // there until the process ends

size_t device_memory()
{
    const char *given = getenv("CUEMU_MEMORY");
    return given ? strtoull(given, nullptr, 10) : (size_t)1 << 34;
}

cudaError_t memory_info(size_t *unused, size_t *total)
{
    *total = device_memory();
    *unused = *total > in_use ? *total - in_use : 0;
    return cudaSuccess;
}

/* Pages of a segment cost something only once they are touched. */
cudaError_t take(void **data, size_t bytes)
{
    if (in_use + bytes > device_memory()) return cudaErrorMemoryAllocation;
    *data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*data == MAP_FAILED) return cudaErrorMemoryAllocation;
    cuemu_allocations++;
    in_use += sizes[*data] = bytes;
    return cudaSuccess;
}

cudaError_t give_back(void *data)
{
    UNPOISON(data, sizes[data]);
    munmap(data, sizes[data]);
    in_use -= sizes[data];
    sizes.erase(data);
    return cudaSuccess;
}

void mark_now(void *data, int64_t n, ul_memory_mark how)
{
    size_t bytes = (size_t)n;
    if (how != UL_MEMORY_NEW) UNPOISON(data, bytes);
    if (how != UL_MEMORY_NEW && bytes < LARGE) memset(data, 0xff, bytes);
    if (how == UL_MEMORY_UNUSED && bytes >= LARGE) {
        uintptr_t from = ((uintptr_t)data + 4095) / 4096 * 4096, end = (uintptr_t)data + bytes;
        madvise((void *)from, (end - from) / 4096 * 4096, MADV_DONTNEED);
    }
    if (how != UL_MEMORY_USED) POISON(data, bytes);
}

size_t pinned;

cudaError_t unpin_memory(void *data)
{
    pinned -= sizes[data];
    sizes.erase(data);
    return cudaFreeHost(data);
}

cudaError_t pin_memory(void **data, size_t bytes)
{
    const char *most = getenv("CUEMU_PINNED");
    if (most && pinned + bytes > strtoull(most, nullptr, 10)) return cudaErrorMemoryAllocation;
    cudaError_t rc = cudaMallocHost(data, bytes);
    if (rc == cudaSuccess) pinned += sizes[*data] = bytes;
    return rc;
}

void mark(void *data, int64_t n, ul_memory_mark how);
} // namespace

#define cudaMemGetInfo memory_info
#define UL_MARK        mark
#define UL_TAKE        take
#define UL_GIVE_BACK   give_back
#define UL_UNPIN       unpin_memory
#define UL_PIN         pin_memory
#include "backend.cu"

/* In the order of the stream that computes: what others still read there becomes NaN. */
namespace
{
void mark(void *data, int64_t n, ul_memory_mark how)
{
    if (cuemu::streams_wait())
        cuemu::enqueue(
            stream.stream, [=] { mark_now(data, n, how); }, 1);
    else
        mark_now(data, n, how);
}
} // namespace
