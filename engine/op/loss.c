/* loss.c - cross-entropy, from logits or fused with the projection that makes them. */
#include "../internal.h"

/* ---- targets ---- */

static int check_targets(const char *op, const char *name, const ul_tensor *x,
                         const ul_tensor *targets, int64_t ignore_index)
{
    UL_TRY(ul__check_dtype(op, "targets", targets, UL_I64));
    UL_TRY(ul__check_device(op, name, x, "targets", targets));
    int fits = x->ndim > 0 && targets->ndim == x->ndim - 1;
    for (int d = 0; fits && d < targets->ndim; d++) fits = x->shape[d] == targets->shape[d];
    UL_REQUIRE(fits, UL_ESHAPE, "%s: targets %s do not fit %s %s", op, ul__shape(targets), name,
               ul__shape(x));
    int64_t exact = (int64_t)1 << 53; /* numbers reach kernels as doubles */
    UL_REQUIRE(ignore_index >= -exact && ignore_index <= exact, UL_EVALUE,
               "%s: ignore_index %lld is out of range", op, (long long)ignore_index);
    return UL_OK;
}

static int64_t count_known(const int64_t *target, int64_t n, int64_t ignore_index)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += target[i] != ignore_index;
    return count;
}

/* How many targets, which are contiguous, count; on meta, all of them. */
static int count_targets(int64_t *count, ul_tensor *targets, int64_t ignore_index)
{
    ul_tensor *ignored = NULL, *mask = NULL, *sum = NULL;
    *count = ul_tensor_size(targets);
    if (targets->storage->device == UL_META) return UL_OK;
    const int64_t *known = targets->storage->device == UL_CUDA ? ul__known(targets) : NULL;
    if (known) {
        *count = count_known(known, *count, ignore_index);
        return UL_OK;
    }
    int rc = ul_scalar_like(&ignored, targets, (double)ignore_index);
    if (rc == UL_OK) rc = ul_ne(&mask, targets, ignored);
    if (rc == UL_OK) rc = ul_sum(&sum, mask, 0, NULL, 0);
    if (rc == UL_OK) rc = ul_tensor_get_int(count, sum, NULL);
    ul_tensor_free(ignored);
    ul_tensor_free(mask);
    ul_tensor_free(sum);
    return rc;
}

/* The factor of a sum of losses: 1, or 1 / count; 0 where nothing counts, so never NaN. */
static double loss_scale(int mean, int64_t count)
{
    if (count == 0) return 0;
    return mean ? 1 / (double)count : 1;
}

/* y (one element) = scale * sum of each [rows], both accumulators, in a fixed order. */
static int sum_rows(ul_tensor *y, const ul_tensor *each, double scale)
{
    const ul_loop l = {.ndim = 1, .shape = {each->shape[0]}, .stride = {{0}, {1}}};
    return ul__kernels(y)->sum(ul__stream(y), (ul_grad){ul__data(y), 0}, ul__data(each), scale, &l,
                               1);
}

/* ---- cross-entropy of logits ---- */

/* loss = scale * sum over rows of (lse(x) - x[target]), so
 *     dx = scale dy (softmax(x) - one hot)        and 0 in rows that do not count
 */
static int cross_entropy_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_tensor *x = call->saved[0], *targets = call->saved[1], *lse = call->saved[2];
    int64_t rows = lse->shape[0];
    ul_tensor *scale = NULL, *each = NULL;
    ul_grad dx;
    UL_TRY(ul__grad_of(&dx, call, 0));
    int rc = ul_scalar_like(&scale, dy[0], call->f[0]);
    if (rc == UL_OK) rc = ul_tensor_new(&each, dy[0]->dtype, x->storage->device, 1, &rows);
    const ul_loop l = {.ndim = 1, .shape = {rows}, .stride = {{1}, {0}, {0}}};
    if (rc == UL_OK)
        rc = ul__kernels(each)->mul(ul__stream(each), ul__data(each), ul__data(dy[0]),
                                    ul__data(scale), &l);
    if (rc == UL_OK)
        rc = ul__kernels(x)->cross_entropy_backward(ul__stream(x), dx, ul__data(each), ul__data(x),
                                                    ul__data(targets), ul__data(lse), rows,
                                                    x->shape[x->ndim - 1], call->i[0]);
    ul_tensor_free(scale);
    ul_tensor_free(each);
    return rc;
}

