/* tensor.c - handles: shape, strides and a count on storage. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "off_device.h"

static int64_t live[UL_DEVICES];

void ul_memory(ul_memory_stats *stats, ul_device device)
{
    ul__storage_stats(stats, device);
    stats->live_tensors = live[device];
}

/* A handle on `storage`, whose count it takes over. */
static int handle(ul_tensor **out, ul_storage *storage, ul_dtype dtype, int ndim,
                  const int64_t *shape, const int64_t *stride, int64_t offset)
{
    ul_tensor *t = ul__alloc(sizeof *t);
    if (!t) return ul__fail(UL_ENOMEM, "out of memory: no room for a tensor's record");
    *t = (ul_tensor){.refs = 1, .dtype = dtype, .ndim = ndim, .offset = offset, .storage = storage};
    for (int i = 0; i < ndim; i++) { /* both may be NULL where ndim is 0 */
        t->shape[i] = shape[i];
        t->stride[i] = stride[i];
    }
    live[storage->device]++;
    *out = t;
    return UL_OK;
}

/* On storage that new_storage makes. */
static int new_on(ul_tensor **out, ul_dtype dtype, ul_device device, int ndim, const int64_t *shape,
                  int (*new_storage)(ul_storage **out, ul_device device, int64_t bytes))
{
    UL_REQUIRE(ndim >= 0 && ndim <= UL_MAX_DIMS, UL_ESHAPE, "tensor: %d dims, at most %d", ndim,
               UL_MAX_DIMS);
    int64_t bytes = ul_dtype_bytes(dtype);
    for (int i = 0; i < ndim; i++)
        UL_REQUIRE(shape[i] >= 0, UL_ESHAPE, "tensor: size %lld of dim %d in %s is negative",
                   (long long)shape[i], i + 1, ul__shape_of(ndim, shape));
    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(bytes, shape[i] > 0 ? shape[i] : 1, &bytes) ||
            bytes > INT64_MAX / 4)
            return ul__fail(UL_ESHAPE, "tensor: %s is too large", ul__shape_of(ndim, shape));
    for (int i = 0; i < ndim; i++)
        if (shape[i] == 0) bytes = 0;
    int64_t stride[UL_MAX_DIMS];
    ul__contiguous_strides(stride, ndim, shape);
    ul_storage *storage;
    UL_TRY(new_storage(&storage, device, bytes));
    int rc = handle(out, storage, dtype, ndim, shape, stride, 0);
    if (rc < 0) ul__storage_free(storage);
    return rc;
}

int ul_tensor_new(ul_tensor **out, ul_dtype dtype, ul_device device, int ndim, const int64_t *shape)
{
    return new_on(out, dtype, device, ndim, shape, ul__storage_new);
}

int ul__empty_new(ul_tensor **out, ul_dtype dtype, ul_device device, int ndim, const int64_t *shape)
{
    return new_on(out, dtype, device, ndim, shape, ul__storage_hollow);
}

int ul__off_device_new(ul_tensor **out, ul_dtype dtype, ul_device home, int ndim,
                       const int64_t *shape)
{
    return new_on(out, dtype, home, ndim, shape, ul__storage_off);
}

int ul__view_of(ul_tensor **out, const ul_tensor *t, int ndim, const int64_t *shape,
                const int64_t *stride, int64_t offset)
{
    UL_TRY(handle(out, t->storage, t->dtype, ndim, shape, stride, offset));
    t->storage->refs++;
    return UL_OK;
}

int ul__alias(ul_tensor **out, const ul_tensor *t)
{
    return ul__view_of(out, t, t->ndim, t->shape, t->stride, t->offset);
}

ul_tensor *ul_tensor_retain(ul_tensor *t)
{
    if (t) t->refs++;
    return t;
}

void ul_tensor_free(ul_tensor *t)
{
    if (!t || --t->refs > 0) return;
    ul_variable *variable = t->variable;
    ul__passage_drop(t->passage);
    live[t->storage->device]--;
    ul__storage_free(t->storage);
    free(t);
    ul__variable_free(variable);
}

ul_dtype ul_tensor_dtype(const ul_tensor *t) { return t->dtype; }
ul_device ul_tensor_device(const ul_tensor *t) { return t->storage->device; }
int ul_tensor_ndim(const ul_tensor *t) { return t->ndim; }
int64_t ul_tensor_dim(const ul_tensor *t, int dim) { return t->shape[dim]; }
const int64_t *ul_tensor_shape(const ul_tensor *t) { return t->shape; }
const int64_t *ul_tensor_strides(const ul_tensor *t) { return t->stride; }

