-- record.lua - what a run writes down: a record of each step, on the terminal and in its folder.
local agree = require 'ulysses.agree'
local core = require 'ulysses.core'
local ul = require 'ulysses'
local folder = require 'ulysses.folder'
local log = require 'ulysses.log'
local machine = require 'ulysses.machine'
local metrics = require 'ulysses.metrics'
local plan = require 'ulysses.plan'
local raise = require 'ulysses.raise'
local tensorboard = require 'ulysses.tensorboard'
local utf8 = require 'ulysses.utf8'

local nan = 0 / 0

local record = {}

-- ---- a step ----

-- The order in which values are shown; the others follow by name.
local order = { grad_norm = 1, lr = 2 }

-- FLOP/s that the machine reaches at best, as far as it is known. On the cpu other programs may
-- disturb the measuring, so it is done again where the run itself is faster. Ranks have measured
-- together.
local function peak_of(self, reached)
  if self.peak == nil then self.peak = machine.peak(self.dtype) or false end
  if machine.gpu() then return self.peak or nil end
  if reached > self.peak and not self.group then
    self.peak = math.max(self.peak, ul.peak_flops(self.dtype))
  end
  return math.max(self.peak, reached)
end

local function show(self, values)
  if not self.display:wants(self.step, self.last) then return end
  local flops = self.flops_of_step / self.pace
  self.display:step(values, {
    last = self.last, given = self.given, order = order,
    tokens_per_s = self.tokens_of_step / self.pace, flops_per_s = flops,
    peak = flops > 0 and peak_of(self, flops) or nil,
    seconds_left = (self.last - self.step) * self.pace,
  })
end

local function write(self, values)
  if self.metrics then self.metrics:write(values) end
  if self.events then self.events:write(values) end
end

-- FLOP and tokens of all ranks in this step, and the most memory that one of them has taken.
local function totals(self)
  local flops = ul.flops() - self.before.flops
  local tokens = self.batch.tokens or self.batch.inputs:numel()
  local peak = ul.memory(ul.default_device():find '^cuda' and 'cuda' or 'cpu').peak
  if not self.group then return flops, tokens, peak end
  local all = agree.numbers(self.group, { math.floor(flops), tokens, peak },
                            'the record of step ' .. self.step)
  flops, tokens = 0, 0
  for _, one in ipairs(all) do
    flops, tokens, peak = flops + one[1], tokens + one[2], math.max(peak, one[3])
  end
  return flops, tokens, peak
end

--- Writes down what is known of the step at work, once. All ranks come here together.
---@param self Run
function record.step(self)
  if not self.scope or self.recorded then return end
  local moved = self.optim and self.optim.steps > self.before.updates and not self.on_meta
  if moved and self.batch.is_silent and self.batch:is_silent() then
    raise('run: the model reported no loss in step %d; its forward must return batch:mean(sum)',
          self.step)
  end
  local before = self.before
  local loss, flops, tokens, peak = self.batch:loss(), totals(self)
  local seconds = core.system.clock() - self.began
  self.tokens, self.seconds = before.tokens + tokens, before.seconds + seconds
  local values = {
    step = self.step, loss = loss, tokens = self.tokens, seconds = self.seconds,
    tokens_per_s = tokens / seconds, flops_per_s = flops / seconds,
    peak_bytes = peak,
  }
  for name, value in pairs(self.given) do values[name] = value end
  if self.optim and self.optim.skipped then values.skipped = true end
  self.losses[self.step] = values.loss
  self.pace = before.pace and 0.9 * before.pace + 0.1 * seconds or seconds
  self.flops_of_step, self.tokens_of_step = flops, tokens
  if not self.on_meta then
    local bad = values.skipped or values.loss - values.loss ~= 0
    self.bad = bad and before.bad + 1 or 0
    if not bad then self.last_good = self.step end
  end
  self.recorded = true
  write(self, values)
  show(self, values)
end

--- Adds values to the step's record: numbers, or tensors of one element.
---@param self Run
---@param values table<string, number|userdata>
function record.add(self, values)
  local fresh = { step = self.step }
  for name, value in pairs(values) do
    if ul.is_tensor(value) then value = value:device() == 'meta' and nan or value:item() end
    if type(value) ~= 'number' and type(value) ~= 'boolean' then
      raise('run:log: %s must be a number, a boolean or a tensor of one element, got a %s',
            tostring(name), type(value))
    end
    self.given[name], fresh[name] = value, value
  end
  if self.recorded then write(self, fresh) end
end

---@param self Run
---@param loss number
---@param perplexity number
function record.evaluation(self, loss, perplexity)
  local last = self.evaluated
  if last and last.step == self.step and last.eval_loss == loss then return end
  self.evaluated = { step = self.step, eval_loss = loss, perplexity = perplexity }
  write(self, self.evaluated)
end

-- A complete run that is started again writes the same: that is recorded once.
local function sample_key(values)
  return ('%d\0%s\0%s'):format(values.step, values.prompt, values.text)
