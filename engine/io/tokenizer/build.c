/* build.c - from lists of tokens and merges to a compiled vocabulary. */
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "vocabulary.h"

uint64_t ul__hash(const void *bytes, size_t n) { return XXH3_64bits(bytes, n); }

int ul__grow(void *list, int64_t *room, int64_t need, int64_t size)
{
    void **data = list;
    if (need <= *room) return UL_OK;
    int64_t more = *room + *room / 2 < 64 ? 64 : *room + *room / 2;
    if (more < need) more = need;
    void *grown = ul__alloc((size_t)(more * size));
    UL_REQUIRE(grown, UL_ENOMEM, "tokenizer: out of memory for %lld bytes",
               (long long)(more * size));
    if (*data) memcpy(grown, *data, (size_t)(*room * size));
    ul__release(*data);
    *data = grown;
    *room = more;
    return UL_OK;
}

int ul__build_token(ul__builder *b, int64_t id, const void *bytes, int64_t n, int flags)
{
    UL_REQUIRE(id >= 0 && id < UL__MOST_IDS, UL_EIO, "%s: token id %lld is not in [0, %d)", b->path,
               (long long)id, UL__MOST_IDS);
    UL_REQUIRE(n <= UL__LONGEST_TOKEN, UL_EIO, "%s: token %lld has %lld bytes, more than %d",
               b->path, (long long)id, (long long)n, UL__LONGEST_TOKEN);
    UL_TRY(ul__grow(&b->tokens, &b->token_room, b->n_tokens + 1, sizeof *b->tokens));
    UL_TRY(ul__grow(&b->text, &b->text_room, b->text_bytes + n + 1, 1));
    b->tokens[b->n_tokens++] = (ul__new_token){.id = (uint32_t)id,
                                               .at = (uint64_t)b->text_bytes,
                                               .length = (uint32_t)n,
                                               .flags = (uint8_t)(flags | UL__TOKEN_THERE)};
    if (n) memcpy(b->text + b->text_bytes, bytes, (size_t)n);
    b->text_bytes += n;
    return UL_OK;
}

/* ---- bytes -> token ---- */

static int is_text(const ul__new_token *token)
{
    return token->length > 0 &&
           !(token->flags & (UL__TOKEN_SPECIAL | UL__TOKEN_BYTE | UL__TOKEN_OPAQUE));
}

static int same_bytes(const ul__builder *b, const ul__new_token *token, const void *bytes, size_t n)
{
    return token->length == n && memcmp(b->text + token->at, bytes, n) == 0;
}

/* The least power of 2 that leaves a quarter of the slots empty, minus 1. */
static uint64_t mask_for(int64_t n)
{
    uint64_t size = 16;
    while (size * 3 / 4 <= (uint64_t)n) size *= 2;
    return size - 1;
}

int ul__build_words(ul__builder *b)
{
    ul__release(b->words);
    b->word_mask = mask_for(b->n_tokens);
    b->words = ul__alloc((b->word_mask + 1) * sizeof *b->words);
    UL_REQUIRE(b->words, UL_ENOMEM, "%s: out of memory", b->path);
    memset(b->words, 255, (b->word_mask + 1) * sizeof *b->words);
    for (int64_t k = 0; k < b->n_tokens; k++) {
        const ul__new_token *token = &b->tokens[k];
        uint64_t i = ul__hash(b->text + token->at, token->length);
        for (; b->words[i & b->word_mask] != UL__NONE; i++) {
            const ul__new_token *other = &b->tokens[b->words[i & b->word_mask]];
            UL_REQUIRE(!same_bytes(b, other, b->text + token->at, token->length), UL_EIO,
                       "%s: tokens %u and %u are the same: '%.*s'", b->path, other->id, token->id,
                       (int)token->length, b->text + token->at);
        }
        b->words[i & b->word_mask] = (uint32_t)k;
    }
    return UL_OK;
}

uint32_t ul__build_find(const ul__builder *b, const void *bytes, size_t n)
{
    for (uint64_t i = ul__hash(bytes, n);; i++) {
        uint32_t k = b->words[i & b->word_mask];
        if (k == UL__NONE || same_bytes(b, &b->tokens[k], bytes, n)) return k;
    }
}

int ul__build_added(ul__builder *b, int64_t id, const void *bytes, int64_t n, int special)
{
    int flags = UL__TOKEN_ADDED | (special ? UL__TOKEN_SPECIAL : 0);
    UL_REQUIRE(n > 0, UL_EIO, "%s: the added token %lld is empty", b->path, (long long)id);
    uint32_t k = b->words ? ul__build_find(b, bytes, (size_t)n) : UL__NONE;
    if (k == UL__NONE) return ul__build_token(b, id, bytes, n, flags);
    UL_REQUIRE(b->tokens[k].id == id, UL_EIO,
               "%s: the added token '%.*s' has id %lld, and %u as well", b->path, (int)n,
               (const char *)bytes, (long long)id, b->tokens[k].id);
    b->tokens[k].flags |= (uint8_t)flags;
    return UL_OK;
}

