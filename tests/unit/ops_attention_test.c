/* ops_attention_test.c - attention: values against the definition, gradients, masks, sentences. */
#include "ops_proof.h"

static ul_attention_options options;
static ul_tensor *docs, *kv_head; /* on cpu; moved to meta where the inputs are there */

static int attend_with_lse(ul_tensor **o, ul_tensor **lse, ul_tensor *q, ul_tensor *k, ul_tensor *v)
{
    ul_attention_options here = options;
    ul_device device = ul_tensor_device(q);
    int rc = UL_OK;
    here.docs = here.kv_head = NULL;
    if (docs) rc = ul_to_device(&here.docs, docs, device);
    if (rc == UL_OK && kv_head) rc = ul_to_device(&here.kv_head, kv_head, device);
    if (rc == UL_OK) rc = ul_attention(o, lse, q, k, v, &here);
    ul_tensor_free(here.docs);
    ul_tensor_free(here.kv_head);
    return rc;
}

static int attend(ul_tensor **o, ul_tensor *const *x)
{
    return attend_with_lse(o, NULL, x[0], x[1], x[2]);
}

/* q, k, v as three views of one projection [B, T, 3 H, D], then with B and T swapped. */
static int attend_views(ul_tensor **o, ul_tensor *const *x)
{
    ul_tensor *part[3] = {NULL}, *all = NULL;
    int rc = ul_transpose(&all, x[0], 0, 1);
    for (int i = 0; i < 3 && rc == UL_OK; i++) rc = ul_slice(&part[i], all, 2, 2 * i, 2, 1);
    if (rc == UL_OK) rc = attend(o, part);
    free_all(part, 3);
    ul_tensor_free(all);
    return rc;
}

/* Heads whose numbers do not follow each other, so that copies are made. */
static int attend_copies(ul_tensor **o, ul_tensor *const *x)
{
    ul_tensor *turned[3] = {NULL};
    int rc = UL_OK;
    for (int i = 0; i < 3 && rc == UL_OK; i++) rc = ul_transpose(&turned[i], x[i], 2, 3);
    if (rc == UL_OK) rc = attend(o, turned);
    free_all(turned, 3);
    return rc;
}

static void reset(void)
{
    free_all((ul_tensor *[]){docs, kv_head}, 2);
    docs = kv_head = NULL;
    options = (ul_attention_options){0};
}

static void gradients(void)
{
    reset();
    check_op((op_case){
        "attention", attend, 1, {RANDOM(2, 3, 2, 4), RANDOM(2, 5, 2, 4), RANDOM(2, 5, 2, 4)}});
    options.causal = 1;
    check_op((op_case){"attention causal",
                       attend,
                       1,
                       {RANDOM(1, 5, 2, 3), RANDOM(1, 5, 2, 3), RANDOM(1, 5, 2, 3)}});
    check_op((op_case){"attention causal, more keys",
                       attend,
                       1,
                       {RANDOM(1, 3, 2, 3), RANDOM(1, 6, 1, 3), RANDOM(1, 6, 1, 3)}});
    check_op((op_case){"attention causal, blind queries",
                       attend,
                       1,
                       {RANDOM(1, 5, 1, 3), RANDOM(1, 3, 1, 3), RANDOM(1, 3, 1, 3)}});
    check_op((op_case){"attention of views", attend_views, 1, {RANDOM(5, 2, 6, 3)}});
    check_op((op_case){"attention of copies",
                       attend_copies,
                       1,
                       {RANDOM(2, 3, 4, 2), RANDOM(2, 3, 4, 2), RANDOM(2, 3, 4, 2)}});
    options.window = 2;
    options.scale = 0.3;
    check_op((op_case){"attention window",
                       attend,
                       1,
                       {RANDOM(1, 6, 4, 2), RANDOM(1, 6, 2, 2), RANDOM(1, 6, 2, 2)}});
    docs = LIST(UL_I64, 0, 2, 5, 7, 10);
    check_op((op_case){"attention docs, window",
                       attend,
                       1,
                       {RANDOM(2, 5, 2, 3), RANDOM(2, 5, 2, 3), RANDOM(2, 5, 2, 3)}});
    options.causal = 0;
    options.window = 0;
    kv_head = LIST(UL_I32, 1, 0, 1);
    check_op((op_case){"attention docs, any map",
                       attend,
                       1,
                       {RANDOM(2, 5, 3, 3), RANDOM(2, 5, 2, 3), RANDOM(2, 5, 2, 3)}});
    reset();
    check_op((op_case){"attention no tokens",
                       attend,
                       1,
                       {RANDOM(2, 0, 2, 3), RANDOM(2, 0, 2, 3), RANDOM(2, 0, 2, 3)}});
    check_op((op_case){"attention no keys",
                       attend,
                       1,
                       {RANDOM(2, 3, 2, 3), RANDOM(2, 0, 2, 3), RANDOM(2, 0, 2, 3)}});
    check_memory();
}

