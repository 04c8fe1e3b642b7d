-- attention.lua - cases of attention: masks, head maps, sizes around its tiles.
local ul = require 'ulysses'
local F = ul.F
local cases = {}

local function attend(opts)
  return function(q, k, v) return F.attention(q, k, v, opts) end
end

-- Specifications of q, k and v.
local function qkv(batch, tq, tk, heads, kv_heads, dim, scale)
  return {
    { shape = { batch, tq, heads, dim }, k = 0.3, scale = scale or 2 },
    { shape = { batch, tk, kv_heads, dim }, k = 1, scale = 2 },
    { shape = { batch, tk, kv_heads, dim }, k = 2 },
  }
end

local function shapes(...)
  local list = {}
  for i, spec in ipairs(qkv(...)) do list[i] = spec.shape end
  return list
end

local function add(name, opts, more)
  local case = more or {}
  case.name, case.op, case.call = name, 'attention', case.call or attend(opts)
  case.loose = 6 -- most weight is on few keys: the gradient of q is a difference of large numbers
  cases[#cases + 1] = case
end

-- ---- with PyTorch's values ----

add('attention', {}, { large = shapes(2, 67, 67, 4, 2, 40), empty = shapes(0, 5, 5, 4, 2, 8) })
add('attention_causal', { causal = true },
    { large = shapes(1, 131, 131, 4, 1, 24), empty = shapes(1, 0, 0, 4, 1, 8) })
add('attention_window', { causal = true, window = 3 }, { large = shapes(1, 131, 131, 2, 2, 12) })
add('attention_docs', { causal = true, docs = { 0, 2, 5, 7 } })
add('attention_cache', { causal = true, scale = 0.3 }, { large = shapes(1, 7, 131, 2, 1, 12) })
add('attention_map', { kv_head = { 1, 0, 1 } }, { large = shapes(1, 67, 67, 3, 2, 20) })
add('attention_lse', nil, {
  call = function(q, k)
    return select(2, F.attention(q, k, k, { causal = true, scale = 0.5, lse = true }))
  end,
  large = { { 2, 67, 2, 12 }, { 2, 67, 2, 12 } }, without = { gradcheck = 'constant' },
})

-- ---- other masks and sizes ----

add('attention: window of one', { causal = true, window = 1 },
    { inputs = qkv(1, 4, 4, 2, 1, 2), large = shapes(2, 67, 67, 2, 1, 5) })
add('attention: window over a cache', { causal = true, window = 3 },
    { inputs = qkv(1, 3, 7, 2, 1, 2), large = shapes(1, 65, 131, 2, 1, 5) })
add('attention: documents in both rows', { docs = { 0, 2, 4, 5, 8 } },
    { inputs = qkv(2, 4, 4, 2, 1, 2) })
add('attention: documents and a window', { causal = true, window = 2, docs = { 0, 1, 5, 6 } },
    { inputs = qkv(1, 6, 6, 2, 2, 2) })
add('attention: long documents', { causal = true, docs = { 0, 70, 71, 150 } },
    { inputs = qkv(1, 150, 150, 2, 1, 20, 0.5), without = { gradcheck = 'many' } })
add('attention: few queries see all keys', {},
    { inputs = qkv(1, 2, 5, 3, 3, 2), large = shapes(1, 5, 131, 3, 3, 7) })
add('attention: heads of one', { causal = true },
    { inputs = qkv(2, 3, 3, 1, 1, 1), large = shapes(2, 131, 131, 1, 1, 1) })
add('attention: one tensor thrice', nil, {
  call = function(a) return F.attention(a, a, a, { causal = true }) end,
  inputs = { { shape = { 1, 4, 2, 3 }, k = 0.3 } }, large = { { 1, 131, 2, 20 } },
})
add('attention: heads first in memory', nil, {
  call = function(q, k, v)
    return F.attention(q:transpose(2, 3), k:transpose(2, 3), v:transpose(2, 3), { causal = true })
  end,
  inputs = {
    { shape = { 1, 2, 4, 3 }, k = 0.3 }, { shape = { 1, 1, 4, 3 }, k = 1 },
    { shape = { 1, 1, 4, 3 }, k = 2 },
  },
  large = { { 2, 4, 67, 20 }, { 2, 2, 67, 20 }, { 2, 2, 67, 20 } },
})
add('attention: heads of 128', { causal = true },
    { inputs = qkv(1, 70, 70, 2, 1, 128, 0.2), without = { gradcheck = 'many' } })

return cases
