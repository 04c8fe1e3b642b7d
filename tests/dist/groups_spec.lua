-- groups_spec.lua - collective ops: values, bit for bit in the order of the ranks; gradients.
local ul = require 'ulysses'

-- What rank r has: any rank can make it.
local function of_rank(r, shape, dtype, salt)
  local before, next_key = ul.random_state()
  ul.manual_seed(1000 * (salt or 1) + r)
  local x
  if dtype == 'f32' or dtype == 'bf16' or dtype == 'f64' then
    x = ul.randn(shape, { dtype = dtype })
  else
    x = ul.randint(0, 20, shape, { dtype = dtype })
  end
  ul.set_random_state(before, next_key)
  return x
end

local function same(a, b, what)
  assert(a:dtype() == b:dtype(), what)
  local shape_a, shape_b = { a:size() }, { b:size() }
  assert(table.concat(shape_a, ',') == table.concat(shape_b, ','),
         ('%s: [%s], not [%s]'):format(what, table.concat(shape_a, ','),
                                       table.concat(shape_b, ',')))
  if a:numel() > 0 then
    assert(a:ne(b):to('i64'):sum():item() == 0, what)
  end
end

-- The same for sums: NCCL adds in an order of its own, and rounds bf16 at each step.
local function same_sum(g, a, b, what)
  local dtype = a:dtype()
  if g.cuda_transport ~= 'nccl' or not dtype:find 'f' or a:numel() == 0 then
    return same(a, b, what)
  end
  assert(table.concat(a.shape, ',') == table.concat(b.shape, ','), what)
  local limit = (dtype == 'bf16' and 2 ^ -7 or dtype == 'f32' and 2 ^ -22 or 2 ^ -51) * g.size
  local gap = (a:to 'f64' - b:to 'f64'):abs():max():item()
  assert(gap <= limit * math.max(1, b:to('f64'):abs():max():item()), what)
end

-- The sum over ranks in their order, in the accumulator, rounded once.
local function sum_of(parts)
  local dtype = parts[1]:dtype()
  local wide = dtype == 'bf16' and 'f32' or dtype
  local total = parts[1]:to(wide)
  for i = 2, #parts do total = total + parts[i]:to(wide) end
  return total:to(dtype)
end

local dtypes = { 'f32', 'bf16', 'f64', 'i32', 'i64', 'u8' }
local function all(g, f)
  local list = {}
  for r = 0, g.size - 1 do list[r + 1] = f(r) end
  return list
end

