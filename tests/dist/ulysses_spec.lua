-- ulysses_spec.lua - tokens for heads and back; attention over slices against one rank.
local ul = require 'ulysses'
local F = ul.F

-- The same on all ranks.
local function random(seed, shape, dtype)
  ul.manual_seed(seed)
  return ul.randn(shape, { dtype = dtype })
end

local function equal(a, b, what)
  assert(table.concat({ a:size() }, ',') == table.concat({ b:size() }, ','), what)
  if a:numel() > 0 then assert((a - b):abs():max():item() == 0, what) end
end

-- Lengths of slices: equal ones, odd ones, some empty.
local function slicings(P, S)
  local even, odd, left = {}, {}, S
  for r = 1, P do
    even[r] = math.floor(S / P) + (r <= S % P and 1 or 0)
    odd[r] = r == P and left or math.min(left, (r * 5) % 4)
    left = left - odd[r]
  end
  return { even, odd }
end

local function slice(x, lengths, r)
  local first = 1
  for k = 1, r do first = first + lengths[k] end
  return x[{ {}, { first, first + lengths[r + 1] - 1 } }]
end

local function heads_of(x, first, count) return x[{ {}, {}, { first, first + count - 1 } }] end

local function exchange(test, g)
  local P, r = g.size, g.rank
  test('every element goes where it belongs, and comes back', function()
    for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
      for B = 1, 3 do
        for _, S in ipairs { 1, 4, 17 } do
          for _, H in ipairs { 1, 2, 3, 5, 8 } do
            local whole = random(S * H, { B, S, H, B == 2 and 33 or 3 }, dtype)
            for _, lengths in ipairs(slicings(P, S)) do
              local what = ('%s B=%d S=%d H=%d'):format(dtype, B, S, H)
              local mine = slice(whole, lengths, r)
              local y = g:shard_heads(mine, { lengths = lengths })
              equal(y, heads_of(whole, g:head_share(H)), what)
              equal(g:shard_heads(mine), y, what .. ', lengths not given')
              equal(g:shard_tokens(y, { lengths = lengths, heads = H }), mine, what .. ', back')
              equal(g:shard_tokens(y, { lengths = lengths }), mine, what .. ', heads not given')
            end
          end
        end
      end
    end
  end)
  test('memory of any strides goes as it is', function()
    local S, H, D = 9, 5, 40 -- rows of heads that are long enough not to be packed
    for _, dtype in ipairs { 'f32', 'bf16' } do
      for B = 1, 2 do
        local fused = random(B, { B, S, 3 * H, D }, dtype) -- q, k and v beside each other
        local turned = random(B, { B, H, S, D }, dtype):transpose(2, 3)
        local thin = random(B, { B, S, D, H }, dtype):transpose(3, 4)
        local wholes = { fused[{ {}, {}, { H + 1, 2 * H } }], turned, thin }
        for _, lengths in ipairs(slicings(P, S)) do
          for i, whole in ipairs(wholes) do
            local what = ('%s B=%d view %d'):format(dtype, B, i)
            local mine = slice(whole, lengths, r)
            local y = g:shard_heads(mine, { lengths = lengths })
            equal(y, heads_of(whole, g:head_share(H)), what)
            equal(g:shard_tokens(y, { lengths = lengths, heads = H }), mine, what .. ', back')
            local seen = y:transpose(2, 3):contiguous():transpose(2, 3)
            equal(g:shard_tokens(seen, { lengths = lengths }), mine, what .. ', back from a view')
          end
        end
      end
    end
  end)
  test('several tensors go at once, and their gradients come back at once', function()
    local B, S = 2, 9
    for _, heads in ipairs { { 8, 2 }, { 7, 7 }, { 4, 1 } } do
      local H, Hkv = unpack(heads)
      for _, lengths in ipairs(slicings(P, S)) do
        local q, k = random(1, { B, S, H, 20 }, 'f32'), random(2, { B, S, Hkv, 20 }, 'f64')
        local v = random(3, { B, S, Hkv, 3 }, 'bf16')
        local mine = {}
        for i, x in ipairs { q, k, v } do
          mine[i] = slice(x, lengths, r):clone():requires_grad_(i ~= 2)
        end
        g:reset_counts()
        local list = g:shard_heads(mine, { q_heads = H, lengths = lengths })
        assert(#list == 3 and g:counts().all_to_all.calls == 1)
        equal(list[1]:detach(), heads_of(q, g:head_share(H)), 'q')
        equal(list[2], heads_of(k, g:head_share(H, Hkv)), 'k')
        equal(list[3]:detach(), heads_of(v, g:head_share(H, Hkv)), 'v')
        local apart = {}
        for i, x in ipairs(mine) do
          apart[i] = x:detach():requires_grad_(i ~= 2)
          local y = g:shard_heads(apart[i], { q_heads = H, lengths = lengths })
          if i ~= 2 then y:backward(y:detach() * (r + 1)) end
        end
        g:reset_counts()
        local weighted = (list[1] * list[1]:detach()):sum():to('f32')
          + (list[3] * list[3]:detach()):to('f32'):sum()
        weighted:backward(ul.tensor(r + 1))
        assert(g:counts().all_to_all.calls == 1)
        equal(mine[1].grad, apart[1].grad, 'gradient of q')
        equal(mine[3].grad, apart[3].grad, 'gradient of v')
        local back = g:shard_tokens({ list[1]:detach(), list[1]:detach() * 2 },
                                    { lengths = lengths, heads = H })
        equal(back[1], mine[1]:detach(), 'back')
        equal(back[2], mine[1]:detach() * 2, 'back')
      end
    end
    local function refuses(words, ...)
      local ok, message = pcall(...)
      assert(not ok and tostring(message):find(words, 1, true), tostring(message))
    end
    local x = ul.zeros { 1, 2, 2, 2 }
    refuses('0 tensors, not 1 to 8', g.shard_heads, g, {})
    refuses('not of the same tokens', g.shard_heads, g, { x, ul.zeros { 1, 3, 2, 2 } })
    refuses('element 2 of the list', g.shard_tokens, g, { x, 1 })
  end)
  test('kv heads go to all who need them', function()
    for _, heads in ipairs { { 8, 2 }, { 6, 3 }, { 5, 5 }, { 7, 3 }, { 4, 1 }, { 3, 2 } } do
      local H, Hkv = unpack(heads)
      local whole = random(H, { 2, 7, Hkv, 3 }, 'f32')
      local lengths = slicings(P, 7)[2]
      local y = g:shard_heads(slice(whole, lengths, r), { q_heads = H })
      equal(y, heads_of(whole, g:head_share(H, Hkv)), ('%d %d'):format(H, Hkv))
    end
    -- whole groups where they come out even
    local plan = ul.group { pretend = 4, rank = 3 }
    local first, count = plan:head_share(32, 8)
    assert(first == 7 and count == 2)
    first, count = plan:head_share(40, 4, 2)
    assert(first == 3 and count == 1)
  end)
  test('their gradients add up, in accumulators', function()
    for _, dtype in ipairs { 'f64', 'bf16' } do
      for _, heads in ipairs { { 8, 2 }, { 7, 3 }, { 4, 1 }, { 3, 3 } } do
        local H, Hkv = unpack(heads)
        local lengths = slicings(P, 6)[1]
        local x = slice(random(H, { 2, 6, Hkv, 2 }, dtype), lengths, r):clone()
        x:requires_grad_(true)
        local y = g:shard_heads(x, { q_heads = H })
        y:backward(ul.ones_like(y) * (2 ^ g.rank))
        -- each rank that has a head sends its weight back
        local want = ul.zeros_like(x)
        for k = 0, P - 1 do
          local first, count = g:head_share(H, Hkv, k)
          if count > 0 and x:size(2) > 0 then
            local part = want[{ {}, {}, { first, first + count - 1 } }]
            part:copy_(part + 2 ^ k)
          end
        end
        equal(x.grad, want:to(x.grad:dtype()), ('%s %d %d'):format(dtype, H, Hkv))
      end
    end
  end)
end

-- f on slices against plain attention on the whole: outputs and gradients, the largest gap.
local function compare(g, case, lengths, dtype)
  local H, Hkv, S, B = case.H, case.Hkv, case.S, case.B or 1
  local q, k = random(1, { B, S, H, 4 }, dtype), random(2, { B, S, Hkv, 4 }, dtype)
  local v, weight = random(3, { B, S, Hkv, 4 }, dtype), random(4, { B, S, H, 4 }, dtype)
  local docs = case.docs and ul.tensor(case.docs, { dtype = 'i64' })
  local options = { causal = case.causal, window = case.window, scale = case.scale, docs = docs }
  local whole = { q:clone(), k:clone(), v:clone() }
  for _, x in ipairs(whole) do x:requires_grad_(true) end
  local expected = F.attention(whole[1], whole[2], whole[3], options)
  expected:backward(weight)

  local mine = {}
  for i, x in ipairs { q, k, v } do
    mine[i] = slice(x, lengths, g.rank):clone():requires_grad_(true)
  end
  options.group = g
  local o = ul.ulysses.attention(mine[1], mine[2], mine[3], options)
  o:backward(slice(weight, lengths, g.rank):contiguous())
  local gap = 0
  local function add(a, b)
    if a:numel() > 0 then
      gap = math.max(gap, (a:to('f64') - b:to('f64')):abs():max():item())
    end
  end
  add(o:detach(), slice(expected:detach(), lengths, g.rank))
  for i = 1, 3 do add(mine[i].grad, slice(whole[i].grad, lengths, g.rank)) end
  return gap
end

local function attention(test, g)
  local P = g.size
  local shapes = { { 8, 8 }, { 8, 2 }, { 4, 1 }, { 6, 3 }, { 7, 7 }, { 10, 5 }, { 2, 1 }, { 1, 1 } }
  local masks = {
    { name = 'plain' },
    { name = 'causal', causal = true },
    { name = 'windowed', causal = true, window = 3 },
    { name = 'scaled', causal = true, scale = 0.3 },
    { name = 'batch of 2', causal = true, B = 2 },
    { name = 'packed', causal = true, docs = function(S)
      return S > 5 and { 0, 2, 5, S } or { 0, S }
    end },
    { name = 'packed, batch of 2, windowed', causal = true, window = 2, B = 2, docs = function(S)
      return S > 5 and { 0, 1, 4, S, S + 3, 2 * S } or { 0, S, 2 * S }
    end },
  }
  for _, mask in ipairs(masks) do
    test('attention over slices equals one rank: ' .. mask.name, function()
      for _, heads in ipairs(shapes) do
        for _, S in ipairs { 1, 8, 13 } do
          local case = { H = heads[1], Hkv = heads[2], S = S, B = mask.B, causal = mask.causal,
                         window = mask.window, scale = mask.scale,
                         docs = mask.docs and mask.docs(S) }
          for _, lengths in ipairs(slicings(P, S)) do
            for _, level in ipairs { { 'f64', 1e-12 }, { 'f32', 1e-5 }, { 'bf16', 0.05 } } do
              local dtype, limit = unpack(level)
              local gap = compare(g, case, lengths, dtype)
              assert(gap <= limit, ('%s, %d heads, %d kv heads, S = %d: %g'):format(
                dtype, heads[1], heads[2], S, gap))
            end
          end
        end
      end
    end)
  end
  test('attention sends what the formula says', function()
    local B, T, H, Hkv, D = 1, 6, 4 * P, 2 * P, 8
    local function sent(group, device)
      group:reset_counts()
      local function of(heads)
        return ul.zeros({ B, T, heads, D }, { device = device }):requires_grad_(true)
      end
      local o = ul.ulysses.attention(of(H), of(Hkv), of(Hkv), { group = group, causal = true })
      local forward = P > 1 and group:counts().all_to_all.bytes or 0
      o:sum():backward()
      return forward, P > 1 and group:counts().all_to_all.bytes or 0
    end
    for _, place in ipairs { { g, 'cpu' }, { ul.group { pretend = P }, 'meta' } } do
      local forward, both = sent(unpack(place))
      local formula = (P - 1) / P ^ 2 * B * (P * T) * D * (2 * H + 2 * Hkv) * 4
      assert(forward == formula and both == 2 * formula,
             ('%g %g %g'):format(forward, both, formula))
    end
  end)
end

local function memory(test, g)
  local P = g.size
  -- The most bytes beyond what was there before; those of a cpu and of a pretended world.
  local function peaks(work)
    local list = {}
    for i, place in ipairs { { g, 'cpu' }, { ul.group { pretend = P, rank = g.rank }, 'meta' } } do
      local group, device = unpack(place)
      collectgarbage()
      collectgarbage()
      ul.reset_peak_memory()
      local before = ul.memory(device).live
      ul.scope(function() work(group, device) end)
      list[i] = ul.memory(device).peak - before
    end
    return list[1], list[2]
  end
  local works = {
    attention = function(group, device)
      local function of(heads)
        return ul.zeros({ 2, 64, heads, 16 }, { device = device }):requires_grad_(true)
      end
      ul.ulysses.attention(of(8), of(2), of(2), { group = group, causal = true }):sum():backward()
    end,
    reductions = function(group, device)
      for _, dtype in ipairs { 'f32', 'bf16' } do
        local like = { device = device, dtype = dtype }
        local long, wide = ul.zeros({ 3000000 }, like), ul.zeros({ 100 * P, 999 }, like)
        group:all_reduce_(long)
        long:free()
        group:reduce_scatter(wide, { dim = 2 }):free()
        group:all_gather(wide, { dim = 2 }):free()
        wide:free()
      end
    end,
  }
  for _, name in ipairs { 'attention', 'reductions' } do
    test('meta counts the memory of ' .. name, function()
      local real, plan = peaks(works[name])
      -- beside it, the cpu has small tables of sizes
      assert(math.abs(real - plan) <= 1024 * P, ('%d bytes, not %d'):format(plan, real))
    end)
  end
end

return function(test, g)
  exchange(test, g)
  attention(test, g)
  memory(test, g)
end