end

---@param self Run
---@param prompt string
---@param text string
function record.sample(self, prompt, text)
  if not self.samples then return end
  local values = { step = self.step, prompt = utf8.readable(prompt), text = utf8.readable(text) }
  local key = sample_key(values)
  if not self.sampled[key] then self.samples:write(values) end
  self.sampled[key] = true
end

-- ---- the folder ----

-- 'dp 2 x sp 4', of the axes that have several ranks.
local function mesh_text(mesh)
  local parts, sizes = {}, mesh.sizes
  local function add(name, n)
    if n > 1 then parts[#parts + 1] = ('%s %d'):format(name, n) end
  end
  add('dp', sizes.dp)
  add('sp', sizes.ring * sizes.ulysses)
  if sizes.ring > 1 then parts[#parts] = parts[#parts] .. (' (ring %d)'):format(sizes.ring) end
  add('tp', sizes.tp)
  return table.concat(parts, ' x ')
end

-- '4 ranks (dp 2 x sp 2)'; nil where there is one.
local function ranks_text(self)
  local n = self.mesh and self.mesh.world.size or 1
  return n > 1 and ('%d ranks (%s)'):format(n, mesh_text(self.mesh)) or nil
end

-- What the report says about where and how the run was made.
local function describe(self)
  local model = self.model
  return {
    version = core.version, config = self.config, dtype = self.dtype, steps = self.last,
    parameters = model.n_parameters and model:n_parameters() or nil,
    started = self.started, resumed = self.resumed, ranks = ranks_text(self),
    machine = { gpu = machine.gpu(), cpu = machine.cpu_name(), isa = ul.isa(),
                threads = ul.threads(), peak_flops = peak_of(self, 0) },
  }
end

--- Writes run.json.
---@param self Run
function record.describe(self)
  if not agree.is_first(self.group) then return end
  folder.write(self.dir .. '/run.json', ul.json.encode(describe(self), { indent = 1 }) .. '\n')
end

-- Opens the files of the run's folder to go on behind its step, and reads what they know of it:
-- losses by step, and the last evaluation.
local function open_files(self)
  local losses, evaluated = {}, nil
  for step = 1, self.step do losses[step] = nan end
  self.metrics = metrics.open(self.dir .. '/metrics.jsonl', self.step, function(values)
    if type(values.loss) == 'number' then losses[values.step] = values.loss end
    if values.eval_loss then evaluated = values end
  end)
  self.sampled = {}
  self.samples = metrics.open(self.dir .. '/samples.jsonl', self.step, function(values)
    self.sampled[sample_key(values)] = true
  end)
  if self.tensorboard then self.events = tensorboard.open(self.dir, self.step) end
  record.describe(self)
  return { losses = losses, evaluated = evaluated }
end

--- Before the first step: takes what the folder knows of the steps before, on all ranks.
---@param self Run
function record.open(self)
  self.started = core.system.now()
  if self.group and (self.dir or self.log_every > 0) then
    self.peak = machine.peak(self.dtype, self.group) or false
  end
  if not self.dir then return end
  local known = agree.first(self.group, 'ul.run', open_files, self)
  for step, loss in ipairs(known.losses) do self.losses[step] = tonumber(loss) or nan end
  self.evaluated = known.evaluated
end

--- Says, once, which ranks are at work together.
---@param self Run
function record.tell_ranks(self)
  local text = self.group and self.log_every > 0 and not self.told and ranks_text(self)
  if text and agree.is_first(self.group) then log.say('%s', text) end
  self.told = true
end

-- Tokens in a step on the meta device, where one rank stands for all.
local function planned_tokens(self)
  local data = self.data
  if not self.mesh or not (data.size and data.length) then return self.tokens_of_step or 0 end
  return self.tokens_of_step and data.size * data.length or 0
end

local function amount(bytes)
  return bytes < 1e10 and ('%.0f MB'):format(bytes / 1e6) or log.bytes(bytes)
end

--- One line about a run on the meta device: what a step takes, of the first rank where there are
--- several. To its tensors come those that stay on the host (the text), and what kernels keep for
--- themselves.
---@param self Run
---@return string
function record.plan(self)
  if plan.machine then return plan.page(self, ranks_text(self)) end
  local bytes = ul.memory('meta').peak + ul.memory('meta').scratch + ul.memory('cpu').peak
  local parameters = self.model.n_parameters and self.model:n_parameters() or 0
  local memory = amount(bytes)
  local ranks, off = ranks_text(self), ul.memory('meta').off_device_peak
  memory = memory .. ' at its peak'
  if off > 0 then memory = ('%s, %s off the device'):format(memory, amount(off)) end
  return ('plan: %s parameters%s; a step of %d tokens takes %s and %s%s'):format(
    log.count(parameters), ranks and ' on ' .. ranks or '', planned_tokens(self), memory,
    log.flops(self.flops_of_step or 0), ranks and ' on each' or '')
end

return record
