/* train.c - makes a byte-level BPE from text: again and again, the pair of tokens that stands side
 * by side most often becomes a token.
 *
 * Words (what the splitter cuts) are counted first; from there on only different words matter. Of
 * pairs that are as frequent, the one of the lower ids goes first: the result depends on nothing
 * but the words and their counts.
 */
#include <stdlib.h>

#include "unicode.h"
#include "vocabulary.h"

enum { LONGEST_WORD = UL__LONGEST_TOKEN, BYTES = 256 };

typedef struct word {
    uint64_t at; /* its bytes; later its tokens */
    uint32_t length;
    int64_t count;
} word;

typedef struct pair {
    uint32_t left, right;
    int64_t count;
    uint32_t *words; /* where it stands, or has stood; some of them twice */
    int64_t n, room;
    int fresh; /* made by the merge at work */
} pair;

typedef struct candidate {
    int64_t count;
    uint32_t pair;
} candidate;

struct ul_trainer {
    ul__splitter *split;
    uint8_t *text; /* of all words */
    int64_t text_n, text_room;
    word *words;
    int64_t n_words, word_room;
    uint32_t *by_bytes; /* hash of words: index, or UL__NONE */
    uint64_t word_mask;
    uint32_t *symbols; /* the words as tokens */
    pair *pairs;
    int64_t n_pairs, pair_room;
    uint32_t *by_tokens; /* hash of pairs */
    uint64_t pair_mask;
    candidate *heap;
    int64_t heap_n, heap_room;
    uint32_t *touched; /* pairs that the merge at work has made, or made more of */
    int64_t touched_n, touched_room;
    ul__builder tokens; /* bytes of each token; its hash finds one that is there already */
    uint32_t *by_token;
    uint64_t token_mask;
    int32_t *merges; /* left, right */
    int64_t n_merges, merge_room;
};

void ul_trainer_free(ul_trainer *t)
{
    if (!t) return;
    for (int64_t i = 0; i < t->n_pairs; i++) ul__release(t->pairs[i].words);
    void *all[] = {t->text,      t->words, t->by_bytes, t->symbols,  t->pairs,
                   t->by_tokens, t->heap,  t->touched,  t->by_token, t->merges};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ul__release(all[i]);
    ul__build_drop(&t->tokens);
    ul__release(t);
}

int ul_trainer_new(ul_trainer **out, const char *split)
{
    int kind = ul__split_named(split);
    UL_REQUIRE(kind >= 0 && kind != UL__SPLIT_SPACES, UL_EVALUE,
               "tokenizer.train: no way to split text is called '%.40s'", split);
    ul__unicode_open();
    ul_trainer *t = ul__alloc(sizeof *t);
    UL_REQUIRE(t, UL_ENOMEM, "tokenizer.train: out of memory");
    *t = (ul_trainer){.split = ul__splitter_of((ul__split_kind)kind)};
    t->tokens.path = "tokenizer.train";
    *out = t;
    return UL_OK;
}

/* Twice as many slots, or the first ones, all of them empty. */
static int widen(uint32_t **slots, uint64_t *mask)
{
    uint64_t size = *slots ? 2 * (*mask + 1) : 1 << 16;
    uint32_t *wider = ul__alloc(size * sizeof *wider);
    UL_REQUIRE(wider, UL_ENOMEM, "tokenizer.train: out of memory");
    memset(wider, 255, size * sizeof *wider);
    ul__release(*slots);
    *slots = wider;
    *mask = size - 1;
    return UL_OK;
}

static void place(uint32_t *slots, uint64_t mask, uint64_t hash, uint32_t value)
{
    while (slots[hash & mask] != UL__NONE) hash++;
    slots[hash & mask] = value;
}

/* ---- counting words ---- */

static int widen_words(ul_trainer *t)
{
    if (t->by_bytes && (uint64_t)t->n_words * 4 < (t->word_mask + 1) * 3) return UL_OK;
    UL_TRY(widen(&t->by_bytes, &t->word_mask));
    for (int64_t i = 0; i < t->n_words; i++) {
        const word *w = &t->words[i];
        place(t->by_bytes, t->word_mask, ul__hash(t->text + w->at, w->length), (uint32_t)i);
    }
    return UL_OK;
}

