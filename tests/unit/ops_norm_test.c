/* ops_norm_test.c - norms, rotary embedding, embedding: values, gradients, sentences. */
#include "ops_proof.h"

static int rms(ul_tensor **y, ul_tensor *const *x) { return ul_rms_norm(y, x[0], x[1], 1e-5); }

static int rms_of_view(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *view = NULL;
    int rc = ul_transpose(&view, x[0], 0, 1);
    if (rc == UL_OK) rc = ul_rms_norm(y, view, x[1], 1e-5);
    ul_tensor_free(view);
    return rc;
}

static int add_rms(ul_tensor **y, ul_tensor *const *x)
{
    return ul_add_rms_norm(&y[0], &y[1], x[0], x[1], x[2], 1e-5);
}

static int add_rms_y(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *h = NULL;
    int rc = ul_add_rms_norm(y, &h, x[0], x[1], x[2], 1e-5);
    ul_tensor_free(h);
    return rc;
}

static int add_rms_h(ul_tensor **h, ul_tensor *const *x)
{
    ul_tensor *y = NULL;
    int rc = ul_add_rms_norm(&y, h, x[0], x[1], NULL, 1e-5);
    ul_tensor_free(y);
    return rc;
}

static int add_rms_twice(ul_tensor **y, ul_tensor *const *x)
{
    return ul_add_rms_norm(&y[0], &y[1], x[0], x[0], x[1], 1e-5);
}

static int layer(ul_tensor **y, ul_tensor *const *x)
{
    return ul_layer_norm(y, x[0], x[1], x[2], 1e-5);
}

static void norm_gradients(void)
{
    check_op((op_case){"rms_norm", rms, 1, {RANDOM(2, 3, 5), RANDOM(5)}});
    check_op((op_case){"rms_norm without w", rms, 1, {RANDOM(3, 5)}});
    check_op((op_case){"rms_norm of one column", rms, 1, {RANDOM(3, 1), RANDOM(1)}});
    check_op((op_case){"rms_norm of a vector", rms, 1, {RANDOM(17), RANDOM(17)}});
    check_op((op_case){"rms_norm of a view", rms_of_view, 1, {RANDOM(4, 3, 5), RANDOM(5)}});
    check_op((op_case){"rms_norm no rows", rms, 1, {RANDOM(0, 5), RANDOM(5)}});
    check_op((op_case){"add_rms_norm", add_rms, 2, {RANDOM(3, 5), RANDOM(3, 5), RANDOM(5)}});
    check_op(
        (op_case){"add_rms_norm, y only", add_rms_y, 1, {RANDOM(3, 5), RANDOM(3, 5), RANDOM(5)}});
    check_op((op_case){"add_rms_norm, h only", add_rms_h, 1, {RANDOM(3, 5), RANDOM(3, 5)}});
    check_op((op_case){"add_rms_norm of itself", add_rms_twice, 2, {RANDOM(3, 5), RANDOM(5)}});
    check_op((op_case){"layer_norm", layer, 1, {RANDOM(2, 3, 5), RANDOM(5), RANDOM(5)}});
    check_op((op_case){"layer_norm without b", layer, 1, {RANDOM(3, 5), RANDOM(5)}});
    check_op((op_case){"layer_norm plain", layer, 1, {RANDOM(3, 5)}});
    check_op((op_case){"layer_norm no rows", layer, 1, {RANDOM(0, 5), RANDOM(5), RANDOM(5)}});
    check_memory();
}

static void norm_values(void)
{
    ul_tensor *x = RANDOM(2, 5), *w = RANDOM(5), *b = RANDOM(5), *r = RANDOM(2, 5), *y = NULL,
              *z = NULL, *h = NULL;
    must(ul_rms_norm(&y, x, w, 1e-5));
    must(ul_layer_norm(&z, x, w, b, 1e-5));
    for (int64_t row = 0; row < 2; row++) {
        double mean = 0, square = 0, var = 0;
        for (int64_t i = 0; i < 5; i++) mean += get(x, row * 5 + i) / 5;
        for (int64_t i = 0; i < 5; i++) square += pow(get(x, row * 5 + i), 2) / 5;
        for (int64_t i = 0; i < 5; i++) var += pow(get(x, row * 5 + i) - mean, 2) / 5;
        for (int64_t i = 0; i < 5; i++) {
            double at = get(x, row * 5 + i);
            CHECK(fabs(get(y, row * 5 + i) - at / sqrt(square + 1e-5) * get(w, i)) < 1e-14);
            CHECK(fabs(get(z, row * 5 + i) -
                       ((at - mean) / sqrt(var + 1e-5) * get(w, i) + get(b, i))) < 1e-14);
        }
    }
    ul_tensor *fused = NULL, *sum = NULL, *apart = NULL;
    must(ul_add_rms_norm(&fused, &h, x, r, w, 1e-5));
    must(ul_add(&sum, x, r));
    must(ul_rms_norm(&apart, sum, w, 1e-5));
    CHECK(gap_of(fused, apart) < 1e-15 && gap_of(h, sum) == 0);
    free_all((ul_tensor *[]){x, w, b, r, y, z, h, fused, sum, apart}, 10);
    check_memory();
}

