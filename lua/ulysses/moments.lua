-- moments.lua - x:var() and x:std(), of other ops: what gradients and meta need comes with these.
local core = require 'ulysses.core'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local F = core.functional

-- Results of an op that `name` is made of, or its error in the name of that.
local function results_of(name, made_of, ok, ...)
  if ok then return ... end
  local problem = ...
  if type(problem) == 'string' then problem = problem:gsub(made_of .. ': ', name .. ': ', 1) end
  error(problem, 0)
end

local function mean_of(name, x, dims)
  return results_of(name, 'mean', pcall(F.mean, x, dims, { keepdim = true }))
end

-- How many elements go into one result.
local function count(x, dims)
  if dims == nil then return x:numel() end
  local n = 1
  for _, dim in ipairs(type(dims) == 'table' and dims or { dims }) do n = n * x:size(dim) end
  return n
end

local function read(name, ...)
  local n = select('#', ...)
  if n > 3 then raise('%s: %d arguments, at most 3 are known', name, n) end
  local x, dims, given = ...
  local read_options = options.read(name, given, { unbiased = true, keepdim = false })
  return x, dims, read_options
end

-- bf16 would lose what is left of values near each other: differences are f32 then.
local function variance(name, x, dims, how)
  local wide = x
  if core.is_tensor(x) and core.is_alive(x) and x:dtype() == 'bf16' then wide = x:to 'f32' end
  local center = mean_of(name, wide, dims) -- what is wrong with the call is said here
  local sum = (wide - center):square():sum(dims, { keepdim = how.keepdim })
  return sum / math.max(0, count(x, dims) - (how.unbiased and 1 or 0))
end

local function var(...)
  local x, dims, how = read('var', ...)
  return core.scoped('var', function()
    local v = variance('var', x, dims, how)
    return v:to(x:dtype())
  end)
end

-- The root has no derivative where all elements are equal: 0 is taken, as elsewhere for kinks.
local function std(...)
  local x, dims, how = read('std', ...)
  return core.scoped('std', function()
    local v = variance('std', x, dims, how)
    local flat = v:eq(0)
    return v:masked_fill(flat, 1):sqrt():masked_fill(flat, 0):to(x:dtype())
  end)
end

for name, op in pairs { var = var, std = std } do
  core.functional[name], core.methods[name] = op, op
end
