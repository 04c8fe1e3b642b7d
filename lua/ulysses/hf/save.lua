-- save.lua - ul.hf.save: a folder that Transformers loads, whole or not there.
local adapter = require 'ulysses.nn.adapter'
local agree = require 'ulysses.agree'
local config = require 'ulysses.hf.config'
local config_text = require 'ulysses.hf.config_made'
local core = require 'ulysses.core'
local dtype_bytes = require 'ulysses.dtype_bytes'
local json = require 'ulysses.json'
local names = require 'ulysses.hf.names'
local options = require 'ulysses.options'
local place = require 'ulysses.hf.place'
local raise = require 'ulysses.raise'
local tokenizer = require 'ulysses.tokenizer'
local whole = require 'ulysses.checkpoint.whole'

local must = place.must

local GB = 1000 ^ 3

-- ---- tensors ----

-- The parameters that a checkpoint has: adapters go into the weights that they adapt.
local function saved_items(model)
  local list = {}
  for _, item in ipairs(whole.of_model(model)) do
    if not item.name:find '%.lora_[ab]$' then list[#list + 1] = item end
  end
  return list
end

-- The parameters by the names of the checkpoint, cut into files of limited size.
local function plan(model, dtype, limit)
  local shards, room, layers = {}, 0, {}
  for name, _, owner in model:named_parameters() do layers[name] = owner end
  for _, item in ipairs(saved_items(model)) do
    local name, bytes = names.to_hf(item.name), dtype_bytes[dtype]
    if not name then
      raise("hf.save: no checkpoint has a name for the parameter '%s'", item.name)
    end
    for _, size in ipairs(item.shape) do bytes = bytes * size end
    if #shards == 0 or bytes > room and #shards[#shards].items > 0 then
      shards[#shards + 1], room = { items = {}, bytes = 0 }, limit
    end
    local shard = shards[#shards]
    local layer = layers[item.name]
    local adapted = layer.lora_a and item.name:find '%.weight$' and layer or nil
    table.insert(shard.items, { name = name, item = item, adapted = adapted })
    shard.bytes, room = shard.bytes + bytes, room - bytes
  end
  for i, shard in ipairs(shards) do
    shard.file = #shards == 1 and 'model.safetensors'
      or ('model-%05d-of-%05d.safetensors'):format(i, #shards)
  end
  return shards
end

-- Every rank has a part in this; the first one needs the result.
local function tensors_of(shard, dtype, first)
  local list = {}
  for i, entry in ipairs(shard.items) do
    local item = entry.item
    local mine, part = item.tensor, item.part
    if entry.adapted then -- of what the layer computes with
      mine = adapter.merged(entry.adapted)
      if part and part.flat then part = part.inner end
    end
    local tensor = whole.gather { tensor = mine, part = part }
    if first then list[i] = tensor:detach():to { dtype = dtype, device = 'cpu' } end
  end
  return list
end

local function write_shard(path, shard, tensors)
  local list = {}
  for i, entry in ipairs(shard.items) do list[i] = entry.name end
  must(core.safetensors_save(path .. '/' .. shard.file, list, tensors, { 'format', 'pt' }))
end

local function index_text(shards)
  local map, total = {}, 0
  for _, shard in ipairs(shards) do
    total = total + shard.bytes
    for _, entry in ipairs(shard.items) do map[entry.name] = shard.file end
  end
  local index = { metadata = { total_size = total }, weight_map = map }
  return json.encode(index, { indent = 2 }) .. '\n'
end

-- What comes along as it is: the tokenizer, and how the model is to be sampled.
local function files_of(model, tok)
  local files = place.tokenizer_files(tok or model.tokenizer, model.source)
  local source = model.source and place.find(model.source)
  local generation = (source or '') .. '/generation_config.json'
  if source and config.read_file(generation, true) then
    files[#files + 1] = { from = generation, name = 'generation_config.json' }
  end
  return files
end

local function save(folder, model, tok, read, group)
  local shards, bytes = plan(model, read.dtype, read.shard), 0
  for _, shard in ipairs(shards) do bytes = bytes + shard.bytes end
  local text = config_text(model, read.dtype, tok or model.tokenizer, read)
  local about = { bytes = bytes, what = 'model', files = files_of(model, tok) }
  place.write(folder, group, 'hf.save', about, function(path, together)
    for _, shard in ipairs(shards) do
      core.no_grad(core.scope, function()
        local tensors = tensors_of(shard, read.dtype, agree.is_first(group))
        together(write_shard, path, shard, tensors)
      end)
    end
    together(function()
      if #shards > 1 then
        must(core.file_write(path .. '/model.safetensors.index.json', index_text(shards)))
      end
      must(core.file_write(path .. '/config.json', text))
    end)
  end)
end

--- Saves a model so that Transformers loads it: model.safetensors, in several files with an index
--- where it is large, config.json, and as they are the tokenizer's files, its chat template and
--- generation_config.json. The folder is whole or not there; where a model was saved before, it
--- stays until the new one is whole; where `folder` is a link, that is what it points at. It
--- refuses a folder in which files lie that are no model's, or a tokenizer's where none is saved,
--- and one that another process is saving into. All ranks of the model's mesh call it together.
---   dtype     'f32' or 'bf16'; where it is left out, bf16 if the parameters or the folder that
---             they came from are, else f32
---   shard     bytes of a file at most, 5e9
---   settings  those of a recipe's model, which came from no folder: cfg.model; `max_tokens` is
---             the longest text that it has learned
---   config    other values for config.json
---@param folder string
---@param model table
---@param tok Tokenizer|string|table|nil that of the model, or of the folder that it came from,
--- where it is left out
---@param given { dtype: Dtype?, shard: integer?, settings: table?,
---  max_tokens: integer?, config: table? }?
return function(folder, model, tok, given)
  local read = options.read('hf.save', given, {
    dtype = options.none, shard = 5 * GB, settings = options.none, config = options.none,
    max_tokens = options.none,
  })
  if type(model) ~= 'table' or not model.named_parameters then
    raise('hf.save: expected a model, got a %s', type(model))
  end
  if not read.dtype then
    local came_from = model.config and model.config.dtype
    read.dtype = (came_from == 'bf16' or model:parameters()[1]:dtype() == 'bf16') and 'bf16'
      or 'f32'
  end
  if read.dtype ~= 'f32' and read.dtype ~= 'bf16' then
    raise("hf.save: a checkpoint is saved as f32 or bf16, not %s", tostring(read.dtype))
  end
  if type(tok) == 'string' then tok = tokenizer.resolve('hf.save', tok) end
  save(folder, model, tok, read, place.group_of(model))
end