void *ul_tensor_data(const ul_tensor *t)
{
    ul__storage_forget(t->storage); /* who has the address may write there */
    return ul__data(t);
}

int64_t ul_tensor_size(const ul_tensor *t)
{
    int64_t size = 1;
    for (int i = 0; i < t->ndim; i++) size *= t->shape[i];
    return size;
}

int ul_tensor_is_contiguous(const ul_tensor *t)
{
    int64_t expected = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] == 0) return 1;
        if (t->shape[i] != 1 && t->stride[i] != expected) return 0;
        expected *= t->shape[i];
    }
    return 1;
}

int ul__compact(ul_tensor **out, const ul_tensor *x)
{
    ul_tensor *y;
    UL_TRY(ul__present(x));
    UL_TRY(ul_tensor_new(&y, x->dtype, x->storage->device, x->ndim, x->shape));
    const int64_t *strides[2] = {y->stride, x->stride};
    ul_loop loop;
    ul__loop(&loop, x->ndim, x->shape, 2, strides, 0);
    int rc = ul__kernels(x)->copy(ul__stream(x), ul__data(y), ul__data(x), &loop);
    if (rc < 0)
        ul_tensor_free(y);
    else
        *out = y;
    return rc;
}

/* Where element `index` lies, or NULL with a sentence. */
static void *element(const char *op, const ul_tensor *t, const int64_t *index)
{
    if (t->storage->device == UL_META) {
        ul__fail(UL_EDEVICE, "%s: a tensor on meta has no values", op);
        return NULL;
    }
    int64_t at = t->offset;
    for (int i = 0; i < t->ndim; i++) {
        if (index[i] < 0 || index[i] >= t->shape[i]) {
            ul__fail(UL_EVALUE, "%s: index %lld is outside dim %d of %s", op, (long long)index[i],
                     i + 1, ul__shape(t));
            return NULL;
        }
        at += index[i] * t->stride[i];
    }
    return (char *)t->storage->data + at * ul_dtype_bytes(t->dtype);
}

static float bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

int ul_tensor_get(double *value, const ul_tensor *t, const int64_t *index)
{
    UL_TRY(ul__present(t));
    const void *place = element("get", t, index);
    if (!place) return t->storage->device == UL_META ? UL_EDEVICE : UL_EVALUE;
    union {
        float f32;
        uint16_t bf16;
        double f64;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
    } at;
    UL_TRY(ul__read_values(&at, place, ul_dtype_bytes(t->dtype), t->storage->device));
    switch (t->dtype) {
    case UL_F32:
        *value = at.f32;
        break;
    case UL_BF16:
        *value = bf16_value(at.bf16);
        break;
    case UL_F64:
        *value = at.f64;
        break;
    case UL_I32:
        *value = at.i32;
        break;
    case UL_I64:
        *value = (double)at.i64;
        break;
    default:
        *value = at.u8;
        break;
    }
    return UL_OK;
}

int ul_tensor_get_int(int64_t *value, const ul_tensor *t, const int64_t *index)
{
    if (t->dtype == UL_I64) {
        const void *at = element("get", t, index);
        if (!at) return t->storage->device == UL_META ? UL_EDEVICE : UL_EVALUE;
        return ul__read_values(value, at, sizeof *value, t->storage->device);
    }
    double number;
    UL_TRY(ul_tensor_get(&number, t, index));
    UL_REQUIRE(number >= -0x1p63 && number < 0x1p63, UL_EVALUE, "get: %g is no 64-bit integer",
               number);
    *value = (int64_t)number;
    return UL_OK;
}

int ul_tensor_set(ul_tensor *t, const int64_t *index, double value)
{
    ul_tensor *cell = NULL;
    if (!element("set", t, index)) return t->storage->device == UL_META ? UL_EDEVICE : UL_EVALUE;
    int64_t at = t->offset;
    for (int i = 0; i < t->ndim; i++) at += index[i] * t->stride[i];
    UL_TRY(ul__change("set", t));
    UL_TRY(ul__view_of(&cell, t, 0, NULL, NULL, at));
    int rc = ul_fill_(cell, value);
    ul_tensor_free(cell);
    return rc;
}
