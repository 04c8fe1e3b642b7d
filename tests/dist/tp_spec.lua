-- tp_spec.lua - layers whose weights several ranks share, against one rank.
local ul = require 'ulysses'
local weight_parts = require 'ulysses.nn.weight_parts'
local nn, F = ul.nn, ul.F

-- The same on all ranks.
local function random(seed, shape, dtype)
  ul.manual_seed(seed)
  return ul.randn(shape, { dtype = dtype })
end

-- This rank's tokens of [B, S, ..]: even shares.
local function slice(g, x)
  local S = x:size(2)
  local each, more = math.floor(S / g.size), S % g.size
  return x:narrow(2, g.rank * each + math.min(g.rank, more) + 1, each + (g.rank < more and 1 or 0))
end

-- An attention and a feed-forward of a transformer, without what is outside of them.
local Pair = nn.class 'Pair'
function Pair:init(group, c, keep)
  local q, kv = nn.head_shares(group, c.heads, c.kv_heads)
  local function of(share) return { share = share, bias = c.bias, keep = keep } end
  self.D = c.D
  self.wq = nn.ColumnLinear(c.C, c.heads * c.D, of(q))
  self.wk = nn.ColumnLinear(c.C, c.kv_heads * c.D, of(kv))
  self.wv = nn.ColumnLinear(c.C, c.kv_heads * c.D, of(kv))
  self.wo = nn.RowLinear(c.heads * c.D, c.C, { share = q, bias = c.bias })
  self.gate = nn.ColumnLinear(c.C, c.ffn, { group = group, keep = keep })
  self.up = nn.ColumnLinear(c.C, c.ffn, { group = group, keep = keep })
  self.down = nn.RowLinear(c.ffn, c.C, { group = group })
end
function Pair:forward(x)
  local q, k, v = nn.columns(x, self.wq, self.wk, self.wv)
  local B, S = q:size()
  local o = F.attention(q:view(B, S, -1, self.D), k:view(B, S, -1, self.D),
                        v:view(B, S, -1, self.D), { causal = true })
  x = x + self.wo(o:view(B, S, -1))
  return x + self.down(F.swiglu(nn.columns(x, self.gate, self.up)))
end

local one = ul.group { pretend = 1 } -- each rank by itself

local function make(group, c, dtype, keep)
  return Pair(group, c, keep):to(dtype):apply(function(m) m.std = 0.2 end):init_weights { seed = 3 }
end

-- The largest gap of outputs and gradients to those of one rank.
local function compare(g, c, dtype, keep)
  local x, weight = random(1, { c.B, c.S, c.C }, dtype), random(2, { c.B, c.S, c.C }, dtype)
  local function run(group, mine, seed)
    local model = make(group, c, dtype, keep)
    mine = mine:clone():requires_grad_(true)
    local y = model(mine)
    y:backward(seed:contiguous())
    return model, y:detach(), mine.grad
  end
  local whole, y, dx = run(one, x, weight)
  local model, mine_y, mine_dx = run(g, slice(g, x), slice(g, weight))
  local gap = 0
  local function add(a, b)
    a, b = a:to('f64'), b:to('f64')
    if a:numel() == 0 then return end
    gap = math.max(gap, (a - b):abs():max():item() / math.max(1, b:abs():max():item()))
  end
  add(mine_y, slice(g, y))
  add(mine_dx or ul.zeros_like(mine_y), slice(g, dx))
  local state = whole:state()
  for name, parameter, owner, field in model:named_parameters() do
    local part = weight_parts.of(owner, field)
    local gradient = parameter.grad or ul.zeros_like(parameter:detach())
    -- a part has its gradient; of a whole each rank has its tokens' share
    if not part then gradient = g:all_reduce(gradient) end
    add(parameter:detach(), weight_parts.cut(part, state[name]:detach()))
    add(gradient, weight_parts.cut(part, state[name].grad))
  end
  return gap
end

local heads = { { 8, 8 }, { 8, 2 }, { 8, 1 }, { 6, 3 }, { 10, 5 }, { 12, 2 }, { 16, 8 } }

