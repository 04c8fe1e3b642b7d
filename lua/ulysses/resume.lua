-- resume.lua - how a run finds what it has done before, and goes on as if it had never stopped.
local agree = require 'ulysses.agree'
local checkpoint = require 'ulysses.checkpoint'
local core = require 'ulysses.core'
local log = require 'ulysses.log'
local refuse = require 'ulysses.refuse'

local resume = {}

--- What tells the data apart from other data; nil where they cannot say.
---@param data table
---@return table|nil
function resume.fingerprint(data) return data.fingerprint and data:fingerprint() end

-- Leaves of nested tables by their path.
local function leaves(settings, prefix, found)
  for key, value in pairs(settings or {}) do
    local path = prefix .. tostring(key)
    if type(value) == 'table' and type(rawget(value, 1)) == 'string' then
      found[path] = table.concat(value, ',')
    elseif type(value) == 'table' then
      leaves(value, path .. '.', found)
    else
      found[path] = value
    end
  end
  return found
end

local function shown(value)
  if value == '' then return "''" end
  return value == nil and 'none' or tostring(value)
end

-- 'lr 0.001 -> 0.0005' for each setting that is not what it was.
local function changes(before, after)
  before, after = leaves(before, '', {}), leaves(after, '', {})
  local list = {}
  local function compare(name)
    if before[name] == after[name] then return end
    list[#list + 1] = ('%s %s -> %s'):format(name, shown(before[name]), shown(after[name]))
  end
  for name in pairs(before) do compare(name) end
  for name in pairs(after) do
    if before[name] == nil then compare(name) end
  end
  table.sort(list)
  return list
end

-- Whether a setting is one of `fixed`, or in a table that is.
local function is_fixed(fixed, name)
  for _, one in ipairs(fixed or {}) do
    if name == one or name:sub(1, #one + 1) == one .. '.' then return true end
  end
end

-- Refuses settings that would make another model of what was saved.
local function compare_fixed(run)
  local before = run.config and run.fixed and checkpoint.config(run.dir)
  for _, change in ipairs(before and changes(before, run.config) or {}) do
    local name, was, now = change:match '^(%S+) (.*) %-> (.*)$'
    if is_fixed(run.fixed, name) then
      refuse("run: '%s' was trained with %s=%s, not %s; set that again, or give this run a folder "
             .. 'of its own (out=..)', run.dir, name, was, now)
    end
  end
end

--- What adapters are multiplied with, which no parameter tells; nil where there are none.
---@param model table
---@return number|nil
function resume.scale_of(model)
  if not model.named_modules then return nil end
  for _, layer in model:named_modules() do
    if layer.lora_scale then return layer.lora_scale end
  end
end

-- What to do where the checkpoint is of another model, with the settings that may have made it so.
local function hint_of(run)
  local list = {}
  for _, change in ipairs(run.config and changes(checkpoint.config(run.dir), run.config) or {}) do
    if change:find '^model[. ]' or change:find '^dtype ' or change:find '^lora%.' then
      list[#list + 1] = change
    end
  end
  return 'give this run a folder of its own (out=..)'
    .. (#list > 0 and ', or set again what has changed: ' .. table.concat(list, ', ') or '')
end

-- What to do where the checkpoint is of other data: the file may be gone, or may have changed.
local function data_hint(run, difference)
  local own = 'give this run a folder of its own (out=..)'
  local before = run.config and checkpoint.config(run.dir)
  local was, now = before and before.data, run.config and rawget(run.config, 'data')
  if not difference:find '%(data' or type(was) ~= 'string' then
    return '; set that again, or ' .. own
  elseif was == now then
    return ("; give back what '%s' was, or set that again, or %s"):format(was, own)
  elseif was:find '[*?%[]' or core.system.kind_of(was) then
    return (", data='%s'; set that again, or %s"):format(was, own)
  end
  return (", data='%s', which is no longer there; %s"):format(was, own)
end

-- Finds the newest checkpoint of the run's folder, and takes everything from it. Other data would
-- make another run of it: refused.
local function take_up(run)
  agree.first(run.group, 'ul.run', compare_fixed, run)
  local state = checkpoint.load(run.dir, {
    model = run.model, optim = run.optim, random = true, group = run.group,
    base = run.base, hint = agree.first(run.group, 'ul.run', hint_of, run),
    warn = function(sentence) log.say('%s', sentence) end,
  })
  if not state then return end
  local difference = state.data and run.data.difference and run.data:difference(state.data)
  if difference then
    refuse("run: '%s' was trained on %s%s", run.dir, difference,
           agree.first(run.group, 'ul.run', data_hint, run, difference))
  end
  local scale = resume.scale_of(run.model)
  if state.scale and scale and state.scale ~= scale then
    refuse("run: '%s' was trained with adapters of alpha / rank = %g, not %g; set that again, or "
           .. 'give this run a folder of its own (out=..)', run.dir, state.scale, scale)
  end
  run.step, run.taken, run.resumed, run.saved = state.step, state.step, state.step, state.step
  run.saved_path = ('%s/step-%d'):format(run.dir, state.step)
  run.bad, run.last_good = state.bad or 0, state.last_good or state.step
  run.tokens, run.seconds = state.tokens or 0, state.seconds or 0
  agree.first(run.group, 'ul.run', function()
    run.changes = run.config and changes(checkpoint.config(run.dir), run.config) or {}
  end)
end

--- Says, once, that the run goes on, and what has changed.
---@param run Run
function resume.tell(run)
  if not run.changes or not agree.is_first(run.group) then return end
  if run.step < run.last then
    log.say('resumed %s at step %d of %d', run.dir, run.step, run.last)
  else
    log.say('%s is complete at step %d: nothing is left to do (more steps go on, another folder '
            .. 'begins anew)', run.dir, run.step)
  end
  if #run.changes > 0 then log.say('changed since: %s', table.concat(run.changes, ', ')) end
  run.changes = nil
end

return setmetatable(resume, { __call = function(_, run) return take_up(run) end })
