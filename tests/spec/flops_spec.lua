-- flops_spec.lua - ul.flops() counts what products and attention cost, on cpu as on meta.
local ul = require 'ulysses'
local F = ul.F

-- FLOPs of f(make), where make gives a parameter of a shape on the device.
local function flops_of(f, device, dtype)
  local before = ul.flops()
  ul.scope(function()
    f(function(...)
      return ul.ones({ ... }, { dtype = dtype or 'f32', device = device }):requires_grad_()
    end, device)
  end)
  return ul.flops() - before
end

describe('flops', function()
  it('of products are 2 m n k, and twice that for both gradients', function()
    local function both(batch)
      return function(make)
        local a, b = make(batch, 3, 5), make(5, 7)
        local y = a:matmul(b)
        y:sum():backward()
      end
    end
    assert.equal(3 * 2 * 4 * 3 * 5 * 7, flops_of(both(4), 'cpu'))
    assert.equal(0, flops_of(function(make) return make(2, 3) + make(2, 3) end, 'cpu'))
    assert.equal(2 * 3 * 5 * 7, flops_of(function(make)
      ul.no_grad(function() F.linear(make(3, 5), make(7, 5)) end)
    end, 'cpu'))
  end)

  it('of attention are those of the keys seen', function()
    local function attend(options)
      return function(make, device)
        local given = { causal = options.causal, window = options.window }
        if options.docs then
          given.docs = ul.tensor(options.docs, { dtype = 'i64', device = device })
        end
        local q, k, v = make(2, 8, 4, 16), make(2, 8, 2, 16), make(2, 8, 2, 16)
        F.attention(q, k, v, given):sum():backward()
      end
    end
    local per_pair, heads, rows = 14 * 16, 4, 2
    assert.equal(per_pair * heads * rows * 64, flops_of(attend {}, 'cpu'))
    assert.equal(per_pair * heads * rows * 36, flops_of(attend { causal = true }, 'cpu'))
    assert.equal(per_pair * heads * rows * 21,
                 flops_of(attend { causal = true, window = 3 }, 'cpu'))
    assert.equal(per_pair * heads * (36 + 2 * 10),
                 flops_of(attend { causal = true, docs = { 0, 8, 12, 16 } }, 'cpu'))
  end)

  it('on meta are those on cpu', function()
    local function head(make, device)
      local x, w = make(2, 8, 16), make(32, 16)
      local targets = ul.zeros { 2, 8, dtype = 'i64', device = device }
      F.linear_cross_entropy(x, w, targets, { tile = 5 }):backward()
    end
    for _, dtype in ipairs { 'f32', 'bf16' } do
      local on_cpu = flops_of(head, 'cpu', dtype)
      assert.equal(3 * 2 * 16 * 16 * 32, on_cpu)
      assert.equal(on_cpu, flops_of(head, 'meta', dtype))
    end
  end)

  it('per second have a peak', function()
    for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
      assert.is_true(ul.peak_flops(dtype) > 1e8)
    end
    assert.is_true(ul.peak_flops() < 1e15)
  end)
end)
