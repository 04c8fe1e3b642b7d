/* backend.c - opens libulysses_cuda.so when a tensor is first wanted on cuda, and moves values
 * between its device and the host.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "off_device.h"

static const ul_backend *cuda;
static int ordinal;
static char name[16] = "cuda:0";

const ul_backend *ul__cuda(void) { return cuda; }

const char *ul__cuda_name(void) { return name; }

int ul_cuda_is_open(void) { return cuda != NULL; }

static int fail(const char *sentence) { return ul__fail(UL_EDEVICE, "cuda: %s", sentence); }

/* Beside the file that this function is in: where both were built or installed. */
static void *open_beside(char *path, size_t size)
{
    static const char file[] = "libulysses_cuda.so";
    Dl_info info;
    path[0] = 0;
    if (!dladdr((void *)(uintptr_t)&open_beside, &info) || !info.dli_fname) return NULL;
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash ? (int)(slash - info.dli_fname + 1) : 0;
    static const char *const below[] = {"", "../"};
    void *library = NULL;
    for (int i = 0; i < 2 && !library; i++) {
        snprintf(path, size, "%.*s%s%s", folder, info.dli_fname, below[i], file);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

/* UL_CUDA_BACKEND names the library itself; then nobody asks for a driver. */
static int load(void **library)
{
    char path[4096];
    const char *given = getenv("UL_CUDA_BACKEND");
    if (given && *given) {
        *library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        UL_REQUIRE(*library, UL_EDEVICE, "cuda: UL_CUDA_BACKEND: %s", dlerror());
        return UL_OK;
    }
    UL_REQUIRE(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), UL_EDEVICE,
               "cuda: there is no NVIDIA driver on this machine (%s)", dlerror());
    *library = open_beside(path, sizeof path);
    UL_REQUIRE(*library, UL_EDEVICE,
               "cuda: this build has no CUDA backend (cmake --preset cuda makes one): %s",
               dlerror());
    return UL_OK;
}

int ul_cuda_open(int wanted)
{
    void *library;
    int abi = 0;
    UL_REQUIRE(!cuda || wanted < 0 || wanted == ordinal, UL_EDEVICE,
               "cuda: this process works on %s, not on cuda:%d too: start a rank for each", name,
               wanted);
    if (cuda) return UL_OK;
    UL_TRY(load(&library));
    ul_backend_getter *get;
    *(void **)&get = dlsym(library, UL_BACKEND_GETTER);
    const ul_backend *found = get ? get(UL_BACKEND_ABI, &abi) : NULL;
    UL_REQUIRE(found, UL_EDEVICE,
               "cuda: the backend was built for another version of the engine (%d, not %d)", abi,
               UL_BACKEND_ABI);
    if (wanted < 0) {
        int n = found->count();
        wanted = n > 0 ? ul__local_rank() % n : 0;
    }
    UL_TRY(found->open(wanted, fail));
    cuda = found;
    ordinal = wanted;
    snprintf(name, sizeof name, "cuda:%d", wanted % 1000);
    return UL_OK;
}

const char *ul_cuda_gpu(const unsigned char **uuid)
{
    *uuid = cuda ? cuda->identity() : NULL;
    return cuda ? cuda->device_name() : NULL;
}

int ul_cuda_wait(void) { return cuda ? cuda->wait() : UL_OK; }

/* ---- values ---- */

int ul__read_values(void *host, const void *data, int64_t bytes, ul_device device)
{
    if (device == UL_CUDA) return bytes > 0 ? cuda->read(host, data, bytes) : UL_OK;
    memcpy(host, data, (size_t)bytes);
    return UL_OK;
}

/* More than a batch has; what is larger is asked of the device. */
static const int64_t most_known = 1 << 25;

const void *ul__known(const ul_tensor *x)
{
    const ul_storage *s = x->storage;
    if (s->device == UL_CPU) return ul__data(x);
    if (!s->known || x->dtype != UL_I64) return NULL;
    return (const char *)s->known + x->offset * ul_dtype_bytes(UL_I64);
}

/* y, new on cuda, is about to be what `host` is. Without memory for it the device is asked. */
static void remember(const ul_tensor *y, const void *host, int64_t bytes)
{
    ul_storage *s = y->storage;
    if (y->dtype != UL_I64 || bytes > most_known) return;
    s->known = malloc((size_t)bytes);
    if (s->known) memcpy(s->known, host, (size_t)bytes);
}

/* x is contiguous, y new and of its shape and dtype. */
static int move(ul_tensor *y, const ul_tensor *x)
{
    int64_t bytes = ul_tensor_size(x) * ul_dtype_bytes(x->dtype);
    if (bytes == 0) return UL_OK;
    ul_device from = x->storage->device, to = y->storage->device;
    const void *known = from == UL_CUDA ? ul__known(x) : NULL;
    if (known) memcpy(ul__data(y), known, (size_t)bytes);
    if (from == UL_CUDA) return known ? UL_OK : cuda->read(ul__data(y), ul__data(x), bytes);
    if (to == UL_CUDA && ul__home(x) == UL_CUDA) { /* from pinned memory it may come later */
        ul_slot *slot = x->storage->slot;
        int64_t at = (const char *)ul__data(x) - slot->data;
        return ul__slot_load(slot, at, ul__data(y), bytes, cuda->stream());
    }
    if (to == UL_CUDA) remember(y, ul__data(x), bytes);
    if (to == UL_CUDA) return cuda->write(ul__data(y), ul__data(x), bytes);
    memcpy(ul__data(y), ul__data(x), (size_t)bytes);
    return UL_OK;
}

int ul__moved(ul_tensor **out, const ul_tensor *x, ul_device device)
{
    ul_tensor *whole = NULL, *y = NULL;
    UL_TRY(ul__present(x));
    int rc = ul_tensor_is_contiguous(x) ? ul__alias(&whole, x) : ul__compact(&whole, x);
    if (rc == UL_OK) rc = ul_tensor_new(&y, x->dtype, device, x->ndim, x->shape);
    if (rc == UL_OK && device != UL_META) rc = move(y, whole);
    ul_tensor_free(whole);
    if (rc < 0)
        ul_tensor_free(y);
    else
        *out = y;
    return rc;
}

int ul__on_host(ul_tensor **out, const ul_tensor *x)
{
    return x->storage->device == UL_CUDA ? ul__moved(out, x, UL_CPU) : ul__alias(out, x);
}
