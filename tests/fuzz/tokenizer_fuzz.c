/* tokenizer_fuzz.c - reads the input as a tokenizer; then text and ids go through it.
 *
 * FIRST, where it is defined, is the first byte of files of one kind: what begins otherwise would
 * only be read as another.
 */
#include "fuzz.h"

#include "ulysses.h"

static const char text[] =
    "The  quick\r\n\t fox'LL 1234\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\xff "
    "<s>\xe2\x96\x81</s>[INST] aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/* Ids of a text, where they lie in it, and their text. */
static void there_and_back(ul_tokenizer *t, const char *bytes, int64_t n, int flags)
{
    ul_ids ids = {0};
    ul_text out = {0};
    if (ul_tokenizer_encode(&ids, t, bytes, n, flags, 0, 0) == UL_OK) {
        int64_t *first = malloc((size_t)(ids.n + 1) * sizeof *first);
        if (ul_tokenizer_offsets(first, t, bytes, n, ids.data, ids.n, flags) < 0) abort();
        for (int64_t i = 0; i < ids.n; i++)
            if (first[i] < 0 || first[i] > first[i + 1] || first[i + 1] > n) abort();
        free(first);
        if (ul_tokenizer_decode(&out, t, ids.data, ids.n, flags & UL_TOKENS_SPECIALS) < 0) abort();
    }
    ul_ids_free(&ids);
    ul_text_free(&out);
}

/* Every id, one after the other, as a model might write them. */
static void stream(const ul_tokenizer *t, int64_t vocab)
{
    ul_decoder d = {.t = t};
    ul_text out = {0};
    int64_t n;
    int special;
    for (int64_t id = 0; id < vocab && id < 5000; id++) {
        out.n = 0;
        if (ul_tokenizer_token(t, id, &n, &special)) ul_decoder_push(&out, &d, id);
    }
    ul_decoder_end(&out, &d);
    ul_text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ul_tokenizer *t = NULL;
    ul_tokenizer_info info;
#ifdef FIRST
    if (size == 0 || data[0] != FIRST) return 0;
#endif
    if (ul_tokenizer_load(&t, fuzz_file(data, size), NULL) < 0) return 0;
    ul_tokenizer_about(&info, t);
    for (int flags = 0; flags < 8; flags++) there_and_back(t, text, sizeof text - 1, flags);
    int64_t tail = size < 300 ? (int64_t)size : 300;
    there_and_back(t, (const char *)data + size - tail, tail, UL_TOKENS_SPECIALS);
    ul_tokenizer_find(t, "<s>", 3);
    stream(t, info.vocab);
    ul_tokenizer_free(t);
    return 0;
}
