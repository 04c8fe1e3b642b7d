-- recipes_golden_spec.lua - the recipes' models compute what transformers computes: logits, every
-- gradient, and the losses of 20 steps of training, in f32, f64 and bf16.
local ul = require 'ulysses'
local golden = dofile 'tests/golden/recipes.lua'

-- The formulas of tests/golden/make_recipes.py.
local VOCAB, B, T, STEPS, SUMS = 67, 3, 41, 20, 12
local DOCUMENTS = { 9, 30, 1, 17, 44, 5, 11, 3, 20 }
local sizes = {
  llama3 = { vocab = VOCAB, dim = 64, n_layers = 2, n_heads = 8, n_kv_heads = 2, ffn = 96,
             rope_theta = 500000 },
  mistral = { vocab = VOCAB, dim = 48, n_layers = 2, n_heads = 6, n_kv_heads = 3, head_dim = 12,
              window = 7, ffn = 96, rope_theta = 10000 },
}

local function new_model(case, dtype)
  local recipe = require('recipes.' .. case.recipe)
  local settings = recipe:configure({ model = sizes[case.recipe] }).model
  settings.tied = case.tied
  local model, k = recipe.model(settings):to 'f64', 0
  for _, parameter in model:named_parameters() do
    k = k + 1
    local here = parameter:detach():to 'cpu'
    local value, offset = here:data(), parameter:dim() == 1 and 1 or 0
    for i = 0, parameter:numel() - 1 do
      value[i] = 0.15 * math.sin(0.013 * i * i + 0.37 * i + k) + offset
    end
    ul.no_grad(function() parameter:copy_(here:to(parameter:device())) end)
  end
  return model:to(dtype)
end

local function plain_batch(step)
  local inputs, targets, n = {}, {}, 0
  for b = 1, B do
    inputs[b], targets[b] = {}, {}
    for t = 1, T + 1 do
      local i = (b - 1) * (T + 1) + t - 1
      local token = (i * i * 7 + i * 13 + step % 2 * 31) % VOCAB
      if t <= T then inputs[b][t] = token end
      if t > 1 then
        targets[b][t - 1] = n % 11 == 0 and -100 or token
        n = n + 1
      end
    end
  end
  return ul.data.batch(ul.tensor(inputs, { dtype = 'i64' }), ul.tensor(targets, { dtype = 'i64' }))
end

-- Through the data pipeline, which sets the end tokens, the labels and the positions itself.
local letters = { vocab = VOCAB, eos = VOCAB - 1, pad = VOCAB - 2,
                  count = ul.data.bytes.count, encode_into = ul.data.bytes.encode_into }

local function packed_batch(step)
  local documents = {}
  for d, length in ipairs(DOCUMENTS) do
    local bytes = {}
    for i = 0, length - 1 do
      bytes[i + 1] = string.char((i * i * 7 + i * 13 + (d - 1) * 5 + step % 2 * 31) % (VOCAB - 2))
    end
    documents[d] = table.concat(bytes)
  end
  return ul.data.from(documents):tokenize(letters):pack(T):batch(B):at(1)
end

local function batch_at(case, step)
  return (case.packed and packed_batch or plain_batch)(step)
end

-- How far a tensor is from what the file keeps of it: the errors of its sums over its norm, and of
-- its elements over the largest one.
local function gap(tensor, kept)
  local n, norm, largest = tensor:numel(), kept[1], kept[2]
  local value, worst = tensor:detach():to('cpu', 'f64'):contiguous():data(), 0
  for j = 0, SUMS - 1 do
    local sum = 0
    for i = 0, n - 1 do
      sum = sum + value[i] * math.sin(0.017 * i * i + (0.71 + 0.13 * j) * i + j)
    end
    worst = math.max(worst, math.abs(sum - kept[3 + j]) / norm)
  end
  local samples = #kept - 2 - SUMS
  for s = 0, samples - 1 do
    local i = samples < n and s * 7919 % n or s
    worst = math.max(worst, math.abs(value[i] - kept[3 + SUMS + s]) / largest)
  end
  return worst
end

local function check(what, distance, bound)
  assert.is_true(distance <= bound, ('%s: apart by %.3g, %g allowed'):format(what, distance, bound))
end

local function check_logits(case, dtype, bound)
  local model, batch = new_model(case, dtype), batch_at(case, 0)
  local hidden = model:hidden(batch.inputs, batch.positions, batch.docs)
  check('logits', gap(ul.F.linear(hidden, model.head.weight), case.logits), bound)
  if not case.packed then check('logits', gap(model:logits(batch.inputs), case.logits), bound) end
end

local function check_gradients(case, dtype, parts, bound)
  local model = new_model(case, dtype)
  for micro in batch_at(case, 0):micros(parts) do model(micro):backward() end
  local k = 0
  for name, parameter in model:named_parameters() do
    k = k + 1
    check(name, gap(parameter.grad, case.grads[k]), bound)
  end
  assert.equal(#case.grads, k)
end

local function check_training(case, dtype, parts, bound)
  local model = new_model(case, dtype)
  local optim = ul.optim.adamw(model, { betas = { 0.9, 0.95 }, weight_decay = 0.1 })
  for step = 0, STEPS - 1 do
    ul.scope(function()
      local batch = batch_at(case, step)
      for micro in batch:micros(parts) do model(micro):backward() end
      check('loss of step ' .. step + 1, math.abs(batch:loss() - case.losses[step + 1]), bound)
      optim.lr = 1e-2 * (1 - step / (2 * STEPS))
      optim:clip(1.0)
      optim:step()
    end)
  end
end

-- Logits, gradients, losses. f64 shows that what is left of f32 is rounding, and no more than the
-- digits of the file. The losses of bf16 rest on f32 copies of its weights.
local bounds = {
  f32 = { 1e-5, 2e-5, 1e-4 }, f64 = { 1e-10, 1e-10, 1e-10 }, bf16 = { 4e-2, 1e-1, 6e-2 },
}

for _, case in ipairs(golden) do
  local name = ('recipes golden: %s%s%s #isa'):format(
    case.recipe, case.tied and ', tied' or '', case.packed and ', packed' or '')
  describe(name, function()
    for dtype, bound in pairs(bounds) do
      it('has the logits, in ' .. dtype, function() check_logits(case, dtype, bound[1]) end)

      it('has every gradient, in ' .. dtype, function()
        check_gradients(case, dtype, 1, bound[2])
        check_gradients(case, dtype, 3, bound[2])
      end)

      -- minutes under emulation, where tests/cuda/recipes_spec.lua takes ten steps
      it('trains the same way #cpu, in ' .. dtype, function()
        check_training(case, dtype, dtype == 'f64' and 3 or 1, bound[3])
      end)
    end
  end)
end
