/* fake_cublaslt.cc - stands in for cuBLASLt in tests: products made on the CPU as its documentation
 * says, from descriptors that are read strictly.
 *
 * What the documentation does not allow returns an error, with its cause on stderr. FAKE_CUBLASLT =
 * no_create | no_heuristic | no_matmul makes that step fail; FAKE_CUBLASLT_LOG names a file that
 * gets the line "N products, N in parts, N choices, N rounded parts" at the end.
 *
 * The heuristic takes the worst that is allowed: it sums in parts where k is long, rounded to the
 * output's type where the mask of reductions lets it, and wants the workspace for that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "blaslt_api.h"

namespace
{
enum { DESC = 0x6c740001, LAYOUT, PREFERENCE, HANDLE, ALGO };
enum { LONG = 256, PARTS = 4 };

struct desc {
    int kind, compute, scale;
    int32_t trans[2];
    uint32_t epilogue;
    const void *bias;
};

struct layout {
    int kind, type;
    uint64_t rows, cols;
    int64_t ld, step;
    int32_t batch;
};

struct preference {
    int kind;
    uint64_t workspace;
    uint32_t mask, alignment[4];
};

/* What lt_algo holds. */
struct algo {
    uint64_t kind, made_for, workspace, parts, round_parts;
    uint16_t alignment[4];
};
static_assert(sizeof(algo) <= sizeof(lt_algo), "fits");

struct counts {
    long products, in_parts, choices, rounded_parts;
    ~counts()
    {
        const char *path = getenv("FAKE_CUBLASLT_LOG");
        FILE *f = path ? fopen(path, "a") : NULL;
        if (!f) return;
        fprintf(f, "%ld products, %ld in parts, %ld choices, %ld rounded parts\n", products,
                in_parts, choices, rounded_parts);
        fclose(f);
    }
} counted;

int handle_value = HANDLE;

int told_to_fail(const char *step)
{
    const char *what = getenv("FAKE_CUBLASLT");
    return what && strcmp(what, step) == 0;
}

int wrong(const char *what)
{
    fprintf(stderr, "fake cuBLASLt: %s\n", what);
    return LT_INVALID_VALUE;
}

template <class T> int take(T *field, const void *value, size_t bytes)
{
    if (!value || bytes != sizeof *field) return wrong("an attribute of another size");
    memcpy(field, value, bytes);
    return LT_SUCCESS;
}

/* ---- elements ---- */

float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* To the nearest of which `dropped` bits are 0, to even where there are two. */
float rounded(float f, int dropped)
{
    uint32_t bits = bits_of(f), half = (1u << (dropped - 1)) - 1;
    if ((bits & 0x7f800000u) == 0x7f800000u) return f;
    bits += half + (bits >> dropped & 1);
    return float_of(bits >> dropped << dropped);
}

double get(const void *data, int type, int64_t at)
{
    if (type == LT_R_16BF) return (double)float_of((uint32_t)((const uint16_t *)data)[at] << 16);
    return type == LT_R_32F ? (double)((const float *)data)[at] : ((const double *)data)[at];
}

double as(int type, double x)
{
    if (type == LT_R_64F) return x;
    return type == LT_R_32F ? (double)(float)x : (double)rounded((float)x, 16);
}

void put(void *data, int type, int64_t at, double x)
{
    if (type == LT_R_64F)
        ((double *)data)[at] = x;
    else if (type == LT_R_32F)
        ((float *)data)[at] = (float)x;
    else
        ((uint16_t *)data)[at] = (uint16_t)(bits_of(rounded((float)x, 16)) >> 16);
}

int is_aligned(const void *data, uint64_t to) { return (uintptr_t)data % to == 0; }

/* ---- what is a product, and which are made ---- */

uint64_t mix(uint64_t h, uint64_t x) { return (h ^ x) * 0x9e3779b97f4a7c15u ^ h >> 29; }

