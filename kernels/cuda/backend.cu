/* backend.cu - the device's memory, its stream, and the table that the engine asks for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../backend.h"
#include "blaslt.h"
#include "cuda.h"
#include "cudnn_run.h"

static struct ul_stream stream, exchange, copies[2]; /* copies: to the device, to the host */
static int (*fail)(const char *sentence);
static char name[256];
static unsigned char uuid[UL_BACKEND_IDENTITY];

enum { SCRATCH = 8 << 20 };

/* CUDA 13's runtime takes any driver of that major version; its first was 580. */
#define UL_CUDA_NEEDED "13 (driver 580)"

/* ---- what went wrong ---- */

static int check(const char *what, cudaError_t rc)
{
    if (rc == cudaSuccess) return 0;
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%s: %s", what, cudaGetErrorString(rc));
    return fail(sentence);
}

int ul_cuda_launched(const char *kernel) { return check(kernel, cudaGetLastError()); }
int ul_cuda_fail(const char *sentence) { return fail(sentence); }

/* ---- memory ---- */

/* The emulator has its own, and looks for misuse. */
#ifndef UL_MARK
#define UL_MARK      NULL
#define UL_TAKE      cudaMalloc
#define UL_GIVE_BACK cudaFree
#define UL_PIN       cudaMallocHost
#define UL_UNPIN     cudaFreeHost
#endif

static void *alloc(int64_t bytes)
{
    void *data = NULL;
    if (UL_TAKE(&data, (size_t)bytes) == cudaSuccess) return data;
    cudaGetLastError(); /* it is said by the engine, not by the next kernel */
    return NULL;
}

static void release(void *data) { UL_GIVE_BACK(data); }

static int memory(int64_t *unused, int64_t *total)
{
    size_t bytes_free = 0, bytes = 0;
    if (check("memory", cudaMemGetInfo(&bytes_free, &bytes))) return -1;
    *unused = (int64_t)bytes_free;
    *total = (int64_t)bytes;
    return 0;
}

/* ---- values ---- */

/* The host's memory may be used again at once: it is no pinned one. */
static int write_values(void *data, const void *host, int64_t bytes)
{
    cudaError_t rc =
        cudaMemcpyAsync(data, host, (size_t)bytes, cudaMemcpyHostToDevice, stream.stream);
    return check("copy to the device", rc);
}

static int read_values(void *host, const void *data, int64_t bytes)
{
    cudaError_t rc =
        cudaMemcpyAsync(host, data, (size_t)bytes, cudaMemcpyDeviceToHost, stream.stream);
    if (rc == cudaSuccess) rc = cudaStreamSynchronize(stream.stream);
    return check("copy to the host", rc);
}

static void *pin(int64_t bytes)
{
    void *host = NULL;
    if (UL_PIN(&host, (size_t)bytes) == cudaSuccess) return host;
    cudaGetLastError();
    return NULL;
}

static void unpin(void *host) { UL_UNPIN(host); }

static int copy_values(void *to, const void *from, int64_t bytes, int to_host, ul_stream *s)
{
    cudaMemcpyKind kind = to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    cudaError_t rc = cudaMemcpyAsync(to, from, (size_t)bytes, kind, s->stream);
    return check(to_host ? "copy to pinned memory" : "copy from pinned memory", rc);
}

int ul_cuda_fetch(ul_stream *s, void *host, const void *data, int64_t bytes)
{
    (void)s;
    return read_values(host, data, bytes);
}

static int wait_for_all(void) { return check("wait", cudaStreamSynchronize(stream.stream)); }

static const char *device_name(void) { return name; }
static ul_stream *stream_of(void) { return &stream; }
static ul_stream *exchange_stream(void) { return &exchange; }
static ul_stream *copy_stream(int to_host) { return &copies[to_host]; }
static void *native(ul_stream *s) { return s->stream; }
static const unsigned char *identity(void) { return uuid; }

/* ---- events ---- */

static void *event_new(void)
{
    cudaEvent_t event;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess) return event;
    cudaGetLastError();
    return NULL;
}

/* What it holds is freed when it has come. */
static void event_free(void *event) { cudaEventDestroy((cudaEvent_t)event); }

static int event_record(void *event, ul_stream *s)
{
    return check("event", cudaEventRecord((cudaEvent_t)event, s->stream));
}

static int event_wait(ul_stream *s, void *event)
{
    return check("event", cudaStreamWaitEvent(s->stream, (cudaEvent_t)event, 0));
}

static int event_has_come(void *event)
{
    cudaError_t rc = cudaEventQuery((cudaEvent_t)event);
    if (rc == cudaSuccess) return 1;
    cudaGetLastError(); /* it is no kernel's */
    return rc == cudaErrorNotReady ? 0 : check("event", rc);
}