local function is_legal(P, H, Hkv) return P <= Hkv or (P % Hkv == 0 and P <= H) end

local function layers(test, g)
  local P = g.size
  for _, level in ipairs { { 'f64', 1e-12 }, { 'f32', 1e-5 }, { 'bf16', 0.05 } } do
    local dtype, limit = unpack(level)
    test('layers that ranks share equal those of one: ' .. dtype, function()
      for _, pair in ipairs(heads) do
        for i, S in ipairs { 1, 8, 13 } do
          if is_legal(P, pair[1], pair[2]) then
            local c = { heads = pair[1], kv_heads = pair[2], D = 4, C = 12, ffn = 6 + i, S = S,
                        B = i == 1 and 1 or 2, bias = i == 3 }
            local gap = compare(g, c, dtype, i == 2)
            assert(gap <= limit, ('%d heads, %d kv heads, S = %d: %g'):format(pair[1], pair[2], S,
                                                                             gap))
          end
        end
      end
    end)
  end
  -- x and a weight in storage that is turned round, too
  local function turned(x)
    return x:dim() == 3 and x:transpose(1, 3):contiguous():transpose(1, 3) or x:t():contiguous():t()
  end
  local function same(x) return x end
  test('one gather goes with tokens of any number on each rank', function()
    for _, given in ipairs { { 'f64', 1e-12 }, { 'bf16', 0.05 } } do
      local dtype, limit = unpack(given)
      for i, laid in ipairs { same, turned } do
        local T = g.rank == 1 and 0 or 2 + g.rank
        local values = { random(g.rank, { 2, T, 6 }, dtype), random(50, { 5, 6 }, dtype),
                         random(51, { 3, 6 }, dtype) }
        local function run(f)
          local x, u, v = values[1]:clone(), values[2]:clone(), values[3]:clone()
          for _, leaf in ipairs { x, u, v } do leaf:requires_grad_(true) end
          local a, b
          for salt = 1, 2 do -- gradients add up
            a, b = f(laid(x), u, laid(v))
            ul.backward({ a, b }, { a:detach(), random(60 * salt + g.rank, b.shape, dtype) })
          end
          return { a, b, x.grad, u.grad, v.grad }
        end
        local got = run(function(x, u, v)
          return g:gather_linear(x, { u, v }, { keep = i == 1 })
        end)
        local want = run(function(x, u, v)
          local all = g:all_gather(x, { dim = 2 })
          return F.linear(all, u), F.linear(all, v)
        end)
        for k = 1, 5 do
          local size = got[k]:numel() > 0 and math.max(1, want[k]:detach():abs():max():item()) or 0
          local gap = size > 0 and (got[k] - want[k]):detach():abs():max():item() / size or 0
          assert(gap <= limit, ('%s %d: %g'):format(dtype, k, gap))
        end
      end
    end
  end)
  test('a block that is run again in backward', function()
    local c = { heads = 8, kv_heads = 8, D = 4, C = 12, ffn = 20 }
    local model, x = make(g, c, 'f64'), slice(g, random(1, { 2, 13, 12 }, 'f64'))
    local function gradients(f)
      local mine = x:clone():requires_grad_(true)
      f(mine):square():sum():backward()
      local list = { mine.grad }
      for _, parameter in model:named_parameters() do
        list[#list + 1] = parameter.grad
        parameter.grad = nil
      end
      return list
    end
    local want = gradients(model)
    for i, got in ipairs(gradients(function(mine) return ul.recompute(model, mine) end)) do
      assert(got:numel() == 0 or (got - want[i]):abs():max():item() < 1e-12)
    end
  end)
  test('tokens that are cut otherwise are refused', function()
    if P == 1 then return end
    local layer = nn.ColumnLinear(4, 2 * P, { group = g })
    local ok, problem = pcall(layer, ul.ones(1, g.rank == 0 and 1 or 3, 4))
    assert(g.rank > 0 or not ok and problem:find('but slices are even', 1, true), problem)
  end)
end

local function weights(test, g)
  local P = g.size
  local c = { heads = 8, kv_heads = 8, D = 4, C = 12, ffn = 19, bias = true }
  test('initial weights are those of one rank, cut', function()
    local model, whole = make(g, c, 'f32'), make(one, c, 'f32')
    assert(model:n_parameters() == whole:n_parameters())
    local state, n = whole:state(), 0
    for name, parameter, owner, field in model:named_parameters() do
      local part, want = weight_parts.of(owner, field), state[name]:detach()
      n = n + (part and 1 or 0)
      local all = weight_parts.gather(part, parameter:detach())
      assert(all:ne(want):to('i64'):sum():item() == 0, name)
      assert(table.concat(weight_parts.shape(part, parameter)) == table.concat(want.shape), name)
    end
    assert(n == (P > 1 and 7 + 3 or 0))
    ul.manual_seed(5)
    local mine = nn.RowLinear(6, 4, { group = g })
    local _, here = ul.random_state()
    ul.manual_seed(5)
    local theirs = nn.Linear(6, 4)
    local _, there = ul.random_state()
    local part = weight_parts.of(mine, 'weight')
    assert(here == there and weight_parts.cut(part, theirs.weight):detach():eq(mine.weight:detach())
      :to('i64'):sum():item() == mine.weight:numel())
  end)
  test('whole weights are loaded', function()
    local model, whole = make(g, c, 'f32'), make(one, c, 'f32')
    model:apply(function(m) m.std = 1 end):init_weights { seed = 9 }
    model:load(whole:state())
    local same = make(g, c, 'f32'):state()
    for name, parameter in model:named_parameters() do
      assert(parameter:detach():ne(same[name]:detach()):to('i64'):sum():item() == 0, name)
    end
  end)
  test('heads that ranks cannot share are refused', function()
    local world = ul.group { pretend = 6, rank = 1 }
    local ok, problem = pcall(nn.head_shares, world, 16, 4)
    assert(not ok and tostring(problem) == 'tp = 6 does not go with 16 heads that read 4 kv heads: '
      .. 'it may be 1 to 4, 8, 12 or 16', tostring(problem))
  end)
end

-- What a layer sends, in bytes.
local function sent(group, device, keep, S, C)
  local before = ul.default_device()
  ul.set_default_device(device)
  local c = { heads = 4 * group.size, kv_heads = group.size, D = C / (4 * group.size), C = C,
              ffn = 3 * C }
  local model = Pair(group, c, keep)
  local x = slice(group, ul.zeros(1, S, C)):requires_grad_(true)
  group:reset_counts()
  model(x):sum():backward()
  ul.set_default_device(before)
  local bytes = 0
  for kind, count in pairs(group:counts()) do
    if kind ~= 'sizes' then bytes = bytes + count.bytes end
  end
  return bytes
end

local function traffic(test, g)
  local P = g.size
  test('a layer sends what the formula says', function()
    local S, C = 6 * P, 8 * P
    for _, place in ipairs { { g, 'cpu' }, { ul.group { pretend = P, rank = g.rank }, 'meta' } } do
      for times, keep in pairs { [10] = false, [8] = true } do
        local bytes = sent(place[1], place[2], keep, S, C)
        local formula = times * S * C * 4 * (P - 1) / P
        assert(bytes == formula, ('%s: %g, not %g'):format(place[2], bytes, formula))
      end
    end
  end)
  test('what is gathered is held until backward only where it is kept', function()
    local S, C = 64 * P, 32
    local function held(keep)
      local layer = nn.ColumnLinear(C, 2 * P, { group = g, keep = keep })
      local x = ul.randn(1, S / P, C):requires_grad_(true)
      collectgarbage()
      collectgarbage()
      local before = ul.memory(ul.default_device()).live
      local y = layer(x)
      local bytes = ul.memory(ul.default_device()).live - before
      y:free()
      return bytes
    end
    local gathered = P == 1 and 0 or S * C * 4
    assert(held(true) - held(false) == gathered)
  end)
end

return function(test, g)
  layers(test, g)
  weights(test, g)
  traffic(test, g)
end
