-- ring_spec.lua - keys that go round a ring of ranks: attention, gradients and bytes against one
-- rank.
local ul = require 'ulysses'
local F = ul.F

-- The same on all ranks.
local function random(seed, shape, dtype)
  ul.manual_seed(seed)
  return ul.randn(shape, { dtype = dtype })
end

-- Where chunk c (from 0) of n begins, from 1, and how many tokens it has.
local function chunk(S, n, c)
  local each, more = math.floor(S / n), S % n
  return c * each + math.min(c, more) + 1, each + (c < more and 1 or 0)
end

-- A rank's two chunks of x.
local function slice(x, R, r)
  local parts = {}
  for i, c in ipairs { r, 2 * R - 1 - r } do
    local first, count = chunk(x:size(2), 2 * R, c)
    parts[i] = x:narrow(2, first, count)
  end
  return ul.cat(parts, 2)
end

local function gap_of(a, b)
  assert(table.concat({ a:size() }, ',') == table.concat({ b:size() }, ','))
  if a:numel() == 0 then return 0 end
  return (a:to('f64') - b:to('f64')):abs():max():item()
end

local levels = { { 'f64', 1e-12 }, { 'f32', 1e-5 }, { 'bf16', 0.05 } }

-- attend(q, k, v, options) on slices, cut by `cut`, against plain attention on the whole: outputs
-- and gradients, the largest gap.
local function compare(case, dtype, cut, attend)
  local H, Hkv, S, B, D = case.H, case.Hkv, case.S, case.B or 1, case.D or 4
  local q, k = random(1, { B, S, H, D }, dtype), random(2, { B, S, Hkv, D }, dtype)
  local v, weight = random(3, { B, S, Hkv, D }, dtype), random(4, { B, S, H, D }, dtype)
  local options = { causal = case.causal, window = case.window, scale = case.scale,
                    docs = case.docs and ul.tensor(case.docs, { dtype = 'i64' }) }
  local whole, mine = { q:clone(), k:clone(), v:clone() }, {}
  for i, x in ipairs { q, k, v } do
    whole[i]:requires_grad_(true)
    mine[i] = cut(x):clone():requires_grad_(true)
  end
  local expected = F.attention(whole[1], whole[2], whole[3], options)
  expected:backward(weight)
  local o = attend(mine[1], mine[2], mine[3], options, S)
  o:backward(cut(weight):contiguous())
  local gap = gap_of(o:detach(), cut(expected:detach()))
  for i = 1, 3 do gap = math.max(gap, gap_of(mine[i].grad, cut(whole[i].grad))) end
  return gap
end

local masks = {
  { name = 'plain' },
  { name = 'causal', causal = true },
  { name = 'windowed', causal = true, window = 3 },
  { name = 'windowed, over several chunks', causal = true, window = 11 },
  { name = 'scaled', causal = true, scale = 0.3 },
  { name = 'batch of 2', causal = true, B = 2 },
  -- boundaries inside chunks, and on the edges of them (S = 16: of 2, 4, 8 and 16 chunks)
  { name = 'packed', causal = true, docs = function(S)
    return S > 12 and { 0, 2, 4, 5, 8, 12, S } or { 0, S }
  end },
  { name = 'packed, batch of 2, windowed', causal = true, window = 2, B = 2, docs = function(S)
    return S > 8 and { 0, 1, 8, S, S + 4, 2 * S } or { 0, S, 2 * S }
  end },
  { name = 'packed, not causal', docs = function(S)
    return S > 12 and { 0, 3, 8, S } or { 0, S }
  end },
}

local function attention(test, g)
  local shapes = { { 4, 4 }, { 8, 2 }, { 3, 1 }, { 6, 3 } }
  for _, mask in ipairs(masks) do
    test('attention in a ring equals one rank: ' .. mask.name, function()
      for i, heads in ipairs(shapes) do
        for _, S in ipairs { 1, 16, 29 } do
          local case = { H = heads[1], Hkv = heads[2], S = S, B = mask.B, causal = mask.causal,
                         window = mask.window, scale = mask.scale, D = i == 4 and 5 or 4,
                         docs = mask.docs and mask.docs(S) }
          for _, level in ipairs(levels) do
            local gap = compare(case, level[1], function(x) return slice(x, g.size, g.rank) end,
                                function(q, k, v, options, tokens)
              options.tokens = tokens
              return g:ring_attention(q, k, v, options)
            end)
            assert(gap <= level[2], ('%s, %d heads, %d kv heads, S = %d: %g'):format(
              level[1], heads[1], heads[2], S, gap))
          end
        end
      end
    end)
  end
end

-- Rows of many tiles, cut within tiles: 600 tokens make chunks of 600, 100, 75 .. tokens.
local function tiles(test, g)
  test('rows of many tiles', function()
    for _, mask in ipairs { { causal = true }, { causal = true, window = 70 }, {},
                            { causal = true, docs = { 0, 90, 310, 311, 600 } } } do
      local case = { H = 2, Hkv = 1, S = 600, D = 16, causal = mask.causal, window = mask.window,
                     docs = mask.docs }
      for _, level in ipairs(levels) do
        local gap = compare(case, level[1], function(x) return slice(x, g.size, g.rank) end,
                            function(q, k, v, options, tokens)
          options.tokens = tokens
          return g:ring_attention(q, k, v, options)
        end)
        assert(gap <= level[2], ('%s: %g'):format(level[1], gap))
      end
    end
  end)
end

-- Ulysses within the parts of a ring; slices are the mesh's.
local function meshes(test, g)
  if g.size < 2 or g.size == 3 then return end
  for ring = 1, g.size do
    local mesh = g.size % ring == 0 and ul.mesh { sp = g.size, ring = ring }
    if mesh and ring > 1 then
      for _, mask in ipairs(masks) do
        test(('ring %d x ulysses %d: %s'):format(ring, mesh.ulysses.size, mask.name), function()
          for _, heads in ipairs { { 8, 2 }, { 3, 3 }, { 6, 3 } } do
            for _, S in ipairs { 3, 29 } do
              local case = { H = heads[1], Hkv = heads[2], S = S, B = mask.B, causal = mask.causal,
                             window = mask.window, scale = mask.scale,
                             docs = mask.docs and mask.docs(S) }
              for _, level in ipairs(levels) do
                local gap = compare(case, level[1], function(x) return mesh:slice(x) end,
                                    function(q, k, v, options)
                  options.mesh = mesh
                  return ul.ulysses.attention(q, k, v, options)
                end)
                assert(gap <= level[2], ('%s, %d heads, %d kv heads, S = %d: %g'):format(
                  level[1], heads[1], heads[2], S, gap))
              end
            end
          end
        end)
      end
    end
  end
  test('a slice of another row is refused', function()
    local mesh = ul.mesh { sp = g.size, ring = g.size }
    mesh:slice(ul.zeros(1, 8 * g.size, 2, 4))
    local x = ul.zeros(1, 5, 2, 4)
    local ok, message = pcall(ul.ulysses.attention, x, x, x, { mesh = mesh })
    assert(not ok and message:find('5 tokens are not what this rank holds of a row of '
                                     .. 8 * g.size, 1, true), message)
  end)
end

return function(test, g)
  attention(test, g)
  tiles(test, g)
  meshes(test, g)
end
