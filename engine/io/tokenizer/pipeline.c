/* pipeline.c - what tokenizer.json says around its model: normalizer, pre-tokenizer, decoder,
 * post-processor. Whatever is not computed exactly is refused by its name.
 */
#include <jansson.h>

#include "vocabulary.h"

enum { MOST_STEPS = 8 };

/* The steps of a stage: its Sequence, or the one there is. Borrowed from `root`. */
typedef struct steps {
    json_t *root;
    const char *stage;
    json_t *step[MOST_STEPS];
    int n;
} steps;

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static int unknown(const ul__builder *b, const steps *s, int i)
{
    return ul__fail(UL_EIO, "%s: the %s '%.40s' is not supported%s", b->path, s->stage,
                    text_of(s->step[i], "type"),
                    json_is_object(s->step[i]) ? "" : ", nor an object");
}

static int odd(const ul__builder *b, const steps *s, int i, const char *what)
{
    return ul__fail(UL_EIO, "%s: the %s '%.40s' is not supported with this %s", b->path, s->stage,
                    text_of(s->step[i], "type"), what);
}

/* Its members, where one is a Sequence in turn too. */
static int add_steps(const ul__builder *b, steps *s, json_t *value, const char *list, int depth)
{
    if (json_is_null(value)) return UL_OK;
    if (strcmp(text_of(value, "type"), "Sequence") == 0 && depth < 4) {
        json_t *members = json_object_get(value, list), *member;
        size_t i;
        UL_REQUIRE(json_is_array(members), UL_EIO, "%s: the Sequence of the %s has no list '%s'",
                   b->path, s->stage, list);
        json_array_foreach(members, i, member) UL_TRY(add_steps(b, s, member, list, depth + 1));
        return UL_OK;
    }
    UL_REQUIRE(s->n < MOST_STEPS, UL_EIO, "%s: the %s has more than %d steps", b->path, s->stage,
               MOST_STEPS);
    s->step[s->n++] = value;
    return UL_OK;
}

/* The caller calls json_decref(s->root), also after a failure. */
static int open_steps(const ul__builder *b, steps *s, const char *json, int64_t n,
                      const char *stage, const char *list)
{
    json_error_t error;
    *s = (steps){.stage = stage};
    if (n == 0) return UL_OK;
    s->root = json_loadb(json, (size_t)n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY,
                         &error);
    UL_REQUIRE(s->root, UL_EIO, "%s: the %s: %s", b->path, stage, error.text);
    return add_steps(b, s, s->root, list, 0);
}

static int is(const steps *s, int i, const char *type)
{
    return i < s->n && strcmp(text_of(s->step[i], "type"), type) == 0;
}

static int is_flag(const json_t *object, const char *key, int value, int fallback)
{
    const json_t *flag = json_object_get(object, key);
    return (json_is_boolean(flag) ? json_is_true(flag) : fallback) == value;
}

static int replaces(const json_t *step, const char *from, const char *to)
{
    const json_t *pattern = json_object_get(step, "pattern");
    return strcmp(text_of(pattern, "String"), from) == 0 &&
           strcmp(text_of(step, "content"), to) == 0;
}

/* ---- normalizer: none, NFC, or the one that writes spaces as U+2581 ---- */

static int normalizer(ul__builder *b, const steps *s)
{
    int i = 0, prepend = is(s, 0, "Prepend");
    if (s->n == 1 && is(s, 0, "NFC")) {
        b->v.nfc = 1;
        return UL_OK;
    }
    if (prepend && strcmp(text_of(s->step[0], "prepend"), UL__MARK) != 0)
        return odd(b, s, 0, "prefix");
    i += prepend;
    if (i < s->n && !is(s, i, "Replace")) return unknown(b, s, i);
    if (i < s->n && !replaces(s->step[i], " ", UL__MARK)) return odd(b, s, i, "pattern");
    if (i + 1 < s->n) return unknown(b, s, i + 1);
    UL_REQUIRE(i < s->n || !prepend, UL_EIO, "%s: the normalizer has a Prepend without a Replace",
               b->path);
    if (s->n == 0) return UL_OK;
    b->v.split = UL__SPLIT_SPACES;
    b->v.prepend = prepend ? UL__PREPEND_ALWAYS : UL__PREPEND_NEVER;
    return UL_OK;
}

