/* tokenizer_json.c - reads tokenizer.json: a BPE model, of bytes or of characters. */
#include "json.h"
#include "unicode.h"
#include "vocabulary.h"

/* Where the parts lie in the file; some must be known before others can be read. */
typedef struct parts {
    const char *text; /* the file */
    ul__slice normalizer, pre_tokenizer, post_processor, decoder, added_tokens;
    ul__slice vocab, merges, unk_token;
    int has_model, ignore_merges, byte_fallback;
} parts;

static ul__json reader(const ul__builder *b, const parts *p, ul__slice s)
{
    return (ul__json){.path = b->path, .begin = p->text, .p = s.p, .end = s.p + s.n};
}

static int once(ul__json *j, ul__slice *slice)
{
    if (slice->p) return ul__json_fail(j, "this is there a second time");
    return ul__json_skip(j, slice);
}

/* ---- the model's settings ---- */

/* A setting that must not be used: null, 0 or "". */
static int must_be_off(ul__json *j, const char *name)
{
    ul__slice value;
    UL_TRY(ul__json_skip(j, &value));
    if (ul__is(&value, "null") || ul__is(&value, "\"\"") || ul__is(&value, "0") ||
        ul__is(&value, "0.0"))
        return UL_OK;
    return ul__fail(UL_EIO, "%s: the model's %s is not supported", j->path, name);
}

static int read_model_type(ul__json *j)
{
    ul__slice type;
    UL_TRY(ul__json_string(j, &type));
    if (ul__is(&type, "BPE")) return UL_OK;
    return ul__fail(UL_EIO, "%s: the model '%.*s' is not supported; BPE is", j->path,
                    (int)(type.n < 40 ? type.n : 40), type.p);
}

static int read_model(ul__json *j, parts *p)
{
    ul__slice key;
    int more, unused;
    if (p->has_model++) return ul__json_fail(j, "this is there a second time");
    UL_TRY(ul__json_enter(j, '{'));
    while ((more = ul__json_more(j, '}')) > 0) {
        UL_TRY(ul__json_key(j, &key));
        if (ul__is(&key, "type"))
            UL_TRY(read_model_type(j));
        else if (ul__is(&key, "vocab"))
            UL_TRY(once(j, &p->vocab));
        else if (ul__is(&key, "merges"))
            UL_TRY(once(j, &p->merges));
        else if (ul__is(&key, "unk_token"))
            UL_TRY(once(j, &p->unk_token));
        else if (ul__is(&key, "ignore_merges"))
            UL_TRY(ul__json_boolean(j, &p->ignore_merges));
        else if (ul__is(&key, "byte_fallback"))
            UL_TRY(ul__json_boolean(j, &p->byte_fallback));
        else if (ul__is(&key, "fuse_unk"))
            UL_TRY(ul__json_boolean(j, &unused)); /* nothing is unknown */
        else if (ul__is(&key, "dropout"))
            UL_TRY(must_be_off(j, "dropout"));
        else if (ul__is(&key, "continuing_subword_prefix"))
            UL_TRY(must_be_off(j, "continuing_subword_prefix"));
        else if (ul__is(&key, "end_of_word_suffix"))
            UL_TRY(must_be_off(j, "end_of_word_suffix"));
        else
            return ul__fail(UL_EIO, "%s: the model has '%.*s', which is not known", j->path,
                            (int)(key.n < 40 ? key.n : 40), key.p);
    }
    return more;
}

static int read_parts(ul__json *j, parts *p)
{
    ul__slice key;
    int more;
    UL_TRY(ul__json_enter(j, '{'));
    while ((more = ul__json_more(j, '}')) > 0) {
        UL_TRY(ul__json_key(j, &key));
        if (ul__is(&key, "model"))
            UL_TRY(read_model(j, p));
        else if (ul__is(&key, "normalizer"))
            UL_TRY(once(j, &p->normalizer));
        else if (ul__is(&key, "pre_tokenizer"))
            UL_TRY(once(j, &p->pre_tokenizer));
        else if (ul__is(&key, "post_processor"))
            UL_TRY(once(j, &p->post_processor));
        else if (ul__is(&key, "decoder"))
            UL_TRY(once(j, &p->decoder));
        else if (ul__is(&key, "added_tokens"))
            UL_TRY(once(j, &p->added_tokens));
        else
            UL_TRY(ul__json_skip(j, NULL));
    }
    return more < 0 ? more : ul__json_end(j);
}

/* ---- tokens ---- */

/* Byte-level vocabularies spell bytes as characters: those that print stand for themselves, the
 * other 68, in order, are U+0100, U+0101, ...; -1 for a character that is none of these.
 */
static int byte_of(uint32_t code)
{
    if ((code >= 33 && code <= 126) || (code >= 161 && code <= 172) || (code >= 174 && code <= 255))
        return (int)code;
    if (code < 0x100 || code >= 0x100 + 68) return -1;
    int n = (int)code - 0x100; /* the n-th of 0 .. 32, 127 .. 160, 173 */
    return n < 33 ? n : n < 67 ? n - 33 + 127 : 173;
}