static const ul_op cross_entropy = {"cross_entropy", cross_entropy_backward};

int ul_cross_entropy(ul_tensor **loss, ul_tensor *logits, ul_tensor *targets, int64_t ignore_index,
                     int mean)
{
    UL_TRY(ul__check_float("cross_entropy", "logits", logits));
    UL_TRY(check_targets("cross_entropy", "logits", logits, targets, ignore_index));
    int64_t rows = ul_tensor_size(targets), cols = logits->shape[logits->ndim - 1], count = rows;
    ul_dtype acc = ul_dtype_acc(logits->dtype);

    ul_call call = {.op = &cross_entropy, .input = {logits}};
    ul_tensor *out = ul__output(&call, acc, 0, NULL), *each = NULL;
    logits = ul__save(&call, ul__contiguous(&call, logits));
    targets = ul__save(&call, ul__contiguous(&call, targets));
    ul_tensor *lse = ul__save_new(&call, acc, 1, &rows);
    if (call.rc == UL_OK)
        call.rc = ul__check_ids("cross_entropy", "target", targets, cols, &ignore_index);
    if (call.rc == UL_OK && mean) call.rc = count_targets(&count, targets, ignore_index);
    call.i[0] = ignore_index;
    call.f[0] = loss_scale(mean, count);
    if (call.rc == UL_OK) call.rc = ul_tensor_new(&each, acc, logits->storage->device, 1, &rows);
    UL_RUN(&call, logits, cross_entropy, ul__data(each), ul__data(lse), ul__data(logits),
           ul__data(targets), rows, cols, ignore_index);
    if (call.rc == UL_OK) call.rc = sum_rows(out, each, call.f[0]);
    ul_tensor_free(each);
    return ul__finish(&call, loss);
}

/* ---- fused with the projection ---- */

/* One call of the fused head. Logits and their gradient exist for one tile of rows at a time. */
typedef struct head {
    ul_tensor *x, *w, *targets;     /* contiguous */
    ul_tensor *each;                /* losses of the rows */
    ul_tensor *dx, *dw;             /* gradients for dy = 1, or NULL; dw is accumulators */
    ul_tensor *logits, *d_logits;   /* [tile, V]; the same where dtypes allow that */
    int64_t rows, cols, vocabulary; /* cols: C */
    int64_t tile, ignore_index;
    double scale;
} head;

/* The address of element i; NULL on meta. */
static void *at(const ul_tensor *t, int64_t i)
{
    char *data = ul__data(t);
    return data ? data + i * ul_dtype_bytes(t->dtype) : NULL;
}

/* With p = scale (softmax(x w^T) - one hot) for these rows:
 *     dx = p w        dw += p^T x
 */
static int tile_gradients(const head *h, int64_t start, int64_t n)
{
    const ul_kernels *kernels = ul__kernels(h->x);
    ul_stream *stream = ul__stream(h->x);
    if (h->dx) {
        const ul_gemm g = {.m = n,
                           .n = h->cols,
                           .k = h->vocabulary,
                           .batch = 1,
                           .lda = h->vocabulary,
                           .ldb = h->cols,
                           .ldc = h->cols,
                           .alpha = h->scale};
        UL_TRY(ul__gemm(kernels, stream, at(h->dx, start * h->cols), ul__data(h->d_logits),
                        ul__data(h->w), &g));
    }
    if (!h->dw) return UL_OK;
    const ul_gemm g = {.m = h->vocabulary,
                       .n = h->cols,
                       .k = n,
                       .batch = 1,
                       .lda = h->vocabulary,
                       .ldb = h->cols,
                       .ldc = h->cols,
                       .alpha = h->scale,
                       .beta = start > 0,
                       .a_trans = 1,
                       .c_acc = 1};
    return ul__gemm(kernels, stream, ul__data(h->dw), ul__data(h->d_logits),
                    at(h->x, start * h->cols), &g);
}

