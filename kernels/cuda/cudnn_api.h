/* cudnn_api.h - the part of cuDNN that attention needs, declared here: to build takes no header and
 * no library of it. The library is opened when attention first asks for it.
 */
#ifndef UL_CUDNN_API_H
#define UL_CUDNN_API_H

#include <stddef.h>
#include <stdint.h>

namespace cudnn
{

enum number {
#define UL_CUDNN(name, value) name = value,
#include "cudnn_numbers.def"
#undef UL_CUDNN
};

typedef struct opaque *descriptor;
typedef struct opaque_handle *handle;

/* The functions; a status is 0 or what has gone wrong. */
#define UL_CUDNN_FUNCTIONS(F)                                                            \
    F(size_t, GetVersion, (void))                                                        \
    F(const char *, GetErrorString, (int status))                                        \
    F(void, GetLastErrorString, (char *message, size_t size))                            \
    F(int, Create, (handle *))                                                           \
    F(int, SetStream, (handle, void *stream))                                            \
    F(int, BackendCreateDescriptor, (int kind, descriptor *))                            \
    F(int, BackendDestroyDescriptor, (descriptor))                                       \
    F(int, BackendFinalize, (descriptor))                                                \
    F(int, BackendSetAttribute,                                                          \
      (descriptor, int attribute, int type, int64_t count, const void *values))          \
    F(int, BackendGetAttribute,                                                          \
      (descriptor, int attribute, int type, int64_t room, int64_t *count, void *values)) \
    F(int, BackendExecute, (handle, descriptor plan, descriptor variant_pack))

struct api {
#define UL_CUDNN_POINTER(type, name, arguments) type(*name) arguments;
    UL_CUDNN_FUNCTIONS(UL_CUDNN_POINTER)
#undef UL_CUDNN_POINTER
    int version; /* 91900: 9.19.0 */
};

/* The oldest one whose attention is right. */
enum { OLDEST_VERSION = 91002 };

/* libcudnn.so.9, looked for once. NULL where it is not there, is too old or lacks a function:
 * library_trouble() is the sentence then.
 */
const api *library();
const char *library_trouble();

} // namespace cudnn

#endif
