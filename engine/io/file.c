/* file.c - files and folders that must be whole on the disk, or not there.
 *
 * Whatever changes the disk asks trip() first, so that a test can make each single step fail.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "io.h"

/* Summed and written, or read and summed, while it is in the cache. */
enum { PIECE = 1 << 20, LONGEST_PATH = 4096 };

/* ---- failures, real and asked for ---- */

static int64_t fail_in, changes;
static int fail_with;

void ul_debug_fail_write(int64_t n, int error)
{
    fail_in = n;
    fail_with = error;
}

int64_t ul_debug_writes(void) { return changes; }

/* Whether this is the step that is to fail; errno says how. */
static int trip(void)
{
    changes++;
    if (fail_in <= 0 || --fail_in > 0) return 0;
    if (fail_with < 0) raise(SIGKILL);
    errno = fail_with;
    return 1;
}

static int failed(const char *path, const char *what)
{
    return ul__fail(UL_EIO, "%s: cannot be %s: %s", path, what, strerror(errno));
}

/* ---- sums ---- */

static void hexadecimal(char *text, XXH128_hash_t hash)
{
    snprintf(text, 33, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

void ul_hash(char hash[33], const void *data, int64_t bytes)
{
    hexadecimal(hash, XXH3_128bits(data, (size_t)bytes));
}

/* ---- writing ---- */

int ul__write_begin(ul__writer *w, const char *path)
{
    *w = (ul__writer){.path = path, .fd = -1};
    if (ul__fail_now() || !(w->hash = XXH3_createState()))
        return ul__fail(UL_ENOMEM, "%s: out of memory", path);
    XXH3_128bits_reset(w->hash);
    if (!trip()) w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd >= 0) return UL_OK;
    int rc = failed(path, "created");
    XXH3_freeState(w->hash);
    return rc;
}

/* write(), except that a limit on the size of files is an error like others, not a signal that
 * ends the program.
 */
static ssize_t write_quietly(int fd, const void *data, size_t bytes)
{
    struct sigaction before, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGXFSZ, &ignore, &before);
    int tripped = trip(), error = errno;
    /* A disk fills up in the middle of a piece, too. */
    ssize_t n = write(fd, data, tripped ? bytes / 2 : bytes);
    if (tripped)
        n = -1;
    else
        error = errno;
    sigaction(SIGXFSZ, &before, NULL);
    errno = error;
    return n;
}

int ul__write(ul__writer *w, const void *data, int64_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        size_t piece = (size_t)(bytes < PIECE ? bytes : PIECE);
        ssize_t n = write_quietly(w->fd, at, piece);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return failed(w->path, "written");
        XXH3_128bits_update(w->hash, at, (size_t)n);
        at += n;
        bytes -= n;
        w->bytes += n;
    }
    return UL_OK;
}

void ul__write_drop(ul__writer *w)
{
    close(w->fd);
    unlink(w->path);
    XXH3_freeState(w->hash);
}

static int sync_now(int fd)
{
    int rc;
    if (trip()) return -1;
    while ((rc = fsync(fd)) < 0 && errno == EINTR) continue;
    return rc;
}

int ul__write_end(ul__writer *w, ul_file_sum *sum)
{
    if (sync_now(w->fd) < 0) {
        int rc = failed(w->path, "written");
        ul__write_drop(w);
        return rc;
    }
    if (sum) {
        sum->bytes = w->bytes;
        hexadecimal(sum->hash, XXH3_128bits_digest(w->hash));
    }
    close(w->fd);
    XXH3_freeState(w->hash);
    return UL_OK;
}

int ul_file_write(ul_file_sum *sum, const char *path, const void *data, int64_t bytes)
{
    ul__writer w;
    UL_TRY(ul__write_begin(&w, path));
    int rc = ul__write(&w, data, bytes);
    if (rc == UL_OK) return ul__write_end(&w, sum);
    ul__write_drop(&w);
    return rc;
}

/* ---- reading ---- */

int ul__read_begin(int *fd, int64_t *bytes, const char *path)
{
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for its writer */
    if (file < 0 || fstat(file, &status) < 0) {
        int rc = failed(path, "read");
        if (file >= 0) close(file);
        return rc;
    }
    if (!S_ISREG(status.st_mode)) {
        close(file);
        return ul__fail(UL_EIO, "%s: is no file", path);
    }
    *fd = file;
    *bytes = status.st_size;
    return UL_OK;
}

