/* io.h - what the files of engine/io share: writing a file that is summed on the way. */
#ifndef UL_IO_H
#define UL_IO_H

#include "../internal.h"

/* A new file. Whoever began it ends it: with ul__write_end(), or ul__write_drop() after a failure.
 */
typedef struct ul__writer {
    const char *path; /* borrowed */
    int fd;
    int64_t bytes;
    void *hash;
} ul__writer;

int ul__write_begin(ul__writer *w, const char *path);
int ul__write(ul__writer *w, const void *data, int64_t bytes);
/* The file is on the disk, not only on its way there. On failure it is gone. sum may be NULL. */
int ul__write_end(ul__writer *w, ul_file_sum *sum);
/* Closes and removes. */
void ul__write_drop(ul__writer *w);

/* Opens a regular file to read it. */
int ul__read_begin(int *fd, int64_t *bytes, const char *path);
/* All of `bytes` from `at` on; what ends before is damaged. */
int ul__read(int fd, const char *path, void *data, int64_t bytes, int64_t at);

#endif
