/* random_test.c - Philox against its known answers, and what is drawn from it. */
#include "check.h"
#include "values.h"

/* Philox 4x32-10 straight from the paper, one block. */
static void reference_block(uint32_t *c, const uint32_t *seed)
{
    uint32_t k[2] = {seed[0], seed[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)c[0] * 0xD2511F53u, q = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t next[4] = {(uint32_t)(q >> 32) ^ c[1] ^ k[0], (uint32_t)q,
                            (uint32_t)(p >> 32) ^ c[3] ^ k[1], (uint32_t)p};
        memcpy(c, next, sizeof next);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
}

static uint32_t reference_word(const ul_random_key *key, uint64_t word)
{
    uint64_t block = word / 4;
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)key->purpose,
                     (uint32_t)(key->purpose >> 32)};
    const uint32_t seed[2] = {(uint32_t)key->seed, (uint32_t)(key->seed >> 32)};
    reference_block(c, seed);
    return c[word % 4];
}

/* From the test vectors of the authors' Random123. */
static void reference_knows_the_answers(void)
{
    static const uint32_t cases[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t c[4];
        memcpy(c, cases[i], sizeof c);
        reference_block(c, cases[i] + 4);
        CHECK(memcmp(c, cases[i] + 6, sizeof c) == 0, "case %d", i);
    }
}

enum { N = 40003 };
static const ul_random_key keys[] = {
    {0, 0, 0}, {0x299f31d0a4093822u, 0x0370734413198a2eu, 5}, {7, 9, (UINT64_C(1) << 34) - 1003}};
enum { N_KEYS = 3 };

static double unit(uint32_t word) { return (word >> 8) * 0x1p-24; }

static void uniform_numbers(void)
{
    double *y = new_values(F64, N);
    for (int i = 0; i < N_KEYS; i++) {
        ul_cpu_kernels(F64)->uniform(ul_cpu_stream(), y, 0, 1, N, &keys[i]);
        int bad = 0;
        for (uint64_t j = 0; j < N; j++)
            bad += y[j] != unit(reference_word(&keys[i], keys[i].first + j));
        CHECK(!bad, "key %d: %d wrong", i, bad);
    }
    free(y);
}

/* Every dtype and level gives the same numbers, rounded down, whatever the threads. */
static void uniform_is_the_same_everywhere(void)
{
    double *want = new_values(F64, N);
    ul_cpu_set_isa("base");
    ul_cpu_kernels(F64)->uniform(ul_cpu_stream(), want, -3, 5, N, &keys[1]);
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= F64; dtype++) {
            void *y = new_values(dtype, N);
            ul_cpu_set_threads(1 + (level + dtype) % 3);
            ul_cpu_kernels(dtype)->uniform(ul_cpu_stream(), y, -3, 5, N, &keys[1]);
            int bad = 0;
            for (int64_t j = 0; j < N; j++) {
                double gap = want[j] - get(dtype, y, j);
                bad += gap < 0 || gap > 4 * 4 * dtype_eps[dtype];
            }
            CHECK(!bad, "%s %s: %d wrong", dtype_names[dtype], ul_cpu_isa(), bad);
            free(y);
        }
    free(want);
}

static void uniform_stays_below_high(void)
{
    static const double bounds[][2] = {{0, 1}, {1, 2}, {-2, -1}, {-1, 0}, {4096, 4097}, {3, 3}};
    for (int dtype = 0; dtype <= F64; dtype++)
        for (int b = 0; b < 6; b++) {
            void *y = new_values(dtype, N);
            double low = bounds[b][0], high = bounds[b][1], sum = 0;
            ul_cpu_kernels(dtype)->uniform(ul_cpu_stream(), y, low, high, N, &keys[2]);
            int bad = 0;
            for (int64_t j = 0; j < N; j++) {
                double x = get(dtype, y, j);
                bad += x < low || (x >= high && high > low);
                sum += x;
            }
            CHECK(!bad, "%s [%g, %g): %d outside", dtype_names[dtype], low, high, bad);
            if (dtype != BF16) CHECK(close_to(sum / N, (low + high) / 2, 0.01));
            free(y);
        }
}

/* The same numbers in one call and in many, from `first` on. */
static void pieces_agree(void)
{
    const ul_kernels *k = ul_cpu_kernels(F32);
    float *whole = new_values(F32, N), *parts = new_values(F32, N);
    for (int kind = 0; kind < 2; kind++) {
        int (*draw)(ul_stream *, void *, double, double, int64_t, const ul_random_key *) =
            kind ? k->normal : k->uniform;
        draw(ul_cpu_stream(), whole, 0, 1, N, &keys[1]);
        for (int64_t at = 0, n = 1; at < N; at += n, n = n * 3 % 1009) {
            if (n > N - at) n = N - at;
            ul_random_key key = keys[1];
            key.first += (uint64_t)at;
            draw(ul_cpu_stream(), parts + at, 0, 1, n, &key);
        }
        CHECK(memcmp(whole, parts, N * sizeof *whole) == 0);
    }
    free(whole), free(parts);
}