int ul__read(int fd, const char *path, void *data, int64_t bytes, int64_t at)
{
    char *to = data;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, (size_t)(bytes < 1 << 30 ? bytes : 1 << 30), at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(path, "read");
        if (n == 0)
            return ul__fail(UL_EIO, "%s: ends at byte %lld, too early", path, (long long)at);
        to += n;
        at += n;
        bytes -= n;
    }
    return UL_OK;
}

static int sum_all(ul_file_sum *sum, int fd, const char *path, int64_t bytes)
{
    void *piece = ul__alloc(PIECE);
    XXH3_state_t *hash = ul__fail_now() ? NULL : XXH3_createState();
    int rc = UL_OK;
    if (!piece || !hash) rc = ul__fail(UL_ENOMEM, "%s: out of memory", path);
    if (rc == UL_OK) XXH3_128bits_reset(hash);
    for (int64_t at = 0; rc == UL_OK && at < bytes; at += PIECE) {
        int64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        rc = ul__read(fd, path, piece, n, at);
        if (rc == UL_OK) XXH3_128bits_update(hash, piece, (size_t)n);
    }
    if (rc == UL_OK) {
        sum->bytes = bytes;
        hexadecimal(sum->hash, XXH3_128bits_digest(hash));
    }
    XXH3_freeState(hash);
    ul__release(piece);
    return rc;
}

int ul_file_sum_of(ul_file_sum *sum, const char *path)
{
    int fd = -1;
    int64_t bytes = 0;
    UL_TRY(ul__read_begin(&fd, &bytes, path));
    int rc = sum_all(sum, fd, path, bytes);
    close(fd);
    return rc;
}

/* ---- names ---- */

int ul_file_rename(const char *from, const char *to)
{
    if (trip() || rename(from, to) < 0)
        return ul__fail(UL_EIO, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
    return UL_OK;
}

int ul_path_exchange(const char *a, const char *b)
{
    if (trip() || renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) < 0)
        return ul__fail(UL_EIO, "%s: cannot be exchanged with %s: %s", a, b, strerror(errno));
    return UL_OK;
}

int ul_file_point(const char *path, const char *target)
{
    char temporary[LONGEST_PATH];
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    UL_REQUIRE(n < LONGEST_PATH, UL_EIO, "%.200s: is too long a name", path);
    unlink(temporary);
    if (trip() || symlink(target, temporary) < 0) return failed(path, "created");
    int rc = ul_file_rename(temporary, path);
    if (rc < 0) unlink(temporary);
    return rc;
}

int ul_folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return failed(path, "written");
    /* Some file systems know no such thing: they keep names in order by themselves. */
    int bad = sync_now(fd) < 0 && errno != EINVAL && errno != ENOTSUP;
    int rc = bad ? failed(path, "written") : UL_OK;
    close(fd);
    return rc;
}

int ul_folder_make(const char *path)
{
    char part[LONGEST_PATH];
    struct stat status;
    size_t n = strlen(path);
    UL_REQUIRE(n > 0 && n < LONGEST_PATH, UL_EIO, "%.200s: is no name for a folder", path);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (stat(part, &status) == 0 && S_ISDIR(status.st_mode)) continue;
        if (trip() || mkdir(part, 0777) < 0) return failed(part, "created");
        char *slash = strrchr(part, '/');
        if (slash) *slash = 0;
        UL_TRY(ul_folder_sync(!slash ? "." : slash == part ? "/" : part));
    }
    return UL_OK;
}
static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

int ul_path_remove(const char *path)
{
    struct stat status;
    if (lstat(path, &status) < 0 && errno == ENOENT) return UL_OK;
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0) return failed(path, "removed");
    return UL_OK;
}

int ul_folder_list(const char *path, void (*visit)(void *context, const char *name), void *context)
{
    DIR *folder = opendir(path);
    if (!folder) return failed(path, "read");
    for (struct dirent *entry; (entry = readdir(folder));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            visit(context, entry->d_name);
    closedir(folder);
    return UL_OK;
}

int ul_disk_free(int64_t *bytes, const char *path)
{
    struct statvfs status;
    if (statvfs(path, &status) < 0) return failed(path, "read");
    *bytes = (int64_t)(status.f_bavail * status.f_frsize);
    return UL_OK;
}
