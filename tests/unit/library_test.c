/* library_test.c - where a library that is opened by name is found, and what is said where not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"
#include "library.h"

static char root[64], real[512];
static const char *const names[] = {"libul_wanted.so.2", "libul_wanted.so.1", NULL};

/* root/folder/file becomes a copy of a library that can be loaded, or text. */
static void put(const char *folder, const char *file, const char *library)
{
    char path[256], command[1024];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
    mkdir(path, 0777);
    size_t n = strlen(path);
    snprintf(path + n, sizeof path - n, "/%s", file);
    if (library) {
        snprintf(command, sizeof command, "cp -L '%s' '%s'", library, path);
        CHECK(system(command) == 0);
    } else {
        FILE *f = fopen(path, "w");
        CHECK(f && fputs("no library", f) >= 0 && fclose(f) == 0);
    }
}

/* The folder below root that the library found is in, "" where there is none. */
static const char *found(char *why)
{
    static char folder[256];
    char path[512];
    void *library = ul_library_open(names, why, 512);
    folder[0] = 0;
    if (!library) return folder;
    CHECK(dlinfo(library, RTLD_DI_ORIGIN, path) == 0);
    dlclose(library);
    snprintf(folder, sizeof folder, "%s", path + strlen(root) + 1);
    return folder;
}

static void set(const char *name, const char *folder)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    setenv(name, path, 1);
}

static void places(void)
{
    static const char *const roots[] = {"CUDA_PATH", "CUDA_HOME", "UL_CUDA_LIB_PATH"};
    static const char *const lib[] = {"p/lib", "h/lib64", "u"};
    char why[512];
    setenv("HOME", root, 1);
    CHECK(!strcmp(found(why), ""));
    CHECK(strstr(why, "no libul_wanted.so.2 in UL_CUDA_LIB_PATH (not set)"), "%s", why);
    /* each place goes before those that were filled before it */
    put(".local/lib/python3.11/site-packages/nvidia/cu13/lib", names[1], real);
    CHECK(strstr(found(why), "nvidia/cu13"));
    put("e/lib/python3.12/site-packages/nvidia/cudnn/lib", names[1], real);
    put("e/bin", "python3", "/bin/true");
    set("PATH", "e/bin:/usr/bin:/bin");
    CHECK(strstr(found(why), "nvidia/cudnn"), "of the python3 in PATH");
    put("v/lib/python3.12/site-packages/nvidia/nccl/lib", names[1], real);
    set("VIRTUAL_ENV", "v");
    CHECK(!strncmp(found(why), "v/lib", 5));
    for (int i = 0; i < 3; i++) {
        char folder[2] = {lib[i][0], 0};
        put(lib[i], names[1], real);
        set(roots[i], folder);
        CHECK(!strcmp(found(why), lib[i]), "%s: %s", roots[i], found(why));
    }
}

static void broken(void)
{
    char why[512];
    put("b", names[0], NULL);
    set("UL_CUDA_LIB_PATH", "b");
    CHECK(!strcmp(found(why), "h/lib64"), "a file that can not be loaded is passed over");
    unsetenv("CUDA_HOME");
    unsetenv("CUDA_PATH");
    unsetenv("VIRTUAL_ENV");
    setenv("HOME", "/nonexistent", 1);
    setenv("PATH", "/usr/bin:/bin", 1);
    CHECK(!strcmp(found(why), ""));
    CHECK(strstr(why, "/b/libul_wanted.so.2: "), "the loader's own words: %s", why);
}

int main(void)
{
    const char *base = getenv("TMPDIR");
    char command[128];
    snprintf(root, sizeof root, "%.40s/ul_library_XXXXXX", base ? base : P_tmpdir);
    void *math = dlopen("libm.so.6", RTLD_NOW);
    if (!mkdtemp(root) || !math || dlinfo(math, RTLD_DI_ORIGIN, real)) return 1;
    strcat(real, "/libm.so.6");
    unsetenv("UL_CUDA_LIB_PATH");
    unsetenv("CUDA_HOME");
    unsetenv("CUDA_PATH");
    unsetenv("VIRTUAL_ENV");
    unsetenv("CONDA_PREFIX");
    RUN(places);
    RUN(broken);
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return check_done() | (system(command) != 0);
}
