/* attention_test.c - attention of every level and dtype against sums over all pairs in f64. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "kernels.h"

typedef struct shape {
    const char *name;
    int64_t batch, q_tokens, k_tokens, n_heads, n_kv_heads, head_dim;
    int causal;
    int64_t window, q_start;
    int docs;      /* 1: cut the rows into documents */
    int map;       /* 0: h Hkv / H, 1: uneven, 2: scattered */
    int strided;   /* 1: rows lie in a wider tensor, heads outside tokens */
    double logits; /* about how large they are; 0: 1 */
} shape;

static const shape shapes[] = {
    {"one", 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0},
    {"one causal", 2, 1, 1, 2, 1, 5, 1, 0, 0, 0, 0, 0, 0},
    {"plain", 2, 65, 65, 2, 2, 32, 0, 0, 0, 0, 0, 0, 0},
    {"plain 200", 1, 200, 200, 2, 2, 64, 0, 0, 0, 0, 0, 0, 0},
    {"causal 17", 2, 17, 17, 3, 3, 80, 1, 0, 0, 0, 0, 0, 0},
    {"causal 200", 2, 200, 200, 2, 2, 128, 1, 0, 0, 0, 0, 0, 0},
    {"causal 330", 1, 330, 330, 1, 1, 64, 1, 0, 0, 0, 0, 0, 0},
    {"window 1", 1, 65, 65, 2, 2, 32, 1, 1, 0, 0, 0, 0, 0},
    {"window 7", 2, 200, 200, 2, 1, 64, 1, 7, 0, 0, 0, 0, 0},
    {"window 150", 1, 400, 400, 1, 1, 32, 1, 150, 0, 0, 0, 0, 0},
    {"window beyond", 1, 65, 65, 1, 1, 8, 1, INT64_MAX, 0, 0, 0, 0, 0},
    {"docs", 2, 200, 200, 2, 2, 64, 1, 0, 0, 1, 0, 0, 0},
    {"docs both ways", 2, 200, 200, 2, 2, 5, 0, 0, 0, 1, 0, 0, 0},
    {"docs window", 2, 200, 200, 4, 1, 32, 1, 9, 0, 1, 0, 1, 0},
    {"docs in keys", 2, 40, 65, 2, 2, 16, 1, 0, 20, 1, 0, 0, 0},
    {"GQA 4:1", 2, 65, 65, 8, 2, 64, 1, 0, 0, 0, 0, 0, 0},
    {"MQA", 1, 200, 200, 7, 1, 32, 1, 0, 0, 0, 0, 1, 0},
    {"uneven map", 2, 65, 65, 7, 3, 80, 1, 0, 0, 0, 1, 0, 0},
    {"scattered map", 1, 130, 130, 6, 4, 5, 1, 0, 0, 0, 2, 1, 0},
    {"more keys", 2, 17, 200, 2, 1, 64, 1, 0, 183, 0, 0, 0, 0},
    {"more keys, both ways", 1, 65, 300, 2, 2, 128, 0, 0, 0, 0, 0, 1, 0},
    {"one query", 2, 1, 200, 4, 2, 64, 1, 0, 199, 0, 0, 0, 0},
    {"more queries", 2, 200, 17, 2, 2, 32, 1, 0, -183, 0, 0, 0, 0},
    {"queries past the keys", 1, 200, 65, 2, 2, 32, 1, 20, 3, 0, 0, 0, 0},
    {"strided", 2, 65, 65, 4, 2, 80, 1, 0, 0, 0, 0, 1, 0},
    {"D 1", 2, 65, 65, 2, 2, 1, 1, 0, 0, 0, 0, 1, 0},
    {"D 257", 1, 65, 65, 1, 1, 257, 1, 0, 0, 0, 0, 0, 0},
    {"D 512", 1, 130, 130, 1, 1, 512, 1, 0, 0, 0, 0, 0, 0},
    {"large logits", 1, 200, 200, 2, 1, 64, 1, 0, 0, 0, 0, 0, 200},
    {"larger logits", 1, 130, 130, 1, 1, 32, 0, 0, 0, 0, 0, 0, 20000},
    {"no queries", 1, 0, 17, 2, 2, 32, 0, 0, 0, 0, 0, 0, 0},
    {"no keys", 2, 17, 0, 2, 2, 32, 0, 0, 0, 0, 0, 0, 0},
    {"no batch", 0, 17, 17, 2, 2, 32, 1, 0, 0, 0, 0, 0, 0},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MAX_HEADS = 8, MAX_DOCS = 16 };
