/* encode.c - text to ids: what is no UTF-8, added tokens, the normalizer, the template; and where
 * tokens lie.
 */
#include "unicode.h"
#include "vocabulary.h"

void ul_ids_free(ul_ids *ids)
{
    ul__release(ids->data);
    *ids = (ul_ids){0};
}

static int add_id(ul_ids *ids, int32_t id)
{
    UL_TRY(ul__grow(&ids->data, &ids->room, ids->n + 1, sizeof *ids->data));
    ids->data[ids->n++] = id;
    return UL_OK;
}

/* ---- added tokens ---- */

/* The longest added token at p, or UL__NONE. They are sorted, so those that agree with the text so
 * far lie side by side, the one that ends here first.
 */
static uint32_t find_added(const ul_tokenizer *t, const uint8_t *p, const uint8_t *end,
                           int specials)
{
    const ul__vocabulary *v = t->v;
    const uint32_t *added = ul__added(v);
    uint32_t low = t->first_added[*p], high = t->first_added[*p + 1], found = UL__NONE;
    for (int64_t depth = 1; low < high; depth++) {
        while (low < high && ul__tokens(v)[added[low]].length == depth) {
            if (specials || !(ul__tokens(v)[added[low]].flags & UL__TOKEN_SPECIAL))
                found = added[low];
            low++;
        }
        if (p + depth == end) break;
        const uint8_t *bytes = (const uint8_t *)ul__text(v) + depth;
        uint32_t first = low, last = high; /* of those that go on with p[depth], by bisection */
        while (first < last) {
            uint32_t middle = first + (last - first) / 2;
            if (bytes[ul__tokens(v)[added[middle]].at] < p[depth])
                first = middle + 1;
            else
                last = middle;
        }
        for (low = first, last = high; first < last;) {
            uint32_t middle = first + (last - first) / 2;
            if (bytes[ul__tokens(v)[added[middle]].at] <= p[depth])
                first = middle + 1;
            else
                last = middle;
        }
        high = first;
    }
    return found;
}

/* Text between two added tokens. */
static int encode_piece(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, const uint8_t *end,
                        int first)
{
    if (!t->v->nfc || ul__is_nfc(p, end)) return ul__encode_piece(ids, t, p, end, first);
    uint8_t *copy = NULL;
    int64_t length = 0;
    UL_TRY(ul__nfc(&copy, &length, p, end));
    int rc = ul__encode_piece(ids, t, copy, copy + length, first);
    ul__release(copy);
    return rc;
}

static int encode_pieces(ul_ids *ids, ul_tokenizer *t, const uint8_t *begin, const uint8_t *end,
                         int specials)
{
    const uint8_t *piece = begin;
    int looks = t->v->n_added > 0 && (specials || t->v->plain_added);
    for (const uint8_t *p = begin; looks && p < end;) {
        uint32_t id = t->first_added[*p] == t->first_added[*p + 1]
                          ? UL__NONE
                          : find_added(t, p, end, specials);
        if (id == UL__NONE) {
            p++;
            continue;
        }
        UL_TRY(encode_piece(ids, t, piece, p, piece == begin));
        UL_TRY(add_id(ids, (int32_t)id));
        piece = p += ul__tokens(t->v)[id].length;
    }
    return encode_piece(ids, t, piece, end, piece == begin);
}

/* ---- what is no UTF-8 ---- */

int ul__repair(uint8_t **out, int64_t *length, int64_t *replaced, const uint8_t *p, int64_t n)
{
    const uint8_t *end = p + n;
    UL_REQUIRE(n < INT64_MAX / 4, UL_EVALUE, "encode: a text of %lld bytes", (long long)n);
    uint8_t *copy = ul__alloc((size_t)(3 * n)), *to = copy;
    int cut;
    UL_REQUIRE(copy, UL_ENOMEM, "encode: out of memory for %lld bytes", (long long)(3 * n));
    while (p < end) {
        int k = ul__utf8(p, end, &cut);
        if (k > 0) {
            memcpy(to, p, (size_t)k);
            to += k, p += k;
        } else {
            memcpy(to, "\xef\xbf\xbd", 3);
            to += 3, p -= k;
            ++*replaced;
        }
    }
    *out = copy;
    *length = to - copy;
    return UL_OK;
}

static int refuse_at(const uint8_t *p, int64_t n)
{
    const uint8_t *q = p;
    int cut, k;
    while ((k = ul__utf8(q, p + n, &cut)) > 0) q += k;
    return ul__fail(UL_EVALUE, "encode: byte %lld of the text, 0x%02X, is no UTF-8",
                    (long long)(q - p + 1), *q);
}

static int encode_text(ul_ids *ids, ul_tokenizer *t, const uint8_t *p, int64_t n, int flags)
{
    int specials = (flags & UL_TOKENS_SPECIALS) != 0;
    if (ul__is_utf8(p, (size_t)n)) return encode_pieces(ids, t, p, p + n, specials);
    if (flags & UL_TOKENS_STRICT) return refuse_at(p, n);
    uint8_t *copy = NULL;
    int64_t length = 0;
    UL_TRY(ul__repair(&copy, &length, &ids->replaced, p, n));
    int rc = encode_pieces(ids, t, copy, copy + length, specials);
    ul__release(copy);
    return rc;
}

/* ---- the template ---- */

/* What bos = true puts in front: the file's template, or BOS. */
static int before_of(int32_t *list, const ul__vocabulary *v, int32_t bos)
{
    memcpy(list, v->before, sizeof v->before);
    if (v->n_before == 0 && bos >= 0) return list[0] = bos, 1;
    return (int)v->n_before;
}

