/* load.c - opens a tokenizer: which kind of file it is, and what of it the cache has already. */
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

#include "unicode.h"
#include "vocabulary.h"

/* Files below this are read faster than their cache is worth. */
enum { WORTH_CACHING = 1 << 20 };
static const int64_t LARGEST_FILE = 1 << 30;
/* Another layout of ul__vocabulary, or another meaning of a file, is another number. */
static const char magic[16] = "ulysses tok 004";

/* ---- files ---- */

/* The caller releases *text. */
static int read_file(char **text, int64_t *n, const char *path)
{
    int fd = -1;
    UL_TRY(ul__read_begin(&fd, n, path));
    int rc = *n > LARGEST_FILE
                 ? ul__fail(UL_EIO, "%s: %lld bytes are no tokenizer", path, (long long)*n)
                 : UL_OK;
    *text = rc == UL_OK ? ul__alloc((size_t)*n + 1) : NULL;
    if (rc == UL_OK && !*text) rc = ul__fail(UL_ENOMEM, "%s: out of memory", path);
    if (rc == UL_OK) rc = ul__read(fd, path, *text, *n, 0);
    close(fd);
    if (rc < 0) {
        ul__release(*text);
        *text = NULL;
    }
    return rc;
}

static int holds(const char *text, int64_t n, const char *word)
{
    size_t length = strlen(word);
    return memmem(text, (size_t)n, word, length) != NULL;
}

/* By what is in it: names of files differ. */
static int read_any(ul__builder *b, const char *text, int64_t n)
{
    int64_t at = 0;
    if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) { /* a byte-order mark */
        text += 3;
        n -= 3;
    }
    while (at < n && strchr(" \t\r\n", text[at])) at++;
    if (at == n) return ul__fail(UL_EIO, "%s: is empty", b->path);
    if (text[at] == '{') {
        int64_t head = n < 4096 ? n : 4096;
        int is_tekken = holds(text, head, "\"default_num_special_tokens\"") ||
                        holds(text, head, "\"token_bytes\"");
        return is_tekken ? ul__read_tekken(b, text, n) : ul__read_tokenizer_json(b, text, n);
    }
    /* A line of tiktoken begins with base64, a space and a digit. */
    int64_t word = 0;
    while (word < n && word < 2000 && text[word] > ' ' && text[word] < 127) word++;
    if (word > 0 && word + 1 < n && text[word] == ' ' && text[word + 1] >= '0' &&
        text[word + 1] <= '9')
        return ul__read_tiktoken(b, text, n);
    return ul__read_sentencepiece(b, text, n);
}

static int compile(ul__vocabulary **v, const char *path, const char *text, int64_t n,
                   const char *source)
{
    ul__builder b = {.path = path};
    memcpy(b.v.magic, magic, sizeof magic);
    memcpy(b.v.source, source, 33);
    b.v.bos = b.v.eos = b.v.unknown = b.v.padding = -1;
    int rc = read_any(&b, text, n);
    if (rc == UL_OK) rc = ul__build_end(v, &b);
    ul__build_drop(&b);
    return rc;
}

/* ---- the cache ---- */

enum { LONGEST_PATH = 4096 };

static int cache_path(char *path, const char *folder, const char *source)
{
    return folder &&
           snprintf(path, LONGEST_PATH, "%s/tokenizer-%s", folder, source) < LONGEST_PATH - 32;
}

static uint64_t sum_of(const ul__vocabulary *v)
{
    return ul__hash((const char *)v + sizeof *v, v->bytes - sizeof *v) ^
           ul__hash(&v->tokens_at, sizeof *v - offsetof(ul__vocabulary, tokens_at));
}

/* What the cache has of this file; anything odd about it, and there is none. */
static ul__vocabulary *from_cache(const char *path, const char *source)
{
    char *text = NULL;
    int64_t n = 0;
    if (access(path, R_OK) != 0 || read_file(&text, &n, path) < 0) return NULL;
    ul__vocabulary *v = (ul__vocabulary *)text;
    if (n >= (int64_t)sizeof *v && memcmp(v->magic, magic, sizeof magic) == 0 &&
        memcmp(v->source, source, 33) == 0 && v->bytes == (uint64_t)n && v->sum == sum_of(v))
        return v;
    ul__release(text);
    return NULL;
}