static int event_finish(void *event)
{
    return check("event", cudaEventSynchronize((cudaEvent_t)event));
}

/* ---- opening ---- */

static int count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

/* What ranks exchange goes first: others wait for it. */
static int make_streams(void)
{
    int least = 0, most = 0;
    int bad = check("stream", cudaDeviceGetStreamPriorityRange(&least, &most));
    if (!bad)
        bad = check("stream", cudaStreamCreateWithFlags(&stream.stream, cudaStreamNonBlocking));
    if (!bad)
        bad = check("stream",
                    cudaStreamCreateWithPriority(&exchange.stream, cudaStreamNonBlocking, most));
    for (int i = 0; i < 2 && !bad; i++)
        bad = check("stream", cudaStreamCreateWithFlags(&copies[i].stream, cudaStreamNonBlocking));
    return bad;
}

/* There is a libcuda.so.1, and yet no GPU to use: what to do about it. */
static int no_gpu(cudaError_t rc)
{
    char sentence[512];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (rc == cudaErrorStubLibrary)
        return fail("the libcuda.so.1 that was found is the toolkit's stub and no driver: take its "
                    "folder out of LD_LIBRARY_PATH");
    if (rc == cudaErrorInsufficientDriver)
        return fail("the NVIDIA driver is too old for this build: it needs CUDA " UL_CUDA_NEEDED
                    " or newer");
    if (rc == cudaSuccess || rc == cudaErrorNoDevice)
        snprintf(sentence, sizeof sentence,
                 "the NVIDIA driver sees no GPU%s%s (nvidia-smi lists those of the machine)",
                 visible ? " with CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "");
    else
        snprintf(sentence, sizeof sentence,
                 "the NVIDIA driver does not answer: %s (error %d); nvidia-smi may say why",
                 cudaGetErrorString(rc), (int)rc);
    return fail(sentence);
}

static int open_device(int ordinal, int (*on_failure)(const char *sentence))
{
    int n = 0;
    char sentence[512];
    fail = on_failure;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n == 0) return no_gpu(rc);
    if (ordinal >= n) {
        snprintf(sentence, sizeof sentence, "there is no cuda:%d, only %d device%s", ordinal, n,
                 n == 1 ? "" : "s");
        return fail(sentence);
    }
    cudaDeviceProp properties;
    int bad = check("device", cudaSetDevice(ordinal));
    if (!bad) bad = check("device", cudaGetDeviceProperties(&properties, ordinal));
    if (bad) return bad;
    if (properties.major < 8) {
        snprintf(sentence, sizeof sentence,
                 "%s has compute capability %d.%d; 8.0 (Ampere) or newer is needed",
                 properties.name, properties.major, properties.minor);
        return fail(sentence);
    }
    snprintf(name, sizeof name, "%s", properties.name);
    memcpy(uuid, &properties.uuid, sizeof uuid);
    stream.processors = exchange.processors = properties.multiProcessorCount;
    stream.capability = exchange.capability = properties.major * 10 + properties.minor;
    stream.shared_bytes = (int64_t)properties.sharedMemPerBlockOptin;
    stream.device_bytes = exchange.device_bytes = (int64_t)properties.totalGlobalMem;
    stream.scratch_bytes = SCRATCH;
    bad = make_streams();
    if (!bad) bad = check("scratch", cudaMalloc(&stream.scratch, SCRATCH));
    if (!bad && UL_OPENS_CUBLASLT) bad = ul_blaslt_open(&stream, fail);
    return bad;
}

extern "C" {
extern const ul_kernels ul_cuda_f32_table, ul_cuda_bf16_table, ul_cuda_f64_table, ul_cuda_i32_table,
    ul_cuda_i64_table, ul_cuda_u8_table;

__attribute__((visibility("default"))) const ul_backend *ul_backend_get(int abi, int *own_abi)
{
    static const ul_backend backend = {
        count,
        open_device,
        device_name,
        memory,
        alloc,
        release,
        UL_MARK,
        write_values,
        read_values,
        wait_for_all,
        stream_of,
        identity,
        exchange_stream,
        native,
        event_new,
        event_free,
        event_record,
        event_wait,
        event_has_come,
        event_finish,
        pin,
        unpin,
        copy_stream,
        copy_values,
        {&ul_cuda_f32_table, &ul_cuda_bf16_table, &ul_cuda_f64_table, &ul_cuda_i32_table,
         &ul_cuda_i64_table, &ul_cuda_u8_table},
        ul_cudnn_report,
    };
    *own_abi = UL_BACKEND_ABI;
    return abi == UL_BACKEND_ABI ? &backend : NULL;
}
}
