-- run.lua - ul.run: the loop around a training step, its record, and evaluation.
local core = require 'ulysses.core'
local ul = require 'ulysses'
local folder = require 'ulysses.folder'
local log = require 'ulysses.log'
local metrics = require 'ulysses.metrics'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'

local nan = 0 / 0

---@class Run
---@field step integer the step at work, or the last one taken
---@field losses number[] of every step so far, of the sittings before this one too
---@field dir string|nil
local Run = {}
Run.__index = Run

--- A training run.
---   dir        folder for metrics, checkpoints, samples and the report; nil or '': nothing is kept
---   config     the settings, for the record
---   log_every  a line is printed for the first step, the last, and every so many (0: none); on a
---              terminal there is one line, drawn again and again
---@param given { model: table, optim: table?, data: table, dir: string?, config: table?,
---  log_every: integer? }
---@return Run
local function new(given)
  local fields = options.read('run', given, {
    model = options.none, optim = options.none, data = options.none, dir = options.none,
    config = options.none, log_every = 10,
  })
  if type(fields.model) ~= 'table' then raise('run: model = is missing') end
  if fields.dir == '' then fields.dir = nil end
  fields.losses, fields.step, fields.tokens, fields.seconds = {}, 0, 0, 0
  fields.given, fields.display = {}, log.new(fields.log_every)
  if fields.dir then
    fields.lock = folder.open(fields.dir)
    fields.metrics = metrics.open(fields.dir .. '/metrics.jsonl', 0)
  end
  return setmetatable(fields, Run)
end

-- ---- one step ----

local function begin_step(self)
  self.step = self.step + 1
  self.scope = ul.scope_begin('step ' .. self.step)
  self.began, self.recorded, self.given = core.system.clock(), false, {}
  self.batch = self.data:at(self.step)
end

-- The order in which values are shown; the others follow by name.
local order = { grad_norm = 1, lr = 2 }

local function show(self, record, seconds)
  if not self.display:wants(self.step, self.last) then return end
  self.display:step(record, {
    last = self.last, given = self.given, order = order, tokens_per_s = record.tokens_per_s,
    seconds_left = (self.last - self.step) * seconds,
  })
end

-- Writes down what is known of the step, once.
local function record_step(self)
  if not self.scope or self.recorded then return end
  self.recorded = true
  local seconds, tokens = core.system.clock() - self.began, self.batch.inputs:numel()
  self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
  local record = {
    step = self.step, loss = self.batch:loss(), tokens = self.tokens, seconds = self.seconds,
    tokens_per_s = tokens / seconds, peak_bytes = ul.memory('cpu').peak,
  }
  for name, value in pairs(self.given) do record[name] = value end
  self.losses[self.step] = record.loss
  self.pace = self.pace and 0.9 * self.pace + 0.1 * seconds or seconds
  if self.metrics then self.metrics:write(record) end
  show(self, record, self.pace)
end

local function end_step(self)
  record_step(self)
  ul.scope_end(self.scope)
  self.scope, self.batch = nil, nil
end

--- Iterates over step (from 1) and its batch. Each step is a scope: what it makes and does not
--- :keep() is freed before the next one.
---@param n integer how many steps there are to be in all
---@return fun(): integer?, table?
function Run:steps(n)
  self.last = n
  return function()
    if self.scope then end_step(self) end
    if self.step >= n then
      log.leave()
      return nil
    end
    begin_step(self)
    return self.step, self.batch
  end
end

--- Adds values to the record of the step at work: numbers, or tensors of one element.
---@param values table<string, number|userdata>
function Run:log(values)
  if not self.scope then raise('run:log: no step is at work') end
  local fresh = { step = self.step }
  for name, value in pairs(values) do
    if ul.is_tensor(value) then value = value:item() end
    self.given[name], fresh[name] = value, value
  end
  if self.recorded and self.metrics then self.metrics:write(fresh) end
end

-- ---- evaluation ----

--- The mean loss over all labels of `data`, each row once, and its exponential; the record gets
--- both, and nothing else is changed.
---@param data table what :batch() returns
---@return number loss
---@return number perplexity
function Run:eval(data)
  record_step(self)
  local sum, count = 0, 0
  ul.no_grad(function()
    for batch in data:once() do
      ul.scope(function()
        self.model(batch)
        sum, count = sum + batch:loss() * batch.count, count + batch.count
      end)
    end
  end)
  local loss = count > 0 and sum / count or nan
  local perplexity = math.exp(loss)
  if self.metrics then
    self.metrics:write { step = self.step, eval_loss = loss, perplexity = perplexity }
  end
  return loss, perplexity
end

return new
