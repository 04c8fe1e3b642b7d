/* ranks.c - reads vocabularies whose order says what is merged first: tokenizer.model of tiktoken,
 * and tekken.json.
 */
#include <stdio.h>

#include "json.h"
#include "vocabulary.h"

/* Base64 with its padding, strictly; -1 where it is none. `to` has room for 3 / 4 of n. */
static int64_t base64(char *to, const char *p, int64_t n)
{
    int64_t out = 0;
    if (n == 0 || n % 4 != 0) return -1;
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;
        int padding = 0;
        for (int k = 0; k < 4; k++) {
            char c = p[i + k];
            int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                        : c >= 'a' && c <= 'z' ? c - 'a' + 26
                        : c >= '0' && c <= '9' ? c - '0' + 52
                        : c == '+'             ? 62
                        : c == '/'             ? 63
                                               : -1;
            if (c == '=' && k >= 2 && i + 4 == n)
                padding++, digit = 0;
            else if (padding)
                return -1;
            if (digit < 0) return -1;
            bits = bits << 6 | (uint32_t)digit;
        }
        for (int k = 0; k < 3 - padding; k++) to[out++] = (char)(bits >> (16 - 8 * k));
    }
    return out;
}

enum { LONGEST_BASE64 = (UL__LONGEST_TOKEN + 2) / 3 * 4 };

/* ---- tiktoken: a line for each token, "base64 rank" ---- */

enum { LLAMA3_RANKS = 128000, LLAMA3_SPECIALS = 256 };

static int read_line(ul__builder *b, const char *line, const char *end, int64_t number)
{
    char bytes[UL__LONGEST_TOKEN + 3];
    const char *space = memchr(line, ' ', (size_t)(end - line)), *p;
    int64_t rank = 0, n = -1;
    if (space && space - line <= LONGEST_BASE64) n = base64(bytes, line, space - line);
    UL_REQUIRE(n >= 0, UL_EIO, "%s:%lld: expected base64, a space and a rank", b->path,
               (long long)number);
    for (p = space + 1; p < end && *p >= '0' && *p <= '9' && rank < UL__MOST_IDS; p++)
        rank = rank * 10 + (*p - '0');
    if (p < end && *p == '\r') p++;
    UL_REQUIRE(p == end && p > space + 1, UL_EIO, "%s:%lld: expected base64, a space and a rank",
               b->path, (long long)number);
    return ul__build_token(b, rank, bytes, n, 0);
}

/* The names that Llama 3.1 and later have; 3.0 calls some of them otherwise. */
static int add_llama3_specials(ul__builder *b)
{
    static const struct {
        int id;
        const char *name;
    } named[] = {
        {0, "<|begin_of_text|>"},   {1, "<|end_of_text|>"},   {4, "<|finetune_right_pad_id|>"},
        {6, "<|start_header_id|>"}, {7, "<|end_header_id|>"}, {8, "<|eom_id|>"},
        {9, "<|eot_id|>"},          {10, "<|python_tag|>"}};
    int reserved = 0;
    for (int i = 0; i < LLAMA3_SPECIALS; i++) {
        char name[48] = "";
        for (size_t k = 0; k < sizeof named / sizeof named[0]; k++)
            if (named[k].id == i) snprintf(name, sizeof name, "%s", named[k].name);
        if (!name[0]) snprintf(name, sizeof name, "<|reserved_special_token_%d|>", reserved++);
        UL_TRY(ul__build_added(b, LLAMA3_RANKS + i, name, (int64_t)strlen(name), 1));
    }
    b->v.bos = LLAMA3_RANKS;
    b->v.eos = LLAMA3_RANKS + 1;
    return UL_OK;
}