enum { F32, BF16, F64, N_DTYPES };
enum { Q, K, V, DO, O, LSE, DQ, DK, DV, N_TENSORS };

static const char *const levels[] = {"base", "avx2", "avx512", "avx512bf16"};
static const char *const dtypes[] = {"f32", "bf16", "f64"};
static const char *const tensors[] = {"q", "k", "v", "do", "o", "lse", "dq", "dk", "dv"};

/* ---- one problem: inputs that every dtype holds exactly, and the answer in f64 ---- */

typedef struct problem {
    const shape *s;
    ul_attention_args args;
    int32_t kv_head[MAX_HEADS];
    int64_t docs[MAX_DOCS];
    int64_t size[N_TENSORS];      /* in elements, gaps included */
    int64_t stride[N_TENSORS][3]; /* B, T, H */
    double *want[N_TENSORS];
} problem;

static uint64_t random_state = 1;

/* In [-1, 1), eight bits of it. */
static double random_number(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(random_state >> 57) - 64) / 64;
}

static int64_t lay_out(int64_t stride[3], int64_t batch, int64_t tokens, int64_t heads, int64_t dim,
                       int strided)
{
    if (!strided) {
        stride[2] = dim;
        stride[1] = heads * dim;
        stride[0] = tokens * stride[1];
    } else {
        stride[1] = dim + 3;
        stride[2] = tokens * stride[1] + 5;
        stride[0] = heads * stride[2] + 7;
    }
    return batch * stride[0];
}

static double *at(const problem *p, int tensor, int64_t b, int64_t t, int64_t h)
{
    const int64_t *stride = p->stride[tensor];
    return p->want[tensor] + b * stride[0] + t * stride[1] + h * stride[2];
}

static void set_masks(problem *p)
{
    const shape *s = p->s;
    for (int64_t h = 0; h < s->n_heads; h++)
        p->kv_head[h] = (int32_t)(s->map == 0   ? h * s->n_kv_heads / s->n_heads
                                  : s->map == 1 ? (h > 0) + (h > 5)
                                                : h * 5 % 3);
    int64_t n = 0, tokens = s->k_tokens;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t cuts[] = {0, 1, 1, tokens / 3 + b, tokens - 7 * b - 2, tokens};
        for (int i = 0; i < 6; i++) p->docs[n++] = b * tokens + cuts[i];
    }
    p->args.docs = s->docs ? p->docs : NULL;
    p->args.n_docs = s->docs ? n - 1 : 0;
    p->args.kv_head = p->kv_head;
}