static int count_word(ul_trainer *t, const uint8_t *p, uint32_t n)
{
    uint64_t hash = ul__hash(p, n);
    for (uint64_t i = hash; t->by_bytes[i & t->word_mask] != UL__NONE; i++) {
        word *w = &t->words[t->by_bytes[i & t->word_mask]];
        if (w->length == n && memcmp(t->text + w->at, p, n) == 0) return w->count++, UL_OK;
    }
    UL_REQUIRE(t->n_words < UL__NONE - 1, UL_EVALUE, "tokenizer.train: too many words");
    UL_TRY(ul__grow(&t->words, &t->word_room, t->n_words + 1, sizeof *t->words));
    UL_TRY(ul__grow(&t->text, &t->text_room, t->text_n + n, 1));
    memcpy(t->text + t->text_n, p, n);
    t->words[t->n_words] = (word){.at = (uint64_t)t->text_n, .length = n, .count = 1};
    t->text_n += n;
    place(t->by_bytes, t->word_mask, hash, (uint32_t)t->n_words++);
    return widen_words(t);
}

static int count_words(ul_trainer *t, const uint8_t *p, const uint8_t *end)
{
    UL_TRY(widen_words(t));
    while (p < end) {
        const uint8_t *q = t->split(p, end);
        for (; p < q; p += LONGEST_WORD) /* of longer ones no token is made as a whole */
            UL_TRY(count_word(t, p, (uint32_t)(q - p < LONGEST_WORD ? q - p : LONGEST_WORD)));
        p = q;
    }
    return UL_OK;
}

int ul_trainer_add(ul_trainer *t, const char *text, int64_t n)
{
    const uint8_t *p = (const uint8_t *)text;
    if (ul__is_utf8(p, (size_t)n)) return count_words(t, p, p + n);
    uint8_t *copy = NULL;
    int64_t length = 0, replaced = 0;
    UL_TRY(ul__repair(&copy, &length, &replaced, p, n));
    int rc = count_words(t, copy, copy + length);
    ul__release(copy);
    return rc;
}

/* ---- candidates: the most frequent pair first, of equal ones that of the lower ids ---- */

static int before(const ul_trainer *t, const candidate *a, const candidate *b)
{
    const pair *p = &t->pairs[a->pair], *q = &t->pairs[b->pair];
    if (a->count != b->count) return a->count > b->count;
    return p->left != q->left ? p->left < q->left : p->right < q->right;
}

static int push(ul_trainer *t, uint32_t k)
{
    UL_TRY(ul__grow(&t->heap, &t->heap_room, t->heap_n + 1, sizeof *t->heap));
    candidate c = {t->pairs[k].count, k}, *heap = t->heap;
    int64_t i = t->heap_n++;
    for (; i > 0 && before(t, &c, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
    return UL_OK;
}

static candidate pop(ul_trainer *t)
{
    candidate *heap = t->heap, best = heap[0], last = heap[--t->heap_n];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= t->heap_n) break;
        if (child + 1 < t->heap_n && before(t, &heap[child + 1], &heap[child])) child++;
        if (!before(t, &heap[child], &last)) break;
        heap[i] = heap[child];
        i = child;
    }
    if (t->heap_n > 0) heap[i] = last;
    return best;
}

/* ---- pairs ---- */

static int widen_pairs(ul_trainer *t)
{
    if (t->by_tokens && (uint64_t)t->n_pairs * 4 < (t->pair_mask + 1) * 3) return UL_OK;
    UL_TRY(widen(&t->by_tokens, &t->pair_mask));
    for (int64_t i = 0; i < t->n_pairs; i++)
        place(t->by_tokens, t->pair_mask, ul__hash_pair(t->pairs[i].left, t->pairs[i].right),
              (uint32_t)i);
    return UL_OK;
}