/* Whether query i sees key j, from the words of ulysses.h. */
static int sees(int64_t row, int64_t i, int64_t j, int64_t q_tokens, int64_t k_tokens)
{
    int64_t at = i + k_tokens - q_tokens;
    if (options.causal && j > at) return 0;
    if (options.window && j <= at - options.window) return 0;
    for (int64_t d = 1; docs && d < ul_tensor_size(docs) - 1; d++) {
        double edge = get(docs, d);
        double query = (double)(row * q_tokens + i), key = (double)(row * k_tokens + j);
        if ((query < edge) != (key < edge)) return 0;
    }
    return 1;
}

/* One output row by the definition; returns its log-sum-exp. */
static double attend_row(double *o, ul_tensor *const *x, int64_t row, int64_t i, int64_t head)
{
    const int64_t *q_shape = ul_tensor_shape(x[0]), *k_shape = ul_tensor_shape(x[1]);
    int64_t size = q_shape[3], heads = q_shape[2], kv_heads = k_shape[2];
    int64_t from = kv_head ? (int64_t)get(kv_head, head) : head * kv_heads / heads;
    double sum = 0, scale = options.scale != 0 ? options.scale : 1 / sqrt((double)size);
    for (int64_t d = 0; d < size; d++) o[d] = 0;
    for (int64_t j = 0; j < k_shape[1]; j++) {
        if (!sees(row, i, j, q_shape[1], k_shape[1])) continue;
        int64_t query = ((row * q_shape[1] + i) * heads + head) * size;
        int64_t key = ((row * k_shape[1] + j) * kv_heads + from) * size;
        double score = 0;
        for (int64_t d = 0; d < size; d++) score += get(x[0], query + d) * get(x[1], key + d);
        sum += exp(scale * score);
        for (int64_t d = 0; d < size; d++) o[d] += exp(scale * score) * get(x[2], key + d);
    }
    for (int64_t d = 0; d < size; d++) o[d] = sum > 0 ? o[d] / sum : 0;
    return log(sum);
}

static void compare_with_definition(op_case c)
{
    ul_tensor *o = NULL, *lse = NULL;
    const int64_t *shape = ul_tensor_shape(c.x[0]);
    double row_of_o[64];
    must(attend_with_lse(&o, &lse, c.x[0], c.x[1], c.x[2]));
    CHECK(has_shape(lse, SHAPE(shape[0], shape[2], shape[1])), "%s", c.name);
    for (int64_t row = 0; row < shape[0]; row++)
        for (int64_t i = 0; i < shape[1]; i++)
            for (int64_t head = 0; head < shape[2]; head++) {
                double sum = attend_row(row_of_o, c.x, row, i, head);
                double found = get(lse, (row * shape[2] + head) * shape[1] + i);
                CHECK(is_near(found, sum, 1e-13), "%s: lse %g, not %g", c.name, found, sum);
                for (int64_t d = 0; d < shape[3]; d++) {
                    found = get(o, ((row * shape[1] + i) * shape[2] + head) * shape[3] + d);
                    CHECK(is_near(found, row_of_o[d], 1e-13), "%s: o %g, not %g", c.name, found,
                          row_of_o[d]);
                }
            }
    CHECK(!ul_tensor_requires_grad(lse));
    free_all((ul_tensor *[]){o, lse}, 2);
    free_case(&c);
}

