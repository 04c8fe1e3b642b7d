/* attention.c - softmax attention over documents, windows and shared kv heads; never a Tq x Tk
 * matrix.
 */
#include <math.h>

#include "attention.h"

/* What a call keeps in i[]. */
enum { CAUSAL, WINDOW, GROUPED, LONGEST };

/* ---- checks ---- */

static int check_shapes(const ul_tensor *q, const ul_tensor *k, const ul_tensor *v)
{
    UL_TRY(ul__check_same("attention", "q", q, "k", k));
    UL_TRY(ul__check_same("attention", "q", q, "v", v));
    UL_TRY(ul__check_float("attention", "q", q));
    UL_REQUIRE(q->ndim == 4 && k->ndim == 4 && v->ndim == 4, UL_ESHAPE,
               "attention: q %s, k %s and v %s must be [B, T, H, D]", ul__shape(q), ul__shape(k),
               ul__shape(v));
    for (int d = 0; d < 4; d++)
        UL_REQUIRE(k->shape[d] == v->shape[d], UL_ESHAPE, "attention: k %s and v %s differ",
                   ul__shape(k), ul__shape(v));
    UL_REQUIRE(q->shape[0] == k->shape[0], UL_ESHAPE, "attention: batch of q %s and k %s differ",
               ul__shape(q), ul__shape(k));
    UL_REQUIRE(q->shape[3] == k->shape[3] && q->shape[3] > 0, UL_ESHAPE,
               "attention: head sizes of q %s and k %s do not fit", ul__shape(q), ul__shape(k));
    UL_REQUIRE(k->shape[2] > 0 || q->shape[2] == 0, UL_ESHAPE, "attention: k %s has no heads",
               ul__shape(k));
    return UL_OK;
}

static int check_options(const ul_attention_options *options)
{
    UL_REQUIRE(isfinite(options->scale), UL_EVALUE, "attention: scale = %g must be finite",
               options->scale);
    UL_REQUIRE(options->window >= 0, UL_EVALUE, "attention: window = %lld must not be negative",
               (long long)options->window);
    UL_REQUIRE(options->window == 0 || options->causal, UL_EVALUE,
               "attention: window = %lld needs causal = true", (long long)options->window);
    return UL_OK;
}

/* Offsets rise from 0 to B T, and no document crosses from one row of the batch into the next.
 * *longest: at least so many tokens has the longest one.
 */
static int check_docs_values(int64_t *longest, const int64_t *docs, int64_t n, int64_t batch,
                             int64_t tokens)
{
    int64_t edges = 0;
    UL_REQUIRE(docs[0] == 0, UL_EVALUE, "attention: docs must begin with 0, not %lld",
               (long long)docs[0]);
    for (int64_t i = 1; i < n; i++) {
        UL_REQUIRE(docs[i] > docs[i - 1], UL_EVALUE,
                   "attention: docs must rise, but %lld follows %lld at position %lld",
                   (long long)docs[i], (long long)docs[i - 1], (long long)i + 1);
        edges += tokens > 0 && docs[i] % tokens == 0;
        if (docs[i] - docs[i - 1] > *longest) *longest = docs[i] - docs[i - 1];
    }
    UL_REQUIRE(docs[n - 1] == batch * tokens, UL_EVALUE,
               "attention: docs must end with B T = %lld, not %lld", (long long)(batch * tokens),
               (long long)docs[n - 1]);
    UL_REQUIRE(edges == batch, UL_EVALUE,
               "attention: docs must include the edges of all %lld rows of %lld tokens",
               (long long)batch, (long long)tokens);
    return UL_OK;
}

/* Offsets on cuda that have been found right, in the same storage: where they change, it forgets
 * them. *longest: of them.
 */
static int were_checked(int64_t *longest, const ul_tensor *docs, int64_t batch, int64_t tokens)
{
    const ul_storage *s = docs->storage;
    *longest = s->docs.longest;
    return s->device == UL_CUDA && s->docs.n == docs->shape[0] && s->docs.offset == docs->offset &&
           s->docs.batch == batch && s->docs.tokens == tokens;
}

static void keep_checked(int64_t longest, const ul_tensor *docs, int64_t batch, int64_t tokens)
{
    ul_storage *s = docs->storage;
    s->docs.offset = docs->offset;
    s->docs.n = docs->shape[0];
    s->docs.batch = batch;
    s->docs.tokens = tokens;
    s->docs.longest = longest;
}

