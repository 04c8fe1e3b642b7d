/* table.cu - the table of one dtype. */
#include "cuda.h"

extern "C" {
extern const ul_kernels CUDA(table);
const ul_kernels CUDA(table) = {
#define UL_KERNEL_ANY(name, signature, flops, bytes) CUDA(name),
#if UL_TYPE_FLOAT
#define UL_KERNEL_FLOAT(name, signature, flops, bytes) CUDA(name),
#else
#define UL_KERNEL_FLOAT(name, signature, flops, bytes) 0,
#endif
#include "../kernels.def"
};
}
