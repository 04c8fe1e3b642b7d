/* blaslt_header.cc - kernels/cuda/blaslt_api.h against cuBLASLt's own header: compiled where there
 * is one, and then all is proved.
 */
#include <cublasLt.h>
#include <type_traits>

#include "blaslt_api.h"

#define SAME(own, theirs) static_assert((int)(own) == (int)(theirs), #own)

SAME(LT_SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(LT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(LT_R_32F, CUDA_R_32F);
SAME(LT_R_64F, CUDA_R_64F);
SAME(LT_R_16BF, CUDA_R_16BF);
SAME(LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(LT_COMPUTE_64F, CUBLAS_COMPUTE_64F);
SAME(LT_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME(LT_OP_N, CUBLAS_OP_N);
SAME(LT_OP_T, CUBLAS_OP_T);
SAME(LT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME(LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(LT_REDUCTION_INPLACE, CUBLASLT_REDUCTION_SCHEME_INPLACE);
SAME(LT_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(LT_REDUCTION_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
SAME(LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(LT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(LT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(LT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(LT_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
SAME(LT_LAYOUT_BATCH_OFFSET, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
SAME(LT_PREF_MAX_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(LT_PREF_REDUCTION_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(LT_PREF_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(LT_PREF_ALIGNMENT_A + 1, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(LT_PREF_ALIGNMENT_A + 2, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(LT_PREF_ALIGNMENT_A + 3, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

static_assert(sizeof(lt_algo) == sizeof(cublasLtMatmulAlgo_t), "algo");
static_assert(sizeof(lt_choice) == sizeof(cublasLtMatmulHeuristicResult_t), "choice");
#define SAME_FIELD(own, theirs) \
    SAME(offsetof(lt_choice, own), offsetof(cublasLtMatmulHeuristicResult_t, theirs))
SAME_FIELD(algo, algo);
SAME_FIELD(workspace, workspaceSize);
SAME_FIELD(state, state);
SAME_FIELD(waves, wavesCount);

/* Arguments: as many, each of the same kind and size (a handle is a pointer, an enum an int). */
template <class T, class U> constexpr bool alike()
{
    if (std::is_pointer_v<T> || std::is_pointer_v<U>)
        return std::is_pointer_v<T> && std::is_pointer_v<U>;
    return sizeof(T) == sizeof(U);
}
template <class F, class G> constexpr bool same_function = false;
template <class R, class... A, class S, class... B>
constexpr bool same_function<R (*)(A...), S (*)(B...)> = [] {
    if constexpr (sizeof...(A) != sizeof...(B))
        return false;
    else
        return alike<R, S>() && (alike<A, B>() && ...);
}();
#define SAME_FUNCTION(result, name, arguments) \
    static_assert(same_function<result(*) arguments, decltype(&cublasLt##name)>, #name);
LT_FUNCTIONS(SAME_FUNCTION)
