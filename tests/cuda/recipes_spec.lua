-- recipes_spec.lua - the recipes train on cuda as they do on the cpu: ten steps of each.
local ul = require 'ulysses'

local there, why = pcall(ul.zeros, 1, { device = 'cuda' })

local STEPS = 10
local small = { 'model.dim=32', 'model.n_layers=2', 'model.n_heads=4', 'model.n_kv_heads=2',
                'model.ffn=48', 'seq_len=24', 'batch=2', 'accumulate=2', 'warmup=2', 'out=',
                'sample=1', 'held_out=0.1' }
local further = { llama3 = {}, mistral = { 'model.head_dim=6', 'model.window=5' } }

-- The training loop of a recipe, to its end; what it prints is no matter here.
local function train(name, dtype, device, path)
  local recipe = require('recipes.' .. name)
  local settings = { 'data=' .. path, 'dtype=' .. dtype, 'steps=' .. STEPS }
  for _, list in ipairs { small, further[name] } do
    for _, setting in ipairs(list) do settings[#settings + 1] = setting end
  end
  local before, print_before = ul.default_device(), print
  ul.set_default_device(device)
  _G.print = function() end
  local ok, model, run = pcall(function() return recipe.train(recipe:configure(settings)) end)
  _G.print = print_before
  ul.set_default_device(before)
  if not ok then error(model, 0) end
  for parameter_name, parameter in model:named_parameters() do
    assert.equal(device:match '^%a+', parameter:device():match '^%a+', parameter_name)
  end
  return model, run.losses
end

describe('on cuda', function()
  if not there then
    pending('is not here: ' .. tostring(why))
    return
  end
  local path

  before_each(function()
    path = os.tmpname()
    local file = assert(io.open(path, 'w'))
    for i = 1, 60 do
      file:write(('line %d of %d, %s\n'):format(i, i * i % 17, ('ab'):rep(i % 5)))
    end
    file:close()
  end)
  after_each(function() os.remove(path) end)

  -- Losses, and how far the weights have come apart relative to the largest.
  local bounds = { f32 = { 1e-5, 2e-4 }, bf16 = { 2e-2, 5e-2 } }
  for name in pairs(further) do
    for dtype, bound in pairs(bounds) do
      it(('%s takes ten steps as on the cpu, in %s'):format(name, dtype), function()
        local expected, losses = train(name, dtype, 'cpu', path)
        local model, found = train(name, dtype, 'cuda', path)
        assert.equal(STEPS, #found)
        assert.near(losses, found, bound[1])
        assert.is_true(losses[STEPS] < losses[1])
        local state = model:state()
        for key, weight in pairs(expected:state()) do
          local one, other = weight:detach():to 'f64', state[key]:detach():to('cpu', 'f64')
          local gap = (one - other):abs():max():item()
          assert.is_true(gap <= bound[2] * math.max(1, one:abs():max():item()),
                         ('%s: apart by %.3g'):format(key, gap))
        end
      end)
    end
  end
end)
