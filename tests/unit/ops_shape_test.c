/* ops_shape_test.c - views, copies, indexing, changes in place. */
#include "ops.h"

static void test_view(void)
{
    ul_tensor *x = counting(UL_F32, 0, SHAPE(2, 3, 4)), *y, *t, *z;
    must(ul_view(&y, x, SHAPE(6, -1)));
    CHECK(has_shape(y, SHAPE(6, 4)) && ul_tensor_data(y) == ul_tensor_data(x));
    must(ul_transpose(&t, x, 1, 2)); /* [2, 4, 3] */
    must(ul_view(&z, t, SHAPE(2, 2, 1, 2, 3)));
    CHECK(ul_tensor_data(z) == ul_tensor_data(x));
    double value;
    must(ul_tensor_get(&value, z, (const int64_t[]){1, 1, 0, 0, 2}));
    CHECK(value == 12 + 8 + 2, "%g", value);
    CHECK(failed_with(ul_view(&y, t, SHAPE(24)), UL_ESHAPE,
                      "view: x [2, 4, 3] does not lie in memory in a way that [24] could show; "
                      "use reshape"));
    CHECK(failed_with(ul_view(&y, x, SHAPE(5, -1)), UL_ESHAPE,
                      "view: the 24 elements of x [2, 3, 4] do not fit [5, -1]"));
    CHECK(failed_with(ul_view(&y, x, SHAPE(-1, -1)), UL_ESHAPE,
                      "view: [-1, -1] is no shape: sizes are not negative, but one may be -1"));
    int64_t huge = (int64_t)1 << 40;
    CHECK(failed_with(ul_view(&y, x, SHAPE(huge, huge)), UL_ESHAPE,
                      "view: the 24 elements of x [2, 3, 4] do not fit [1099511627776, "
                      "1099511627776]"));
    ul_tensor_free(z);
    ul_tensor_free(t);
    ul_tensor_free(y);
    ul_tensor_free(x);
}

static void test_reshape(void)
{
    ul_tensor *x = counting(UL_F64, 0, SHAPE(2, 3)), *t, *y;
    must(ul_transpose(&t, x, 0, 1));
    must(ul_reshape(&y, t, SHAPE(6)));
    CHECK(is_tensor(y, VALUES(0, 3, 1, 4, 2, 5), SHAPE(6)));
    ul_tensor_free(y);
    must(ul_reshape(&y, x, SHAPE(1, 3, 1, -1)));
    CHECK(has_shape(y, SHAPE(1, 3, 1, 2)) && ul_tensor_data(y) == ul_tensor_data(x));
    ul_tensor_free(y);
    ul_tensor_free(t);
    ul_tensor_free(x);

    x = counting(UL_F32, 0, SHAPE(0, 3));
    must(ul_reshape(&y, x, SHAPE(3, 5, 0)));
    CHECK(has_shape(y, SHAPE(3, 5, 0)));
    ul_tensor_free(y);
    must(ul_reshape(&y, x, SHAPE(3, -1)));
    CHECK(has_shape(y, SHAPE(3, 0)));
    ul_tensor_free(y);
    must(ul_reshape(&y, x, SHAPE(0, -1)));
    CHECK(has_shape(y, SHAPE(0, 3)));
    ul_tensor_free(y);
    CHECK(ul_reshape(&y, x, SHAPE(0, 2, -1)) == UL_ESHAPE);
    CHECK(ul_reshape(&y, x, SHAPE(5, 0, -1)) == UL_ESHAPE);
    ul_tensor_free(x);
    x = counting(UL_F32, 0, SHAPE(2, 0, 32));
    must(ul_reshape(&y, x, SHAPE(2, 0, -1, 8)));
    CHECK(has_shape(y, SHAPE(2, 0, 4, 8)));
    must(ul_reshape(&t, y, SHAPE(2, 0, -1)));
    CHECK(has_shape(t, SHAPE(2, 0, 32)));
    ul_tensor_free(t);
    ul_tensor_free(y);
    ul_tensor_free(x);

    x = tensor_of(UL_F32, VALUES(7), 0, NULL);
    must(ul_reshape(&y, x, SHAPE(1, 1)));
    CHECK(is_tensor(y, VALUES(7), SHAPE(1, 1)));
    ul_tensor_free(x);
    must(ul_reshape(&x, y, 0, NULL));
    CHECK(has_shape(x, 0, NULL));
    ul_tensor_free(y);
    ul_tensor_free(x);
}

