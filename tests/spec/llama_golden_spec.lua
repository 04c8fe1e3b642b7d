-- llama_golden_spec.lua - the first ten losses of the recipe's Llama are those of PyTorch.
local ul = require 'ulysses'
local recipe = require 'recipes.llama3'
local golden = dofile 'tests/golden/llama_losses.lua'

-- The formulas of tests/golden/make_llama.py.
local function fill(model)
  local k = 0
  for _, parameter in model:named_parameters() do
    k = k + 1
    local value, offset = parameter:data(), parameter:dim() == 1 and 1 or 0
    for i = 0, parameter:numel() - 1 do
      value[i] = 0.05 * math.sin(0.013 * i * i + 0.37 * i + k) + offset
    end
  end
end

local B, T = 3, 37

local function batch_at(step)
  local inputs, targets, n = {}, {}, 0
  for b = 1, B do
    inputs[b], targets[b] = {}, {}
    for t = 1, T + 1 do
      local i = (b - 1) * (T + 1) + t - 1
      local token = (i * i * 7 + i * 13 + step % 2 * 31) % 97
      if t <= T then inputs[b][t] = token end
      if t > 1 then
        targets[b][t - 1] = n % 11 == 0 and -100 or token
        n = n + 1
      end
    end
  end
  return ul.data.batch(ul.tensor(inputs, { dtype = 'i64' }), ul.tensor(targets, { dtype = 'i64' }))
end

local function losses(tied)
  local settings = recipe:configure {
    model = { dim = 64, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 112, tied = tied },
  }
  local model = recipe.model(settings.model)
  fill(model)
  local optim = ul.optim.adamw(model, { lr = 1e-2, betas = { 0.9, 0.95 }, weight_decay = 0.1 })
  local result = {}
  for step = 0, 9 do
    ul.scope(function()
      local batch = batch_at(step)
      model(batch):backward()
      result[step + 1] = batch:loss()
      optim:clip(1.0)
      optim:step()
    end)
  end
  return result
end

local function check(expected, actual)
  for step, loss in ipairs(expected) do
    assert.is_true(math.abs(loss - actual[step]) <= 1e-4,
                   ('step %d: loss %.7f, PyTorch has %.7f'):format(step, actual[step], loss))
  end
end

describe('llama golden #isa', function()
  it('trains as PyTorch does, head and embedding apart', function()
    check(golden.untied, losses(false))
  end)

  it('trains as PyTorch does, head and embedding tied', function()
    check(golden.tied, losses(true))
  end)
end)
