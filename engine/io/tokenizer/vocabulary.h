/* vocabulary.h - what the files of engine/io/tokenizer share: a compiled vocabulary, and how
 * readers make one.
 *
 * All kinds of files become one block of memory without pointers, which is also what the cache
 * holds: the tokens' bytes, a hash bytes -> id, and a hash (left id, right id) -> (rank, merged
 * id).
 */
#ifndef UL_TOKENIZER_VOCABULARY_H
#define UL_TOKENIZER_VOCABULARY_H

#include <string.h>

#include "../io.h"

enum {
    UL__LONGEST_TOKEN =
        1024, /* bytes; all splits of each are looked up where a file has no merges */
    UL__MOST_IDS = 1 << 22,
    UL__MOST_AFFIXES = 8,
};

/* How text is cut before anything is merged. */
typedef enum ul__split_kind {
    UL__SPLIT_LLAMA3,
    UL__SPLIT_QWEN2, /* Llama 3's, with single digits */
    UL__SPLIT_TEKKEN,
    UL__SPLIT_GPT2,
    UL__SPLIT_SPACES, /* SentencePiece: spaces are U+2581 and belong to the word that follows */
} ul__split_kind;

/* Where U+2581 is put before a text that begins with none. */
typedef enum ul__prepend {
    UL__PREPEND_NEVER,
    UL__PREPEND_FIRST,  /* at the beginning of the text, unless it begins with a space */
    UL__PREPEND_PIECES, /* also behind each added token, unless it begins with a space */
    UL__PREPEND_ALWAYS, /* the same, whatever it begins with */
} ul__prepend;

typedef struct ul__token {
    uint32_t at; /* of its bytes */
    uint16_t length;
    uint8_t flags;
    uint8_t byte; /* that a UL__TOKEN_BYTE stands for */
} ul__token;

enum {
    UL__TOKEN_THERE = 1,   /* this id is a token */
    UL__TOKEN_ADDED = 2,   /* looked for in the raw text */
    UL__TOKEN_SPECIAL = 4, /* the same, where special tokens are asked for; never text */
    UL__TOKEN_BYTE = 8,    /* SentencePiece's <0x0A> */
    UL__TOKEN_OPAQUE = 16, /* written out where it is met, and never text: unused, or unreadable */
};

typedef struct ul__merge {
    uint32_t left, right; /* left: UL__NONE in an empty slot */
    uint32_t rank, id;
} ul__merge;

#define UL__NONE 0xffffffffu

/* All that a file says, as it lies in the cache. Offsets are from its beginning. */
typedef struct ul__vocabulary {
    char magic[16];
    char source[40]; /* the hash of the file */
    uint64_t bytes, sum;
    uint64_t tokens_at, text_at, words_at, merges_at, filter_at, added_at, spans_at;
    uint64_t text_bytes;
    uint32_t n_tokens; /* the highest id, plus one */
    uint32_t n_added;
    uint32_t word_mask, merge_mask, span_mask;
    uint32_t split, prepend;
    uint32_t cut_marks;   /* each U+2581 begins a word, whatever the merges say */
    uint32_t cuts;        /* words may be cut where no token spans two characters: spans.c */
    uint32_t whole_words; /* a word that is a token is that token, whatever the merges say */
    uint32_t strip;       /* decoding drops a space in front */
    uint32_t nfc;         /* text is brought into normalization form C first */
    uint32_t plain_added; /* some added tokens are not special */
    int32_t bos, eos, unknown, padding;
    uint32_t n_before, n_after; /* the template: what bos = true puts around a text */
    int32_t before[UL__MOST_AFFIXES], after[UL__MOST_AFFIXES];
    uint32_t byte_id[256];     /* the token of each single byte */
    uint64_t ascii_spans[256]; /* for each of 128 characters those that follow it in a token */
} ul__vocabulary;

static inline const ul__token *ul__tokens(const ul__vocabulary *v)
{
    return (const ul__token *)((const char *)v + v->tokens_at);
}
static inline const char *ul__text(const ul__vocabulary *v) { return (const char *)v + v->text_at; }
/* Sorted by their bytes. */
static inline const uint32_t *ul__added(const ul__vocabulary *v)
{
    return (const uint32_t *)((const char *)v + v->added_at);
}

uint64_t ul__hash(const void *bytes, size_t n);