static void test_dims(void)
{
    ul_tensor *x = counting(UL_I32, 0, SHAPE(2, 3, 4)), *y, *z;
    must(ul_permute(&y, x, DIMS(2, 0, -2)));
    CHECK(has_shape(y, SHAPE(4, 2, 3)));
    double value;
    must(ul_tensor_get(&value, y, (const int64_t[]){3, 1, 2}));
    CHECK(value == 23);
    ul_tensor_free(y);
    CHECK(failed_with(ul_permute(&y, x, DIMS(0, 1, 1)), UL_ESHAPE,
                      "permute: dim 2 of x [2, 3, 4] is given twice"));
    CHECK(failed_with(ul_permute(&y, x, DIMS(0, 1)), UL_ESHAPE,
                      "permute: 2 dims given for x [2, 3, 4]"));
    CHECK(failed_with(ul_transpose(&y, x, 0, 3), UL_ESHAPE,
                      "transpose: x [2, 3, 4] has no such dim"));
    must(ul_unsqueeze(&y, x, -1));
    CHECK(has_shape(y, SHAPE(2, 3, 4, 1)));
    must(ul_squeeze(&z, y, 3));
    CHECK(has_shape(z, SHAPE(2, 3, 4)) && ul_tensor_is_contiguous(z));
    ul_tensor_free(z);
    CHECK(failed_with(ul_squeeze(&z, y, 0), UL_ESHAPE,
                      "squeeze: dim 1 of x [2, 3, 4, 1] is of size 2, not 1"));
    ul_tensor_free(y);
    must(ul_unsqueeze(&y, x, 0));
    CHECK(has_shape(y, SHAPE(1, 2, 3, 4)) && ul_tensor_is_contiguous(y));
    ul_tensor_free(y);
    CHECK(ul_unsqueeze(&y, x, 4) == UL_ESHAPE && ul_unsqueeze(&y, x, -5) == UL_ESHAPE);
    ul_tensor_free(x);
}

static void test_slice(void)
{
    ul_tensor *x = counting(UL_F32, 0, SHAPE(2, 5)), *y;
    must(ul_slice(&y, x, 1, 1, 2, 3));
    CHECK(is_tensor(y, VALUES(1, 4, 6, 9), SHAPE(2, 2)));
    ul_tensor_free(y);
    must(ul_slice(&y, x, -1, 5, 0, INT64_MAX));
    CHECK(has_shape(y, SHAPE(2, 0)));
    ul_tensor_free(y);
    must(ul_select(&y, x, 1, -1));
    CHECK(is_tensor(y, VALUES(4, 9), SHAPE(2)));
    ul_tensor_free(y);
    CHECK(failed_with(ul_slice(&y, x, 1, 1, 3, 2), UL_ESHAPE,
                      "slice: start 1, count 3, step 2 leave [0, 5)"));
    CHECK(failed_with(ul_slice(&y, x, 1, 0, 1, 0), UL_EVALUE,
                      "slice: the count may not be 1, nor the step 0"));
    CHECK(ul_slice(&y, x, 1, 0, INT64_MAX, INT64_MAX) == UL_ESHAPE);
    CHECK(ul_slice(&y, x, 1, -1, 1, 1) == UL_ESHAPE);
    CHECK(failed_with(ul_select(&y, x, 1, 5), UL_EVALUE,
                      "select: index 5 is outside [0, 5) of x [2, 5]"));
    ul_tensor_free(x);
}