static int run_tiles(const head *h)
{
    const ul_kernels *kernels = ul__kernels(h->x);
    ul_stream *stream = ul__stream(h->x);
    for (int64_t start = 0; start < h->rows; start += h->tile) {
        int64_t n = h->rows - start < h->tile ? h->rows - start : h->tile;
        const ul_gemm g = {.m = n,
                           .n = h->vocabulary,
                           .k = h->cols,
                           .batch = 1,
                           .lda = h->cols,
                           .ldb = h->cols,
                           .ldc = h->vocabulary,
                           .alpha = 1,
                           .b_trans = 1,
                           .c_acc = 1};
        UL_TRY(ul__gemm(kernels, stream, ul__data(h->logits), at(h->x, start * h->cols),
                        ul__data(h->w), &g));
        UL_TRY(kernels->cross_entropy_tile(stream, at(h->each, start), ul__given(h->d_logits),
                                           ul__data(h->logits), at(h->targets, start), n,
                                           h->vocabulary, h->ignore_index));
        UL_TRY(tile_gradients(h, start, n));
    }
    return UL_OK;
}

/* Nothing counts: no loss, no gradients, whatever x and w hold. */
static int fill_zeros(const head *h)
{
    UL_TRY(ul_fill_(h->each, 0));
    if (h->dx) UL_TRY(ul_fill_(h->dx, 0));
    if (h->dw) UL_TRY(ul_fill_(h->dw, 0));
    return UL_OK;
}

static int run_head(head *h, int64_t count)
{
    if (count == 0) return fill_zeros(h);
    int64_t shape[2] = {h->tile, h->vocabulary};
    ul_dtype acc = ul_dtype_acc(h->x->dtype);
    ul_device device = h->x->storage->device;
    int rc = ul_tensor_new(&h->logits, acc, device, 2, shape);
    if (rc == UL_OK && (h->dx || h->dw)) {
        if (h->x->dtype == acc)
            h->d_logits = ul_tensor_retain(h->logits);
        else
            rc = ul_tensor_new(&h->d_logits, h->x->dtype, device, 2, shape);
    }
    if (rc == UL_OK) rc = run_tiles(h);
    ul_tensor_free(h->logits);
    ul_tensor_free(h->d_logits);
    return rc;
}

/* g *= factor, one accumulator. A narrower g goes through accumulators piece by piece, so that the
 * factor is not rounded.
 */
static int scale_by(ul_tensor *g, const ul_tensor *factor)
{
    const ul_kernels *kernels = ul__kernels(factor);
    ul_stream *stream = ul__stream(g);
    int64_t size = ul_tensor_size(g), piece = size < 1 << 20 ? size : 1 << 20;
    ul_loop l = {.ndim = 1, .shape = {size}, .stride = {{1}, {1}, {0}}};
    if (g->dtype == factor->dtype)
        return kernels->mul(stream, ul__data(g), ul__data(g), ul__data(factor), &l);
    assert(g->dtype == UL_BF16 && factor->dtype == UL_F32);
    ul_tensor *wide;
    UL_TRY(ul_tensor_new(&wide, factor->dtype, g->storage->device, 1, &piece));
    int rc = UL_OK;
    for (int64_t start = 0; rc == UL_OK && start < size; start += piece) {
        l.shape[0] = size - start < piece ? size - start : piece;
        rc = kernels->from_bf16(stream, ul__data(wide), at(g, start), &l);
        if (rc == UL_OK)
            rc = kernels->mul(stream, ul__data(wide), ul__data(wide), ul__data(factor), &l);
        if (rc == UL_OK) rc = ul__kernels(g)->from_f32(stream, at(g, start), ul__data(wide), &l);
    }
    ul_tensor_free(wide);
    return rc;
}

/* The forward has left the gradients for dy = 1; they are scaled where they lie, and handed over,
 * unless the rule may have to run again.
 */