static void norm_sentences(void)
{
    ul_tensor *x = RANDOM(3, 8), *w = RANDOM(4), *r = RANDOM(3, 4),
              *f = random_as(UL_F32, SHAPE(8)), *y, *h;
    REFUSED(ul_rms_norm(&y, x, w, 1e-5), UL_ESHAPE, "rms_norm: weight [4] does not fit x [3, 8]");
    REFUSED(ul_rms_norm(&y, x, f, 1e-5), UL_EDTYPE,
            "rms_norm: dtypes differ (x is f64, weight is f32); convert one with :to()");
    REFUSED(ul_rms_norm(&y, x, NULL, -1), UL_EVALUE, "rms_norm: eps = -1 must not be negative");
    REFUSED(ul_add_rms_norm(&y, &h, x, r, NULL, 1e-5), UL_ESHAPE,
            "add_rms_norm: residual [3, 4] does not fit x [3, 8]");
    REFUSED(ul_layer_norm(&y, x, NULL, w, 1e-5), UL_ESHAPE,
            "layer_norm: bias [4] does not fit x [3, 8]");
    free_all((ul_tensor *[]){x, w, r, f}, 4);
    check_memory();
}

/* ---- rope ---- */

static ul_tensor *cosine, *sine;

static int turn(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *c = NULL, *s = NULL;
    ul_dtype acc = ul_dtype_acc(ul_tensor_dtype(x[0]));
    int rc = ul_cast(&c, cosine, acc);
    if (rc == UL_OK) rc = ul_cast(&s, sine, acc);
    if (rc == UL_OK && ul_tensor_device(x[0]) == UL_META) {
        ul_tensor *there[2] = {NULL};
        rc = ul_to_device(&there[0], c, UL_META);
        if (rc == UL_OK) rc = ul_to_device(&there[1], s, UL_META);
        free_all((ul_tensor *[]){c, s}, 2);
        c = there[0];
        s = there[1];
    }
    if (rc == UL_OK) rc = ul_rope(y, x[0], c, s);
    ul_tensor_free(c);
    ul_tensor_free(s);
    return rc;
}

static void make_tables(int ndim, const int64_t *shape, int64_t half, double scale)
{
    ul_tensor *positions = new_tensor(UL_I64, ndim, shape), *freq = new_tensor(UL_F64, 1, &half);
    for (int64_t i = 0; i < ul_tensor_size(positions); i++) put(positions, i, (double)(7 * i + 3));
    for (int64_t i = 0; i < half; i++) put(freq, i, pow(10000, -(double)i / (double)half));
    must(ul_rope_table(&cosine, &sine, positions, freq, scale, UL_F64));
    free_all((ul_tensor *[]){positions, freq}, 2);
}

static void rope_gradients(void)
{
    make_tables(SHAPE(3), 2, 1);
    check_op((op_case){"rope", turn, 1, {RANDOM(2, 3, 2, 4)}});
    free_all((ul_tensor *[]){cosine, sine}, 2);
    make_tables(SHAPE(2, 3), 3, 1.5);
    check_op((op_case){"rope, tables by row", turn, 1, {RANDOM(2, 3, 1, 6)}});
    free_all((ul_tensor *[]){cosine, sine}, 2);
    check_memory();
}

/* Half-split pairs (i, i + D/2), angles position * inv_freq, exact at large positions. */
static void rope_values(void)
{
    make_tables(SHAPE(2, 3), 2, 1);
    ul_tensor *x = RANDOM(2, 3, 2, 4), *y = NULL;
    must(ul_rope(&y, x, cosine, sine));
    for (int64_t i = 0; i < 48; i += 4) {
        double position = (double)(7 * (i / 8) + 3);
        for (int64_t j = 0; j < 2; j++) {
            double angle = position * pow(10000, -(double)j / 2);
            double a = get(x, i + j), b = get(x, i + j + 2);
            CHECK(fabs(get(y, i + j) - (a * cos(angle) - b * sin(angle))) < 1e-13);
            CHECK(fabs(get(y, i + j + 2) - (b * cos(angle) + a * sin(angle))) < 1e-13);
        }
    }
    free_all((ul_tensor *[]){cosine, sine, x, y}, 4);

    ul_tensor *far = LIST(UL_I64, 0, 100000, 1000000, 4000000), *freq = LIST(UL_F64, 1, 0.37);
    must(ul_rope_table(&cosine, &sine, far, freq, 2, UL_F32));
    CHECK(has_shape(cosine, SHAPE(4, 2)) && ul_tensor_dtype(sine) == UL_F32);
    for (int64_t i = 0; i < 8; i++) {
        double angle = get(far, i / 2) * get(freq, i % 2);
        CHECK(fabs(get(cosine, i) - 2 * cos(angle)) < 2e-7);
        CHECK(fabs(get(sine, i) - 2 * sin(angle)) < 2e-7);
    }
    free_all((ul_tensor *[]){cosine, sine, far, freq}, 4);
    check_memory();
}

