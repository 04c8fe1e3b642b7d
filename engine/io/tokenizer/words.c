/* words.c - the tokens of a word, most of which have been seen before.
 *
 * Two caches of a fixed size remember them: short words, as two numbers that say all their bytes,
 * and longer ones. In each, a word has two places; the one that came last stands first. Words are
 * cut further where no token spans the cut. Such parts are remembered as parts (PART beside their
 * length): a word that is a token as a whole may be made of others where it is part of one.
 */
#include "unicode.h"
#include "vocabulary.h"

enum {
    SHORT_WORDS = 1 << 17,
    LONG_WORDS = 1 << 14,
    SHORT_BYTES = 16,
    SHORT_IDS = 3,
    LONG_BYTES = 62,
    LONG_IDS = 16,
    LONGEST_WORD = 1 << 28,
    PART = 0x80,
};

typedef struct ul__short_word {
    uint64_t a, b; /* its first and its last bytes */
    int32_t ids[SHORT_IDS];
    uint8_t length, n; /* length 0: nothing is here */
} short_word;

typedef struct ul__long_word {
    uint8_t length, n;
    uint8_t bytes[LONG_BYTES];
    int32_t ids[LONG_IDS];
} long_word;

static int open_caches(ul__work *work)
{
    if (work->short_words) return UL_OK;
    short_word *few = ul__alloc(SHORT_WORDS * sizeof *few);
    long_word *many = ul__alloc(LONG_WORDS * sizeof *many);
    if (!few || !many) {
        ul__release(few);
        ul__release(many);
        return ul__fail(UL_ENOMEM, "encode: out of memory");
    }
    memset(few, 0, SHORT_WORDS * sizeof *few);
    memset(many, 0, LONG_WORDS * sizeof *many);
    work->short_words = few;
    work->long_words = many;
    return UL_OK;
}

void ul__work_drop(ul__work *work)
{
    ul__release(work->symbols);
    ul__release(work->heap);
    ul__release(work->short_words);
    ul__release(work->long_words);
}

/* ---- a word that has not been seen ---- */

static inline void add_symbol(ul__work *work, int64_t *n, uint32_t id)
{
    work->symbols[(*n)++].id = id;
}

static int encode_bytes(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, int64_t n, int part)
{
    const ul__vocabulary *v = t->v;
    uint32_t id = v->whole_words && !part ? ul__find_word(v, p, (size_t)n) : UL__NONE;
    if (id != UL__NONE) {
        UL_TRY(ul__grow(&ids->data, &ids->room, ids->n + 1, sizeof *ids->data));
        ids->data[ids->n++] = (int32_t)id;
        return UL_OK;
    }
    UL_TRY(ul__grow(&t->work.symbols, &t->work.symbol_room, n, sizeof(ul__symbol)));
    int64_t count = 0;
    while (count < n) add_symbol(&t->work, &count, v->byte_id[p[count]]);
    return ul__merge_symbols(ids, &t->work, v, n);
}

/* Symbols are characters; one that is no token is spelled in bytes. */
static int encode_characters(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, int64_t bytes,
                             int prepend)
{
    const ul__vocabulary *v = t->v;
    const uint8_t *end = p + bytes;
    int64_t n = 0;
    UL_TRY(ul__grow(&t->work.symbols, &t->work.symbol_room, 3 * bytes + 3, sizeof(ul__symbol)));
    while (prepend || p < end) {
        int length = 1;
        const uint8_t *character = p;
        uint32_t id;
        if (prepend || *p == ' ') {
            character = (const uint8_t *)UL__MARK;
            id = t->mark_id;
        } else if (*p < 0x80) {
            id = t->character_id[*p];
        } else {
            ul__code(p, &length);
            id = ul__find_word(v, p, (size_t)length);
        }
        int spelled = character == p ? length : 3;
        if (id != UL__NONE) add_symbol(&t->work, &n, id);
        for (int i = 0; i < spelled && id == UL__NONE; i++)
            add_symbol(&t->work, &n, v->byte_id[character[i]]);
        if (!prepend) p += length;
        prepend = 0;
    }
    return ul__merge_symbols(ids, &t->work, v, n);
}

static int encode_new(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, int64_t n, int part)
{
    UL_REQUIRE(n <= LONGEST_WORD, UL_EVALUE,
               "encode: %lld bytes without a place to cut them, at most %d are known", (long long)n,
               LONGEST_WORD);
    return t->v->split == UL__SPLIT_SPACES ? encode_characters(ids, t, p, n, 0)
                                           : encode_bytes(ids, t, p, n, part);
}

/* ---- a word that may have been seen ---- */

static inline uint64_t load(const uint8_t *p, int n)
{
    uint64_t word = 0;
    memcpy(&word, p, (size_t)n);
    return word;
}

static int encode_long(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, int64_t n, int part)
{
    if (n > LONG_BYTES) return encode_new(ids, t, p, n, part);
    long_word *slots = &t->work.long_words[ul__hash(p, (size_t)n) & (LONG_WORDS - 2)];
    for (int i = 0; i < 2; i++) {
        if (slots[i].length != (n | part) || memcmp(slots[i].bytes, p, (size_t)n) != 0) continue;
        UL_TRY(ul__grow(&ids->data, &ids->room, ids->n + LONG_IDS, sizeof *ids->data));
        memcpy(ids->data + ids->n, slots[i].ids, sizeof slots[i].ids);
        ids->n += slots[i].n;
        return UL_OK;
    }
    int64_t before = ids->n;
    UL_TRY(encode_new(ids, t, p, n, part));
    if (ids->n - before > LONG_IDS || (n <= SHORT_BYTES && ids->n - before <= SHORT_IDS))
        return UL_OK;
    slots[1] = slots[0];
    slots[0].length = (uint8_t)(n | part);
    slots[0].n = (uint8_t)(ids->n - before);
    memcpy(slots[0].bytes, p, (size_t)n);
    memcpy(slots[0].ids, ids->data + before, slots[0].n * sizeof *ids->data);
    return UL_OK;
}

