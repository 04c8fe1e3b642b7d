/* blaslt.h - products of matrices by cuBLASLt. */
#ifndef UL_CUDA_BLASLT_H
#define UL_CUDA_BLASLT_H

#include "../kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the order of the backend's tables. */
enum { UL_BLASLT_F32, UL_BLASLT_BF16, UL_BLASLT_F64 };

/* Opens the library for work on this stream, and takes the 32 MB that it works in. Returns 0, or
 * what `fail` returned.
 */
int ul_blaslt_open(ul_stream *s, int (*fail)(const char *sentence));

/* As `gemm` of kernels.h. *made is 0 where the library is not open or does not take the case;
 * nothing is written then.
 */
int ul_blaslt_gemm(int *made, ul_stream *s, int type, void *c, const void *a, const void *b,
                   const ul_gemm *g);

#ifdef __cplusplus
}
#endif
#endif
