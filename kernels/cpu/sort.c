/* sort.c - sorting rows, and the k first of each. */
#include "cpu.h"

/* Whether a stands before b in ascending order; NaN is the largest. */
static inline int below(real a, real b)
{
    acc x = load(a), y = load(b);
#if UL_TYPE_FLOAT
    return x < y || (x == x && y != y);
#else
    return x < y;
#endif
}

static inline int goes_first(real a, real b, int descending)
{
    return descending ? below(b, a) : below(a, b);
}

typedef struct sort_job {
    real *values;
    int64_t *index, *work;
    const real *x;
    int64_t rows, cols, k, piece;
    int descending;
} sort_job;

enum { SORT_RUN = 16 };

static void sort_run(const real *x, int64_t *index, int64_t begin, int64_t end, int descending)
{
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i;
        for (; at > begin && goes_first(x[i], x[index[at - 1]], descending); at--)
            index[at] = index[at - 1];
        index[at] = i;
    }
}

static void merge_runs(const real *x, int64_t *out, const int64_t *in, int64_t begin,
                       int64_t middle, int64_t end, int descending)
{
    int64_t a = begin, b = middle;
    for (int64_t i = begin; i < end; i++)
        out[i] = b >= end || (a < middle && !goes_first(x[in[b]], x[in[a]], descending)) ? in[a++]
                                                                                         : in[b++];
}

/* Merge sort of indices: runs of SORT_RUN by insertion, then twice as long with every pass. */
static void sort_row(const sort_job *job, int64_t row)
{
    int64_t n = job->cols;
    const real *x = job->x + row * n;
    int64_t *index = job->index + row * n, *from = index, *to = job->work + row * n;
    for (int64_t begin = 0; begin < n; begin += SORT_RUN)
        sort_run(x, index, begin, begin + SORT_RUN < n ? begin + SORT_RUN : n, job->descending);
    for (int64_t width = SORT_RUN; width < n; width *= 2) {
        for (int64_t begin = 0; begin < n; begin += 2 * width) {
            int64_t middle = begin + width < n ? begin + width : n;
            int64_t end = begin + 2 * width < n ? begin + 2 * width : n;
            merge_runs(x, to, from, begin, middle, end, job->descending);
        }
        int64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != index) memcpy(index, from, (size_t)n * sizeof *index);
    for (int64_t i = 0; i < n; i++) job->values[row * n + i] = x[index[i]];
}

static void sort_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const sort_job *job = arg;
    int64_t begin = piece * job->piece, end = begin + job->piece;
    for (int64_t row = begin; row < end && row < job->rows; row++) sort_row(job, row);
}

static int64_t rows_to_a_piece(int64_t cols) { return cols < 1024 ? 1024 / (cols + 1) + 1 : 1; }

int CPU(sort)(ul_stream *s, void *values, int64_t *index, const void *x, int64_t rows, int64_t cols,
              int descending, int64_t *work)
{
    sort_job job = {values, index, work, x, rows, cols, 0, rows_to_a_piece(cols), descending};
    ul_parallel(s, (rows + job.piece - 1) / job.piece, sort_piece, &job);
    return 0;
}

/* Whether element a of the row comes after b in the result: smaller, or equal and later. */
static inline int comes_after(const sort_job *job, const real *x, int64_t a, int64_t b)
{
    if (goes_first(x[b], x[a], job->descending)) return 1;
    return !goes_first(x[a], x[b], job->descending) && a > b;
}

/* Restores the heap below `at`: its root is the element that comes last. */
static void sift_down(const sort_job *job, const real *x, int64_t *heap, int64_t at, int64_t n)
{
    for (;;) {
        int64_t last = at, left = 2 * at + 1;
        for (int64_t child = left; child < n && child < left + 2; child++)
            if (comes_after(job, x, heap[child], heap[last])) last = child;
        if (last == at) return;
        int64_t swap = heap[at];
        heap[at] = heap[last];
        heap[last] = swap;
        at = last;
    }
}

/* The k first seen so far stay in a heap, which is then sorted in place. */
static void topk_row(const sort_job *job, int64_t row)
{
    int64_t k = job->k;
    const real *x = job->x + row * job->cols;
    int64_t *heap = job->index + row * k;
    for (int64_t i = 0; i < k; i++) heap[i] = i;
    for (int64_t i = k / 2 - 1; i >= 0; i--) sift_down(job, x, heap, i, k);
    for (int64_t i = k; i < job->cols; i++) {
        if (!goes_first(x[i], x[heap[0]], job->descending)) continue; /* equal, but later */
        heap[0] = i;
        sift_down(job, x, heap, 0, k);
    }
    for (int64_t end = k - 1; end > 0; end--) {
        int64_t swap = heap[0];
        heap[0] = heap[end];
        heap[end] = swap;
        sift_down(job, x, heap, 0, end);
    }
    for (int64_t i = 0; i < k; i++) job->values[row * k + i] = x[heap[i]];
}

static void topk_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    const sort_job *job = arg;
    int64_t begin = piece * job->piece, end = begin + job->piece;
    for (int64_t row = begin; row < end && row < job->rows; row++) topk_row(job, row);
}

int CPU(topk)(ul_stream *s, void *values, int64_t *index, const void *x, int64_t rows, int64_t cols,
              int64_t k, int largest)
{
    sort_job job = {values, index, NULL, x, rows, cols, k, rows_to_a_piece(cols), largest};
    if (k > 0) ul_parallel(s, (rows + job.piece - 1) / job.piece, topk_piece, &job);
    return 0;
}
