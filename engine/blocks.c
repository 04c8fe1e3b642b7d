/* blocks.c - bins of free blocks, a table of used ones, splitting and merging. */
#include "blocks.h"

#include <stdlib.h>

static int bin_of(int64_t bytes) { return 63 - __builtin_clzll((unsigned long long)bytes); }

void ul__bin_add(ul_blocks *s, ul_block *b)
{
    ul_block **head = &s->bins[b->home->small][bin_of(b->bytes)];
    b->bin_before = NULL;
    b->bin_after = *head;
    if (*head) (*head)->bin_before = b;
    *head = b;
}

void ul__bin_remove(ul_blocks *s, ul_block *b)
{
    if (b->bin_before)
        b->bin_before->bin_after = b->bin_after;
    else
        s->bins[b->home->small][bin_of(b->bytes)] = b->bin_after;
    if (b->bin_after) b->bin_after->bin_before = b->bin_before;
}

ul_block *ul__best_fit(const ul_blocks *s, int small, int64_t bytes)
{
    ul_block *last_choice = NULL;
    for (int bin = bin_of(bytes); bin < UL_BLOCK_BINS; bin++) {
        ul_block *best = NULL;
        for (ul_block *b = s->bins[small][bin]; b; b = b->bin_after) {
            if (b->bytes < bytes) continue;
            ul_block **place = b->after || (b->before && !s->grows) ? &best : &last_choice;
            if (!*place || b->bytes < (*place)->bytes ||
                (b->bytes == (*place)->bytes && b->data < (*place)->data))
                *place = b;
        }
        if (best) return best;
    }
    return last_choice;
}

/* ---- used blocks by address: a table of pointers, linear probing, at most half full ---- */

static int64_t home_of(const ul_blocks *s, const void *data)
{
    return (int64_t)(((uintptr_t)data / 64) * 0x9e3779b97f4a7c15ull >> 20) & (s->table_size - 1);
}

int ul__blocks_make_room(ul_blocks *s)
{
    if (2 * (s->table_used + 1) <= s->table_size) return 1;
    int64_t old_size = s->table_size, size = old_size ? 2 * old_size : 1024;
    ul_block **old = s->table, **table = calloc((size_t)size, sizeof *table);
    if (!table) return 0;
    s->table = table;
    s->table_size = size;
    for (int64_t i = 0; i < old_size; i++) {
        if (!old[i]) continue;
        int64_t at = home_of(s, old[i]->data);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = old[i];
    }
    free(old);
    return 1;
}

static void table_add(ul_blocks *s, ul_block *b)
{
    int64_t at = home_of(s, b->data);
    while (s->table[at]) at = (at + 1) & (s->table_size - 1);
    s->table[at] = b;
    s->table_used++;
}

static int64_t place_of(const ul_blocks *s, const void *data)
{
    int64_t at = home_of(s, data);
    while (s->table[at]->data != data) at = (at + 1) & (s->table_size - 1);
    return at;
}

ul_block *ul__block_at(const ul_blocks *s, const void *data) { return s->table[place_of(s, data)]; }

ul_block *ul__block_leave(ul_blocks *s, const void *data)
{
    int64_t mask = s->table_size - 1, at = place_of(s, data);
    ul_block *b = s->table[at];
    s->table[at] = NULL;
    s->table_used--;
    /* Close the gap: whatever was pushed past it moves back. */
    for (int64_t i = (at + 1) & mask; s->table[i]; i = (i + 1) & mask) {
        int64_t home = home_of(s, s->table[i]->data);
        if (((i - home) & mask) >= ((i - at) & mask)) {
            s->table[at] = s->table[i];
            s->table[i] = NULL;
            at = i;
        }
    }
    return b;
}

/* ---- cutting and joining ---- */

/* Cuts what is left of b behind `bytes` off as a free block. Without a record for it b stays whole.
 */
static void split(ul_blocks *s, ul_block *b, int64_t bytes)
{
    if (b->bytes - bytes < s->align) return;
    ul_block *rest = malloc(sizeof *rest);
    if (!rest) return;
    *rest = (ul_block){.data = b->data + bytes,
                       .bytes = b->bytes - bytes,
                       .home = b->home,
                       .before = b,
                       .after = b->after};
    if (b->after) b->after->before = rest;
    if (b->home->last == b) b->home->last = rest;
    b->after = rest;
    b->bytes = bytes;
    ul__bin_add(s, rest);
}

void ul__block_use(ul_blocks *s, ul_block *b, int64_t bytes)
{
    split(s, b, bytes);
    b->used = 1;
    table_add(s, b);
}

/* Swallows the block after b. */
static void merge_after(ul_block *b)
{
    ul_block *gone = b->after;
    b->bytes += gone->bytes;
    b->after = gone->after;
    if (gone->after) gone->after->before = b;
    if (b->home->last == gone) b->home->last = b;
    free(gone);
}

void ul__block_free(ul_blocks *s, ul_block *b)
{
    b->used = 0;
    if (b->after && !b->after->used) {
        ul__bin_remove(s, b->after);
        merge_after(b);
    }
    if (b->before && !b->before->used) {
        b = b->before;
        ul__bin_remove(s, b);
        merge_after(b);
    }
    ul__bin_add(s, b);
}