/* Under a name of this process first, so that no reader sees half of it. */
static void to_cache(const char *path, const char *folder, ul__vocabulary *v)
{
    char temporary[LONGEST_PATH + 32];
    v->sum = sum_of(v);
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    if (ul_folder_make(folder) < 0) return;
    if (ul_file_write(NULL, temporary, v, (int64_t)v->bytes) < 0) return;
    if (ul_file_rename(temporary, path) < 0) unlink(temporary);
}

/* ---- the tokenizer ---- */

static void index_added(ul_tokenizer *t)
{
    const ul__vocabulary *v = t->v;
    uint32_t k = 0;
    for (int byte = 0; byte < 256; byte++) {
        t->first_added[byte] = k;
        while (k < v->n_added &&
               (unsigned char)ul__text(v)[ul__tokens(v)[ul__added(v)[k]].at] == byte)
            k++;
    }
    t->first_added[256] = k;
    for (int c = 0; c < 128; c++) {
        char character = (char)c;
        t->character_id[c] = ul__find_word(v, &character, 1);
    }
    t->mark_id = ul__find_word(v, UL__MARK, 3);
}

static int get_vocabulary(ul_tokenizer *t, const char *path, const char *cache)
{
    char *text = NULL, source[33], cached[LONGEST_PATH];
    int64_t n = 0;
    UL_TRY(read_file(&text, &n, path));
    ul_hash(source, text, n);
    int rc = UL_OK, caches = n >= WORTH_CACHING && cache_path(cached, cache, source);
    if (caches) t->v = from_cache(cached, source);
    t->cached = t->v != NULL;
    if (!t->v) {
        rc = compile(&t->v, path, text, n, source);
        if (rc == UL_OK && caches) to_cache(cached, cache, t->v);
    }
    ul__release(text);
    return rc;
}

int ul_tokenizer_load(ul_tokenizer **out, const char *path, const char *cache)
{
    ul__unicode_open();
    ul__nfc_open();
    ul_tokenizer *t = ul__alloc(sizeof *t);
    UL_REQUIRE(t, UL_ENOMEM, "%s: out of memory", path);
    *t = (ul_tokenizer){0};
    int rc = get_vocabulary(t, path, cache);
    if (rc < 0) {
        ul_tokenizer_free(t);
        return rc;
    }
    index_added(t);
    *out = t;
    return UL_OK;
}

void ul_tokenizer_free(ul_tokenizer *t)
{
    if (!t) return;
    ul__work_drop(&t->work);
    ul__release(t->v);
    ul__release(t);
}

void ul_tokenizer_about(ul_tokenizer_info *info, const ul_tokenizer *t)
{
    static const char *const prepends[] = {"never", "first", "pieces", "always"};
    const ul__vocabulary *v = t->v;
    *info = (ul_tokenizer_info){.split = ul__split_name(v->split),
                                .prepend = prepends[v->prepend],
                                .vocab = v->n_tokens,
                                .bos = v->bos,
                                .eos = v->eos,
                                .unknown = v->unknown,
                                .padding = v->padding,
                                .hash = v->source,
                                .cached = t->cached};
}

int32_t ul_tokenizer_find(const ul_tokenizer *t, const char *bytes, int64_t n)
{
    const ul__vocabulary *v = t->v;
    uint32_t found = ul__find_word(v, bytes, (size_t)n);
    /* What is no text is in no hash: it is asked for by name, and seldom. */
    for (uint32_t id = 0; found == UL__NONE && id < v->n_tokens; id++) {
        const ul__token *token = &ul__tokens(v)[id];
        if (token->flags && token->length == n &&
            memcmp(ul__text(v) + token->at, bytes, (size_t)n) == 0)
            found = id;
    }
    return found == UL__NONE ? -1 : (int32_t)found;
}

const char *ul_tokenizer_token(const ul_tokenizer *t, int64_t id, int64_t *n, int *special)
{
    if (id < 0 || id >= (int64_t)t->v->n_tokens || !ul__tokens(t->v)[id].flags) return NULL;
    const ul__token *token = &ul__tokens(t->v)[id];
    *n = token->length;
    *special = (token->flags & UL__TOKEN_SPECIAL) != 0;
    return ul__text(t->v) + token->at;
}