static int sees(const problem *p, int64_t b, int64_t i, int64_t j)
{
    const ul_attention_args *a = &p->args;
    int64_t position = i + a->q_start;
    if (a->causal && j > position) return 0;
    if (a->window && position - j >= a->window) return 0;
    if (!a->docs) return 1;
    if (position < 0 || position >= a->k_tokens) return 0;
    for (int64_t n = 1; n < a->n_docs; n++) {
        int64_t start = a->docs[n] - b * a->k_tokens;
        if ((position >= start) != (j >= start)) return 0;
    }
    return 1;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static void add_scaled(double *y, double factor, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += factor * x[i];
}

/* One row of the matrix that flash attention never makes: probabilities p, and what follows. */
static void solve_row(problem *x, double *p, int64_t b, int64_t h, int64_t i)
{
    const ul_attention_args *a = &x->args;
    int64_t dim = a->head_dim, kv = x->kv_head[h];
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < a->k_tokens; j++) {
        p[j] = sees(x, b, i, j) ? a->scale * dot(at(x, Q, b, i, h), at(x, K, b, j, kv), dim)
                                : -INFINITY;
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < a->k_tokens && top > -INFINITY; j++) sum += exp(p[j] - top);
    double lse = *at(x, LSE, b, i, h) = top + log(sum);
    for (int64_t j = 0; j < a->k_tokens; j++) {
        p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - lse);
        add_scaled(at(x, O, b, i, h), p[j], at(x, V, b, j, kv), dim);
    }
    const double *d_o = at(x, DO, b, i, h);
    double delta = dot(d_o, at(x, O, b, i, h), dim);
    for (int64_t j = 0; j < a->k_tokens; j++) {
        double ds = a->scale * p[j] * (dot(d_o, at(x, V, b, j, kv), dim) - delta);
        add_scaled(at(x, DV, b, j, kv), p[j], d_o, dim);
        add_scaled(at(x, DQ, b, i, h), ds, at(x, K, b, j, kv), dim);
        add_scaled(at(x, DK, b, j, kv), ds, at(x, Q, b, i, h), dim);
    }
}

static void set_up(problem *p, const shape *s)
{
    memset(p, 0, sizeof *p);
    p->s = s;
    p->args = (ul_attention_args){.batch = s->batch, .q_tokens = s->q_tokens};
    p->args.k_tokens = s->k_tokens;
    p->args.n_heads = s->n_heads;
    p->args.n_kv_heads = s->n_kv_heads;
    p->args.head_dim = s->head_dim;
    p->args.causal = s->causal;
    p->args.window = s->window;
    p->args.q_start = s->q_start;
    double logits = s->logits ? s->logits : 1;
    p->args.scale = 2 * logits / sqrt((double)s->head_dim);
    set_masks(p);
    for (int t = 0; t < N_TENSORS; t++) {
        int keys = t == K || t == V || t == DK || t == DV;
        int strided = s->strided && (t == Q || t == K || t == V || t == O);
        p->size[t] = lay_out(p->stride[t], s->batch, keys ? s->k_tokens : s->q_tokens,
                             keys ? s->n_kv_heads : s->n_heads, s->head_dim, strided);
    }
    int64_t lse[] = {s->n_heads * s->q_tokens, 1, s->q_tokens};
    memcpy(p->stride[LSE], lse, sizeof lse);
    p->size[LSE] = s->batch * s->n_heads * s->q_tokens;
    for (int t = 0; t < N_TENSORS; t++) {
        p->want[t] = calloc((size_t)p->size[t] + 1, sizeof(double));
        for (int64_t i = 0; i < p->size[t] && t <= DO; i++) p->want[t][i] = random_number();
    }
    memcpy(p->args.q_stride, p->stride[Q], sizeof p->args.q_stride);
    memcpy(p->args.k_stride, p->stride[K], sizeof p->args.k_stride);
    memcpy(p->args.v_stride, p->stride[V], sizeof p->args.v_stride);
    memcpy(p->args.o_stride, p->stride[O], sizeof p->args.o_stride);
    double *row = calloc((size_t)s->k_tokens + 1, sizeof(double));
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->n_heads; h++)
            for (int64_t i = 0; i < s->q_tokens; i++) solve_row(p, row, b, h, i);
    free(row);
}

static void tear_down(problem *p)
{
    for (int t = 0; t < N_TENSORS; t++) free(p->want[t]);
}

/* ---- one run of the kernels ---- */

enum { GUARD = 128, FILL = 0xA5 };

typedef struct result {
    int dtype;
    char *data[N_TENSORS]; /* GUARD bytes before and after */
    char *work;
    int64_t work_bytes;
} result;

static int64_t width_of(int dtype, int tensor)
{
    int accumulates = tensor == LSE;
    return dtype == F64 ? 8 : dtype == F32 || accumulates ? 4 : 2;
}

