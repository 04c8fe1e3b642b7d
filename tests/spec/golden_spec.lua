-- golden_spec.lua - every op gives PyTorch's values and gradients (tests/golden/make_ops.py).
local ul = require 'ulysses'
local cases = require 'tests.cases'

local function compare(what, expected, actual, tolerance)
  assert.same(expected.shape, actual.shape, what)
  local got = actual:flatten():to('f64'):tolist()
  local values = {}
  for i = 1, #expected do values[i] = expected[i] end
  assert.near(values, got, tolerance)
end

local function check(case, dtype, tolerance)
  local inputs, expected = {}, case.golden
  for i, spec in ipairs(case.inputs) do
    inputs[i] = cases.make(spec)
    if cases.is_float(spec) then inputs[i] = inputs[i]:to(dtype) end
    if spec.grad then inputs[i]:requires_grad_() end
  end
  local outputs = cases.results(case.call(unpack(inputs)))
  assert.equal(#expected.outputs, #outputs)
  local heads, seeds = {}, {}
  for i, y in ipairs(outputs) do
    local whole = not y:dtype():find 'f'
    compare('output ' .. i, expected.outputs[i], y, whole and 0 or tolerance)
    if y.requires_grad then
      heads[#heads + 1], seeds[#seeds + 1] = y, cases.seed(y):to(y)
    end
  end
  if #heads > 0 then ul.backward(heads, seeds) end
  for i, x in ipairs(inputs) do
    local grad = expected.grads[i]
    if grad then compare('gradient ' .. i, grad, x.grad or ul.zeros_like(x), tolerance) end
  end
end

describe('golden', function()
  local used = {}
  for _, case in ipairs(cases.list) do
    if case.golden then
      used[case.name] = true
      it(case.name, function()
        ul.scope(function()
          check(case, 'f64', case.name == 'cast' and 1e-7 or 1e-9)
          check(case, 'f32', 1e-5 * (case.loose or 1))
        end)
      end)
    end
  end

  it('leaves no value out', function()
    for name in pairs(cases.golden) do assert.is_true(used[name], name) end
  end)
end)
