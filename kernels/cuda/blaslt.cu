/* blaslt.cu - products of matrices by cuBLASLt: descriptors, and an algorithm for each kind.
 *
 * cuBLASLt's matrices are column by column, ours row by row: what it takes for c is our c
 * transposed, so c^T = op(b)^T op(a)^T, with b in the place of its A. A stored [k, n] is an [n, k]
 * to it, which is op(b)^T as it stands.
 *
 * The results are the same in every run: the algorithm is the heuristic's first for a problem,
 * never one that was timed, and where it sums over k in parts these are f32 (f64), stand side by
 * side in the workspace and are summed in order.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../library.h"
#include "blaslt.h"
#include "blaslt_api.h"
#include "cuda.h"

/* PLANS: a power of two. What a GPU of sm_90 wants to work in is 32 MB. */
enum { PLANS = 4096, WORKSPACE = 32 << 20, MOST_ALIGNED = 256 };
enum { A, B, C, MATRICES };

/* All that decides on descriptors and algorithm: compared as bytes, so all of it is set. beta does
 * not: heuristics are not told of it.
 */
struct problem {
    uint64_t rows[MATRICES], cols[MATRICES];
    int64_t ld[MATRICES], step[MATRICES];
    int64_t batch;
    int32_t trans[2];
    int32_t type, c_type, compute, scale, epilogue;
    uint32_t alignment[MATRICES], bias_alignment, workspace;
};

struct plan {
    problem of;
    int state; /* 0: none, 1: cuBLASLt takes it, -1: it does not */
    void *desc, *layout[MATRICES];
    lt_algo algo;
};

/* Its functions; handle: NULL until it is open. */
static struct {
#define LT_FIELD(result, name, arguments) result(*name) arguments;
    LT_FUNCTIONS(LT_FIELD)
#undef LT_FIELD
    void *handle, *workspace;
    const ul_stream *stream; /* that may use the workspace */
    int (*fail)(const char *sentence);
} lt;

static plan plans[PLANS];
static int n_plans;