static inline int encode_word(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, int64_t n, int part)
{
    if (n > SHORT_BYTES) return encode_long(ids, t, p, n, part);
    uint64_t a, b;
    if (n >= 8) {
        a = load(p, 8), b = load(p + n - 8, 8);
    } else if (n >= 4) {
        a = load(p, 4), b = load(p + n - 4, 4);
    } else {
        a = p[0] | (uint64_t)p[n / 2] << 8, b = p[n - 1];
    }
    uint64_t hash = (a + (uint64_t)n) * 0x9e3779b97f4a7c15u ^ b * 0xc2b2ae3d27d4eb4fu;
    hash = (hash ^ hash >> 32) * 0xff51afd7ed558ccdu;
    short_word *slots = &t->work.short_words[hash >> 40 & (SHORT_WORDS - 2)];
    for (int i = 0; i < 2; i++) {
        if (slots[i].a != a || slots[i].b != b || slots[i].length != (n | part)) continue;
        if (ids->room < ids->n + SHORT_IDS)
            UL_TRY(ul__grow(&ids->data, &ids->room, ids->n + SHORT_IDS, sizeof *ids->data));
        memcpy(ids->data + ids->n, slots[i].ids, sizeof slots[i].ids);
        ids->n += slots[i].n;
        return UL_OK;
    }
    int64_t before = ids->n;
    UL_TRY(encode_long(ids, t, p, n, part)); /* many tokens of few bytes are there */
    if (ids->n - before > SHORT_IDS) return UL_OK;
    slots[1] = slots[0];
    slots[0] = (short_word){
        .a = a, .b = b, .length = (uint8_t)(n | part), .n = (uint8_t)(ids->n - before)};
    memcpy(slots[0].ids, ids->data + before, slots[0].n * sizeof *ids->data);
    return UL_OK;
}

/* ---- pieces ---- */

int ul__prepends(const ul__vocabulary *v, const uint8_t *p, const uint8_t *end, int first)
{
    if (v->split != UL__SPLIT_SPACES) return 0;
    if (v->prepend == UL__PREPEND_ALWAYS) return 1;
    if (v->prepend == UL__PREPEND_NEVER || (v->prepend == UL__PREPEND_FIRST && !first)) return 0;
    return !ul__is_mark(p, end);
}

/* The character at p, a space for U+2581. */
static inline uint32_t unmarked(const uint8_t *p, int *n)
{
    uint32_t code = ul__code(p, n);
    return code == UL__MARK_CODE ? ' ' : code;
}

/* A word of SentencePiece: up to a place that no token spans. */
static const uint8_t *word_end(const ul__vocabulary *v, const uint8_t *p, const uint8_t *end)
{
    int n;
    uint32_t left = unmarked(p, &n);
    while ((p += n) < end) {
        uint32_t right = unmarked(p, &n);
        if (right == ' ' && v->cut_marks) break;
        if (v->cuts && !ul__spans(v, left, right)) break;
        left = right;
    }
    return p;
}

/* Whether a token of bytes may span the place between these characters, which are not ASCII, or
 * parts of them: of the left one with its last byte, of the right one with its first.
 */
static inline int bytes_span(const ul__vocabulary *v, uint32_t left, uint32_t right,
                             const uint8_t *at)
{
    uint32_t last = UL__IN_PART | at[-1], first = UL__IN_PART | at[0];
    return ul__has_span(v, left, right) || ul__has_span(v, left, first) ||
           ul__has_span(v, last, right) || ul__has_span(v, last, first);
}

/* A word of bytes, in parts where it can be cut between characters that are not ASCII. */
static int encode_in_parts(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, const uint8_t *end)
{
    int n, part = 0;
    const uint8_t *begin = p;
    uint32_t left = ul__code(p, &n);
    while ((p += n) < end) {
        uint32_t right = ul__code(p, &n);
        if (left >= 0x80 && right >= 0x80 && !bytes_span(t->v, left, right, p)) {
            UL_TRY(encode_word(ids, t, begin, p - begin, part = PART));
            begin = p;
        }
        left = right;
    }
    return encode_word(ids, t, begin, end - begin, part);
}

int ul__encode_piece(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, const uint8_t *end, int first)
{
    if (p == end) return UL_OK;
    UL_TRY(open_caches(&t->work));
    ul__splitter *split = ul__splitter_of(t->v->split);
    if (ul__prepends(t->v, p, end, first)) {
        const uint8_t *q = word_end(t->v, p, end);
        UL_REQUIRE(q - p <= LONGEST_WORD, UL_EVALUE, "encode: a word of %lld bytes",
                   (long long)(q - p));
        UL_TRY(encode_characters(ids, t, p, q - p, 1));
        p = q;
    }
    while (p < end) {
        const uint8_t *q = split ? split(p, end) : word_end(t->v, p, end);
        if (split && q[-1] >= 0x80 && q - p > 4)
            UL_TRY(encode_in_parts(ids, t, p, q));
        else
            UL_TRY(encode_word(ids, t, p, q - p, 0));
        p = q;
    }
    return UL_OK;
}
