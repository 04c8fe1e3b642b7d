/* memory.cc - what a device has of memory: its own, and the shared memory of a block. */
#include "cuemu.h"

#include <unordered_map>

namespace cuemu
{
namespace
{
enum { UNASKED_SHARED = 48 << 10 };

/* What kernels have asked for. */
std::unordered_map<const void *, size_t> &allowed()
{
    static auto &sizes = *new std::unordered_map<const void *, size_t>;
    return sizes;
}
} // namespace

size_t most_shared()
{
    const char *given = getenv("CUEMU_SHARED");
    size_t bytes = given ? strtoull(given, nullptr, 10) : (size_t)MOST_SHARED;
    return bytes < MOST_SHARED ? bytes : (size_t)MOST_SHARED;
}

void allow_shared(const void *kernel, size_t bytes)
{
    if (bytes > most_shared()) stop("a kernel asks for so much shared memory", 0, (int)bytes);
    allowed()[kernel] = bytes;
}

void check_shared(const void *kernel, size_t bytes)
{
    if (bytes > UNASKED_SHARED && bytes > allowed()[kernel])
        stop("so much shared memory that was not asked for", 0, (int)bytes);
}

void *allocate(size_t bytes)
{
    void *data = nullptr;
    if (posix_memalign(&data, 256, bytes ? bytes : 1)) return nullptr;
    cuemu_allocations++;
    memset(data, 0xff, bytes);
    return data;
}

void release(void *data) { free(data); }
} // namespace cuemu

int64_t cuemu_allocations;
