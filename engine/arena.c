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
 * Under ASan free memory and 64 bytes after each block are poisoned.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "blocks.h"
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

enum { ALIGN = 64, HUGE_PAGE_BIN = 21, HUGE_PAGE = 1 << HUGE_PAGE_BIN };
static const int64_t small_limit = 64 << 10;
static const int64_t map_step = 32 << 20;
/* Idle memory that is left alone: this, and a part of the most there was in use. */
static const int64_t idle_bytes = 8 << 20, idle_part = 32;

/* Reserved addresses, of which the first chain.bytes may be used. */
typedef struct region {
    ul_chain chain;
    int64_t reserved;
    unsigned char *held; /* for each huge page, whether there is memory behind it */
} region;

static struct {
    ul_chain *regions[2]; /* [small], newest first; nearly always one */
    ul_blocks blocks;
    int64_t held; /* bytes of pages with memory behind them */
    int64_t in_use, most_in_use, limit, system_allocations;
} arena = {.blocks = {.align = ALIGN, .grows = 1}};

static region *region_of(const ul_block *b) { return (region *)b->home; }

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
    if (r->chain.base) munmap(r->chain.base, (size_t)r->reserved);
    free(r->held);
    free(r);
}

/* A region for at least `bytes`: as large as the machine, unless addresses are rationed. */
static region *region_new(int small, int64_t bytes)
{
    struct rlimit space;
    int rationed = getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY;
    int64_t size = ul__round_up(rationed ? map_step : machine_bytes(), HUGE_PAGE);
    if (size < bytes) size = bytes;
    region *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    char *base = reserve_addresses(size);
    if (!base) base = reserve_addresses(size = bytes);
    r->held = calloc((size_t)(size / HUGE_PAGE), 1);
    r->reserved = size;
    r->chain = (ul_chain){.base = base, .small = small, .next = arena.regions[small]};
    if (!base || !r->held) {
        region_free(r);
        return NULL;
    }
    arena.regions[small] = &r->chain;
    return r;
}

/* A free block of at least `bytes` at the end of the newest region, or NULL. */
static ul_block *grow(int small, int64_t bytes)
{
    region *r = (region *)arena.regions[small];
    ul_block *last = r ? r->chain.last : NULL;
    int64_t there = last && !last->used ? last->bytes : 0;
    int64_t more = ul__round_up(bytes - there, HUGE_PAGE);
    if (!r || r->chain.bytes + more > r->reserved) {
        there = 0;
        more = ul__round_up(bytes, HUGE_PAGE);
        r = region_new(small, more);
    }
    if (!r) return NULL;
    int64_t left = r->reserved - r->chain.bytes;
    if (more < map_step) more = left < map_step ? left : map_step;
    ul_block *b = there ? last : calloc(1, sizeof *b);
    char *end = r->chain.base + r->chain.bytes;
    if (!b || mprotect(end, (size_t)more, PROT_READ | PROT_WRITE) != 0) {
        if (!there) free(b);
        return NULL;
    }
    POISON(end, (size_t)more);
    if (there) {
        ul__bin_remove(&arena.blocks, b);
    } else {
        *b = (ul_block){.data = end, .home = &r->chain, .before = r->chain.last};
        if (r->chain.last) r->chain.last->after = b;
        r->chain.last = b;
    }
    b->bytes += more;
    r->chain.bytes += more;
    ul__bin_add(&arena.blocks, b);
    return b;
}

/* The pages, counted from the start of the region, that [data, data + bytes) lies on; `whole`:
 * those that lie in it.
 */
static void pages_of(const ul_block *b, int64_t bytes, int whole, int64_t *first, int64_t *end)
{
    int64_t from = b->data - b->home->base, to = from + bytes;
    *first = (whole ? ul__round_up(from, HUGE_PAGE) : from) / HUGE_PAGE;
    *end = (whole ? to : ul__round_up(to, HUGE_PAGE)) / HUGE_PAGE;
}

/* Gives the pages of a free block back to the system. */
static void release_block(ul_block *b)
{
    unsigned char *held = region_of(b)->held;
    int64_t first, end;
    pages_of(b, b->bytes, 1, &first, &end);
    for (int64_t page = first; page < end; page++) {
        int64_t from = page;
        while (page < end && held[page]) page++;
        if (page == from) continue;
        size_t bytes = (size_t)(page - from) * HUGE_PAGE;
        if (madvise(b->home->base + from * HUGE_PAGE, bytes, MADV_DONTNEED) != 0) continue;
        memset(held + from, 0, (size_t)(page - from));
        arena.held -= (int64_t)bytes;
    }
}

/* Gives pages back, those of the largest free blocks first, until at most `enough` bytes are held.
 */
static void release(int64_t enough)
{
    for (int bin = UL_BLOCK_BINS - 1; bin >= HUGE_PAGE_BIN; bin--)
        for (int small = 0; small < 2; small++)
            for (ul_block *b = arena.blocks.bins[small][bin]; b && arena.held > enough;
                 b = b->bin_after)
                release_block(b);
}

/* Puts memory behind the first `bytes` of b, which is in no bin; 0 where that is too much. */
static int hold(const ul_block *b, int64_t bytes)
{
    unsigned char *held = region_of(b)->held;
    int64_t first, end, more = 0, most = arena.in_use + bytes;
    pages_of(b, bytes, 0, &first, &end);
    for (int64_t page = first; page < end; page++) more += held[page] ? 0 : HUGE_PAGE;
    if (more == 0) return 1;
    int64_t limit = ul__arena_limit();
    if (most < arena.most_in_use) most = arena.most_in_use;
    most += most / idle_part + idle_bytes;
    if (most > limit) most = limit;
    if (arena.held + more > most) release(most - more);
    if (arena.held + more > limit) return 0;
    memset(held + first, 1, (size_t)(end - first));
    arena.held += more;
    arena.system_allocations++;
    return 1;
}

/* ---- blocks ---- */

void *ul__arena_alloc(int64_t bytes)
{
    if (bytes > (arena.limit ? arena.limit : machine_bytes())) return NULL;
    if (!ul__blocks_make_room(&arena.blocks)) return NULL;
    int64_t wanted = ul__round_up(bytes + GUARD, ALIGN);
    int small = wanted <= small_limit;
    ul_block *b = ul__best_fit(&arena.blocks, small, wanted);
    if (!b) b = grow(small, wanted);
    if (!b) return NULL;
    ul__bin_remove(&arena.blocks, b);
    if (!hold(b, wanted)) {
        ul__bin_add(&arena.blocks, b);
        return NULL;
    }
    ul__block_use(&arena.blocks, b, wanted);
    arena.in_use += b->bytes;
    if (arena.in_use > arena.most_in_use) arena.most_in_use = arena.in_use;
    UNPOISON(b->data, (size_t)bytes);
    return b->data;
}

void ul__arena_free(void *data)
{
    ul_block *b = ul__block_leave(&arena.blocks, data);
    arena.in_use -= b->bytes;
    POISON(b->data, (size_t)b->bytes);
    ul__block_free(&arena.blocks, b);
}

void ul__arena_trim(void) { release(0); }

void ul__arena_set_limit(int64_t bytes) { arena.limit = bytes; }
int64_t ul__arena_limit(void) { return arena.limit ? arena.limit : arena.held + available_bytes(); }

void ul__arena_stats(int64_t *cached, int64_t *system_allocations)
{
    *cached = arena.held - arena.in_use;
    *system_allocations = arena.system_allocations;
}
