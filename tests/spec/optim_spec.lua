-- optim_spec.lua - optimizers step by their formulas; schedules; which parameters decay.
local ul = require 'ulysses'
local nn, optim = ul.nn, ul.optim

local function parameter(values, dtype)
  return ul.tensor(values, { dtype = dtype or 'f64' }):requires_grad_()
end

local function set_gradient(p, values) p.grad = ul.tensor(values, { dtype = 'f64' }) end

describe('optim', function()
  it('takes AdamW steps', function()
    local p, g = parameter { { 1, -2 } }, { 0.5, -0.25 }
    local adam = optim.adamw({ p }, { lr = 0.1, betas = { 0.9, 0.99 }, eps = 1e-6,
                                      weight_decay = 0.2 })
    local x, m, v = { 1, -2 }, { 0, 0 }, { 0, 0 }
    for step = 1, 3 do
      set_gradient(p, { g })
      adam:step()
      for i = 1, 2 do
        m[i], v[i] = 0.9 * m[i] + 0.1 * g[i], 0.99 * v[i] + 0.01 * g[i] ^ 2
        local rate = m[i] / (1 - 0.9 ^ step) / (math.sqrt(v[i] / (1 - 0.99 ^ step)) + 1e-6)
        x[i] = x[i] - 0.1 * 0.2 * x[i] - 0.1 * rate
      end
      assert.near({ x }, p, 1e-12)
      assert.is_nil(p.grad)
    end
  end)

  it('takes SGD steps with momentum', function()
    local p = parameter { 1, 2 }
    local sgd = optim.sgd({ p }, { lr = 0.1, momentum = 0.9 })
    local x, u = { 1, 2 }, { 0, 0 }
    for _ = 1, 3 do
      set_gradient(p, { 1, -1 })
      sgd:step()
      for i, g in ipairs { 1, -1 } do
        u[i] = 0.9 * u[i] + g
        x[i] = x[i] - 0.1 * u[i]
      end
      assert.near(x, p, 1e-12)
    end
  end)

  it('passes over parameters without a gradient', function()
    local p, q = parameter { 1 }, parameter { 1 }
    local sgd = optim.sgd({ p, q }, { lr = 1 })
    set_gradient(p, { 0.5 })
    sgd:step()
    assert.near({ 0.5 }, p)
    assert.near({ 1 }, q)
  end)

  it('clips the norm over all gradients and returns what it was', function()
    local p, q = parameter { 0, 0 }, parameter { 0 }
    local sgd = optim.sgd({ p, q })
    set_gradient(p, { 3, 0 })
    set_gradient(q, { 4 })
    assert.near(5, sgd:norm(), 1e-12)
    assert.near(5, sgd:clip(1), 1e-12)
    assert.near(1, sgd:norm(), 1e-5)
    assert.near(1, sgd:clip(10), 1e-5)
  end)

  it('keeps a wide copy of bf16 parameters', function()
    local p = parameter({ 1 }, 'bf16')
    local sgd = optim.sgd({ p }, { lr = 1e-4 })
    for _ = 1, 100 do
      p.grad = ul.tensor({ 1 }, { dtype = 'f32' })
      sgd:step()
    end
    assert.near({ 0.99 }, p, 5e-3)
  end)

  it('decays matrices only, unless told otherwise', function()
    local Model = nn.class 'Model'
    function Model:init()
      self.embed = nn.Embedding(3, 2)
      self.norm = nn.RMSNorm(2)
      self.linear = nn.Linear(2, 2, { bias = true })
    end
    local model = Model()
    local function decays(optimizer)
      local list = {}
      for i, entry in ipairs(optimizer.entries) do list[i] = entry.weight_decay end
      return list
    end
    assert.same({ 0, 0, 0.3, 0 }, decays(optim.adamw(model, { weight_decay = 0.3 })))
    local groups = optim.adamw {
      { parameters = model.linear, weight_decay = 0.5, lr_scale = 2 },
      { parameters = { model.norm.weight }, weight_decay = 0 },
    }
    assert.same({ 0.5, 0.5, 0 }, decays(groups))
    assert.equal(2, groups.entries[1].lr_scale)
  end)

  it('schedules', function()
    local settings = { lr = 1, warmup = 10, steps = 110, min_lr = 0.2 }
    for name, halfway in pairs { cosine = 0.6, linear = 0.6 } do
      assert.near(0.1, optim[name](1, settings), 1e-12)
      assert.near(1, optim[name](10, settings), 1e-12)
      assert.near(halfway, optim[name](60, settings), 1e-12)
      assert.near(0.2, optim[name](110, settings), 1e-12)
      assert.near(0.2, optim[name](200, settings), 1e-12)
    end
    assert.near(0.1, optim.cosine(5, { lr = 1, steps = 5 }), 1e-12)
    assert.error_matches(function() optim.cosine(1, { steps = 1 }) end, 'need lr and steps')
  end)

  it('refuses what holds no parameters', function()
    assert.error_matches(function() optim.adamw {} end, 'optim.adamw: expected a module')
    assert.error_matches(function() optim.sgd(3) end, 'optim.sgd: expected a module')
    assert.error_matches(function() optim.adamw({ parameter { 1 } }, { rate = 1 }) end,
                         "no option 'rate'")
  end)
end)
