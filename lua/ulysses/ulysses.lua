-- ulysses.lua - attention over a sequence that the ranks of a group hold in slices.
local core = require 'ulysses.core'
local options_of = require 'ulysses.options'
local raise = require 'ulysses.raise'
local F = core.functional

---@class ulysses.ulysses
local ulysses = {}

local none = options_of.none
local known = { mesh = none, group = none, causal = none, window = none, docs = none,
                scale = none, lengths = none, cache = none, chunks = none }

-- Which of this rank's kv heads each of its query heads reads, from 0; nil where they share them
-- equally, in order, as attention has it by itself.
local function kv_head(group, heads, kv_heads, device)
  local first, count = group:head_share(heads)
  local kv_first, kv_count = group:head_share(heads, kv_heads)
  local map, is_plain = {}, kv_count > 0 and count % kv_count == 0
  for i = 1, count do
    map[i] = math.floor((first + i - 2) * kv_heads / heads) - (kv_first - 1)
    is_plain = is_plain and map[i] == math.floor((i - 1) * kv_count / count)
  end
  if is_plain then return nil end
  if count == 0 then return core.zeros({ 0 }, { dtype = 'i32', device = device }) end
  return core.tensor(map, { dtype = 'i32', device = device })
end

-- In how many chunks heads are exchanged, the next one under the attention of this one: as many as
-- are asked for, or as pay, where each rank has as many kv heads of each chunk as any other: then
-- all is summed as it would be without.
local function chunks_for(group, q, kv_heads, asked)
  if asked ~= nil and (type(asked) ~= 'number' or asked < 1 or asked ~= math.floor(asked)) then
    raise('ulysses.attention: chunks must be a whole number from 1 on, got %s', tostring(asked))
  end
  local each = kv_heads / group.size
  local most = asked or q:device():find '^cuda' and group.cuda_transport == 'nccl' and 4 or 1
  if each ~= math.floor(each) then return 1 end
  for n = math.min(most, each), 2, -1 do
    if each % n == 0 then return n end
  end
  return 1
end

-- Attention in chunks of heads. Exchanges begin before the attention that goes on beside them, and
-- backward walks the calls the other way round, so there as well.
local function in_chunks(group, q, k, v, n, lengths, plain)
  local heads, kv_heads = q:size(3) / n, k:size(3) / n
  local function begin(c)
    return group:shard_heads({ q:narrow(3, (c - 1) * heads + 1, heads),
                               k:narrow(3, (c - 1) * kv_heads + 1, kv_heads),
                               v:narrow(3, (c - 1) * kv_heads + 1, kv_heads) },
                             { lengths = lengths, q_heads = heads, later = true })
  end
  local coming, going = begin(1), {}
  for c = 1, n do
    local next_one = c < n and begin(c + 1)
    local mine = group:arrive(coming)
    local o = F.attention(mine[1], mine[2], mine[3], plain)
    going[c] = group:shard_tokens(o, { lengths = lengths, heads = heads, later = true })
    coming = next_one
  end
  for c = 1, n do going[c] = group:arrive(going[c]) end
  return core.cat(going, 3)
end

---@class UlyssesOptions
---@field mesh? Mesh whose slices q, k and v are
---@field group? Group without a mesh: the ranks that share the sequence; none: this one has all
---@field causal? boolean
---@field window? integer W keys including itself; needs causal
---@field docs? Tensor i64 offsets over the flattened B S of the whole sequence
---@field scale? number 1 / sqrt(D) where it is left out
---@field lengths? integer[] T of each rank of group; they tell each other where it is left out
---@field chunks? integer of heads, the exchange of one under the attention of another; as many as
---go are taken where so many do not. Left out: up to 4 with NCCL, else 1
---@field cache? table what has been seen before these tokens, cache:layer(i); not with a ring

--- Softmax attention of this rank's tokens over the whole sequence: what F.attention gives for all
--- of it, cut into the same slices. Ranks exchange tokens for heads and back; any number of heads,
--- of kv heads, and of tokens on each rank goes with any number of ranks. Where the mesh has a
--- ring, keys and values go round it, between the parts that have exchanged tokens for heads.
--- ```lua
--- local q, k, v = ul.randn(1, 16, 8, 4), ul.randn(1, 16, 2, 4), ul.randn(1, 16, 2, 4)
--- local o = ul.ulysses.attention(q, k, v, { group = ul.group(), causal = true })
--- ```
---@param q Tensor [B, T, H, D]
---@param k Tensor [B, T, Hkv, D]
---@param v Tensor [B, T, Hkv, D]
---@param options? UlyssesOptions
---@return Tensor o [B, T, H, D]
function ulysses.attention(q, k, v, options)
  options = options_of.read('ulysses.attention', options, known)
  local mesh = options.mesh
  local group = mesh and mesh.ulysses or options.group
  local plain = { causal = options.causal, window = options.window, docs = options.docs,
                  scale = options.scale }
  local ring = mesh and mesh.ring.size > 1 and mesh.ring
  local cache = options.cache
  if ring and cache then raise 'ulysses.attention: there is no cache where the mesh has a ring' end
  if not ring and (not group or group.size == 1) then
    return cache and cache:attend(q, k, v, plain) or F.attention(q, k, v, plain)
  end
  for i, x in ipairs { q, k, v } do
    if not core.is_tensor(x) or x:dim() ~= 4 then
      raise('ulysses.attention: %s must be a tensor [B, T, H, D]', ('qkv'):sub(i, i))
    end
  end
  local tokens, heads, kv_heads = q:size(2), q:size(3), k:size(3)
  if k:size(2) ~= tokens or v:size(2) ~= tokens then
    raise('ulysses.attention: q, k and v must be slices of one length, not of %d, %d and %d tokens',
          tokens, k:size(2), v:size(2))
  end
  if kv_heads == 0 or heads % kv_heads ~= 0 then
    raise('ulysses.attention: %d heads of q do not share %d kv heads equally', heads, kv_heads)
  end
  local lengths = options.lengths or mesh and mesh:lengths() or group:lengths(tokens)
  if mesh and lengths[group.rank + 1] ~= tokens then
    raise('ulysses.attention: %d tokens are not what this rank holds of a row of %d, the last one '
          .. 'that mesh:slice has cut', tokens, mesh.tokens)
  end
  if ring then plain.tokens = mesh.tokens end
  if group.size == 1 then return ring:ring_attention(q, k, v, plain) end
  local n = (ring or cache) and 1 or chunks_for(group, q, kv_heads, options.chunks)
  if n > 1 then return in_chunks(group, q, k, v, n, lengths, plain) end
  plain.kv_head = kv_head(group, heads, kv_heads, q:device())
  local mine = group:shard_heads({ q, k, v }, { lengths = lengths, q_heads = heads })
  q, k, v = mine[1], mine[2], mine[3]
  local o = ring and ring:ring_attention(q, k, v, plain) or cache and cache:attend(q, k, v, plain)
    or F.attention(q, k, v, plain)
  return group:shard_tokens(o, { lengths = lengths, heads = heads })
end

return ulysses