int ul__read_normalizer(ul__builder *b, const char *json, int64_t n)
{
    steps s;
    int rc = open_steps(b, &s, json, n, "normalizer", "normalizers");
    if (rc == UL_OK) rc = normalizer(b, &s);
    json_decref(s.root);
    return rc;
}

/* ---- pre-tokenizer ---- */

/* Facts of the published files. */
static const struct {
    const char *pattern;
    ul__split_kind kind;
} patterns[] = {
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     UL__SPLIT_LLAMA3},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     UL__SPLIT_QWEN2},
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
     "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
     "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     UL__SPLIT_TEKKEN},
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     UL__SPLIT_GPT2},
};

int ul__read_pattern(ul__builder *b, const char *pattern)
{
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        if (strcmp(patterns[i].pattern, pattern) != 0) continue;
        b->v.split = patterns[i].kind;
        return UL_OK;
    }
    return ul__fail(UL_EIO, "%s: text is to be split by the pattern '%.300s', which is not known",
                    b->path, pattern);
}

static int metaspace(ul__builder *b, const steps *s)
{
    const json_t *step = s->step[0];
    const char *scheme = text_of(step, "prepend_scheme");
    if (s->n > 1) return unknown(b, s, 1);
    UL_REQUIRE(b->v.split != UL__SPLIT_SPACES, UL_EIO,
               "%s: a normalizer and the pre_tokenizer Metaspace both write spaces", b->path);
    if (strcmp(text_of(step, "replacement"), UL__MARK) != 0) return odd(b, s, 0, "replacement");
    if (!*scheme) scheme = is_flag(step, "add_prefix_space", 1, 1) ? "always" : "never";
    b->v.split = UL__SPLIT_SPACES;
    b->v.cut_marks = (uint32_t)is_flag(step, "split", 1, 1);
    if (strcmp(scheme, "first") == 0)
        b->v.prepend = UL__PREPEND_FIRST;
    else if (strcmp(scheme, "always") == 0)
        b->v.prepend = UL__PREPEND_PIECES;
    else if (strcmp(scheme, "never") == 0)
        b->v.prepend = UL__PREPEND_NEVER;
    else
        return odd(b, s, 0, "prepend_scheme");
    return UL_OK;
}

/* Whether the matches of a pattern that matches everything come out as pieces. */
static int isolates(const json_t *step)
{
    const char *behavior = text_of(step, "behavior");
    return (strcmp(behavior, "Isolated") == 0 && is_flag(step, "invert", 0, 0)) ||
           (strcmp(behavior, "Removed") == 0 && is_flag(step, "invert", 1, 0));
}

static int pre_tokenizer(ul__builder *b, const steps *s)
{
    if (is(s, 0, "Metaspace")) return metaspace(b, s);
    int spaces = b->v.split == UL__SPLIT_SPACES, splits = is(s, 0, "Split");
    if (s->n == 0 && spaces) return UL_OK;
    UL_REQUIRE(s->n > 0, UL_EIO, "%s: there is no pre_tokenizer", b->path);
    if (spaces || (!splits && !is(s, 0, "ByteLevel"))) return unknown(b, s, 0);
    if (splits) {
        const char *pattern = text_of(json_object_get(s->step[0], "pattern"), "Regex");
        if (!*pattern || !isolates(s->step[0])) return odd(b, s, 0, "pattern or behavior");
        UL_TRY(ul__read_pattern(b, pattern));
        UL_REQUIRE(s->n > 1, UL_EIO, "%s: the pre_tokenizer Split is not followed by ByteLevel",
                   b->path);
        if (!is(s, 1, "ByteLevel")) return unknown(b, s, 1);
    } else {
        b->v.split = UL__SPLIT_GPT2;
    }
    if (s->n > 1 + splits) return unknown(b, s, 1 + splits);
    if (!is_flag(s->step[splits], "add_prefix_space", 0, 1))
        return odd(b, s, splits, "add_prefix_space");
    if (!is_flag(s->step[splits], "use_regex", !splits, 1)) return odd(b, s, splits, "use_regex");
    return UL_OK;
}

int ul__read_pre_tokenizer(ul__builder *b, const char *json, int64_t n)
{
    steps s;
    int rc = open_steps(b, &s, json, n, "pre_tokenizer", "pretokenizers");
    if (rc == UL_OK) rc = pre_tokenizer(b, &s);
    json_decref(s.root);
    return rc;
}

