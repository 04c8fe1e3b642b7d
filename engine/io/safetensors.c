/* safetensors.c - reads the safetensors format: a header of JSON, then the tensors' bytes.
 *
 * 8 bytes: the header's length n, little-endian; n bytes of JSON, which maps names to dtype, shape
 * and a range of the data behind the header; the data. The ranges cover the data without holes and
 * without overlap, so the file's length follows from the header.
 *
 * Tensors are read with pread(), not mapped: a file that is cut off, or a disk that fails, is an
 * error here, where under a mapping it would be a signal that ends the program.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "io.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the format is little-endian, and read and written without conversion"
#endif

enum { LONGEST_HEADER = 100000000, DEEPEST = 8, PIECE = 1 << 16, F16 = -2, BOOL = -3, NONE = -1 };

struct ul_safetensors {
    char *path;
    int fd;
    json_t *header;         /* names, dtypes and metadata are borrowed from it */
    int64_t n, data, bytes; /* data: where it begins in the file of so many bytes */
    ul_safetensors_entry *entries;
    const ul_safetensors_entry **by_name;
};

static const struct {
    const char *name;
    int bits, dtype;
} dtypes[] = {
    {"F32", 32, UL_F32},      {"BF16", 16, UL_BF16},   {"F16", 16, F16},     {"F64", 64, UL_F64},
    {"I32", 32, UL_I32},      {"I64", 64, UL_I64},     {"U8", 8, UL_U8},     {"BOOL", 8, BOOL},
    {"I8", 8, NONE},          {"I16", 16, NONE},       {"U16", 16, NONE},    {"U32", 32, NONE},
    {"U64", 64, NONE},        {"C64", 64, NONE},       {"F4", 4, NONE},      {"F6_E2M3", 6, NONE},
    {"F6_E3M2", 6, NONE},     {"F8_E5M2", 8, NONE},    {"F8_E4M3", 8, NONE}, {"F8_E8M0", 8, NONE},
    {"F8_E4M3FNUZ", 8, NONE}, {"F8_E5M2FNUZ", 8, NONE}};

static int dtype_index(const char *name)
{
    for (int i = 0; i < (int)(sizeof dtypes / sizeof dtypes[0]); i++)
        if (strcmp(dtypes[i].name, name) == 0) return i;
    return -1;
}

/* ---- the header ---- */

static int depth_of(json_t *value)
{
    int deepest = 0, depth;
    const char *key;
    size_t i;
    json_t *inner;
    json_object_foreach(value, key, inner)
    {
        if ((depth = depth_of(inner)) > deepest) deepest = depth;
    }
    json_array_foreach(value, i, inner)
    {
        if ((depth = depth_of(inner)) > deepest) deepest = depth;
    }
    return deepest + (json_is_object(value) || json_is_array(value));
}

