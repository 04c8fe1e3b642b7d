/* safetensors_save.c - writes the safetensors format, straight from the tensors' memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "io.h"

enum { ALIGNMENT = 8, LONGEST_PATH = 4096, MOST_LINKS = 40 };

/* The order in which dtypes lie in a file: the widest first, so that all is aligned. */
static const struct {
    const char *name;
    int place;
} dtypes[UL_DTYPES] = {[UL_I64] = {"I64", 0}, [UL_F64] = {"F64", 1},   [UL_F32] = {"F32", 2},
                       [UL_I32] = {"I32", 3}, [UL_BF16] = {"BF16", 4}, [UL_U8] = {"U8", 5}};

static int in_order(const void *a, const void *b)
{
    const ul_safetensors_item *x = a, *y = b;
    int gap = dtypes[x->tensor->dtype].place - dtypes[y->tensor->dtype].place;
    return gap ? gap : strcmp(x->name, y->name);
}

static int64_t bytes_of(const ul_tensor *t) { return ul_tensor_size(t) * ul_dtype_bytes(t->dtype); }

/* ---- the header ---- */

static int add_entry(json_t *header, const char *path, const ul_safetensors_item *item, int64_t at)
{
    const ul_tensor *t = item->tensor;
    UL_REQUIRE(strcmp(item->name, "__metadata__") != 0, UL_EVALUE,
               "%s: no tensor can have the name '__metadata__'", path);
    UL_REQUIRE(!json_object_get(header, item->name), UL_EVALUE,
               "%s: two tensors have the name '%.80s'", path, item->name);
    UL_REQUIRE(t->storage->device != UL_META, UL_EDEVICE,
               "%s: tensor '%.80s' is on meta and has no values", path, item->name);
    json_t *shape = json_array();
    for (int d = 0; d < t->ndim; d++) json_array_append_new(shape, json_integer(t->shape[d]));
    json_t *offsets = json_array();
    json_array_append_new(offsets, json_integer(at));
    json_array_append_new(offsets, json_integer(at + bytes_of(t)));
    json_t *entry = json_object();
    json_object_set_new(entry, "dtype", json_string(dtypes[t->dtype].name));
    json_object_set_new(entry, "shape", shape);
    json_object_set_new(entry, "data_offsets", offsets);
    UL_REQUIRE(json_object_set_new(header, item->name, entry) == 0, UL_EVALUE,
               "%s: the name '%.80s' is no UTF-8", path, item->name);
    return UL_OK;
}

static int add_metadata(json_t *header, const char *path, const char *const *metadata)
{
    json_t *object = json_object();
    json_object_set_new(header, "__metadata__", object);
    json_object_set_new(object, "format", json_string("pt"));
    for (int i = 0; metadata && metadata[i]; i += 2)
        UL_REQUIRE(json_object_set_new(object, metadata[i], json_string(metadata[i + 1])) == 0,
                   UL_EVALUE, "%s: metadata '%.80s' is no UTF-8", path, metadata[i]);
    return UL_OK;
}

/* *text: the header, padded; to be freed with free(). */
static int make_header(char **text, const char *path, const ul_safetensors_item *items, int n,
                       const char *const *metadata)
{
    json_t *header = json_object();
    int64_t at = 0;
    int rc = add_metadata(header, path, metadata);
    for (int i = 0; rc == UL_OK && i < n; i++) {
        rc = add_entry(header, path, &items[i], at);
        at += bytes_of(items[i].tensor);
    }
    if (rc == UL_OK) {
        size_t length = json_dumpb(header, NULL, 0, JSON_COMPACT);
        size_t padded = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        *text = length && !ul__fail_now() ? malloc(padded + 1) : NULL;
        if (*text) {
            json_dumpb(header, *text, length, JSON_COMPACT);
            memset(*text + length, ' ', padded - length);
            (*text)[padded] = 0;
        } else {
            rc = ul__fail(UL_ENOMEM, "%s: out of memory", path);
        }
    }
    json_decref(header);
    return rc;
}

/* ---- the file ---- */

static int write_tensor(ul__writer *w, ul_tensor *t)
{
    UL_TRY(ul__present(t));
    if (ul_tensor_is_contiguous(t) && t->storage->device == UL_CPU)
        return ul__write(w, ul__data(t), bytes_of(t));
    ul_tensor *copy;
    UL_TRY(ul__moved(&copy, t, UL_CPU));
    int rc = ul__write(w, ul__data(copy), bytes_of(copy));
    ul_tensor_free(copy);
    return rc;
}

