/* sentencepiece.c - reads tokenizer.model of SentencePiece: a protocol buffer of pieces and scores.
 *
 * Only BPE with byte fallback and without a normalizer of its own: that is what Llama and Mistral
 * have.
 */
#include <ctype.h>
#include <stdlib.h>

#include "unicode.h"
#include "vocabulary.h"

/* ---- protocol buffers ---- */

typedef struct message {
    const uint8_t *p, *end;
} message;

typedef struct field {
    int number, kind; /* 0: value; 2: bytes; 5: four bytes in value */
    uint64_t value;
    message bytes;
} field;

static int varint(message *m, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && m->p < m->end; shift += 7) {
        uint8_t byte = *m->p++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 1;
    }
    return 0;
}

/* 1: a field; 0: the end; -1: no protocol buffer. */
static int next_field(message *m, field *f)
{
    uint64_t key, length;
    if (m->p == m->end) return 0;
    if (!varint(m, &key) || key >> 3 == 0 || key >> 3 > 1 << 29) return -1;
    *f = (field){.number = (int)(key >> 3), .kind = (int)(key & 7)};
    if (f->kind == 0) return varint(m, &f->value) ? 1 : -1;
    length = f->kind == 5 ? 4 : 8;
    if (f->kind != 1 && f->kind != 5 && (f->kind != 2 || !varint(m, &length))) return -1;
    if (length > (uint64_t)(m->end - m->p)) return -1;
    f->bytes = (message){m->p, m->p + length};
    if (f->kind != 2)
        for (uint64_t i = 0; i < length; i++) f->value |= (uint64_t)m->p[i] << 8 * i;
    m->p += length;
    return 1;
}

static int damaged(const ul__builder *b)
{
    return ul__fail(
        UL_EIO, "%s: is neither a SentencePiece nor a tiktoken vocabulary, or is damaged", b->path);
}

/* ---- pieces ---- */

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

/* The value of two hexadecimal digits, or -1. */
static int two_digits(const char *p)
{
    if (!isxdigit((unsigned char)p[0]) || !isxdigit((unsigned char)p[1])) return -1;
    return (int)strtol((char[]){p[0], p[1], 0}, NULL, 16);
}

static int add_piece(ul__builder *b, message text, float score, int kind)
{
    const char *p = (const char *)text.p;
    int64_t n = text.end - text.p, id = b->n_tokens;
    UL_REQUIRE(n > 0 && score == score, UL_EIO, "%s: piece %lld has no text, or no score", b->path,
               (long long)id);
    UL_REQUIRE(ul__is_utf8(text.p, (size_t)n), UL_EIO, "%s: piece %lld is no UTF-8", b->path,
               (long long)id);
    UL_REQUIRE(kind != USER_DEFINED, UL_EIO,
               "%s: the user-defined piece '%.*s' is not supported; tokenizer.json says more",
               b->path, (int)(n < 80 ? n : 80), p);
    UL_REQUIRE(kind >= NORMAL && kind <= BYTE, UL_EIO, "%s: piece %lld is of an unknown type",
               b->path, (long long)id);
    if (kind == BYTE) {
        int byte = n == 6 && memcmp(p, "<0x", 3) == 0 && p[5] == '>' ? two_digits(p + 3) : -1;
        UL_REQUIRE(byte >= 0, UL_EIO, "%s: the byte piece '%.*s' is none", b->path,
                   (int)(n < 80 ? n : 80), p);
        UL_TRY(ul__build_token(b, id, p, n, UL__TOKEN_BYTE));
        b->tokens[id].byte = (uint8_t)byte;
    } else if (kind == CONTROL || kind == UNKNOWN) {
        UL_TRY(ul__build_added(b, id, p, n, 1));
    } else {
        UL_TRY(ul__build_token(b, id, p, n, kind == UNUSED ? UL__TOKEN_OPAQUE : 0));
    }
    b->tokens[id].score = score;
    if (kind == UNKNOWN) b->v.unknown = (int32_t)id;
    return UL_OK;
}

static int read_piece(ul__builder *b, message m)
{
    field f;
    message text = {0};
    float score = 0;
    int more, kind = NORMAL;
    while ((more = next_field(&m, &f)) > 0) {
        if (f.number == 1 && f.kind == 2) text = f.bytes;
        if (f.number == 3 && f.kind == 0) kind = f.value <= 100 ? (int)f.value : 100;
        if (f.number == 2 && f.kind == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, 4);
        }
    }
    return more < 0 ? damaged(b) : add_piece(b, text, score, kind);
}

/* ---- settings ---- */

typedef struct settings {
    uint64_t model;         /* 1: unigram, which is what an absent one means; 2: BPE */
    uint64_t prefix, folds; /* add_dummy_prefix, remove_extra_whitespaces */
    uint64_t escapes;       /* escape_whitespaces: spaces are U+2581 */
    int64_t rules;          /* bytes of the normalizer's own */
    int64_t bos, eos, padding;
} settings;

static int read_trainer(const ul__builder *b, message m, settings *s)
{
    field f;
    int more;
    while ((more = next_field(&m, &f)) > 0) {
        if (f.kind != 0) continue;
        if (f.number == 3) s->model = f.value;
        int64_t id = (int32_t)f.value; /* negative: there is none */
        if (f.number == 41) s->bos = id;
        if (f.number == 42) s->eos = id;
        if (f.number == 43) s->padding = id;
    }
    return more < 0 ? damaged(b) : UL_OK;
}