static void values(void)
{
    reset();
    compare_with_definition((op_case){
        "plain", attend, 1, {RANDOM(2, 3, 4, 5), RANDOM(2, 7, 2, 5), RANDOM(2, 7, 2, 5)}});
    options.causal = 1;
    compare_with_definition((op_case){
        "causal", attend, 1, {RANDOM(1, 9, 3, 5), RANDOM(1, 9, 3, 5), RANDOM(1, 9, 3, 5)}});
    compare_with_definition((op_case){
        "blind", attend, 1, {RANDOM(1, 5, 2, 3), RANDOM(1, 3, 2, 3), RANDOM(1, 3, 2, 3)}});
    options.window = 3;
    compare_with_definition((op_case){
        "window", attend, 1, {RANDOM(1, 5, 2, 3), RANDOM(1, 9, 2, 3), RANDOM(1, 9, 2, 3)}});
    docs = LIST(UL_I64, 0, 1, 4, 9, 14, 18);
    kv_head = LIST(UL_I32, 1, 0, 1);
    compare_with_definition(
        (op_case){"all", attend, 1, {RANDOM(2, 9, 3, 4), RANDOM(2, 9, 2, 4), RANDOM(2, 9, 2, 4)}});
    options.causal = 0;
    options.window = 0;
    compare_with_definition(
        (op_case){"docs", attend, 1, {RANDOM(2, 9, 3, 4), RANDOM(2, 9, 2, 4), RANDOM(2, 9, 2, 4)}});
    reset();
    check_memory();
}

/* The caller may change docs and kv_head after the call; lse and o not before backward. */
static void changes_in_place(void)
{
    ul_tensor *q = RANDOM(1, 4, 2, 3), *k = RANDOM(1, 4, 2, 3), *v = RANDOM(1, 4, 2, 3);
    ul_tensor *o = NULL, *lse = NULL, *sum = NULL;
    options.docs = LIST(UL_I64, 0, 2, 4);
    must(ul_tensor_require_grad(q, 1));
    must(ul_attention(&o, &lse, q, k, v, &options));
    must(ul_fill_(options.docs, 77));
    must(ul_sum(&sum, o, 0, NULL, 0));
    must(ul_backward(sum, NULL, 1));
    must(ul_fill_(lse, 0));
    REFUSED(ul_backward(sum, NULL, 0), UL_EGRAD,
            "backward: a value [1, 2, 4] that attention needs for its gradient was changed in "
            "place");
    free_all((ul_tensor *[]){q, k, v, o, lse, sum, options.docs}, 7);
    reset();
    check_memory();
}

static int attend_list(ul_tensor *const *x, ul_tensor *new_docs, ul_tensor *new_map)
{
    ul_tensor *o = NULL;
    options.docs = new_docs;
    options.kv_head = new_map;
    int rc = ul_attention(&o, NULL, x[0], x[1], x[2], &options);
    free_all((ul_tensor *[]){new_docs, new_map, o}, 3);
    return rc;
}