/* copy: of docs, contiguous */
static int check_docs(int64_t *longest, const ul_tensor *docs, const ul_tensor *copy,
                      const ul_tensor *q, const ul_tensor *k, int64_t tokens)
{
    UL_TRY(ul__check_dtype("attention", "docs", docs, UL_I64));
    UL_TRY(ul__check_device("attention", "q", q, "docs", docs));
    UL_REQUIRE(docs->ndim == 1 && docs->shape[0] > 0, UL_ESHAPE,
               "attention: docs %s must be offsets [n + 1]", ul__shape(docs));
    UL_REQUIRE(q->shape[1] == k->shape[1], UL_ESHAPE,
               "attention: docs need as many queries as keys, not q %s, k %s", ul__shape(q),
               ul__shape(k));
    int64_t batch = tokens ? q->shape[0] : 0;
    int is_whole = ul_tensor_is_contiguous(docs);
    if (docs->storage->device == UL_META) return UL_OK;
    if (is_whole && were_checked(longest, docs, batch, tokens)) return UL_OK;
    *longest = 0;
    ul_tensor *values;
    UL_TRY(ul__on_host(&values, is_whole ? docs : copy));
    int rc = check_docs_values(longest, ul__data(values), values->shape[0], batch, tokens);
    ul_tensor_free(values);
    if (rc == UL_OK && is_whole) keep_checked(*longest, docs, batch, tokens);
    return rc;
}

/* *grouped: whether it is the map that default_kv_head() makes. */
static int check_kv_head(int64_t *grouped, const ul_tensor *kv_head, const ul_tensor *q,
                         const ul_tensor *k)
{
    UL_TRY(ul__check_dtype("attention", "kv_head", kv_head, UL_I32));
    UL_TRY(ul__check_device("attention", "q", q, "kv_head", kv_head));
    UL_REQUIRE(kv_head->ndim == 1 && kv_head->shape[0] == q->shape[2], UL_ESHAPE,
               "attention: kv_head %s must name a kv head for each head of q %s",
               ul__shape(kv_head), ul__shape(q));
    if (kv_head->storage->device == UL_META) return UL_OK;
    ul_tensor *values;
    UL_TRY(ul__on_host(&values, kv_head));
    const int32_t *map = ul__data(values);
    int64_t heads = q->shape[2], kv_heads = k->shape[2];
    int rc = UL_OK;
    *grouped = kv_heads > 0 && heads % kv_heads == 0;
    for (int64_t head = 0; head < heads && rc == UL_OK; head++) {
        if (map[head] < 0 || map[head] >= k->shape[2])
            rc = ul__fail(UL_EVALUE,
                          "attention: kv_head sends head %lld to kv head %d, but k %s has %lld",
                          (long long)head, (int)map[head], ul__shape(k), (long long)k->shape[2]);
        *grouped &= map[head] == head * kv_heads / heads;
    }
    ul_tensor_free(values);
    return rc;
}

/* ---- preparing a call ---- */

/* The map h -> h Hkv / H: 0 0 0 1 1 1 ... */
static int default_kv_head(ul_tensor **map, const ul_tensor *q, const ul_tensor *k)
{
    int64_t heads = q->shape[2], kv_heads = k->shape[2];
    UL_REQUIRE(kv_heads == 0 || heads % kv_heads == 0, UL_ESHAPE,
               "attention: %lld heads of q do not share %lld kv heads equally; give kv_head",
               (long long)heads, (long long)kv_heads);
    int64_t shape[2] = {kv_heads, kv_heads ? heads / kv_heads : 0}, stride[2] = {1, 0};
    ul_tensor *each, *repeated, *grid;
    UL_TRY(ul_arange(&each, 0, 1, kv_heads, UL_I32, q->storage->device));
    int rc = ul__view_of(&repeated, each, 2, shape, stride, 0);
    ul_tensor_free(each);
    UL_TRY(rc);
    rc = ul__compact(&grid, repeated);
    ul_tensor_free(repeated);
    UL_TRY(rc);
    rc = ul__view_of(map, grid, 1, &heads, &(int64_t){1}, 0);
    ul_tensor_free(grid);
    return rc;
}

/* The tensor itself where its last dim is contiguous (views of heads, slices), else a copy. */
static ul_tensor *with_whole_heads(ul_call *call, ul_tensor *x)
{
    return x->stride[3] == 1 || x->shape[3] == 1 ? x : ul__contiguous(call, x);
}

static void strides_of(int64_t *stride, const ul_tensor *x)
{
    for (int d = 0; d < 3; d++) stride[d] = x->stride[d];
}

ul_attention_args ul__attention_args(const ul_call *call)
{
    const ul_tensor *q = call->saved[Q], *k = call->saved[K], *docs = call->saved[DOCS];
    ul_attention_args a = {.batch = q->shape[0],
                           .q_tokens = q->shape[1],
                           .k_tokens = k->shape[1],
                           .n_heads = q->shape[2],
                           .n_kv_heads = k->shape[2],
                           .head_dim = q->shape[3],
                           .kv_head = ul__data(call->saved[KV_HEAD]),
                           .docs = docs ? ul__data(docs) : NULL,
                           .n_docs = docs ? docs->shape[0] - 1 : 0,
                           .q_start = k->shape[1] - q->shape[1],
                           .window = call->i[WINDOW],
                           .scale = call->f[0],
                           .causal = (int)call->i[CAUSAL],
                           .grouped = (int)call->i[GROUPED],
                           .longest_doc = call->i[LONGEST]};
    strides_of(a.q_stride, q);
    strides_of(a.k_stride, k);
    strides_of(a.v_stride, call->saved[V]);
    strides_of(a.o_stride, call->saved[O]);
    ul__choose_attention(&a);
    return a;
}