static double read_element(const char *x, int64_t width, int64_t i)
{
    double wide;
    float narrow;
    uint32_t bits = 0;
    if (width == 8) return memcpy(&wide, x + 8 * i, 8), wide;
    if (width == 4) return memcpy(&narrow, x + 4 * i, 4), narrow;
    memcpy((char *)&bits + 2, x + 2 * i, 2);
    return memcpy(&narrow, &bits, 4), narrow;
}

/* Exact for the numbers of this test. */
static void write_element(char *x, int64_t width, int64_t i, double value)
{
    float narrow = (float)value;
    if (width == 8)
        memcpy(x + 8 * i, &value, 8);
    else if (width == 4)
        memcpy(x + 4 * i, &narrow, 4);
    else
        memcpy(x + 2 * i, (char *)&narrow + 2, 2);
}

static char *guarded(int64_t bytes)
{
    int64_t all = (bytes + 2 * GUARD + 63) / 64 * 64;
    char *p = aligned_alloc(64, (size_t)all);
    memset(p, FILL, (size_t)all);
    return p + GUARD;
}

static int intact(const char *p, int64_t bytes)
{
    for (int i = 1; i <= GUARD; i++)
        if ((unsigned char)p[-i] != FILL || (unsigned char)p[bytes + i - 1] != FILL) return 0;
    return 1;
}

static void run(result *r, const problem *p, int dtype, int threads, int add, int skip)
{
    ul_cpu_set_threads(threads);
    ul_stream *s = ul_cpu_stream();
    const ul_kernels *kernels = ul_cpu_kernels(dtype);
    int64_t forward, backward;
    kernels->attention_work(s, &forward, &backward, &p->args);
    r->dtype = dtype;
    r->work_bytes = forward > backward ? forward : backward;
    r->work = guarded(r->work_bytes);
    for (int t = 0; t < N_TENSORS; t++) {
        int64_t width = width_of(dtype, t);
        r->data[t] = guarded(p->size[t] * width);
        for (int64_t i = 0; i < p->size[t] && t <= DO; i++)
            write_element(r->data[t], width, i, p->want[t][i]);
        for (int64_t i = 0; i < p->size[t] && t >= DQ && add; i++)
            write_element(r->data[t], width, i, 0.5);
    }
    char *const *x = r->data;
    kernels->attention(s, x[O], x[LSE], x[Q], x[K], x[V], &p->args, r->work);
    ul_grad dq = {skip == DQ ? NULL : x[DQ], add}, dk = {skip == DK ? NULL : x[DK], add};
    ul_grad dv = {skip == DV ? NULL : x[DV], add};
    kernels->attention_backward(s, dq, dk, dv, x[DO], x[O], x[LSE], x[Q], x[K], x[V], &p->args,
                                r->work);
}

static void release(result *r)
{
    for (int t = 0; t < N_TENSORS; t++) free(r->data[t] - GUARD);
    free(r->work - GUARD);
}

/* ---- the checks ---- */

static void check_guards(const result *r, const problem *p)
{
    CHECK(intact(r->work, r->work_bytes), "%s: work", p->s->name);
    for (int t = 0; t < N_TENSORS; t++)
        CHECK(intact(r->data[t], p->size[t] * width_of(r->dtype, t)), "%s: %s", p->s->name,
              tensors[t]);
}