static void test_expand(void)
{
    ul_tensor *x = counting(UL_F32, 0, SHAPE(2, 1)), *y, *z;
    must(ul_expand(&y, x, SHAPE(3, -1, 2)));
    CHECK(is_tensor(y, VALUES(0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1), SHAPE(3, 2, 2)));
    must(ul_contiguous(&z, y));
    CHECK(is_tensor(z, VALUES(0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1), SHAPE(3, 2, 2)));
    CHECK(ul_tensor_is_contiguous(z));
    ul_tensor_free(z);
    CHECK(failed_with(ul_copy_(y, x), UL_ESHAPE,
                      "copy_: several elements of the expanded [3, 2, 2] are one in memory; use "
                      "contiguous()"));
    ul_tensor_free(y);
    CHECK(failed_with(ul_expand(&y, x, SHAPE(3, 2)), UL_ESHAPE,
                      "expand: x [2, 1] does not expand to [3, 2]"));
    CHECK(ul_expand(&y, x, SHAPE(-1, 2, 2)) == UL_ESHAPE);
    CHECK(ul_expand(&y, x, SHAPE(2, (int64_t)1 << 60)) == UL_ESHAPE);
    must(ul_expand(&y, x, SHAPE(2, 0)));
    CHECK(has_shape(y, SHAPE(2, 0)));
    ul_tensor_free(y);
    ul_tensor_free(x);
}

static void test_copies(void)
{
    ul_tensor *x = tensor_of(UL_F64, VALUES(-1.5, 0, 2.75, 300), SHAPE(2, 2)), *t, *y, *z;
    must(ul_transpose(&t, x, 0, 1));
    must(ul_clone(&y, t));
    CHECK(is_tensor(y, VALUES(-1.5, 2.75, 0, 300), SHAPE(2, 2)) && ul_tensor_is_contiguous(y));
    ul_tensor_free(y);
    must(ul_contiguous(&y, x));
    CHECK(y == x);
    ul_tensor_free(y);
    must(ul_cast(&y, t, UL_I64));
    CHECK(is_tensor(y, VALUES(-1, 2, 0, 300), SHAPE(2, 2)) && ul_tensor_dtype(y) == UL_I64);
    must(ul_cast(&z, y, UL_BF16));
    CHECK(is_tensor(z, VALUES(-1, 2, 0, 300), SHAPE(2, 2)) && ul_tensor_dtype(z) == UL_BF16);
    ul_tensor_free(z);
    ul_tensor_free(y);
    must(ul_to_device(&y, t, UL_META));
    CHECK(has_shape(y, SHAPE(2, 2)) && ul_tensor_data(y) == NULL);
    CHECK(failed_with(ul_to_device(&z, y, UL_CPU), UL_EDEVICE,
                      "to: x [2, 2] is on meta and has no values to bring to cpu"));
    ul_tensor_free(y);
    ul_tensor_free(t);
    ul_tensor_free(x);
}

static void test_cat(void)
{
    ul_tensor *a = counting(UL_I64, 0, SHAPE(2, 2)), *b = counting(UL_I64, 10, SHAPE(2, 1)), *y;
    ul_tensor *empty = counting(UL_I64, 0, SHAPE(2, 0)), *f = counting(UL_F32, 0, SHAPE(2, 1));
    must(ul_cat(&y, (ul_tensor *[]){a, empty, b, a}, 4, -1));
    CHECK(is_tensor(y, VALUES(0, 1, 10, 0, 1, 2, 3, 11, 2, 3), SHAPE(2, 5)));
    ul_tensor_free(y);
    CHECK(failed_with(ul_cat(&y, (ul_tensor *[]){a, b}, 2, 0), UL_ESHAPE,
                      "cat: [2, 1] does not fit beside [2, 2]"));
    CHECK(ul_cat(&y, (ul_tensor *[]){a, f}, 2, 1) == UL_EDTYPE);
    CHECK(failed_with(ul_cat(&y, NULL, 0, 0), UL_ESHAPE, "cat: no tensors given"));
    ul_tensor_free(a);
    ul_tensor_free(b);
    ul_tensor_free(f);
    ul_tensor_free(empty);
}

