/* cudnn_attention.h - attention as graphs of cuDNN: what a plan depends on, and the graphs. The
 * order of the nodes is the one that cuDNN's engines know as attention.
 */
#ifndef UL_CUDNN_ATTENTION_H
#define UL_CUDNN_ATTENTION_H

#include "cudnn_graph.h"

namespace cudnn
{

/* All that a plan depends on. q, o [B, Tq, H, D], k, v [B, Tk, Hkv, D]; strides in elements for the
 * dims B, T, H. In a ragged one the batch is of documents, and the tokens are the most that one
 * has; where each begins and how many tokens it has is known when it runs.
 */
struct shape {
    int64_t batch, q_tokens, k_tokens, heads, kv_heads, dim;
    int64_t q_stride[3], k_stride[3], v_stride[3], o_stride[3];
    int64_t causal, window, ragged; /* as yes or no */
    int64_t backward, deterministic;

    bool operator<(const shape &other) const;
};

/* Tensors of the variant pack. */
enum id {
    Q = 1,
    K,
    V,
    O,
    LSE,
    D_O,
    D_Q,
    D_K,
    D_V,
    SUMS,        /* of do o, f32 [B, H, Tq] */
    ACCUMULATED, /* dq before it is rounded */
    WHOLE_D_K,   /* of each query head, before heads that share a kv head are added up */
    WHOLE_D_V,
    SCALE, /* by value, as the three that follow */
    ONE,
    HIDDEN, /* the score of a key that is not seen */
    WINDOW,
    AT_Q, /* ragged: where documents begin, in elements of each tensor, i64 [B + 1] */
    AT_K,
    AT_V,
    AT_O,
    AT_D_Q, /* of do and dq */
    AT_D_K, /* of dk and dv */
    AT_LSE,
    Q_TOKENS, /* ragged: i32 [B] */
    K_TOKENS,
    IDS
};

/* Whether cuDNN's backward on this device adds in one order with memory linear in the tokens. */
bool has_deterministic_backward(int version, int capability);

/* Whether dq is added up in f32 in memory, by blocks that each have some of the keys. */
bool accumulates(const shape &s, int capability);

/* Whether cuDNN has a backward in one order only for such heads: 256 wide, on Blackwell. */
bool is_always_in_order(int64_t dim, int version, int capability);

/* NULL, or why a shape is not for cuDNN: the rest of a sentence. What passes may still have no
 * plan.
 */
const char *unsuited(const shape &s, int version, int capability);

/* Makes the graph and its plan; g.trouble where there is none. */
void build(graph &g, const shape &s, const target &t);

/* Bytes of the tensors above that lie in scratch memory, beside the plan's own workspace; tokens:
 * of all documents, where it is ragged. Each is rounded up to 256 bytes. */
int64_t bytes_of(const shape &s, int id, int64_t tokens, int capability);

} // namespace cudnn

#endif