/* Every element of O, LSE and the gradients within the tolerance of the largest of its tensor. */
static void check_answer(const result *r, const problem *p, double start)
{
    double logits = p->s->logits ? p->s->logits : 1;
    double tolerance =
        (r->dtype == F64 ? 1e-13 : 4e-6) * (1 + logits / 4 * fmax(1, p->args.scale / 2));
    for (int t = O; t < N_TENSORS; t++) {
        int keys = t == DK || t == DV;
        int64_t tokens = keys ? p->s->k_tokens : p->s->q_tokens, width = width_of(r->dtype, t);
        int64_t heads = keys ? p->s->n_kv_heads : p->s->n_heads,
                dim = t == LSE ? 1 : p->s->head_dim;
        double offset = t >= DQ ? start : 0, worst = 0, largest = 1;
        for (int64_t row = 0; row < p->s->batch * tokens * heads; row++) {
            int64_t b = row / heads / tokens, i = row / heads % tokens, h = row % heads;
            const double *want = at(p, t, b, i, h);
            for (int64_t d = 0; d < dim; d++) {
                double got = read_element(r->data[t], width, want + d - p->want[t]) - offset;
                double error = got == want[d] ? 0 : fabs(got - want[d]);
                worst = error <= worst ? worst : error; /* NaN counts */
                if (isfinite(want[d])) largest = fmax(largest, fabs(want[d]));
            }
        }
        double allowed = tolerance + (t != LSE && r->dtype == BF16 ? 1.5e-2 : 0);
        CHECK(worst <= allowed * largest, "%s %s %s: %s is off by %.2g, largest is %.2g",
              p->s->name, ul_cpu_isa(), dtypes[r->dtype], tensors[t], worst, largest);
    }
}

static void check_same(const result *a, const result *b, const problem *p, int except)
{
    for (int t = O; t < N_TENSORS; t++)
        if (t != except)
            CHECK(memcmp(a->data[t], b->data[t], (size_t)(p->size[t] * width_of(a->dtype, t))) == 0,
                  "%s %s %s: %s differs", p->s->name, ul_cpu_isa(), dtypes[a->dtype], tensors[t]);
}

static void check_problem(const problem *p, int dtype)
{
    result first, other;
    run(&first, p, dtype, 1, 0, -1);
    check_guards(&first, p);
    check_answer(&first, p, 0);
    for (int threads = 2; threads <= 3; threads++) {
        run(&other, p, dtype, threads, 0, -1);
        check_same(&first, &other, p, -1);
        release(&other);
    }
    for (int skip = DQ; skip <= DV; skip++) {
        run(&other, p, dtype, 2, 0, skip);
        check_guards(&other, p);
        check_same(&first, &other, p, skip);
        for (int64_t i = 0; i < p->size[skip] * width_of(dtype, skip); i++)
            CHECK((unsigned char)other.data[skip][i] == FILL, "%s written", tensors[skip]);
        release(&other);
    }
    run(&other, p, dtype, 2, 1, -1);
    check_answer(&other, p, 0.5);
    release(&other);
    release(&first);
}

/* Rows and heads of o lie in a wider tensor: what lies between is not touched. */
static void check_gaps(const problem *p, int dtype)
{
    result r;
    run(&r, p, dtype, 2, 0, -1);
    const shape *s = p->s;
    int64_t width = width_of(dtype, O), bytes = s->head_dim * width;
    for (int64_t row = 0; row < s->batch * s->q_tokens * s->n_heads; row++) {
        int64_t h = row % s->n_heads, i = row / s->n_heads % s->q_tokens;
        int64_t b = row / s->n_heads / s->q_tokens;
        memset(r.data[O] + (at(p, O, b, i, h) - p->want[O]) * width, FILL, (size_t)bytes);
    }
    for (int64_t i = 0; i < p->size[O] * width; i++)
        CHECK((unsigned char)r.data[O][i] == FILL, "%s %s: byte %ld", s->name, dtypes[dtype],
              (long)i);
    release(&r);
}

static void all_shapes(void)
{
    for (int i = 0; i < N_SHAPES; i++) {
        problem p;
        set_up(&p, &shapes[i]);
        for (int level = 0; level < 4; level++)
            for (int dtype = 0; dtype < N_DTYPES; dtype++) {
                if ((level == 3 && dtype != BF16) || !ul_cpu_set_isa(levels[level])) continue;
                check_problem(&p, dtype);
                if (shapes[i].strided) check_gaps(&p, dtype);
            }
        tear_down(&p);
    }
}

int main(void)
{
    RUN(all_shapes);
    return check_done();
}
