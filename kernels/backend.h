/* backend.h - what a backend in a library of its own offers: memory of its device, and kernels.
 *
 * libulysses_cuda.so has one function, ul_backend_get(). The engine opens the library when a tensor
 * is first wanted on cuda; a process that never asks needs neither driver nor CUDA.
 */
#ifndef UL_BACKEND_H
#define UL_BACKEND_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Another number for each change of this file, of kernels.h or of kernels.def. */
enum { UL_BACKEND_ABI = 9, UL_BACKEND_TYPES = 6, UL_BACKEND_IDENTITY = 16 };

/* A segment, of which nothing is in use yet; a block that is in use from now on; one that is no
 * more. In the order of the stream that computes. */
typedef enum { UL_MEMORY_NEW, UL_MEMORY_USED, UL_MEMORY_UNUSED } ul_memory_mark;

/* Functions return 0, or what `fail` returned: it keeps the sentence. All work goes to one stream,
 * in order; but for what ranks exchange, and what is copied to and from pinned memory, which have
 * streams of their own, and events between them.
 */
typedef struct ul_backend {
    /* Takes device number `ordinal` (from 0) for this process. */
    int (*count)(void); /* of devices; 0: open() says why */
    int (*open)(int ordinal, int (*fail)(const char *sentence));
    const char *(*device_name)(void); /* "NVIDIA H200" */
    int (*memory)(int64_t *free, int64_t *total);
    /* Segments, which the engine cuts into blocks: aligned to 256; NULL where there is none left.
     */
    void *(*alloc)(int64_t bytes);
    void (*release)(void *data); /* nothing uses it any more */
    /* Told what becomes of memory, for whoever looks for misuse; NULL where nobody does. */
    void (*mark)(void *data, int64_t bytes, ul_memory_mark how);
    int (*write)(void *data, const void *host, int64_t bytes);
    int (*read)(void *host, const void *data, int64_t bytes); /* waits for all work before it */
    int (*wait)(void);
    ul_stream *(*stream)(void);
    /* The same for every process that has this device, and no other: its UUID. */
    const unsigned char *(*identity)(void);
    ul_stream *(*exchange_stream)(void);
    void *(*native)(ul_stream *s);   /* what CUDA's libraries know it as: a cudaStream_t */
    void *(*event_new)(void);        /* NULL where there is none */
    void (*event_free)(void *event); /* whoever waits for it may still do so */
    int (*event_record)(void *event, ul_stream *s); /* it comes when all work before it is done */
    int (*event_wait)(ul_stream *s, void *event);   /* later work on s begins when it has come */
    int (*event_has_come)(void *event);             /* 1 or 0, or an error; from any thread */
    int (*event_finish)(void *event);               /* the host waits until it has come */
    /* Memory of the host that copies run to and from while other work goes on; NULL where there is
     * none left. copy() returns at once. */
    void *(*pin)(int64_t bytes);
    void (*unpin)(void *host); /* no copy is under way */
    ul_stream *(*copy_stream)(int to_host);
    int (*copy)(void *to, const void *from, int64_t bytes, int to_host, ul_stream *s);
    const ul_kernels *kernels[UL_BACKEND_TYPES]; /* f32 bf16 f64 i32 i64 u8 */
    /* Who has computed attention of bf16, and why. */
    const char *(*attention_report)(void);
} ul_backend;

/* NULL where the library was built for another ABI. */
typedef const ul_backend *ul_backend_getter(int abi, int *own_abi);
#define UL_BACKEND_GETTER "ul_backend_get"

#ifdef __cplusplus
}
#endif
#endif
