/* device.c - which kernels and which stream serve a tensor. The only place that names a backend. */
#include <string.h>

#include "internal.h"

static const ul_kernels *const meta_kernels[UL_DTYPES] = {
    [UL_F32] = &ul_kernels_meta_f32, [UL_BF16] = &ul_kernels_meta_bf16,
    [UL_F64] = &ul_kernels_meta_f64, [UL_I32] = &ul_kernels_meta_i32,
    [UL_I64] = &ul_kernels_meta_i64, [UL_U8] = &ul_kernels_meta_u8,
};

const char *ul_device_name(ul_device device)
{
    if (device == UL_CUDA) return ul__cuda_name();
    return device == UL_CPU ? "cpu" : "meta";
}

const ul_kernels *ul__kernels_of(ul_device device, ul_dtype dtype)
{
    if (device == UL_CUDA) return ul__cuda()->kernels[dtype];
    return device == UL_CPU ? ul_cpu_kernels(dtype) : meta_kernels[dtype];
}

const ul_kernels *ul__kernels(const ul_tensor *t)
{
    return ul__kernels_of(t->storage->device, t->dtype);
}

ul_stream *ul__stream(const ul_tensor *t)
{
    if (t->storage->device == UL_CUDA) return ul__cuda()->stream();
    return t->storage->device == UL_CPU ? ul_cpu_stream() : NULL;
}

void ul_meta_counts(double *flops, double *bytes)
{
    *flops = *bytes = 0;
    for (int k = 0; k < UL_KERNELS; k++)
        for (int dtype = 0; dtype < UL_DTYPES; dtype++) {
            *flops += ul_meta_counted[k][dtype].flops;
            *bytes += ul_meta_counted[k][dtype].bytes;
        }
}

const char *ul_meta_kernel(int i, ul_dtype dtype, double *calls, double *flops, double *bytes)
{
    if (i < 0 || i >= UL_KERNELS) return NULL;
    const ul_meta_count *counted = &ul_meta_counted[i][dtype];
    *calls = counted->calls;
    *flops = counted->flops;
    *bytes = counted->bytes;
    return ul_kernel_name((ul_kernel)i);
}

/* Products and attention that have run. Atomic: as the counts of meta. */
static double flops_counted;

void ul__count_flops(double flops)
{
    double before, after;
    __atomic_load(&flops_counted, &before, __ATOMIC_RELAXED);
    do after = before + flops;
    while (!__atomic_compare_exchange(&flops_counted, &before, &after, 1, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
}

double ul_flops(void)
{
    double flops;
    __atomic_load(&flops_counted, &flops, __ATOMIC_RELAXED);
    return flops;
}

static int tf32_allowed;

int ul_tf32(void) { return tf32_allowed; }

void ul_set_tf32(int allowed) { tf32_allowed = allowed != 0; }

int ul__gemm(const ul_kernels *kernels, ul_stream *stream, void *c, const void *a, const void *b,
             const ul_gemm *g)
{
    ul_gemm product = *g;
    product.tf32 = tf32_allowed;
    ul__count_flops(ul_flops_of_gemm(g));
    return kernels->gemm(stream, c, a, b, &product);
}

double ul_peak_flops(ul_dtype dtype)
{
    /* doubles are half as many to a register */
    return ul_cpu_peak_flops(dtype == UL_BF16) / (dtype == UL_F64 ? 2 : 1);
}

void ul_meta_reset(void) { memset(ul_meta_counted, 0, sizeof ul_meta_counted); }

int ul_threads(void) { return ul_cpu_threads(); }

int ul_set_threads(int n)
{
    UL_REQUIRE(n >= 1 && n <= 256, UL_EVALUE, "threads: %d is outside [1, 256]", n);
    ul_cpu_set_threads(n);
    return UL_OK;
}

const char *ul_isa(void) { return ul_cpu_isa(); }

int ul_set_isa(const char *name)
{
    UL_REQUIRE(ul_cpu_set_isa(name), UL_EVALUE,
               "isa: this machine has no level '%s' (base, avx2, avx512, avx512bf16)", name);
    return UL_OK;
}
