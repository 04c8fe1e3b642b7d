/* spans.c - between which characters text may be cut before it is merged.
 *
 * Where no token has two characters side by side, nothing is ever merged across the place between
 * them, and what stands on both sides can be encoded on its own: short words, which mostly have
 * been seen before, of what would be long new ones, as in Chinese.
 *
 * A token of bytes may begin or end inside a character; then its last, or first, byte stands for
 * it. Pairs are kept as bits at their hash: of others too, which only means fewer cuts.
 */
#include "unicode.h"
#include "vocabulary.h"

/* The character at p, whole or in part: `*n` bytes of [p, end). At the beginning of a token those
 * of which the first byte is missing are one, of which the last one counts.
 */
static uint32_t unit(const uint8_t *p, const uint8_t *end, int *n)
{
    int cut = 0, k = ul__utf8(p, end, &cut);
    if (k > 0) return ul__code(p, n);
    uint8_t byte = *p;
    for (*n = 1; p + *n < end && (p[*n] & 0xc0) == 0x80; ++*n)
        if ((*p & 0xc0) == 0x80) byte = p[*n];
    return UL__IN_PART | byte;
}

static uint32_t without_mark(const ul__vocabulary *v, uint32_t code)
{
    return code == UL__MARK_CODE && v->split == UL__SPLIT_SPACES ? ' ' : code;
}

/* Calls for each two units of a token that stand side by side; returns how many there are. */
static int64_t each(ul__vocabulary *v, const uint8_t *p, const uint8_t *end,
                    void (*visit)(ul__vocabulary *v, uint32_t left, uint32_t right))
{
    int n;
    int64_t count = 0;
    uint32_t left = without_mark(v, unit(p, end, &n));
    while ((p += n) < end) {
        uint32_t right = without_mark(v, unit(p, end, &n));
        if (visit) visit(v, left, right);
        count += left >= 0x80 || right >= 0x80;
        left = right;
    }
    return count;
}

static void set(ul__vocabulary *v, uint32_t left, uint32_t right)
{
    if (left < 0x80 && right < 0x80) {
        v->ascii_spans[2 * left + right / 64] |= 1ull << (right & 63);
        return;
    }
    uint64_t hash = ul__hash_pair(left, right);
    uint64_t *spans = (uint64_t *)((char *)v + v->spans_at);
    spans[hash >> 6 & v->span_mask] |= 1ull << (hash & 63);
}

int64_t ul__count_spans(ul__vocabulary *v, const uint8_t *bytes, uint32_t n)
{
    return n ? each(v, bytes, bytes + n, NULL) : 0;
}

void ul__set_spans(ul__vocabulary *v, const uint8_t *bytes, uint32_t n)
{
    if (n) each(v, bytes, bytes + n, set);
}
