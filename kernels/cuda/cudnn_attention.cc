/* cudnn_attention.cc - the graphs of attention, forward and backward.
 */
#include <string.h>

#include <tuple>

#include "cudnn_attention.h"

namespace cudnn
{

bool shape::operator<(const shape &other) const { return memcmp(this, &other, sizeof *this) < 0; }

/* ---- tensors ---- */

/* The tensors of a call that both directions have. */
struct parts {
    tensor q, k_t, v, v_t, o, lse, scale, hidden, window;
    tensor at[IDS]; /* AT_Q ... K_TOKENS */
    const tensor *q_tokens, *k_tokens;
};

static quad q_dims(const shape &s) { return {{s.batch, s.heads, s.q_tokens, s.dim}}; }
static quad k_dims(const shape &s) { return {{s.batch, s.kv_heads, s.k_tokens, s.dim}}; }
static quad rows(const shape &s) { return {{s.batch, s.heads, s.q_tokens, 1}}; }
static quad scores(const shape &s) { return {{s.batch, s.heads, s.q_tokens, s.k_tokens}}; }

static quad packed(const quad &d)
{
    return {{d.v[1] * d.v[2] * d.v[3], d.v[2] * d.v[3], d.v[3], 1}};
}

/* Dims b h s d over memory [b, s, h, d]. */
static quad over(const int64_t *stride) { return {{stride[0], stride[2], stride[1], 1}}; }

static quad over_tokens(int64_t tokens, int64_t heads, int64_t dim)
{
    return {{tokens * heads * dim, dim, heads * dim, 1}};
}

static quad turned(const quad &x) { return {{x.v[0], x.v[1], x.v[3], x.v[2]}}; }

/* Log-sum-exps and sums of rows: [B, H, T], and [T, H] of all documents. */
static quad over_rows(const shape &s)
{
    if (s.ragged) return {{s.heads * s.q_tokens, 1, s.heads, 1}};
    return packed(rows(s));
}

static tensor heads_of(graph &g, const shape &s, const parts &p, int id, quad dims, quad strides,
                       int at)
{
    return g.real(id, DATA_BFLOAT16, dims, strides, s.ragged ? &p.at[at] : nullptr);
}

static tensor row_of(graph &g, const shape &s, const parts &p, int id)
{
    return g.real(id, DATA_FLOAT, rows(s), over_rows(s), s.ragged ? &p.at[AT_LSE] : nullptr);
}

static void make_parts(graph &g, const shape &s, parts &p)
{
    const quad one = {{1, 1, 1, 1}}, ends = {{s.batch + 1, 1, 1, 1}}, each = {{s.batch, 1, 1, 1}};
    p.q_tokens = p.k_tokens = nullptr;
    for (int id = AT_Q; s.ragged && id <= AT_LSE; id++)
        if (s.backward || (id != AT_D_Q && id != AT_D_K))
            p.at[id] = g.real(id, DATA_INT64, ends, one);
    if (s.ragged) {
        p.at[Q_TOKENS] = g.real(Q_TOKENS, DATA_INT32, each, one);
        p.at[K_TOKENS] = g.real(K_TOKENS, DATA_INT32, each, one);
        p.q_tokens = &p.at[Q_TOKENS];
        p.k_tokens = &p.at[K_TOKENS];
    }
    p.q = heads_of(g, s, p, Q, q_dims(s), over(s.q_stride), AT_Q);
    p.k_t = heads_of(g, s, p, K, turned(k_dims(s)), turned(over(s.k_stride)), AT_K);
    if (s.backward)
        p.v_t = heads_of(g, s, p, V, turned(k_dims(s)), turned(over(s.v_stride)), AT_V);
    else
        p.v = heads_of(g, s, p, V, k_dims(s), over(s.v_stride), AT_V);
    p.o = heads_of(g, s, p, O, q_dims(s), over(s.o_stride), AT_O);
    p.lse = row_of(g, s, p, LSE);
    p.scale = g.scalar(SCALE);
    p.hidden = g.scalar(HIDDEN);
    if (s.window) p.window = g.scalar(WINDOW);
}

/* ---- masks ---- */

static tensor select(graph &g, const parts &p, const tensor &score, const tensor &seen)
{
    return g.pointwise(POINTWISE_BINARY_SELECT, DATA_FLOAT, score, &p.hidden, &seen);
}

static tensor compare(graph &g, int mode, const tensor &a, const tensor &b)
{
    return g.pointwise(mode, DATA_BOOLEAN, a, &b, nullptr, nullptr, DATA_BOOLEAN);
}

/* Only what is within both lengths of a document. */
static tensor within_lengths(graph &g, const parts &p, const tensor &score)
{
    tensor row = g.index(score, 2, DATA_INT32), key = g.index(score, 3, DATA_INT32);
    tensor has_row = compare(g, POINTWISE_CMP_LT, row, *p.q_tokens);
    tensor has_key = compare(g, POINTWISE_CMP_LT, key, *p.k_tokens);
    return select(g, p, score, compare(g, POINTWISE_LOGICAL_AND, has_row, has_key));
}

/* Only keys that are not after the query, and less than a window before it. */
static tensor within_band(graph &g, const shape &s, const parts &p, tensor score)
{
    if (s.causal) {
        tensor row = g.index(score, 2, DATA_FLOAT), key = g.index(score, 3, DATA_FLOAT);
        score = select(g, p, score, compare(g, POINTWISE_CMP_GE, row, key));
    }
    if (s.window) {
        tensor row = g.index(score, 2, DATA_FLOAT), key = g.index(score, 3, DATA_FLOAT);
        tensor reach = g.pointwise(POINTWISE_ADD, DATA_FLOAT, key, &p.window);
        score = select(g, p, score, compare(g, POINTWISE_CMP_GT, reach, row));
    }
    return score;
}

/* ---- forward ---- */

/* S = scale Q K^T, masked; LSE = max + log sum exp(S - max); O = exp(S - max) / sum V. */
static void forward_nodes(graph &g, const shape &s, const parts &p)
{
    tensor score = g.between(DATA_FLOAT, scores(s), packed(scores(s)));
    g.matmul(p.q, p.k_t, score, p.q_tokens, p.k_tokens, nullptr, s.ragged);
    score = g.pointwise(POINTWISE_MUL, DATA_FLOAT, score, &p.scale);
    if (s.ragged) score = within_lengths(g, p, score);
    score = within_band(g, s, p, score);
    tensor most =
        g.reduce(REDUCE_TENSOR_MAX, score, g.between(DATA_FLOAT, rows(s), packed(rows(s))));
    tensor off = g.pointwise(POINTWISE_SUB, DATA_FLOAT, score, &most);
    tensor e = g.pointwise(POINTWISE_EXP, DATA_FLOAT, off);
    tensor sum = g.reduce(REDUCE_TENSOR_ADD, e, g.between(DATA_FLOAT, rows(s), packed(rows(s))));
    tensor log = g.pointwise(POINTWISE_LOG, DATA_FLOAT, sum);
    g.pointwise(POINTWISE_ADD, DATA_FLOAT, most, &log, nullptr, &p.lse);
    tensor share = g.pointwise(POINTWISE_DIV, DATA_BFLOAT16, e, &sum);
    g.matmul(share, p.v, p.o, p.q_tokens, nullptr, p.k_tokens);
}

/* ---- backward ---- */

/* What only backward has. */
struct slopes {
    tensor d_o, d_q, d_k, d_v, sums;
};

static slopes make_slopes(graph &g, const shape &s, const parts &p)
{
    quad q = over_tokens(s.q_tokens, s.heads, s.dim),
         k = over_tokens(s.k_tokens, s.kv_heads, s.dim);
    slopes x;
    x.d_o = heads_of(g, s, p, D_O, q_dims(s), q, AT_D_Q);
    x.d_q = heads_of(g, s, p, D_Q, q_dims(s), q, AT_D_Q);
    x.d_k = heads_of(g, s, p, D_K, k_dims(s), k, AT_D_K);
    x.d_v = heads_of(g, s, p, D_V, k_dims(s), k, AT_D_K);
    x.sums = row_of(g, s, p, SUMS);
    return x;
}

/* Sums of rows of dO O. */
static void add_sums(graph &g, const shape &s, const parts &p, const slopes &x)
{
    tensor one = g.scalar(ONE);
    tensor product = g.between(DATA_FLOAT, q_dims(s), packed(q_dims(s)));
    g.pointwise(POINTWISE_MUL, DATA_FLOAT, x.d_o, &p.o, nullptr, &product);
    tensor sum =
        g.reduce(REDUCE_TENSOR_ADD, product, g.between(DATA_FLOAT, rows(s), packed(rows(s))));
    g.pointwise(POINTWISE_MUL, DATA_FLOAT, sum, &one, nullptr, &x.sums);
}

/* P = exp(scale Q K^T - LSE) on what is seen. */
static tensor share_again(graph &g, const shape &s, const parts &p)
{
    tensor score = g.between(DATA_FLOAT, scores(s), packed(scores(s)));
    g.matmul(p.q, p.k_t, score, p.q_tokens, p.k_tokens, nullptr);
    score = g.pointwise(POINTWISE_MUL, DATA_FLOAT, score, &p.scale);
    score = g.pointwise(POINTWISE_SUB, DATA_FLOAT, score, &p.lse);
    if (s.ragged) score = within_lengths(g, p, score);
    score = within_band(g, s, p, score);
    return g.pointwise(POINTWISE_EXP, DATA_FLOAT, score);
}

/* to = x^T y, x [Tq, Tk] of each head; heads that share a kv head add up. */
static void add_to_keys(graph &g, const shape &s, const parts &p, const tensor &x, const tensor &y,
                        const tensor &to, int whole_id)
{
    quad all = scores(s), dims = {{s.batch, s.heads, s.k_tokens, s.dim}};
    tensor x_t = g.transpose(x, g.between(DATA_BFLOAT16, turned(all), turned(packed(all))));
    if (s.heads == s.kv_heads) {
        g.matmul(x_t, y, to, p.k_tokens, nullptr, p.q_tokens);
        return;
    }
    /* Ragged: where documents begin is what it is in `to`, times the heads that share one. */
    tensor whole = s.ragged ? g.real(whole_id, DATA_BFLOAT16, dims,
                                     over_tokens(s.k_tokens, s.heads, s.dim), &p.at[AT_D_K])
                            : g.between(DATA_BFLOAT16, dims, packed(dims));
    g.matmul(x_t, y, whole, p.k_tokens, nullptr, p.q_tokens);
    g.reduce(REDUCE_TENSOR_ADD, whole, to);
}

/* dQ = dS K. */
static void add_to_queries(graph &g, const shape &s, const parts &p, const tensor &slope,
                           const slopes &x, bool accumulated)
{
    tensor k = g.transpose(p.k_t, g.between(DATA_BFLOAT16, k_dims(s), over(s.k_stride),
                                            s.ragged ? &p.at[AT_K] : nullptr));
    if (!accumulated) {
        g.matmul(slope, k, x.d_q, p.q_tokens, nullptr, p.k_tokens);
        return;
    }
    quad dims = q_dims(s);
    tensor sum = s.ragged ? g.real(ACCUMULATED, DATA_FLOAT, dims,
                                   over_tokens(s.q_tokens, s.heads, s.dim), &p.at[AT_D_Q])
                          : g.real(ACCUMULATED, DATA_FLOAT, dims, packed(dims));
    g.matmul(slope, k, sum, p.q_tokens, nullptr, p.k_tokens);
    g.pointwise(POINTWISE_IDENTITY, DATA_BFLOAT16, sum, nullptr, nullptr, &x.d_q);
}

/* dV = P^T dO        dS = P (dO V^T - sums) scale        dK = dS^T Q        dQ = dS K */
static void backward_nodes(graph &g, const shape &s, const parts &p, int capability)
{
    slopes x = make_slopes(g, s, p);
    add_sums(g, s, p, x);
    tensor share = share_again(g, s, p);
    add_to_keys(g, s, p, share, x.d_o, x.d_v, WHOLE_D_V);
    tensor slope = g.between(DATA_FLOAT, scores(s), packed(scores(s)));
    g.matmul(x.d_o, p.v_t, slope, p.q_tokens, p.k_tokens, nullptr);
    slope = g.pointwise(POINTWISE_SUB, DATA_FLOAT, slope, &x.sums);
    slope = g.pointwise(POINTWISE_MUL, DATA_FLOAT, slope, &share);
    slope = g.pointwise(POINTWISE_MUL, DATA_BFLOAT16, slope, &p.scale);
    add_to_keys(g, s, p, slope, p.q, x.d_k, WHOLE_D_K);
    add_to_queries(g, s, p, slope, x, accumulates(s, capability));
}

/* ---- plans ---- */

/* The engines that add in one order, which the heuristics do not choose by themselves. */
static pinned choose(const shape &s, int version, int capability)
{
    if (!s.backward || !s.deterministic) return {-1, {}};
    if (capability / 10 == 10 && version >= 92300)
        return {5,
                {{KNOB_TYPE_TILE_M, 3},
                 {KNOB_TYPE_TILE_N, 2},
                 {KNOB_TYPE_KERNEL_CFG, 2},
                 {KNOB_TYPE_STREAM_K, 0},
                 {KNOB_TYPE_TILE_CGA_M, 0},
                 {KNOB_TYPE_STAGES, s.dim == 256 ? 3 : 2}}};
    if (capability / 10 == 10) return {5, {{KNOB_TYPE_KERNEL_CFG, 31}, {KNOB_TYPE_STAGES, 2}}};
    if (capability / 10 == 9 && version >= 92500)
        return {6,
                {{KNOB_TYPE_TILE_M, 2},
                 {KNOB_TYPE_TILE_N, 1},
                 {KNOB_TYPE_KERNEL_CFG, 2},
                 {KNOB_TYPE_STREAM_K, 0},
                 {KNOB_TYPE_TILE_CGA_M, 0},
                 {KNOB_TYPE_STAGES, 4}}};
    return {-1, {}};
}

void build(graph &g, const shape &s, const target &t)
{
    parts p;
    make_parts(g, s, p);
    if (s.backward)
        backward_nodes(g, s, p, t.capability);
    else
        forward_nodes(g, s, p);
    g.finish(t, choose(s, g.cudnn->version, t.capability));
}

} // namespace cudnn
