/* storage_test.c - memory: counts, reuse, limits, failures on demand. */
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "ulysses.h"

static ul_memory_stats now(void)
{
    ul_memory_stats stats;
    ul_memory(&stats, UL_CPU);
    return stats;
}

static ul_tensor *bytes_of(int64_t n)
{
    ul_tensor *t = NULL;
    CHECK(ul_tensor_new(&t, UL_U8, UL_CPU, 1, &n) == UL_OK, "%s", ul_last_error());
    return t;
}

static void live_and_peak_count_to_the_byte(void)
{
    int64_t before = now().live;
    ul_memory_reset_peak(UL_CPU);
    ul_tensor *a = bytes_of(1000), *b = bytes_of(5 << 20);
    CHECK(now().live == before + 1024 + (5 << 20));
    ul_tensor_free(b);
    CHECK(now().live == before + 1024);
    CHECK(now().peak == before + 1024 + (5 << 20));
    ul_tensor_free(a);
    CHECK(now().live == before);
    ul_memory_reset_peak(UL_CPU);
    CHECK(now().peak == before);
}

static void freed_memory_is_used_again(void)
{
    for (int round = 0; round < 2; round++) {
        ul_tensor *t[40];
        for (int i = 0; i < 40; i++) t[i] = bytes_of(1 + (int64_t)i * 100003);
        for (int i = 0; i < 40; i += 2) ul_tensor_free(t[i]);
        for (int i = 1; i < 40; i += 2) ul_tensor_free(t[i]);
    }
    int64_t asked = now().system_allocations;
    for (int round = 0; round < 100; round++) {
        ul_tensor *t[40];
        for (int i = 0; i < 40; i++) t[i] = bytes_of(1 + (int64_t)(i * 7 % 40) * 100003);
        for (int i = 0; i < 40; i++) ul_tensor_free(t[(i * 11) % 40]);
    }
    CHECK(now().system_allocations == asked, "%lld more",
          (long long)(now().system_allocations - asked));
}

static void neighbours_do_not_overlap(void)
{
    enum { N = 300 };
    static ul_tensor *t[N];
    static int64_t size[N];
    unsigned seed = 1;
    for (int i = 0; i < N; i++) t[i] = NULL;
    for (int step = 0; step < 6000; step++) {
        seed = seed * 1664525u + 1013904223u;
        int i = (int)((seed >> 8) % N);
        if (t[i]) {
            const unsigned char *p = ul_tensor_data(t[i]);
            for (int64_t k = 0; k < size[i]; k += 61) CHECK(p[k] == (unsigned char)i);
            ul_tensor_free(t[i]);
            t[i] = NULL;
        } else {
            size[i] = (int64_t)((seed >> 12) % (step % 7 ? 3000 : 900000));
            t[i] = bytes_of(size[i]);
            CHECK(((uintptr_t)ul_tensor_data(t[i]) & 63) == 0);
            if (size[i]) memset(ul_tensor_data(t[i]), i, (size_t)size[i]);
        }
    }
    for (int i = 0; i < N; i++) ul_tensor_free(t[i]);
}

/* Blocks of all sizes that come and go at random leave gaps; what lies idle in them goes back. */
static void hardly_more_is_held_than_was_in_use(void)
{
    enum { N = 64 };
    ul_tensor *t[N] = {NULL};
    unsigned seed = 7;
    int64_t most = 0, held = 0;
    ul_memory_trim(UL_CPU);
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1664525u + 1013904223u;
        int i = (int)((seed >> 8) % N), large = 1 + step / 1000 % 4;
        ul_tensor_free(t[i]);
        t[i] = NULL;
        if (seed >> 31) t[i] = bytes_of((int64_t)((seed >> 4) % (unsigned)(large << 22)));
        ul_memory_stats stats = now();
        most = stats.live > most ? stats.live : most;
        held = stats.live + stats.cached > held ? stats.live + stats.cached : held;
    }
    CHECK(most > (200 << 20) && held < most + most / 16 + (8 << 20), "%lld held of %lld",
          (long long)held, (long long)most);
    for (int i = 0; i < N; i++) ul_tensor_free(t[i]);
}

static void trimmed_memory_is_used_again(void)
{
    ul_tensor *kept = bytes_of(3 << 20), *large = bytes_of(50 << 20);
    memset(ul_tensor_data(kept), 5, 3 << 20);
    memset(ul_tensor_data(large), 6, 50 << 20);
    ul_tensor_free(large);
    CHECK(now().cached >= 46 << 20);
    ul_memory_trim(UL_CPU);
    CHECK(now().cached <= 8 << 20, "%lld", (long long)now().cached);
    large = bytes_of(50 << 20);
    const unsigned char *data = ul_tensor_data(large);
    CHECK(data[25 << 20] == 0); /* a page that went back comes anew */
    memset(ul_tensor_data(large), 7, 50 << 20);
    data = ul_tensor_data(kept);
    for (int64_t k = 0; k < 3 << 20; k++) CHECK(data[k] == 5);
    ul_tensor_free(large);
    ul_tensor_free(kept);
}

/* Where ulimit -v counts addresses there is no reserving as many as the machine has bytes. */
static void addresses_may_be_rationed(void)
{
#ifndef __SANITIZE_ADDRESS__ /* which reserves terabytes itself */
    pid_t child = fork();
    if (child == 0) {
        struct rlimit space = {400 << 20, 400 << 20};
        setrlimit(RLIMIT_AS, &space);
        ul_tensor *t[12] = {NULL}, *refused = NULL;
        int64_t n = 1000 << 20;
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 12; i++) t[i] = bytes_of((int64_t)(i + 1) * 1000000);
            for (int i = 0; i < 12; i++) memset(ul_tensor_data(t[i]), i, 1000000);
            for (int i = 0; i < 12; i++) ul_tensor_free(t[i]);
        }
        int rc = ul_tensor_new(&refused, UL_U8, UL_CPU, 1, &n);
        _exit(t[11] && rc == UL_ENOMEM && now().live == 0 ? 0 : 1);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "%d", status);