int ul__read_tiktoken(ul__builder *b, const char *text, int64_t n)
{
    const char *end = text + n;
    int64_t number = 1;
    for (const char *line = text; line < end; number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        if (stop > line) UL_TRY(read_line(b, line, stop, number));
        line = stop < end ? stop + 1 : end;
    }
    UL_REQUIRE(b->n_tokens == LLAMA3_RANKS, UL_EIO,
               "%s: has %lld ranks; only that of Llama 3, with %d, is known to say all", b->path,
               (long long)b->n_tokens, LLAMA3_RANKS);
    b->v.split = UL__SPLIT_LLAMA3;
    b->v.whole_words = 1;
    UL_TRY(ul__build_words(b));
    UL_TRY(add_llama3_specials(b));
    return ul__build_by_rank(b);
}

/* ---- tekken.json ---- */

typedef struct tekken {
    int64_t vocab, specials;
    int has_config, has_pattern;
    ul__slice vocab_list, special_list;
} tekken;

static int read_config(ul__builder *b, ul__json *j, tekken *t)
{
    ul__slice key, pattern;
    char text[512];
    int more;
    if (t->has_config++) return ul__json_fail(j, "this is there a second time");
    UL_TRY(ul__json_enter(j, '{'));
    while ((more = ul__json_more(j, '}')) > 0) {
        UL_TRY(ul__json_key(j, &key));
        if (ul__is(&key, "default_vocab_size")) {
            UL_TRY(ul__json_integer(j, &t->vocab));
        } else if (ul__is(&key, "default_num_special_tokens")) {
            UL_TRY(ul__json_integer(j, &t->specials));
        } else if (ul__is(&key, "pattern")) {
            UL_TRY(ul__json_string(j, &pattern));
            snprintf(text, sizeof text, "%.*s", (int)(pattern.n < 500 ? pattern.n : 500),
                     pattern.p);
            UL_TRY(ul__read_pattern(b, text));
            t->has_pattern = 1;
        } else {
            UL_TRY(ul__json_skip(j, NULL));
        }
    }
    return more;
}

/* One token: its rank and, where they are asked for, its bytes or its name. */
static int read_entry(ul__json *j, int64_t *rank, char *bytes, int64_t *n, const char *which)
{
    ul__slice key, value;
    int more;
    *rank = *n = -1;
    UL_TRY(ul__json_enter(j, '{'));
    while ((more = ul__json_more(j, '}')) > 0) {
        UL_TRY(ul__json_key(j, &key));
        if (ul__is(&key, "rank")) {
            UL_TRY(ul__json_integer(j, rank));
        } else if (ul__is(&key, which)) {
            UL_TRY(ul__json_string(j, &value));
            if (value.n > LONGEST_BASE64) return ul__json_fail(j, "a token that is too long");
            memcpy(bytes, value.p, (size_t)(*n = value.n));
        } else {
            UL_TRY(ul__json_skip(j, NULL));
        }
    }
    if (more == 0 && (*rank < 0 || *n < 0))
        return ul__json_fail(j, "a token needs a rank and bytes");
    return more;
}

static int read_ranks(ul__builder *b, ul__json *j, const tekken *t)
{
    char text[LONGEST_BASE64], bytes[UL__LONGEST_TOKEN + 3];
    int64_t rank, n;
    int more;
    UL_TRY(ul__json_enter(j, '['));
    while ((more = ul__json_more(j, ']')) > 0) {
        UL_TRY(read_entry(j, &rank, text, &n, "token_bytes"));
        if (rank >= t->vocab - t->specials) continue;
        n = base64(bytes, text, n);
        if (n < 0) return ul__json_fail(j, "token_bytes that are no base64");
        UL_TRY(ul__build_token(b, rank + t->specials, bytes, n, 0));
    }
    return more < 0 ? more : ul__build_words(b);
}

