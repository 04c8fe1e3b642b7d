-- group.lua - ranks that work together: ul.group and what a group can do.
---@meta ulysses

---@class GroupOptions
---@field pretend? integer a world of so many ranks that are not there, for tensors on meta
---@field rank? integer which of them this is, from 0

---@class CommCount
---@field calls integer
---@field bytes integer that this rank sent to others
---@field seconds number

--- Ranks, counted from 0. All ranks of a group call the same methods in the same order, whatever
--- their data; results are the same bits on every rank. Gradients are those of the sum of what all
--- ranks call backward on, and backward talks too: all ranks must come to it.
---@class Group
---@field rank integer this rank, from 0
---@field size integer
---@field name string 'world', 'world.1' ..
---@field transport 'self'|'mpi'|'nccl'|'plan'
---@field cuda_transport 'nccl'|'staged'|'none' of tensors on cuda: by NCCL, or by way of the host;
---none until the first exchange or split
local Group = {}

---@class ulysses
local ul = {}

--- All ranks that mpirun or srun has started together, or this process alone. Opens MPI where there
--- is more than one, so all ranks must call it once.
--- ```lua
--- local g = ul.group()
--- print(g.rank, g.size)
--- ```
---@param options? GroupOptions
---@return Group
function ul.group(options) end

--- The last 64 calls of this rank in words, the latest first.
---@return string[]
function ul.group_log() end

--- The ranks that gave the same color, in the order of their keys; nil for those that gave nil. Or
--- the colors of all ranks in a list, which needs no talking.
---@param color integer|nil|(integer|false)[]
---@param key? integer this rank where it is left out
---@return Group?
function Group:split(color, key) end

--- Waits for all ranks.
---@param what? string what a rank that waits too long says it waits for
---@param options? { patient: boolean } true: without the deadline, where others are known to be at
--- work on what takes long
function Group:barrier(what, options) end

--- Each rank's n, in a list. Where n is a list, as long on all ranks, a list of these.
---@param n integer|integer[]
---@param what? string what a rank that waits too long says it waits for
---@return integer[]|integer[][]
function Group:lengths(n, what) end

--- The sum over all ranks, taken in their order and in accumulators.
---@param x Tensor of the same shape and dtype on all ranks
---@param options? { op: 'sum'|'max'|'min' } only sums have gradients
---@return Tensor
function Group:all_reduce(x, options) end

--- The same in place, outside of the tape.
---@param x Tensor
---@param options? { op: 'sum'|'max'|'min' }
---@return Tensor x
function Group:all_reduce_(x, options) end

--- All ranks' x side by side along dim, where sizes may differ.
---@param x Tensor
---@param options? { dim: integer } 1
---@return Tensor
function Group:all_gather(x, options) end

--- This rank's part along dim of the sum of all x.
---@param x Tensor of the same shape on all ranks
---@param options? { dim: integer, sizes: integer[] } sizes: the part of each rank; equal ones where
--- it is left out, with one more for the first ranks if need be
---@return Tensor
function Group:reduce_scatter(x, options) end

--- X w^T for each w of a list, where X is all ranks' x side by side along dim: one gather for
--- several linear maps, of which nothing is held. X is gathered again for the gradients of w.
---@param x Tensor [.., K]
---@param weights Tensor[] one to four [N, K]
---@param options? { dim: integer, keep: boolean } dim: -2; keep: hold X until backward instead
---@return Tensor y [.., N], and one more for each weight behind the first
function Group:gather_linear(x, weights, options) end

--- Sends to each rank its part of x along `split`; the parts that arrive stand side by side along
--- `cat`. Or, of a list with a tensor for each rank, of any shape and dtype: to each its own, and a
--- list of what the ranks have sent.
---@param x Tensor|Tensor[]
---@param options? { split: integer, cat: integer, sizes: integer[] } dims: 1; sizes: of the parts;
--- none for a list
---@return Tensor|Tensor[] as x
function Group:all_to_all(x, options) end

--- This rank's heads of all tokens, [B, S, h, D], from all heads of its own tokens, [B, T, H, D].
--- Query heads are cut evenly, with any number of ranks; of kv heads each rank gets those that its
--- query heads read, so some may go to several ranks. A list of tensors goes in one exchange, and
--- comes back as a list.
---@param x Tensor|Tensor[] at most 8 of the same tokens
---@param options? { q_heads: integer, lengths: integer[], later: boolean } q_heads: how many query
--- heads there are, where x holds kv heads; lengths: T of each rank, which they tell each other
--- where it is left out; later: only begin, group:arrive ends it
---@return Tensor|Tensor[] as x
function Group:shard_heads(x, options) end

--- The way back: [B, T, H, D] from [B, S, h, D].
---@param x Tensor|Tensor[] at most 8 of the same tokens
---@param options? { heads: integer, lengths: integer[], later: boolean } heads: H, which the ranks
--- tell each other where it is left out; lengths: T of each rank, equal ones, with one more for the
--- first ranks if need be, where it is left out; later: only begin, group:arrive ends it
---@return Tensor|Tensor[] as x
function Group:shard_tokens(x, options) end

--- What shard_heads or shard_tokens gave with later = true, once it has arrived. With NCCL what was
--- computed in between ran beside the exchange, and in backward the way back runs beside what is
--- computed there. All that one exchange gave goes to one call, and nowhere else before.
---@param x Tensor|Tensor[]
---@return Tensor|Tensor[] as x
function Group:arrive(x) end

--- Which query heads a rank has after shard_heads, or which kv heads these read.
---@param heads integer query heads
---@param kv_heads? integer
---@param rank? integer this rank where it is left out
---@return integer first from 1
---@return integer count
function Group:head_share(heads, kv_heads, rank) end

---@class RingOptions
---@field tokens integer S of whole rows
---@field causal? boolean
---@field window? integer W keys including itself; needs causal
---@field docs? Tensor|integer[] i64 offsets over the flattened B S of whole rows
---@field scale? number 1 / sqrt(D) where it is left out
---@field kv_head? Tensor|integer[] i32 [H]: which kv head, from 0, each query head reads

--- Softmax attention over rows of which rank r of R holds the chunks r and 2 R - 1 - r of 2 R, one
--- behind the other; the first chunks hold one token more if need be. What F.attention gives for
--- whole rows, cut in the same way. Queries stay where they are; keys and values go from rank to
--- rank as far as some query sees them, and no rank ever has all of them.
---@param q Tensor [B, T, H, D]
---@param k Tensor [B, T, Hkv, D]
---@param v Tensor [B, T, Hkv, D]
---@param options RingOptions
---@return Tensor o [B, T, H, D]
function Group:ring_attention(q, k, v, options) end

--- The x of rank root, on all ranks.
---@param x Tensor of the same shape and dtype on all ranks
---@param root? integer 0
---@return Tensor
function Group:broadcast(x, root) end

--- The same in place, outside of the tape.
---@param x Tensor
---@param root? integer 0
---@return Tensor x
function Group:broadcast_(x, root) end

--- To one rank, which calls recv.
---@param x Tensor
---@param to integer
function Group:send(x, to) end

--- Fills x by what a rank sends.
---@param x Tensor
---@param from integer
---@return Tensor x
function Group:recv(x, from) end

--- What this rank has called so far, by kind: all_reduce, all_gather, .., sizes (small messages
--- about lengths).
---@return table<string, CommCount>
function Group:counts() end

--- Counts from 0 again.
function Group:reset_counts() end
