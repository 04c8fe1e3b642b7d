/* json.c - reads JSON from front to back, without a tree. */
#include "json.h"

#include "unicode.h"
#include "../io.h"
#include "vocabulary.h"

enum { DEEPEST = 64 };

void ul__json_drop(ul__json *j)
{
    ul__release(j->text);
    j->text = NULL;
}

int ul__json_fail(const ul__json *j, const char *what)
{
    return ul__fail(UL_EIO, "%s: byte %lld: %s", j->path, (long long)(j->p - j->begin), what);
}

int ul__is(const ul__slice *s, const char *word)
{
    return (size_t)s->n == strlen(word) && memcmp(s->p, word, (size_t)s->n) == 0;
}

char ul__json_peek(ul__json *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t'))
        j->p++;
    return j->p < j->end ? *j->p : 0;
}

static int expect(ul__json *j, char c)
{
    char sentence[] = "expected 'x'";
    sentence[10] = c;
    if (ul__json_peek(j) != c) return ul__json_fail(j, sentence);
    j->p++;
    return UL_OK;
}

int ul__json_enter(ul__json *j, char open)
{
    UL_TRY(expect(j, open));
    j->first = 1;
    return UL_OK;
}

int ul__json_more(ul__json *j, char close)
{
    int first = j->first;
    j->first = 0;
    if (ul__json_peek(j) == close) {
        j->p++;
        return 0;
    }
    if (!first) UL_TRY(expect(j, ','));
    if (!first && ul__json_peek(j) == close) return ul__json_fail(j, "a comma before the end");
    return 1;
}

/* ---- strings ---- */

static int hexadecimal(ul__json *j, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++) {
        char c = j->p < j->end ? *j->p : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return ul__json_fail(j, "expected four hexadecimal digits");
        *code = *code << 4 | (uint32_t)digit;
        j->p++;
    }
    return UL_OK;
}

/* Behind "\u". */
static int escaped_code(ul__json *j, uint32_t *code)
{
    uint32_t low;
    UL_TRY(hexadecimal(j, code));
    if (*code < 0xd800 || *code > 0xdfff) return UL_OK;
    if (*code > 0xdbff || j->end - j->p < 6 || j->p[0] != '\\' || j->p[1] != 'u')
        return ul__json_fail(j, "half of a surrogate pair");
    j->p += 2;
    UL_TRY(hexadecimal(j, &low));
    if (low < 0xdc00 || low > 0xdfff) return ul__json_fail(j, "half of a surrogate pair");
    *code = 0x10000 + ((*code - 0xd800) << 10 | (low - 0xdc00));
    return UL_OK;
}

/* Behind the backslash; writes at most 4 bytes. */
static int escape(ul__json *j, char *to, int64_t *n)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name = j->p < j->end && *j->p ? strchr(names, *j->p) : NULL;
    if (name) {
        to[(*n)++] = values[name - names];
        j->p++;
        return UL_OK;
    }
    if (j->p == j->end || *j->p != 'u') return ul__json_fail(j, "an unknown escape");
    uint32_t code;
    j->p++;
    UL_TRY(escaped_code(j, &code));
    *n += ul__put_code((uint8_t *)to + *n, code);
    return UL_OK;
}

/* The character at p, which is no quote and no backslash. */
static int plain(ul__json *j)
{
    int cut;
    if ((unsigned char)*j->p < 0x20) return ul__json_fail(j, "a control character in a string");
    int n = ul__utf8((const uint8_t *)j->p, (const uint8_t *)j->end, &cut);
    if (n < 0) return ul__json_fail(j, "a string that is no UTF-8");
    j->p += n;
    return UL_OK;
}

static int with_escapes(ul__json *j, const char *start, ul__slice *s)
{
    int64_t n = j->p - start;
    UL_TRY(ul__grow(&j->text, &j->room, n + 8, 1));
    memcpy(j->text, start, (size_t)n);
    while (j->p < j->end && *j->p != '"') {
        UL_TRY(ul__grow(&j->text, &j->room, n + 8, 1));
        if (*j->p == '\\') {
            j->p++;
            UL_TRY(escape(j, j->text, &n));
        } else {
            const char *from = j->p;
            UL_TRY(plain(j));
            memcpy(j->text + n, from, (size_t)(j->p - from));
            n += j->p - from;
        }
    }
    *s = (ul__slice){j->text, n};
    return UL_OK;
}

