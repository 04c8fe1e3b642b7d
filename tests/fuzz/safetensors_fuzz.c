/* safetensors_fuzz.c - opens the input as a safetensors file, and reads all that it says is there.
 */
#include "fuzz.h"

#include <string.h>

#include "ulysses.h"

static void look(void *context, const char *key, const char *value)
{
    *(size_t *)context += strlen(key) + strlen(value);
}

static void read_entry(const ul_safetensors *file, const ul_safetensors_entry *entry)
{
    ul_dtype dtype;
    ul_tensor *t = NULL;
    if (ul_safetensors_find(file, entry->name) != entry) abort();
    if (ul_safetensors_dtype(&dtype, file, entry) < 0) return;
    if (ul_tensor_new(&t, dtype, UL_CPU, entry->ndim, entry->shape) < 0) return;
    ul_safetensors_read(t, file, entry, 0);
    ul_tensor_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ul_safetensors *file = NULL;
    size_t length = 0;
    if (ul_safetensors_open(&file, fuzz_file(data, size)) < 0) return 0;
    ul_safetensors_metadata(file, look, &length);
    for (int64_t i = 0; i < ul_safetensors_count(file); i++)
        read_entry(file, ul_safetensors_at(file, i));
    ul_safetensors_close(file);
    return 0;
}
