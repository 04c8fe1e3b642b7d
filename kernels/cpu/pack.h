/* pack.h - lays the operands of gemm out in the order in which tiles read them, as words.
 *
 * A word is an acc: one element, bf16 widened; or where PAIRS is set two bf16 neighbours along k.
 * Whatever lies outside the operand becomes zero, so a pack may write whole vectors of words.
 */
#ifndef UL_PACK_H
#define UL_PACK_H

#include "tile.h"
#include "transpose.h"

/* How many lines ahead packing asks for memory: it jumps from line to line, where no hardware
 * prefetcher follows.
 */
enum { AHEAD = 16 };

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* n vectors of k elements: element l of vector i is x[i * ld + l] where along_k is set, and
 * x[l * ld + i] where it is not.
 */
typedef struct operand {
    const real *x;
    int64_t ld, n, k;
    int along_k;
} operand;

/* The part of o that begins at vector i and element l. */
static inline operand operand_part(const operand *o, int64_t i, int64_t n, int64_t l, int64_t k)
{
    int64_t at = o->along_k ? i * o->ld + l : l * o->ld + i;
    return (operand){o->x + at, o->ld, n, k, o->along_k};
}

#if PAIRS
typedef acc pairs_any __attribute__((vector_size(VECTOR_BYTES), aligned(2), may_alias));
#endif

/* VL words of x and, in pairs that lie across k, of the row y below it. */
TILE_INLINE vec load_words(const real *x, const real *y, const int along_k)
{
#if PAIRS
    if (along_k) return *(const pairs_any *)x;
    vecu low = __builtin_convertvector(*(const half_any *)x, vecu);
    vecu high = __builtin_convertvector(*(const half_any *)y, vecu);
    return (vec)(low | high << 16);
#else
    (void)y, (void)along_k;
    return v_load(x);
#endif
}

/* VL words of a line of o, from word `at` on. A line is what is contiguous in memory: a vector
 * where along_k is set, else words of one and the same k for all vectors.
 */
TILE_INLINE vec operand_words(const operand *o, int64_t line, int64_t at, const int along_k)
{
    const int64_t want = along_k ? VL * WORD : VL, first = along_k ? at * WORD : at;
    int64_t left = (along_k ? o->k : o->n) - first;
    int64_t rows = along_k ? o->n - line : o->k - line * WORD;
    if (left <= 0 || rows <= 0) return (vec){0};
    const int rows_of_line = along_k ? 1 : WORD;
    const real *x = o->x + line * rows_of_line * o->ld + first;
    for (int i = 0; i < rows_of_line; i++)
        __builtin_prefetch(x + (AHEAD * rows_of_line + i) * o->ld);
    if (left >= want && (along_k || rows >= WORD)) return load_words(x, x + o->ld, along_k);
    real part[2][VL * WORD] = {{0}};
    size_t bytes = (size_t)(left < want ? left : want) * sizeof(real);
    memcpy(part[0], x, bytes);
    if (!along_k && rows > 1) memcpy(part[1], x + o->ld, bytes);
    return load_words(part[0], part[1], along_k);
}

static inline int64_t words_of(const operand *o) { return (o->k + WORD - 1) / WORD; }

/* to[word * step + line] */
TILE_INLINE void pack_turned(acc *to, int64_t step, const operand *o, const int along_k)
{
    int64_t lines = along_k ? o->n : words_of(o), words = along_k ? words_of(o) : o->n;
    for (int64_t line = 0; line < lines; line += VL)
        for (int64_t at = 0; at < words; at += VL) {
            vec block[VL];
            UNROLLED (i, VL) block[i] = operand_words(o, line + i, at, along_k);
            transpose(block);
            UNROLLED (i, VL) v_store_acc(to + (at + i) * step + line, block[i]);
        }
}

/* to[i * step + word]: vectors become rows. Whole vectors are written in both directions. */
static void pack_rows(acc *to, int64_t step, const operand *o)
{
    if (!o->along_k) {
        pack_turned(to, step, o, 0);
        return;
    }
    for (int64_t i = 0; i < o->n; i++)
        for (int64_t at = 0; at < words_of(o); at += VL)
            v_store_acc(to + i * step + at, operand_words(o, i, at, 1));
}

/* Vectors become the columns of panels [words, TILE_COLS], `size` apart. Where they lie across k
 * all panels are filled at once: to jump to another page for a few columns costs more than to pack
 * them.
 */
static void pack_panels(acc *to, int64_t size, const operand *o)
{
    if (o->along_k) {
        for (int64_t i = 0; i < o->n; i += TILE_COLS, to += size) {
            operand panel =
                operand_part(o, i, o->n - i < TILE_COLS ? o->n - i : TILE_COLS, 0, o->k);
            pack_turned(to, TILE_COLS, &panel, 1);
        }
        return;
    }
    for (int64_t word = 0; word < words_of(o); word++)
        for (int64_t i = 0; i < o->n; i += VL)
            v_store_acc(to + i / TILE_COLS * size + word * TILE_COLS + i % TILE_COLS,
                        operand_words(o, word, i, 0));
}

#endif
