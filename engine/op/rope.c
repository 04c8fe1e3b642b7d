/* rope.c - rotary position embedding, and the table of angles it reads. */
#include "../internal.h"

int ul_rope_table(ul_tensor **cosine, ul_tensor **sine, ul_tensor *positions, ul_tensor *inv_freq,
                  double scale, ul_dtype dtype)
{
    UL_TRY(ul__check_dtype("rope_table", "positions", positions, UL_I64));
    UL_TRY(ul__check_dtype("rope_table", "inv_freq", inv_freq, UL_F64));
    UL_TRY(ul__check_device("rope_table", "positions", positions, "inv_freq", inv_freq));
    UL_REQUIRE(dtype == UL_F32 || dtype == UL_F64, UL_EDTYPE,
               "rope_table: tables are f32 or f64, not %s", ul_dtype_name(dtype));
    UL_REQUIRE(inv_freq->ndim == 1, UL_ESHAPE, "rope_table: inv_freq %s must have one dimension",
               ul__shape(inv_freq));
    UL_REQUIRE(positions->ndim < UL_MAX_DIMS, UL_ESHAPE,
               "rope_table: positions %s have too many dimensions", ul__shape(positions));
    int64_t shape[UL_MAX_DIMS], n = ul_tensor_size(positions), half = inv_freq->shape[0];
    for (int d = 0; d < positions->ndim; d++) shape[d] = positions->shape[d];
    shape[positions->ndim] = half;

    /* Integers and constants: nothing here is ever recorded. */
    ul_call call = {.input = {positions}};
    ul_tensor *c = ul__output(&call, dtype, positions->ndim + 1, shape);
    ul_tensor *s = ul__output(&call, dtype, positions->ndim + 1, shape);
    positions = ul__contiguous(&call, positions);
    inv_freq = ul__contiguous(&call, inv_freq);
    UL_RUN(&call, c, rope_table, ul__data(c), ul__data(s), ul__data(positions), ul__data(inv_freq),
           n, half, scale);
    return ul__finish_2(&call, cosine, sine);
}

/* Row b of the batch reads the table from row b * step on. */
static int64_t table_step(const ul_tensor *table) { return table->ndim == 3 ? table->shape[1] : 0; }

/* y = R x for a rotation R, so dx = R^T dy: the same turn backwards. */
static int rope_backward(ul_call *call, ul_tensor *const *dy)
{
    ul_tensor *cosine = call->saved[0], *sine = call->saved[1];
    const int64_t *shape = dy[0]->shape;
    ul_grad dx;
    UL_TRY(ul__grad_of(&dx, call, 0));
    return ul__kernels(dy[0])->rope(ul__stream(dy[0]), dx, ul__data(dy[0]), ul__data(cosine),
                                    ul__data(sine), shape[0], shape[1], shape[2], shape[3],
                                    table_step(cosine), -1);
}

static const ul_op rope = {"rope", rope_backward};

static int check_table(const char *name, const ul_tensor *table, const ul_tensor *x)
{
    UL_TRY(ul__check_device("rope", "x", x, name, table));
    UL_TRY(ul__check_dtype("rope", name, table, ul_dtype_acc(x->dtype)));
    int n = table->ndim;
    UL_REQUIRE((n == 2 || (n == 3 && table->shape[0] == x->shape[0])) &&
                   table->shape[n - 2] == x->shape[1] && table->shape[n - 1] == x->shape[3] / 2,
               UL_ESHAPE, "rope: %s %s does not fit x %s; it must be [T, D/2] or [B, T, D/2]", name,
               ul__shape(table), ul__shape(x));
    UL_REQUIRE(!ul__needs_grad(table), UL_EGRAD, "rope: no gradient flows to %s; detach it", name);
    return UL_OK;
}

int ul_rope(ul_tensor **y, ul_tensor *x, ul_tensor *cosine, ul_tensor *sine)
{
    UL_TRY(ul__check_float("rope", "x", x));
    UL_REQUIRE(x->ndim == 4 && x->shape[3] % 2 == 0, UL_ESHAPE,
               "rope: x %s must be [B, T, H, D] with an even D", ul__shape(x));
    UL_TRY(check_table("cosine", cosine, x));
    UL_TRY(check_table("sine", sine, x));
    UL_REQUIRE(cosine->ndim == sine->ndim, UL_ESHAPE, "rope: cosine %s and sine %s differ in shape",
               ul__shape(cosine), ul__shape(sine));

    ul_call call = {.op = &rope, .input = {x}};
    ul_tensor *out = ul__output_like(&call, x);
    x = ul__contiguous(&call, x);
    cosine = ul__save(&call, ul__contiguous(&call, cosine));
    sine = ul__save(&call, ul__contiguous(&call, sine));
    UL_RUN(&call, out, rope, ((ul_grad){ul__data(out), 0}), ul__data(x), ul__data(cosine),
           ul__data(sine), x->shape[0], x->shape[1], x->shape[2], x->shape[3], table_step(cosine),
           1);
    return ul__finish(&call, y);
}