/* A number that counts something. */
static int is_size(json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static int read_shape(ul_safetensors *file, ul_safetensors_entry *entry, json_t *shape)
{
    UL_REQUIRE(json_is_array(shape), UL_EIO, "%s: tensor '%.80s' has no shape", file->path,
               entry->name);
    UL_REQUIRE(json_array_size(shape) <= UL_MAX_DIMS, UL_EIO,
               "%s: tensor '%.80s' has %zu dims, at most %d", file->path, entry->name,
               json_array_size(shape), UL_MAX_DIMS);
    entry->ndim = (int)json_array_size(shape);
    for (int d = 0; d < entry->ndim; d++) {
        json_t *size = json_array_get(shape, (size_t)d);
        UL_REQUIRE(is_size(size), UL_EIO, "%s: tensor '%.80s': size %d of its shape is no size",
                   file->path, entry->name, d + 1);
        entry->shape[d] = json_integer_value(size);
    }
    return UL_OK;
}

/* The bytes that dtype and shape ask for against those that it has. */
static int check_bytes(ul_safetensors *file, ul_safetensors_entry *entry, int bits)
{
    int64_t wanted = bits;
    int overflow = 0;
    for (int d = 0; d < entry->ndim; d++)
        overflow |= __builtin_mul_overflow(wanted, entry->shape[d], &wanted);
    UL_REQUIRE(!overflow, UL_EIO, "%s: tensor '%.80s': the shape %s is too large", file->path,
               entry->name, ul__shape_of(entry->ndim, entry->shape));
    UL_REQUIRE(wanted % 8 == 0, UL_EIO, "%s: tensor '%.80s': %s %s ends within a byte", file->path,
               entry->name, entry->dtype, ul__shape_of(entry->ndim, entry->shape));
    UL_REQUIRE(wanted / 8 == entry->bytes, UL_EIO,
               "%s: tensor '%.80s': %s %s takes %lld bytes, and it has %lld", file->path,
               entry->name, entry->dtype, ul__shape_of(entry->ndim, entry->shape),
               (long long)(wanted / 8), (long long)entry->bytes);
    return UL_OK;
}

static int read_entry(ul_safetensors *file, ul_safetensors_entry *entry, json_t *fields)
{
    UL_REQUIRE(json_is_object(fields), UL_EIO, "%s: tensor '%.80s' has no fields", file->path,
               entry->name);
    entry->dtype = json_string_value(json_object_get(fields, "dtype"));
    UL_REQUIRE(entry->dtype, UL_EIO, "%s: tensor '%.80s' has no dtype", file->path, entry->name);
    int index = dtype_index(entry->dtype);
    UL_REQUIRE(index >= 0, UL_EIO, "%s: tensor '%.80s': there is no dtype '%.40s'", file->path,
               entry->name, entry->dtype);
    UL_TRY(read_shape(file, entry, json_object_get(fields, "shape")));
    json_t *offsets = json_object_get(fields, "data_offsets");
    json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    UL_REQUIRE(json_array_size(offsets) == 2 && is_size(begin) && is_size(end), UL_EIO,
               "%s: tensor '%.80s' has no data_offsets", file->path, entry->name);
    entry->offset = json_integer_value(begin);
    entry->bytes = json_integer_value(end) - entry->offset;
    UL_REQUIRE(entry->bytes >= 0, UL_EIO,
               "%s: tensor '%.80s' ends at %lld before it begins at %lld", file->path, entry->name,
               (long long)json_integer_value(end), (long long)entry->offset);
    return check_bytes(file, entry, dtypes[index].bits);
}

static int read_metadata(ul_safetensors *file, json_t *metadata)
{
    const char *key;
    json_t *value;
    UL_REQUIRE(!metadata || json_is_object(metadata), UL_EIO, "%s: __metadata__ is no object",
               file->path);
    json_object_foreach(metadata, key, value)
    {
        UL_REQUIRE(json_is_string(value), UL_EIO, "%s: __metadata__: '%.80s' is no string",
                   file->path, key);
    }
    return UL_OK;
}

static int by_place(const void *a, const void *b)
{
    const ul_safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    const ul_safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Sorts by place and refuses holes, overlaps, and an end that is not the file's. */
static int check_places(ul_safetensors *file)
{
    int64_t end = 0;
    if (file->n) qsort(file->entries, (size_t)file->n, sizeof *file->entries, by_place);
    for (int64_t i = 0; i < file->n; i++) {
        ul_safetensors_entry *entry = &file->entries[i];
        UL_REQUIRE(entry->offset == end, UL_EIO,
                   "%s: tensor '%.80s' begins at %lld of the data, where %lld was expected",
                   file->path, entry->name, (long long)entry->offset, (long long)end);
        end += entry->bytes;
        entry->offset += file->data;
        file->by_name[i] = entry;
    }
    UL_REQUIRE(file->data + end == file->bytes, UL_EIO,
               "%s: is %lld bytes long, and its header asks for %lld", file->path,
               (long long)file->bytes, (long long)(file->data + end));
    if (file->n) qsort(file->by_name, (size_t)file->n, sizeof *file->by_name, by_name);
    return UL_OK;
}

static int parse(ul_safetensors *file, const char *text, int64_t length)
{
    json_error_t error;
    UL_REQUIRE(length > 0 && text[0] == '{', UL_EIO, "%s: no safetensors: no header", file->path);
    file->header =
        json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    UL_REQUIRE(file->header, UL_EIO, "%s: the header is damaged: line %d, column %d: %s",
               file->path, error.line, error.column, error.text);
    UL_REQUIRE(depth_of(file->header) <= DEEPEST, UL_EIO, "%s: the header nests deeper than %d",
               file->path, DEEPEST);
    json_t *metadata = json_object_get(file->header, "__metadata__");
    UL_TRY(read_metadata(file, metadata));
    size_t n = json_object_size(file->header) - (metadata != NULL);
    file->entries = ul__alloc((n + 1) * sizeof *file->entries);
    file->by_name = ul__alloc((n + 1) * sizeof *file->by_name);
    UL_REQUIRE(file->entries && file->by_name, UL_ENOMEM, "%s: out of memory", file->path);
    const char *name;
    json_t *fields;
    json_object_foreach(file->header, name, fields)
    {
        if (fields == metadata) continue;
        ul_safetensors_entry *entry = &file->entries[file->n++];
        *entry = (ul_safetensors_entry){.name = name};
        UL_TRY(read_entry(file, entry, fields));
    }
    return check_places(file);
}

static int read_header(ul_safetensors *file)
{
    uint64_t length;
    UL_REQUIRE(file->bytes >= 8, UL_EIO, "%s: no safetensors: it is %lld bytes long", file->path,
               (long long)file->bytes);
    UL_TRY(ul__read(file->fd, file->path, &length, 8, 0));
    UL_REQUIRE(length <= LONGEST_HEADER, UL_EIO,
               "%s: no safetensors: a header of %llu bytes, at most %d", file->path,
               (unsigned long long)length, LONGEST_HEADER);
    file->data = 8 + (int64_t)length;
    UL_REQUIRE(file->data <= file->bytes, UL_EIO,
               "%s: is cut off: a header of %llu bytes in a file of %lld", file->path,
               (unsigned long long)length, (long long)file->bytes);
    char *text = ul__alloc(length + 1);
    if (!text) return ul__fail(UL_ENOMEM, "%s: out of memory", file->path);
    int rc = ul__read(file->fd, file->path, text, (int64_t)length, 8);
    if (rc == UL_OK) rc = parse(file, text, (int64_t)length);
    ul__release(text);
    return rc;
}

int ul_safetensors_open(ul_safetensors **out, const char *path)
{
    size_t length = strlen(path) + 1;
    ul_safetensors *file = ul__alloc(sizeof *file);
    if (!file) return ul__fail(UL_ENOMEM, "%s: out of memory", path);
    *file = (ul_safetensors){.fd = -1, .path = ul__alloc(length)};
    int rc = UL_OK;
    if (file->path)
        memcpy(file->path, path, length);
    else
        rc = ul__fail(UL_ENOMEM, "%s: out of memory", path);
    if (rc == UL_OK) rc = ul__read_begin(&file->fd, &file->bytes, path);
    if (rc == UL_OK) rc = read_header(file);
    if (rc == UL_OK)
        *out = file;
    else
        ul_safetensors_close(file);
    return rc;
}

void ul_safetensors_close(ul_safetensors *file)
{
    if (!file) return;
    if (file->fd >= 0) close(file->fd);
    json_decref(file->header);
    ul__release(file->entries);
    ul__release(file->by_name);
    ul__release(file->path);
    ul__release(file);
}

/* ---- what there is ---- */

int64_t ul_safetensors_count(const ul_safetensors *file) { return file->n; }

const ul_safetensors_entry *ul_safetensors_at(const ul_safetensors *file, int64_t i)
{
    return &file->entries[i];
}

const ul_safetensors_entry *ul_safetensors_find(const ul_safetensors *file, const char *name)
{
    ul_safetensors_entry key = {.name = name};
    const ul_safetensors_entry *wanted = &key, **found = NULL;
    if (file->n)
        found = bsearch(&wanted, file->by_name, (size_t)file->n, sizeof *file->by_name, by_name);
    return found ? *found : NULL;
}

void ul_safetensors_metadata(const ul_safetensors *file,
                             void (*visit)(void *context, const char *key, const char *value),
                             void *context)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(file->header, "__metadata__"), key, value)
    {
        visit(context, key, json_string_value(value));
    }
}

