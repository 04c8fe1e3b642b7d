/* library.h - finds the CUDA libraries that are opened by name: cuBLASLt, cuDNN, NCCL. */
#ifndef UL_LIBRARY_H
#define UL_LIBRARY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the first of names (ended by NULL, the one preferred first) that there is, looking in
 *   1. the folders of UL_CUDA_LIB_PATH, separated by colons,
 *   2. where the loader looks: LD_LIBRARY_PATH, the system's folders,
 *   3. lib64 and lib below CUDA_HOME, CUDA_PATH and /usr/local/cuda,
 *   4. nvidia/.../lib of Python's packages: of VIRTUAL_ENV, CONDA_PREFIX, the python3 in PATH,
 *      ~/.local and the system,
 * every name in one place before the next place. A file that is there but can not be loaded is
 * passed over.
 *
 * Returns dlopen()'s handle, which nobody may close, or NULL. Then `why` (of `size` bytes) is the
 * rest of a sentence that names the library and where it was looked for, or what the loader said
 * of the file that could not be loaded.
 */
void *ul_library_open(const char *const *names, char *why, size_t size);

#ifdef __cplusplus
}
#endif
#endif
