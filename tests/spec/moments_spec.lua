-- moments_spec.lua - x:var() and x:std() at their edges; cases.lua has them among all ops.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local F = ul.F

describe('variance and standard deviation', function()
  it('are what their definition says', function()
    local x = ul.tensor { { 1, 2, 3 }, { 4, 8, 12 } }
    assert.near({ 1, 16 }, x:var(2), 1e-6)
    assert.near({ 1, 4 }, F.std(x, 2), 1e-6)
    assert.near({ { 2 / 3 }, { 32 / 3 } }, F.var(x, -1, { unbiased = false, keepdim = true }),
                1e-6)
    assert.near(x:flatten():var():item(), x:var({ 1, 2 }):item(), 1e-6)
    assert.same({}, x:std().shape)
    assert.equal('bf16', x:to('bf16'):var(1):dtype())
    assert.same({ 2 }, x:to('meta'):std(2).shape)
  end)

  it('keep what is left of large values near each other', function()
    assert.near(2.5, ul.tensor { 1e6 + 1, 1e6 + 2, 1e6 + 3, 1e6 + 4, 1e6 + 5 }:var():item(), 1e-6)
    -- bf16 has no 257, which is the mean
    local x = ul.tensor({ 256, 256, 258, 258 }, { dtype = 'bf16' })
    assert.near(4 / 3, x:var():item(), 4e-3)
  end)

  it('have a gradient where all are equal', function()
    local x = ul.full({ 2, 3 }, 2):requires_grad_()
    x:std(2):sum():backward()
    assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, x.grad:tolist())
    assert.same({ 0, 0 }, x:std(2):tolist())
  end)

  it('are NaN where too few elements are', function()
    local function is_nan(x) return x:item() ~= x:item() end
    assert.is_true(is_nan(ul.ones(1):var()))
    assert.is_true(is_nan(ul.ones(1):std()))
    assert.equal(0, ul.ones(1):var(nil, { unbiased = false }):item())
    assert.is_true(is_nan(ul.ones(0):var(nil, { unbiased = false })))
    assert.is_true(is_nan(ul.tensor { 1, 0 / 0 }:std()))
  end)

  it('leave nothing behind but the result', function()
    local x = ul.randn(10, 100)
    collectgarbage()
    local before = ul.memory(home).live_tensors
    local y = x:std(2)
    assert.equal(before + 1, ul.memory(home).live_tensors)
    y:free()
  end)
end)
