-- layers.lua - products, norms, attention, embeddings and losses.
---@meta ulysses
-- B batch, T tokens, H heads, D head size, C channels, V vocabulary

---@class Ops
local Ops = {}
---@class F: Ops
local F = {}

--- The product of matrices: [.., m, k] x [.., k, n]. Batch dims are broadcast.
--- ```lua
--- ul.ones(2, 3):matmul(ul.ones(3, 4))[1]    --> [3, 3, 3, 3]
--- ```
---@param a Tensor
---@param b Tensor
---@return Tensor
function Ops.matmul(a, b) end

--- x w^T + b over the last dim.
---@param x Tensor [.., inputs]
---@param w Tensor [outputs, inputs]
---@param b? Tensor [outputs]
---@return Tensor y [.., outputs]
function Ops.linear(x, w, b) end

--- x w / sqrt(mean(x^2) + eps) over the last dim.
---@param x Tensor [.., C]
---@param w? Tensor [C]
---@param eps? number 1e-5
---@return Tensor
function Ops.rms_norm(x, w, eps) end

--- (x - mean) / sqrt(var + eps) w + b over the last dim.
---@param x Tensor [.., C]
---@param w? Tensor [C]
---@param b? Tensor [C]
---@param eps? number 1e-5
---@return Tensor
function Ops.layer_norm(x, w, b, eps) end

--- softmax(q k^T scale) v for each head, without a matrix of all scores. Where there are fewer kv
--- heads, each serves as many query heads.
--- ```lua
--- local q, k, v = ul.randn(1, 8, 4, 16), ul.randn(1, 8, 2, 16), ul.randn(1, 8, 2, 16)
--- F.attention(q, k, v, { causal = true }):size(3)    --> 4
--- ```
---@param q Tensor [B, Tq, H, D]
---@param k Tensor [B, Tk, Hkv, D]
---@param v Tensor [B, Tk, Hkv, D]
---@param options? AttentionOptions
---@return Tensor o [B, Tq, H, D]
---@return Tensor? lse [B, H, Tq], if asked for
function Ops.attention(q, k, v, options) end

---@class AttentionOptions
---@field causal? boolean a query sees the keys up to its own position only
---@field window? integer how many keys a query sees, itself among them; needs causal
---@field docs? Tensor|integer[] offsets of documents over the flattened B T, from 0 to B T,
---row edges included
---@field scale? number 1 / sqrt(D)
---@field kv_head? Tensor|integer[] which kv head (0-based) each query head reads
---@field lse? boolean return the log of the sum of exponentials too

--- x / (1 - p), or 0 with probability p.
---@param x Tensor
---@param p? number 0.5
---@param options? { training: boolean? } false: x itself
---@return Tensor
function Ops.dropout(x, p, options) end

--- h = x + residual and y = rms_norm(h, w, eps), in one pass.
---@param x Tensor [.., C]
---@param residual Tensor [.., C]
---@param w Tensor? [C]
---@param eps? number 1e-5
---@return Tensor y
---@return Tensor h
function F.add_rms_norm(x, residual, w, eps) end

--- The row of w for each id.
--- ```lua
--- local ids = ul.tensor({ 1, 0 }, { dtype = 'i64' })
--- F.embedding(ids, ul.tensor { { 1, 2 }, { 3, 4 } })[1]    --> [3, 4]
--- ```
---@param ids Tensor i64 [..], 0-based
---@param w Tensor [V, C]
---@return Tensor y [.., C]
function F.embedding(ids, w) end

--- Cosines and sines of the angles by which rope() turns.
---@param positions Tensor i64 [T] or [B, T], 0-based
---@param head_dim integer
---@param options? RopeOptions
---@return RopeTable
function F.rope_table(positions, head_dim, options) end

---@class RopeOptions
---@field theta? number 10000
---@field inv_freq? Tensor f64 [head_dim / 2], instead of theta
---@field scale? number of the table, 1
---@field dtype? Dtype of what it will turn, f32; bf16 is turned by an f32 table

---@class RopeTable
---@field cos Tensor
---@field sin Tensor

--- Rotary position embedding, which turns the two halves of each head's channels.
--- ```lua
--- local x = ul.randn(1, 8, 2, 16)
--- local table = F.rope_table(ul.arange(8), 16, { theta = 500000 })
--- F.rope(x, table):size(4)    --> 16
--- ```
---@param x Tensor [B, T, H, D]
---@param table RopeTable
---@return Tensor
function F.rope(x, table) end

--- -log softmax(logits)[target], over all targets that count.
--- ```lua
--- local targets = ul.tensor({ 3, 5 }, { dtype = 'i64' })
--- F.cross_entropy(ul.zeros(2, 8), targets)    --> 2.0794
--- ```
---@param logits Tensor [.., V]
---@param targets Tensor i64 [..], 0-based
---@param options? LossOptions
---@return Tensor loss their mean, unless the options say 'sum'
function F.cross_entropy(logits, targets, options) end

---@class LossOptions
---@field reduction? 'sum'|'mean'
---@field ignore_index? integer a target of this value does not count, -100
---@field tile? integer rows at once (linear_cross_entropy only)

--- The same for logits = x w^T, which never exist as a whole: for a large vocabulary.
---@param x Tensor [.., C]
---@param w Tensor [V, C]
---@param targets Tensor i64 [..], 0-based
---@param options? LossOptions
---@return Tensor loss the sum, unless the options say 'mean'
---@return integer count how many targets count
function F.linear_cross_entropy(x, w, targets, options) end
