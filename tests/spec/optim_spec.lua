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

  local function decays_and_scales(optimizer)
    local list = {}
    for i, entry in ipairs(optimizer.entries) do
      list[i] = ('%s %g %g'):format(entry.name, entry.weight_decay, entry.lr_scale)
    end
    return list
  end

  local function stack()
    local list = nn.List()
    for _ = 1, 11 do list:append(nn.Linear(2, 2, { bias = true })) end
    local Model = nn.class 'Model'
    function Model:init()
      self.embed = nn.Embedding(3, 2)
      self.layers = nn.List { list[1], list[2] }
      self.in_norm = nn.RMSNorm(2)
    end
    return Model(), list
  end

  it('groups parameters by parts of their names, the first match deciding', function()
    local model, list = stack()
    assert.same({ 'embed.weight 0 0.1', 'layers.1.weight 0.3 1', 'layers.1.bias 0 3',
                  'layers.2.weight 0.5 2', 'layers.2.bias 0 3', 'in_norm.weight 0.2 1' },
                decays_and_scales(optim.adamw(model, { weight_decay = 0.3, groups = {
                  { match = 'embed', lr_scale = 0.1 }, { match = 'bias', lr_scale = 3 },
                  { match = 'layers.2', lr_scale = 2, weight_decay = 0.5 },
                  { match = '*norm', weight_decay = 0.2 },
                } })))
    -- whole parts: 1 is not in 10 or 11
    local scaled = {}
    local sgd = optim.sgd(list, { groups = { { match = '1', lr_scale = 2 } } })
    for _, entry in ipairs(sgd.entries) do
      if entry.lr_scale == 2 then scaled[#scaled + 1] = entry.name end
    end
    assert.same({ '1.weight', '1.bias' }, scaled)
  end)

  it('scales the rate of a group', function()
    local linear = nn.Linear(1, 1, { bias = true })
    linear.weight.grad, linear.bias.grad = ul.ones(1, 1), ul.ones(1)
    linear.weight:detach():fill_(0)
    local sgd = optim.sgd(linear, { lr = 1, groups = { { match = 'bias', lr_scale = 0.25 } } })
    sgd:step()
    assert.near({ { { -1 } }, { -0.25 } }, { linear.weight:tolist(), linear.bias:tolist() })
  end)

  local function raised(f)
    local ok, message = pcall(f)
    assert.is_false(ok)
    assert.matches('^tests/spec/optim_spec.lua:%d+: ', message)
    return (message:gsub('^.-: ', ''))
  end

  it('names the parameters where a pattern matches none', function()
    local model = stack()
    local function groups(...)
      local list = { ... }
      return raised(function() optim.adamw(model, { groups = list }) end)
    end
    assert.equal("optim.adamw: group 2: 'embd' matches none of embed.weight, layers.1.weight, "
                 .. "layers.1.bias, layers.2.weight, layers.2.bias, in_norm.weight; "
                 .. "did you mean 'embed'?", groups({ match = 'bias' }, { match = 'embd' }))
    assert.equal("optim.adamw: group 2: groups before it have taken all that 'layers.1' matches",
                 groups({ match = 'layers' }, { match = 'layers.1' }))
    assert.equal("optim.adamw: group 1: no option 'pattern'", groups { pattern = 'x' })
    local _, list = stack()
    assert.matches("'x' matches none of 1.weight, 1.bias, .*3.bias and 16 more$",
                   raised(function() optim.sgd(list, { groups = { { match = 'x' } } }) end))
  end)

  it('tells parameters of several modules apart', function()
    local names = {}
    local groups = { { parameters = nn.Linear(1, 1) }, { parameters = nn.RMSNorm(1) } }
    for i, entry in ipairs(optim.adamw(groups).entries) do names[i] = entry.name end
    assert.same({ 'weight', '2.weight' }, names)
  end)

  it('refuses the same tensor twice, and what is none', function()
    local p = parameter { 1 }
    assert.equal('optim.sgd: parameter 1 and parameter 2 are one and the same',
                 raised(function() optim.sgd { p, p } end))
    assert.equal('optim.sgd: parameter 1 is a number, not a tensor',
                 raised(function() optim.sgd { 3 } end))
    for _, betas in ipairs { { 0.9 }, { 0.9, 1 }, { 'a', 0.9 }, { 0.9, 0.9, 0.9 } } do
      assert.equal('optim.adamw: betas must be two numbers from 0 to below 1',
                   raised(function() optim.adamw({ p }, { betas = betas }) end))
    end
    assert.equal('optim.sgd: momentum must lie from 0 to below 1, got 1',
                 raised(function() optim.sgd({ p }, { momentum = 1 }) end))
  end)

  it('has nothing for a frozen parameter until it gets a gradient', function()
    local p, q = parameter { 1 }, ul.tensor({ 1 }, { dtype = 'f64' })
    local function heavy(list) return optim.sgd(list, { momentum = 0.9 }) end
    for _, make in ipairs { optim.adamw, heavy } do
      local optimizer = make { p, q:requires_grad_(false) }
      local function states()
        local names = {}
        for name in optimizer:named_state() do names[#names + 1] = name:match '^(.*)%.' end
        return names
      end
      local before = states()
      for _, name in ipairs(before) do assert.equal('parameter 1', name) end
      set_gradient(p, { 1 })
      optimizer:step()
      assert.same(before, states())
      assert.near({ 1 }, q)
      q:requires_grad_()
      set_gradient(q, { 1 })
      optimizer:step()
      assert.equal(2 * #before, #states())
      assert.is_true(q:item() < 1)
      q:detach():fill_(1)
    end
  end)

  it('skips a step whose gradient or loss is not finite', function()
    for _, make in ipairs { optim.adamw, optim.sgd } do
      for _, bad in ipairs { 0 / 0, 1 / 0, -1 / 0 } do
        for _, clip in ipairs { true, false } do
          local p, q = parameter { 1, 2 }, parameter { 3 }
          local optimizer = make { p, q }
          set_gradient(p, { 1, bad })
          set_gradient(q, { 1 })
          if clip then optimizer:clip(1) end
          optimizer:step()
          assert.is_true(optimizer.skipped)
          assert.equal(0, optimizer.steps)
          assert.same({ { 1, 2 }, { 3 } }, { p:tolist(), q:tolist() })
          assert.is_nil(p.grad)
          set_gradient(p, { 1, 1 })
          optimizer:step()
          assert.is_false(optimizer.skipped)
          assert.equal(1, optimizer.steps)
          assert.is_true(p:tolist()[1] < 1)
        end
      end
    end
    local p = parameter { 1 }
    local sgd, loss = optim.sgd { p }, 0 / 0
    function sgd.loss_of_step() return loss end
    for _, skipped in ipairs { true, false } do
      set_gradient(p, { 1 })
      sgd:step()
      assert.equal(skipped, sgd.skipped)
      loss = 1
    end
  end)

  it('refuses what holds no parameters', function()
    assert.error_matches(function() optim.adamw {} end, 'optim.adamw: expected a module')
    assert.error_matches(function() optim.sgd(3) end, 'optim.sgd: expected a module')
    assert.error_matches(function() optim.adamw({ parameter { 1 } }, { rate = 1 }) end,
                         "no option 'rate'")
  end)
end)
