/* nfc.c - Unicode's normalization form C: characters decomposed, their marks in order, composed
 * again (Unicode Standard Annex 15).
 *
 * Nearly all text is in that form. Most characters are stable: they stay as they are whatever
 * stands around them, so that text can be cut before each of them. What is computed are segments,
 * from one stable character to the next, that hold one which is not.
 */
#include "unicode.h"
#include "vocabulary.h"

struct pair {
    uint32_t code, first, second, composes;
};
struct marks {
    uint32_t first, last, class;
};
#include "nfc_decompositions.h"
#include "nfc_marks.h"

enum {
    N_PAIRS = sizeof pairs / sizeof pairs[0],
    N_SINGLES = sizeof singles / sizeof singles[0],
    N_MARKS = sizeof marks / sizeof marks[0],
    FIRST_UNSTABLE = 0x300,
    CODES = 0x30000, /* all that is not stable is below */
    SLOTS = 4096,
    /* Hangul is composed by arithmetic: The Unicode Standard, 3.12. */
    SYLLABLE = 0xac00,
    LEAD = 0x1100,
    VOWEL = 0x1161,
    TRAIL = 0x11a7,
    LEADS = 19,
    VOWELS = 21,
    TRAILS = 28,
};

/* ---- tables, from the lists ---- */

static uint64_t unstable[CODES / 64];
static uint8_t class_of[CODES];
static uint16_t decomposed[SLOTS], composed[SLOTS]; /* hashes: an index of pairs, plus one */
static struct {
    uint32_t code, becomes;
} single[SLOTS];

static uint32_t slot_of(uint32_t a, uint32_t b)
{
    return (uint32_t)(ul__hash_pair(a, b) >> 40) & (SLOTS - 1);
}

static void set_unstable(uint32_t code) { unstable[code / 64] |= 1ull << (code & 63); }

static void add(uint16_t *hash, uint32_t slot, uint32_t i)
{
    while (hash[slot]) slot = (slot + 1) & (SLOTS - 1);
    hash[slot] = (uint16_t)(i + 1);
}

void ul__nfc_open(void)
{
    static int is_open;
    if (is_open) return;
    for (uint32_t i = 0; i < N_PAIRS; i++) {
        add(decomposed, slot_of(pairs[i].code, 0), i);
        if (pairs[i].composes) {
            add(composed, slot_of(pairs[i].first, pairs[i].second), i);
            set_unstable(pairs[i].second);
        } else {
            set_unstable(pairs[i].code);
        }
    }
    for (uint32_t i = 0, n; i < N_SINGLES; i += 2 + n) {
        n = singles[i + 1];
        for (uint32_t k = 0; k < n; k++) {
            uint32_t code = singles[i] + k, slot = slot_of(code, 0);
            while (single[slot].code) slot = (slot + 1) & (SLOTS - 1);
            single[slot].code = code;
            single[slot].becomes = singles[i + 2 + k];
            set_unstable(code);
        }
    }
    for (uint32_t i = 0; i < N_MARKS; i++)
        for (uint32_t code = marks[i].first; code <= marks[i].last; code++) {
            class_of[code] = (uint8_t)marks[i].class;
            set_unstable(code);
        }
    for (uint32_t i = 0; i < VOWELS; i++) set_unstable(VOWEL + i);
    for (uint32_t i = 1; i < TRAILS; i++) set_unstable(TRAIL + i);
    is_open = 1;
}

static inline int is_stable(uint32_t code)
{
    return code < FIRST_UNSTABLE || code >= CODES || !(unstable[code / 64] >> (code & 63) & 1);
}

static inline int mark_class(uint32_t code) { return code < CODES ? class_of[code] : 0; }

static const struct pair *pair_of(uint32_t code)
{
    for (uint32_t slot = slot_of(code, 0); decomposed[slot]; slot = (slot + 1) & (SLOTS - 1))
        if (pairs[decomposed[slot] - 1].code == code) return &pairs[decomposed[slot] - 1];
    return NULL;
}

static uint32_t single_of(uint32_t code)
{
    for (uint32_t slot = slot_of(code, 0); single[slot].code; slot = (slot + 1) & (SLOTS - 1))
        if (single[slot].code == code) return single[slot].becomes;
    return 0;
}

/* What two characters compose to, or 0. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    uint32_t lead = a - LEAD, vowel = b - VOWEL, syllable = a - SYLLABLE, trail = b - TRAIL;
    if (lead < LEADS && vowel < VOWELS) return SYLLABLE + (lead * VOWELS + vowel) * TRAILS;
    if (syllable < LEADS * VOWELS * TRAILS && syllable % TRAILS == 0 && trail - 1 < TRAILS - 1)
        return a + trail;
    for (uint32_t slot = slot_of(a, b); composed[slot]; slot = (slot + 1) & (SLOTS - 1)) {
        const struct pair *pair = &pairs[composed[slot] - 1];
        if (pair->first == a && pair->second == b) return pair->code;
    }
    return 0;
}

/* ---- a segment ---- */

typedef struct codes {
    uint32_t *list, *sorted;
    int64_t n, room, sorted_room;
} codes;

static int add_code(codes *c, uint32_t code)
{
    UL_TRY(ul__grow(&c->list, &c->room, c->n + 1, sizeof *c->list));
    c->list[c->n++] = code;
    return UL_OK;
}

