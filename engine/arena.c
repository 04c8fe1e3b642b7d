/* arena.c - the caching allocator of host memory.
 *
 * Memory comes from the system in segments, on 2 MiB boundaries and marked for huge pages (a fault
 * then costs 60 times less per byte), and is kept. A segment is a chain of blocks in address order;
 * a free block merges with free neighbours, and is found again best fit first through bins by size.
 * Records of blocks lie outside the memory itself, so that a tensor written past its end cannot
 * damage them; under ASan free memory and 64 bytes after each block are poisoned.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GUARD = 64 };
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
enum { GUARD = 0 };
#define POISON(p, n)   (void)(p), (void)(n)
#define UNPOISON(p, n) (void)(p), (void)(n)
#endif

enum { ALIGN = 64, HUGE_PAGE = 2 << 20, N_BINS = 64 };
/* Small blocks share segments of this size, large ones get segments of their own size at least this
 * big. */
static const int64_t small_segment = 2 << 20, large_segment = 32 << 20, small_limit = 256 << 10;

typedef struct block {
    char *data;
    int64_t bytes;
    int used, small;
    struct block *before, *after;         /* neighbours in the segment */
    struct block *bin_before, *bin_after; /* in the bin of free blocks */
} block;

static struct {
    block *bins[2][N_BINS]; /* free blocks, [small] by floor(log2(bytes)) */
    block **table;          /* used blocks by address: open addressing */
    int64_t table_size, table_used;
    int64_t reserved, in_use, limit, system_allocations;
} arena;

static int bin_of(int64_t bytes) { return 63 - __builtin_clzll((unsigned long long)bytes); }

static void bin_add(block *b)
{
    block **head = &arena.bins[b->small][bin_of(b->bytes)];
    b->bin_before = NULL;
    b->bin_after = *head;
    if (*head) (*head)->bin_before = b;
    *head = b;
}

static void bin_remove(block *b)
{
    if (b->bin_before)
        b->bin_before->bin_after = b->bin_after;
    else
        arena.bins[b->small][bin_of(b->bytes)] = b->bin_after;
    if (b->bin_after) b->bin_after->bin_before = b->bin_before;
}

/* The smallest free block that holds `bytes`. */
static block *best_fit(int small, int64_t bytes)
{
    for (int bin = bin_of(bytes); bin < N_BINS; bin++) {
        block *best = NULL;
        for (block *b = arena.bins[small][bin]; b; b = b->bin_after)
            if (b->bytes >= bytes && (!best || b->bytes < best->bytes)) best = b;
        if (best) return best;
    }
    return NULL;
}

/* Used blocks are found by address: a table of pointers, linear probing, at most half full. */
static int64_t home_of(const void *data)
{
    return (int64_t)(((uintptr_t)data / ALIGN) * 0x9e3779b97f4a7c15ull >> 20) &
           (arena.table_size - 1);
}

static int table_grow(void)
{
    int64_t old_size = arena.table_size, size = old_size ? 2 * old_size : 1024;
    block **old = arena.table, **table = calloc((size_t)size, sizeof *table);
    if (!table) return 0;
    arena.table = table;
    arena.table_size = size;
    for (int64_t i = 0; i < old_size; i++) {
        if (!old[i]) continue;
        int64_t at = home_of(old[i]->data);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = old[i];
    }
    free(old);
    return 1;
}

static void table_add(block *b)
{
    int64_t at = home_of(b->data);
    while (arena.table[at]) at = (at + 1) & (arena.table_size - 1);
    arena.table[at] = b;
    arena.table_used++;
}

static block *table_take(const void *data)
{
    int64_t mask = arena.table_size - 1, at = home_of(data);
    while (arena.table[at]->data != data) at = (at + 1) & mask;
    block *b = arena.table[at];
    arena.table[at] = NULL;
    arena.table_used--;
    /* Close the gap: whatever was pushed past it moves back. */
    for (int64_t i = (at + 1) & mask; arena.table[i]; i = (i + 1) & mask) {
        int64_t home = home_of(arena.table[i]->data);
        if (((i - home) & mask) >= ((i - at) & mask)) {
            arena.table[at] = arena.table[i];
            arena.table[i] = NULL;
            at = i;
        }
    }
    return b;
}

