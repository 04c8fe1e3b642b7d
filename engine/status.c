/* status.c - errors, dtypes, and the sentences that name them. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

static _Thread_local char last_error[1024];

const char *ul_last_error(void) { return last_error; }

int ul__fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return code;
}

static const struct {
    const char *name;
    int bytes, is_float;
    ul_dtype acc;
} dtypes[UL_DTYPES] = {
    [UL_F32] = {"f32", 4, 1, UL_F32}, [UL_BF16] = {"bf16", 2, 1, UL_F32},
    [UL_F64] = {"f64", 8, 1, UL_F64}, [UL_I32] = {"i32", 4, 0, UL_I64},
    [UL_I64] = {"i64", 8, 0, UL_I64}, [UL_U8] = {"u8", 1, 0, UL_I64},
};

const char *ul_dtype_name(ul_dtype dtype) { return dtypes[dtype].name; }
int64_t ul_dtype_bytes(ul_dtype dtype) { return dtypes[dtype].bytes; }
int ul_dtype_is_float(ul_dtype dtype) { return dtypes[dtype].is_float; }
ul_dtype ul_dtype_acc(ul_dtype dtype) { return dtypes[dtype].acc; }

const char *ul__shape_of(int ndim, const int64_t *shape)
{
    static _Thread_local char buffers[8][UL_MAX_DIMS * 22 + 4];
    static _Thread_local unsigned turn;
    char *text = buffers[turn++ % 8];
    int at = sprintf(text, "[");
    for (int i = 0; i < ndim && i < UL_MAX_DIMS; i++)
        at += sprintf(text + at, i ? ", %lld" : "%lld", (long long)shape[i]);
    sprintf(text + at, "]");
    return text;
}

const char *ul__shape(const ul_tensor *t) { return ul__shape_of(t->ndim, t->shape); }

int ul__check_dtype(const char *op, const char *name, const ul_tensor *x, ul_dtype dtype)
{
    UL_REQUIRE(x->dtype == dtype, UL_EDTYPE, "%s: %s must be %s, not %s", op, name,
               ul_dtype_name(dtype), ul_dtype_name(x->dtype));
    return UL_OK;
}

int ul__check_float(const char *op, const char *name, const ul_tensor *x)
{
    UL_REQUIRE(ul_dtype_is_float(x->dtype), UL_EDTYPE, "%s: %s must be f32, bf16 or f64, not %s",
               op, name, ul_dtype_name(x->dtype));
    return UL_OK;
}

int ul__check_device(const char *op, const char *name_a, const ul_tensor *a, const char *name_b,
                     const ul_tensor *b)
{
    UL_REQUIRE(a->storage->device == b->storage->device, UL_EDEVICE,
               "%s: %s is on %s, %s on %s; bring them together with :to()", op, name_a,
               ul_device_name(a->storage->device), name_b, ul_device_name(b->storage->device));
    return UL_OK;
}

int ul__check_same(const char *op, const char *name_a, const ul_tensor *a, const char *name_b,
                   const ul_tensor *b)
{
    UL_TRY(ul__check_device(op, name_a, a, name_b, b));
    UL_REQUIRE(a->dtype == b->dtype, UL_EDTYPE,
               "%s: dtypes differ (%s is %s, %s is %s); convert one with :to()", op, name_a,
               ul_dtype_name(a->dtype), name_b, ul_dtype_name(b->dtype));
    return UL_OK;
}