static void rope_sentences(void)
{
    make_tables(SHAPE(3), 2, 1);
    ul_tensor *x = RANDOM(2, 4, 2, 4), *odd = RANDOM(2, 3, 2, 3),
              *b = random_as(UL_F32, SHAPE(2, 3, 2, 4));
    ul_tensor *good = RANDOM(2, 3, 2, 4), *y;
    REFUSED(ul_rope(&y, x, cosine, sine), UL_ESHAPE,
            "rope: cosine [3, 2] does not fit x [2, 4, 2, 4]; it must be [T, D/2] or [B, T, D/2]");
    REFUSED(ul_rope(&y, odd, cosine, sine), UL_ESHAPE,
            "rope: x [2, 3, 2, 3] must be [B, T, H, D] with an even D");
    REFUSED(ul_rope(&y, b, cosine, sine), UL_EDTYPE, "rope: cosine must be f32, not f64");
    must(ul_tensor_require_grad(sine, 1));
    REFUSED(ul_rope(&y, good, cosine, sine), UL_EGRAD,
            "rope: no gradient flows to sine; detach it");
    REFUSED(ul_rope_table(&y, &y, x, x, 1, UL_F64), UL_EDTYPE,
            "rope_table: positions must be i64, not f64");
    free_all((ul_tensor *[]){cosine, sine, x, odd, b, good}, 6);
    check_memory();
}

/* ---- embedding ---- */

static int lookup(ul_tensor **y, ul_tensor *const *x)
{
    ul_tensor *ids = NULL;
    int rc = ul_transpose(&ids, x[0], 0, 1);
    if (rc == UL_OK) rc = ul_embedding(y, ids, x[1]);
    ul_tensor_free(ids);
    return rc;
}

static void embeddings(void)
{
    ul_tensor *ids = new_tensor(UL_I64, SHAPE(2, 3)), *w = RANDOM(5, 4), *y = NULL;
    for (int64_t i = 0; i < 6; i++) put(ids, i, (double)(i * i % 5));
    must(ul_embedding(&y, ids, w));
    CHECK(has_shape(y, SHAPE(2, 3, 4)));
    for (int64_t i = 0; i < 24; i++) CHECK(get(y, i) == get(w, i / 4 * (i / 4) % 5 * 4 + i % 4));
    ul_tensor_free(y);
    check_op((op_case){"embedding", lookup, 1, {ids, w}});

    ids = LIST(UL_I64, 1, 2, 300, 4);
    w = RANDOM(260, 2);
    REFUSED(ul_embedding(&y, ids, w), UL_EVALUE,
            "embedding: id 300 at position 3 is outside [0, 260)");
    put(ids, 2, -1);
    REFUSED(ul_embedding(&y, ids, w), UL_EVALUE,
            "embedding: id -1 at position 3 is outside [0, 260)");
    ul_tensor *none = RANDOM(0, 2), *no_ids = new_tensor(UL_I64, SHAPE(0));
    REFUSED(ul_embedding(&y, ids, none), UL_EVALUE,
            "embedding: id 1 at position 1 is outside [0, 0)");
    must(ul_embedding(&y, no_ids, none));
    CHECK(has_shape(y, SHAPE(0, 2)));
    ul_tensor_free(y);
    REFUSED(ul_embedding(&y, w, w), UL_EDTYPE, "embedding: ids must be i64, not f64");
    REFUSED(ul_embedding(&y, ids, ids), UL_EDTYPE,
            "embedding: weight must be f32, bf16 or f64, not i64");
    free_all((ul_tensor *[]){ids, w, none, no_ids}, 4);
    check_memory();
}

int main(void)
{
    RUN(norm_values);
    RUN(norm_gradients);
    RUN(norm_sentences);
    RUN(rope_values);
    RUN(rope_gradients);
    RUN(rope_sentences);
    RUN(embeddings);
    return check_done();
}
