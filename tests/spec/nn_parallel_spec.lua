-- nn_parallel_spec.lua - layers whose weights ranks share, as one rank of a pretended world.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local nn = ul.nn

local function of_rank(rank, size) return ul.group { pretend = size, rank = rank } end

local function message(f, ...)
  local ok, problem = pcall(f, ...)
  assert.is_false(ok)
  return tostring(problem)
end

describe('shared layers', function()
  it('are nn.Linear where there is nobody to share with', function()
    local x, share = ul.randn(2, 5, 4), nn.head_shares(ul.group(), 2, 1)
    ul.manual_seed(1)
    local linear = nn.Linear(4, 6)
    for _, given in ipairs { {}, { group = ul.group() }, { share = share } } do
      for _, class in ipairs { nn.ColumnLinear, nn.RowLinear } do
        ul.manual_seed(1)
        local layer = class(4, 6, given)
        assert.same(linear(x):tolist(), layer(x):tolist())
        assert.is_nil(layer.parallel)
      end
    end
  end)

  it('have parts of rows and of columns #cpu', function() -- one elsewhere says where
    local g = of_rank(1, 3)
    local column = nn.ColumnLinear(4, 7, { group = g, bias = true })
    assert.same({ 2, 4 }, { column.weight:size() })
    assert.same({ 2 }, { column.bias:size() })
    local row = nn.RowLinear(7, 4, { group = g, bias = true })
    assert.same({ 4, 2 }, { row.weight:size() })
    assert.same({ 4 }, { row.bias:size() })
    assert.equal(7 * 4 + 7, column:n_parameters())
    assert.equal('ColumnLinear 4 -> 7, 2 of them here  (35)', tostring(column))
    assert.equal('RowLinear 7, 2 of them here -> 4  (32)', tostring(row))
    assert.equal('ColumnLinear 4 -> 7  (28)', tostring(nn.ColumnLinear(4, 7)))
  end)

  it('take whole kv heads, or the query heads of one', function()
    local function shapes(rank, size, heads, kv_heads)
      local q, kv = nn.head_shares(of_rank(rank, size), heads, kv_heads)
      return { q.sizes[rank + 1], kv.sizes[rank + 1], kv.first, kv.is_whole }
    end
    assert.same({ 12, 3, 1, false }, shapes(0, 3, 32, 8))
    assert.same({ 8, 2, 7, false }, shapes(2, 3, 32, 8))
    assert.same({ 4, 1, 8, false }, shapes(7, 8, 32, 8))
    assert.same({ 2, 1, 2, true }, shapes(3, 16, 32, 8)) -- a kv head for 2 ranks
    assert.same({ 1, 1, 1, true }, shapes(3, 4, 5, 1))
    local q, kv = nn.head_shares(of_rank(3, 4), 8, 2)
    local wk = nn.ColumnLinear(6, 2 * 5, { share = kv })
    assert.same({ 10, 6 }, { wk.weight:size() })
    assert.same({ 6, 5 }, wk.rows)
    assert.same({ 2 * 5, 6 }, { nn.ColumnLinear(6, 8 * 5, { share = q }).weight:size() })
  end)

  it('count what they send on meta', function()
    local g = of_rank(0, 4)
    ul.set_default_device 'meta'
    local column, row = nn.ColumnLinear(8, 16, { group = g }), nn.RowLinear(16, 8, { group = g })
    local y = row(column(ul.zeros(1, 5, 8)))
    ul.set_default_device(home)
    assert.same({ 1, 5, 8 }, { y:size() })
    assert.equal(3 * 5 * 8 * 4, g:counts().all_gather.bytes)
    assert.equal(3 * 5 * 8 * 4, g:counts().reduce_scatter.bytes)
  end)

  it('refuse what does not go', function()
    local g = of_rank(1, 2)
    local q, kv = nn.head_shares(of_rank(1, 4), 8, 2)
    assert.equal('tp = 3 does not go with 8 heads that read 2 kv heads: it may be 1, 2, 4, 6 or 8',
                 message(nn.head_shares, of_rank(0, 3), 8, 2))
    assert.equal('tp = 4 does not go with 3 heads that read 1 kv heads: it may be 1, 2 or 3',
                 message(nn.head_shares, of_rank(0, 4), 3, 1))
    assert.matches('nn.head_shares: 8 heads do not share 3 kv heads equally',
                   message(nn.head_shares, g, 8, 3))
    assert.matches('nn.ColumnLinear: 20 outputs are no multiple of 8 heads',
                   message(nn.ColumnLinear, 4, 20, { share = q }))
    assert.matches('nn.RowLinear: these are kv heads on several ranks',
                   message(nn.RowLinear, 20, 4, { share = kv }))
    assert.matches("nn.ColumnLinear: no option 'gruop'; did you mean 'group'?",
                   message(nn.ColumnLinear, 4, 4, { gruop = g }), 1, true)
    local layer = nn.ColumnLinear(4, 4, { group = g })
    assert.matches('nn.columns: expected nn.ColumnLinear, got a number %(argument 3%)',
                   message(nn.columns, ul.ones(1, 2, 4), layer, 3))
    assert.matches('nn.columns: the layers are of several groups',
                   message(nn.columns, ul.ones(1, 2, 4), layer, nn.ColumnLinear(4, 4)))
    assert.matches('nn.columns: one to four layers go, not 0', message(nn.columns, ul.ones(1, 4)))
    assert.matches('nn.columns: x must be a tensor', message(layer, ul.ones(4)))
    assert.matches('nn.RowLinear: x must be a tensor',
                   message(nn.RowLinear(4, 4, { group = g }), ul.ones(2)))
  end)

  it('outlive each allocation that fails', function()
    local g, live = ul.group(), function() return ul.memory(home).live end
    local leaves = { ul.randn(2, 3, 4):transpose(1, 2), ul.randn(5, 4), ul.randn(4, 6):t() }
    for _, leaf in ipairs(leaves) do leaf:requires_grad_() end
    for _, keep in ipairs { false, true } do
      local function step()
        ul.scope(function()
          local a, b = g:gather_linear(leaves[1], { leaves[2], leaves[3] }, { keep = keep })
          ul.backward({ a, b }, { a:detach(), b:detach() })
        end)
      end
      local function clear()
        for _, leaf in ipairs(leaves) do leaf.grad = nil end
        collectgarbage()
        collectgarbage()
      end
      step()
      clear()
      local before, count = live(), ul.debug.allocations()
      step()
      count = ul.debug.allocations() - count
      for n = 1, count do
        clear()
        ul.debug.fail_allocation(n)
        local ok, problem = pcall(step)
        ul.debug.fail_allocation(0)
        assert.is_false(ok, ('allocation %d of %d'):format(n, count))
        assert.matches('out of memory', tostring(problem))
        clear()
        assert.equal(before, live(), ('allocation %d of %d leaks'):format(n, count))
      end
    end
  end)

  it('load wholes', function()
    local part = nn.RowLinear(5, 2, { group = of_rank(1, 2) })
    local whole = ul.randn(2, 5)
    part:load { weight = whole }
    assert.same(whole:narrow(2, 4, 2):tolist(), part.weight:tolist())
    assert.matches("load: 'weight' is %[2, 2%], the parameter is %[2, 5%]",
                   message(part.load, part, { weight = ul.ones(2, 2) }))
  end)
end)
