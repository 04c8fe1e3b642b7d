/* merge.c - byte-pair encoding of one word: the pair of the least rank first, of equal ones the
 * leftmost.
 */
#include "vocabulary.h"

enum { SHORT = 32 };

static int add_id(ul_ids *ids, uint32_t id)
{
    UL_TRY(ul__grow(&ids->data, &ids->room, ids->n + 1, sizeof *ids->data));
    ids->data[ids->n++] = (int32_t)id;
    return UL_OK;
}

/* Few symbols: they stay side by side, and the best pair is found by looking at all. */
static int merge_short(ul_ids *ids, const ul__vocabulary *v, const ul__symbol *symbols, int n)
{
    uint32_t id[SHORT], rank[SHORT], merged[SHORT];
    for (int i = 0; i < n; i++) id[i] = symbols[i].id;
    for (int i = 0; i + 1 < n; i++) {
        const ul__merge *m = ul__find_merge(v, id[i], id[i + 1]);
        rank[i] = m ? m->rank : UL__NONE;
        merged[i] = m ? m->id : 0;
    }
    while (n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == UL__NONE) break;
        id[best] = merged[best];
        n--;
        for (int i = best + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i] = rank[i + 1];
            merged[i] = merged[i + 1];
        }
        for (int i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const ul__merge *m = ul__find_merge(v, id[i], id[i + 1]);
            rank[i] = m ? m->rank : UL__NONE;
            merged[i] = m ? m->id : 0;
        }
    }
    for (int i = 0; i < n; i++) UL_TRY(add_id(ids, id[i]));
    return UL_OK;
}

/* ---- many symbols: a heap of four children, of (rank, position) ---- */

static int push(ul__work *work, uint32_t rank, int32_t position)
{
    UL_TRY(ul__grow(&work->heap, &work->heap_room, work->heap_n + 1, sizeof *work->heap));
    uint64_t key = (uint64_t)rank << 32 | (uint32_t)position, *heap = work->heap;
    int64_t i = work->heap_n++;
    for (; i > 0 && heap[(i - 1) / 4] > key; i = (i - 1) / 4) heap[i] = heap[(i - 1) / 4];
    heap[i] = key;
    return UL_OK;
}

static uint64_t pop(ul__work *work)
{
    uint64_t *heap = work->heap, least = heap[0], last = heap[--work->heap_n];
    int64_t n = work->heap_n, i = 0;
    for (;;) {
        int64_t child = 4 * i + 1, end = child + 4 < n ? child + 4 : n;
        if (child >= n) break;
        for (int64_t k = child + 1; k < end; k++)
            if (heap[k] < heap[child]) child = k;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
        i = child;
    }
    if (n > 0) heap[i] = last;
    return least;
}

/* Notes how symbol i merges with the one behind it. */
static int note(ul__work *work, const ul__vocabulary *v, int32_t i)
{
    ul__symbol *s = &work->symbols[i];
    const ul__merge *m = s->next < 0 ? NULL : ul__find_merge(v, s->id, work->symbols[s->next].id);
    s->rank = m ? m->rank : UL__NONE;
    return m ? push(work, m->rank, i) : UL_OK;
}

/* An entry of the heap counts only while its symbol still has that rank: what has been merged since
 * has another one, or none. */
static int merge_long(ul_ids *ids, ul__work *work, const ul__vocabulary *v, int32_t n)
{
    ul__symbol *s = work->symbols;
    work->heap_n = 0;
    for (int32_t i = 0; i < n; i++) {
        s[i].previous = i - 1;
        s[i].next = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i < n; i++) UL_TRY(note(work, v, i));
    while (work->heap_n > 0) {
        uint64_t key = pop(work);
        int32_t i = (int32_t)(key & 0xffffffff);
        if (s[i].rank != key >> 32) continue;
        int32_t gone = s[i].next;
        s[i].id = ul__find_merge(v, s[i].id, s[gone].id)->id;
        s[i].next = s[gone].next;
        s[gone].rank = UL__NONE;
        if (s[i].next >= 0) s[s[i].next].previous = i;
        if (s[i].previous >= 0) UL_TRY(note(work, v, s[i].previous));
        UL_TRY(note(work, v, i));
    }
    for (int32_t i = 0; i >= 0; i = s[i].next) UL_TRY(add_id(ids, s[i].id));
    return UL_OK;
}

int ul__merge_symbols(ul_ids *ids, ul__work *work, const ul__vocabulary *v, int64_t n)
{
    if (n <= SHORT) return merge_short(ids, v, work->symbols, (int)n);
    return merge_long(ids, work, v, (int32_t)n);
}
