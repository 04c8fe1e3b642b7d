/* meta_test.c - the meta tables: costs, results left on the host, visible pairs of attention. */
#include <string.h>

#include <math.h>

#include "check.h"
#include "values.h"

static const ul_kernels *const tables[N_DTYPES] = {&ul_kernels_meta_f32, &ul_kernels_meta_bf16,
                                                   &ul_kernels_meta_f64, &ul_kernels_meta_i32,
                                                   &ul_kernels_meta_i64, &ul_kernels_meta_u8};
static const double sizes[N_DTYPES] = {4, 2, 8, 4, 8, 1};

/* What tensors of the meta device have for data. */
static char token;

static ul_meta_count counted(void)
{
    ul_meta_count c = {0};
    for (int k = 0; k < UL_KERNELS; k++)
        for (int dtype = 0; dtype < 6; dtype++) {
            c.flops += ul_meta_counted[k][dtype].flops;
            c.bytes += ul_meta_counted[k][dtype].bytes;
        }
    memset(ul_meta_counted, 0, sizeof ul_meta_counted);
    return c;
}

static int counts(double flops, double bytes)
{
    ul_meta_count c = counted();
    if (c.flops == flops && c.bytes == bytes) return 1;
    printf("counted %.17g flops, %.17g bytes\n", c.flops, c.bytes);
    return 0;
}

static void costs(void)
{
    ul_loop l = {2, {30, 50}, {{50, 1}, {50, 1}, {0, 1}}};
    counted();
    for (int i = 0; i < N_DTYPES; i++) {
        CHECK(tables[i]->add(NULL, &token, &token, &token, &l) == 0);
        CHECK(counts(1500, 3 * 1500 * sizes[i]));
        CHECK(tables[i]->copy(NULL, &token, &token, &l) == 0);
        CHECK(counts(0, 2 * 1500 * sizes[i]));
    }
    ul_gemm g = {.m = 10, .n = 20, .k = 30, .batch = 2, .c_acc = 1};
    CHECK(ul_kernels_meta_bf16.gemm(NULL, &token, &token, &token, &g) == 0);
    CHECK(counts(2.0 * 2 * 10 * 20 * 30, 2.0 * (30 * 30 * 2 + 200 * 4)));
    ul_loop huge = {3, {1 << 20, 1 << 20, 1 << 10}, {{1, 0, 0}}};
    CHECK(ul_kernels_meta_u8.fill(NULL, &token, 1, &huge) == 0);
    CHECK(counts(0, 0x1p50));
}

static void integer_tables_lack_float_kernels(void)
{
    for (int i = I32; i < N_DTYPES; i++) {
        CHECK(!tables[i]->exp && !tables[i]->gemm && !tables[i]->attention && !tables[i]->adamw);
        CHECK(tables[i]->add && tables[i]->sum && tables[i]->randint);
    }
}

static void results(void)
{
    int64_t at = 7;
    double sum = 7;
    ul_kernels_meta_i64.find_outside(NULL, &at, &token, 10, 0, 5, -1);
    ul_kernels_meta_f32.sum_squares(NULL, &sum, &token, 10);
    CHECK(at == -1 && isnan(sum));
    counted();
}

/* A head_dim of thousands does not fit the scratch that threads have. */
static void attention_wants_what_it_wants_on_the_cpu(void)
{
    const int64_t head_dims[] = {1, 64, 100, 5000, 20000};
    for (int threads = 1; threads <= 3; threads++)
        for (int dtype = 0; dtype < 3; dtype++)
            for (int i = 0; i < 5; i++) {
                int64_t there[2] = {-1, -1}, here[2] = {-2, -2};
                ul_attention_args a = {.batch = 2, .q_tokens = 300, .k_tokens = 700};
                a.n_heads = 6;
                a.n_kv_heads = 2;
                a.head_dim = head_dims[i];
                ul_cpu_set_threads(threads);
                tables[dtype]->attention_work(NULL, &here[0], &here[1], &a);
                ul_cpu_kernels(dtype)->attention_work(ul_cpu_stream(), &there[0], &there[1], &a);
                CHECK(here[0] == there[0] && here[1] == there[1] && here[1] > 0);
                CHECK(here[0] > 0 || head_dims[i] < 20000);
            }
}

