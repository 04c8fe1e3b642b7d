-- recipe_spec.lua - settings: what may be overridden, and what is said otherwise.
local ul = require 'ulysses'

describe('recipe', function()
  local recipe = ul.recipe 'toy' {
    model = { dim = 4, deep = { width = 2 } }, lr = 1e-3, tied = false, name = 'a', steps = 10,
  }

  it('overrides leaves by key=value', function()
    local cfg = recipe:configure { 'model.dim=8', 'model.deep.width=3', 'lr=3e-4', 'tied=true',
                                   'name=b=c' }
    assert.same({ 8, 3, 3e-4, true, 'b=c', 10 },
                { cfg.model.dim, cfg.model.deep.width, cfg.lr, cfg.tied, cfg.name, cfg.steps })
  end)

  it('reads K, M and G as powers of two', function()
    local cfg = recipe:configure { 'steps=4K', 'model.dim=1M', 'lr=0.5K' }
    assert.same({ 4096, 1048576, 512 }, { cfg.steps, cfg.model.dim, cfg.lr })
  end)

  it('overrides by a table', function()
    local cfg = recipe:configure { model = { dim = 16 }, tied = true }
    assert.same({ 16, 2, true }, { cfg.model.dim, cfg.model.deep.width, cfg.tied })
  end)

  it('leaves the defaults alone', function()
    recipe:configure { 'model.dim=8' }
    assert.equal(4, recipe:configure().model.dim)
  end)

  local wrong = {
    ['model.dimm=3'] = "toy: no setting 'model.dimm'; did you mean 'model.dim'?",
    ['learning_rate=1'] = "toy: no setting 'learning_rate'; did you mean 'lr'?",
    ['zzzzzzzz=1'] = "toy: no setting 'zzzzzzzz'",
    ['model=3'] = 'toy: model is a table; set one of its leaves, such as model.deep.width',
    ['lr=fast'] = "toy: lr wants a number, got 'fast'",
    ['lr='] = "toy: lr wants a number, got ''",
    ['tied=1'] = "toy: tied wants a boolean, got '1'",
    ['steps'] = "toy: 'steps' is not of the form key=value",
  }
  for argument, message in pairs(wrong) do
    it('refuses ' .. argument, function()
      assert.has_error(function() recipe:configure { argument } end, message)
    end)
  end

  it('refuses to read what is not there, at the line of the reader', function()
    local cfg = recipe:configure()
    local ok, message = pcall(function() return cfg.stepz end)
    assert.is_false(ok)
    assert.matches("^tests/spec/recipe_spec.lua:%d+: toy: no setting 'stepz'; did you mean 'steps'",
                   message)
  end)

  it('does not run when required', function()
    local llama = require 'recipes.llama3'
    assert.equal('llama3', llama.name)
    assert.is_function(llama.train)
    assert.is_table(llama.model)
  end)

  it('shows its table for --help', function()
    assert.matches('rope_theta = 500000', require('recipes.llama3'):help())
  end)
end)