static int linear_cross_entropy_backward(ul_call *call, ul_tensor *const *dy)
{
    for (int i = 0; i < 2; i++) {
        ul_tensor *g = NULL;
        if (!ul__wants_grad(call, i)) continue;
        if (call->again) {
            UL_TRY(ul__compact(&g, call->saved[i]));
        } else {
            g = call->saved[i];
            call->saved[i] = NULL;
        }
        int rc = scale_by(g, dy[0]);
        if (rc < 0) {
            ul_tensor_free(g);
            return rc;
        }
        ul__grad_take(call, i, g);
    }
    return UL_OK;
}

static const ul_op linear_cross_entropy = {"linear_cross_entropy", linear_cross_entropy_backward};

/* About 64 MiB of f32 logits, in whole blocks of rows where there are many. */
static int64_t default_tile(int64_t vocabulary)
{
    int64_t rows = ((int64_t)64 << 20) / (4 * (vocabulary > 0 ? vocabulary : 1));
    if (rows >= 64) return rows / 64 * 64;
    return rows > 1 ? rows : 1;
}

static int check_head(const ul_tensor *x, const ul_tensor *w, const ul_tensor *targets,
                      int64_t ignore_index, int64_t tile)
{
    UL_TRY(ul__check_same("linear_cross_entropy", "x", x, "weight", w));
    UL_TRY(ul__check_float("linear_cross_entropy", "x", x));
    UL_REQUIRE(w->ndim == 2 && x->ndim > 0 && x->shape[x->ndim - 1] == w->shape[1], UL_ESHAPE,
               "linear_cross_entropy: weight %s does not fit x %s", ul__shape(w), ul__shape(x));
    UL_TRY(check_targets("linear_cross_entropy", "x", x, targets, ignore_index));
    UL_REQUIRE(tile >= 0, UL_EVALUE, "linear_cross_entropy: tile = %lld must not be negative",
               (long long)tile);
    return UL_OK;
}

int ul_linear_cross_entropy(ul_tensor **loss, int64_t *count, ul_tensor *x, ul_tensor *w,
                            ul_tensor *targets, int64_t ignore_index, int mean, int64_t tile)
{
    UL_TRY(check_head(x, w, targets, ignore_index, tile));
    int64_t counted = 0, rows = ul_tensor_size(targets);
    head h = {.rows = rows,
              .cols = w->shape[1],
              .vocabulary = w->shape[0],
              .tile = tile > 0 ? tile : default_tile(w->shape[0]),
              .ignore_index = ignore_index};
    if (h.tile > rows) h.tile = rows;
    int x_wants = ul__needs_grad(x), w_wants = ul__needs_grad(w);
    ul_dtype acc = ul_dtype_acc(x->dtype);

    ul_call call = {.op = &linear_cross_entropy, .input = {x, w}};
    ul_tensor *out = ul__output(&call, acc, 0, NULL);
    h.x = ul__contiguous(&call, x);
    h.w = ul__contiguous(&call, w);
    h.targets = ul__contiguous(&call, targets);
    if (call.rc == UL_OK)
        call.rc =
            ul__check_ids("linear_cross_entropy", "target", h.targets, h.vocabulary, &ignore_index);
    if (call.rc == UL_OK) call.rc = count_targets(&counted, h.targets, ignore_index);
    h.scale = loss_scale(mean, counted);
    if (x_wants)
        h.dx = ul__save_new(&call, x->dtype, x->ndim, x->shape);
    else
        ul__save(&call, NULL);
    if (w_wants) h.dw = ul__save_new(&call, acc, 2, w->shape);
    if (call.rc == UL_OK) call.rc = ul_tensor_new(&h.each, acc, x->storage->device, 1, &rows);
    if (call.rc == UL_OK) call.rc = run_head(&h, counted);
    if (call.rc == UL_OK) call.rc = sum_rows(out, h.each, h.scale);
    ul_tensor_free(h.each);
    UL_TRY(ul__finish(&call, loss));
    if (count) *count = counted;
    return UL_OK;
}
