/* io_test.c - files that are whole or not there, and files of tensors, without Lua. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "ulysses.h"

static char folder[160];

/* The path of a file in the folder; one of four buffers in turn. */
static const char *in_folder(const char *name)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static ul_tensor *sequence(int64_t n)
{
    ul_tensor *t = NULL;
    CHECK(ul_arange(&t, 0, 1, n, UL_F32, UL_CPU) == UL_OK, "%s", ul_last_error());
    return t;
}

static void a_file_is_summed_as_it_is_written(void)
{
    static char data[(3 << 20) + 17];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * i >> 7);
    ul_file_sum written, seen;
    char hash[33];
    const char *path = in_folder("sum");
    CHECK(ul_file_write(&written, path, data, sizeof data) == UL_OK, "%s", ul_last_error());
    CHECK(ul_file_sum_of(&seen, path) == UL_OK && seen.bytes == (int64_t)sizeof data);
    ul_hash(hash, data, sizeof data);
    CHECK(!strcmp(written.hash, seen.hash) && !strcmp(hash, seen.hash) && strlen(hash) == 32);
    data[2 << 20] ^= 1;
    ul_hash(hash, data, sizeof data);
    CHECK(strcmp(hash, seen.hash) != 0);
    ul_hash(hash, "", 0);
    CHECK(!strcmp(hash, "99aa06d3014798d86001c324468d497f"), "%s", hash);
    CHECK(ul_file_write(NULL, path, NULL, 0) == UL_OK);
    CHECK(ul_file_sum_of(&seen, path) == UL_OK && seen.bytes == 0 && !strcmp(seen.hash, hash));
}

static void a_limit_on_files_is_an_error_and_no_signal(void)
{
    struct rlimit before, small = {100000, RLIM_INFINITY};
    ul_tensor *t = sequence(100000), *back = sequence(3);
    const char *path = in_folder("limited");
    ul_safetensors_item few = {"t", back}, many = {"t", t};
    CHECK(ul_safetensors_save(NULL, path, &few, 1, NULL) == UL_OK, "%s", ul_last_error());
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK(ul_safetensors_save(NULL, path, &many, 1, NULL) == UL_EIO);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(strstr(ul_last_error(), "limited.tmp: cannot be written: File too large"), "%s",
          ul_last_error());
    struct sigaction action;
    sigaction(SIGXFSZ, NULL, &action);
    CHECK(action.sa_handler == SIG_DFL);
    ul_safetensors *file = NULL;
    CHECK(access(in_folder("limited.tmp"), F_OK) < 0 && ul_safetensors_open(&file, path) == UL_OK);
    ul_safetensors_close(file);
    ul_tensor_free(t);
    ul_tensor_free(back);
}

static void folders_come_and_go(void)
{
    char deep[256];
    snprintf(deep, sizeof deep, "%s/a/b/c", folder);
    CHECK(ul_folder_make(deep) == UL_OK && ul_folder_make(deep) == UL_OK, "%s", ul_last_error());
    CHECK(ul_file_write(NULL, in_folder("a/b/file"), "x", 1) == UL_OK);
    CHECK(ul_folder_make(in_folder("a/b/file/d")) == UL_EIO);
    CHECK(strstr(ul_last_error(), "a/b/file: cannot be created: File exists"), "%s",
          ul_last_error());
    CHECK(ul_file_point(in_folder("a/link"), "b") == UL_OK);
    CHECK(ul_file_point(in_folder("a/link"), "b/c") == UL_OK, "%s", ul_last_error());
    CHECK(ul_path_remove(in_folder("a/link")) == UL_OK && access(deep, F_OK) == 0);
    CHECK(ul_file_rename(in_folder("a"), in_folder("z")) == UL_OK);
    CHECK(ul_file_rename(in_folder("a"), in_folder("z")) == UL_EIO);
    CHECK(ul_path_remove(in_folder("z")) == UL_OK && access(in_folder("z"), F_OK) < 0);
    CHECK(ul_path_remove(in_folder("z")) == UL_OK);
    int64_t room = -1;
    CHECK(ul_disk_free(&room, folder) == UL_OK && room >= 0);
    CHECK(ul_disk_free(&room, in_folder("none")) == UL_EIO);
    CHECK(ul_folder_sync(folder) == UL_OK && ul_folder_sync(in_folder("none")) == UL_EIO);
}