/* The id of what is text, or UL__NONE. */
static inline uint32_t ul__find_word(const ul__vocabulary *v, const void *bytes, size_t n)
{
    const uint32_t *words = (const uint32_t *)((const char *)v + v->words_at);
    if (n > UL__LONGEST_TOKEN) return UL__NONE;
    for (uint64_t i = ul__hash(bytes, n);; i++) {
        uint32_t id = words[i & v->word_mask];
        if (id == UL__NONE) return UL__NONE;
        const ul__token *token = &ul__tokens(v)[id];
        if (token->length == n && memcmp(ul__text(v) + token->at, bytes, n) == 0) return id;
    }
}

static inline uint64_t ul__hash_pair(uint32_t left, uint32_t right)
{
    uint64_t key = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

/* Most pairs do not merge: a bit for each hash tells that of nearly all, from a table that is small
 * enough for a core's own cache.
 */
static inline uint64_t *ul__filter(const ul__vocabulary *v, uint64_t hash, uint64_t *bit)
{
    uint64_t at = hash >> 32 & (4 * (uint64_t)v->merge_mask + 3);
    *bit = 1ull << (at & 63);
    return (uint64_t *)((char *)v + v->filter_at) + (at >> 6);
}

/* The merge of two tokens, or NULL. */
static inline const ul__merge *ul__find_merge(const ul__vocabulary *v, uint32_t left,
                                              uint32_t right)
{
    const ul__merge *merges = (const ul__merge *)((const char *)v + v->merges_at);
    uint64_t hash = ul__hash_pair(left, right), bit;
    if (!(*ul__filter(v, hash, &bit) & bit)) return NULL;
    for (uint64_t i = hash;; i++) {
        const ul__merge *m = &merges[i & v->merge_mask];
        if (m->left == left && m->right == right) return m;
        if (m->left == UL__NONE) return NULL;
    }
}

/* ---- spans.c ---- */

enum { UL__IN_PART = 1 << 24, UL__MARK_CODE = 0x2581 };

int64_t ul__count_spans(ul__vocabulary *v, const uint8_t *bytes, uint32_t n);
void ul__set_spans(ul__vocabulary *v, const uint8_t *bytes, uint32_t n);

static inline int ul__has_span(const ul__vocabulary *v, uint32_t left, uint32_t right)
{
    uint64_t hash = ul__hash_pair(left, right);
    const uint64_t *spans = (const uint64_t *)((const char *)v + v->spans_at);
    return spans[hash >> 6 & v->span_mask] >> (hash & 63) & 1;
}

/* Whether a token may have these characters side by side; spaces are ' ', not U+2581. */
static inline int ul__spans(const ul__vocabulary *v, uint32_t left, uint32_t right)
{
    if (left < 0x80 && right < 0x80)
        return v->ascii_spans[2 * left + right / 64] >> (right & 63) & 1;
    return ul__has_span(v, left, right);
}

/* ---- nfc.c ---- */

/* Fills the tables; once is enough. */
void ul__nfc_open(void);
/* Whether UTF-8 is sure to be in normalization form C; where it is not, it may be all the same. */
int ul__is_nfc(const uint8_t *p, const uint8_t *end);
/* A copy in that form; the caller releases it. */
int ul__nfc(uint8_t **out, int64_t *length, const uint8_t *p, const uint8_t *end);
/* Bytes from p on that are normalized together, and as how many they come out. */
int ul__nfc_segment(int64_t *raw, int64_t *seen, const uint8_t *p, const uint8_t *end);

/* ---- build.c: what readers fill ---- */

typedef struct ul__new_token {
    uint32_t id;
    uint64_t at;
    uint32_t length;
    uint8_t flags, byte;
    float score;
} ul__new_token;

/* Lists that grow; settings go straight into `v`. */
typedef struct ul__builder {
    const char *path; /* for sentences */
    ul__vocabulary v;
    ul__new_token *tokens;
    int64_t n_tokens, token_room;
    char *text;
    int64_t text_bytes, text_room;
    ul__merge *merges; /* of two for one pair the last counts */
    int64_t n_merges, merge_room;
    uint32_t *words; /* bytes -> index of a token that is text; ul__build_words() */
    uint64_t word_mask;
} ul__builder;

/* Room for `need` elements of `size` bytes in *list, which may move. */
int ul__grow(void *list, int64_t *room, int64_t need, int64_t size);
int ul__build_token(ul__builder *b, int64_t id, const void *bytes, int64_t n, int flags);
/* A token that is looked for in the raw text: a new one, or one that is there already. */
int ul__build_added(ul__builder *b, int64_t id, const void *bytes, int64_t n, int special);
/* From here on ul__build_find() knows all tokens so far. UL_EIO where two are the same. */
int ul__build_words(ul__builder *b);
/* Index of the token of these bytes, or UL__NONE. */
uint32_t ul__build_find(const ul__builder *b, const void *bytes, size_t n);
int ul__build_merge(ul__builder *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* The id of an added token, or -1. */
int32_t ul__build_named(const ul__builder *b, const char *name);
/* All ways to make each token of two others, with its id as the rank. */
int ul__build_by_rank(ul__builder *b);
/* The block; the caller frees it with ul__release(). */
int ul__build_end(ul__vocabulary **out, ul__builder *b);
void ul__build_drop(ul__builder *b);

/* ---- readers: `text` is the whole file ---- */

int ul__read_tokenizer_json(ul__builder *b, const char *text, int64_t n);
int ul__read_tekken(ul__builder *b, const char *text, int64_t n);
int ul__read_tiktoken(ul__builder *b, const char *text, int64_t n);
int ul__read_sentencepiece(ul__builder *b, const char *text, int64_t n);
/* Which of the known patterns this is (their text as files have it), or UL_EIO. */
int ul__read_pattern(ul__builder *b, const char *pattern);
/* Everything of tokenizer.json but the model and the added tokens; each is one JSON value. */
int ul__read_normalizer(ul__builder *b, const char *json, int64_t n);
int ul__read_pre_tokenizer(ul__builder *b, const char *json, int64_t n);
int ul__read_decoder(ul__builder *b, const char *json, int64_t n);
int ul__read_post_processor(ul__builder *b, const char *json, int64_t n);

/* ---- split.c, merge.c, words.c, encode.c ---- */

/* The end of the first word of [p, end), which is not empty. */
typedef const uint8_t *ul__splitter(const uint8_t *p, const uint8_t *end);
/* NULL for UL__SPLIT_SPACES, which words.c does. */
ul__splitter *ul__splitter_of(ul__split_kind kind);
const char *ul__split_name(ul__split_kind kind);
/* The kind of this name, or -1. */
int ul__split_named(const char *name);

typedef struct ul__symbol {
    uint32_t id;
    int32_t previous, next;
    uint32_t rank; /* of the merge with the next one; UL__NONE: there is none */
} ul__symbol;

/* What encoding needs beside the vocabulary, kept from call to call. */
typedef struct ul__work {
    ul__symbol *symbols;
    int64_t symbol_room;
    uint64_t *heap; /* rank << 32 | position */
    int64_t heap_n, heap_room;
    struct ul__short_word *short_words; /* what has been seen; NULL until it is used */
    struct ul__long_word *long_words;
} ul__work;

struct ul_tokenizer {
    ul__vocabulary *v;
    ul__work work;
    uint32_t first_added[257]; /* of added tokens, those that begin with a byte: [first[byte],
                                  first[byte + 1]) */
    uint32_t character_id[128], mark_id; /* of single characters, or UL__NONE */
    int cached;
};

/* Merges symbols[0 .. n), of which the ids are set, and adds what is left to ids. */
int ul__merge_symbols(ul_ids *ids, ul__work *work, const ul__vocabulary *v, int64_t n);
/* Adds the tokens of [p, end), UTF-8 without added tokens. first: it begins the text. */
int ul__encode_piece(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, const uint8_t *end, int first);
/* Whether a U+2581 is put before [p, end). */
int ul__prepends(const ul__vocabulary *v, const uint8_t *p, const uint8_t *end, int first);
void ul__work_drop(ul__work *work);
/* A copy of n bytes with U+FFFD for each piece that is no UTF-8; the caller releases it. */
int ul__repair(uint8_t **out, int64_t *length, int64_t *replaced, const uint8_t *p, int64_t n);

/* U+2581, with which SentencePiece writes spaces. */
#define UL__MARK "\xe2\x96\x81"

static inline int ul__is_mark(const uint8_t *p, const uint8_t *end)
{
    return *p == ' ' || (end - p >= 3 && memcmp(p, UL__MARK, 3) == 0);
}

#endif
