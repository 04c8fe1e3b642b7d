-- nn_cast_spec.lua - model:to(): what is cast or moved, and when memory is free again.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local nn = ul.nn

local N = 64 * 1024 -- numbers in a weight

local Pair = nn.class 'Pair'
function Pair:init()
  self.one = nn.Linear(256, N / 256)
  self.two = nn.Linear(256, N / 256)
  self.tied = nn.Linear(256, N / 256)
  self.tied.weight = self.one.weight
  self.table = ul.ones(N)
end

-- Live bytes while nothing is collected.
local function live() return ul.memory(home).live end

describe('model:to', function()
  before_each(function()
    collectgarbage()
    collectgarbage()
    collectgarbage 'stop'
  end)
  after_each(function() collectgarbage 'restart' end)

  it('frees at once what it replaces', function()
    local model = Pair()
    local before = live()
    ul.reset_peak_memory()
    model:to 'bf16'
    assert.equal(before - 2 * N * 2, live()) -- two weights of half the size; the buffer stays
    assert.is_true(ul.memory(home).peak <= before + 2 * N + 4096)
    model:to 'f32'
    assert.equal(before, live())
    model:to 'meta'
    assert.equal(before - 3 * 4 * N, live())
  end)

  it('drops gradients of the old dtype', function()
    local model = Pair()
    local before = live()
    ul.scope(function() model.one(ul.ones(1, 256)):sum():backward() end)
    assert.equal(before + 4 * N, live())
    model:to 'bf16'
    assert.equal(before - 2 * N * 2, live())
    assert.is_nil(model.one.weight.grad)
  end)

  it('changes what is tied, and what is held elsewhere, with the model', function()
    local model, other = Pair(), nn.Linear(256, N / 256)
    other.weight = model.two.weight
    local held = model.one.weight
    local view = ul.no_grad(function() return held:narrow(1, 1, 2) end)
    local first = view[1][1]:item()
    model:to 'bf16'
    assert.equal(held, model.one.weight)
    assert.equal(held, model.tied.weight)
    assert.equal('bf16', held:dtype())
    assert.is_true(held.requires_grad and held.is_leaf)
    assert.equal('bf16', other.weight:dtype())
    assert.equal('f32', model.table:dtype())
    assert.equal('f32', view:dtype()) -- a view keeps the values it shows
    assert.equal(first, view[1][1]:item())
    assert.equal(2, #model:parameters())
  end)

  it('keeps in a scope what the model holds', function()
    local model = Pair()
    ul.scope(function() model:to { dtype = 'f64', device = home } end)
    assert.equal('f64', model.one.weight:dtype())
    assert.same({ 1, N / 256 }, { model.one(ul.ones(1, 256, { dtype = 'f64' })):size() })
  end)

  it('leaves frozen what was, and the tape its values', function()
    local model = Pair()
    model:freeze 'two'
    local x = ul.randn(1, 256):requires_grad_()
    local y = model.two(x)
    local weight = model.two.weight:clone()
    model:to 'bf16'
    assert.is_false(model.two.weight.requires_grad)
    y:sum():backward()
    assert.near(weight:sum(1):tolist(), x.grad:view(-1):tolist(), 1e-5)
  end)

  it('is told to an optimizer that was made before', function()
    for _, target in ipairs { 'bf16', 'meta' } do
      local model = nn.Linear(2, 2)
      local optim = ul.optim.adamw(model)
      model:to(target)
      local x = ul.ones(1, 2, { dtype = model.weight:dtype(), device = model.weight:device() })
      model(x):sum():backward()
      for _, f in ipairs { optim.step, optim.norm, optim.clip } do
        assert.error_matches(function() f(optim, 1) end,
                             "optim: 'weight' was cast or moved by :to%(%) after the optimizer was "
                             .. 'made; make it afterwards')
      end
    end
  end)
end)