static int find_pair(uint32_t *k, ul_trainer *t, uint32_t left, uint32_t right)
{
    uint64_t hash = ul__hash_pair(left, right);
    for (uint64_t i = hash; t->by_tokens[i & t->pair_mask] != UL__NONE; i++) {
        const pair *p = &t->pairs[t->by_tokens[i & t->pair_mask]];
        if (p->left == left && p->right == right) return *k = t->by_tokens[i & t->pair_mask], UL_OK;
    }
    UL_REQUIRE(t->n_pairs < UL__NONE - 1, UL_EVALUE, "tokenizer.train: too many pairs");
    UL_TRY(ul__grow(&t->pairs, &t->pair_room, t->n_pairs + 1, sizeof *t->pairs));
    *k = (uint32_t)t->n_pairs++;
    t->pairs[*k] = (pair){.left = left, .right = right};
    place(t->by_tokens, t->pair_mask, hash, *k);
    return widen_pairs(t);
}

/* One more place of a pair. */
static int add_pair(ul_trainer *t, uint32_t left, uint32_t right, uint32_t w)
{
    uint32_t k = 0;
    UL_TRY(find_pair(&k, t, left, right));
    pair *p = &t->pairs[k];
    p->count += t->words[w].count;
    if (p->n == 0 || p->words[p->n - 1] != w) {
        UL_TRY(ul__grow(&p->words, &p->room, p->n + 1, sizeof *p->words));
        p->words[p->n++] = w;
    }
    if (p->fresh) return UL_OK;
    p->fresh = 1;
    UL_TRY(ul__grow(&t->touched, &t->touched_room, t->touched_n + 1, sizeof *t->touched));
    t->touched[t->touched_n++] = k;
    return UL_OK;
}

static int drop_pair(ul_trainer *t, uint32_t left, uint32_t right, uint32_t w)
{
    uint32_t k = 0;
    UL_TRY(find_pair(&k, t, left, right));
    t->pairs[k].count -= t->words[w].count;
    return UL_OK;
}

static int push_touched(ul_trainer *t)
{
    for (int64_t i = 0; i < t->touched_n; i++) {
        t->pairs[t->touched[i]].fresh = 0;
        UL_TRY(push(t, t->touched[i]));
    }
    t->touched_n = 0;
    return UL_OK;
}

/* ---- merging ---- */

/* Puts `id` for left, right in a word, and counts the pairs beside it anew. */
static int merge_word(ul_trainer *t, uint32_t w, uint32_t left, uint32_t right, uint32_t id)
{
    uint32_t *s = t->symbols + t->words[w].at, n = t->words[w].length, to = 0;
    for (uint32_t i = 0; i < n; to++) {
        if (i + 1 == n || s[i] != left || s[i + 1] != right) {
            s[to] = s[i++];
            continue;
        }
        if (to > 0) {
            UL_TRY(drop_pair(t, s[to - 1], left, w));
            UL_TRY(add_pair(t, s[to - 1], id, w));
        }
        if (i + 2 < n) {
            UL_TRY(drop_pair(t, right, s[i + 2], w));
            UL_TRY(add_pair(t, id, s[i + 2], w));
        }
        s[to] = id;
        i += 2;
    }
    t->words[w].length = to;
    return UL_OK;
}

/* The token of these two together: a new one, unless its bytes are a token already. */
static int token_of(uint32_t *id, ul_trainer *t, uint32_t left, uint32_t right)
{
    char bytes[2 * UL__LONGEST_TOKEN];
    const ul__new_token *a = &t->tokens.tokens[left], *b = &t->tokens.tokens[right];
    uint32_t n = a->length + b->length;
    memcpy(bytes, t->tokens.text + a->at, a->length);
    memcpy(bytes + a->length, t->tokens.text + b->at, b->length);
    uint64_t hash = ul__hash(bytes, n);
    for (uint64_t i = hash; t->by_token[i & t->token_mask] != UL__NONE; i++) {
        const ul__new_token *other = &t->tokens.tokens[t->by_token[i & t->token_mask]];
        if (other->length == n && memcmp(t->tokens.text + other->at, bytes, n) == 0)
            return *id = other->id, UL_OK;
    }
    *id = (uint32_t)t->tokens.n_tokens;
    UL_TRY(ul__build_token(&t->tokens, *id, bytes, n, 0));
    place(t->by_token, t->token_mask, hash, *id);
    return UL_OK;
}

