/* cuemu.cc - runs the blocks of a kernel: fibers that take turns where they wait for each other. */
#include "cuemu.h"

#include <stdio.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
}
/* What the fibers' own bookkeeping touches is no matter of the kernel's. */
#define RUNTIME \
    __attribute__((no_sanitize("thread"), noinline, optimize("no-tree-loop-distribute-patterns")))
#elif defined(__SANITIZE_ADDRESS__)
#define RUNTIME __attribute__((no_sanitize("address", "undefined")))
#else
#define RUNTIME
#endif

namespace cuemu
{
uint3 thread, block;
dim3 block_size, grid_size;

namespace
{
enum { STACK = 256 << 10, STRIDE = STACK + (4 << 10) + 576, LEFT_FRAMES = 8 << 10 };
enum { MOST_THREADS = 1024, MOST_COPIES = 256 };
const unsigned WARP = 32;

struct alignas(64) fiber {
    void *stack_pointer;
    char *stack; /* NULL until it first runs, and again when it is done */
#ifdef __SANITIZE_THREAD__
    char *own_stack; /* one that two fibers had would look like memory that they share */
#endif
    void *sanitizer;
    uint3 thread;
    unsigned index;
    int turn; /* which of the two slots of its lane it has published to last */
    int vote; /* the same of the block's three votes */
    int begun, committed, ended, groups; /* of its copies, and of their groups: how many */
};

struct alignas(16) published {
    char bytes[32];
} slots[MOST_THREADS][2];

struct meeting { /* of lanes, that a thread has come to last */
    unsigned mask;
    int line;
} came_to[MOST_THREADS];

struct queued {
    async_copy copy;
    int group;
} copies[MOST_THREADS][MOST_COPIES];

fiber fibers[MOST_THREADS], scheduler;
fiber *current;
char *free_stacks[MOST_THREADS + 1], *left_stack; /* left: of a fiber that is about to be done */
int n_free_stacks;
unsigned order[MOST_THREADS], place[MOST_THREADS]; /* in which threads run; its inverse */
int votes[3];                                      /* of __syncthreads_or, in turn */
unsigned n_threads, alive, arrived;
int arrived_line;
uint64_t ready[MOST_THREADS / 64]; /* a bit for each place: its thread can run */
unsigned waiting[MOST_THREADS / WARP], returned[MOST_THREADS / WARP]; /* a bit for each lane */
char *shared_memory;
void (*run_kernel)(void *);
void *kernel_argument;
uint64_t random_bits = 88172645463325252u;
#ifdef __SANITIZE_THREAD__
/* What fibers release and acquire. Meetings have two that take turns: who is first out of one, and
 * comes to the next, must not be ordered before who has yet to leave the one before.
 */
char block_begins, block_ends, barriers[2], meetings[MOST_THREADS / WARP][2];
unsigned n_barriers, n_meetings[MOST_THREADS / WARP]; /* that are over */
/* Threads race within a block, and blocks are alike: of a launch the first, the last and one
 * between them are looked at, as each meeting of n threads costs TSan n * n.
 */
int is_watched;
uint64_t watched_between;
#endif
#ifdef __SANITIZE_ADDRESS__
const void *scheduler_stack;
size_t scheduler_bytes;
#endif

[[noreturn]] RUNTIME void die(const char *what, int line, int detail)
{
    fprintf(stderr, "cuemu: %s; line %d (%d), block (%u, %u, %u), thread (%u, %u, %u)\n", what,
            line, detail, block.x, block.y, block.z, thread.x, thread.y, thread.z);
    abort();
}

RUNTIME int is_in(const unsigned *lanes, unsigned i) { return lanes[i / WARP] >> i % WARP & 1; }

RUNTIME uint64_t next_random()
{
    random_bits ^= random_bits << 13;
    random_bits ^= random_bits >> 7;
    return random_bits ^= random_bits << 17;
}

/* ---- stacks ---- */

#ifndef __x86_64__
#error "cuemu switches stacks on x86-64 only"
#endif

/* Keeps the registers that a call keeps, and goes on where `to` did. */
__attribute__((naked, noipa)) void swap_stacks(void **, void *)
{
    __asm__("push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
            "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
            "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
}

RUNTIME void fiber_main();

/* The stack of a fiber that is done is free only when nothing runs on it any more. */
RUNTIME void keep_left_stack()
{
    if (left_stack) free_stacks[n_free_stacks++] = left_stack;
    left_stack = nullptr;
}

/* Not a power of two apart: the frames that run are at the top of each, and would share a few sets
 * of the caches and of the page table's.
 */
RUNTIME char *new_stack()
{
    static char *unused;
    static int n;
    if (!n) {
        unused = (char *)mmap(nullptr, (size_t)MOST_THREADS * STRIDE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (unused == MAP_FAILED) die("no memory for stacks", 0, 0);
    }
    return unused + (size_t)n++ * STRIDE;
}

RUNTIME void give_stack(fiber *f)
{
    if (n_free_stacks) {
        f->stack = free_stacks[--n_free_stacks];
#ifdef __SANITIZE_THREAD__
    } else if (f->own_stack) {
        f->stack = f->own_stack;
#endif
    } else {
        f->stack = new_stack();
    }
#ifdef __SANITIZE_ADDRESS__
    /* Frames that have returned left nothing behind: those of a fiber that was done have not. */
    __asan_unpoison_memory_region(f->stack + STACK - LEFT_FRAMES, LEFT_FRAMES);
#endif
#ifdef __SANITIZE_THREAD__
    f->own_stack = f->stack;
#endif
    void **top = (void **)(f->stack + STACK);
    *--top = nullptr;
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f->stack_pointer = top;
}

RUNTIME void switch_to(fiber *to)
{
    fiber *from = current;
    if (to != &scheduler && !to->stack) give_stack(to);
    current = to;
    thread = to->thread;
#ifdef __SANITIZE_ADDRESS__
    void *fake = nullptr;
    bool is_done = from != &scheduler && is_in(returned, from->index);
    __sanitizer_start_switch_fiber(is_done ? nullptr : &fake,
                                   to == &scheduler ? scheduler_stack : to->stack,
                                   to == &scheduler ? scheduler_bytes : (size_t)STACK);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(to->sanitizer, 1);
#endif
    swap_stacks(&from->stack_pointer, to->stack_pointer);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    keep_left_stack();
}

/* ---- taking turns ---- */

/* The first place from `at` on, or from the beginning, of a thread that can run; -1: none can. */
RUNTIME int next_ready(unsigned at)
{
    unsigned word = at / 64;
    uint64_t bits = ready[word] & ~0ull << at % 64;
    for (int k = 0; !bits && k < MOST_THREADS / 64; k++)
        bits = ready[word = (word + 1) % (MOST_THREADS / 64)];
    return bits ? (int)(word * 64) + __builtin_ctzll(bits) : -1;
}

RUNTIME void make_ready(unsigned i) { ready[place[i] / 64] |= 1ull << place[i] % 64; }

RUNTIME void make_wait(unsigned i) { ready[place[i] / 64] &= ~(1ull << place[i] % 64); }

RUNTIME void yield()
{
    int at = next_ready(current == &scheduler ? 0 : place[current->index]);
    if (at >= 0) { /* a stack is not in the nearest cache when its turn comes */
        __builtin_prefetch(fibers[order[(at + 1) % MOST_THREADS]].stack_pointer);
        __builtin_prefetch(&fibers[order[(at + 2) % MOST_THREADS]]);
        return switch_to(&fibers[order[at]]);
    }
    if (alive == 0) return switch_to(&scheduler);
    for (unsigned i = 0; i < n_threads; i++)
        if (is_in(waiting, i)) {
            thread = fibers[i].thread;
            die("lanes of a warp wait for others that never come", came_to[i].line,
                (int)came_to[i].mask);
        }
    die("not all threads come to __syncthreads", arrived_line, (int)arrived);
}

RUNTIME void fiber_main()
{
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (!scheduler_stack) {
        scheduler_stack = bottom;
        scheduler_bytes = size;
    }
#endif
    keep_left_stack();
#ifdef __SANITIZE_THREAD__
    if (is_watched) {
        __tsan_acquire(&block_begins);
        run_kernel(kernel_argument);
        __tsan_release(&block_ends);
    } else {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
        run_kernel(kernel_argument);
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
#else
    run_kernel(kernel_argument);
    left_stack = current->stack;
#endif
    make_wait(current->index);
    returned[current->index / WARP] |= 1u << current->index % WARP;
    alive--;
    if (current->ended != current->begun) die("a thread has returned before its copies", 0, 0);
    if (arrived) die("a thread has returned while others wait in __syncthreads", arrived_line, 0);
    yield();
    __builtin_unreachable();
}

RUNTIME void set_order(int is_reverse, int is_random)
{
    for (unsigned i = 0; i < n_threads; i++) order[i] = is_reverse ? n_threads - 1 - i : i;
    for (unsigned i = n_threads - 1; i > 0 && is_random; i--) {
        unsigned j = (unsigned)(next_random() % (i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (unsigned i = 0; i < n_threads; i++) place[order[i]] = i;
}

RUNTIME void begin_threads()
{
    alive = n_threads;
    arrived = votes[0] = votes[1] = votes[2] = 0;
    for (unsigned w = 0; w < MOST_THREADS / WARP; w++) waiting[w] = returned[w] = 0;
    for (unsigned i = 0; i < n_threads; i++) {
        fiber *f = &fibers[i];
        unsigned row = i / block_size.x;
        f->thread = {i % block_size.x, row % block_size.y, row / block_size.y};
        f->index = i;
        make_ready(i);
        f->turn = f->vote = f->begun = f->committed = f->ended = f->groups = 0;
        f->stack = nullptr;
#ifdef __SANITIZE_THREAD__
        if (!f->sanitizer) f->sanitizer = __tsan_create_fiber(0);
#endif
    }
}

RUNTIME void check_sizes(dim3 grid, dim3 size)
{
    if (n_threads < 1 || n_threads > MOST_THREADS || size.z > 64)
        die("a block of so many threads", 0, (int)n_threads);
    if (!grid.x || !grid.y || !grid.z || grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535)
        die("a grid of that size", (int)grid.x, (int)grid.y);
}
} // namespace

RUNTIME void launch(dim3 grid, dim3 size, size_t shared, void (*run)(void *), void *kernel)
{
    n_threads = size.x * size.y * size.z;
    check_sizes(grid, size);
    if (!shared_memory) shared_memory = (char *)aligned_alloc(1024, MOST_SHARED + 1024);
    grid_size = grid;
    block_size = size;
    run_kernel = run;
    kernel_argument = kernel;
    current = &scheduler;
    const char *wish = getenv("CUEMU_ORDER");
    int is_reverse = wish && !strcmp(wish, "reverse"), is_random = wish && !strcmp(wish, "random");
    uint64_t n = (uint64_t)grid.x * grid.y * grid.z;
#ifdef __SANITIZE_THREAD__
    scheduler.sanitizer = __tsan_get_current_fiber();
    watched_between = n < 3 ? 0 : 1 + next_random() % (n - 2);
#endif
#ifdef __SANITIZE_ADDRESS__
    scheduler_stack = nullptr;
    __asan_poison_memory_region(shared_memory + shared, MOST_SHARED - shared);
    __asan_unpoison_memory_region(shared_memory, shared);
#endif
    for (uint64_t k = 0; k < n; k++) {
        uint64_t b = is_reverse ? n - 1 - k : k;
        block = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                 (unsigned)(b / grid.x / grid.y)};
        for (size_t i = 0; i < shared; i++) shared_memory[i] = (char)0xff;
        if (k == 0 || is_random) set_order(is_reverse, is_random);
        begin_threads();
#ifdef __SANITIZE_THREAD__
        /* What the host has done comes before a block, and all of that before what follows: blocks
         * use shared memory again.
         */
        is_watched = k == 0 || k == n - 1 || k == watched_between;
        if (is_watched) __tsan_release(&block_begins);
#endif
        yield();
#ifdef __SANITIZE_THREAD__
        if (is_watched) __tsan_acquire(&block_ends);
#endif
    }
}

RUNTIME void sync_block(int line)
{
    if (alive != n_threads)
        die("__syncthreads after another thread has returned", line, (int)alive);
    if (arrived && arrived_line != line)
        die("threads of a block are in __syncthreads at two lines", line, arrived_line);
    arrived_line = line;
#ifdef __SANITIZE_THREAD__
    char *barrier = &barriers[n_barriers % 2];
    if (is_watched) __tsan_release(barrier);
#endif
    if (++arrived == n_threads) {
        arrived = 0;
        for (unsigned i = 0; i < n_threads; i++) make_ready(i);
#ifdef __SANITIZE_THREAD__
        n_barriers++;
#endif
    } else {
        make_wait(current->index);
        yield();
    }
#ifdef __SANITIZE_THREAD__
    if (is_watched) __tsan_acquire(barrier);
#endif
}

/* Three votes in turn: the next one is emptied before anyone can come to it. */
RUNTIME int sync_block_or(int predicate, int line)
{
    int turn = current->vote = (current->vote + 1) % 3;
    votes[(turn + 1) % 3] = 0;
    if (predicate) votes[turn] = 1;
    sync_block(line);
    return votes[turn];
}

RUNTIME unsigned active_lanes()
{
    unsigned lanes = n_threads - current->index / WARP * WARP;
    return lanes < WARP ? (1u << lanes) - 1 : ~0u;
}

/* Waits until all lanes in mask are at this line; the last one to come sets them free. */
static RUNTIME void meet_lanes(unsigned mask, int line)
{
    unsigned index = current->index, w = index / WARP, first = w * WARP, own = 1u << index % WARP;
    mask &= active_lanes();
    if (!(mask & own)) die("a lane that is not in its own mask", line, (int)mask);
    if (mask & returned[w])
        die("a mask with a lane that has returned", line, __builtin_ctz(mask & returned[w]));
    came_to[index] = {mask, line};
    make_wait(index);
    waiting[w] |= own;
    if (mask & ~waiting[w]) return yield();
    for (unsigned l = 0; l < WARP; l++) {
        const meeting *m = &came_to[first + l];
        if (!(mask >> l & 1)) continue;
        if (m->mask != mask) return yield();
        if (m->line != line) die("lanes of a warp at two lines", line, m->line);
    }
    for (unsigned l = 0; l < WARP; l++)
        if (mask >> l & 1) make_ready(first + l);
    waiting[w] &= ~mask;
#ifdef __SANITIZE_THREAD__
    n_meetings[w]++;
#endif
}

RUNTIME void sync_warp(unsigned mask, int line)
{
#ifdef __SANITIZE_THREAD__
    int warp = current->index / WARP;
    char *meeting = &meetings[warp][n_meetings[warp] % 2];
    if (is_watched) __tsan_release(meeting);
#endif
    meet_lanes(mask, line);
#ifdef __SANITIZE_THREAD__
    if (is_watched) __tsan_acquire(meeting);
#endif
}

/* Two slots for each lane: a fast one publishes its next value while a slow one reads. */
RUNTIME const void *exchange(unsigned mask, const void *value, size_t size, int from, int line)
{
    fiber *f = current;
    int turn = f->turn ^= 1;
    char *to = slots[f->index][turn].bytes;
    if (size == 4)
        __builtin_memcpy(to, value, 4);
    else
        for (size_t i = 0; i < size; i++) to[i] = ((const char *)value)[i];
    meet_lanes(mask, line);
    return slots[current->index / WARP * WARP + (unsigned)from][turn].bytes;
}

RUNTIME const void *published_by(int lane)
{
    return slots[current->index / WARP * WARP + (unsigned)lane][current->turn].bytes;
}

/* ---- copies on their way to shared memory ---- */

RUNTIME void queue_copy(const async_copy *copy, int line)
{
    fiber *f = current;
    if (f->begun - f->ended == MOST_COPIES) die("so many copies on their way", line, MOST_COPIES);
    queued *q = &copies[f->index][f->begun++ % MOST_COPIES];
    q->copy.to = copy->to;
    q->copy.from = copy->from;
    q->copy.bytes = copy->bytes;
    q->group = f->groups;
}

RUNTIME void commit_copies()
{
    current->committed = current->begun;
    current->groups++;
}

RUNTIME int next_copy(async_copy *copy, int groups_left)
{
    fiber *f = current;
    const queued *q = &copies[f->index][f->ended % MOST_COPIES];
    if (f->ended == f->committed || q->group >= f->groups - groups_left) return 0;
    copy->to = q->copy.to;
    copy->from = q->copy.from;
    copy->bytes = q->copy.bytes;
    f->ended++;
    return 1;
}

[[noreturn]] void stop(const char *what, int line, int detail) { die(what, line, detail); }

RUNTIME unsigned ballot(unsigned mask, int predicate, int line)
{
    fiber *f = current;
    unsigned bit = predicate != 0, result = 0;
    unsigned first = f->index / WARP * WARP;
    exchange(mask, &bit, sizeof bit, 0, line);
    for (unsigned l = 0; l < WARP && first + l < n_threads; l++)
        if (mask >> l & 1) result |= (unsigned)slots[first + l][f->turn].bytes[0] << l;
    return result;
}

RUNTIME int lane() { return (int)(current->index % WARP); }

RUNTIME void *dynamic_shared() { return shared_memory; }
} // namespace cuemu
