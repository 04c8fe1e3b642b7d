-- preference_spec.lua - log-probabilities of rows, and DPO's loss against its formula.
local models = require 'tests.hf_models'
local ul = require 'ulysses'

local parent

local function softplus(x) return math.log(1 + math.exp(x)) end

describe('preference', function()
  setup(function() parent = models.new_folder() end)
  teardown(function() models.remove(parent) end)

  it('scores the labels of each row', function()
    local model = ul.hf.load(models.make(parent, 'qwen3'), { dtype = 'f64' })
    local batch = models.batch()
    local logits = ul.no_grad(model.logits, model, batch.inputs):log_softmax(-1):tolist()
    local targets, expected = batch.targets:tolist(), {}
    for b = 1, models.B do
      expected[b] = 0
      for t, id in ipairs(targets[b]) do
        if id >= 0 then expected[b] = expected[b] + logits[b][t][id + 1] end
      end
    end
    local scores = ul.preference.log_probs(model, batch)
    for b = 1, models.B do assert.near(expected[b], scores:tolist()[b], 1e-9) end
    -- the gradient of their sum is that of the loss
    ;(-scores:sum() / batch.denominator):backward()
    local other = ul.hf.load(parent .. '/qwen3', { dtype = 'f64' })
    other(models.batch()):backward()
    local state = other:state()
    for name, parameter in model:named_parameters() do
      assert.near(0, (parameter.grad - state[name].grad):abs():max():item(), 1e-12, name)
    end
  end)

  it('keeps one gradient of the head for all rows', function()
    local B, T, C, V = 8, 4, 16, 2000
    local home = ul.default_device()
    local head = 4 * V * C
    local weight = ul.randn(V, C):requires_grad_()
    local x = ul.randn(B, T, C):requires_grad_()
    local model = { hidden = function() return x * 1 end, head = { weight = weight } }
    local ids = ul.zeros(B, T, { dtype = 'i64' })
    local batch, begin = { inputs = ids, targets = ids }, ul.memory(home).live
    local function step()
      ul.reset_peak_memory()
      local scores = ul.preference.log_probs(model, batch)
      assert.is_true(ul.memory(home).live - begin < head)
      scores:sum():backward()
      assert.is_true(ul.memory(home).peak - begin < 4 * head)
    end
    ul.scope(step)
    assert.error_matches(function() ul.preference.log_probs('x', batch) end, 'expected a model')
    assert.error_matches(function() ul.preference.log_probs(model, 5) end, 'expected a batch')
  end)

  it('has the loss of DPO', function()
    local function list(values) return ul.tensor(values, { dtype = 'f64' }) end
    local pc, pr = { -12, -3, -700 }, { -15, -2, -2 }
    local rc, rr = { -13, -4, -30 }, { -14, -4, -20 }
    for _, smoothing in ipairs { 0, 0.2 } do
      local chosen = list(pc):requires_grad_()
      local expected, slopes, right = 0, {}, 0
      for i = 1, 3 do
        local d = 0.5 * (pc[i] - pr[i] - (rc[i] - rr[i]))
        expected = expected + ((1 - smoothing) * softplus(-d) + smoothing * softplus(d)) / 3
        local s = 1 / (1 + math.exp(-d))
        slopes[i] = 0.5 * (smoothing * s - (1 - smoothing) * (1 - s)) / 3
        right = right + (d > 0 and 1 / 3 or 0)
      end
      local loss, seen = ul.preference.dpo({ chosen = chosen, rejected = list(pr) },
        { chosen = list(rc), rejected = list(rr) }, { beta = 0.5, smoothing = smoothing })
      assert.near(expected, loss:item(), 1e-9)
      assert.near(expected, seen.loss, 1e-9)
      assert.near(right, seen.accuracy, 1e-6)
      loss:backward()
      for i = 1, 3 do assert.near(slopes[i], chosen.grad:tolist()[i], 1e-12) end
    end
    assert.error_matches(function() ul.preference.dpo({}, {}) end, 'expected { chosen', 1, true)
    assert.error_matches(function()
      local side = { chosen = list(pc), rejected = list(pr) }
      ul.preference.dpo(side, side, { beta = 0 })
    end, 'beta must be above 0')
  end)

  it('has a reference in the model without its adapters', function()
    local folder = models.make(parent, 'llama32')
    local plain, model = ul.hf.load(folder), ul.lora.add((ul.hf.load(folder)))
    ul.no_grad(function()
      for name, p in model:named_parameters() do
        if name:find 'lora_b' then p:normal_(0, 0.1) end
      end
    end)
    local function score(m)
      return ul.no_grad(ul.preference.log_probs, m, models.batch()):tolist()
    end
    assert.same(score(plain), ul.lora.without(model, score, model))
    assert.is_false(pcall(assert.same, score(plain), score(model)))
    assert.error_matches(function() ul.lora.without(model, error, 'no luck') end, 'no luck')
    assert.is_false(pcall(assert.same, score(plain), score(model)))
  end)
end)
