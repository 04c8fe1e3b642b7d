/* unicode.c - classes of characters, and UTF-8. */
#include "unicode.h"

#include <assert.h>
#include <string.h>

#include "unicode_runs.h"

/* What follows from the classes of unicode_runs.h. */
static const uint8_t bits[] = {
    0,
    UL__NUMBER,
    UL__SPACE,
    UL__LETTER | UL__UPPER,
    UL__LETTER | UL__LOWER,
    UL__LETTER | UL__UPPER | UL__LOWER,
    UL__UPPER | UL__LOWER,
};

enum { BLOCKS = 160 };
uint8_t ul__class_block[0x1100];
uint8_t ul__class_of[BLOCKS][256];

void ul__unicode_open(void)
{
    static int is_open;
    if (is_open) return;
    uint8_t block[256];
    int at = 0, n_blocks = 0, filled = 0;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        for (int left = (int)(runs[i] >> 3); left > 0;) {
            int n = left < 256 - filled ? left : 256 - filled;
            memset(block + filled, bits[runs[i] & 7], (size_t)n);
            filled += n;
            left -= n;
            if (filled < 256) continue;
            int same = 0;
            while (same < n_blocks && memcmp(ul__class_of[same], block, 256) != 0) same++;
            if (same == n_blocks) memcpy(ul__class_of[n_blocks++], block, 256);
            assert(n_blocks <= BLOCKS);
            ul__class_block[at++] = (uint8_t)same;
            filled = 0;
        }
    }
    is_open = 1;
}

int ul__utf8(const uint8_t *p, const uint8_t *end, int *cut)
{
    uint8_t c = *p, low = 0x80, high = 0xbf;
    if (c < 0x80) return 1;
    if (c < 0xc2 || c > 0xf4) return -1;
    int more = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    /* Neither longer than need be, nor a surrogate, nor beyond U+10FFFF. */
    if (c == 0xe0) low = 0xa0;
    if (c == 0xed) high = 0x9f;
    if (c == 0xf0) low = 0x90;
    if (c == 0xf4) high = 0x8f;
    for (int i = 1; i <= more; i++) {
        if (p + i == end) return *cut = 1, -i;
        if (p[i] < low || p[i] > high) return -i;
        low = 0x80, high = 0xbf;
    }
    return more + 1;
}

int ul__is_utf8(const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    int cut;
    while (p < end) {
        uint64_t eight;
        if (end - p >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080u))) {
            p += 8;
            continue;
        }
        int length = ul__utf8(p, end, &cut);
        if (length < 0) return 0;
        p += length;
    }
    return 1;
}

int ul__put_code(uint8_t *to, uint32_t code)
{
    if (code < 0x80) return to[0] = (uint8_t)code, 1;
    if (code < 0x800) {
        to[0] = (uint8_t)(0xc0 | code >> 6);
        to[1] = (uint8_t)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        to[0] = (uint8_t)(0xe0 | code >> 12);
        to[1] = (uint8_t)(0x80 | (code >> 6 & 63));
        to[2] = (uint8_t)(0x80 | (code & 63));
        return 3;
    }
    to[0] = (uint8_t)(0xf0 | code >> 18);
    to[1] = (uint8_t)(0x80 | (code >> 12 & 63));
    to[2] = (uint8_t)(0x80 | (code >> 6 & 63));
    to[3] = (uint8_t)(0x80 | (code & 63));
    return 4;
}
