/* hide_library.c - loaded before a program, it makes a machine one that lacks a library: what
 * HIDE_LIBRARY says is in the name of its file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

int access(const char *path, int mode);

static int is_hidden(const char *path)
{
    const char *name = getenv("HIDE_LIBRARY");
    return name && path && strstr(path, name);
}

int access(const char *path, int mode)
{
    int (*real)(const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "access");
    return is_hidden(path) ? -1 : real(path, mode);
}

void *dlopen(const char *path, int mode)
{
    void *(*real)(const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    return is_hidden(path) ? NULL : real(path, mode);
}
