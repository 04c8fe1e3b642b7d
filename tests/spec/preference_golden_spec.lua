-- preference_golden_spec.lua - DPO's loss and gradients are those of TRL's trainer on a few pairs.
local models = require 'tests.hf_models'
local ul = require 'ulysses'

-- Of the model 'llama3', with 'linear' as the reference and beta = 0.5; made by make_dpo.py.
local golden = dofile 'tests/golden/dpo.lua'
local LENGTH, END, IGNORE = 16, 2, -100

-- A row of a prompt and an answer; letters are ids from 1, and the answer is what counts.
local function row_of(prompt, answer)
  local ids, labels = {}, {}
  for i = 1, #prompt do ids[i] = prompt:byte(i) - 64 end
  for i = 1, #answer do ids[#prompt + i] = answer:byte(i) - 64 end
  ids[#ids + 1] = END
  for i = 1, LENGTH do labels[i] = i >= #prompt and i < #ids and ids[i + 1] or IGNORE end
  for i = #ids + 1, LENGTH do ids[i] = 0 end
  return ids, labels
end

local function batch_of(pairs_of_answers)
  local inputs, targets, n = {}, {}, #pairs_of_answers
  for i, pair in ipairs(pairs_of_answers) do
    inputs[i], targets[i] = row_of(pair.prompt, pair.chosen)
    inputs[n + i], targets[n + i] = row_of(pair.prompt, pair.rejected)
  end
  local function i64(rows) return ul.tensor(rows, { dtype = 'i64', device = 'cpu' }) end
  local batch = ul.data.batch(i64(inputs), i64(targets))
  batch.inputs, batch.targets = batch.inputs:to(ul.default_device()),
    batch.targets:to(ul.default_device())
  batch.positions = batch.positions:to(ul.default_device())
  return batch
end

describe('DPO', function()
  local folder
  setup(function() folder = models.new_folder() end)
  teardown(function() models.remove(folder) end)

  it('computes the loss of TRL and its gradients', function()
    local policy = ul.hf.load(models.make(folder, 'llama3'), { tokenizer = false })
    local reference = ul.hf.load(models.make(folder, 'linear'), { tokenizer = false })
    local batch, n = batch_of(golden.pairs), #golden.pairs
    local function scores(model)
      local sums = ul.preference.log_probs(model, batch)
      return { chosen = sums:narrow(1, 1, n), rejected = sums:narrow(1, n + 1, n) }
    end
    local before = ul.no_grad(scores, reference)
    local after = scores(policy)
    local loss, seen = ul.preference.dpo(after, before, { beta = 0.5 })
    assert.near(golden.loss, loss:item(), 1e-5)
    assert.near(golden.margin, seen.margin, 1e-5)
    assert.near(golden.accuracy, seen.accuracy, 1e-6)
    assert.near(golden.chosen, 0.5 * (after.chosen - before.chosen):mean():item(), 1e-5)
    loss:backward()
    local gradients = {}
    for _, p in ipairs(policy:parameters()) do gradients[#gradients + 1] = p.grad end
    assert.near(golden.norm, ul.global_norm(gradients), 1e-4 * golden.norm)
  end)
end)
