-- run.lua - ul.run: the loop around a training step, its record, and evaluation.
local agree = require 'ulysses.agree'
local core = require 'ulysses.core'
local ul = require 'ulysses'
local checkpoint = require 'ulysses.checkpoint'
local folder = require 'ulysses.folder'
local log = require 'ulysses.log'
local options = require 'ulysses.options'
local plan = require 'ulysses.plan'
local raise = require 'ulysses.raise'
local ranks = require 'ulysses.ranks'
local record = require 'ulysses.record'
local resume = require 'ulysses.resume'
local stop = require 'ulysses.stop'
local uninterrupted = require 'ulysses.uninterrupted'

local nan = 0 / 0

-- On the meta device a step shows all there is to know; the second sees the optimizer's state.
local META_STEPS = 2

---@class Run
---@field step integer the step at work, or the last one taken
---@field losses number[] of every step so far, of the sittings before this one too
---@field resumed integer|nil the step that this sitting began behind, where it did not begin at 0
---@field dir string|nil
---@field mesh Mesh|nil that of its data: whose ranks train together
---@field group Group|nil these ranks, where they are several
local Run = {}
Run.__index = Run
function Run.__tostring(self)
  local loss = self.losses[#self.losses]
  return ('run%s at step %d%s'):format(self.dir and ' ' .. self.dir or '', self.step,
                                       loss and (', loss %.4f'):format(loss) or '')
end

-- The first parameter tells the device and the dtype of the arithmetic.
local function first_parameter(model)
  return model.parameters and model:parameters()[1] or nil
end

--- A training run. Ranks that share the data (data:shard(mesh)) call it and its methods together;
--- the first of them alone prints, and has to do with the folder.
---   dir          folder for metrics, checkpoints, samples and the report; nil or '': nothing is
---                kept. A run that finds a checkpoint there goes on from it.
---   config       the settings, for the record
---   fixed        names of settings (or of tables of them) that a run which goes on may not change
---   log_every    a line is printed for the first step, the last, and every so many (0: none); on a
---                terminal there is one line, drawn again and again
---   base         the folder that the model is from: parameters that are frozen are what they are
---                there, and checkpoints do without them
---   keep         how many checkpoints stay
---   tensorboard  whether to write event files for TensorBoard too
---@param given { model: table, optim: table?, data: table, dir: string?, config: table?,
---  fixed: string[]?, base: string?, log_every: integer?, keep: integer?, tensorboard: boolean? }
---@return Run
local function new(given)
  local fields = options.read('run', given, {
    model = options.none, optim = options.none, data = options.none, dir = options.none,
    config = options.none, fixed = options.none, base = options.none, log_every = 10, keep = 2,
    tensorboard = false,
  })
  if type(fields.model) ~= 'table' then raise 'run: a model is needed' end
  if type(fields.data) ~= 'table' then
    raise('run: data are needed, as text:pack(seq_len):batch(n), got a %s', type(fields.data))
  end
  local parameter = first_parameter(fields.model)
  fields.dtype = parameter and parameter:dtype() or 'f32'
  fields.on_meta = core.planning() or parameter ~= nil and parameter:device() == 'meta'
  if fields.dir == '' or fields.on_meta then fields.dir = nil end
  ranks.take_mesh(fields)
  fields.losses, fields.step, fields.taken, fields.tokens, fields.seconds = {}, 0, 0, 0, 0
  local shows = not fields.on_meta and agree.is_first(fields.group)
  fields.bad, fields.display = 0, log.new(shows and fields.log_every or 0)
  if fields.dir then
    agree.first(fields.group, 'ul.run', function() fields.lock = folder.open(fields.dir) end)
  end
  return setmetatable(fields, Run)
end

-- ---- steps ----

-- Ctrl-C may raise an error at any line: `taken` alone says which step is the last, and whatever is
-- done twice comes to the same.
local function begin_step(self)
  self.before = { random = { ul.random_state() }, flops = ul.flops(), tokens = self.tokens,
                  seconds = self.seconds, bad = self.bad, pace = self.pace,
                  updates = self.optim and self.optim.steps }
  self.recorded, self.given = false, {}
  if self.on_meta then plan.begin_step(self) end
  if self.optim then self.optim.skipped = false end
  self.scope = ul.scope_begin('step ' .. self.taken + 1)
  self.step = self.taken + 1
  self.began = core.system.clock()
  self.batch = self.data:at(self.step)
end

-- Whether the step at work is over but for its end: a loss and a rate are known from then on.
local function is_done(self)
  if self.optim then return stop.has_updated(self) or self.optim.skipped end
  return not (self.batch.is_silent and self.batch:is_silent())
end

-- Writes down the step before what is said of it.
local function note_step(self)
  if self.scope and is_done(self) then record.step(self) end
end

local function close_step(self)
  ul.scope_end(self.scope)
  self.scope, self.batch = nil, nil
end

local function end_step(self)
  record.step(self)
  self.taken = self.step
  close_step(self)
  if self.save_due then self:save() end
  stop.where_nothing_is_learnt(self)
  stop.where_asked_to(self)
end

-- A step that an error or a break has cut short is taken where its update is, else it is not.
local function leave_step(self)
  if not self.scope then return end
  if stop.has_updated(self) then
    record.step(self)
    self.taken = self.step
  end
  if self.step ~= self.taken then
    self.losses[self.step] = nil
    self.tokens, self.bad = self.before.tokens, self.before.bad
    ul.set_random_state(unpack(self.before.random))
    if self.optim then self.optim:zero_grad() end
    self.step = self.taken
  end
  close_step(self) -- last: only a step that is open is left once more
end

-- Positions that a loaded model has never seen say nothing to it at first.
local function compare_length(self)
  local settings, length = self.model.settings, self.data.length
  local most = type(settings) == 'table' and settings.max_tokens
  if most and length and length > most and agree.is_first(self.group) then
    log.say('rows of %d tokens are longer than the %d that the model is meant for '
            .. '(max_position_embeddings of its config.json, which max_tokens= of a recipe sets)',
            length, most)
  end
end

local function begin(self)
  self.begun = true
  compare_length(self)
  if self.optim then
    function self.optim.loss_of_step() return self.batch and self.batch:loss() or 0 end
  end
  ranks.compare_data(self)
  if self.dir then resume(self) end
  record.open(self)
  ul.reset_peak_memory()
end

local function finish(self)
  stop.watched(self, function()
    if not self.dir then return end
    self:save_now()
    record.describe(self)
  end)
  log.leave()
  if self.on_meta then log.say('%s', record.plan(self)) end
end

--- Iterates over step (from 1, or behind the newest checkpoint) and its batch. Each step is a
--- scope: what it makes and does not :keep() is freed before the next one. Behind the last step the
--- run is saved. SIGTERM and Ctrl-C end the step at work first.
---@param n integer how many steps there are to be in all
---@return fun(): integer?, table?
function Run:steps(n)
  if type(n) ~= 'number' or n < 0 or n ~= math.floor(n) then
    raise('run:steps: expected how many steps there are to be in all, got %s', tostring(n))
  end
  ranks.compare_places(self)
  leave_step(self)
  self.last = self.on_meta and math.min(n, META_STEPS) or n
  if not self.begun then begin(self) end
  record.tell_ranks(self)
  resume.tell(self)
  stop.watch(self, true)
  return function()
    if self.scope then end_step(self) end
    if self.taken >= self.last then return finish(self) end
    begin_step(self)
    return self.step, self.batch
  end
end

--- Adds values to the record of the step at work: numbers, or tensors of one element.
---@param values table<string, number|userdata>
function Run:log(values)
  if not self.scope then raise 'run:log: no step is at work' end
  if values.step ~= nil then raise 'run:log: the step is known to the run' end
  record.add(self, values)
end

-- ---- checkpoints ----

--- Saves the run in its folder, so that it can go on behind this step; what was saved before stays
--- until then. Where there is no folder, it does nothing. Before a step's update, and after a step
--- that was skipped, it is put off to the end of the next good one.
---@return string|nil path
function Run:save()
  if not self.dir or not self.begun then return nil end
  agree.meet(self.group, 'run:save')
  note_step(self)
  self.save_due = self.bad > 0 or self.scope ~= nil and not is_done(self)
  if self.save_due then return nil end
  return self:save_now()
end

--- The same where the run ends, after a skipped step too: the weights are those of the last good
--- one, and the run goes on behind the skipped one.
---@return string|nil path
function Run:save_now()
  if not self.dir or not self.begun then return nil end
  note_step(self)
  if self.saved == self.step then return self.saved_path end
  local ok, problem = pcall(uninterrupted, function()
    self.saved_path = checkpoint.save(self.dir, self.step, {
      model = self.model, optim = self.optim, config = self.config, keep = self.keep,
      group = self.group, base = self.base,
      state = { data = resume.fingerprint(self.data), tokens = self.tokens, seconds = self.seconds,
                bad = self.bad, last_good = self.last_good, scale = resume.scale_of(self.model) },
    })
    self.saved = self.step
  end)
  if ok then return self.saved_path end
  log.leave()
  error(problem, 0)
end

--- Calls f() behind the last step; as with a step, SIGTERM and Ctrl-C let it end first. It is for
--- what a run has to leave in the end, a model say. Ranks of a mesh call it together.
---
---   run:after(function() ul.hf.save('runs/x/model', model) end)
---@param f function
function Run:after(f)
  agree.meet(self.group, 'run:after')
  stop.watched(self, f)
end

-- ---- evaluation ----

--- The mean loss over all labels of `data`, each row once, and its exponential; the record gets
--- both, and nothing else is changed. Ranks of a mesh call it together and share the rows.
---@param data table what :batch() returns
---@return number loss NaN where there is no label
---@return number perplexity
function Run:eval(data)
  if type(data) ~= 'table' or not data.once then
    raise 'run:eval: expected what :batch() returns, as text:pack(seq_len):batch(n)'
  end
  agree.meet(self.group, 'run:eval')
  note_step(self)
  if self.on_meta then return nan, nan end
  data = ranks.share(self, data)
  local sum, count, random = 0, 0, { ul.random_state() }
  local function add(batch)
    self.model(batch)
    local labels = batch.denominator -- of all ranks
    sum, count = sum + batch:loss() * labels, count + labels
  end
  local loss = nan
  stop.watched(self, function()
    ul.no_grad(function()
      for batch in data:once() do
        ul.scope(add, batch)
        ul.set_random_state(unpack(random)) -- a run that is evaluated stays the same run
        stop.where_asked_to(self)
      end
    end)
    loss = count > 0 and sum / count or nan
    record.evaluation(self, loss, math.exp(loss))
  end)
  return loss, math.exp(loss)
end

--- Text that the model writes behind `prompt`; the record gets it too. Options as for ul.generate;
--- without a seed the step is the seed. On meta there is none. Ranks of a mesh call it together.
---@param prompt string
---@param given table?
---@return string
function Run:sample(prompt, given)
  agree.meet(self.group, 'run:sample')
  note_step(self)
  if self.on_meta then return '' end
  local how = { seed = self.step, mesh = self.mesh }
  for key, value in pairs(given or {}) do how[key] = value end
  local text
  stop.watched(self, function()
    text = ul.generate(self.model, prompt, how)
    record.sample(self, prompt, text)
  end)
  return text
end

--- Writes the page about the run, runs/x/report.html; nil where there is no folder. Of several
--- ranks the first one writes it, about the steps that are over.
---@return string|nil path
function Run:report()
  if not self.dir then return nil end
  if not self.group then note_step(self) end -- ranks need not all come here
  local path = self.dir .. '/report.html'
  if agree.is_first(self.group) then require('ulysses.report').write(self.dir) end
  return path
end

return new
