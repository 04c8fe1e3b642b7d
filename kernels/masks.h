/* masks.h - who sees whom in attention: causal order, window and documents as one range of keys.
 */
#ifndef UL_MASKS_H
#define UL_MASKS_H

#include "kernels.h"

#ifdef __CUDACC__
#define UL_MASK __host__ __device__ static inline
#else
#define UL_MASK static inline
#endif

/* Keys low <= j < high of one row of the batch; nothing where low == high. */
typedef struct key_range {
    int64_t low, high;
} key_range;

UL_MASK int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
UL_MASK int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Which document holds token `at` of the flattened B T; the empty ones before it are passed. */
UL_MASK int64_t document_of(const ul_attention_args *a, int64_t at)
{
    int64_t low = 0, high = a->n_docs; /* docs[low] <= at, high is beyond */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (a->docs[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

UL_MASK key_range document_at(const ul_attention_args *a, int64_t at)
{
    int64_t number = document_of(a, at);
    key_range found = {a->docs[number], a->docs[number + 1]};
    return found;
}

/* visible_keys() where the keys are part of a row. */
UL_MASK key_range visible_part(const ul_attention_args *a, int64_t b, int64_t i)
{
    int64_t at = i + (i < a->q_cut ? a->q_start : a->q_start_2);
    key_range seen = {0, a->row_tokens};
    if (a->causal) seen.high = at + 1;
    if (a->window > 0) seen.low = most(at - a->window + 1, 0);
    if (a->docs && a->n_docs > 0) {
        key_range document = document_at(a, b * a->row_tokens + at);
        seen.low = most(seen.low, document.low - b * a->row_tokens);
        seen.high = least(seen.high, document.high - b * a->row_tokens);
    }
    seen.low = least(most(seen.low - a->k_start, 0), a->k_tokens);
    seen.high = least(most(seen.high - a->k_start, 0), a->k_tokens);
    return seen;
}

/* The keys that query i of batch row b sees. Neither bound falls as i rises, so what a run of
 * queries sees lies between the first one's low and the last one's high.
 */
UL_MASK key_range visible_keys(const ul_attention_args *a, int64_t b, int64_t i)
{
    if (a->row_tokens) return visible_part(a, b, i);
    int64_t tokens = a->k_tokens, at = i + a->q_start;
    key_range seen = {0, tokens};
    if (a->causal) seen.high = at < 0 ? 0 : least(at + 1, tokens);
    if (a->window > 0 && at >= a->window) seen.low = least(at - a->window + 1, tokens);
    if (a->docs && a->n_docs > 0) {
        if (at < 0 || at >= tokens) {
            seen.low = seen.high = at < 0 ? 0 : tokens;
            return seen;
        }
        key_range document = document_at(a, b * tokens + at);
        seen.low = most(seen.low, document.low - b * tokens);
        seen.high = least(seen.high, document.high - b * tokens);
    }
    return seen;
}

#endif
