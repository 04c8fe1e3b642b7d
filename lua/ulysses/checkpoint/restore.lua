-- restore.lua - copies one checkpoint, which is known to be whole, into a model and its optimizer.
local agree = require 'ulysses.agree'
local base = require 'ulysses.checkpoint.base'
local core = require 'ulysses.core'
local assemble = require 'ulysses.checkpoint.shards'
local json = require 'ulysses.json'
local manifest = require 'ulysses.checkpoint.manifest'
local refuse = require 'ulysses.refuse'
local safetensors = require 'ulysses.safetensors'
local sorted_keys = require 'ulysses.sorted_keys'
local whole = require 'ulysses.checkpoint.whole'

local restore = {}

local function shape_text(shape) return '[' .. table.concat(shape, ', ') .. ']' end

local function same_shape(a, b)
  if #a ~= #b then return false end
  for d = 1, #a do
    if a[d] ~= b[d] then return false end
  end
  return true
end

-- Refuses the first difference between what is wanted, a list of items, and what the manifest
-- lists. `what`: 'parameter', `owner`: 'the model'
local function compare(path, what, owner, wanted, listed)
  local known = {}
  for _, item in ipairs(wanted) do
    local name, shape, dtype = item.name, item.shape, item.tensor:dtype()
    local stored = listed[name]
    known[name] = true
    if not stored then
      refuse("%s: %s '%s' %s of %s is not in the checkpoint", path, what, name,
             shape_text(shape), owner)
    end
    if not same_shape(stored.shape, shape) then
      refuse("%s: %s '%s' is %s in the checkpoint and %s in %s", path, what, name,
             shape_text(stored.shape), shape_text(shape), owner)
    end
    if stored.dtype ~= dtype then
      refuse("%s: %s '%s' is %s in the checkpoint and %s in %s", path, what, name, stored.dtype,
             dtype, owner)
    end
  end
  for _, name in ipairs(sorted_keys(listed)) do
    if not known[name] then
      refuse("%s: %s '%s' %s of the checkpoint is not in %s", path, what, name,
             shape_text(listed[name].shape), owner)
    end
  end
end

-- What an optimizer keeps for its parameters: 'exp_avg and exp_avg_sq'. Copies of the parameters
-- tell nothing about its kind.
local function kind_of(names)
  local fields = {}
  for name in pairs(names) do
    local field = name:match '[^.]*$'
    if field ~= 'master' then fields[field] = true end
  end
  local text = table.concat(sorted_keys(fields), ' and ')
  return text == '' and 'nothing' or text
end

-- Refuses another kind of optimizer.
local function compare_kinds(path, items, listed)
  local names = {}
  for _, item in ipairs(items) do names[item.name] = true end
  local there, here = kind_of(listed), kind_of(names)
  if there ~= here then
    refuse('%s: another kind of optimizer: the one in the checkpoint keeps %s, this one %s', path,
           there, here)
  end
end

-- Opens the files of a checkpoint, each once.
local function opener(path)
  local open = {}
  return function(name)
    if not open[name] then
      local file, sentence = safetensors.open(path .. '/' .. name)
      open[name] = file or refuse('%s', sentence)
    end
    return open[name]
  end
end

local function fill(path, what, items, listed, open, group)
  for _, item in ipairs(items) do
    whole.fill(item, group, function(target)
      local found = assemble(target, listed[item.name], item.name, open)
      if found ~= target:numel() then
        refuse("%s: %s '%s': %d of its %d numbers are in the checkpoint", path, what, item.name,
               found, target:numel())
      end
    end)
  end
end

-- JSON has neither NaN nor the infinities: they were written as null.
local function without_null(value)
  if value == json.null then return 0 / 0 end
  if type(value) ~= 'table' then return value end
  for key, inner in pairs(value) do value[key] = without_null(inner) end
  return value
end

--- What all ranks have to know of a checkpoint that one of them reads.
---@param path string
---@param content table the manifest
---@param with_optim boolean
---@return { path: string, trainer: table, optimizer: string[]?, base: table? }
function restore.outline(path, content, with_optim)
  local trainer, sentence = manifest.read_json(path, 'trainer_state.json')
  if not trainer then refuse('%s/%s', path, sentence) end
  if with_optim and not trainer.optimizer then
    refuse('%s: was saved without an optimizer', path)
  end
  return { path = path, trainer = trainer, base = content.base,
           optimizer = with_optim and json.array(sorted_keys(content.tensors.optimizer)) or nil }
end

-- Refuses what is not of the same names and shapes, with a hint where there is one.
local function compare_all(path, model, optim, listed, hint)
  local ok, problem = pcall(function()
    if model then compare(path, 'parameter', 'the model', model, listed.model) end
    if not optim then return end
    compare_kinds(path, optim, listed.optimizer)
    compare(path, 'optimizer state', 'the optimizer', optim, listed.optimizer)
  end)
  if not ok and hint and getmetatable(problem) then refuse('%s; %s', tostring(problem), hint) end
  if not ok then error(problem, 0) end
end

--- All checks come before the first change. The first rank of a group reads; all of them call it.
---@param outline table of restore.outline
---@param content table|nil the manifest, which the first rank has
---@param given { model: table?, optim: table?, base: string?, hint: string? }
---@param group Group?
---@return table state
function restore.fill(outline, content, given, group)
  local path, trainer, model, optim = outline.path, outline.trainer, nil, nil
  local listed = content and content.tensors or {}
  if given.model then model = whole.of_model(given.model, outline.base ~= nil) end
  if given.optim then
    -- A parameter that was frozen when the optimizer was made has none yet.
    for _, name in ipairs(outline.optimizer) do
      given.optim:prepare(name:match '^(.*)%.' or name)
    end
    optim = whole.of_optimizer(given.optim)
  end
  agree.first(group, 'checkpoint.load', function()
    if model and outline.base then
      base.compare(path, outline.base, given.base or given.model.source)
    end
    compare_all(path, model, optim, listed, given.hint)
  end)
  local open = opener(path)
  core.no_grad(function()
    core.scope(function()
      if model then fill(path, 'parameter', model, listed.model, open, group) end
      if optim then fill(path, 'optimizer state', optim, listed.optimizer, open, group) end
    end)
  end)
  if given.optim then given.optim.steps = trainer.optimizer.steps end
  if given.optim or given.random then
    core.set_random_state(trainer.random.seed, trainer.random.next)
  end
  local state = without_null(trainer.state)
  state.step = trainer.step
  return state
end

return restore
