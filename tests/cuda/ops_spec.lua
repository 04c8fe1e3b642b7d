-- ops_spec.lua - every op on cuda against the cpu: results and gradients. Under tests/cuemu where
-- UL_CUDA_BACKEND names that; else on a GPU, where there is one.
local ul = require 'ulysses'
local cases = require 'tests.cases'
local abs, max, huge = math.abs, math.max, math.huge

-- How far results may be off, relative to the largest of their tensor.
local tolerances = { f64 = 1e-12, f32 = 1e-5, bf16 = 1.2e-2 }
-- Of these dtypes alone, where a check is slow and asks for it.
local wanted = os.getenv 'UL_TEST_DTYPES'
-- 1 or 2: every second case alone (tests/parallel.sh).
local half = tonumber(os.getenv 'UL_TEST_HALF')

local there, why = pcall(ul.zeros, 1, { device = 'cuda' })

local function inputs_of(specs, dtype, device, strided)
  local inputs = {}
  for i, spec in ipairs(specs) do
    local x = cases.make(spec)
    if cases.is_float(spec) then x = x:to(dtype) end
    x = x:to(device)
    if strided then x = cases.strided(x) end
    inputs[i] = x
  end
  return inputs
end

-- Outputs and gradients of a call.
local function run(case, inputs, device)
  local before = ul.default_device()
  ul.set_default_device(device)
  ul.manual_seed(7)
  if cases.is_differentiable(case) then
    for i, spec in ipairs(case.inputs) do
      if cases.is_float(spec) then inputs[i]:requires_grad_() end
    end
  end
  local ok, outputs = pcall(function() return cases.results(case.call(unpack(inputs))) end)
  ul.set_default_device(before)
  if not ok then error(outputs, 0) end
  local heads, seeds, results = {}, {}, {}
  for i, y in ipairs(outputs) do
    results[i] = y:detach()
    if y.requires_grad then
      heads[#heads + 1] = y
      seeds[#seeds + 1] = cases.seed(y:detach():to 'cpu', 1):to(y:dtype()):to(y:device())
    end
  end
  if #heads > 0 then ul.backward(heads, seeds) end
  for _, x in ipairs(inputs) do
    if x.requires_grad then results[#results + 1] = x.grad or ul.zeros_like(x:detach()) end
  end
  return results
end

-- A NaN with all bits set is nil to LuaJIT: one that is a number.
local function nan_or(x) return x == x and x or 0 / 0 end

local function compare(case, what, expected, actual, dtype)
  assert.equal(#expected, #actual)
  local limit = tolerances[dtype] * (case.loose or 1)
  for i, y in ipairs(actual) do
    local where = ('%s: result %d'):format(what, i)
    assert.same(expected[i].shape, y.shape, where)
    assert.equal(expected[i]:dtype(), y:dtype(), where)
    local one, other = expected[i]:to('f64'):contiguous(), y:to('cpu'):to('f64'):contiguous()
    local want, got, largest, gap, at = one:data(), other:data(), 0.05, 0, 0
    for k = 0, one:numel() - 1 do
      local a, b = nan_or(want[k]), nan_or(got[k])
      if abs(a) < huge then largest = max(largest, abs(a)) end
      local same = a == b or (a ~= a and b ~= b)
      local d = same and 0 or abs(a - b)
      if not (d <= gap) and gap == gap then gap, at = d, k end
    end
    local whole = not y:dtype():find 'f'
    if not (gap <= (whole and 0 or limit * largest)) then
      error(('%s, element %d of %d: %.9g where the cpu gives %.9g'):format(
        where, at, one:numel(), nan_or(got[at]), nan_or(want[at])))
    end
  end
end

local function check(case, specs, what, dtype, strided)
  ul.scope(function()
    local expected = run(case, inputs_of(specs, dtype, 'cpu', strided), 'cpu')
    local actual = run(case, inputs_of(specs, dtype, 'cuda', strided), 'cuda')
    compare(case, ('%s, %s'):format(dtype, what), expected, actual, dtype)
  end)
end

describe('cuda', function()
  if not there then
    pending('is not here: ' .. tostring(why))
    return
  end
  for i, case in ipairs(cases.list) do
    local test = half and (i + half) % 2 == 1 and function() end or it
    test('gives the same for ' .. case.name, function()
      for dtype in pairs(tolerances) do
        if (not case.dtypes or case.dtypes[dtype]) and (not wanted or wanted:find(dtype)) then
          check(case, case.inputs, 'as given', dtype)
          if case.strided ~= false then check(case, case.inputs, 'views', dtype, true) end
          if case.large then check(case, case.large, 'large', dtype) end
          if case.empty then check(case, case.empty, 'empty', dtype) end
        end
      end
    end)
  end
end)