int ul_safetensors_dtype(ul_dtype *dtype, const ul_safetensors *file,
                         const ul_safetensors_entry *entry)
{
    int kind = dtypes[dtype_index(entry->dtype)].dtype;
    UL_REQUIRE(kind != NONE, UL_EDTYPE, "%s: tensor '%.80s' is %s, which cannot be read",
               file->path, entry->name, entry->dtype);
    *dtype = kind == F16 ? UL_F32 : kind == BOOL ? UL_U8 : (ul_dtype)kind;
    return UL_OK;
}

/* ---- reading ---- */

/* An IEEE half, whose 10 bits of fraction and 5 of exponent are moved to where a float has them. */
static float from_half(uint16_t half)
{
    uint32_t exponent = half >> 10 & 31, fraction = half & 1023, bits;
    float value;
    if (exponent == 0) { /* no leading one: a multiple of 2^-24 */
        value = (float)fraction * 0x1p-24f;
        return half >> 15 ? -value : value;
    }
    exponent = exponent == 31 ? 255 : exponent + 127 - 15;
    bits = (uint32_t)(half >> 15) << 31 | exponent << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* From the back, so that the halves may lie where the first of the floats will. */
static void widen(float *y, const uint16_t *half, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--) {
        uint16_t h;
        memcpy(&h, (const char *)half + 2 * i, 2);
        float value = from_half(h);
        memcpy(y + i, &value, sizeof value);
    }
}