int32_t ul__build_named(const ul__builder *b, const char *name)
{
    size_t n = strlen(name);
    for (int64_t k = 0; k < b->n_tokens; k++)
        if ((b->tokens[k].flags & UL__TOKEN_ADDED) && same_bytes(b, &b->tokens[k], name, n))
            return (int32_t)b->tokens[k].id;
    return -1;
}

/* ---- merges ---- */

int ul__build_merge(ul__builder *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    UL_TRY(ul__grow(&b->merges, &b->merge_room, b->n_merges + 1, sizeof *b->merges));
    b->merges[b->n_merges++] = (ul__merge){left, right, rank, id};
    return UL_OK;
}

int ul__build_by_rank(ul__builder *b)
{
    for (int64_t k = 0; k < b->n_tokens; k++) {
        const ul__new_token token = b->tokens[k];
        const char *bytes = b->text + token.at;
        if (!is_text(&token)) continue;
        for (uint32_t cut = 1; cut < token.length; cut++) {
            uint32_t left = ul__build_find(b, bytes, cut);
            if (left == UL__NONE || !is_text(&b->tokens[left])) continue;
            uint32_t right = ul__build_find(b, bytes + cut, token.length - cut);
            if (right == UL__NONE || !is_text(&b->tokens[right])) continue;
            UL_TRY(ul__build_merge(b, b->tokens[left].id, b->tokens[right].id, token.id, token.id));
        }
    }
    return UL_OK;
}

/* ---- the block ---- */

typedef struct added {
    const char *bytes;
    uint32_t length, id;
} added;

static int compare_added(const void *left, const void *right)
{
    const added *a = left, *b = right;
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);
    if (order) return order;
    return (a->length > b->length) - (a->length < b->length);
}

/* Ids of added tokens, by their bytes. */
static int sort_added(const ul__builder *b, uint32_t *ids)
{
    int64_t n = 0;
    added *list = ul__alloc((size_t)(b->n_tokens + 1) * sizeof *list);
    UL_REQUIRE(list, UL_ENOMEM, "%s: out of memory", b->path);
    for (int64_t k = 0; k < b->n_tokens; k++) {
        const ul__new_token *token = &b->tokens[k];
        if (token->flags & UL__TOKEN_ADDED)
            list[n++] = (added){b->text + token->at, token->length, token->id};
    }
    qsort(list, (size_t)n, sizeof *list, compare_added);
    for (int64_t i = 0; i < n; i++) ids[i] = list[i].id;
    ul__release(list);
    return UL_OK;
}

static void place_merges(ul__vocabulary *v, const ul__builder *b)
{
    ul__merge *merges = (ul__merge *)((char *)v + v->merges_at);
    memset(merges, 255, (v->merge_mask + 1) * sizeof *merges);
    memset((char *)v + v->filter_at, 0, (v->merge_mask + 1) / 2);
    for (int64_t k = 0; k < b->n_merges; k++) {
        const ul__merge *m = &b->merges[k];
        uint64_t i = ul__hash_pair(m->left, m->right), bit;
        *ul__filter(v, i, &bit) |= bit;
        while (merges[i & v->merge_mask].left != UL__NONE &&
               (merges[i & v->merge_mask].left != m->left ||
                merges[i & v->merge_mask].right != m->right))
            i++;
        merges[i & v->merge_mask] = *m;
    }
}

static int place_tokens(ul__vocabulary *v, const ul__builder *b)
{
    ul__token *tokens = (ul__token *)((char *)v + v->tokens_at);
    uint32_t *words = (uint32_t *)((char *)v + v->words_at);
    memset(tokens, 0, v->n_tokens * sizeof *tokens);
    memset(words, 255, (v->word_mask + 1) * sizeof *words);
    memset(v->byte_id, 255, sizeof v->byte_id);
    for (int64_t k = 0; k < b->n_tokens; k++) {
        const ul__new_token *token = &b->tokens[k];
        UL_REQUIRE(!(tokens[token->id].flags & UL__TOKEN_THERE), UL_EIO,
                   "%s: two tokens have the id %u", b->path, token->id);
        tokens[token->id] =
            (ul__token){(uint32_t)token->at, (uint16_t)token->length, token->flags, token->byte};
        if (token->flags & UL__TOKEN_BYTE) v->byte_id[token->byte] = token->id;
        if (!is_text(token)) continue;
        uint64_t i = ul__hash(b->text + token->at, token->length);
        while (words[i & v->word_mask] != UL__NONE) i++;
        words[i & v->word_mask] = token->id;
        if (token->length == 1 && v->split != UL__SPLIT_SPACES)
            v->byte_id[(uint8_t)b->text[token->at]] = token->id;
    }
    for (int byte = 0; byte < 256; byte++)
        UL_REQUIRE(v->byte_id[byte] != UL__NONE, UL_EIO,
                   "%s: there is no token for the byte 0x%02X", b->path, byte);
    return UL_OK;
}

