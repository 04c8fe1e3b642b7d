/* random.c - random numbers that depend on a seed and a count, never on how work is cut up.
 *
 * Each call takes the next numbers of the one sequence: `next` moves on by the number of elements,
 * rounded up to the 4 numbers of a Philox block.
 */
#include <math.h>

#include "internal.h"

/* Different uses of the same count must not see the same numbers. */
enum { UNIFORM = 1, NORMAL, RANDINT, DROPOUT };

static uint64_t generator_seed, generator_next;

void ul_manual_seed(uint64_t seed) { ul_random_set_state(seed, 0); }

void ul_random_state(uint64_t *seed, uint64_t *next)
{
    *seed = generator_seed;
    *next = generator_next;
}

void ul_random_set_state(uint64_t seed, uint64_t next)
{
    generator_seed = seed;
    generator_next = next;
}

static ul_random_key next_key(uint64_t purpose, int64_t n)
{
    ul_random_key key = {generator_seed, purpose, generator_next};
    generator_next += ((uint64_t)n + 3) / 4 * 4;
    return key;
}

/* Contiguous memory for t's values: t itself, or a new tensor to be copied back with spread(). */
static int gather_up(ul_tensor **y, ul_tensor *t)
{
    if (!ul_tensor_is_contiguous(t))
        return ul_tensor_new(y, t->dtype, t->storage->device, t->ndim, t->shape);
    *y = ul_tensor_retain(t);
    return UL_OK;
}

static int spread(ul_tensor *t, ul_tensor *y, int rc)
{
    if (rc == UL_OK && y != t) {
        const int64_t *strides[] = {t->stride, y->stride};
        ul_loop l;
        ul__loop(&l, t->ndim, t->shape, 2, strides, 0);
        rc = ul__kernels(t)->copy(ul__stream(t), ul__data(t), ul__data(y), &l);
    }
    ul_tensor_free(y);
    return rc;
}

int ul_uniform_(ul_tensor *t, double low, double high)
{
    UL_TRY(ul__check_float("uniform_", "x", t));
    UL_REQUIRE(isfinite(low) && isfinite(high) && low <= high, UL_EVALUE,
               "uniform_: low = %g must not be above high = %g", low, high);
    ul_tensor *y;
    UL_TRY(ul__change("uniform_", t));
    UL_TRY(gather_up(&y, t));
    int64_t n = ul_tensor_size(t);
    ul_random_key key = next_key(UNIFORM, n);
    return spread(t, y, ul__kernels(t)->uniform(ul__stream(t), ul__data(y), low, high, n, &key));
}

int ul_normal_(ul_tensor *t, double mean, double std)
{
    UL_TRY(ul__check_float("normal_", "x", t));
    UL_REQUIRE(isfinite(mean) && isfinite(std) && std >= 0, UL_EVALUE,
               "normal_: mean = %g and std = %g must be finite, and std not negative", mean, std);
    ul_tensor *y;
    UL_TRY(ul__change("normal_", t));
    UL_TRY(gather_up(&y, t));
    int64_t n = ul_tensor_size(t);
    ul_random_key key = next_key(NORMAL, n);
    return spread(t, y, ul__kernels(t)->normal(ul__stream(t), ul__data(y), mean, std, n, &key));
}

int ul_randint_(ul_tensor *t, int64_t low, int64_t high)
{
    UL_REQUIRE(low < high, UL_EVALUE, "randint_: low = %lld must be below high = %lld",
               (long long)low, (long long)high);
    int fits = 1;
    if (t->dtype == UL_U8) fits = low >= 0 && high <= UINT8_MAX + 1;
    if (t->dtype == UL_I32) fits = low >= INT32_MIN && high <= (int64_t)INT32_MAX + 1;
    UL_REQUIRE(fits, UL_EVALUE, "randint_: [%lld, %lld) does not fit %s", (long long)low,
               (long long)high, ul_dtype_name(t->dtype));
    ul_tensor *y;
    UL_TRY(ul__change("randint_", t));
    UL_TRY(gather_up(&y, t));
    int64_t n = ul_tensor_size(t);
    ul_random_key key = next_key(RANDINT, n);
    return spread(t, y, ul__kernels(t)->randint(ul__stream(t), ul__data(y), low, high, n, &key));
}

/* y = m x / (1 - p) with a mask m of zeros and ones, so dx = m dy / (1 - p): the forward again,
 * with the same numbers.
 */
static int dropout_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_random_key key = {(uint64_t)call->i[0], DROPOUT, (uint64_t)call->i[1]};
    ul_grad dx;
    UL_TRY(ul__grad_of(&dx, call, 0));
    return ul__kernels(dy[0])->dropout(ul__stream(dy[0]), dx, ul__data(dy[0]), call->f[0],
                                       ul_tensor_size(dy[0]), &key);
}

static const ul_op dropout = {"dropout", dropout_backward};

int ul_dropout(ul_tensor **y, ul_tensor *x, double p)
{
    UL_TRY(ul__check_float("dropout", "x", x));
    UL_REQUIRE(p >= 0 && p < 1, UL_EVALUE, "dropout: p = %g is outside [0, 1)", p);
    if (p == 0) {
        *y = ul_tensor_retain(x);
        return UL_OK;
    }
    ul_call call = {.op = &dropout, .input = {x}};
    ul_tensor *out = ul__output_like(&call, x);
    x = ul__contiguous(&call, x);
    if (call.rc == UL_OK) {
        int64_t n = ul_tensor_size(x);
        ul_random_key key = next_key(DROPOUT, n);
        call.i[0] = (int64_t)key.seed;
        call.i[1] = (int64_t)key.first;
        call.f[0] = p;
        ul_grad to = {ul__data(out), 0};
        UL_RUN(&call, out, dropout, to, ul__data(x), p, n, &key);
    }
    return ul__finish(&call, y);
}