static int encode_all(ul_ids *ids, ul_tokenizer *t, const char *text, int64_t n, int flags,
                      int32_t bos, int32_t eos)
{
    const ul__vocabulary *v = t->v;
    int32_t before[UL__MOST_AFFIXES];
    int n_before = flags & UL_TOKENS_BOS ? before_of(before, v, bos) : 0;
    UL_REQUIRE(!(flags & UL_TOKENS_BOS) || n_before, UL_EVALUE,
               "encode: this tokenizer has no BOS");
    UL_REQUIRE(!(flags & UL_TOKENS_EOS) || eos >= 0 || v->n_after, UL_EVALUE,
               "encode: this tokenizer has no EOS");
    for (int i = 0; i < n_before; i++) UL_TRY(add_id(ids, before[i]));
    int64_t start = ids->n;
    UL_TRY(encode_text(ids, t, (const uint8_t *)text, n, flags));
    if (n_before && ids->n > start && ids->data[start] == before[n_before - 1]) {
        memmove(ids->data + start, ids->data + start + 1,
                (size_t)(ids->n - start - 1) * sizeof *ids->data);
        ids->n--;
    }
    if (!(flags & UL_TOKENS_EOS)) return UL_OK;
    int32_t last = v->n_after ? v->after[0] : eos;
    if (ids->n == start || ids->data[ids->n - 1] != last) UL_TRY(add_id(ids, last));
    for (uint32_t i = 1; i < v->n_after; i++) UL_TRY(add_id(ids, v->after[i]));
    return UL_OK;
}

int ul_tokenizer_encode(ul_ids *ids, ul_tokenizer *t, const char *text, int64_t n, int flags,
                        int32_t bos, int32_t eos)
{
    int64_t before = ids->n, replaced = ids->replaced;
    int rc = encode_all(ids, t, text, n, flags, bos, eos);
    if (rc < 0) ids->n = before, ids->replaced = replaced;
    return rc;
}

/* ---- where tokens lie ---- */

/* Walks through a text in the bytes that tokens have: a unit is a character, what the normalizer
 * makes another of, a space that tokens write as U+2581, or a piece that became U+FFFD.
 */
typedef struct walk {
    const uint8_t *p, *end;
    const uint8_t *unit; /* where the unit begins that these are about */
    int64_t raw, seen;   /* its bytes in the text, and in tokens */
    int64_t taken;       /* bytes of the unit at p that earlier tokens have, as tokens have them */
    int64_t in_front;    /* bytes that tokens have in front of the text, and the text has not */
    int spaces, nfc, rc;
} walk;

static void find_unit(walk *w)
{
    if (w->unit == w->p) return;
    int cut, k = ul__utf8(w->p, w->end, &cut);
    w->unit = w->p;
    w->raw = k > 0 ? k : -k;
    w->seen = k < 0 || (w->spaces && *w->p == ' ') ? 3 : k;
    if (k > 0 && w->nfc && w->rc == UL_OK) w->rc = ul__nfc_segment(&w->raw, &w->seen, w->p, w->end);
}

static const uint8_t *place(walk *w)
{
    if (w->taken == 0 || w->p == w->end) return w->p;
    find_unit(w);
    return w->p + (w->taken < w->raw ? w->taken : w->raw);
}

static void take(walk *w, int64_t bytes)
{
    int64_t free_bytes = bytes < w->in_front ? bytes : w->in_front;
    w->in_front -= free_bytes;
    bytes -= free_bytes;
    while (bytes > 0 && w->p < w->end) {
        find_unit(w);
        int64_t n = bytes < w->seen - w->taken ? bytes : w->seen - w->taken;
        w->taken += n;
        bytes -= n;
        if (w->taken == w->seen) w->p += w->raw, w->taken = 0;
    }
}

int ul_tokenizer_offsets(int64_t *first, const ul_tokenizer *t, const char *text, int64_t bytes,
                         const int32_t *ids, int64_t n, int flags)
{
    const ul__vocabulary *v = t->v;
    const uint8_t *begin = (const uint8_t *)text;
    walk w = {.p = begin,
              .end = begin + bytes,
              .spaces = v->split == UL__SPLIT_SPACES,
              .nfc = (int)v->nfc};
    int starts = 1; /* whether a piece begins here */
    for (int64_t i = 0; i < n; i++) {
        UL_REQUIRE(ids[i] >= 0 && ids[i] < (int64_t)v->n_tokens, UL_EVALUE, "offsets: no token %d",
                   ids[i]);
        const ul__token *token = &ul__tokens(v)[ids[i]];
        int special = (token->flags & UL__TOKEN_SPECIAL) != 0;
        first[i] = place(&w) - begin;
        if ((token->flags & UL__TOKEN_ADDED) && w.taken == 0 && w.end - w.p >= token->length &&
            (!special || (flags & UL_TOKENS_SPECIALS)) &&
            memcmp(w.p, ul__text(v) + token->at, token->length) == 0) {
            w.p += token->length;
            starts = 1;
        } else if (!special) {
            if (starts && w.p < w.end && ul__prepends(v, w.p, w.end, w.p == begin)) w.in_front = 3;
            take(&w, token->flags & UL__TOKEN_BYTE ? 1 : token->length);
            starts = 0;
        }
        UL_TRY(w.rc);
    }
    first[n] = place(&w) - begin;
    return UL_OK;
}