/* Of all that a choice was made for; a bias only by its alignment. */
uint64_t fingerprint(const desc *d, const layout *const *of)
{
    uint64_t h = mix(mix(mix(mix((uint64_t)d->compute, (uint64_t)d->scale), (uint64_t)d->trans[0]),
                         (uint64_t)d->trans[1]),
                     d->epilogue);
    if (d->epilogue == LT_EPILOGUE_BIAS) h = mix(h, is_aligned(d->bias, 16));
    for (int i = 0; i < 4; i++) {
        const layout *l = of[i];
        h = mix(mix(mix(h, (uint64_t)l->type), l->rows), l->cols);
        h = mix(mix(mix(h, (uint64_t)l->ld), (uint64_t)l->step), (uint64_t)l->batch);
    }
    return h;
}

int check_shapes(const desc *d, const layout *const *of)
{
    uint64_t m = d->trans[0] ? of[0]->cols : of[0]->rows;
    uint64_t k = d->trans[0] ? of[0]->rows : of[0]->cols;
    uint64_t n = d->trans[1] ? of[1]->rows : of[1]->cols;
    if ((d->trans[1] ? of[1]->cols : of[1]->rows) != k) return wrong("A and B differ in k");
    for (int i = 0; i < 4; i++) {
        const layout *l = of[i];
        if (l->rows == 0 || l->cols == 0) return wrong("an empty matrix");
        if (l->ld < (int64_t)l->rows) return wrong("ld is less than rows");
        if (l->batch != of[0]->batch || l->batch < 1) return wrong("batch counts differ");
        if (i >= 2 && (l->rows != m || l->cols != n)) return wrong("C or D has another shape");
        if (i == 3 && l->batch > 1 && l->step < (int64_t)(l->cols - 1) * l->ld + (int64_t)l->rows)
            return wrong("matrices of D overlap");
    }
    if (d->epilogue == LT_EPILOGUE_BIAS && !d->bias) return wrong("a bias without a pointer");
    return LT_SUCCESS;
}

/* The table of types in the documentation of cublasLtMatmul(); a bias is of D's type. */
int is_supported(const desc *d, const layout *const *of)
{
    int in = of[0]->type, out = of[3]->type;
    if (of[1]->type != in || of[2]->type != out) return 0;
    if (d->compute == LT_COMPUTE_64F)
        return d->scale == LT_R_64F && in == LT_R_64F && out == LT_R_64F;
    if (d->compute != LT_COMPUTE_32F && d->compute != LT_COMPUTE_32F_FAST_TF32) return 0;
    if (d->scale != LT_R_32F || (in != LT_R_32F && in != LT_R_16BF)) return 0;
    return out == in || (in == LT_R_16BF && out == LT_R_32F);
}

/* ---- making it ---- */

struct product {
    const desc *d;
    const layout *const *of;
    const algo *how;
    const void *a, *b, *c;
    void *made;
    double alpha, beta;
    double *partial;          /* the workspace */
    std::vector<double> x, y; /* of one matrix of the batch: rows of op(A), columns of op(B) */
};

uint64_t depth(const product &p) { return p.d->trans[0] ? p.of[0]->rows : p.of[0]->cols; }

double operand(const product &p, int i, const void *data, int64_t matrix, uint64_t row,
               uint64_t col)
{
    const layout *l = p.of[i];
    double x = get(data, l->type, matrix * l->step + (int64_t)col * l->ld + (int64_t)row);
    int tf32 = l->type == LT_R_32F && p.d->compute == LT_COMPUTE_32F_FAST_TF32;
    return tf32 ? (double)rounded((float)x, 13) : x;
}

/* Once: each element is in many sums. */
void gather(product &p, int64_t matrix)
{
    uint64_t k = depth(p), m = p.of[3]->rows, n = p.of[3]->cols;
    p.x.resize(m * k);
    p.y.resize(n * k);
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t t = 0; t < k; t++)
            p.x[i * k + t] =
                p.d->trans[0] ? operand(p, 0, p.a, matrix, t, i) : operand(p, 0, p.a, matrix, i, t);
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t t = 0; t < k; t++)
            p.y[j * k + t] =
                p.d->trans[1] ? operand(p, 1, p.b, matrix, j, t) : operand(p, 1, p.b, matrix, t, j);
}

double dot(const double *x, const double *y, uint64_t from, uint64_t end)
{
    double sum = 0;
    for (uint64_t t = from; t < end; t++) sum += x[t] * y[t];
    return sum;
}

