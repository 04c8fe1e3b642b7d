/* fuzz.h - what libFuzzer calls, and its input as a file. */
#ifndef FUZZ_H
#define FUZZ_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The name of a file in memory that holds these bytes; the same one each time. */
static const char *fuzz_file(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("input", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, (off_t)size) < 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    return path;
}

#endif
