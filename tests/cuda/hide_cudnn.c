/* hide_cudnn.c - loaded before a program, it makes a machine one that has no cuDNN.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

int access(const char *path, int mode);

int access(const char *path, int mode)
{
    int (*real)(const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "access");
    return strstr(path, "libcudnn.so") ? -1 : real(path, mode);
}

void *dlopen(const char *path, int mode)
{
    void *(*real)(const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    return path && strstr(path, "libcudnn.so") ? NULL : real(path, mode);
}