static int find_functions(void *library)
{
    char sentence[512];
#define LT_FIND(result, name, arguments)                                                         \
    *(void **)&lt.name = dlsym(library, "cublasLt" #name);                                       \
    if (!lt.name) {                                                                              \
        snprintf(sentence, sizeof sentence, "cuBLASLt has no cublasLt" #name ": %s", dlerror()); \
        return lt.fail(sentence);                                                                \
    }
    LT_FUNCTIONS(LT_FIND)
#undef LT_FIND
    return 0;
}

int ul_blaslt_open(ul_stream *s, int (*fail)(const char *sentence))
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    char why[1024], sentence[1200];
    lt.fail = fail;
    void *library = ul_library_open(names, why, sizeof why);
    if (!library) {
        snprintf(sentence, sizeof sentence, "cuBLASLt cannot be opened: %s", why);
        return fail(sentence);
    }
    int bad = find_functions(library);
    if (bad) return bad;
    void *handle = NULL;
    int status = lt.Create(&handle);
    if (status != LT_SUCCESS) {
        snprintf(sentence, sizeof sentence, "cuBLASLt does not start: %s",
                 lt.GetStatusString(status));
        return fail(sentence);
    }
    if (cudaMalloc(&lt.workspace, WORKSPACE) != cudaSuccess)
        return fail("there is no memory for the 32 MB that cuBLASLt works in");
    lt.stream = s;
    lt.handle = handle;
    return 0;
}

/* ---- what is asked ---- */

static uint32_t alignment_of(const void *data)
{
    uintptr_t at = (uintptr_t)data | MOST_ALIGNED;
    return (uint32_t)(at & (~at + 1));
}

/* The next matrix of a batch of them stands `step` elements on. */
static void put_matrix(problem *p, int i, int64_t rows, int64_t cols, int64_t ld, int64_t step)
{
    p->rows[i] = (uint64_t)rows;
    p->cols[i] = (uint64_t)cols;
    p->ld[i] = cols == 1 ? rows : ld; /* nobody has set that of one column */
    p->step[i] = p->batch == 1 ? 0 : step;
}

/* 0 where it is none for cuBLASLt. */
static int pose(problem *p, const ul_stream *s, int type, const void *c, const void *a,
                const void *b, const ul_gemm *g)
{
    static const int32_t types[] = {LT_R_32F, LT_R_16BF, LT_R_64F};
    if (g->batch > INT32_MAX || g->k == 0) return 0;
    if (g->bias && g->c_acc && type == UL_BLASLT_BF16) return 0; /* a bias is of the type of c */
    memset(p, 0, sizeof *p);
    p->batch = g->batch;
    put_matrix(p, A, g->b_trans ? g->k : g->n, g->b_trans ? g->n : g->k, g->ldb, g->b_step);
    put_matrix(p, B, g->a_trans ? g->m : g->k, g->a_trans ? g->k : g->m, g->lda, g->a_step);
    put_matrix(p, C, g->n, g->m, g->ldc, g->c_step);
    for (int i = 0; i < MATRICES; i++)
        if (p->ld[i] < (int64_t)p->rows[i] || p->step[i] < 0) return 0;
    p->trans[A] = g->b_trans ? LT_OP_T : LT_OP_N;
    p->trans[B] = g->a_trans ? LT_OP_T : LT_OP_N;
    p->type = types[type];
    p->c_type = g->c_acc && type == UL_BLASLT_BF16 ? LT_R_32F : p->type;
    p->scale = type == UL_BLASLT_F64 ? LT_R_64F : LT_R_32F;
    p->compute = type == UL_BLASLT_F64              ? LT_COMPUTE_64F
                 : type == UL_BLASLT_F32 && g->tf32 ? LT_COMPUTE_32F_FAST_TF32
                                                    : LT_COMPUTE_32F;
    p->epilogue = g->bias ? LT_EPILOGUE_BIAS : LT_EPILOGUE_DEFAULT;
    p->alignment[A] = alignment_of(b);
    p->alignment[B] = alignment_of(a);
    p->alignment[C] = alignment_of(c);
    p->bias_alignment = alignment_of(g->bias);
    p->workspace = s == lt.stream ? WORKSPACE : 0;
    return 1;
}

/* ---- what it makes of that ---- */

static int set_in_desc(void *desc, int name, const void *value, size_t bytes)
{
    return lt.MatmulDescSetAttribute(desc, name, value, bytes);
}

static int describe_matrix(void **layout, const problem *p, int i)
{
    int32_t batch = (int32_t)p->batch;
    int status = lt.MatrixLayoutCreate(layout, i == C ? p->c_type : p->type, p->rows[i], p->cols[i],
                                       p->ld[i]);
    if (!status)
        status = lt.MatrixLayoutSetAttribute(*layout, LT_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    if (!status)
        status = lt.MatrixLayoutSetAttribute(*layout, LT_LAYOUT_BATCH_OFFSET, &p->step[i],
                                             sizeof p->step[i]);
    return status;
}

/* The bias is read for its alignment. */
static int describe(plan *made, const void *bias)
{
    const problem *p = &made->of;
    uint32_t epilogue = (uint32_t)p->epilogue;
    int status = lt.MatmulDescCreate(&made->desc, p->compute, p->scale);
    if (!status) status = set_in_desc(made->desc, LT_DESC_TRANSA, &p->trans[A], sizeof p->trans[A]);
    if (!status) status = set_in_desc(made->desc, LT_DESC_TRANSB, &p->trans[B], sizeof p->trans[B]);
    if (!status) status = set_in_desc(made->desc, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!status && bias) status = set_in_desc(made->desc, LT_DESC_BIAS_POINTER, &bias, sizeof bias);
    for (int i = 0; i < MATRICES && !status; i++) status = describe_matrix(&made->layout[i], p, i);
    return status;
}

/* What may be chosen; parts of a sum meet only in the compute type. */
static int prefer(void **preference, const problem *p)
{
    uint64_t workspace = p->workspace;
    uint32_t mask = LT_REDUCTION_COMPUTE_TYPE;
    int status = lt.MatmulPreferenceCreate(preference);
    if (!status)
        status = lt.MatmulPreferenceSetAttribute(*preference, LT_PREF_MAX_WORKSPACE, &workspace,
                                                 sizeof workspace);
    if (!status)
        status = lt.MatmulPreferenceSetAttribute(*preference, LT_PREF_REDUCTION_MASK, &mask,
                                                 sizeof mask);
    for (int i = 0; i < 4 && !status; i++) {
        uint32_t alignment = p->alignment[i < C ? i : C]; /* D is C */
        status = lt.MatmulPreferenceSetAttribute(*preference, LT_PREF_ALIGNMENT_A + i, &alignment,
                                                 sizeof alignment);
    }
    return status;
}

/* made->state says whether there is an algorithm. */
static int choose(plan *made)
{
    void *preference = NULL;
    lt_choice choice;
    int found = 0;
    memset(&choice, 0, sizeof choice);
    int status = prefer(&preference, &made->of);
    if (!status)
        status = lt.MatmulAlgoGetHeuristic(lt.handle, made->desc, made->layout[A], made->layout[B],
                                           made->layout[C], made->layout[C], preference, 1, &choice,
                                           &found);
    if (preference) lt.MatmulPreferenceDestroy(preference);
    made->algo = choice.algo;
    made->state = !status && found > 0 && choice.state == LT_SUCCESS ? 1 : -1;
    return status == LT_NOT_SUPPORTED ? LT_SUCCESS : status;
}

static void forget(plan *made)
{
    for (int i = 0; i < MATRICES; i++)
        if (made->layout[i]) lt.MatrixLayoutDestroy(made->layout[i]);
    if (made->desc) lt.MatmulDescDestroy(made->desc);
    memset(made, 0, sizeof *made);
}

/* ---- what it has made before ---- */

static uint64_t hash_of(const problem *p)
{
    const unsigned char *bytes = (const unsigned char *)p;
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *p; i++) h = (h ^ bytes[i]) * 1099511628211u;
    return h ^ h >> 32;
}

/* The plan of a problem, made where there is none. Lengths of text that never come again would
 * fill the table: it is emptied then.
 */
static int plan_for(plan **found, const problem *p, const void *bias)
{
    uint64_t at = hash_of(p) % PLANS;
    for (; plans[at].state; at = (at + 1) % PLANS)
        if (memcmp(&plans[at].of, p, sizeof *p) == 0) {
            *found = &plans[at];
            return LT_SUCCESS;
        }
    if (n_plans >= PLANS / 4 * 3) {
        for (int i = 0; i < PLANS; i++) forget(&plans[i]);
        n_plans = 0;
        at = hash_of(p) % PLANS;
    }
    plan *made = &plans[at];
    made->of = *p;
    int status = describe(made, bias);
    if (!status) status = choose(made);
    if (status)
        forget(made);
    else
        n_plans++;
    *found = made;
    return status;
}

static int say(int status, int type, const ul_gemm *g)
{
    static const char *const names[] = {"f32", "bf16", "f64"};
    char sentence[512];
    snprintf(sentence, sizeof sentence,
             "cuBLASLt: %lld products [%lld, %lld] x [%lld, %lld] of %s: %s", (long long)g->batch,
             (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n, names[type],
             lt.GetStatusString(status));
    return lt.fail(sentence);
}

int ul_blaslt_gemm(int *made, ul_stream *s, int type, void *c, const void *a, const void *b,
                   const ul_gemm *g)
{
    problem p;
    plan *found;
    *made = 0;
    if (!lt.handle || !pose(&p, s, type, c, a, b, g)) return 0;
    int status = plan_for(&found, &p, g->bias);
    if (status) return say(status, type, g);
    if (found->state < 0) return 0;
    if (g->bias) status = set_in_desc(found->desc, LT_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    const float alpha = (float)g->alpha, beta = (float)g->beta;
    int f64 = type == UL_BLASLT_F64;
    if (!status)
        status =
            lt.Matmul(lt.handle, found->desc, f64 ? (const void *)&g->alpha : (const void *)&alpha,
                      b, found->layout[A], a, found->layout[B],
                      f64 ? (const void *)&g->beta : (const void *)&beta, c, found->layout[C], c,
                      found->layout[C], &found->algo, p.workspace ? lt.workspace : NULL,
                      p.workspace, s->stream);
    *made = !status;
    return status ? say(status, type, g) : 0;
}