static void test_index(void)
{
    ul_tensor *x = counting(UL_F32, 0, SHAPE(2, 3)), *y, *index, *t;
    index = tensor_of(UL_I64, VALUES(2, 0, 2, 2, 1, 1, 0, 0), SHAPE(2, 4));
    must(ul_gather(&y, x, 1, index));
    CHECK(is_tensor(y, VALUES(2, 0, 2, 2, 4, 4, 3, 3), SHAPE(2, 4)));
    ul_tensor_free(y);
    must(ul_transpose(&t, x, 0, 1));
    CHECK(failed_with(ul_gather(&y, t, 1, index), UL_ESHAPE,
                      "gather: index [2, 4] must have the shape of x [3, 2], but for the size of "
                      "the dim gathered from"));
    ul_tensor_free(index);
    index = tensor_of(UL_I64, VALUES(1, 0, 1), SHAPE(3));
    must(ul_index_select(&y, t, 1, index));
    CHECK(is_tensor(y, VALUES(3, 0, 3, 4, 1, 4, 5, 2, 5), SHAPE(3, 3)));
    ul_tensor_free(y);
    must(ul_tensor_set(index, (const int64_t[]){2}, 7));
    CHECK(ul_index_select(&y, t, 1, index) == UL_EVALUE);
    CHECK(strstr(ul_last_error(), "index_select: index 7 at position 3 is outside [0, 2)") != NULL,
          "%s", ul_last_error());
    must(ul_tensor_set(index, (const int64_t[]){2}, -1));
    CHECK(ul_index_select(&y, t, 1, index) == UL_EVALUE);
    CHECK(failed_with(ul_index_select(&y, x, 0, x), UL_EDTYPE,
                      "index_select: index must be i64, not f32"));
    ul_tensor_free(t);
    ul_tensor_free(x);
    x = counting(UL_F32, 0, SHAPE(0, 2));
    CHECK(ul_index_select(&y, x, 0, index) == UL_EVALUE);
    ul_tensor_free(x);
    ul_tensor_free(index);
}

static void test_in_place(void)
{
    ul_tensor *x = counting(UL_F32, 0, SHAPE(2, 3)), *row, *t, *y, *i;
    must(ul_select(&row, x, 0, 1));
    must(ul_copy_(x, row)); /* from its own memory */
    CHECK(is_tensor(x, VALUES(3, 4, 5, 3, 4, 5), SHAPE(2, 3)));
    must(ul_transpose(&t, x, 0, 1));
    y = counting(UL_I32, 0, SHAPE(3, 1));
    must(ul_copy_(t, y)); /* other dtype, broadcast, into a strided view */
    CHECK(is_tensor(x, VALUES(0, 1, 2, 0, 1, 2), SHAPE(2, 3)));
    must(ul_fill_(row, 2.5));
    CHECK(is_tensor(x, VALUES(0, 1, 2, 2.5, 2.5, 2.5), SHAPE(2, 3)));
    CHECK(failed_with(ul_copy_(row, x), UL_ESHAPE, "copy_: [2, 3] does not fit into [3]"));
    CHECK(failed_with(ul_fill_(y, 2.5), UL_EVALUE,
                      "fill_: 2.5 is not a number that i32 can hold; convert the tensor with "
                      ":to()"));
    CHECK(ul_fill_(y, 0x1p31) == UL_EVALUE && ul_fill_(y, NAN) == UL_EVALUE);
    ul_tensor_free(y);
    must(ul_arange(&i, 3, -2, 4, UL_I64, UL_CPU));
    CHECK(is_tensor(i, VALUES(3, 1, -1, -3), SHAPE(4)));
    ul_tensor_free(i);
    must(ul_arange(&i, 0, 0.5, 3, UL_BF16, UL_CPU));
    CHECK(is_tensor(i, VALUES(0, 0.5, 1), SHAPE(3)));
    ul_tensor_free(i);
    CHECK(ul_arange(&i, 0, 100, 4, UL_U8, UL_CPU) == UL_EVALUE);
    CHECK(ul_arange(&i, 0, 0.5, 3, UL_I32, UL_CPU) == UL_EVALUE);
    ul_tensor_free(t);
    ul_tensor_free(row);
    ul_tensor_free(x);
}