#endif
}

static int urgent_calls;
static ul_tensor *victim;

static void give_up_victim(void *context, int urgent)
{
    (void)context;
    if (!urgent) return;
    urgent_calls++;
    ul_tensor_free(victim);
    victim = NULL;
}

static void limit_asks_the_owner_then_refuses_in_one_sentence(void)
{
    ul_memory_trim(UL_CPU);
    ul_memory_stats stats = now();
    ul_memory_set_limit(UL_CPU, stats.live + stats.cached + (100 << 20));
    ul_memory_on_pressure(give_up_victim, NULL);
    victim = bytes_of(60 << 20);
    ul_tensor *next = bytes_of(60 << 20); /* fits only once the victim is gone */
    CHECK(urgent_calls == 1 && !victim && next);
    ul_tensor *refused = NULL;
    int64_t n = 90 << 20;
    CHECK(ul_tensor_new(&refused, UL_U8, UL_CPU, 1, &n) == UL_ENOMEM && !refused);
    CHECK(strstr(ul_last_error(), "out of memory on cpu: 90.0 MiB wanted"), "%s", ul_last_error());
    CHECK(strstr(ul_last_error(), "largest tensors: 60.0 MiB"), "%s", ul_last_error());
    ul_tensor_free(next);
    ul_memory_on_pressure(NULL, NULL);
    ul_memory_set_limit(UL_CPU, 0);
    ul_memory_trim(UL_CPU);
}

static void name_line(void *context, char *text, int size)
{
    snprintf(text, (size_t)size, "%s", (const char *)context);
}

static void the_report_names_the_line(void)
{
    ul_memory_on_origin(name_line, "recipe.lua:7");
    ul_tensor *t = bytes_of(3 << 20), *refused = NULL;
    ul_memory_on_origin(NULL, NULL);
    int64_t n = (int64_t)1 << 45;
    CHECK(ul_tensor_new(&refused, UL_U8, UL_CPU, 1, &n) == UL_ENOMEM);
    CHECK(strstr(ul_last_error(), "3.0 MiB from recipe.lua:7"), "%s", ul_last_error());
    ul_tensor_free(t);
}

static void any_chosen_allocation_fails(void)
{
    ul_memory_stats before = now();
    int64_t shape[2] = {3, 8}, made = ul_debug_allocations();
    ul_tensor *t = NULL;
    CHECK(ul_tensor_new(&t, UL_F32, UL_CPU, 2, shape) == UL_OK);
    made = ul_debug_allocations() - made;
    ul_tensor_free(t);
    CHECK(made == 3); /* data, storage, handle */
    for (int64_t n = 1; n <= made; n++) {
        t = NULL;
        ul_debug_fail_allocation(n);
        CHECK(ul_tensor_new(&t, UL_F32, UL_CPU, 2, shape) == UL_ENOMEM && !t);
    }
    ul_debug_fail_allocation(0);
    CHECK(now().live == before.live && now().live_tensors == before.live_tensors);
}

static void meta_counts_without_memory(void)
{
    ul_memory_stats stats;
    int64_t shape[3] = {1 << 20, 128 << 10, 4}; /* 2 TiB of f32 */
    ul_tensor *t = NULL;
    CHECK(ul_tensor_new(&t, UL_F32, UL_META, 3, shape) == UL_OK, "%s", ul_last_error());
    ul_memory(&stats, UL_META);
    CHECK(stats.live == (int64_t)2 << 40 && stats.live_tensors == 1 && !ul_tensor_data(t));
    ul_tensor_free(t);
    ul_memory_set_limit(UL_META, 1 << 20);
    CHECK(ul_tensor_new(&t, UL_F32, UL_META, 3, shape) == UL_ENOMEM);
    ul_memory_set_limit(UL_META, 0);
}

static void bad_shapes_are_refused(void)
{
    ul_tensor *t = NULL;
    int64_t negative[2] = {3, -1}, huge[3] = {(int64_t)1 << 40, (int64_t)1 << 40, 2};
    int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    CHECK(ul_tensor_new(&t, UL_F32, UL_CPU, 2, negative) == UL_ESHAPE);
    CHECK(!strcmp(ul_last_error(), "tensor: size -1 of dim 2 in [3, -1] is negative"), "%s",
          ul_last_error());
    CHECK(ul_tensor_new(&t, UL_F32, UL_META, 3, huge) == UL_ESHAPE);
    CHECK(ul_tensor_new(&t, UL_F32, UL_CPU, 9, nine) == UL_ESHAPE && !t);
}

int main(void)
{
    RUN(addresses_may_be_rationed); /* first: nothing is reserved yet */
    RUN(live_and_peak_count_to_the_byte);
    RUN(freed_memory_is_used_again);
    RUN(neighbours_do_not_overlap);
    RUN(hardly_more_is_held_than_was_in_use);
    RUN(trimmed_memory_is_used_again);
    RUN(limit_asks_the_owner_then_refuses_in_one_sentence);
    RUN(the_report_names_the_line);
    RUN(any_chosen_allocation_fails);
    RUN(meta_counts_without_memory);
    RUN(bad_shapes_are_refused);
    return check_done();
}