static void normal_numbers(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= F64; dtype++) {
            void *y = new_values(dtype, N);
            ul_cpu_kernels(dtype)->normal(ul_cpu_stream(), y, 2, 3, N, &keys[1]);
            double sum = 0, squares = 0;
            int bad = 0;
            for (uint64_t j = 0; j < N; j++) {
                uint64_t word = 2 * (keys[1].first + j);
                double u = ((double)reference_word(&keys[1], word) + 1) * 0x1p-32;
                double v = (double)reference_word(&keys[1], word + 1) * 0x1p-32;
                double z = sqrt(-2 * log(u)) * cos(2 * acos(-1) * v), got;
                got = get(dtype, y, (int64_t)j);
                bad += !close_to(got, 2 + 3 * z, 2 * dtype_eps[dtype] + 1e-13);
                sum += got;
                squares += (got - 2) * (got - 2);
            }
            CHECK(!bad, "%s: %d wrong", dtype_names[dtype], bad);
            CHECK(close_to(sum / N, 2, 0.03) && close_to(squares / N, 9, 0.03), "mean %g, var %g",
                  sum / N, squares / N);
            free(y);
        }
}

static void integer_numbers(void)
{
    int64_t *y = new_values(I64, N);
    const ul_kernels *k = ul_cpu_kernels(I64);
    k->randint(ul_cpu_stream(), y, -(INT64_C(1) << 62), INT64_C(1) << 62, N, &keys[1]);
    int bad = 0;
    for (uint64_t j = 0; j < N; j++) {
        uint64_t word = 2 * (keys[1].first + j);
        uint64_t bits = (uint64_t)reference_word(&keys[1], word + 1) << 32;
        bits |= reference_word(&keys[1], word);
        bad += (uint64_t)y[j] + (UINT64_C(1) << 62) != bits >> 1;
    }
    CHECK(!bad, "%d wrong", bad);
    k->randint(ul_cpu_stream(), y, INT64_MIN, INT64_MAX, N, &keys[1]);
    k->randint(ul_cpu_stream(), y, 5, 5, 3, &keys[1]);
    CHECK(y[0] == 5 && y[1] == 5 && y[2] == 5);
    for (int dtype = 0; dtype < N_DTYPES; dtype++) {
        void *small = new_values(dtype, N);
        int seen[10] = {0};
        ul_cpu_kernels(dtype)->randint(ul_cpu_stream(), small, 3, 13, N, &keys[2]);
        for (int64_t j = 0; j < N; j++) {
            double x = get(dtype, small, j);
            if (x >= 3 && x < 13 && x == floor(x)) seen[(int)x - 3]++;
        }
        for (int i = 0; i < 10; i++) CHECK(abs(seen[i] - N / 10) < 400, "%d: %d", i + 3, seen[i]);
        free(small);
    }
    free(y);
}

static void dropout_follows_uniform(void)
{
    for (int level = 0; next_isa(&level); level++)
        for (int dtype = 0; dtype <= F64; dtype++)
            for (int add = 0; add < 2; add++) {
                void *x = new_noise(dtype, N, 1, 2, 1), *y = new_values(dtype, N);
                for (int64_t j = 0; j < N; j++) put(dtype, y, j, add ? 1 : NAN);
                ul_grad to = {y, add};
                ul_cpu_kernels(dtype)->dropout(ul_cpu_stream(), to, x, 0.25, N, &keys[1]);
                int bad = 0;
                for (uint64_t j = 0; j < N; j++) {
                    int kept = unit(reference_word(&keys[1], keys[1].first + j)) >= 0.25;
                    double want = kept ? get(dtype, x, (int64_t)j) / 0.75 : 0;
                    bad += !close_to(get(dtype, y, (int64_t)j), want + add, 4 * dtype_eps[dtype]);
                }
                CHECK(!bad, "%s %s: %d wrong", dtype_names[dtype], ul_cpu_isa(), bad);
                ul_cpu_kernels(dtype)->dropout(ul_cpu_stream(), (ul_grad){y, 0}, x, 1, N, &keys[1]);
                for (int64_t j = 0; j < N; j++) CHECK(get(dtype, y, j) == 0);
                free(x), free(y);
            }
}

int main(void)
{
    RUN(reference_knows_the_answers);
    RUN(uniform_numbers);
    RUN(uniform_is_the_same_everywhere);
    RUN(uniform_stays_below_high);
    RUN(pieces_agree);
    RUN(normal_numbers);
    RUN(integer_numbers);
    RUN(dropout_follows_uniform);
    return check_done();
}