/* A change in place that the tape would have to know of is refused; one of a saved value is seen.
 */
static void test_in_place_and_tape(void)
{
    ul_tensor *x = counting(UL_F64, 1, SHAPE(3)), *plain = counting(UL_F64, 1, SHAPE(3)), *y, *z;
    must(ul_tensor_require_grad(x, 1));
    CHECK(ul_copy_(x, plain) == UL_EGRAD && ul_fill_(x, 0) == UL_EGRAD);
    CHECK(failed_with(ul_copy_(plain, x), UL_EGRAD,
                      "copy_: [3] requires grad, which a change in place cannot pass on; use a "
                      "pure op, or detach()"));
    CHECK(ul_add_(plain, x) == UL_EGRAD);
    must(ul_mul(&y, x, plain));
    must(ul_add_(plain, plain));
    must(ul_sum(&z, y, 0, NULL, 0));
    CHECK(ul_backward(z, NULL, 0) == UL_EGRAD);
    ul_tensor_free(z);
    ul_tensor_free(y);
    ul_set_grad_enabled(0);
    must(ul_copy_(plain, x));
    must(ul_fill_(x, 7));
    ul_set_grad_enabled(1);
    CHECK(is_tensor(x, VALUES(7, 7, 7), SHAPE(3)));
    ul_tensor_free(plain);
    ul_tensor_free(x);
}

static int f_view(ul_tensor **y, ul_tensor *const *x) { return ul_view(y, x[0], SHAPE(3, 4)); }

static int f_reshape(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *t;
    must(ul_transpose(&t, x[0], 0, 1));
    int rc = ul_reshape(y, t, SHAPE(2, 6));
    ul_tensor_free(t);
    return rc;
}

static int f_permute(ul_tensor **y, ul_tensor *const *x)
{
    return ul_permute(y, x[0], DIMS(2, 0, 1));
}

static int f_slice(ul_tensor **y, ul_tensor *const *x) { return ul_slice(y, x[0], 1, 1, 2, 2); }
static int f_select(ul_tensor **y, ul_tensor *const *x) { return ul_select(y, x[0], 1, 1); }

static int f_expand(ul_tensor **y, ul_tensor *const *x)
{
    return ul_expand(y, x[0], SHAPE(2, 3, 4, 2));
}

static int f_unsqueeze(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *t;
    must(ul_unsqueeze(&t, x[0], 1));
    int rc = ul_squeeze(y, t, 1);
    ul_tensor_free(t);
    return rc;
}

static int f_clone(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *t;
    must(ul_transpose(&t, x[0], 0, 1));
    int rc = ul_clone(y, t);
    ul_tensor_free(t);
    return rc;
}

/* The same input twice, and one that is itself the result of an op. */
static int f_cat(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *twice;
    must(ul_add(&twice, x[1], x[1]));
    int rc = ul_cat(y, (ul_tensor *[]){x[0], twice, x[0]}, 3, 1);
    ul_tensor_free(twice);
    return rc;
}

/* Several views of one value: their gradients meet in it. */
static int f_views(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *twice, *a, *b;
    must(ul_add(&twice, x[0], x[0]));
    must(ul_slice(&a, twice, 0, 0, 2, 1));
    must(ul_slice(&b, twice, 0, 1, 2, 1));
    int rc = ul_mul(y, a, b);
    ul_tensor_free(a);
    ul_tensor_free(b);
    ul_tensor_free(twice);
    return rc;
}

static ul_tensor *chosen;
static int f_gather(ul_tensor **y, ul_tensor *const *x) { return ul_gather(y, x[0], 1, chosen); }
static int f_index_select(ul_tensor **y, ul_tensor *const *x)
{
    return ul_index_select(y, x[0], 1, chosen);
}