void make_element(const product &p, int64_t matrix, uint64_t i, uint64_t j)
{
    const layout *out = p.of[3], *old = p.of[2];
    uint64_t k = depth(p), parts = p.how->parts;
    const double *x = p.x.data() + i * k, *y_column = p.y.data() + j * k;
    double sum = 0;
    for (uint64_t part = 0; part < parts; part++)
        p.partial[part] = dot(x, y_column, k * part / parts, k * (part + 1) / parts);
    for (uint64_t part = 0; part < parts; part++)
        sum += p.how->round_parts ? as(out->type, p.partial[part]) : p.partial[part];
    double y = p.alpha * sum;
    int64_t at = (int64_t)j * old->ld + (int64_t)i;
    if (p.beta != 0) y += p.beta * get(p.c, old->type, matrix * old->step + at);
    if (p.d->epilogue == LT_EPILOGUE_BIAS) y += get(p.d->bias, out->type, (int64_t)i);
    put(p.made, out->type, matrix * out->step + (int64_t)j * out->ld + (int64_t)i, y);
}

int check_pointers(const algo *how, const void *const *data, const void *workspace, size_t bytes)
{
    for (int i = 0; i < 4; i++) {
        if (!data[i]) return wrong("no matrix");
        if (!is_aligned(data[i], how->alignment[i]))
            return wrong("a matrix is less aligned than was said");
    }
    if (bytes < how->workspace) return wrong("the workspace is too small");
    if (how->workspace && (!workspace || !is_aligned(workspace, 16)))
        return wrong("the workspace is not aligned");
    return LT_SUCCESS;
}
} // namespace

extern "C" {
#define LT_DECLARE(result, name, arguments) \
    __attribute__((visibility("default"))) result cublasLt##name arguments;
LT_FUNCTIONS(LT_DECLARE)

int cublasLtCreate(void **handle)
{
    if (told_to_fail("no_create")) return LT_NOT_INITIALIZED;
    *handle = &handle_value;
    return LT_SUCCESS;
}

const char *cublasLtGetStatusString(int status)
{
    return status == LT_NOT_INITIALIZED ? "not initialized"
           : status == LT_INVALID_VALUE ? "invalid value"
                                        : "failed";
}

int cublasLtMatmulDescCreate(void **made, int compute, int scale)
{
    *made = new desc{DESC, compute, scale, {LT_OP_N, LT_OP_N}, LT_EPILOGUE_DEFAULT, NULL};
    return LT_SUCCESS;
}

int cublasLtMatmulDescSetAttribute(void *to, int name, const void *value, size_t bytes)
{
    desc *d = (desc *)to;
    if (d->kind != DESC) return wrong("no description");
    if (name == LT_DESC_TRANSA) return take(&d->trans[0], value, bytes);
    if (name == LT_DESC_TRANSB) return take(&d->trans[1], value, bytes);
    if (name == LT_DESC_EPILOGUE) return take(&d->epilogue, value, bytes);
    if (name == LT_DESC_BIAS_POINTER) return take(&d->bias, value, bytes);
    return wrong("an attribute that a description has not");
}

int cublasLtMatmulDescDestroy(void *made)
{
    if (((desc *)made)->kind != DESC) return wrong("no description");
    delete (desc *)made;
    return LT_SUCCESS;
}

int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    *made = new layout{LAYOUT, type, rows, cols, ld, 0, 1};
    return LT_SUCCESS;
}

int cublasLtMatrixLayoutSetAttribute(void *to, int name, const void *value, size_t bytes)
{
    layout *l = (layout *)to;
    if (l->kind != LAYOUT) return wrong("no layout");
    if (name == LT_LAYOUT_BATCH_COUNT) return take(&l->batch, value, bytes);
    if (name == LT_LAYOUT_BATCH_OFFSET) return take(&l->step, value, bytes);
    return wrong("an attribute that a layout has not");
}

int cublasLtMatrixLayoutDestroy(void *made)
{
    if (((layout *)made)->kind != LAYOUT) return wrong("no layout");
    delete (layout *)made;
    return LT_SUCCESS;
}

