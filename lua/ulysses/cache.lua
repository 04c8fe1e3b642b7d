-- cache.lua - keys and values of the tokens that a model has seen, so that the next one is all that
-- it has to compute.
--
-- A layer with a window of W tokens keeps the last W in a ring: token t lies at place t mod W.
-- Other layers have a place for each. Keys are kept as attention reads them, behind RoPE; ranks of
-- mesh.ulysses keep those of their own heads, of all tokens.
local core = require 'ulysses.core'
local raise = require 'ulysses.raise'
local F = core.functional

--- What a model has seen of some texts; see ul.cache.
---@class KvCache
---@field rows integer[] which rows the next call is about, from 1: those of its inputs, in order
---@field lengths integer[] how many tokens of each row have been seen
local Cache = {}
Cache.__index = Cache

local Layer = {}
Layer.__index = Layer

--- Keys and values of so many rows, of at most `room` tokens each. With it a model computes what
--- comes behind new tokens alone, for it has kept what it needs of those before them:
---
---   local cache = ul.cache(1, 100)
---   model:logits({ 3, 1, 4 }, { cache = cache })
---   model:logits({ 1 }, { cache = cache, last = true })    -- behind 3 1 4 1
---
--- A model of one's own passes cache:layer(i) to the ul.ulysses.attention of its layer i, and takes
--- positions from cache:positions(T, device). ul.generate makes one for models that say so: their
--- field uses_cache is true.
---@param n_rows integer
---@param room integer
---@return KvCache
local function new_cache(n_rows, room)
  local self = { n_rows = n_rows, room = room, rows = {}, lengths = {}, layers = {} }
  for b = 1, n_rows do self.rows[b], self.lengths[b] = b, 0 end
  return setmetatable(self, Cache)
end

--- How many tokens the longest of the rows at work has, those of the call at work among them.
---@return integer
function Cache:length()
  local most = 0
  for _, b in ipairs(self.rows) do most = math.max(most, self.lengths[b]) end
  return most
end

--- Begins a call: the positions of the next T tokens of each row at work, [T] or [rows, T].
---@param T integer
---@param device Device of the tensor
---@return Tensor i64
function Cache:positions(T, device)
  local first, equal, list = self.lengths[self.rows[1]], true, {}
  for i, b in ipairs(self.rows) do
    local n = self.lengths[b]
    if n + T > self.room then
      raise('cache: %d tokens and %d more do not go into room for %d', n, T, self.room)
    end
    equal = equal and n == first
    list[i] = {}
    for t = 1, T do list[i][t] = n + t - 1 end
    self.lengths[b] = n + T
  end
  return core.tensor(equal and list[1] or list, { dtype = 'i64', device = device })
end

--- What ul.ulysses.attention takes as the cache of layer i.
---@param i integer
function Cache:layer(i)
  local layer = self.layers[i]
  if not layer then
    layer = setmetatable({ cache = self, lengths = {} }, Layer)
    for b = 1, self.n_rows do layer.lengths[b] = 0 end
    self.layers[i] = layer
  end
  return layer
end

--- Frees the memory.
function Cache:free()
  for _, layer in ipairs(self.layers) do
    if layer.k then
      layer.k:free()
      layer.v:free()
    end
  end
  self.layers = {}
end

-- Where tokens from `first` (from 0) on lie in a ring of C places: { place, how many }.
local function places(first, count, C)
  local list = {}
  while count > 0 do
    local at = first % C
    local n = math.min(count, C - at)
    list[#list + 1] = { at + 1, n }
    first, count = first + n, count - n
  end
  return list
end

local function write(kept, x, first, C)
  local T, at = x:size(2), 1
  if T > C then first, at, T = first + T - C, T - C + 1, C end
  for _, place in ipairs(places(first, T, C)) do
    kept:narrow(2, place[1], place[2]):copy_(x:narrow(2, at, place[2]))
    at = at + place[2]
  end
end

-- The last `past` of n tokens, in their order, and x behind them.
local function behind(kept, x, n, past, C)
  if past == 0 then return x end
  local parts = {}
  for _, place in ipairs(places(n - past, past, C)) do
    parts[#parts + 1] = kept:narrow(2, place[1], place[2])
  end
  parts[#parts + 1] = x
  return core.cat(parts, 2)
end

-- Attention of rows that have seen n tokens each.
local function attend(self, row, count, q, k, v, how)
  local n, T, C = self.lengths[row], q:size(2), self.places
  local kept_k, kept_v = self.k:narrow(1, row, count), self.v:narrow(1, row, count)
  if T == 1 then -- sees all that is kept
    write(kept_k, k, n, C)
    write(kept_v, v, n, C)
    local seen = math.min(n + 1, C)
    return F.attention(q, kept_k:narrow(2, 1, seen), kept_v:narrow(2, 1, seen),
                       { scale = how.scale, kv_head = how.kv_head })
  end
  local window = how.window or 0
  local past = math.min(n, window > 0 and window - 1 or n, C)
  local o = F.attention(q, behind(kept_k, k, n, past, C), behind(kept_v, v, n, past, C), how)
  write(kept_k, k, n, C)
  write(kept_v, v, n, C)
  return o
end

local function make_room(self, k, how)
  local window = how.window or 0
  self.places = window > 0 and math.min(window, self.cache.room) or self.cache.room
  local shape = { self.cache.n_rows, self.places, k:size(3), k:size(4) }
  local like = { dtype = k:dtype(), device = k:device() }
  self.k, self.v = core.empty(shape, like):keep(), core.empty(shape, like):keep()
end

--- Attention of new tokens to those before them and to each other; they are kept.
---@param q Tensor [rows at work, T, H, D]
---@param k Tensor [rows at work, T, Hkv, D]
---@param v Tensor
---@param how AttentionOptions
---@return Tensor o [rows at work, T, H, D]
function Layer:attend(q, k, v, how)
  if core.is_grad_enabled() then raise 'cache: no gradient flows through it; use ul.no_grad' end
  if how.docs then raise 'cache: rows with several documents have none' end
  local rows, lengths, T = self.cache.rows, self.lengths, q:size(2)
  if not self.k then make_room(self, k, how) end
  local together = true -- neighbours of one length
  for i, row in ipairs(rows) do
    together = together and row == rows[1] + i - 1 and lengths[row] == lengths[rows[1]]
  end
  local o
  if together then
    o = attend(self, rows[1], #rows, q, k, v, how)
  else
    local parts = {}
    for i, row in ipairs(rows) do
      parts[i] = attend(self, row, 1, q:narrow(1, i, 1), k:narrow(1, i, 1), v:narrow(1, i, 1), how)
    end
    o = core.cat(parts, 1)
  end
  for _, row in ipairs(rows) do lengths[row] = lengths[row] + T end
  return o
end

return new_cache