static void test_gradients(void)
{
    CHECK_GRADIENT(f_view, random_tensor(-1, 1, SHAPE(2, 6)));
    CHECK_GRADIENT(f_reshape, random_tensor(-1, 1, SHAPE(3, 4)));
    CHECK_GRADIENT(f_permute, random_tensor(-1, 1, SHAPE(2, 3, 4)));
    CHECK_GRADIENT(f_slice, random_tensor(-1, 1, SHAPE(2, 4, 3)));
    CHECK_GRADIENT(f_select, random_tensor(-1, 1, SHAPE(2, 4, 3)));
    CHECK_GRADIENT(f_expand, random_tensor(-1, 1, SHAPE(3, 1, 2)));
    CHECK_GRADIENT(f_unsqueeze, random_tensor(-1, 1, SHAPE(3, 2)));
    CHECK_GRADIENT(f_clone, random_tensor(-1, 1, SHAPE(3, 2)));
    CHECK_GRADIENT(f_cat, random_tensor(-1, 1, SHAPE(2, 3, 2)),
                   random_tensor(-1, 1, SHAPE(2, 1, 2)));
    CHECK_GRADIENT(f_views, random_tensor(-1, 1, SHAPE(3, 5)));
    chosen = tensor_of(UL_I64, VALUES(2, 0, 2, 1, 1, 1), SHAPE(2, 3, 1));
    CHECK_GRADIENT(f_gather, random_tensor(-1, 1, SHAPE(2, 4, 1)));
    ul_tensor_free(chosen);
    chosen = tensor_of(UL_I64, VALUES(2, 0, 2, 3), SHAPE(4));
    CHECK_GRADIENT(f_index_select, random_tensor(-1, 1, SHAPE(2, 4, 3)));
    ul_tensor_free(chosen);
}

/* bf16 leaves have f32 gradients; a cast in between does not round them. */
static void test_cast_gradient(void)
{
    ul_tensor *x = counting(UL_BF16, 1, SHAPE(2)), *wide, *w, *y, *grad;
    must(ul_tensor_require_grad(x, 1));
    must(ul_cast(&wide, x, UL_F32));
    w = tensor_of(UL_F32, VALUES(1.0009765625, 3), SHAPE(2));
    must(ul_mul(&y, wide, w));
    for (int pass = 1; pass <= 2; pass++) {
        must(ul_backward(y, w, 1));
        must(ul_tensor_grad(&grad, x));
        CHECK(ul_tensor_dtype(grad) == UL_F32);
        CHECK(is_tensor(grad, VALUES(pass * 1.0009765625 * 1.0009765625, pass * 9), SHAPE(2)));
        ul_tensor_free(grad);
    }
    ul_tensor_free(y);
    ul_tensor_free(wide);

    must(ul_cast(&y, x, UL_F64));
    ul_tensor_free(w);
    w = tensor_of(UL_F64, VALUES(1, 1), SHAPE(2));
    must(ul_backward(y, w, 0));
    must(ul_tensor_grad(&grad, x));
    CHECK(is_tensor(grad, VALUES(2 * 1.0009765625 * 1.0009765625 + 1, 19), SHAPE(2)));
    ul_tensor_free(grad);
    ul_tensor_free(y);
    must(ul_cast(&y, x, UL_I32));
    CHECK(!ul_tensor_requires_grad(y));
    ul_tensor_free(y);
    ul_tensor_free(w);
    ul_tensor_free(x);
}

/* Frees the middle of y = second(first(x)), whether or not that failed. */
static int composed(ul_tensor **y, ul_tensor *x, int (*second)(ul_tensor **y, ul_tensor *x))
{
    ul_tensor *turned;
    int rc = ul_transpose(&turned, x, 0, 1);
    if (rc < 0) return rc;
    rc = second(y, turned);
    ul_tensor_free(turned);
    return rc;
}