int ul__attention_work(ul_tensor **work, const ul_tensor *q, const ul_attention_args *a,
                       int backward)
{
    int64_t bytes = 0;
    UL_TRY(ul__kernels(q)->attention_work(ul__stream(q), backward ? NULL : &bytes,
                                          backward ? &bytes : NULL, a));
    return ul_tensor_new(work, UL_U8, q->storage->device, 1, &bytes);
}

/* Copies and checks docs and kv_head: what is saved cannot be changed by their owner. */
static void save_maps(ul_call *call, const ul_attention_options *options, int64_t tokens)
{
    const ul_tensor *q = call->input[0], *k = call->input[1];
    ul_tensor *docs = NULL, *map = NULL;
    if (call->rc == UL_OK && options->docs) call->rc = ul__compact(&docs, options->docs);
    if (call->rc == UL_OK && docs)
        call->rc = check_docs(&call->i[LONGEST], options->docs, docs, q, k, tokens);
    ul__save(call, docs);
    if (call->rc == UL_OK) {
        call->i[GROUPED] = !options->kv_head;
        call->rc =
            options->kv_head ? ul__compact(&map, options->kv_head) : default_kv_head(&map, q, k);
    }
    if (call->rc == UL_OK && options->kv_head)
        call->rc = check_kv_head(&call->i[GROUPED], map, q, k);
    ul__save(call, map);
    ul_tensor_free(docs);
    ul_tensor_free(map);
}

/* lse is a statistic: constant for the tape. */
enum { LSE_IS_CONSTANT = 1 << 1 };

void ul__attention_prepare(ul_call *call, const ul_attention_options *options, int64_t tokens)
{
    ul_tensor *q = call->input[0], *k = call->input[1], *v = call->input[2];
    call->rc = check_shapes(q, k, v);
    if (call->rc == UL_OK) call->rc = check_options(options);
    if (call->rc < 0) return;
    call->constant_outputs = LSE_IS_CONSTANT;
    call->i[CAUSAL] = options->causal != 0;
    call->i[WINDOW] = options->window;
    call->f[0] = options->scale != 0 ? options->scale : 1 / sqrt((double)q->shape[3]);
    int64_t lse_shape[3] = {q->shape[0], q->shape[2], q->shape[1]};
    ul__save(call, with_whole_heads(call, q));
    ul__save(call, with_whole_heads(call, k));
    ul__save(call, with_whole_heads(call, v));
    ul__save(call, ul__output_like(call, q));
    ul__save(call, ul__output(call, ul_dtype_acc(q->dtype), 3, lse_shape));
    save_maps(call, options, tokens < 0 ? q->shape[1] : tokens);
}

/* ---- the op ---- */

/* P = exp(scale q k^T - lse) on what a query sees, o = P v. With delta = sum over D of do o:
 *     dv = P^T do        dS = P (do v^T - delta)        dq = scale dS k        dk = scale dS^T q
 * P is computed again, tile by tile, from q, k and lse. Query heads that share a kv head add up.
 */
static int attention_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_tensor **saved = call->saved, *q = saved[Q], *work;
    ul_attention_args a = ul__attention_args(call);
    ul_grad dq, dk, dv;
    UL_TRY(ul__grad_of(&dq, call, 0));
    UL_TRY(ul__grad_of(&dk, call, 1));
    UL_TRY(ul__grad_of(&dv, call, 2));
    UL_TRY(ul__attention_work(&work, q, &a, 1));
    ul__count_flops(ul_flops_of_attention_backward(&a));
    int rc = ul__kernels(q)->attention_backward(
        ul__stream(q), dq, dk, dv, ul__data(dy[0]), ul__data(saved[O]), ul__data(saved[LSE]),
        ul__data(q), ul__data(saved[K]), ul__data(saved[V]), &a, ul__data(work));
    ul_tensor_free(work);
    return rc;
}

static const ul_op attention = {"attention", attention_backward};

int ul_attention(ul_tensor **o, ul_tensor **lse, ul_tensor *q, ul_tensor *k, ul_tensor *v,
                 const ul_attention_options *options)
{
    ul_call call = {.op = &attention, .input = {q, k, v}};
    ul__attention_prepare(&call, options, -1);
    if (call.rc == UL_OK) {
        ul_attention_args a = ul__attention_args(&call);
        ul_tensor **saved = call.saved, *work = NULL;
        call.rc = ul__attention_work(&work, q, &a, 0);
        if (call.rc == UL_OK) ul__count_flops(ul_flops_of_attention(&a));
        UL_RUN(&call, q, attention, ul__data(saved[O]), ul__data(saved[LSE]), ul__data(saved[Q]),
               ul__data(saved[K]), ul__data(saved[V]), &a, ul__data(work));
        ul_tensor_free(work);
    }
    return ul__finish_2(&call, o, lse);
}