/* ---- decoder: the reverse of the pre-tokenizer ---- */

static int decoder(ul__builder *b, const steps *s)
{
    UL_REQUIRE(s->n > 0, UL_EIO, "%s: there is no decoder", b->path);
    if (b->v.split != UL__SPLIT_SPACES) {
        if (!is(s, 0, "ByteLevel")) return unknown(b, s, 0);
        return s->n > 1 ? unknown(b, s, 1) : UL_OK;
    }
    static const char *const order[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    for (int i = 0; i < s->n; i++)
        if (i >= 4 || !is(s, i, order[i])) return unknown(b, s, i);
    UL_REQUIRE(s->n >= 3, UL_EIO, "%s: the decoder lacks %s", b->path, order[s->n]);
    if (!replaces(s->step[0], UL__MARK, " ")) return odd(b, s, 0, "pattern");
    b->v.strip = s->n == 4;
    if (s->n < 4) return UL_OK;
    const json_t *strip = s->step[3];
    if (strcmp(text_of(strip, "content"), " ") != 0 ||
        json_integer_value(json_object_get(strip, "start")) != 1 ||
        json_integer_value(json_object_get(strip, "stop")) != 0)
        return odd(b, s, 3, "content");
    return UL_OK;
}

int ul__read_decoder(ul__builder *b, const char *json, int64_t n)
{
    steps s;
    int rc = open_steps(b, &s, json, n, "decoder", "decoders");
    if (rc == UL_OK) rc = decoder(b, &s);
    json_decref(s.root);
    return rc;
}

/* ---- post-processor: what stands around a text ---- */

static int add_affix(ul__builder *b, const json_t *names, const char *name, int behind)
{
    size_t i;
    json_t *ids = json_object_get(json_object_get(names, name), "ids"), *id;
    UL_REQUIRE(json_array_size(ids) > 0, UL_EIO, "%s: the post_processor has no ids for '%.40s'",
               b->path, name);
    json_array_foreach(ids, i, id)
    {
        uint32_t *n = behind ? &b->v.n_after : &b->v.n_before;
        int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        UL_REQUIRE(*n < UL__MOST_AFFIXES, UL_EIO, "%s: the post_processor adds more than %d tokens",
                   b->path, UL__MOST_AFFIXES);
        UL_REQUIRE(value >= 0 && value < UL__MOST_IDS, UL_EIO,
                   "%s: the post_processor has a wrong id for '%.40s'", b->path, name);
        (behind ? b->v.after : b->v.before)[(*n)++] = (int32_t)value;
    }
    return UL_OK;
}

static int template(ul__builder *b, const json_t *step)
{
    size_t i;
    int behind = 0;
    json_t *items = json_object_get(step, "single"), *item;
    UL_REQUIRE(json_array_size(items) > 0, UL_EIO,
               "%s: the post_processor has no template 'single'", b->path);
    json_array_foreach(items, i, item)
    {
        const json_t *token = json_object_get(item, "SpecialToken");
        UL_REQUIRE(token || (json_object_get(item, "Sequence") && !behind), UL_EIO,
                   "%s: the post_processor's template has a part that is not supported", b->path);
        if (!token)
            behind = 1;
        else
            UL_TRY(add_affix(b, json_object_get(step, "special_tokens"), text_of(token, "id"),
                             behind));
    }
    UL_REQUIRE(behind, UL_EIO, "%s: the post_processor's template leaves out the text", b->path);
    return UL_OK;
}

static int post_processor(ul__builder *b, const steps *s)
{
    int templates = 0;
    for (int i = 0; i < s->n; i++) {
        if (is(s, i, "ByteLevel")) continue; /* concerns offsets alone */
        if (!is(s, i, "TemplateProcessing") || templates++) return unknown(b, s, i);
        UL_TRY(template(b, s->step[i]));
    }
    if (b->v.n_before == 1) b->v.bos = b->v.before[0];
    if (b->v.n_after == 1) b->v.eos = b->v.after[0];
    return UL_OK;
}

int ul__read_post_processor(ul__builder *b, const char *json, int64_t n)
{
    steps s;
    int rc = open_steps(b, &s, json, n, "post_processor", "processors");
    if (rc == UL_OK) rc = post_processor(b, &s);
    json_decref(s.root);
    return rc;
}