static int flat(ul_tensor **y, ul_tensor *x) { return ul_reshape(y, x, SHAPE(-1)); }
static int part(ul_tensor **y, ul_tensor *x) { return ul_slice(y, x, 0, 1, 1, 1); }
static int rounded(ul_tensor **y, ul_tensor *x) { return ul_cast(y, x, UL_BF16); }
static int doubled(ul_tensor **y, ul_tensor *x) { return ul_cat(y, (ul_tensor *[]){x, x}, 2, 0); }
static int picked(ul_tensor **y, ul_tensor *x) { return ul_gather(y, x, 0, chosen); }
static int f_flat(ul_tensor **y, ul_tensor *const *x) { return composed(y, x[0], flat); }
static int f_part(ul_tensor **y, ul_tensor *const *x) { return composed(y, x[0], part); }
static int f_rounded(ul_tensor **y, ul_tensor *const *x) { return composed(y, x[0], rounded); }
static int f_doubled(ul_tensor **y, ul_tensor *const *x) { return composed(y, x[0], doubled); }
static int f_picked(ul_tensor **y, ul_tensor *const *x) { return composed(y, x[0], picked); }

static void test_allocation_failures(void)
{
    check_allocations("reshape", f_flat, random_tensor(-1, 1, SHAPE(3, 2)));
    check_allocations("slice", f_part, random_tensor(-1, 1, SHAPE(3, 2)));
    check_allocations("cast", f_rounded, random_tensor(-1, 1, SHAPE(3, 2)));
    check_allocations("cat", f_doubled, random_tensor(-1, 1, SHAPE(3, 2)));
    check_allocations("expand", f_expand, random_tensor(-1, 1, SHAPE(3, 1, 2)));
    ul_tensor *turned = tensor_of(UL_I64, VALUES(1, 0, 0, 1, 1, 1), SHAPE(3, 2));
    must(ul_transpose(&chosen, turned, 0, 1));
    check_allocations("gather", f_picked, random_tensor(-1, 1, SHAPE(3, 2)));
    ul_tensor_free(chosen);
    ul_tensor_free(turned);
}

static void test_meta(void)
{
    int64_t many = (int64_t)1 << 32;
    ul_tensor *x = on_meta(UL_F32, SHAPE(many, 4)), *y, *z, *index = on_meta(UL_I64, SHAPE(7));
    must(ul_tensor_require_grad(x, 1));
    must(ul_transpose(&y, x, 0, 1));
    must(ul_reshape(&z, y, SHAPE(-1)));
    CHECK(has_shape(z, SHAPE(4 * many)));
    ul_tensor_free(y);
    ul_tensor_free(z);
    must(ul_index_select(&y, x, 0, index));
    CHECK(has_shape(y, SHAPE(7, 4)));
    must(ul_cat(&z, (ul_tensor *[]){x, y}, 2, 0));
    CHECK(has_shape(z, SHAPE(many + 7, 4)) && ul_tensor_requires_grad(z));
    ul_tensor_free(y);
    must(ul_slice(&y, z, 0, 3, many, 1));
    must(ul_backward(y, x, 0));
    ul_tensor *grad;
    must(ul_tensor_grad(&grad, x));
    CHECK(grad && has_shape(grad, SHAPE(many, 4)) && ul_tensor_device(grad) == UL_META);
    ul_tensor_free(grad);
    ul_tensor_free(z);
    ul_tensor_free(y);
    ul_tensor_free(index);
    ul_tensor_free(x);
}

int main(void)
{
    RUN_OP(test_view);
    RUN_OP(test_reshape);
    RUN_OP(test_dims);
    RUN_OP(test_slice);
    RUN_OP(test_expand);
    RUN_OP(test_copies);
    RUN_OP(test_cat);
    RUN_OP(test_index);
    RUN_OP(test_in_place);
    RUN_OP(test_in_place_and_tape);
    RUN_OP(test_gradients);
    RUN_OP(test_cast_gradient);
    RUN_OP(test_allocation_failures);
    RUN_OP(test_meta);
    return check_done();
}