/* What tokens have side by side. Bytes that SentencePiece's tokens are spelled in have no
 * characters: where these merge, nothing is known.
 */
static void place_spans(ul__vocabulary *v, const ul__builder *b)
{
    memset((char *)v + v->spans_at, 0, (v->span_mask + 1ull) * sizeof(uint64_t));
    for (int64_t k = 0; k < b->n_tokens; k++)
        if (is_text(&b->tokens[k]))
            ul__set_spans(v, (const uint8_t *)b->text + b->tokens[k].at, b->tokens[k].length);
    v->cuts = 1;
    for (int64_t k = 0; k < b->n_merges; k++)
        if ((ul__tokens(v)[b->merges[k].left].flags | ul__tokens(v)[b->merges[k].right].flags) &
            UL__TOKEN_BYTE)
            v->cuts = 0;
}

/* Sizes and places of all parts. */
static int lay_out(ul__vocabulary *v, const ul__builder *b)
{
    uint64_t at = sizeof *v;
    int64_t spans = 0;
    for (int64_t k = 0; k < b->n_tokens; k++) {
        if (b->tokens[k].id >= v->n_tokens) v->n_tokens = b->tokens[k].id + 1;
        if (is_text(&b->tokens[k]))
            spans +=
                ul__count_spans(v, (const uint8_t *)b->text + b->tokens[k].at, b->tokens[k].length);
        v->n_added += (b->tokens[k].flags & UL__TOKEN_ADDED) != 0;
        v->plain_added |=
            (b->tokens[k].flags & (UL__TOKEN_ADDED | UL__TOKEN_SPECIAL)) == UL__TOKEN_ADDED;
    }
    UL_REQUIRE(b->n_tokens > 0, UL_EIO, "%s: there are no tokens", b->path);
    UL_REQUIRE(b->text_bytes < UL__NONE, UL_EIO, "%s: tokens have %lld bytes together", b->path,
               (long long)b->text_bytes);
    v->word_mask = (uint32_t)mask_for(b->n_tokens);
    v->merge_mask = (uint32_t)mask_for(b->n_merges);
    v->span_mask = (uint32_t)mask_for(spans / 8); /* 64 bits each */
    v->text_bytes = (uint64_t)b->text_bytes;
    v->merges_at = (at + 63) & ~(uint64_t)63;
    v->filter_at = v->merges_at + (v->merge_mask + 1ull) * sizeof(ul__merge);
    v->spans_at = v->filter_at + (v->merge_mask + 1ull) / 2;
    v->words_at = v->spans_at + (v->span_mask + 1ull) * sizeof(uint64_t);
    v->tokens_at = v->words_at + (v->word_mask + 1ull) * sizeof(uint32_t);
    v->added_at = v->tokens_at + v->n_tokens * sizeof(ul__token);
    v->text_at = v->added_at + v->n_added * sizeof(uint32_t);
    v->bytes = v->text_at + v->text_bytes;
    return UL_OK;
}

static int check_ids(const ul__builder *b, const ul__vocabulary *v, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        UL_REQUIRE(ids[i] < 0 || ((uint32_t)ids[i] < v->n_tokens && ul__tokens(v)[ids[i]].flags),
                   UL_EIO, "%s: there is no token %d, which is to stand around texts", b->path,
                   ids[i]);
    return UL_OK;
}

int ul__build_end(ul__vocabulary **out, ul__builder *b)
{
    UL_TRY(lay_out(&b->v, b));
    ul__vocabulary *v = ul__alloc(b->v.bytes);
    UL_REQUIRE(v, UL_ENOMEM, "%s: out of memory", b->path);
    *v = b->v;
    place_merges(v, b);
    memcpy((char *)v + v->text_at, b->text, v->text_bytes);
    int rc = place_tokens(v, b);
    if (rc == UL_OK) place_spans(v, b);
    if (rc == UL_OK) rc = check_ids(b, v, v->before, v->n_before);
    if (rc == UL_OK) rc = check_ids(b, v, v->after, v->n_after);
    if (rc == UL_OK) rc = sort_added(b, (uint32_t *)((char *)v + v->added_at));
    if (rc < 0)
        ul__release(v);
    else
        *out = v;
    return rc;
}

void ul__build_drop(ul__builder *b)
{
    ul__release(b->tokens);
    ul__release(b->text);
    ul__release(b->merges);
    ul__release(b->words);
}
