/* split.c - words: what the patterns of pre-tokenizers match, by hand.
 *
 * Each pattern is a list of alternatives, of which the first that matches counts. All of them end
 * alike, and some match any character there is, so that words follow each other without gaps.
 */
#include "unicode.h"
#include "vocabulary.h"

/* Whether the character at p has any of the classes in `mask`; and its length. */
static inline int is(const uint8_t *p, int mask, int *n)
{
    if (*p < 0x80) return *n = 1, ul__class_of[0][*p] & mask;
    return ul__class(ul__code(p, n)) & mask;
}

/* Behind all characters from p on that have such a class. */
static inline const uint8_t *run(const uint8_t *p, const uint8_t *end, int mask)
{
    int n;
    while (p < end && is(p, mask, &n)) p += n;
    return p;
}

/* The same for those that have none. */
static inline const uint8_t *run_without(const uint8_t *p, const uint8_t *end, int mask)
{
    int n;
    while (p < end && !is(p, mask, &n)) p += n;
    return p;
}

enum { WORDY = UL__SPACE | UL__LETTER | UL__NUMBER };

/*  \s*[\r\n]+ | \s+(?!\S) | \s+
 * The run of spaces up to its last line break; else all of it at the end of the text, and all but
 * its last character elsewhere, which goes to the word that follows.
 */
static const uint8_t *spaces(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *q = p, *last = p, *after_break = NULL;
    int n;
    for (; q < end && is(q, UL__SPACE, &n); q += n) {
        if (*q == '\n' || *q == '\r') after_break = q + 1;
        last = q;
    }
    if (after_break) return after_break;
    return q < end && last > p ? last : q;
}

/*  ?[^\s\p{L}\p{N}]+[\r\n]*  with one more character in the second set, and then spaces */
static const uint8_t *marks_or_spaces(const uint8_t *p, const uint8_t *end, uint8_t more)
{
    const uint8_t *q = *p == ' ' ? p + 1 : p, *r = run_without(q, end, WORDY);
    if (r == q) return spaces(p, end);
    while (r < end && (*r == '\r' || *r == '\n' || *r == more)) r++;
    return r;
}

/* The end of 's 't 're 've 'm 'll 'd at p, or NULL. */
static const uint8_t *contraction(const uint8_t *p, const uint8_t *end, uint8_t fold)
{
    if (end - p < 2) return NULL;
    uint8_t a = p[1] | fold, b = end - p > 2 ? p[2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
    /* U+017F folds to s */
    return fold && end - p > 2 && p[1] == 0xc5 && p[2] == 0xbf ? p + 3 : NULL;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,digits} |
 *  ?[^\s\p{L}\p{N}]+[\r\n]* | spaces
 */
static inline const uint8_t *llama(const uint8_t *p, const uint8_t *end, int digits)
{
    int n, m, letter = is(p, UL__LETTER, &n);
    if (letter) return run(p + n, end, UL__LETTER);
    if (*p == '\'') {
        const uint8_t *q = contraction(p, end, 0x20);
        if (q) return q;
    }
    int number = is(p, UL__NUMBER, &n);
    if (!number && *p != '\r' && *p != '\n' && p + n < end && is(p + n, UL__LETTER, &m))
        return run(p + n + m, end, UL__LETTER);
    if (!number) return marks_or_spaces(p, end, '\n');
    for (p += n; --digits > 0 && p < end && is(p, UL__NUMBER, &n);) p += n;
    return p;
}

static const uint8_t *llama3(const uint8_t *p, const uint8_t *end) { return llama(p, end, 3); }
static const uint8_t *qwen2(const uint8_t *p, const uint8_t *end) { return llama(p, end, 1); }

/* [upper]*[lower]+ at p, or NULL. The classes share characters: the first run takes all it can, and
 * gives its last shared one back where nothing is left for the second.
 */
static const uint8_t *capitalized(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *q = p, *after_shared = NULL;
    int n;
    for (; q < end && is(q, UL__UPPER, &n); q += n)
        if (is(q, UL__LOWER, &n)) after_shared = q + n;
    const uint8_t *r = run(q, end, UL__LOWER);
    return r > q ? r : after_shared;
}

/* [upper]+[lower]* at p, or NULL */
static const uint8_t *upper_case(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *q = run(p, end, UL__UPPER);
    return q > p ? run(q, end, UL__LOWER) : NULL;
}

/* [^\r\n\p{L}\p{N}]?[upper]*[lower]+ | [^\r\n\p{L}\p{N}]?[upper]+[lower]* | \p{N} |
 *  ?[^\s\p{L}\p{N}]+[\r\n/]* | spaces
 */
static const uint8_t *tekken(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *q;
    int n, number = is(p, UL__NUMBER, &n);
    if (number) return p + n;
    int prefix = *p != '\r' && *p != '\n' && !is(p, UL__LETTER, &n) && p + n < end;
    if (prefix && (q = capitalized(p + n, end))) return q;
    if ((q = capitalized(p, end))) return q;
    if (prefix && (q = upper_case(p + n, end))) return q;
    if ((q = upper_case(p, end))) return q;
    return marks_or_spaces(p, end, '/');
}

/* 's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ | ?\p{N}+ | ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+ */
static const uint8_t *gpt2(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *q = *p == '\'' ? contraction(p, end, 0) : NULL;
    int n;
    if (q) return q;
    q = *p == ' ' ? p + 1 : p;
    if (q < end && is(q, UL__LETTER, &n)) return run(q, end, UL__LETTER);
    if (q < end && is(q, UL__NUMBER, &n)) return run(q, end, UL__NUMBER);
    if (q < end && !is(q, UL__SPACE, &n)) return run_without(q, end, WORDY);
    const uint8_t *last = p;
    for (q = p; q < end && is(q, UL__SPACE, &n); q += n) last = q;
    return q < end && last > p ? last : q;
}

ul__splitter *ul__splitter_of(ul__split_kind kind)
{
    static ul__splitter *const splitters[] = {[UL__SPLIT_LLAMA3] = llama3,
                                              [UL__SPLIT_QWEN2] = qwen2,
                                              [UL__SPLIT_TEKKEN] = tekken,
                                              [UL__SPLIT_GPT2] = gpt2,
                                              [UL__SPLIT_SPACES] = NULL};
    return splitters[kind];
}

static const char *const names[] = {[UL__SPLIT_LLAMA3] = "llama3",
                                    [UL__SPLIT_QWEN2] = "qwen2",
                                    [UL__SPLIT_TEKKEN] = "tekken",
                                    [UL__SPLIT_GPT2] = "gpt2",
                                    [UL__SPLIT_SPACES] = "sentencepiece"};

const char *ul__split_name(ul__split_kind kind) { return names[kind]; }

int ul__split_named(const char *name)
{
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}
