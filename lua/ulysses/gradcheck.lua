-- gradcheck.lua - compares the gradients of a function with finite differences, in f64.
local core = require 'ulysses.core'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'

local function filter(...)
  local list = {}
  for i = 1, select('#', ...) do
    local y = select(i, ...)
    if core.is_tensor(y) and y:dtype() == 'f64' then list[#list + 1] = y end
  end
  return list
end

-- The results of f as one number: each weighted by a fixed random tensor of its shape.
local function weigh(results, weights)
  local total
  for i, y in ipairs(results) do
    local part = (y * weights[i]):sum()
    total = total and total + part or part
  end
  return total
end

-- d f / d x[i] for all i, by central differences.
local function numeric(value, x, h)
  local flat, slopes = x:detach():view(-1), {}
  local data = flat:data()
  for i = 0, flat:numel() - 1 do
    local before = data[i]
    data[i] = before + h
    local above = core.scope(value)
    data[i] = before - h
    local below = core.scope(value)
    data[i] = before
    slopes[i + 1] = (above - below) / (2 * h)
  end
  return slopes
end

local function compare(x, slopes)
  local analytic = x.grad and x.grad:flatten():tolist() or {}
  local gap, size, worst = 0, 1, 0
  for i, slope in ipairs(slopes) do
    local exact = analytic[i] or 0
    size = math.max(size, math.abs(exact))
    local d = math.abs(slope - exact)
    if not (d <= gap) then gap, worst = d, i end
  end
  return gap / size, worst, analytic[worst] or 0, slopes[worst]
end

--- Whether f's gradients agree with finite differences: for each f64 input that requires grad,
--- max |numeric - analytic| <= tolerance * max(1, max |analytic|). Raises an error that names the worst element
--- otherwise. Returns true and the largest gap. Inputs must be contiguous.
---@param f fun(...: any): any tensors (f64 ones are checked)
---@param inputs any[]
---@param given { step: number?, tolerance: number?, seed: integer? }?
---@return boolean, number
return function(f, inputs, given)
  local read = options.read('gradcheck', given, { step = 1e-6, tolerance = 1e-8, seed = 1 })
  if type(inputs) ~= 'table' then raise('gradcheck: inputs must be a list') end
  local checked = {}
  for i = 1, #inputs do
    local x = inputs[i]
    if core.is_tensor(x) and x.requires_grad then
      if x:dtype() ~= 'f64' then raise('gradcheck: input %d is %s, not f64', i, x:dtype()) end
      checked[#checked + 1] = i
      x.grad = nil
    end
  end
  if #checked == 0 then raise('gradcheck: no input requires grad') end

  local weights = {}
  core.scope(function()
    local results = filter(f(unpack(inputs)))
    if #results == 0 then raise('gradcheck: f returns no f64 tensor') end
    local seed, next_key = core.random_state()
    core.set_random_state(read.seed, 2 ^ 40)
    for i, y in ipairs(results) do
      weights[i] = core.randn_like(y):keep()
    end
    core.set_random_state(seed, next_key)
    weigh(results, weights):backward()
  end)
  local function value()
    return core.no_grad(function() return weigh(filter(f(unpack(inputs))), weights):item() end)
  end
  local largest = 0
  for _, i in ipairs(checked) do
    local gap, at, analytic, slope = compare(inputs[i], numeric(value, inputs[i], read.step))
    largest = math.max(largest, gap)
    if not (gap <= read.tolerance) then
      raise('gradcheck: input %d, element %d: analytic %.10g, numeric %.10g (gap %.3g, seed %d)', i, at,
            analytic, slope, gap, read.seed)
    end
  end
  return true, largest
end