static void sentences_of_options(void)
{
    reset();
    ul_tensor *x[3] = {RANDOM(2, 3, 3, 4), RANDOM(2, 3, 2, 4), RANDOM(2, 3, 2, 4)};
    REFUSED(attend_list(x, NULL, NULL), UL_ESHAPE,
            "attention: 3 heads of q do not share 2 kv heads equally; give kv_head");
    REFUSED(attend_list(x, NULL, LIST(UL_I32, 0, 1)), UL_ESHAPE,
            "attention: kv_head [2] must name a kv head for each head of q [2, 3, 3, 4]");
    REFUSED(attend_list(x, NULL, LIST(UL_I32, 0, 2, 1)), UL_EVALUE,
            "attention: kv_head sends head 1 to kv head 2, but k [2, 3, 2, 4] has 2");
    REFUSED(attend_list(x, NULL, LIST(UL_I64, 0, 1, 1)), UL_EDTYPE,
            "attention: kv_head must be i32, not i64");
    REFUSED(attend_list(x, LIST(UL_I64, 1, 3, 6), LIST(UL_I32, 0, 1, 1)), UL_EVALUE,
            "attention: docs must begin with 0, not 1");
    REFUSED(attend_list(x, LIST(UL_I64, 0, 3, 2, 6), NULL), UL_EVALUE,
            "attention: docs must rise, but 2 follows 3 at position 3");
    REFUSED(attend_list(x, LIST(UL_I64, 0, 3), NULL), UL_EVALUE,
            "attention: docs must end with B T = 6, not 3");
    REFUSED(attend_list(x, LIST(UL_I64, 0, 2, 6), NULL), UL_EVALUE,
            "attention: docs must include the edges of all 2 rows of 3 tokens");
    REFUSED(attend_list(x, LIST(UL_I32, 0, 6), NULL), UL_EDTYPE,
            "attention: docs must be i64, not i32");
    options.window = 2;
    REFUSED(attend_list(x, NULL, NULL), UL_EVALUE, "attention: window = 2 needs causal = true");
    options.window = -1;
    REFUSED(attend_list(x, NULL, NULL), UL_EVALUE, "attention: window = -1 must not be negative");
    reset();
    options.scale = INFINITY;
    REFUSED(attend_list(x, NULL, NULL), UL_EVALUE, "attention: scale = inf must be finite");
    options.scale = 0;
    free_all(x, 3);
    ul_tensor *empty[3] = {RANDOM(2, 0, 2, 4), RANDOM(2, 0, 2, 4), RANDOM(2, 0, 2, 4)};
    REFUSED(attend_list(empty, LIST(UL_I64, 0, 1), NULL), UL_EVALUE,
            "attention: docs must end with B T = 0, not 1");
    must(attend_list(empty, LIST(UL_I64, 0), NULL));
    free_all(empty, 3);
    options.docs = options.kv_head = NULL;
    check_memory();
}

static void sentences_of_shapes(void)
{
    ul_tensor *o = NULL, *q = RANDOM(2, 3, 2, 4), *flat = RANDOM(3, 4), *wide = RANDOM(2, 3, 2, 5);
    ul_tensor *long_k = RANDOM(2, 5, 2, 4), *other = RANDOM(1, 3, 2, 4);
    ul_tensor *none = RANDOM(2, 3, 0, 4), *f = random_as(UL_F32, SHAPE(2, 3, 2, 4));
    reset();
    REFUSED(ul_attention(&o, NULL, q, flat, q, &options), UL_ESHAPE,
            "attention: q [2, 3, 2, 4], k [3, 4] and v [2, 3, 2, 4] must be [B, T, H, D]");
    REFUSED(ul_attention(&o, NULL, q, q, long_k, &options), UL_ESHAPE,
            "attention: k [2, 3, 2, 4] and v [2, 5, 2, 4] differ");
    REFUSED(ul_attention(&o, NULL, q, other, other, &options), UL_ESHAPE,
            "attention: batch of q [2, 3, 2, 4] and k [1, 3, 2, 4] differ");
    REFUSED(ul_attention(&o, NULL, q, wide, wide, &options), UL_ESHAPE,
            "attention: head sizes of q [2, 3, 2, 4] and k [2, 3, 2, 5] do not fit");
    REFUSED(ul_attention(&o, NULL, q, none, none, &options), UL_ESHAPE,
            "attention: k [2, 3, 0, 4] has no heads");
    REFUSED(ul_attention(&o, NULL, q, f, f, &options), UL_EDTYPE,
            "attention: dtypes differ (q is f64, k is f32); convert one with :to()");
    docs = LIST(UL_I64, 0, 3, 6);
    REFUSED(attend_with_lse(&o, NULL, q, long_k, long_k), UL_ESHAPE,
            "attention: docs need as many queries as keys, not q [2, 3, 2, 4], k [2, 5, 2, 4]");
    reset();
    free_all((ul_tensor *[]){q, flat, wide, long_k, other, none, f}, 7);
    check_memory();
}

int main(void)
{
    RUN(values);
    RUN(gradients);
    RUN(changes_in_place);
    RUN(sentences_of_options);
    RUN(sentences_of_shapes);
    return check_done();
}