int cublasLtMatmulPreferenceCreate(void **made)
{
    *made = new preference{PREFERENCE, 0, 7, {256, 256, 256, 256}};
    return LT_SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(void *to, int name, const void *value, size_t bytes)
{
    preference *p = (preference *)to;
    if (p->kind != PREFERENCE) return wrong("no preference");
    if (name == LT_PREF_MAX_WORKSPACE) return take(&p->workspace, value, bytes);
    if (name == LT_PREF_REDUCTION_MASK) return take(&p->mask, value, bytes);
    if (name >= LT_PREF_ALIGNMENT_A && name < LT_PREF_ALIGNMENT_A + 4)
        return take(&p->alignment[name - LT_PREF_ALIGNMENT_A], value, bytes);
    return wrong("an attribute that a preference has not");
}

int cublasLtMatmulPreferenceDestroy(void *made)
{
    if (((preference *)made)->kind != PREFERENCE) return wrong("no preference");
    delete (preference *)made;
    return LT_SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *description, void *a, void *b, void *c,
                                   void *d, void *preferred, int wanted, lt_choice *choices,
                                   int *found)
{
    const layout *of[4] = {(layout *)a, (layout *)b, (layout *)c, (layout *)d};
    const desc *what = (desc *)description;
    const preference *p = (preference *)preferred;
    *found = 0;
    if (handle != &handle_value || wanted < 1) return wrong("no handle, or nothing wanted");
    int status = check_shapes(what, of);
    if (status) return status;
    if (told_to_fail("no_heuristic") || !is_supported(what, of)) return LT_NOT_SUPPORTED;

    uint64_t k = what->trans[0] ? of[0]->rows : of[0]->cols;
    algo how = {ALGO, fingerprint(what, of), 0, 1, 0, {0, 0, 0, 0}};
    const uint64_t work = PARTS * sizeof(double);
    if (k >= LONG && p->workspace >= work && p->mask) {
        how.parts = PARTS;
        how.round_parts = (p->mask & (LT_REDUCTION_INPLACE | LT_REDUCTION_OUTPUT_TYPE)) != 0;
    }
    if (how.parts > 1) how.workspace = work;
    for (int i = 0; i < 4; i++) how.alignment[i] = (uint16_t)p->alignment[i];
    memset(choices, 0, sizeof *choices);
    memcpy(&choices->algo, &how, sizeof how);
    choices->workspace = how.workspace;
    choices->state = LT_SUCCESS;
    *found = 1;
    counted.choices++;
    return LT_SUCCESS;
}

int cublasLtMatmul(void *handle, void *description, const void *alpha, const void *a,
                   void *a_layout, const void *b, void *b_layout, const void *beta, const void *c,
                   void *c_layout, void *d, void *d_layout, const lt_algo *chosen, void *workspace,
                   size_t workspace_bytes, void *)
{
    const layout *of[4] = {(layout *)a_layout, (layout *)b_layout, (layout *)c_layout,
                           (layout *)d_layout};
    const void *data[4] = {a, b, c, d};
    const desc *what = (desc *)description;
    algo how;
    memcpy(&how, chosen, sizeof how);
    if (told_to_fail("no_matmul")) return 13;
    if (handle != &handle_value) return wrong("no handle");
    if (how.kind != ALGO || how.made_for != fingerprint(what, of))
        return wrong("the algorithm was chosen for another product");
    int status = check_pointers(&how, data, workspace, workspace_bytes);
    if (status) return status;
    if (c == d && memcmp(of[2], of[3], sizeof *of[2]) != 0)
        return wrong("C is D, in another layout");

    double whole[1];
    product p = {what,
                 of,
                 &how,
                 a,
                 b,
                 c,
                 d,
                 get(alpha, what->scale, 0),
                 get(beta, what->scale, 0),
                 how.parts > 1 ? (double *)workspace : whole,
                 {},
                 {}};
    for (int64_t matrix = 0; matrix < of[3]->batch; matrix++) {
        gather(p, matrix);
        for (uint64_t j = 0; j < of[3]->cols; j++)
            for (uint64_t i = 0; i < of[3]->rows; i++) make_element(p, matrix, i, j);
    }
    counted.products++;
    counted.in_parts += how.parts > 1;
    if (how.round_parts) counted.rounded_parts += (long)how.parts;
    return LT_SUCCESS;
}
}