/* ---- attention ---- */

static int sees(const ul_attention_args *a, int64_t b, int64_t i, int64_t j)
{
    int64_t p = i + a->q_start;
    if (a->causal && j > p) return 0;
    if (a->window && j <= p - a->window) return 0;
    if (!a->docs) return 1;
    if (p < 0 || p >= a->k_tokens) return 0;
    for (int64_t d = 0; d < a->n_docs; d++) {
        int64_t low = a->docs[d] - b * a->k_tokens, high = a->docs[d + 1] - b * a->k_tokens;
        if (low <= p && p < high) return low <= j && j < high;
    }
    return 0;
}

static void check_pairs(const ul_attention_args *a)
{
    double pairs = 0;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t i = 0; i < a->q_tokens; i++)
            for (int64_t j = 0; j < a->k_tokens; j++) pairs += sees(a, b, i, j);
    pairs *= (double)a->n_heads;
    double q = (double)(a->batch * a->n_heads * a->q_tokens);
    double kv = (double)(a->batch * a->n_kv_heads * a->k_tokens), d = (double)a->head_dim;
    counted();
    ul_kernels_meta_bf16.attention(NULL, &token, &token, &token, &token, &token, a, &token);
    CHECK(counts(4 * d * pairs, (2 * q + 2 * kv) * d * 2 + q * 4),
          "Tq %d Tk %d start %d causal %d window %d docs %d: %g pairs", (int)a->q_tokens,
          (int)a->k_tokens, (int)a->q_start, a->causal, (int)a->window, a->docs != NULL, pairs);
    ul_grad g = {&token, 0};
    ul_kernels_meta_f64.attention_backward(NULL, g, g, g, &token, &token, &token, &token, &token,
                                           &token, a, &token);
    CHECK(counts(10 * d * pairs, (4 * q + 4 * kv) * d * 8 + q * 8));
}

static void pairs_without_documents(void)
{
    static const int64_t lengths[] = {0, 1, 5, 12}, starts[] = {-7, -2, 0, 3, 9, 20};
    static const int64_t windows[] = {0, 1, 3, 100};
    for (int q = 0; q < 4; q++)
        for (int k = 0; k < 4; k++)
            for (int s = 0; s < 6; s++)
                for (int w = 0; w < 5; w++) {
                    ul_attention_args a = {.batch = 2, .n_heads = 6, .n_kv_heads = 3};
                    a.head_dim = 8;
                    a.q_tokens = lengths[q];
                    a.k_tokens = lengths[k];
                    a.q_start = starts[s];
                    a.causal = w < 4;
                    a.window = w < 4 ? windows[w] : 0;
                    check_pairs(&a);
                }
}

static void pairs_with_documents(void)
{
    static const int64_t docs[] = {0, 3, 3, 12, 13, 20, 24};
    for (int w = 0; w < 5; w++)
        for (int64_t start = -2; start <= 4; start += 2) {
            ul_attention_args a = {.batch = 2, .n_heads = 2, .n_kv_heads = 1, .head_dim = 4};
            a.q_tokens = start ? 7 : 12;
            a.k_tokens = 12;
            a.docs = docs;
            a.n_docs = 6;
            a.q_start = start;
            a.causal = w < 4;
            a.window = w < 4 ? w : 0;
            check_pairs(&a);
        }
}

static void pairs_of_long_rows(void)
{
    const int64_t t = INT64_C(1) << 30;
    ul_attention_args a = {.batch = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 1, .causal = 1};
    a.q_tokens = a.k_tokens = t;
    counted();
    ul_kernels_meta_bf16.attention(NULL, &token, &token, &token, &token, &token, &a, &token);
    CHECK(counted().flops == 4 * ((double)t * (double)(t + 1) / 2));
}

int main(void)
{
    RUN(costs);
    RUN(integer_tables_lack_float_kernels);
    RUN(results);
    RUN(attention_wants_what_it_wants_on_the_cpu);
    RUN(pairs_without_documents);
    RUN(pairs_with_documents);
    RUN(pairs_of_long_rows);
    return check_done();
}