/* Writes the bytes that a spelling stands for; -1 where it stands for none. `to` has room for s. */
static int64_t unspell(char *to, const ul__slice *s)
{
    int64_t n = 0;
    int length;
    for (int64_t at = 0; at < s->n; at += length) {
        int byte = byte_of(ul__code((const uint8_t *)s->p + at, &length));
        if (byte < 0) return -1;
        to[n++] = (char)byte;
    }
    return n;
}

/* The byte of "<0x0A>", or -1. */
static int named_byte(const ul__slice *s)
{
    static const char digits[] = "0123456789ABCDEF";
    if (s->n != 6 || memcmp(s->p, "<0x", 3) != 0 || s->p[5] != '>') return -1;
    const char *high = memchr(digits, s->p[3], 16), *low = memchr(digits, s->p[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

static int add_token(ul__builder *b, const parts *p, const ul__slice *s, int64_t id)
{
    char bytes[UL__LONGEST_TOKEN];
    if (b->v.split != UL__SPLIT_SPACES) {
        int64_t n = s->n <= UL__LONGEST_TOKEN ? unspell(bytes, s) : -1;
        if (n >= 0) return ul__build_token(b, id, bytes, n, 0);
        return ul__build_token(b, id, s->p, s->n, UL__TOKEN_OPAQUE);
    }
    int byte = p->byte_fallback ? named_byte(s) : -1;
    UL_TRY(ul__build_token(b, id, s->p, s->n, byte >= 0 ? UL__TOKEN_BYTE : 0));
    if (byte >= 0) b->tokens[b->n_tokens - 1].byte = (uint8_t)byte;
    return UL_OK;
}

static int read_vocab(ul__builder *b, ul__json *j, const parts *p)
{
    ul__slice key;
    int64_t id;
    int more;
    UL_TRY(ul__json_enter(j, '{'));
    while ((more = ul__json_more(j, '}')) > 0) {
        UL_TRY(ul__json_key(j, &key));
        UL_TRY(ul__json_integer(j, &id));
        UL_TRY(add_token(b, p, &key, id));
    }
    return more < 0 ? more : ul__build_words(b);
}

/* ---- merges: "left right" or ["left", "right"] ---- */

/* Both sides, side by side, as the bytes of tokens. */
typedef struct pair {
    char bytes[2 * UL__LONGEST_TOKEN];
    int64_t left, both;
} pair;

static int add_side(const ul__builder *b, ul__json *j, pair *m, ul__slice s)
{
    char *to = m->bytes + m->both;
    if (s.n > UL__LONGEST_TOKEN || (m->both && m->both + s.n > 2 * UL__LONGEST_TOKEN))
        return ul__json_fail(j, "a merge of a token that is too long");
    int64_t n = s.n;
    if (b->v.split != UL__SPLIT_SPACES)
        n = unspell(to, &s);
    else
        memcpy(to, s.p, (size_t)n);
    if (n < 0) return ul__json_fail(j, "a merge of what is no token");
    m->left = m->both;
    m->both += n;
    return UL_OK;
}

static int read_pair(const ul__builder *b, ul__json *j, pair *m)
{
    ul__slice s;
    m->both = 0;
    if (ul__json_peek(j) == '[') {
        UL_TRY(ul__json_enter(j, '['));
        for (int side = 0; side < 2; side++) {
            int more = ul__json_more(j, ']');
            if (more <= 0) return more < 0 ? more : ul__json_fail(j, "a merge has two sides");
            UL_TRY(ul__json_string(j, &s));
            UL_TRY(add_side(b, j, m, s));
        }
        int more = ul__json_more(j, ']');
        return more > 0 ? ul__json_fail(j, "a merge has two sides") : more;
    }
    UL_TRY(ul__json_string(j, &s));
    const char *space = memchr(s.p, ' ', (size_t)s.n), *end = s.p + s.n;
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return ul__json_fail(j, "a merge has two sides with a space between them");
    UL_TRY(add_side(b, j, m, (ul__slice){s.p, space - s.p}));
    return add_side(b, j, m, (ul__slice){space + 1, end - space - 1});
}

static int read_merges(ul__builder *b, ul__json *j)
{
    pair m;
    int more;
    uint32_t rank = 0;
    UL_TRY(ul__json_enter(j, '['));
    while ((more = ul__json_more(j, ']')) > 0) {
        UL_TRY(read_pair(b, j, &m));
        uint32_t left = ul__build_find(b, m.bytes, (size_t)m.left);
        uint32_t right = ul__build_find(b, m.bytes + m.left, (size_t)(m.both - m.left));
        uint32_t both = ul__build_find(b, m.bytes, (size_t)m.both);
        if (left == UL__NONE || right == UL__NONE || both == UL__NONE)
            return ul__fail(UL_EIO,
                            "%s: merge %u, of '%.*s', has a side or a result that is no token",
                            b->path, rank, (int)(m.both < 80 ? m.both : 80), m.bytes);
        UL_TRY(ul__build_merge(b, b->tokens[left].id, b->tokens[right].id, rank++,
                               b->tokens[both].id));
    }
    return more;
}

/* ---- added tokens ---- */

typedef struct added {
    int64_t id;
    char content[UL__LONGEST_TOKEN];
    int64_t n; /* bytes of it; -1: there was none */
    int special, single_word, lstrip, rstrip, normalized;
} added;

static int read_added(ul__json *j, added *a)
{
    ul__slice key, content;
    int more;
    *a = (added){.id = -1, .n = -1, .normalized = -1};
    UL_TRY(ul__json_enter(j, '{'));
    while ((more = ul__json_more(j, '}')) > 0) {
        UL_TRY(ul__json_key(j, &key));
        if (ul__is(&key, "id")) {
            UL_TRY(ul__json_integer(j, &a->id));
        } else if (ul__is(&key, "content")) {
            UL_TRY(ul__json_string(j, &content));
            if (content.n > UL__LONGEST_TOKEN)
                return ul__json_fail(j, "an added token is too long");
            memcpy(a->content, content.p, (size_t)(a->n = content.n));
        } else {
            int *flag = ul__is(&key, "special")       ? &a->special
                        : ul__is(&key, "single_word") ? &a->single_word
                        : ul__is(&key, "lstrip")      ? &a->lstrip
                        : ul__is(&key, "rstrip")      ? &a->rstrip
                        : ul__is(&key, "normalized")  ? &a->normalized
                                                      : NULL;
            UL_TRY(flag ? ul__json_boolean(j, flag) : ul__json_skip(j, NULL));
        }
    }
    if (more == 0 && (a->id < 0 || a->n < 0))
        return ul__json_fail(j, "an added token needs an id and a content");
    if (a->normalized < 0) a->normalized = !a->special;
    return more;
}

static int read_added_tokens(ul__builder *b, ul__json *j, int normalizes)
{
    added a;
    int more;
    UL_TRY(ul__json_enter(j, '['));
    while ((more = ul__json_more(j, ']')) > 0) {
        UL_TRY(read_added(j, &a));
        const char *what = a.single_word                ? "single_word"
                           : a.lstrip                   ? "lstrip"
                           : a.rstrip                   ? "rstrip"
                           : a.normalized && normalizes ? "normalized"
                                                        : NULL;
        UL_REQUIRE(!what, UL_EIO, "%s: the added token '%.*s' is %s, which is not supported",
                   b->path, (int)a.n, a.content, what);
        UL_TRY(ul__build_added(b, a.id, a.content, a.n, a.special));
    }
    return more;
}

/* ---- all of it ---- */

static int read_unknown(ul__builder *b, ul__json *j)
{
    ul__slice name;
    if (ul__json_null(j)) return UL_OK;
    UL_TRY(ul__json_string(j, &name));
    uint32_t k = ul__build_find(b, name.p, (size_t)name.n);
    if (k != UL__NONE) b->v.unknown = (int32_t)b->tokens[k].id;
    return UL_OK;
}

static int read_lists(ul__builder *b, const parts *p)
{
    ul__json j = reader(b, p, p->vocab);
    int rc = read_vocab(b, &j, p);
    ul__json_drop(&j);
    if (rc < 0) return rc;
    j = reader(b, p, p->merges);
    rc = read_merges(b, &j);
    ul__json_drop(&j);
    if (rc == UL_OK && p->unk_token.p) {
        j = reader(b, p, p->unk_token);
        rc = read_unknown(b, &j);
        ul__json_drop(&j);
    }
    if (rc == UL_OK && p->added_tokens.p) {
        j = reader(b, p, p->added_tokens);
        rc = read_added_tokens(b, &j, p->normalizer.p && !ul__is(&p->normalizer, "null"));
        ul__json_drop(&j);
    }
    return rc;
}

int ul__read_tokenizer_json(ul__builder *b, const char *text, int64_t n)
{
    parts p = {.text = text};
    ul__json j = reader(b, &p, (ul__slice){text, n});
    int rc = read_parts(&j, &p);
    ul__json_drop(&j);
    if (rc < 0) return rc;
    UL_REQUIRE(p.vocab.p && p.merges.p, UL_EIO, "%s: there is no model with a vocab and merges",
               b->path);
    UL_TRY(ul__read_normalizer(b, p.normalizer.p, p.normalizer.n));
    UL_TRY(ul__read_pre_tokenizer(b, p.pre_tokenizer.p, p.pre_tokenizer.n));
    UL_TRY(ul__read_decoder(b, p.decoder.p, p.decoder.n));
    UL_REQUIRE(p.byte_fallback == (b->v.split == UL__SPLIT_SPACES), UL_EIO,
               "%s: byte_fallback is %s, which is not supported %s", b->path,
               p.byte_fallback ? "true" : "false",
               p.byte_fallback ? "beside ByteLevel" : "without ByteLevel");
    b->v.whole_words = (uint32_t)p.ignore_merges;
    UL_REQUIRE(!p.ignore_merges || b->v.split != UL__SPLIT_SPACES, UL_EIO,
               "%s: ignore_merges is not supported without ByteLevel", b->path);
    UL_TRY(read_lists(b, &p));
    return ul__read_post_processor(b, p.post_processor.p, p.post_processor.n);
}
