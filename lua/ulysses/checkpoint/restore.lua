-- restore.lua - copies one checkpoint, which is known to be whole, into a model and its optimizer.
local core = require 'ulysses.core'
local assemble = require 'ulysses.checkpoint.shards'
local json = require 'ulysses.json'
local manifest = require 'ulysses.checkpoint.manifest'
local refuse = require 'ulysses.refuse'
local safetensors = require 'ulysses.safetensors'

local function shape_text(shape) return '[' .. table.concat(shape, ', ') .. ']' end

local function same_shape(a, b)
  if #a ~= #b then return false end
  for d = 1, #a do
    if a[d] ~= b[d] then return false end
  end
  return true
end

local function sorted_keys(set)
  local keys = {}
  for key in pairs(set) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

-- Refuses the first difference between what is wanted, a list of { name, tensor }, and what the
-- manifest lists. `what`: 'parameter', `owner`: 'the model'
local function compare(path, what, owner, wanted, listed)
  local known = {}
  for _, item in ipairs(wanted) do
    local name, tensor, stored = item[1], item[2], listed[item[1]]
    known[name] = true
    if not stored then
      refuse("%s: %s '%s' %s of %s is not in the checkpoint", path, what, name,
             shape_text(tensor.shape), owner)
    end
    if not same_shape(stored.shape, tensor.shape) then
      refuse("%s: %s '%s' is %s in the checkpoint and %s in %s", path, what, name,
             shape_text(stored.shape), shape_text(tensor.shape), owner)
    end
    if stored.dtype ~= tensor:dtype() then
      refuse("%s: %s '%s' is %s in the checkpoint and %s in %s", path, what, name, stored.dtype,
             tensor:dtype(), owner)
    end
  end
  for _, name in ipairs(sorted_keys(listed)) do
    if not known[name] then
      refuse("%s: %s '%s' %s of the checkpoint is not in %s", path, what, name,
             shape_text(listed[name].shape), owner)
    end
  end
end

local function list_of(iterator)
  local list = {}
  for name, tensor in iterator do list[#list + 1] = { name, tensor } end
  return list
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

-- The optimizer's state, a list of { name, tensor }, with room for all that the checkpoint has.
local function optimizer_state(path, optim, listed)
  -- A parameter that was frozen when the optimizer was made has none yet.
  for name in pairs(listed) do optim:prepare(name:match '^(.*)%.' or name) end
  local wanted, names = list_of(optim:named_state()), {}
  for _, item in ipairs(wanted) do names[item[1]] = true end
  local there, here = kind_of(listed), kind_of(names)
  if there ~= here then
    refuse('%s: another kind of optimizer: the one in the checkpoint keeps %s, this one %s', path,
           there, here)
  end
  return wanted
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

local function fill(path, what, wanted, listed, open)
  for _, item in ipairs(wanted) do
    local name, tensor = item[1], item[2]
    local found = assemble(tensor, listed[name], name, open)
    if found ~= tensor:numel() then
      refuse("%s: %s '%s': %d of its %d numbers are in the checkpoint", path, what, name, found,
             tensor:numel())
    end
  end
end

-- JSON has neither NaN nor the infinities: they were written as null.
local function without_null(value)
  if value == json.null then return 0 / 0 end
  if type(value) ~= 'table' then return value end
  for key, inner in pairs(value) do value[key] = without_null(inner) end
  return value
end

--- All checks come before the first change.
---@param path string
---@param content table the manifest
---@param given { model: table?, optim: table? }
---@return table state
return function(path, content, given)
  local trainer, sentence = manifest.read_json(path, 'trainer_state.json')
  if not trainer then refuse('%s/%s', path, sentence) end
  local model, optim = given.model and list_of(given.model:named_parameters()), nil
  if model then compare(path, 'parameter', 'the model', model, content.tensors.model) end
  if given.optim then
    if not trainer.optimizer then refuse('%s: was saved without an optimizer', path) end
    optim = optimizer_state(path, given.optim, content.tensors.optimizer)
    compare(path, 'optimizer state', 'the optimizer', optim, content.tensors.optimizer)
  end
  local open = opener(path)
  core.no_grad(function()
    core.scope(function()
      if model then fill(path, 'parameter', model, content.tensors.model, open) end
      if optim then fill(path, 'optimizer state', optim, content.tensors.optimizer, open) end
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
