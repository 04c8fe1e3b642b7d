/* arena.c - the caching allocator of host memory.
 *
 * Addresses are reserved at once, as many as the machine has bytes, and all blocks are one chain in
 * them: a free block merges with free neighbours, and is found again best fit first through bins by
 * size, the end of the chain last. So what a training step touches is 1 to 2 % more than the most
 * its tensors hold (segments of their own for large blocks left gaps of 13 %), and the same in
 * every step. Small blocks have a chain of their own, for they often live longer.
 *
 * Memory is counted by huge pages (a fault then costs 60 times less per byte): one is held from
 * when a block first lies on it, and is kept. Where blocks of many sizes come and go, pages that
 * lie idle go back to the system before it is asked for more, so that never much more is held than
 * was in use once.
 *
 * Records of blocks lie outside the memory itself, so that a tensor written past its end cannot
 * damage them; under ASan free memory and 64 bytes after each block are poisoned.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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
static const int64_t small_limit = 64 << 10;
static const int64_t map_step = 32 << 20;
/* Idle memory that is left alone: this, and a part of the most there was in use. */
static const int64_t idle_bytes = 8 << 20, idle_part = 32;

typedef struct block {
    char *data;
    int64_t bytes;
    int used;
    struct region *home;
    struct block *before, *after;         /* neighbours in the region */
    struct block *bin_before, *bin_after; /* in the bin of free blocks */
} block;

/* Reserved addresses, of which the first `mapped` bytes may be used and are a chain of blocks. */
typedef struct region {
    char *base;
    int64_t reserved, mapped;
    unsigned char *held; /* for each huge page, whether there is memory behind it */
    int small;
    block *last;
    struct region *next;
} region;

static struct {
    region *regions[2];     /* [small], newest first; nearly always one */
    block *bins[2][N_BINS]; /* free blocks, [small] by floor(log2(bytes)) */
    block **table;          /* used blocks by address: open addressing */
    int64_t table_size, table_used;
    int64_t held; /* bytes of pages with memory behind them */
    int64_t in_use, most_in_use, limit, system_allocations;
} arena;

static int bin_of(int64_t bytes) { return 63 - __builtin_clzll((unsigned long long)bytes); }

static void bin_add(block *b)
{
    block **head = &arena.bins[b->home->small][bin_of(b->bytes)];
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
        arena.bins[b->home->small][bin_of(b->bytes)] = b->bin_after;
    if (b->bin_after) b->bin_after->bin_before = b->bin_before;
}

/* The smallest free block that holds `bytes`, at the lowest address of equals; the one at the end
 * of a region only where there is no other. So it does not matter how far a region has grown, and
 * a step finds its blocks where the step before did.
 */