static int read_rules(const ul__builder *b, message m, settings *s)
{
    field f;
    int more;
    while ((more = next_field(&m, &f)) > 0) {
        if (f.number == 2 && f.kind == 2) s->rules = f.bytes.end - f.bytes.p;
        if (f.number == 3 && f.kind == 0) s->prefix = f.value;
        if (f.number == 4 && f.kind == 0) s->folds = f.value;
        if (f.number == 5 && f.kind == 0) s->escapes = f.value;
    }
    return more < 0 ? damaged(b) : UL_OK;
}

static int apply(ul__builder *b, const settings *s)
{
    UL_REQUIRE(s->model == 2, UL_EIO, "%s: the SentencePiece model '%s' is not supported; BPE is",
               b->path, s->model == 1 ? "unigram" : "of another kind");
    UL_REQUIRE(s->rules == 0, UL_EIO,
               "%s: normalizes text by rules of its own, which is not supported", b->path);
    UL_REQUIRE(!s->folds, UL_EIO, "%s: remove_extra_whitespaces is not supported", b->path);
    UL_REQUIRE(s->escapes, UL_EIO, "%s: escape_whitespaces = false is not supported", b->path);
    b->v.split = UL__SPLIT_SPACES;
    b->v.prepend = s->prefix ? UL__PREPEND_ALWAYS : UL__PREPEND_NEVER;
    b->v.strip = s->prefix != 0;
    int64_t ids[] = {s->bos, s->eos, s->padding};
    int32_t *into[] = {&b->v.bos, &b->v.eos, &b->v.padding};
    for (int i = 0; i < 3; i++)
        if (ids[i] >= 0 && ids[i] < b->n_tokens && (b->tokens[ids[i]].flags & UL__TOKEN_SPECIAL))
            *into[i] = (int32_t)ids[i];
    return UL_OK;
}

/* ---- merges: the pair that makes the piece of the highest score goes first ---- */

typedef struct split {
    float score;
    uint32_t
        order; /* of equal ones, which goes first: by the piece, then its left, its right part */
    uint32_t left, right, id;
} split;

static int compare_scores(const void *left, const void *right)
{
    const split *a = left, *b = right;
    if (a->score != b->score) return a->score < b->score ? 1 : -1;
    return (a->order > b->order) - (a->order < b->order);
}

static int compare_parts(const void *left, const void *right)
{
    const split *a = left, *b = right;
    if (a->left != b->left) return a->left < b->left ? -1 : 1;
    return (a->right > b->right) - (a->right < b->right);
}

static int is_normal(const ul__new_token *token) { return token->flags == UL__TOKEN_THERE; }

/* Adds the ways to make piece k of two others. */
static int add_splits(const ul__builder *b, int64_t k, split **list, int64_t *n, int64_t *room)
{
    const ul__new_token *token = &b->tokens[k];
    const char *text = b->text + token->at;
    int64_t first = *n;
    for (uint32_t cut = 1; cut < token->length; cut++) {
        if (((unsigned char)text[cut] & 0xc0) == 0x80) continue; /* inside a character */
        uint32_t left = ul__build_find(b, text, cut);
        uint32_t right = ul__build_find(b, text + cut, token->length - cut);
        if (left == UL__NONE || right == UL__NONE || !is_normal(&b->tokens[left]) ||
            !is_normal(&b->tokens[right]))
            continue;
        UL_TRY(ul__grow(list, room, *n + 1, sizeof **list));
        (*list)[(*n)++] = (split){token->score, 0, left, right, (uint32_t)k};
    }
    if (*n > first) qsort(*list + first, (size_t)(*n - first), sizeof **list, compare_parts);
    for (int64_t i = first; i < *n; i++) (*list)[i].order = (uint32_t)i;
    return UL_OK;
}

static int build_by_score(ul__builder *b)
{
    split *list = NULL;
    int64_t n = 0, room = 0;
    int rc = UL_OK;
    for (int64_t k = 0; rc == UL_OK && k < b->n_tokens; k++)
        if (is_normal(&b->tokens[k]) && b->tokens[k].length > 1)
            rc = add_splits(b, k, &list, &n, &room);
    if (n > 0) qsort(list, (size_t)n, sizeof *list, compare_scores);
    for (int64_t i = 0; rc == UL_OK && i < n; i++)
        rc = ul__build_merge(b, list[i].left, list[i].right, (uint32_t)i, list[i].id);
    ul__release(list);
    return rc;
}

int ul__read_sentencepiece(ul__builder *b, const char *text, int64_t n)
{
    message m = {(const uint8_t *)text, (const uint8_t *)text + n};
    settings s = {
        .model = 1, .prefix = 1, .folds = 1, .escapes = 1, .bos = 1, .eos = 2, .padding = -1};
    field f;
    int more;
    while ((more = next_field(&m, &f)) > 0) {
        if (f.number == 1 && f.kind == 2) UL_TRY(read_piece(b, f.bytes));
        if (f.number == 2 && f.kind == 2) UL_TRY(read_trainer(b, f.bytes, &s));
        if (f.number == 3 && f.kind == 2) UL_TRY(read_rules(b, f.bytes, &s));
    }
    if (more < 0 || b->n_tokens == 0) return damaged(b);
    UL_TRY(apply(b, &s));
    UL_TRY(ul__build_words(b));
    return build_by_score(b);
}
