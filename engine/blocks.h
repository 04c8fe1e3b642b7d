/* blocks.h - blocks of memory side by side: what the arenas of the host and of a device share.
 *
 * Blocks that fill one stretch of memory are a chain. A free one merges with free neighbours and is
 * found again by its size, best fit first; a used one by its address. Records lie outside of the
 * memory itself: what is written past the end of a tensor damages none, and the host need not reach
 * what they tell of.
 */
#ifndef UL_BLOCKS_H
#define UL_BLOCKS_H

#include <stdint.h>

enum { UL_BLOCK_BINS = 64 };

typedef struct ul_block {
    char *data;
    int64_t bytes;
    int used;
    struct ul_chain *home;
    struct ul_block *before, *after;         /* neighbours in the chain */
    struct ul_block *bin_before, *bin_after; /* in the bin of free blocks */
    struct ul_touch *touches;                /* device_arena.c: by other streams */
} ul_block;

typedef struct ul_chain {
    char *base;
    int64_t bytes; /* that are blocks */
    int small;     /* of small blocks, which often live longer */
    ul_block *last;
    struct ul_chain *next;
} ul_chain;

typedef struct ul_blocks {
    int64_t align; /* of each block, in bytes; 64 or a multiple */
    int grows;     /* chains grow: their ends are what they grow by, and the last choice */
    ul_block *bins[2][UL_BLOCK_BINS]; /* free blocks, [small] by floor(log2(bytes)) */
    ul_block **table;                 /* used blocks by address: open addressing */
    int64_t table_size, table_used;
} ul_blocks;

static inline int64_t ul__round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

void ul__bin_add(ul_blocks *s, ul_block *b);
void ul__bin_remove(ul_blocks *s, ul_block *b);

/* Makes room for the record of one more used block; 0 where there is none. */
int ul__blocks_make_room(ul_blocks *s);
/* The smallest free block that holds `bytes`, at the lowest address of equals, or NULL. The end of
 * a chain that grows, and a chain that is wholly free, come last: so it does not matter how far it
 * has grown, and a step finds its blocks where the step before did.
 */
ul_block *ul__best_fit(const ul_blocks *s, int small, int64_t bytes);
/* Uses the first `bytes` of b, which is in no bin; the rest becomes a free block. */
void ul__block_use(ul_blocks *s, ul_block *b, int64_t bytes);
/* The used block at `data`, which is there. */
ul_block *ul__block_at(const ul_blocks *s, const void *data);
/* Ends its use: it is in no bin, nor in the table. */
ul_block *ul__block_leave(ul_blocks *s, const void *data);
/* Frees b, which is in no bin, together with free neighbours. */
void ul__block_free(ul_blocks *s, ul_block *b);

#endif
