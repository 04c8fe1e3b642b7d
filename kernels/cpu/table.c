/* table.c - the table of one dtype at one ISA level. */
#include "cpu.h"

extern const ul_kernels CPU(table);

const ul_kernels CPU(table) = {
#define UL_KERNEL_ANY(name, signature, flops, bytes) .name = CPU(name),
#if UL_TYPE_FLOAT
#define UL_KERNEL_FLOAT(name, signature, flops, bytes) .name = CPU(name),
#else
#define UL_KERNEL_FLOAT(name, signature, flops, bytes)
#endif
#include "../kernels.def"
};
