/* runs.h - one kernel, one output: what it leaves there, added and overwritten, by 1 to 3 threads.
 */
#ifndef UL_RUNS_H
#define UL_RUNS_H

#include "check.h"
#include "values.h"

/* The type of accumulators beside a dtype. */
static inline int acc_of(int dtype) { return dtype <= BF16 ? F32 : dtype == F64 ? F64 : I64; }

/* How far a result of that type may be off. */
static inline double tolerance_of(int dtype)
{
    static const double all[N_DTYPES] = {1e-5, 0x1.04p-8, 1e-12, 0, 0, 0};
    return all[dtype];
}

typedef struct kernel_run {
    const char *name;
    int dtype;         /* of the table */
    int type;          /* of the output's elements */
    int64_t n, span;   /* results, and the elements from the first to the last of them */
    const int64_t *at; /* where each result is; NULL: side by side */
    const double *want;
    void (*call)(const ul_kernels *k, ul_grad y, const void *arg);
    const void *arg;
    int adds; /* whether the kernel can add to what is there */
} kernel_run;

/* Compares y with what is wanted, on top of `before` where add; -1 or the first that is wrong. */
static inline int64_t first_wrong(const kernel_run *r, const void *y, const void *before, int add)
{
    for (int64_t i = 0; i < r->n; i++) {
        int64_t at = r->at ? r->at[i] : i;
        double want = r->want[i] + (add ? get(r->type, before, at) : 0);
        if (!close_to(get(r->type, y, at), want, tolerance_of(r->type))) return i;
    }
    return -1;
}

/* Elements between the results must be what they were. */
static inline int gaps_untouched(const kernel_run *r, const void *y, const void *before)
{
    size_t size = dtype_sizes[r->type];
    char *copy = malloc((size_t)r->span * size + 1);
    memcpy(copy, before, (size_t)r->span * size);
    for (int64_t i = 0; i < r->n; i++) {
        size_t at = (size_t)(r->at ? r->at[i] : i) * size;
        memcpy(copy + at, (const char *)y + at, size);
    }
    int same = memcmp(copy, y, (size_t)r->span * size) == 0;
    free(copy);
    return same;
}

static inline void check_run(const kernel_run *r)
{
    size_t bytes = (size_t)r->span * dtype_sizes[r->type];
    for (int add = 0; add <= r->adds; add++) {
        void *before = new_noise(r->type, r->span, 0, 3, 99), *one = new_values(r->type, r->span);
        if (!add && r->type <= F64) /* overwriting does not read */
            for (int64_t i = 0; i < r->span; i++) put(r->type, before, i, NAN);
        for (int threads = 1; threads <= 3; threads++) {
            void *y = new_values(r->type, r->span);
            memcpy(y, before, bytes);
            ul_cpu_set_threads(threads);
            r->call(ul_cpu_kernels(r->dtype), (ul_grad){y, add}, r->arg);
            if (threads == 1) {
                memcpy(one, y, bytes);
                int64_t i = first_wrong(r, y, before, add);
                CHECK(i < 0, "%s %s %s add %d: result %lld is %.9g, not %.9g", r->name,
                      dtype_names[r->dtype], ul_cpu_isa(), add, (long long)i,
                      get(r->type, y, r->at ? r->at[i] : i),
                      r->want[i] + (add ? get(r->type, before, r->at ? r->at[i] : i) : 0));
                CHECK(gaps_untouched(r, y, before), "%s %s: wrote elsewhere", r->name,
                      dtype_names[r->dtype]);
            }
            CHECK(memcmp(one, y, bytes) == 0, "%s %s %s: %d threads differ", r->name,
                  dtype_names[r->dtype], ul_cpu_isa(), threads);
            free(y);
        }
        free(before), free(one);
    }
    if (r->adds) r->call(ul_cpu_kernels(r->dtype), (ul_grad){NULL, 0}, r->arg);
}

/* Calls test for every table that this machine has, up to dtype `last`. */
static inline void each_table(int last, void (*test)(int dtype))
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= last; dtype++)
            if (has_table(level, dtype)) test(dtype);
    ul_cpu_set_threads(2);
}

#endif
