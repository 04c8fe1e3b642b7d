-- train.lua - ul.run: the loop around a training step, its log, and evaluation.
local ffi = require 'ffi'
local ul = require 'ulysses'
local options = require 'ulysses.options'

ffi.cdef 'int gettimeofday(long *time, void *zone);'

-- Seconds on the wall.
local function now()
  local time = ffi.new 'long[2]'
  ffi.C.gettimeofday(time, nil)
  return tonumber(time[0]) + tonumber(time[1]) / 1e6
end

---@class Run
---@field losses number[] of every step so far
local Run = {}
Run.__index = Run

--- A training run. log_every: a line is printed for the first step, the last, and every so many
--- (0: none).
---@param given { model: table, optim: table?, data: table, log_every: integer? }
local function run(given)
  local fields = options.read('run', given, {
    model = options.none, optim = options.none, data = options.none, log_every = 10,
  })
  fields.losses, fields.step, fields.tokens = {}, 0, 0
  return setmetatable(fields, Run)
end

--- Iterates over step (from 1) and its batch. Each step is a scope: what it makes and does not
--- :keep() is freed before the next one.
---@param n integer how many steps there are to be in all
function Run:steps(n)
  local scope
  self.last, self.started = n, now()
  return function()
    if scope then
      self.losses[self.step] = self.batch:loss()
      self.tokens, self.batch = self.tokens + self.batch.inputs:numel(), nil
      ul.scope_end(scope)
      scope = nil
    end
    if self.step >= n then return nil end
    self.step = self.step + 1
    scope = ul.scope_begin('step ' .. self.step)
    self.batch = self.data:at(self.step)
    return self.step, self.batch
  end
end

local function number_text(value)
  if value == math.floor(value) and math.abs(value) < 1e9 then return ('%d'):format(value) end
  return ('%.4g'):format(value)
end

--- Prints a line with the step, its loss, the values given, sorted by name, and the tokens per
--- second so far.
---@param values table<string, number>
function Run:log(values)
  if self.log_every == 0 then return end
  if self.step ~= 1 and self.step ~= self.last and self.step % self.log_every ~= 0 then return end
  local names, parts = {}, {}
  for name in pairs(values or {}) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do parts[i] = name .. ' ' .. number_text(values[name]) end
  local tokens = self.tokens + self.batch.inputs:numel()
  print(('step %d/%d  loss %.4f  %s  %.0f tokens/s'):format(
    self.step, self.last, self.batch:loss(), table.concat(parts, '  '),
    tokens / (now() - self.started)))
  io.flush()
end

--- The mean loss over all labels of `data`, each row once; nothing is recorded or changed.
---@param data table what :batch() returns
---@return number
function Run:evaluate(data)
  local sum, count = 0, 0
  ul.no_grad(function()
    for batch in data:once() do
      ul.scope(function()
        self.model(batch)
        sum, count = sum + batch:loss() * batch.count, count + batch.count
      end)
    end
  end)
  return sum / math.max(1, count)
end

return run