/* Elements [at, at + n) of the contiguous `into`, through `scratch`. */
static int convert_piece(ul_tensor *into, ul_tensor *scratch, const ul_safetensors *file,
                         int64_t place, int is_half, int64_t at, int64_t n)
{
    int64_t one = 1, size = is_half ? 2 : ul_dtype_bytes(scratch->dtype);
    ul_tensor *source, *part;
    UL_TRY(ul__read(file->fd, file->path, ul__data(scratch), n * size, place + at * size));
    if (is_half) widen(ul__data(scratch), ul__data(scratch), n);
    UL_TRY(ul__view_of(&source, scratch, 1, &n, &one, 0));
    int rc = ul__view_of(&part, into, 1, &n, &one, into->offset + at);
    if (rc == UL_OK) {
        rc = ul__assign(part, source);
        ul_tensor_free(part);
    }
    ul_tensor_free(source);
    return rc;
}

/* The contiguous `into` from the file's bytes at `place`, of whatever type. */
static int read_contiguous(ul_tensor *into, const ul_safetensors *file,
                           const ul_safetensors_entry *entry, int64_t place)
{
    ul_dtype dtype = UL_F32;
    UL_TRY(ul_safetensors_dtype(&dtype, file, entry));
    int is_half = strcmp(entry->dtype, "F16") == 0;
    int64_t n = ul_tensor_size(into), piece = n < PIECE ? n : PIECE;
    if (dtype == into->dtype && !is_half)
        return ul__read(file->fd, file->path, ul__data(into), n * ul_dtype_bytes(dtype), place);
    ul_tensor *scratch;
    UL_TRY(ul_tensor_new(&scratch, dtype, UL_CPU, 1, &piece));
    int rc = UL_OK;
    for (int64_t at = 0; rc == UL_OK && at < n; at += piece)
        rc =
            convert_piece(into, scratch, file, place, is_half, at, n - at < piece ? n - at : piece);
    ul_tensor_free(scratch);
    return rc;
}

int ul_safetensors_read(ul_tensor *into, const ul_safetensors *file,
                        const ul_safetensors_entry *entry, int64_t first)
{
    int fits = into->ndim == entry->ndim;
    for (int d = 1; fits && d < into->ndim; d++) fits = into->shape[d] == entry->shape[d];
    int64_t rows = entry->ndim && fits ? entry->shape[0] : 1, n = into->ndim ? into->shape[0] : 1;
    UL_REQUIRE(fits && first >= 0 && first <= rows && n <= rows - first, UL_ESHAPE,
               "%s: tensor '%.80s' is %s in the file; %s from row %lld on do not fit", file->path,
               entry->name, ul__shape_of(entry->ndim, entry->shape), ul__shape(into),
               (long long)first + 1);
    ul_dtype dtype = UL_F32;
    UL_TRY(ul_safetensors_dtype(&dtype, file, entry));
    UL_TRY(ul__change("read", into));
    if (into->storage->device == UL_META || ul_tensor_size(into) == 0) return UL_OK;
    int64_t place = entry->offset + (rows ? entry->bytes / rows * first : 0);
    ul_device device = into->storage->device;
    if (ul_tensor_is_contiguous(into) && device == UL_CPU)
        return read_contiguous(into, file, entry, place);
    ul_tensor *whole, *moved = NULL;
    UL_TRY(ul_tensor_new(&whole, into->dtype, UL_CPU, into->ndim, into->shape));
    int rc = read_contiguous(whole, file, entry, place);
    if (rc == UL_OK && device != UL_CPU) rc = ul__moved(&moved, whole, device);
    if (rc == UL_OK) rc = ul__assign(into, moved ? moved : whole);
    ul_tensor_free(moved);
    ul_tensor_free(whole);
    return rc;
}
