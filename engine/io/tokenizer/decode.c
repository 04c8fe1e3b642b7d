/* decode.c - ids to text. */
#include "unicode.h"
#include "vocabulary.h"

void ul_text_free(ul_text *text)
{
    ul__release(text->data);
    *text = (ul_text){0};
}

static int add(ul_text *text, const void *bytes, int64_t n)
{
    UL_TRY(ul__grow(&text->data, &text->room, text->n + n, 1));
    if (n) memcpy(text->data + text->n, bytes, (size_t)n);
    text->n += n;
    return UL_OK;
}

static int add_replacements(ul_text *text, int64_t n)
{
    while (n-- > 0) UL_TRY(add(text, "\xef\xbf\xbd", 3));
    return UL_OK;
}

/* Adds bytes of which some may be no UTF-8; what may be the beginning of a character is held. */
static int add_bytes(ul_text *text, ul_decoder *d, const char *bytes, int64_t n)
{
    const uint8_t *p = (const uint8_t *)bytes, *end = p + n;
    while (d->held > 0 && p < end) { /* one byte at a time, until nothing is held */
        int cut = 0;
        d->bytes[d->held++] = *p++;
        int k = ul__utf8(d->bytes, d->bytes + d->held, &cut);
        if (cut) continue;
        int left = k > 0 ? 0 : d->held + k; /* 1: the byte that broke it begins anew */
        UL_TRY(k > 0 ? add(text, d->bytes, k) : add_replacements(text, 1));
        d->held = 0;
        p -= left;
    }
    while (p < end) {
        const uint8_t *q = p;
        int cut = 0, k = 0;
        while (q < end && (k = ul__utf8(q, end, &cut)) > 0) q += k;
        UL_TRY(add(text, p, q - p));
        p = q;
        if (cut) {
            d->held = (int)(end - p);
            memcpy(d->bytes, p, (size_t)d->held);
            break;
        }
        if (p < end) UL_TRY(add_replacements(text, 1));
        if (p < end) p -= k;
    }
    return UL_OK;
}

/* A token of SentencePiece: its marks are spaces, of which one in front of the text is not its own.
 */
static int add_spaced(ul_text *text, ul_decoder *d, const char *p, int64_t n)
{
    const char *end = p + n;
    if (!d->begun && d->t->v->strip && n > 0 &&
        ul__is_mark((const uint8_t *)p, (const uint8_t *)end))
        p += *p == ' ' ? 1 : 3;
    while (p < end) {
        const char *q = p;
        while (q < end && !(end - q >= 3 && memcmp(q, UL__MARK, 3) == 0)) q++;
        UL_TRY(add(text, p, q - p));
        if (q < end) UL_TRY(add(text, " ", 1));
        p = q < end ? q + 3 : q;
    }
    return UL_OK;
}

/* What is held is no character: a byte of SentencePiece is replaced by itself, others together. */
static int let_go(ul_text *text, ul_decoder *d)
{
    int n = d->t->v->split == UL__SPLIT_SPACES ? d->held : d->held > 0;
    d->held = 0;
    return add_replacements(text, n);
}

static int check(const ul__token **token, const ul_decoder *d, int64_t id)
{
    const ul__vocabulary *v = d->t->v;
    UL_REQUIRE(id >= 0 && id < (int64_t)v->n_tokens && ul__tokens(v)[id].flags, UL_EVALUE,
               "decode: there is no token %lld; ids lie in [0, %u)", (long long)id, v->n_tokens);
    *token = &ul__tokens(v)[id];
    return UL_OK;
}

int ul_decoder_push(ul_text *text, ul_decoder *d, int64_t id)
{
    const ul__vocabulary *v = d->t->v;
    const ul__token *token = NULL;
    UL_TRY(check(&token, d, id));
    if ((token->flags & UL__TOKEN_SPECIAL) && !(d->flags & UL_TOKENS_SPECIALS)) return UL_OK;
    const char *bytes = ul__text(v) + token->at;
    if (v->split != UL__SPLIT_SPACES) return add_bytes(text, d, bytes, token->length);
    int rc;
    if (token->flags & UL__TOKEN_BYTE) {
        char byte = (char)token->byte;
        int stripped = !d->begun && v->strip && byte == ' ';
        rc = stripped ? UL_OK : add_bytes(text, d, &byte, 1);
    } else {
        rc = let_go(text, d);
        if (rc == UL_OK) rc = add_spaced(text, d, bytes, token->length);
    }
    d->begun = 1;
    return rc;
}

int ul_decoder_end(ul_text *text, ul_decoder *d)
{
    int rc = let_go(text, d);
    d->begun = 0;
    return rc;
}

/* The bytes that a run of SentencePiece's byte tokens says are a text only if all of it is UTF-8.
 * *n: how many ids it has, 0 where none begins here; whether it is text.
 */
static int run_is_text(int64_t *n, const ul_decoder *d, const int32_t *ids, int64_t most)
{
    uint8_t bytes[4];
    int held = 0, good = 1;
    for (*n = 0; *n < most; ++*n) {
        const ul__token *token = NULL;
        if (check(&token, d, ids[*n]) < 0) break; /* said when it is decoded */
        if ((token->flags & UL__TOKEN_SPECIAL) && !(d->flags & UL_TOKENS_SPECIALS)) continue;
        if (!(token->flags & UL__TOKEN_BYTE)) break;
        int cut = 0;
        bytes[held++] = token->byte;
        int k = good ? ul__utf8(bytes, bytes + held, &cut) : 1;
        good = good && (cut || k > 0);
        if (!cut) held = 0;
    }
    return good && held == 0;
}

static int decode_all(ul_text *text, ul_decoder *d, const int32_t *ids, int64_t n)
{
    int by_run = d->t->v->split == UL__SPLIT_SPACES;
    for (int64_t i = 0; i < n;) {
        int64_t length = 0;
        int good = !by_run || run_is_text(&length, d, ids + i, n - i);
        for (int64_t k = 0; k < length || k == 0; k++, i++) {
            const ul__token *token = NULL;
            UL_TRY(check(&token, d, ids[i]));
            int is_byte = (token->flags & UL__TOKEN_BYTE) != 0;
            if (good || !is_byte) UL_TRY(ul_decoder_push(text, d, ids[i]));
            if (good || !is_byte) continue;
            UL_TRY(add_replacements(text, 1));
            d->begun = 1;
        }
    }
    return ul_decoder_end(text, d);
}

int ul_tokenizer_decode(ul_text *text, const ul_tokenizer *t, const int32_t *ids, int64_t n,
                        int flags)
{
    ul_decoder d = {.t = t, .flags = flags};
    int64_t before = text->n;
    int rc = decode_all(text, &d, ids, n);
    if (rc < 0) text->n = before;
    return rc;
}