-- d (sum over ranks of f's results, weighted) / d x by central differences, on every rank in turn.
local function check_gradient(g, x, f, what)
  local weight
  local function loss()
    local y = f(x)
    weight = weight or of_rank(g.rank, { y:size() }, 'f64', 77)
    return (y * weight):sum()
  end
  x:requires_grad_(true)
  loss():backward()
  local gradient = x.grad or ul.zeros_like(x)
  local function total()
    return ul.no_grad(function() return g:all_reduce(loss()):item() end)
  end
  local values, worst = x:detach():to('cpu'):clone(), 0
  local expected = gradient:detach():to('cpu')
  local data, slopes = values:data(), expected:data()
  local function at(i, value)
    data[i] = value
    x:detach():copy_(values:to(x:device()))
    return total()
  end
  for r = 0, g.size - 1 do
    local n = ul.tensor({ r == g.rank and x:numel() or 0 }, { dtype = 'i64' })
    g:all_reduce_(n)
    for i = 0, n:item() - 1 do
      local mine = r == g.rank
      local before = mine and data[i]
      local above = mine and at(i, before + 1e-3) or total()
      local slope = (above - (mine and at(i, before - 1e-3) or total())) / 2e-3
      if mine then
        data[i] = before
        x:detach():copy_(values:to(x:device()))
        worst = math.max(worst, math.abs(slope - slopes[i]))
      end
    end
  end
  expected:free()
  assert(worst < 1e-8, ('%s: gradients differ by %g'):format(what, worst))
end

local function values(test, g)
  local P, r = g.size, g.rank
  test('all_reduce', function()
    for _, dtype in ipairs(dtypes) do
      for _, n in ipairs { 0, 1, 7, 5000, 1200011 } do
        if n < 1e6 or dtype == 'f32' or dtype == 'bf16' then
          local parts = all(g, function(rank) return of_rank(rank, { n }, dtype) end)
          same_sum(g, g:all_reduce(parts[r + 1]), sum_of(parts), ('%s %d'):format(dtype, n))
          local mine = parts[r + 1]:clone()
          same_sum(g, g:all_reduce_(mine), sum_of(parts), ('%s %d in place'):format(dtype, n))
        end
      end
    end
  end)
  test('all_reduce of the largest and smallest', function()
    local x = ul.tensor { r, -r, 5 }
    same(g:all_reduce(x, { op = 'max' }), ul.tensor { P - 1, 0, 5 }, 'max')
    same(g:all_reduce(x, { op = 'min' }), ul.tensor { 0, 1 - P, 5 }, 'min')
  end)
  test('sums go in the order of the ranks', function()
    local numbers = { 2 ^ 30, -2 ^ 30, 1, 1 } -- in another order, the last ones are lost
    for _, dtype in ipairs { 'f32', 'bf16' } do
      for _, n in ipairs { 10, 100000 } do
        local x = ul.full({ n }, numbers[r + 1] or 0, { dtype = dtype })
        local sum = P < 3 and numbers[1] * (2 - P) or math.min(P - 2, 2)
        local want = ul.full({ n }, sum, { dtype = dtype })
        same(g:all_reduce(x), want, 'all_reduce')
        same(g:all_gather(g:reduce_scatter(x)), want, 'reduce_scatter')
      end
    end
  end)
  test('all_reduce_ through a view', function()
    local whole = ul.zeros { 4, 6 }
    whole:t():copy_(of_rank(r, { 6, 4 }, 'f32'))
    g:all_reduce_(whole:t())
    local sum = sum_of(all(g, function(k) return of_rank(k, { 6, 4 }, 'f32') end))
    same_sum(g, whole:t():contiguous(), sum, 'view')
  end)
  test('all_gather along each dim, of uneven sizes and views', function()
    for dim = 1, 3 do
      for _, dtype in ipairs(dtypes) do
        local parts = all(g, function(rank)
          local shape = { 2, 3, 5 }
          shape[dim] = rank == 1 and 0 or rank + 2
          return of_rank(rank, shape, dtype)
        end)
        same(g:all_gather(parts[r + 1], { dim = dim }), ul.cat(parts, dim), 'dim ' .. dim)
      end
    end
    local parts = all(g, function(rank) return of_rank(rank, { 4, 3 }, 'f32'):t() end)
    same(g:all_gather(parts[r + 1]), ul.cat(parts, 1), 'view')
  end)
  test('reduce_scatter along each dim', function()
    for dim = 1, 3 do
      for _, dtype in ipairs(dtypes) do
        local shape, sizes, first = { 2, 3, 5 }, {}, 1
        shape[dim] = 0
        for k = 1, P do
          sizes[k] = k == 2 and 0 or k
          if k <= r then first = first + sizes[k] end
          shape[dim] = shape[dim] + sizes[k]
        end
        local parts = all(g, function(rank) return of_rank(rank, shape, dtype) end)
        local want = sum_of(parts)
        local range = { {}, {}, {} }
        range[dim] = { first, first + sizes[r + 1] - 1 }
        same_sum(g, g:reduce_scatter(parts[r + 1], { dim = dim, sizes = sizes }), want[range],
                 dtype)
      end
    end
    local parts = all(g, function(rank) return of_rank(rank, { 400001, 3 }, 'bf16') end)
    local want = g:all_gather(g:reduce_scatter(parts[r + 1]))
    same_sum(g, want, sum_of(parts), 'large')
  end)
  test('broadcast from each rank', function()
    for root = 0, P - 1 do
      for _, dtype in ipairs(dtypes) do
        local x = of_rank(r, { 3, 5 }, dtype)
        same(g:broadcast(x, root), of_rank(root, { 3, 5 }, dtype), dtype)
        same(g:broadcast_(x, root), of_rank(root, { 3, 5 }, dtype), dtype)
      end
    end
  end)
  test('all_to_all tells who sent what to whom', function()
    -- x[b, s, h] = 1000 s + 10 h + b of the whole: tokens to heads and back
    for _, batch in ipairs { 1, 3 } do
      for _, heads in ipairs { P, P + 3, 2 * P + 1 } do
        local S = 2 * P + 1
        local whole = ul.zeros { batch, S, heads }
        for b = 1, batch do
          for s = 1, S do
            for h = 1, heads do whole[{ b, s, h }] = 1000 * s + 10 * h + b end
          end
        end
        local function share(n)
          local each, more = math.floor(n / P), n % P
          local first = r * each + math.min(r, more) + 1
          return { first, first + each + (r < more and 1 or 0) - 1 }
        end
        local mine = whole[{ {}, share(S), {} }]
        local y = g:all_to_all(mine, { split = 3, cat = 2 })
        same(y, whole[{ {}, {}, share(heads) }], 'by heads')
        same(g:all_to_all(y, { split = 2, cat = 3 }), mine, 'by tokens')
      end
    end
  end)
  test('all_to_all along one dim, sizes of any kind', function()
    -- rank r sends r + k elements 100 r + k to rank k
    local sizes, list = {}, {}
    for k = 0, P - 1 do
      sizes[k + 1] = r + k
      for _ = 1, r + k do list[#list + 1] = 100 * r + k end
    end
    local want = {}
    for k = 0, P - 1 do
      for _ = 1, r + k do want[#want + 1] = 100 * k + r end
    end
    local x = #list > 0 and ul.tensor(list) or ul.zeros { 0 }
    local y = #want > 0 and ul.tensor(want) or ul.zeros { 0 }
    same(g:all_to_all(x, { sizes = sizes }), y, 'uneven')
  end)
  test('all_to_all of a list, each tensor as it is', function()
    local names = { 'f32', 'bf16', 'i64' }
    local function from_to(from, to) -- all ranks know what all send
      local dtype = names[(from + 2 * to) % 3 + 1]
      local shape = to % 2 == 0 and { from + to } or { 2, from, to + 1 } -- empty ones too
      return of_rank(10 * from + to, shape, dtype)
    end
    for _ = 1, 2 do
      local list = g:all_to_all(all(g, function(to) return from_to(r, to) end))
      assert(#list == P)
      for from = 0, P - 1 do same(list[from + 1], from_to(from, r), 'from ' .. from) end
    end
    local turned = all(g, function(to) return of_rank(r + to, { 3, 4 }, 'f32'):t() end)
    for from, y in ipairs(g:all_to_all(turned)) do
      same(y, of_rank(from - 1 + r, { 3, 4 }, 'f32'):t():contiguous(), 'view')
    end
    local function refuses(words, ...)
      local ok, message = pcall(g.all_to_all, g, ...)
      assert(not ok and tostring(message):find(words, 1, true), tostring(message))
    end
    local one = ul.zeros { 1 }
    local many = {}
    for i = 1, P + 1 do many[i] = one end
    refuses(('a list of %d tensors for %d ranks'):format(P + 1, P), many)
    refuses('takes no options', all(g, function() return one end), { split = 1 })
    refuses('element 1 of the list', { 5 })
  end)
  test('what the host knows of ids is forgotten where ranks change them', function()
    local changes = {
      all_reduce_ = function(x) g:all_reduce_(x) end,
      broadcast_ = function(x) g:broadcast_(x, P - 1) end,
      recv = function(x)
        local sent = ul.tensor({ 5, 6, 7 }, { dtype = 'i64' })
        if P == 1 then return end
        if r % 2 == 0 then g:send(sent, (r + 1) % P) end
        g:recv(x, (r - 1) % P)
        if r % 2 == 1 then g:send(sent, (r + 1) % P) end
      end,
    }
    for _, name in ipairs { 'all_reduce_', 'broadcast_', 'recv' } do
      local x = ul.tensor({ r + 1, 2, 3 }, { dtype = 'i64' })
      local pair = ul.tensor({ { 1, 0 }, { 2, 0 }, { r, 0 } }, { dtype = 'i64' })
      changes[name](x)
      changes[name](pair:select(2, 1)) -- a view that lies apart
      -- a copy is not known: that asks the device
      for _, y in ipairs { x, pair } do same(y:to 'cpu', y:clone():to 'cpu', name) end
    end
  end)

  test('send and recv around a ring', function()
    if P == 1 then return end
    local x = of_rank(r, { 5000 }, 'bf16')
    local from, y = (r - 1) % P, ul.empty({ 5000 }, { dtype = 'bf16' })
    if r % 2 == 0 then
      g:send(x, (r + 1) % P)
      g:recv(y, from)
    else
      g:recv(y, from)
      g:send(x, (r + 1) % P)
    end
    same(y, of_rank(from, { 5000 }, 'bf16'), 'ring')
  end)
end

local function groups(test, g)
  local P, r = g.size, g.rank
  test('split by color and key', function()
    local s = g:split(r % 2, -r)
    local members = {}
    for k = P - 1, 0, -1 do
      if k % 2 == r % 2 then members[#members + 1] = k end
    end
    assert(s.size == #members and members[s.rank + 1] == r)
    local got = s:all_gather(ul.tensor({ r }, { dtype = 'i64' })):tolist()
    assert(table.concat(got, ' ') == table.concat(members, ' '))
    local none = g:split(r > 0 and 3 or nil)
    assert((none == nil) == (r == 0))
    if none then assert(none.size == P - 1 and none.name:find '3$') end
    local pairs_of = {}
    for k = 1, P do pairs_of[k] = math.floor((k - 1) / 2) end
    local two = g:split(pairs_of)
    assert(two.rank == r % 2)
    local inner = two:split(0)
    assert(inner.size == two.size and inner:all_reduce(ul.ones { 1 }):item() == two.size)
  end)
  test('a pretended world counts what a real one sends', function()
    local function work(world, device)
      world:reset_counts()
      local x = ul.zeros({ 2, 3 * P, 4 * P }, { device = device }):requires_grad_(true)
      local y = world:all_to_all(x, { split = 3, cat = 2 })
      world:all_gather(y, { dim = 1 }):sum():backward()
      local list = {}
      for k = 1, P do list[k] = ul.zeros({ 5 }, { device = device }):requires_grad_(true) end
      ul.cat(world:all_to_all(list), 1):sum():backward()
      world:broadcast_(ul.zeros({ 7 }, { device = device }))
      world:all_reduce(ul.zeros({ 12 * P }, { device = device }))
      return world:counts()
    end
    local real = work(g, 'cpu')
    local plan = work(ul.group { pretend = P, rank = r }, 'meta')
    local kinds = 0
    for kind, count in pairs(real) do
      kinds = kinds + 1
      assert(plan[kind].bytes == count.bytes and plan[kind].calls == count.calls, kind)
    end
    assert(kinds == 6, kinds)
    assert(real.all_to_all.bytes == 2 * (P - 1) * (2 * 3 * P * 4 + 5) * 4)
  end)
end

local function gradients(test, g)
  local r = g.rank
  local options = { dtype = 'f64' }
  local function fresh(...) return ul.randn({ ... }, options) end
  test('gradients of all_reduce and broadcast', function()
    check_gradient(g, fresh(2, 3), function(x) return g:all_reduce(x * x) end, 'all_reduce')
    for root = 0, g.size - 1 do
      check_gradient(g, fresh(3), function(x) return g:broadcast(x * x, root) end, 'broadcast')
    end
  end)
  test('gradients of all_gather and reduce_scatter', function()
    for dim = 1, 2 do
      local shape = { 2, 2 }
      shape[dim] = r
      check_gradient(g, fresh(unpack(shape)), function(x)
        return g:all_gather(x * x, { dim = dim })
      end, 'all_gather')
      shape[dim] = 5
      check_gradient(g, fresh(unpack(shape)), function(x)
        return g:reduce_scatter(x * x, { dim = dim })
      end, 'reduce_scatter')
    end
  end)
  test('gradients of all_to_all', function()
    check_gradient(g, fresh(2, r + 1, 5, 1), function(x)
      return g:all_to_all(x * x, { split = 3, cat = 2 })
    end, 'tokens to heads')
    check_gradient(g, fresh(3, 2), function(x)
      return g:all_to_all((x * x):t(), { split = 2, cat = 2 })
    end, 'along one dim')
  end)
  test('gradients of all_to_all of lists', function()
    check_gradient(g, fresh(g.size, r + 1), function(x)
      local list = {}
      for k = 1, g.size do list[k] = (x * x)[k] * k end
      list = g:all_to_all(list)
      if r == 0 then list[g.size] = list[1] end -- the last one reaches no loss there
      return ul.cat(list, 1)
    end, 'lists')
    local whole, mixed, sum = {}, {}, ul.zeros({}, options)
    for k = 1, g.size do -- numbers have no gradient, and what goes to this very rank is none
      whole[k] = ul.ones({ 2 }, options):requires_grad_(true)
      mixed[k] = (r + k) % 2 == 0 and ul.zeros({ 3 }, { dtype = 'i64' }) or whole[k] * 2
    end
    for _, y in ipairs(g:all_to_all(mixed)) do
      if y:dtype() == 'f64' then sum = sum + y:sum() * (r + 1) end
    end
    sum:backward()
    for k = 1, g.size do
      if mixed[k]:dtype() == 'f64' then
        same(whole[k].grad, ul.full({ 2 }, 2 * k, options), 'beside numbers')
      end
    end
  end)
  test('gradients add up where a value is used twice', function()
    check_gradient(g, fresh(3), function(x)
      local y = x * 2
      return g:all_gather(y) * g:all_reduce(y):sum() + g:all_gather(x)
    end, 'twice')
  end)
end

-- What Linux gives a turn to, as sched_getattr(2) tells it; 0 before 6.12.
local function turn()
  local ffi = require 'ffi'
  ffi.cdef 'long syscall(long, ...);'
  local number = ({ x64 = 315, arm64 = 275 })[ffi.arch]
  local attributes = ffi.new 'uint64_t[7]' -- of which the fourth is the turn, in ns
  if not number or ffi.C.syscall(ffi.cast('long', number), ffi.cast('long', 0), attributes,
                                 ffi.cast('long', 56), ffi.cast('long', 0)) ~= 0 then
    return 0
  end
  return tonumber(attributes[3])
end

local function turns(test, g)
  test('ranks have short turns on a processor, one alone has what it had', function()
    local ns = turn()
    assert(ns == 0 or (ns == 100000) == (g.size > 1), ns)
  end)
end

return function(test, g)
  turns(test, g)
  values(test, g)
  groups(test, g)
  gradients(test, g)
end