static block *best_fit(int small, int64_t bytes)
{
    block *at_end = NULL;
    for (int bin = bin_of(bytes); bin < N_BINS; bin++) {
        block *best = NULL;
        for (block *b = arena.bins[small][bin]; b; b = b->bin_after) {
            if (b->bytes < bytes) continue;
            block **place = b->after ? &best : &at_end;
            if (!*place || b->bytes < (*place)->bytes ||
                (b->bytes == (*place)->bytes && b->data < (*place)->data))
                *place = b;
        }
        if (best) return best;
    }
    return at_end;
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

/* ---- memory from the system ---- */

static int64_t machine_bytes(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

/* The number behind `name` in a file of the kernel's, or -1. */
static int64_t number_in(const char *path, const char *name)
{
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    char line[128];
    long long value = -1;
    size_t length = strlen(name);
    while (value < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && sscanf(line + length, "%lld", &value) != 1) value = -1;
    fclose(file);
    return value;
}

/* What could still be had without the system having to end a program for it: neither this machine
 * nor the container that it may be has more. A 64th stays for others.
 */
static int64_t available_bytes(void)
{
    int64_t machine = machine_bytes(), kilobytes = number_in("/proc/meminfo", "MemAvailable:");
    int64_t most = number_in("/sys/fs/cgroup/memory.max", "");
    int64_t available = kilobytes < 0 ? machine : kilobytes * 1024;
    if (most > 0) {
        int64_t current = number_in("/sys/fs/cgroup/memory.current", "");
        if (current >= 0 && most - current < available) available = most - current;
    }
    available -= machine / 64;
    return available > 0 ? available : 0;
}

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* So many addresses from a huge page on, without memory; NULL where there are none. They lie far
 * below the libraries: LuaJIT wants free ones near its own code.
 */
static char *reserve_addresses(int64_t bytes)
{
    size_t all = (size_t)bytes + HUGE_PAGE;
    uintptr_t hint = (uintptr_t)&arena - ((uintptr_t)1 << 40) - all;
    char *raw = mmap((void *)(hint / HUGE_PAGE * HUGE_PAGE), all, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    char *base = (char *)(((uintptr_t)raw + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (base > raw) munmap(raw, (size_t)(base - raw));
    if (base + bytes < raw + all) munmap(base + bytes, (size_t)(raw + all - (base + bytes)));
    madvise(base, (size_t)bytes, MADV_HUGEPAGE);
    return base;
}

static void region_free(region *r)
{
    if (r->base) munmap(r->base, (size_t)r->reserved);
    free(r->held);
    free(r);
}

/* A region for at least `bytes`: as large as the machine, unless addresses are rationed. */
static region *region_new(int small, int64_t bytes)
{
    struct rlimit space;
    int rationed = getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY;
    int64_t size = round_up(rationed ? map_step : machine_bytes(), HUGE_PAGE);
    if (size < bytes) size = bytes;
    region *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->base = reserve_addresses(size);
    if (!r->base) r->base = reserve_addresses(size = bytes);
    r->held = calloc((size_t)(size / HUGE_PAGE), 1);
    r->reserved = size;
    r->small = small;
    if (!r->base || !r->held) {
        region_free(r);
        return NULL;
    }
    r->next = arena.regions[small];
    arena.regions[small] = r;
    return r;
}

/* A free block of at least `bytes` at the end of the newest region, or NULL. */
static block *grow(int small, int64_t bytes)
{
    region *r = arena.regions[small];
    int64_t there = r && r->last && !r->last->used ? r->last->bytes : 0;
    int64_t more = round_up(bytes - there, HUGE_PAGE);
    if (!r || r->mapped + more > r->reserved) {
        there = 0;
        more = round_up(bytes, HUGE_PAGE);
        r = region_new(small, more);
    }
    if (!r) return NULL;
    if (more < map_step)
        more = r->reserved - r->mapped < map_step ? r->reserved - r->mapped : map_step;
    block *b = there ? r->last : calloc(1, sizeof *b);
    char *end = r->base + r->mapped;
    if (!b || mprotect(end, (size_t)more, PROT_READ | PROT_WRITE) != 0) {
        if (!there) free(b);
        return NULL;
    }
    POISON(end, (size_t)more);
    if (there) {
        bin_remove(b);
    } else {
        *b = (block){.data = end, .home = r, .before = r->last};
        if (r->last) r->last->after = b;
        r->last = b;
    }
    b->bytes += more;
    r->mapped += more;
    bin_add(b);
    return b;
}

/* The pages, counted from the start of the region, that [data, data + bytes) lies on; `whole`:
 * those that lie in it.
 */
static void pages_of(const block *b, int64_t bytes, int whole, int64_t *first, int64_t *end)
{
    int64_t from = b->data - b->home->base, to = from + bytes;
    *first = (whole ? round_up(from, HUGE_PAGE) : from) / HUGE_PAGE;
    *end = (whole ? to : round_up(to, HUGE_PAGE)) / HUGE_PAGE;
}

/* Gives the pages of a free block back to the system. */
static void release_block(block *b)
{
    int64_t first, end;
    pages_of(b, b->bytes, 1, &first, &end);
    for (int64_t page = first; page < end; page++) {
        int64_t from = page;
        while (page < end && b->home->held[page]) page++;
        if (page == from) continue;
        size_t bytes = (size_t)(page - from) * HUGE_PAGE;
        if (madvise(b->home->base + from * HUGE_PAGE, bytes, MADV_DONTNEED) != 0) continue;
        memset(b->home->held + from, 0, (size_t)(page - from));
        arena.held -= (int64_t)bytes;
    }
}

/* Gives pages back, those of the largest free blocks first, until at most `enough` bytes are held.
 */
static void release(int64_t enough)
{
    for (int bin = N_BINS - 1; bin >= bin_of(HUGE_PAGE); bin--)
        for (int small = 0; small < 2; small++)
            for (block *b = arena.bins[small][bin]; b && arena.held > enough; b = b->bin_after)
                release_block(b);
}

/* Puts memory behind the first `bytes` of b, which is in no bin; 0 where that is too much. */
static int hold(const block *b, int64_t bytes)
{
    int64_t first, end, more = 0, most = arena.in_use + bytes;
    pages_of(b, bytes, 0, &first, &end);
    for (int64_t page = first; page < end; page++) more += b->home->held[page] ? 0 : HUGE_PAGE;
    if (more == 0) return 1;
    int64_t limit = ul__arena_limit();
    if (most < arena.most_in_use) most = arena.most_in_use;
    most += most / idle_part + idle_bytes;
    if (most > limit) most = limit;
    if (arena.held + more > most) release(most - more);
    if (arena.held + more > limit) return 0;
    memset(b->home->held + first, 1, (size_t)(end - first));
    arena.held += more;
    arena.system_allocations++;
    return 1;
}

/* ---- blocks ---- */

/* Cuts what is left of b behind `bytes` off as a free block. Without a record for it b stays whole.
 */
static void split(block *b, int64_t bytes)
{
    if (b->bytes - bytes < ALIGN) return;
    block *rest = malloc(sizeof *rest);
    if (!rest) return;
    *rest = (block){.data = b->data + bytes,
                    .bytes = b->bytes - bytes,
                    .home = b->home,
                    .before = b,
                    .after = b->after};
    if (b->after) b->after->before = rest;
    if (b->home->last == b) b->home->last = rest;
    b->after = rest;
    b->bytes = bytes;
    bin_add(rest);
}

void *ul__arena_alloc(int64_t bytes)
{
    if (bytes > (arena.limit ? arena.limit : machine_bytes())) return NULL;
    if (2 * (arena.table_used + 1) > arena.table_size && !table_grow()) return NULL;
    int64_t wanted = round_up(bytes + GUARD, ALIGN);
    int small = wanted <= small_limit;
    block *b = best_fit(small, wanted);
    if (!b) b = grow(small, wanted);
    if (!b) return NULL;
    bin_remove(b);
    if (!hold(b, wanted)) {
        bin_add(b);
        return NULL;
    }
    split(b, wanted);
    b->used = 1;
    table_add(b);
    arena.in_use += b->bytes;
    if (arena.in_use > arena.most_in_use) arena.most_in_use = arena.in_use;
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
    if (b->home->last == gone) b->home->last = b;
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

void ul__arena_trim(void) { release(0); }

void ul__arena_set_limit(int64_t bytes) { arena.limit = bytes; }
int64_t ul__arena_limit(void) { return arena.limit ? arena.limit : arena.held + available_bytes(); }

void ul__arena_stats(int64_t *cached, int64_t *system_allocations)
{
    *cached = arena.held - arena.in_use;
    *system_allocations = arena.system_allocations;
}