static int64_t machine_bytes(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

/* A new segment as one free block, or NULL. */
static block *segment_new(int small, int64_t bytes)
{
    int64_t limit = arena.limit ? arena.limit : machine_bytes();
    int64_t least = small ? small_segment : large_segment;
    int64_t rounded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    int64_t size = rounded > least ? rounded : least;
    if (arena.reserved + size > limit) size = rounded;
    if (arena.reserved + size > limit) return NULL;
    /* Asks for more, so that an aligned part can be kept. */
    size_t mapped = (size_t)size + HUGE_PAGE;
    char *raw = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    char *data = (char *)(((uintptr_t)raw + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (data > raw) munmap(raw, (size_t)(data - raw));
    size_t tail = (size_t)(raw + mapped - (data + size));
    if (tail) munmap(data + size, tail);
    madvise(data, (size_t)size, MADV_HUGEPAGE);
    block *b = calloc(1, sizeof *b);
    if (!b) {
        munmap(data, (size_t)size);
        return NULL;
    }
    POISON(data, (size_t)size);
    b->data = data;
    b->bytes = size;
    b->small = small;
    arena.reserved += size;
    arena.system_allocations++;
    bin_add(b);
    return b;
}

/* Cuts what is left of b behind `bytes` off as a free block. Without a record for it b stays whole.
 */
static void split(block *b, int64_t bytes)
{
    if (b->bytes - bytes < ALIGN) return;
    block *rest = malloc(sizeof *rest);
    if (!rest) return;
    *rest = (block){.data = b->data + bytes,
                    .bytes = b->bytes - bytes,
                    .small = b->small,
                    .before = b,
                    .after = b->after};
    if (b->after) b->after->before = rest;
    b->after = rest;
    b->bytes = bytes;
    bin_add(rest);
}

static int64_t rounded_up(int64_t bytes) { return (bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN; }

void *ul__arena_alloc(int64_t bytes)
{
    if (bytes > INT64_MAX / 2) return NULL;
    if (2 * (arena.table_used + 1) > arena.table_size && !table_grow()) return NULL;
    int64_t wanted = rounded_up(bytes);
    int small = wanted <= small_limit;
    block *b = best_fit(small, wanted);
    if (!b) b = segment_new(small, wanted);
    if (!b) return NULL;
    bin_remove(b);
    split(b, wanted);
    b->used = 1;
    table_add(b);
    arena.in_use += b->bytes;
    UNPOISON(b->data, (size_t)bytes);
    return b->data;
}

/* Swallows the block after b. */
static void merge_after(block *b)
{
    block *gone = b->after;
    b->bytes += gone->bytes;
    b->after = gone->after;
    if (gone->after) gone->after->before = b;
    free(gone);
}

void ul__arena_free(void *data)
{
    block *b = table_take(data);
    arena.in_use -= b->bytes;
    b->used = 0;
    POISON(b->data, (size_t)b->bytes);
    if (b->after && !b->after->used) {
        bin_remove(b->after);
        merge_after(b);
    }
    if (b->before && !b->before->used) {
        b = b->before;
        bin_remove(b);
        merge_after(b);
    }
    bin_add(b);
}

void ul__arena_trim(void)
{
    for (int small = 0; small < 2; small++)
        for (int bin = 0; bin < N_BINS; bin++)
            for (block *b = arena.bins[small][bin], *next; b; b = next) {
                next = b->bin_after;
                if (b->before || b->after) continue;
                bin_remove(b);
                UNPOISON(b->data, (size_t)b->bytes);
                munmap(b->data, (size_t)b->bytes);
                arena.reserved -= b->bytes;
                free(b);
            }
}

void ul__arena_set_limit(int64_t bytes) { arena.limit = bytes; }
int64_t ul__arena_limit(void) { return arena.limit ? arena.limit : machine_bytes(); }

void ul__arena_stats(int64_t *cached, int64_t *system_allocations)
{
    *cached = arena.reserved - arena.in_use;
    *system_allocations = arena.system_allocations;
}
