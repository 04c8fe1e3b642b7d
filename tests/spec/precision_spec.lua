-- precision_spec.lua - every op in f32 and bf16 against f64 of the same rounded inputs.
local ffi = require 'ffi'
local dtype_bytes = require 'ulysses.dtype_bytes'
local ul = require 'ulysses'
local cases = require 'tests.cases'
-- A global of a spec is looked up in busted's environments, which is slow.
local abs, max, huge = math.abs, math.max, math.huge

-- How far results may be off, relative to the largest of their tensor.
local tolerances = { f32 = 4e-6, bf16 = 1.2e-2 }

-- Tensors of specifications that one test uses again and again.
local made = {}

local function make(spec)
  made[spec] = made[spec] or cases.make(spec)
  return made[spec]
end

-- Inputs rounded to `dtype`, as tensors of `as`.
local function inputs_of(specs, dtype, as, strided)
  local inputs = {}
  for i, spec in ipairs(specs) do
    local x = make(spec)
    if cases.is_float(spec) then x = x:to(dtype):to(as) end
    if strided then x = cases.strided(x) end
    inputs[i] = x
  end
  return inputs
end

-- Outputs and gradients of a call, and the dtypes of the outputs; seeds are rounded to `dtypes`.
local function run(case, inputs, dtypes)
  if cases.is_differentiable(case) then
    for i, spec in ipairs(case.inputs) do
      if cases.is_float(spec) then inputs[i]:requires_grad_() end
    end
  end
  local outputs = cases.results(case.call(unpack(inputs)))
  local heads, seeds, results, found = {}, {}, {}, {}
  for i, y in ipairs(outputs) do
    results[i], found[i] = y:detach(), y:dtype()
    if y.requires_grad then
      heads[#heads + 1] = y
      -- Mostly of one sign: where all cancels, only rounding is left to compare.
      seeds[#seeds + 1] = cases.seed(y, 1):to(dtypes and dtypes[i] or found[i]):to(y)
    end
  end
  if #heads > 0 then ul.backward(heads, seeds) end
  for _, x in ipairs(inputs) do
    if x.requires_grad then results[#results + 1] = x.grad or ul.zeros_like(x:detach()) end
  end
  return results, found
end

-- Values as f64 in order.
local function numbers(t)
  t = t:to('f64'):contiguous():to 'cpu'
  return t:data(), t:numel(), t
end

local function compare(case, what, expected, actual, dtype)
  assert.equal(#expected, #actual)
  local limit = tolerances[dtype] * (case.loose or 1)
  for i, y in ipairs(actual) do
    local where = ('%s: result %d'):format(what, i)
    assert.same(expected[i].shape, y.shape, where)
    local want, n, keep = numbers(expected[i])
    local got, _, keep_too = numbers(y)
    local largest, gap, at = 0.05, 0, 0
    for k = 0, n - 1 do
      if abs(want[k]) < huge then largest = max(largest, abs(want[k])) end
      local same = want[k] == got[k] or (want[k] ~= want[k] and got[k] ~= got[k])
      local d = same and 0 or abs(want[k] - got[k])
      if not (d <= gap) then gap, at = d, k end
    end
    local whole = not y:dtype():find 'f'
    if not (gap <= (whole and 0 or limit * largest)) then
      error(('%s, element %d of %d: %.9g where f64 gives %.9g, %.3g of the largest'):format(
        where, at, n, got[at], want[at], gap / largest))
    end
    assert(keep and keep_too)
  end
end

local function bytes(list)
  local texts = {}
  for i, t in ipairs(list) do
    t = t:contiguous():to 'cpu'
    texts[i] = ffi.string(t:data(), t:numel() * dtype_bytes[t:dtype()])
  end
  return texts
end

-- The case in `dtype`, contiguous and not, against f64.
local function check_values(case, what, specs, dtype)
  local low, dtypes = run(case, inputs_of(specs, dtype, dtype))
  local exact = run(case, inputs_of(specs, dtype, 'f64'), dtypes)
  compare(case, what, exact, low, dtype)
  if case.strided ~= false then
    local views = run(case, inputs_of(specs, dtype, dtype, true), dtypes)
    compare(case, what .. ', views', exact, views, dtype)
  end
  return low
end

local function check_threads(case, specs, dtype)
  local before, first = ul.threads(), nil
  for _, n in ipairs { 1, 2, 3, 1 } do
    ul.threads(n)
    local texts = bytes((run(case, inputs_of(specs, dtype, dtype))))
    first = first or texts
    for i, text in ipairs(texts) do
      if text ~= first[i] then
        ul.threads(before)
        error(('result %d differs on %d threads'):format(i, n))
      end
    end
  end
  ul.threads(before)
end

local function check_meta(case, specs, dtype, expected)
  local inputs = inputs_of(specs, dtype, dtype)
  for i, x in ipairs(inputs) do inputs[i] = x:to 'meta' end
  local results = run(case, inputs)
  assert.equal(#expected, #results)
  for i, y in ipairs(results) do
    assert.same({ expected[i]:dtype(), expected[i].shape }, { y:dtype(), y.shape })
  end
end

-- tests/cuda/ops_spec.lua compares kernels elsewhere with these.
describe('precision #isa #cpu', function()
  for _, case in ipairs(cases.list) do
    it(case.name, function()
      made = {}
      ul.scope(function()
        for _, dtype in ipairs { 'f32', 'bf16' } do
          local specs = case.large or case.inputs
          if not case.without.precision then
            local low = check_values(case, dtype, case.inputs, dtype)
            if case.large then check_values(case, dtype .. ', large', case.large, dtype) end
            if case.empty then check_values(case, dtype .. ', empty', case.empty, dtype) end
            if case.meta ~= false then check_meta(case, case.inputs, dtype, low) end
          end
          check_threads(case, specs, dtype)
        end
      end)
    end)
  end
end)