static void every_step_can_fail(void)
{
    int64_t first = ul_debug_writes();
    CHECK(ul_file_write(NULL, in_folder("f"), "text", 4) == UL_OK);
    int64_t steps = ul_debug_writes() - first;
    CHECK(steps == 3, "%lld", (long long)steps); /* made, written, synced */
    for (int64_t n = 1; n <= steps; n++) {
        ul_debug_fail_write(n, EIO);
        CHECK(ul_file_write(NULL, in_folder("g"), "text", 4) == UL_EIO, "step %lld", (long long)n);
        CHECK(strstr(ul_last_error(), "g: cannot be ") && strstr(ul_last_error(), "Input/output"),
              "%s", ul_last_error());
        CHECK(access(in_folder("g"), F_OK) < 0);
    }
    CHECK(ul_file_write(NULL, in_folder("g"), "text", 4) == UL_OK);
    ul_debug_fail_write(1, ENOSPC);
    ul_debug_fail_write(0, 0);
    CHECK(ul_folder_sync(folder) == UL_OK);
}

static void many_tensors_are_found_by_name(void)
{
    enum { N = 500 };
    static char names[N][24];
    ul_safetensors_item items[N];
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "layer.%d", i);
        items[i] = (ul_safetensors_item){names[i], sequence(i % 7)};
    }
    const char *path = in_folder("many");
    ul_safetensors *file = NULL;
    CHECK(ul_safetensors_save(NULL, path, items, N, NULL) == UL_OK, "%s", ul_last_error());
    CHECK(ul_safetensors_open(&file, path) == UL_OK, "%s", ul_last_error());
    CHECK(file && ul_safetensors_count(file) == N);
    for (int i = 0; file && i < N; i++) {
        const ul_safetensors_entry *entry = ul_safetensors_find(file, names[i]);
        CHECK(entry && entry->ndim == 1 && entry->shape[0] == i % 7, "%s", names[i]);
    }
    CHECK(file && !ul_safetensors_find(file, "layer.500") && !ul_safetensors_find(file, ""));
    ul_safetensors_close(file);
    for (int i = 0; i < N; i++) ul_tensor_free(items[i].tensor);
}

static void rows_land_where_they_belong(void)
{
    int64_t shape[] = {4, 3}, part[] = {2, 3};
    ul_tensor *flat = sequence(12), *x = NULL, *into = NULL;
    ul_safetensors *file = NULL;
    CHECK(ul_view(&x, flat, 2, shape) == UL_OK);
    CHECK(ul_tensor_new(&into, UL_F64, UL_CPU, 2, part) == UL_OK);
    ul_safetensors_item item = {"x", x};
    CHECK(ul_safetensors_save(NULL, in_folder("x"), &item, 1, NULL) == UL_OK);
    CHECK(ul_safetensors_open(&file, in_folder("x")) == UL_OK, "%s", ul_last_error());
    const ul_safetensors_entry *entry = file ? ul_safetensors_at(file, 0) : NULL;
    CHECK(file && ul_safetensors_read(into, file, entry, 1) == UL_OK, "%s", ul_last_error());
    const double *values = ul_tensor_data(into);
    for (int i = 0; i < 6; i++) CHECK(values[i] == 3 + i, "%g", values[i]);
    CHECK(file && ul_safetensors_read(into, file, entry, 3) == UL_ESHAPE);
    CHECK(file && ul_safetensors_read(into, file, entry, -1) == UL_ESHAPE);
    CHECK(file && ul_safetensors_read(flat, file, entry, 0) == UL_ESHAPE);
    ul_safetensors_close(file);
    ul_safetensors_close(NULL);
    ul_tensor_free(x);
    ul_tensor_free(flat);
    ul_tensor_free(into);
}

int main(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/ulysses-io-XXXXXX", parent && *parent ? parent : P_tmpdir);
    if (!mkdtemp(folder)) return 1;
    RUN(a_file_is_summed_as_it_is_written);
    RUN(a_limit_on_files_is_an_error_and_no_signal);
    RUN(folders_come_and_go);
    RUN(every_step_can_fail);
    RUN(many_tensors_are_found_by_name);
    RUN(rows_land_where_they_belong);
    ul_path_remove(folder);
    return check_done();
}
