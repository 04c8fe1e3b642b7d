-- mesh_spec.lua - who holds which tokens of which rows; gradients summed over the ranks of a mesh.
local ul = require 'ulysses'
local nn = ul.nn

-- All meshes of so many ranks.
local function meshes(P)
  local list = {}
  for sp = 1, P do
    for ring = 1, sp do
      if P % sp == 0 and sp % ring == 0 then
        list[#list + 1] = { sp = sp, ring = ring }
        if P % (sp * 2) == 0 then list[#list + 1] = { sp = sp, ring = ring, tp = 2 } end
      end
    end
  end
  return list
end

local function name_of(given)
  return ('sp %d ring %d tp %d'):format(given.sp, given.ring, given.tp or 1)
end

local function equal(a, b, what)
  assert(table.concat({ a:size() }, ',') == table.concat({ b:size() }, ','), what)
  if a:numel() > 0 then assert(a:ne(b):to('i64'):sum():item() == 0, what) end
end

local function tokens(test, g)
  test('every token is held once, and found again', function()
    for _, given in ipairs(meshes(g.size)) do
      local mesh = ul.mesh(given)
      local what = name_of(given)
      assert(mesh.sequence.size == given.sp * (given.tp or 1), what)
      assert(mesh.dp.size * mesh.sequence.size == g.size, what)
      assert(mesh.ring.size == given.ring and mesh.ulysses.size == given.sp / given.ring, what)
      for _, S in ipairs { 0, 1, 5, 16, 37 } do
        local held, longest, shortest = {}, 0, S
        for rank = 0, mesh.sequence.size - 1 do
          local n = 0
          for _, range in ipairs(mesh:ranges(S, rank)) do
            for t = range[1], range[2] do
              assert(not held[t], what)
              held[t], n = true, n + 1
            end
          end
          longest, shortest = math.max(longest, n), math.min(shortest, n)
        end
        assert(#held == S and longest - shortest <= (given.ring > 1 and 2 or 1), what)
        local whole = ul.arange(2 * S * 3):view(2, S, 3)
        equal(mesh:gather(mesh:slice(whole)), whole, what)
        local sum = 0
        for _, n in ipairs(mesh:lengths()) do sum = sum + n end
        assert(mesh.ring:all_reduce(ul.tensor { sum }):item() == S, what)
      end
    end
  end)
  test('parts of a ring have both ends of what is causal', function()
    if g.size ~= 4 then return end
    local mesh = ul.mesh { sp = 4, ring = 2 } -- chunks of 4: 1 and 4, then 2 and 3
    local of = {}
    for rank = 0, 3 do
      local parts = {}
      for _, range in ipairs(mesh:ranges(16, rank)) do
        parts[#parts + 1] = range[1] .. '-' .. range[2]
      end
      of[rank + 1] = table.concat(parts, ' ')
    end
    assert(table.concat(of, ', ') == '1-4, 13-16, 5-8, 9-12', table.concat(of, ', '))
    assert(ul.mesh({ sp = 4, heads = 3 }).ring.size == 2)
    assert(ul.mesh({ sp = 4, heads = 4 }).ring.size == 1)
  end)
end

local text = ul.data.from { 'a row of words', 'some', 'more of them, and so on for a while', 'x' }

local function batches(test, g)
  test('ranks hold the rows of a batch, and one denominator', function()
    for _, given in ipairs(meshes(g.size)) do
      local mesh, what = ul.mesh(given), name_of(given)
      local rows = text:tokenize('bytes'):pack(7):batch(math.max(5, mesh.dp.size))
      local shared = rows:copy():shard(mesh)
      assert(not rows.mesh and shared.mesh == mesh)
      for k = 1, 3 do
        local whole, mine = rows:at(k), shared:at(k)
        assert(mine.denominator == whole.denominator and mine.length == 7, what)
        if mine.docs then assert(mine.docs[-1]:item() == 7 * #mine.rows, what) end
        for _, field in ipairs { 'inputs', 'targets' } do
          local all = mesh:gather(mine[field])
          for i, b in ipairs(mesh:rows(#whole.rows)) do equal(all[i], whole[field][b], what) end
        end
        local positions = mesh:gather(mine.positions, mine.positions:dim())
        for i, b in ipairs(mesh:rows(#whole.rows)) do
          for t = 1, 7 do
            local here = positions:dim() == 1 and positions[t] or positions[i][t]
            local there = whole.positions:dim() == 1 and whole.positions[t] or whole.positions[b][t]
            assert(here:item() == there:item(), what)
          end
        end
        equal(whole:shard(mesh).inputs, mine.inputs, what)
      end
      local n = 0
      for batch in shared:once() do n = n + batch.denominator end
      for batch in rows:once() do n = n - batch.denominator end
      assert(n == 0, what)
    end
  end)
  test('dropout has the same zeros under every mesh', function()
    for _, given in ipairs(meshes(g.size)) do
      local mesh, what = ul.mesh(given), name_of(given)
      local rows = text:tokenize('bytes'):pack(7):batch(2 * mesh.dp.size + 1)
      for n = 1, 2 do
        local function results(data, dropout, whole)
          ul.manual_seed(5)
          local list = {}
          for micro in data:at(2):micros(n) do
            local x = micro.inputs:unsqueeze(-1):to('f32') + ul.ones(5)
            list[#list + 1] = whole(dropout(x), micro)
          end
          return ul.cat(list, 1)
        end
        local function in_all(y, micro)
          y = mesh:gather(y)
          local all = ul.zeros { micro.n_rows, 7, 5 }
          for i, b in ipairs(mesh:rows(micro.n_rows)) do all[b]:copy_(y[i]) end
          return mesh.dp:all_reduce(all)
        end
        local one = results(rows, nn.Dropout(0.5), function(y) return y end)
        local mine = results(rows:copy():shard(mesh), nn.Dropout(0.5, { mesh = mesh }), in_all)
        -- unequal parts of an unequal batch are cut elsewhere; their numbers go by the row there
        if n == 1 or mesh.dp.size == 1 then equal(mine, one, what) end
        local zeros = mine:eq(0):to('f32'):mean():item()
        assert(zeros > 0.1 and zeros < 0.9, what)
      end
    end
  end)
  test('the loss that all report is the whole, on every rank', function()
    local mesh = ul.mesh { sp = g.size }
    local batch = text:tokenize('bytes'):pack(7):batch(2):shard(mesh):at(1)
    for _ = 1, 2 do
      for micro in batch:micros(2) do micro:mean(ul.tensor { g.rank + 1 }) end
      batch.losses.total = nil
      local want = g.size * (g.size + 1) / batch.denominator
      assert(math.abs(batch:loss() - want) < 1e-6)
      assert(math.abs(batch:loss() - want) < 1e-6)
    end
  end)
end

local function optimizers(test, g)
  local Two = nn.class 'Two'
  function Two:init()
    self.one = nn.Linear(3, 2)
    self.two = nn.Linear(3, 2)
  end
  local function model(seed) return Two():init_weights { seed = seed or 1 } end
  test('gradients are summed once, of parameters that some ranks have not used too', function()
    local mesh, m = ul.mesh(), model()
    local optim = ul.optim.sgd(m, { lr = 1, mesh = mesh })
    local before = m.one.weight:detach():clone()
    local x = ul.full({ 1, 3 }, g.rank + 1)
    m.one(x):sum():backward()
    if g.rank == 0 then m.two(x):sum():backward() end
    local sum = g.size * (g.size + 1) / 2
    local norm = math.sqrt(6 * sum * sum + 6)
    assert(math.abs(optim:norm() - norm) < 1e-4)
    assert(math.abs(optim:clip(norm / 2) - norm) < 1e-4)
    optim:step()
    local moved = before - m.one.weight:detach()
    assert((moved - sum / 2):abs():max():item() < 1e-5)
    m.one(x):sum():backward() -- the next step sums anew
    assert(math.abs(optim:norm() - math.sqrt(6) * sum) < 1e-4)
  end)
  test('what would train wrong is refused', function()
    if g.size == 1 then return end
    local m = model()
    local function message(f)
      local ok, problem = pcall(f)
      assert(not ok)
      return tostring(problem)
    end
    m.one(ul.ones { 1, 3 }):sum():backward()
    local alone = ul.optim.sgd(m, { lr = 1 })
    assert(message(function() alone:step() end):find('this is one of ' .. g.size, 1, true))
    local optim = ul.optim.sgd(m, { lr = 1, mesh = ul.mesh() })
    optim:norm()
    m.one(ul.ones { 1, 3 }):sum():backward()
    assert(message(function() optim:step() end):find('a backward came behind', 1, true))
    local other = model(g.rank == 1 and 2 or 1)
    other.one(ul.ones { 1, 3 }):sum():backward()
    optim = ul.optim.sgd(other, { lr = 1, mesh = ul.mesh() })
    assert(message(function() optim:step() end):find("'one.weight' of rank 1 is not that of rank 0",
                                                     1, true))
    local rows = text:tokenize('bytes'):pack(7):batch(1)
    assert(message(function() rows:shard(ul.mesh()) end):find('a batch of 1 rows is too small', 1,
                                                              true))
    assert(message(function() ul.mesh { sp = g.size + 1 } end):find('ranks or a multiple', 1, true))
  end)
end

return function(test, g)
  tokens(test, g)
  batches(test, g)
  optimizers(test, g)
end
