/* reduce.cu - sums, extremes and log-sum-exp of the trailing dims of a loop.
 *
 * Results are cut into `chunks` parts where they are too few to keep the device busy; a second
 * kernel merges the parts in their order. How the work is cut follows from the shapes, so that a
 * result is the same in each run.
 */
#include "block.h"

/* x [kept.., reduced..]: offsets of a result's first element, and from there. */
struct reduction {
    ul_loop kept, reduced;
    int64_t n_kept, n_reduced, chunks, chunk;
    const real *x;
    void *parts; /* [chunks, n_kept] states */
};

static ul_loop dims_of(const ul_loop *l, int first, int end)
{
    ul_loop part = {};
    for (int d = first; d < end; d++) {
        part.shape[part.ndim] = l->shape[d];
        for (int o = 0; o < 2; o++) part.stride[o][part.ndim] = l->stride[o][d];
        part.ndim++;
    }
    return part;
}

/* OP: state identity(); void take(state &, real, int64_t flat); state operator()(state, state), the
 * first one's elements coming first; void done(int64_t y_at, state).
 */
template <class OP>
__device__ __forceinline__ typename OP::state reduce_range(const OP &op, const reduction &r,
                                                           const int64_t *base, int64_t begin,
                                                           int64_t end, int64_t step)
{
    typename OP::state s = op.identity();
    for (int64_t i = begin; i < end; i += step) {
        int64_t at[2];
        loop_at<2, uint64_t>(r.reduced, (uint64_t)i, at);
        op.take(s, r.x[base[1] + at[1]], i);
    }
    return s;
}

/* A result for each block: neighbouring threads take neighbouring elements. */
template <class OP> static __global__ void reduce_rows_kernel(OP op, reduction r)
{
    for (int64_t k = blockIdx.x; k < r.n_kept * r.chunks; k += gridDim.x) {
        int64_t out = k / r.chunks, part = k % r.chunks, base[2];
        loop_at<2, uint64_t>(r.kept, (uint64_t)out, base);
        int64_t begin = part * r.chunk, end = begin + r.chunk;
        if (end > r.n_reduced) end = r.n_reduced;
        typename OP::state s =
            reduce_range(op, r, base, begin + threadIdx.x, end, (int64_t)blockDim.x);
        s = block_reduce(s, op);
        if (threadIdx.x != 0) continue;
        if (r.chunks > 1)
            ((typename OP::state *)r.parts)[part * r.n_kept + out] = s;
        else
            op.done(base[0], s);
    }
}

/* A result for each thread: neighbouring results have neighbouring elements. */
template <class OP> static __global__ void reduce_columns_kernel(OP op, reduction r)
{
    GRID_STRIDE(k, r.n_kept * r.chunks)
    {
        int64_t out = k % r.n_kept, part = k / r.n_kept, base[2];
        loop_at<2, uint64_t>(r.kept, (uint64_t)out, base);
        int64_t begin = part * r.chunk, end = begin + r.chunk;
        if (end > r.n_reduced) end = r.n_reduced;
        typename OP::state s = reduce_range(op, r, base, begin, end, 1);
        if (r.chunks > 1)
            ((typename OP::state *)r.parts)[part * r.n_kept + out] = s;
        else
            op.done(base[0], s);
    }
}

template <class OP> static __global__ void reduce_parts_kernel(OP op, reduction r)
{
    GRID_STRIDE(out, r.n_kept)
    {
        const typename OP::state *parts = (const typename OP::state *)r.parts + out;
        typename OP::state s = parts[0];
        for (int64_t p = 1; p < r.chunks; p++) s = op(s, parts[p * r.n_kept]);
        int64_t base[2];
        loop_at<2, uint64_t>(r.kept, (uint64_t)out, base);
        op.done(base[0], s);
    }
}

/* Whether a thread for each result reads whole lines: the results lie side by side in x. */
static int is_columns(const reduction *r)
{
    int last = r->reduced.ndim - 1, inner = r->kept.ndim - 1;
    if (last < 0) return 1;
    return inner >= 0 && r->kept.stride[1][inner] == 1 && r->reduced.stride[1][last] != 1 &&
           r->kept.shape[inner] >= WARP;
}

/* Strided elements belong to threads, so that only chunks of one run through neighbours; a block
 * merges threads in their order, which for extremes asks for the flat index too.
 */
template <class OP>
static int reduce_walk(ul_stream *s, const char *name, OP op, const void *x, const ul_loop *l,
                       int reduced)
{
    reduction r = {};
    r.kept = dims_of(l, 0, l->ndim - reduced);
    r.reduced = dims_of(l, l->ndim - reduced, l->ndim);
    r.n_kept = loop_size(&r.kept);
    r.n_reduced = loop_size(&r.reduced);
    r.x = (const real *)x;
    r.parts = s->scratch;
    if (r.n_kept == 0) return 0;
    int columns = is_columns(&r), block = columns ? BLOCK : threads_for(r.n_reduced);
    int64_t items = columns ? ceil_div(r.n_kept, BLOCK) : r.n_kept;
    int64_t wanted = ceil_div((int64_t)s->processors * 4, items), least = columns ? 64 : 4096;
    int64_t room = s->scratch_bytes / (int64_t)sizeof(typename OP::state) / r.n_kept;
    r.chunks = smaller(smaller(wanted, room), ceil_div(r.n_reduced, least));
    if (r.chunks < 1) r.chunks = 1;
    r.chunk = ceil_div(r.n_reduced, r.chunks);
    int64_t all = r.n_kept * r.chunks, most = (int64_t)s->processors * 64;
    if (columns)
        UL_LAUNCH((reduce_columns_kernel<OP>), grid_for(s, all, block), dim3(block), 0, s->stream,
                  op, r);
    else
        UL_LAUNCH((reduce_rows_kernel<OP>), dim3((unsigned)smaller(all, most)), dim3(block), 0,
                  s->stream, op, r);
    if (r.chunks > 1)
        UL_LAUNCH((reduce_parts_kernel<OP>), grid_for(s, r.n_kept, BLOCK), dim3(BLOCK), 0,
                  s->stream, op, r);
    return ul_cuda_launched(name);
}