static int merge(ul_trainer *t, uint32_t k)
{
    uint32_t id = 0, left = t->pairs[k].left, right = t->pairs[k].right, *words = t->pairs[k].words;
    int64_t n = t->pairs[k].n;
    UL_TRY(token_of(&id, t, left, right));
    UL_TRY(ul__grow(&t->merges, &t->merge_room, 2 * (t->n_merges + 1), sizeof *t->merges));
    t->merges[2 * t->n_merges] = (int32_t)left;
    t->merges[2 * t->n_merges++ + 1] = (int32_t)right;
    t->pairs[k].words = NULL; /* whatever becomes of the pair: these words are done */
    t->pairs[k].n = t->pairs[k].room = 0;
    int rc = UL_OK;
    for (int64_t i = 0; rc == UL_OK && i < n; i++) rc = merge_word(t, words[i], left, right, id);
    ul__release(words);
    t->pairs[k].count = 0;
    return rc < 0 ? rc : push_touched(t);
}

/* The 256 bytes, in the order of the characters that files spell them with. */
static int add_bytes(ul_trainer *t, uint32_t *id_of)
{
    int n = 0;
    for (int printing = 1; printing >= 0; printing--)
        for (int byte = 0; byte < BYTES; byte++) {
            char c = (char)byte;
            int prints = byte >= 33 && byte != 173 && (byte <= 126 || byte >= 161);
            if (prints != printing) continue;
            UL_TRY(ul__build_token(&t->tokens, n, &c, 1, 0));
            place(t->by_token, t->token_mask, ul__hash(&c, 1), (uint32_t)n);
            id_of[byte] = (uint32_t)n++;
        }
    return UL_OK;
}

static int count_pairs(ul_trainer *t, const uint32_t *id_of)
{
    t->symbols = ul__alloc((size_t)(t->text_n + 1) * sizeof *t->symbols);
    UL_REQUIRE(t->symbols, UL_ENOMEM, "tokenizer.train: out of memory");
    for (int64_t i = 0; i < t->text_n; i++) t->symbols[i] = id_of[t->text[i]];
    UL_TRY(widen_pairs(t));
    for (int64_t w = 0; w < t->n_words; w++) {
        const uint32_t *s = t->symbols + t->words[w].at;
        for (uint32_t i = 0; i + 1 < t->words[w].length; i++)
            UL_TRY(add_pair(t, s[i], s[i + 1], (uint32_t)w));
    }
    return push_touched(t);
}

int ul_trainer_run(ul_trainer *t, int64_t tokens, int64_t least)
{
    uint32_t id_of[BYTES];
    UL_REQUIRE(tokens >= BYTES && tokens < UL__MOST_IDS, UL_EVALUE,
               "tokenizer.train: %lld tokens, and there are %d bytes", (long long)tokens, BYTES);
    UL_REQUIRE(!t->symbols, UL_EVALUE, "tokenizer.train: was run already");
    do UL_TRY(widen(&t->by_token, &t->token_mask));
    while (t->token_mask < 2 * (uint64_t)tokens);
    UL_TRY(add_bytes(t, id_of));
    UL_TRY(count_pairs(t, id_of));
    while (t->tokens.n_tokens < tokens && t->heap_n > 0) {
        candidate best = pop(t);
        const pair *p = &t->pairs[best.pair];
        if (p->count < best.count && p->count >= least) UL_TRY(push(t, best.pair));
        if (p->count != best.count || p->count < least) continue;
        uint32_t length = t->tokens.tokens[p->left].length + t->tokens.tokens[p->right].length;
        if (length <= UL__LONGEST_TOKEN) UL_TRY(merge(t, best.pair));
    }
    return UL_OK;
}

int64_t ul_trainer_tokens(const ul_trainer *t) { return t->tokens.n_tokens; }

const char *ul_trainer_token(const ul_trainer *t, int64_t id, int64_t *n)
{
    *n = t->tokens.tokens[id].length;
    return t->tokens.text + t->tokens.tokens[id].at;
}

const int32_t *ul_trainer_merges(const ul_trainer *t, int64_t *n)
{
    *n = t->n_merges;
    return t->merges;
}
