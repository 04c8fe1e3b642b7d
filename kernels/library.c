/* library.c - finds the CUDA libraries that are opened by name: cuBLASLt, cuDNN, NCCL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"

typedef struct search {
    const char *const *names;
    char *why; /* of the first file that is there and can not be loaded; "" before it */
    size_t size;
} search;

static void *try(const search *s, const char *path, int is_there)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library && is_there && !*s->why) snprintf(s->why, s->size, "%s", dlerror());
    return library;
}

static void *in_folder(const search *s, const char *folder, int length)
{
    void *library = NULL;
    char path[PATH_MAX];
    for (const char *const *name = s->names; *name && !library; name++) {
        int n = snprintf(path, sizeof path, "%.*s/%s", length, folder, *name);
        if (n < (int)sizeof path && access(path, F_OK) == 0) library = try(s, path, 1);
    }
    return library;
}

/* folders: separated by colons */
static void *in_folders(const search *s, const char *folders)
{
    void *library = NULL;
    while (folders && *folders && !library) {
        int length = (int)strcspn(folders, ":");
        if (length) library = in_folder(s, folders, length);
        folders += length + (folders[length] == ':');
    }
    return library;
}

static void *where_the_loader_looks(const search *s)
{
    void *library = NULL;
    for (const char *const *name = s->names; *name && !library; name++) library = try(s, *name, 0);
    return library;
}

static void *below(const search *s, const char *root, const char *pattern)
{
    char path[PATH_MAX];
    glob_t found;
    void *library = NULL;
    if (!root || !*root || snprintf(path, sizeof path, "%s/%s", root, pattern) >= (int)sizeof path)
        return NULL;
    if (glob(path, GLOB_BRACE, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && !library; i++)
            library = in_folder(s, found.gl_pathv[i], INT_MAX);
        globfree(&found);
    }
    return library;
}

/* Of the environment whose python3 comes first in PATH. */
static void *below_python(const search *s, const char *packages)
{
    const char *path = getenv("PATH");
    char root[PATH_MAX];
    while (path && *path) {
        int length = (int)strcspn(path, ":");
        int n = snprintf(root, sizeof root, "%.*s/python3", length, path);
        if (n < (int)sizeof root && access(root, X_OK) == 0) {
            strcpy(root + length, "/..");
            return below(s, root, packages);
        }
        path += length + (path[length] == ':');
    }
    return NULL;
}

static void *in_python(const search *s)
{
    static const char packages[] = "lib/python3*/site-packages/nvidia/*/lib";
    void *library = below(s, getenv("VIRTUAL_ENV"), packages);
    char local[PATH_MAX];
    const char *home = getenv("HOME");
    if (!library) library = below(s, getenv("CONDA_PREFIX"), packages);
    if (!library) library = below_python(s, packages);
    if (!library && home && snprintf(local, sizeof local, "%s/.local", home) < (int)sizeof local)
        library = below(s, local, packages);
    if (!library) library = below(s, "/usr", "{,local/}lib/python3*/*-packages/nvidia/*/lib");
    return library;
}

void *ul_library_open(const char *const *names, char *why, size_t size)
{
    static const char folders[] = "lib*";
    const char *given = getenv("UL_CUDA_LIB_PATH");
    search s = {names, why, size};
    why[0] = 0;
    void *library = in_folders(&s, given);
    if (!library) library = where_the_loader_looks(&s);
    if (!library) library = below(&s, getenv("CUDA_HOME"), folders);
    if (!library) library = below(&s, getenv("CUDA_PATH"), folders);
    if (!library) library = below(&s, "/usr/local/cuda", folders);
    if (!library) library = in_python(&s);
    if (!library && !*why)
        snprintf(why, size,
                 "no %s in UL_CUDA_LIB_PATH (%s), the loader's folders, CUDA_HOME, "
                 "/usr/local/cuda or Python's nvidia packages",
                 names[0], given && *given ? given : "not set");
    return library;
}
