-- schedule_spec.lua - learning rates by their formulas, at the edges too.
local optim = require('ulysses').optim

local function rates(name, settings, steps)
  local list = {}
  for i, step in ipairs(steps) do list[i] = optim[name](step, settings) end
  return list
end

describe('the schedule', function()
  it('rises along a line, whatever comes later', function()
    for _, name in ipairs { 'cosine', 'linear', 'wsd', 'constant' } do
      local settings = { lr = 2, warmup = 10, steps = 110, min_lr = 0.2 }
      assert.near({ 0, 0.2, 1, 2 }, rates(name, settings, { 0, 1, 5, 10 }), 1e-12)
      assert.near({ 1, 2 }, rates(name, { lr = 2, warmup = 2, steps = 9 }, { 1, 2 }), 1e-12)
    end
  end)

  local settings = { lr = 1, warmup = 10, steps = 110, min_lr = 0.2, decay = 40 }

  it('cosine falls along half a cosine', function()
    assert.near({ 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2, 0.6, 0.2, 0.2 },
                rates('cosine', settings, { 35, 60, 110, 200 }), 1e-12)
  end)

  it('linear falls along a line', function()
    assert.near({ 0.8, 0.6, 0.2, 0.2 }, rates('linear', settings, { 35, 60, 110, 200 }), 1e-12)
  end)

  it('wsd stays, then falls along a line', function()
    assert.near({ 1, 1, 1, 0.6, 0.2, 0.2 },
                rates('wsd', settings, { 11, 60, 70, 90, 110, 200 }), 1e-12)
    -- a tenth of the steps where nothing is said
    assert.near({ 1, 0.55, 0.1 }, rates('wsd', { lr = 1, steps = 100 }, { 90, 95, 100 }), 1e-12)
    -- no more than there is behind the warm-up
    assert.near({ 1, 0.55, 0.1 },
                rates('wsd', { lr = 1, steps = 10, warmup = 6, decay = 9 }, { 6, 8, 10 }), 1e-12)
    assert.near({ 1, 1, 0.1 }, rates('wsd', { lr = 1, steps = 10, decay = 0 }, { 9, 10, 11 }),
                1e-12)
  end)

  it('constant stays', function()
    assert.near({ 1, 1 }, rates('constant', settings, { 11, 300 }), 1e-12)
  end)

  it('is finite where there are few steps, or none', function()
    for _, name in ipairs { 'cosine', 'linear', 'wsd', 'constant' } do
      for _, case in ipairs { { 0, 0 }, { 1, 0 }, { 1, 1 }, { 0, 5 }, { 3, 5 }, { 5, 5 } } do
        for step = 0, 7 do
          local rate = optim[name](step, { lr = 1, steps = case[1], warmup = case[2] })
          assert.is_true(rate >= 0 and rate <= 1, name)
        end
      end
      assert.near(0.6, optim[name](3, { lr = 1, steps = 3, warmup = 5 }), 1e-12)
    end
    assert.near(1, optim.cosine(1, { lr = 1, steps = 10, warmup = 1 }), 1e-12)
    assert.near(0.1, optim.cosine(1, { lr = 1, steps = 1 }), 1e-12)
  end)

  it('reads the settings of a recipe', function()
    local recipe = require('ulysses').recipe 'r' { lr = 1, steps = 10 }
    assert.near(0.1, optim.cosine(10, recipe:configure()), 1e-12)
  end)

  it('says what is missing or wrong, at the line of the caller', function()
    local function raised(...)
      local arguments = { ... }
      local ok, message = pcall(function() optim.wsd(unpack(arguments)) end)
      assert.is_false(ok)
      return (message:gsub('^tests/spec/schedule_spec.lua:%d+: ', ''))
    end
    assert.equal('optim.wsd: the settings need a number lr', raised(1, { steps = 1 }))
    assert.equal('optim.wsd: the settings need a number steps', raised(1, { lr = 1 }))
    assert.equal('optim.wsd: the settings need a number lr', raised(1))
    assert.equal('optim.wsd: the settings need a number warmup',
                 raised(1, { lr = 1, steps = 1, warmup = 'x' }))
    assert.equal('optim.wsd: min_lr 2 is above lr 1', raised(1, { lr = 1, steps = 1, min_lr = 2 }))
    assert.equal('optim.wsd: lr must not be negative, got -1', raised(1, { lr = -1, steps = 1 }))
    assert.equal('optim.wsd: the step must be a number', raised(nil, { lr = 1, steps = 1 }))
  end)
end)
