/* json.h - reads JSON from front to back, without a tree: vocabularies are megabytes of small
 * strings.
 *
 * Strict, as jansson is: UTF-8, no lone surrogates, no raw control characters, nothing that the
 * grammar does not know. Functions return a UL_E code whose sentence names the file and the byte.
 */
#ifndef UL_TOKENIZER_JSON_H
#define UL_TOKENIZER_JSON_H

#include <stdint.h>

typedef struct ul__json {
    const char *path, *begin, *p, *end;
    char *text; /* of the last string, where it had escapes */
    int64_t room;
    int first; /* no element has been read of what was entered last */
} ul__json;

typedef struct ul__slice {
    const char *p;
    int64_t n;
} ul__slice;

/* begin with {.path =, .begin = text, .p = text, .end = text + n}; end with this */
void ul__json_drop(ul__json *j);
int ul__json_fail(const ul__json *j, const char *what);
/* The next character that is no space, 0 at the end. */
char ul__json_peek(ul__json *j);
/* Behind the opening '{' or '['. */
int ul__json_enter(ul__json *j, char open);
/* 1: an element follows; 0: that was the last, and the closing character has been read. */
int ul__json_more(ul__json *j, char close);
/* The string lives until the next one is read. */
int ul__json_string(ul__json *j, ul__slice *s);
int ul__json_key(ul__json *j, ul__slice *s);
int ul__json_integer(ul__json *j, int64_t *value);
int ul__json_boolean(ul__json *j, int *value);
/* Whether null stood there. */
int ul__json_null(ul__json *j);
/* Any value; all of it. */
int ul__json_skip(ul__json *j, ul__slice *all);
/* Nothing may follow. */
int ul__json_end(ul__json *j);

int ul__is(const ul__slice *s, const char *word);

#endif
