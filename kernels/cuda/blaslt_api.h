/* blaslt_api.h - what is used of cuBLASLt's interface, as its documentation gives it.
 *
 * The library is opened by name, and its header is on few machines: so its declarations stand here.
 * tests/cuemu/blaslt_header.cc compares them with the header where there is one.
 */
#ifndef UL_CUDA_BLASLT_API_H
#define UL_CUDA_BLASLT_API_H

#include <stddef.h>
#include <stdint.h>

enum { LT_SUCCESS = 0, LT_NOT_INITIALIZED = 1, LT_INVALID_VALUE = 7, LT_NOT_SUPPORTED = 15 };
enum { LT_R_32F = 0, LT_R_64F = 1, LT_R_16BF = 14 };
enum { LT_COMPUTE_32F = 68, LT_COMPUTE_64F = 70, LT_COMPUTE_32F_FAST_TF32 = 77 };
enum { LT_OP_N = 0, LT_OP_T = 1 };
enum { LT_EPILOGUE_DEFAULT = 1, LT_EPILOGUE_BIAS = 4 };

/* Where parts of a sum meet that are made side by side (split-K). */
enum {
    LT_REDUCTION_INPLACE = 1,      /* one after another in the output, rounded to its type */
    LT_REDUCTION_COMPUTE_TYPE = 2, /* beside each other in the workspace, then summed */
    LT_REDUCTION_OUTPUT_TYPE = 4,  /* the same, rounded to the output's type */
};

/* Attributes, and the type of each. */
enum {
    LT_DESC_TRANSA = 3,         /* int32_t */
    LT_DESC_TRANSB = 4,         /* int32_t */
    LT_DESC_EPILOGUE = 7,       /* uint32_t */
    LT_DESC_BIAS_POINTER = 8,   /* const void *; as many elements as D has rows, of D's type */
    LT_LAYOUT_BATCH_COUNT = 5,  /* int32_t */
    LT_LAYOUT_BATCH_OFFSET = 6, /* int64_t, in elements */
    LT_PREF_MAX_WORKSPACE = 1,  /* uint64_t */
    LT_PREF_REDUCTION_MASK = 3, /* uint32_t */
    LT_PREF_ALIGNMENT_A = 5,    /* uint32_t, bytes; those of B, C and D follow */
};

typedef struct lt_algo {
    uint64_t data[8];
} lt_algo;

typedef struct lt_choice {
    lt_algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} lt_choice;

/* F(result, name without "cublasLt", arguments). Handles and descriptors are pointers; a matrix is
 * column by column, its ld at least its rows.
 */
#define LT_FUNCTIONS(F)                                                                            \
    F(int, Create, (void **handle))                                                                \
    F(const char *, GetStatusString, (int status))                                                 \
    F(int, MatmulDescCreate, (void **desc, int compute_type, int scale_type))                      \
    F(int, MatmulDescSetAttribute, (void *desc, int name, const void *value, size_t bytes))        \
    F(int, MatmulDescDestroy, (void *desc))                                                        \
    F(int, MatrixLayoutCreate,                                                                     \
      (void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld))                         \
    F(int, MatrixLayoutSetAttribute, (void *layout, int name, const void *value, size_t bytes))    \
    F(int, MatrixLayoutDestroy, (void *layout))                                                    \
    F(int, MatmulPreferenceCreate, (void **preference))                                            \
    F(int, MatmulPreferenceSetAttribute,                                                           \
      (void *preference, int name, const void *value, size_t bytes))                               \
    F(int, MatmulPreferenceDestroy, (void *preference))                                            \
    F(int, MatmulAlgoGetHeuristic,                                                                 \
      (void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int wanted, \
       lt_choice *choices, int *found))                                                            \
    /* d = alpha op(a) op(b) + beta c, and the epilogue */                                         \
    F(int, Matmul,                                                                                 \
      (void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,  \
       void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,   \
       const lt_algo *algo, void *workspace, size_t workspace_bytes, void *stream))

#endif
