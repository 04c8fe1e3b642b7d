/* backend.cc - backend.cu on a device with as little memory as the environment says:
 * CUEMU_MEMORY, in bytes.
 */
#include <unordered_map>

#include "cuemu.h"

namespace
{
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

cudaError_t allocate_async(void **data, size_t bytes, cudaStream_t s)
{
    if (in_use + bytes > device_memory()) return cudaErrorMemoryAllocation;
    cudaError_t rc = cudaMallocAsync(data, bytes, s);
    if (rc == cudaSuccess) in_use += sizes[*data] = bytes;
    return rc;
}

cudaError_t free_async(void *data, cudaStream_t s)
{
    in_use -= sizes[data];
    sizes.erase(data);
    return cudaFreeAsync(data, s);
}
} // namespace

#define cudaMemGetInfo  memory_info
#define cudaMallocAsync allocate_async
#define cudaFreeAsync   free_async
#include "backend.cu"