/* Adds what a character is made of; no chain is longer than four. */
static int decompose(codes *c, uint32_t code)
{
    uint32_t syllable = code - SYLLABLE, becomes;
    const struct pair *pair;
    if (syllable < LEADS * VOWELS * TRAILS) {
        UL_TRY(add_code(c, LEAD + syllable / (VOWELS * TRAILS)));
        UL_TRY(add_code(c, VOWEL + syllable % (VOWELS * TRAILS) / TRAILS));
        return syllable % TRAILS ? add_code(c, TRAIL + syllable % TRAILS) : UL_OK;
    }
    if ((becomes = single_of(code))) return decompose(c, becomes);
    if (!(pair = pair_of(code))) return add_code(c, code);
    UL_TRY(decompose(c, pair->first));
    return decompose(c, pair->second);
}

/* Puts n marks in the order of their classes; those of one class stay as they are. There may be
 * millions of them, so that they are counted where they are not few.
 */
static int sort_marks(codes *c, int64_t first, int64_t n)
{
    uint32_t *list = c->list + first;
    int64_t at[257] = {0};
    if (n <= 16) {
        for (int64_t i = 1; i < n; i++) {
            uint32_t code = list[i];
            int64_t k = i;
            for (; k > 0 && mark_class(list[k - 1]) > mark_class(code); k--) list[k] = list[k - 1];
            list[k] = code;
        }
        return UL_OK;
    }
    UL_TRY(ul__grow(&c->sorted, &c->sorted_room, n, sizeof *c->sorted));
    for (int64_t i = 0; i < n; i++) at[mark_class(list[i]) + 1]++;
    for (int i = 0; i < 256; i++) at[i + 1] += at[i];
    for (int64_t i = 0; i < n; i++) c->sorted[at[mark_class(list[i])]++] = list[i];
    memcpy(list, c->sorted, (size_t)n * sizeof *list);
    return UL_OK;
}

static int order(codes *c)
{
    for (int64_t i = 0, n; i < c->n; i += n) {
        for (n = 0; i + n < c->n && mark_class(c->list[i + n]); n++) {
        }
        if (n > 1) UL_TRY(sort_marks(c, i, n));
        n += n == 0;
    }
    return UL_OK;
}

/* A mark goes to the last character that is none, unless one of the same class, or none, is
 * between them.
 */
static void compose_all(codes *c)
{
    int64_t n = 0, starter = -1;
    int last = 0;
    for (int64_t i = 0; i < c->n; i++) {
        uint32_t code = c->list[i], both;
        int class = mark_class(code);
        if (starter >= 0 && (n - 1 == starter || last < class) &&
            (both = compose(c->list[starter], code))) {
            c->list[starter] = both;
            continue;
        }
        if (class == 0) starter = n;
        last = class;
        c->list[n++] = code;
    }
    c->n = n;
}

/* The segment at p, of UTF-8: its end, and whether it may change. */
static const uint8_t *segment(const uint8_t *p, const uint8_t *end, int *changes)
{
    const uint8_t *begin = p;
    int n, cut;
    *changes = 0;
    while (p < end && (n = ul__utf8(p, end, &cut)) > 0) {
        int stable = is_stable(ul__code(p, &n));
        if (stable && p > begin) break;
        *changes |= !stable;
        p += n;
    }
    return p;
}

static int normalize(codes *c, const uint8_t *p, const uint8_t *end)
{
    int n;
    for (c->n = 0; p < end; p += n) UL_TRY(decompose(c, ul__code(p, &n)));
    UL_TRY(order(c));
    compose_all(c);
    return UL_OK;
}

static void drop(codes *c)
{
    ul__release(c->list);
    ul__release(c->sorted);
}

int ul__nfc_segment(int64_t *raw, int64_t *seen, const uint8_t *p, const uint8_t *end)
{
    int changes, rc = UL_OK;
    uint8_t bytes[4];
    const uint8_t *q = segment(p, end, &changes);
    *raw = *seen = q - p;
    if (!changes) return UL_OK;
    codes c = {0};
    rc = normalize(&c, p, q);
    *seen = 0;
    for (int64_t i = 0; rc == UL_OK && i < c.n; i++) *seen += ul__put_code(bytes, c.list[i]);
    drop(&c);
    return rc;
}

/* ---- a text ---- */

int ul__is_nfc(const uint8_t *p, const uint8_t *end)
{
    int n;
    for (; p < end; p += n) {
        uint64_t eight;
        if (end - p >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080u)))
            n = 8;
        else if (!is_stable(ul__code(p, &n)))
            return 0;
    }
    return 1;
}

int ul__nfc(uint8_t **out, int64_t *length, const uint8_t *p, const uint8_t *end)
{
    codes c = {0};
    uint8_t *to = NULL;
    int64_t n = 0, room = 0;
    int rc = UL_OK, changes;
    while (rc == UL_OK && p < end) {
        const uint8_t *q = segment(p, end, &changes);
        if (changes) {
            rc = normalize(&c, p, q);
            if (rc == UL_OK) rc = ul__grow(&to, &room, n + 4 * c.n, 1);
            for (int64_t i = 0; rc == UL_OK && i < c.n; i++) n += ul__put_code(to + n, c.list[i]);
        } else {
            rc = ul__grow(&to, &room, n + (q - p), 1);
            if (rc == UL_OK) memcpy(to + n, p, (size_t)(q - p)), n += q - p;
        }
        p = q;
    }
    drop(&c);
    if (rc < 0) {
        ul__release(to);
        return rc;
    }
    *out = to;
    *length = n;
    return UL_OK;
}
