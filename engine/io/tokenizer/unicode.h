/* unicode.h - classes of characters, and UTF-8. */
#ifndef UL_TOKENIZER_UNICODE_H
#define UL_TOKENIZER_UNICODE_H

#include <stddef.h>
#include <stdint.h>

/* What a character is for the patterns of pre-tokenizers. */
enum {
    UL__LETTER = 1, /* \p{L} */
    UL__NUMBER = 2, /* \p{N} */
    UL__SPACE = 4,  /* \s */
    UL__UPPER = 8,  /* \p{Lu} \p{Lt} \p{Lm} \p{Lo} \p{M} */
    UL__LOWER = 16, /* \p{Ll} \p{Lm} \p{Lo} \p{M} */
};

/* Two stages: blocks of 256 code points, many of which are the same. */
extern uint8_t ul__class_block[0x1100];
extern uint8_t ul__class_of[][256];

/* Fills the tables; once is enough. */
void ul__unicode_open(void);

static inline int ul__class(uint32_t code)
{
    return ul__class_of[ul__class_block[code >> 8]][code & 255];
}

/* The character at p, and how long it is. The text must be UTF-8. */
static inline uint32_t ul__code(const uint8_t *p, int *n)
{
    uint32_t c = *p;
    if (c < 0x80) return *n = 1, c;
    if (c < 0xe0) return *n = 2, (c & 31) << 6 | (p[1] & 63);
    if (c < 0xf0) return *n = 3, (c & 15) << 12 | (p[1] & 63u) << 6 | (p[2] & 63);
    *n = 4;
    return (c & 7) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63);
}

/* The length of the character at p < end; or -n where n bytes are no UTF-8, and become one U+FFFD.
 * *cut: they might be the beginning of a character, were there more text.
 */
int ul__utf8(const uint8_t *p, const uint8_t *end, int *cut);
/* Whether n bytes are UTF-8. */
int ul__is_utf8(const uint8_t *p, size_t n);
/* Writes a character; returns its length. */
int ul__put_code(uint8_t *to, uint32_t code);

#endif
