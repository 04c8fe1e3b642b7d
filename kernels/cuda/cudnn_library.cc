/* cudnn_library.cc - opens libcudnn.so.9 and fills the table of its functions.
 */
#include "../library.h"

#include <dlfcn.h>
#include <stdio.h>

#include "cudnn_api.h"

namespace cudnn
{

static api table;
static char trouble[1024];

/* The name of the function that it lacks, or NULL. */
static const char *fill(void *from)
{
#define UL_CUDNN_FIND(type, name, arguments)            \
    *(void **)&table.name = dlsym(from, "cudnn" #name); \
    if (!table.name) return "cudnn" #name;
    UL_CUDNN_FUNCTIONS(UL_CUDNN_FIND)
#undef UL_CUDNN_FIND
    return nullptr;
}

static bool open_library()
{
    static const char *const names[] = {"libcudnn.so.9", nullptr};
    void *found = ul_library_open(names, trouble, sizeof trouble);
    if (!found) return false;
    const char *lacks = fill(found);
    if (lacks) {
        snprintf(trouble, sizeof trouble, "libcudnn.so.9 has no %s", lacks);
        return false;
    }
    int v = table.version = (int)table.GetVersion();
    if (v < OLDEST_VERSION)
        snprintf(trouble, sizeof trouble,
                 "libcudnn.so.9 is %d.%d.%d, and 9.10.2 or newer is needed", v / 10000,
                 v / 100 % 100, v % 100);
    return v >= OLDEST_VERSION;
}

const api *library()
{
    static const bool is_there = open_library();
    return is_there ? &table : nullptr;
}

const char *library_trouble() { return library() ? "" : trouble; }

} // namespace cudnn