/* ---- sum ---- */

struct sum_op {
    typedef acc state;
    ul_grad y;
    acc scale;
    __device__ acc identity() const { return 0; }
    __device__ void take(acc &s, real x, int64_t) const { s += load(x); }
    __device__ acc operator()(acc a, acc b) const { return a + b; }
    __device__ void done(int64_t at, acc s) const
    {
        sum_t *to = (sum_t *)y.data + at;
#if UL_TYPE_FLOAT
        give(to, y.add, s * scale);
#else
        *to = (sum_t)((y.add ? *to : 0) + s);
#endif
    }
};

int CUDA(sum)(ul_stream *s, ul_grad y, const void *x, double scale, const ul_loop *l, int reduced)
{
    if (!y.data) return 0;
    return reduce_walk(s, "sum", sum_op{y, (acc)scale}, x, l, reduced);
}

/* ---- max, min ---- */

#if UL_TYPE_FLOAT
#define IS_NAN(x) ((x) != (x))
#else
#define IS_NAN(x) 0
#endif

struct extreme_state {
    acc best;
    int64_t index; /* -1: nothing yet */
};

/* SIGN: 1 for the largest, -1 for the smallest; NaN is more than either, the first of equals wins.
 */
template <int SIGN> struct extreme_op {
    typedef extreme_state state;
    real *y;
    int64_t *index;
    __device__ state identity() const { return state{0, -1}; }
    __device__ static int beats(acc a, acc b)
    {
        return (SIGN > 0 ? a > b : a < b) || (IS_NAN(a) && !IS_NAN(b));
    }
    __device__ void take(state &s, real x, int64_t i) const
    {
        acc value = load(x);
        if (s.index < 0 || beats(value, s.best)) s = state{value, i};
    }
    __device__ state operator()(state a, state b) const
    {
        if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
        if (beats(b.best, a.best)) return b;
        if (beats(a.best, b.best)) return a;
        return b.index < a.index ? b : a;
    }
    __device__ void done(int64_t at, state s) const
    {
        if (y) y[at] = store(s.best);
        if (index) index[at] = s.index;
    }
};

int CUDA(max)(ul_stream *s, void *y, int64_t *index, const void *x, const ul_loop *l, int reduced)
{
    return reduce_walk(s, "max", extreme_op<1>{(real *)y, index}, x, l, reduced);
}

int CUDA(min)(ul_stream *s, void *y, int64_t *index, const void *x, const ul_loop *l, int reduced)
{
    return reduce_walk(s, "min", extreme_op<-1>{(real *)y, index}, x, l, reduced);
}

#if UL_TYPE_FLOAT

/* ---- log-sum-exp: the largest element, and the sum of exp(x - largest) ---- */

struct logsumexp_state {
    acc top, sum;
};

struct logsumexp_op {
    typedef logsumexp_state state;
    real *y;
    __device__ state identity() const { return state{(acc)-INFINITY, 0}; }
    /* What a sum taken against `from` is worth against `to`, which is not below it. */
    __device__ static acc worth(acc sum, acc from, acc to)
    {
        return from == to ? sum : sum == 0 ? 0 : sum * exp(from - to);
    }
    __device__ void take(state &s, real x, int64_t) const
    {
        acc v = load(x);
        s = (*this)(s, state{v, v == (acc)-INFINITY ? 0 : (acc)1});
    }
    __device__ state operator()(state a, state b) const
    {
        if (a.top != a.top) return a;
        if (b.top != b.top) return b;
        acc top = a.top > b.top ? a.top : b.top;
        return state{top, worth(a.sum, a.top, top) + worth(b.sum, b.top, top)};
    }
    /* Nothing, or only -inf, gives -inf; inf gives inf. */
    __device__ void done(int64_t at, state s) const
    {
        int finite = s.top - s.top == 0;
        y[at] = store(finite ? s.top + log(s.sum) : s.top);
    }
};

int CUDA(logsumexp)(ul_stream *s, void *y, const void *x, const ul_loop *l, int reduced)
{
    return reduce_walk(s, "logsumexp", logsumexp_op{(real *)y}, x, l, reduced);
}

struct logsumexp_backward_body {
    ul_grad dx;
    const real *dy, *x, *y;
    __device__ void operator()(const int64_t *at) const
    {
        acc share = exp(load(x[at[2]]) - load(y[at[3]]));
        give((real *)dx.data + at[0], dx.add, load(dy[at[1]]) * share);
    }
};

int CUDA(logsumexp_backward)(ul_stream *s, ul_grad dx, const void *dy, const void *x, const void *y,
                             const ul_loop *l)
{
    if (!dx.data) return 0;
    logsumexp_backward_body f = {dx, (const real *)dy, (const real *)x, (const real *)y};
    return loop_walk<4>(s, "logsumexp_backward", f, l);
}

#endif
