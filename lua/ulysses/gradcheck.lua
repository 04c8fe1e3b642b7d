-- gradcheck.lua - compares the gradients of a function with finite differences, in f64.
local core = require 'ulysses.core'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'

local function floats(...)
  local list = {}
  for i = 1, select('#', ...) do
    local y = select(i, ...)
    if core.is_tensor(y) and y:dtype() == 'f64' then list[#list + 1] = y end
  end
  return list
end

-- Fixed random weights for each result, so that a loss of them sees every element; 1 for a scalar.
local function weights_for(results, seed)
  local before, next_key = core.random_state()
  core.set_random_state(seed, 2 ^ 40)
  local weights = {}
  for i, y in ipairs(results) do
    weights[i] = y:dim() == 0 and core.ones_like(y) or core.randn_like(y)
  end
  core.set_random_state(before, next_key)
  return weights
end

-- A result may be a view of x, which is about to change.
local function copies(list)
  for i, y in ipairs(list) do list[i] = y:clone() end
  return list
end

-- d loss / d x[i] for all i, by central differences. Results are subtracted before they are summed:
-- that loses fewer digits.
local function numeric(results_of, x, weights, h)
  local there = x:detach()
  local here = x:device() == 'cpu' and there or there:to 'cpu'
  local data, slopes = here:data(), {}
  local function put(i, value)
    data[i] = value
    if here ~= there then there:copy_(here:to(there:device())) end
  end
  for i = 0, x:numel() - 1 do
    slopes[i + 1] = core.scope(function()
      local before = data[i]
      put(i, before + h)
      local above = copies(results_of())
      put(i, before - h)
      local below = copies(results_of())
      put(i, before)
      local change = 0
      for k, w in ipairs(weights) do
        change = change + ((above[k] - below[k]) * w):sum():item()
      end
      return change / (2 * h)
    end)
  end
  return slopes
end

-- The largest gap, relative to max(1, the largest gradient), and where it is.
local function compare(analytic, slopes)
  local gap, size, worst = 0, 1, 1
  for i, slope in ipairs(slopes) do
    local exact = analytic[i] or 0
    size = math.max(size, math.abs(exact))
    local d = math.abs(slope - exact)
    if not (d <= gap) then gap, worst = d, i end
    if gap ~= gap then break end
  end
  return gap / size, worst
end

local function inputs_to_check(inputs)
  local checked = {}
  for i = 1, #inputs do
    local x = inputs[i]
    if core.is_tensor(x) and x.requires_grad then
      if x:dtype() ~= 'f64' or not x.is_leaf or not x:is_contiguous() then
        raise('gradcheck: input %d must be a contiguous f64 leaf', i)
      end
      checked[#checked + 1] = i
    end
  end
  if #checked == 0 then raise('gradcheck: no input requires grad') end
  return checked
end

--- Whether f's gradients agree with finite differences: for each f64 input that requires grad,
--- max |numeric - analytic| <= tolerance * max(1, max |analytic|). Raises an error that names the
--- worst element otherwise. Returns true and the largest gap. What f draws at random is the same at
--- each call.
---@param f fun(...: any): any tensors (f64 ones are checked)
---@param inputs any[]
---@param given { step: number?, tolerance: number?, seed: integer? }?
---@return boolean, number
return function(f, inputs, given)
  local read = options.read('gradcheck', given, { step = 1e-6, tolerance = 1e-8, seed = 1 })
  if type(inputs) ~= 'table' then raise('gradcheck: inputs must be a list') end
  local checked = inputs_to_check(inputs)
  local seed, next_key = core.random_state()
  local function results_of()
    core.set_random_state(seed, next_key)
    return floats(f(unpack(inputs)))
  end

  return core.scope(function()
    for _, i in ipairs(checked) do inputs[i].grad = nil end
    local results = core.enable_grad(results_of)
    if #results == 0 then raise('gradcheck: f returns no f64 tensor') end
    local weights = weights_for(results, read.seed)
    local recorded, seeds = {}, {}
    for k, y in ipairs(results) do
      if y.requires_grad then
        recorded[#recorded + 1], seeds[#seeds + 1] = y, weights[k]
      end
    end
    core.backward(recorded, seeds)

    local largest = 0
    for _, i in ipairs(checked) do
      local x = inputs[i]
      local analytic = x.grad and x.grad:flatten():tolist() or {}
      x.grad = nil
      local slopes = core.no_grad(numeric, results_of, x, weights, read.step)
      local gap, at = compare(analytic, slopes)
      largest = math.max(largest, gap)
      if not (gap <= read.tolerance) then
        raise('gradcheck: input %d, element %d: analytic %.10g, numeric %.10g (gap %.3g, seed %d)',
              i, at, analytic[at] or 0, slopes[at], gap, read.seed)
      end
    end
    return true, largest
  end)
end