/* Names that files have not always told. */
static const char *usual_name(int64_t rank, char *room, size_t size)
{
    static const char *const names[] = {"<unk>",
                                        "<s>",
                                        "</s>",
                                        "[INST]",
                                        "[/INST]",
                                        "[AVAILABLE_TOOLS]",
                                        "[/AVAILABLE_TOOLS]",
                                        "[TOOL_RESULTS]",
                                        "[/TOOL_RESULTS]",
                                        "[TOOL_CALLS]",
                                        "<pad>",
                                        "[PREFIX]",
                                        "[MIDDLE]",
                                        "[SUFFIX]"};
    if (rank < (int64_t)(sizeof names / sizeof names[0])) return names[rank];
    snprintf(room, size, "<SPECIAL_%lld>", (long long)rank);
    return room;
}

static int read_specials(ul__builder *b, ul__json *j, const tekken *t)
{
    char text[LONGEST_BASE64];
    int64_t rank, n;
    int more = 0;
    char *seen = ul__alloc((size_t)t->specials + 1);
    UL_REQUIRE(seen, UL_ENOMEM, "%s: out of memory", b->path);
    memset(seen, 0, (size_t)t->specials + 1);
    int rc = t->special_list.p ? ul__json_enter(j, '[') : UL_OK;
    while (rc == UL_OK && t->special_list.p && (more = ul__json_more(j, ']')) > 0) {
        rc = read_entry(j, &rank, text, &n, "token_str");
        if (rc == UL_OK && rank >= t->specials)
            rc = ul__json_fail(j, "a special token beyond default_num_special_tokens");
        if (rc == UL_OK) rc = ul__build_added(b, rank, text, n, 1);
        if (rc == UL_OK) seen[rank] = 1;
    }
    if (rc == UL_OK) rc = more;
    for (rank = 0; rc == UL_OK && rank < t->specials; rank++) {
        char room[32];
        const char *name = usual_name(rank, room, sizeof room);
        if (!seen[rank]) rc = ul__build_added(b, rank, name, (int64_t)strlen(name), 1);
    }
    ul__release(seen);
    return rc;
}

static int read_tekken(ul__builder *b, ul__json *j, tekken *t)
{
    ul__slice key;
    int more;
    UL_TRY(ul__json_enter(j, '{'));
    while ((more = ul__json_more(j, '}')) > 0) {
        UL_TRY(ul__json_key(j, &key));
        ul__slice *list = ul__is(&key, "vocab")            ? &t->vocab_list
                          : ul__is(&key, "special_tokens") ? &t->special_list
                                                           : NULL;
        if (list && list->p) return ul__json_fail(j, "this is there a second time");
        UL_TRY(ul__is(&key, "config") ? read_config(b, j, t) : ul__json_skip(j, list));
    }
    UL_TRY(more < 0 ? more : ul__json_end(j));
    if (t->special_list.n == 4 && *t->special_list.p == 'n') t->special_list.p = NULL; /* null */
    UL_REQUIRE(t->has_pattern && t->vocab_list.p, UL_EIO,
               "%s: there is no config with a pattern, or no vocab", b->path);
    UL_REQUIRE(t->specials >= 3 && t->specials < t->vocab && t->vocab <= UL__MOST_IDS, UL_EIO,
               "%s: a vocabulary of %lld with %lld special tokens", b->path, (long long)t->vocab,
               (long long)t->specials);
    return UL_OK;
}

int ul__read_tekken(ul__builder *b, const char *text, int64_t n)
{
    tekken t = {0};
    ul__json j = {.path = b->path, .begin = text, .p = text, .end = text + n};
    int rc = read_tekken(b, &j, &t);
    if (rc == UL_OK) {
        j.p = t.vocab_list.p;
        rc = read_ranks(b, &j, &t);
    }
    if (rc == UL_OK) {
        j.p = t.special_list.p;
        rc = read_specials(b, &j, &t);
    }
    ul__json_drop(&j);
    if (rc < 0) return rc;
    b->v.whole_words = 1;
    b->v.unknown = ul__build_named(b, "<unk>");
    b->v.bos = ul__build_named(b, "<s>");
    b->v.eos = ul__build_named(b, "</s>");
    b->v.padding = ul__build_named(b, "<pad>");
    return ul__build_by_rank(b);
}
