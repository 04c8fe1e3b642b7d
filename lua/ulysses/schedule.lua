-- schedule.lua - the learning rate at a step: ul.optim.cosine, linear, wsd and constant.
local raise = require 'ulysses.raise'

---@class ScheduleSettings
---@field lr number the highest rate
---@field steps integer the last step
---@field warmup integer? steps of the linear rise (0)
---@field min_lr number? the rate at the last step and behind it (lr / 10)
---@field decay integer? wsd: steps of the fall at the end (steps / 10)

-- A setting, from a plain table or from a recipe's, which raises for what it does not have.
local function number(caller, settings, name, default)
  local value = type(settings) == 'table' and rawget(settings, name)
  if value == nil then value = default end
  if type(value) ~= 'number' then raise('%s: the settings need a number %s', caller, name) end
  if not (value >= 0) then raise('%s: %s must not be negative, got %g', caller, name, value) end
  return value
end

-- lr step / warmup up to step = warmup, then min_lr + (lr - min_lr) shape(...).
local function rate(caller, step, settings, shape)
  if type(step) ~= 'number' then raise('%s: the step must be a number', caller) end
  local lr, steps = number(caller, settings, 'lr'), number(caller, settings, 'steps')
  local warmup = number(caller, settings, 'warmup', 0)
  local min_lr = number(caller, settings, 'min_lr', lr / 10)
  if min_lr > lr then raise('%s: min_lr %g is above lr %g', caller, min_lr, lr) end
  if step <= warmup then return warmup > 0 and lr * math.max(0, step) / warmup or lr end
  return min_lr + (lr - min_lr) * shape(step, warmup, steps, settings, caller)
end

-- How far a step is on the way from `first` (0) to `last` (1).
local function progress(step, first, last)
  return math.max(0, math.min(1, (step - first) / math.max(1, last - first)))
end

-- Shapes: 1 behind the warm-up, 0 at the last step.

local function cosine(step, warmup, steps)
  return (1 + math.cos(math.pi * progress(step, warmup, steps))) / 2
end

local function linear(step, warmup, steps) return 1 - progress(step, warmup, steps) end

local function wsd(step, warmup, steps, settings, caller)
  local decay = number(caller, settings, 'decay', math.floor(steps / 10))
  return 1 - progress(step, math.max(warmup, steps - decay), steps)
end

local function constant() return 1 end

local schedules = {}

--- Rises to lr, then falls along half a cosine. With t = (step - warmup) / (steps - warmup):
---     step <= warmup:  lr step / warmup
---     later:           min_lr + (lr - min_lr) (1 + cos(pi t)) / 2
---@param step integer
---@param settings ScheduleSettings
---@return number lr
function schedules.cosine(step, settings)
  return rate('optim.cosine', step, settings, cosine)
end

--- Rises to lr, then falls along a line. With t as for cosine:
---     step <= warmup:  lr step / warmup
---     later:           min_lr + (lr - min_lr) (1 - t)
---@param step integer
---@param settings ScheduleSettings
---@return number lr
function schedules.linear(step, settings)
  return rate('optim.linear', step, settings, linear)
end

--- Warm-up, stable, decay: rises to lr, stays there, and falls along a line in the last `decay`
--- steps (at most those behind the warm-up). With t = (step - steps + decay) / decay, at least 0:
---     step <= warmup:  lr step / warmup
---     later:           min_lr + (lr - min_lr) (1 - t)
---@param step integer
---@param settings ScheduleSettings
---@return number lr
function schedules.wsd(step, settings)
  return rate('optim.wsd', step, settings, wsd)
end

--- Rises to lr and stays there:
---     step <= warmup:  lr step / warmup
---     later:           lr
---@param step integer
---@param settings ScheduleSettings
---@return number lr
function schedules.constant(step, settings)
  return rate('optim.constant', step, settings, constant)
end

return schedules