int ul__json_string(ul__json *j, ul__slice *s)
{
    UL_TRY(expect(j, '"'));
    const char *start = j->p;
    while (j->p < j->end && *j->p != '"' && *j->p != '\\') UL_TRY(plain(j));
    *s = (ul__slice){start, j->p - start};
    if (j->p < j->end && *j->p == '\\') UL_TRY(with_escapes(j, start, s));
    if (j->p == j->end) return ul__json_fail(j, "a string without an end");
    j->p++;
    return UL_OK;
}

int ul__json_key(ul__json *j, ul__slice *s)
{
    UL_TRY(ul__json_string(j, s));
    return expect(j, ':');
}

/* ---- other values ---- */

static int is_digit(const ul__json *j) { return j->p < j->end && *j->p >= '0' && *j->p <= '9'; }

static int digits(ul__json *j)
{
    if (!is_digit(j)) return ul__json_fail(j, "expected a digit");
    while (is_digit(j)) j->p++;
    return UL_OK;
}

static int skip_number(ul__json *j)
{
    if (*j->p == '-') j->p++;
    if (j->p < j->end && *j->p == '0')
        j->p++;
    else
        UL_TRY(digits(j));
    if (is_digit(j)) return ul__json_fail(j, "a number that begins with 0");
    if (j->p < j->end && *j->p == '.') {
        j->p++;
        UL_TRY(digits(j));
    }
    if (j->p == j->end || (*j->p != 'e' && *j->p != 'E')) return UL_OK;
    j->p++;
    if (j->p < j->end && (*j->p == '+' || *j->p == '-')) j->p++;
    return digits(j);
}

int ul__json_integer(ul__json *j, int64_t *value)
{
    char c = ul__json_peek(j);
    const char *start = j->p;
    if (c != '-' && (c < '0' || c > '9')) return ul__json_fail(j, "expected an integer");
    UL_TRY(skip_number(j));
    int64_t sum = 0;
    for (const char *p = start + (c == '-'); p < j->p; p++) {
        if (*p < '0' || *p > '9' || p - start > 15) {
            j->p = start;
            return ul__json_fail(j, "expected a smaller integer");
        }
        sum = sum * 10 + (*p - '0');
    }
    *value = c == '-' ? -sum : sum;
    return UL_OK;
}

static int word(ul__json *j, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(j->end - j->p) < n || memcmp(j->p, text, n) != 0) return 0;
    j->p += n;
    return 1;
}

int ul__json_null(ul__json *j) { return ul__json_peek(j) == 'n' && word(j, "null"); }

int ul__json_boolean(ul__json *j, int *value)
{
    ul__json_peek(j);
    *value = word(j, "true");
    if (*value || word(j, "false")) return UL_OK;
    return ul__json_fail(j, "expected true or false");
}

static int skip(ul__json *j, int depth)
{
    ul__slice s;
    int more, unused;
    char c = ul__json_peek(j);
    if (depth > DEEPEST) return ul__json_fail(j, "nested too deeply");
    if (c == '"') return ul__json_string(j, &s);
    if (c == 't' || c == 'f') return ul__json_boolean(j, &unused);
    if (c == '-' || (c >= '0' && c <= '9')) return skip_number(j);
    if (c == '{' || c == '[') {
        char close = c == '{' ? '}' : ']';
        UL_TRY(ul__json_enter(j, c));
        while ((more = ul__json_more(j, close)) > 0) {
            if (c == '{') UL_TRY(ul__json_key(j, &s));
            UL_TRY(skip(j, depth + 1));
        }
        return more;
    }
    return c && ul__json_null(j) ? UL_OK : ul__json_fail(j, "expected a value");
}

int ul__json_skip(ul__json *j, ul__slice *all)
{
    ul__json_peek(j);
    const char *start = j->p;
    UL_TRY(skip(j, 0));
    if (all) *all = (ul__slice){start, j->p - start};
    return UL_OK;
}

int ul__json_end(ul__json *j)
{
    return ul__json_peek(j) || j->p < j->end ? ul__json_fail(j, "something behind the end") : UL_OK;
}