static int write_all(ul_file_sum *sum, const char *path, const char *header,
                     const ul_safetensors_item *items, int n)
{
    ul__writer w;
    uint64_t length = strlen(header);
    UL_TRY(ul__write_begin(&w, path));
    int rc = ul__write(&w, &length, sizeof length);
    if (rc == UL_OK) rc = ul__write(&w, header, (int64_t)length);
    for (int i = 0; rc == UL_OK && i < n; i++) rc = write_tensor(&w, items[i].tensor);
    if (rc == UL_OK) return ul__write_end(&w, sum);
    ul__write_drop(&w);
    return rc;
}

/* The folder that path is in, in the room of `folder`, which is as long as path or longer. */
static const char *folder_of(char *folder, const char *path)
{
    strcpy(folder, path);
    char *slash = strrchr(folder, '/');
    if (!slash) return ".";
    slash[slash == folder] = 0;
    return folder;
}

/* Opens the file that is written first, and keeps other processes from writing to it. The lock ends
 * with the descriptor, which stays open until the file has its name. What a link of that name leads
 * to would be lost, and a pipe would wait for its reader.
 */
static int lock_temporary(int *fd, const char *temporary, const char *path)
{
    struct stat mine, there;
    for (;;) {
        int other = lstat(temporary, &there) == 0 && !S_ISREG(there.st_mode);
        UL_REQUIRE(!other, UL_EIO, "%s: is no file, and in the way; move it", temporary);
        *fd = open(temporary, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        UL_REQUIRE(*fd >= 0, UL_EIO, "%s: cannot be created: %s", temporary, strerror(errno));
        if (flock(*fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
            close(*fd);
            return ul__fail(UL_EIO, "%s: another process is writing it", path);
        }
        if (fstat(*fd, &mine) == 0 && stat(temporary, &there) == 0 && mine.st_ino == there.st_ino)
            return UL_OK;
        close(*fd); /* who had it has given it its name meanwhile */
    }
}

static int write_locked(ul_file_sum *sum, const char *path, char *temporary, const char *header,
                        const ul_safetensors_item *items, int n)
{
    int fd = -1;
    UL_TRY(lock_temporary(&fd, temporary, path));
    int rc = write_all(sum, temporary, header, items, n);
    if (rc == UL_OK) rc = ul_file_rename(temporary, path);
    if (rc < 0) unlink(temporary);
    close(fd);
    if (rc == UL_OK) rc = ul_folder_sync(folder_of(temporary, path));
    return rc;
}

/* Follows links to the name of what they lead to, be it there or not: the links stay. `name` has
 * room for LONGEST_PATH bytes.
 */
static int follow_links(char *name, const char *path)
{
    char target[LONGEST_PATH];
    UL_REQUIRE(strlen(path) < LONGEST_PATH, UL_EIO, "%.200s...: is too long a name", path);
    strcpy(name, path);
    for (int links = 0;; links++) {
        ssize_t n = readlink(name, target, sizeof target - 1);
        if (n < 0) return UL_OK;
        UL_REQUIRE(links < MOST_LINKS, UL_EIO, "%s: its links lead nowhere", path);
        char *last = strrchr(name, '/');
        char *at = target[0] == '/' || !last ? name : last + 1;
        UL_REQUIRE(at - name + n < LONGEST_PATH, UL_EIO, "%s: its links lead too far", path);
        memcpy(at, target, (size_t)n);
        at[n] = 0;
    }
}

static int write_whole(ul_file_sum *sum, const char *path, const char *header,
                       const ul_safetensors_item *items, int n)
{
    char name[LONGEST_PATH], temporary[LONGEST_PATH + 4];
    struct stat there;
    UL_TRY(follow_links(name, path));
    /* Renaming would take /dev/null away. */
    int is_other = stat(name, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode);
    UL_REQUIRE(!is_other, UL_EIO, "%s: cannot be replaced: it is no file", path);
    sprintf(temporary, "%s.tmp", name);
    return write_locked(sum, name, temporary, header, items, n);
}

int ul_safetensors_save(ul_file_sum *sum, const char *path, const ul_safetensors_item *items, int n,
                        const char *const *metadata)
{
    char *header = NULL;
    ul_safetensors_item *sorted = ul__alloc(((size_t)n + 1) * sizeof *sorted);
    if (!sorted) return ul__fail(UL_ENOMEM, "%s: out of memory", path);
    if (n) {
        memcpy(sorted, items, (size_t)n * sizeof *sorted);
        qsort(sorted, (size_t)n, sizeof *sorted, in_order);
    }
    int rc = make_header(&header, path, sorted, n, metadata);
    if (rc == UL_OK) rc = write_whole(sum, path, header, sorted, n);
    free(header);
    ul__release(sorted);
    return rc;
}
