-- save.lua - ul.hf.save: a folder that Transformers loads, whole or not there.
--
-- All is written to a folder beside it, each file is on the disk before the folder gets its name;
-- what was there keeps it until then.
local agree = require 'ulysses.agree'
local config = require 'ulysses.hf.config'
local config_text = require 'ulysses.hf.config_made'
local core = require 'ulysses.core'
local json = require 'ulysses.json'
local names = require 'ulysses.hf.names'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local tokenizer = require 'ulysses.tokenizer'
local whole = require 'ulysses.checkpoint.whole'

local BYTES = { f32 = 4, bf16 = 2 }
local GB = 1000 ^ 3

-- What belongs to a tokenizer, and is copied as it is.
local copied = {
  'tokenizer.json', 'tokenizer.model', 'tekken.json', 'tokenizer_config.json',
  'special_tokens_map.json', 'added_tokens.json', 'vocab.json', 'merges.txt',
  'chat_template.jinja', 'chat_template.json',
}
local own = { 'config.json', 'generation_config.json', 'model.safetensors',
              'model.safetensors.index.json' }

local function must(ok, sentence)
  if not ok then refuse('%s', sentence) end
  return ok
end

local function is_copied(name)
  for _, one in ipairs(copied) do
    if one == name then return true end
  end
  return name:match '^tokenizer%.model%.v%d+$' ~= nil
end

local function is_own(name)
  for _, one in ipairs(own) do
    if one == name then return true end
  end
  return is_copied(name) or name:match '^model%-%d+%-of%-%d+%.safetensors$' ~= nil
end

-- ---- tensors ----

-- The parameters by the names of the checkpoint, cut into files of limited size.
local function plan(model, dtype, limit)
  local shards, room = {}, 0
  for _, item in ipairs(whole.of_model(model)) do
    local name, bytes = names.to_hf(item.name), BYTES[dtype]
    if not name then
      raise("hf.save: no checkpoint has a name for the parameter '%s'", item.name)
    end
    for _, size in ipairs(item.shape) do bytes = bytes * size end
    if #shards == 0 or bytes > room and #shards[#shards].items > 0 then
      shards[#shards + 1], room = { items = {}, bytes = 0 }, limit
    end
    local shard = shards[#shards]
    table.insert(shard.items, { name = name, item = item })
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
    local tensor = whole.gather(entry.item)
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

-- ---- folders ----

local function listed(folder)
  local there = {}
  for _, name in ipairs(core.folder_list(folder) or {}) do there[name] = true end
  return there
end

-- Refuses a place where something else would be lost, and makes an empty folder to write to.
local function begin(folder, path, bytes)
  local kind = core.system.kind_of(folder)
  if kind and kind ~= 'folder' then refuse('%s: is a %s, not a folder', folder, kind) end
  if not kind and core.system.kind_of(folder .. '.replaced') then -- see finish
    must(core.file_rename(folder .. '.replaced', folder))
  end
  for name in pairs(listed(folder)) do
    if not is_own(name) then
      refuse("%s: has '%s' in it, which is no part of a model and would be lost; save elsewhere",
             folder, name)
    end
  end
  must(core.path_remove(path))
  must(core.folder_make(path))
  local free = must(core.disk_free(path))
  if free < bytes * 1.01 + 2 ^ 20 then
    must(core.path_remove(path))
    refuse('%s: the model needs %.2f GB, and the disk has %.2f GB free', folder, bytes / GB,
           free / GB)
  end
end

local function copy(from, to)
  local file = io.open(from, 'rb')
  local text = file and file:read '*a'
  if file then file:close() end
  if not text then refuse('%s: cannot be read', from) end
  must(core.file_write(to, text))
end

-- Gives the finished folder its name; what had it is removed.
local function finish(folder, path)
  must(core.folder_sync(path))
  local replaces = core.system.kind_of(folder) ~= nil
  if not replaces then
    must(core.file_rename(path, folder))
  elseif not core.path_exchange(path, folder) then -- a file system that cannot
    must(core.file_rename(folder, folder .. '.replaced'))
    must(core.file_rename(path, folder))
  end
  must(core.folder_sync(folder:match '^(.+)/[^/]*$' or folder:match '^/' or '.'))
  must(core.path_remove(path))
  must(core.path_remove(folder .. '.replaced'))
end

-- The folder that a tokenizer's file lies in, and its name there.
local function place_of(tok)
  local path = tok and (tok.path or tok.tokenizer and tok.tokenizer.path)
  if not path then return nil end
  return path:match '^(.*)/[^/]*$' or '.', path:match '[^/]*$'
end

-- What comes along as it is: the tokenizer, and how the model is to be sampled.
local function write_rest(path, model, tok, text)
  must(core.file_write(path .. '/config.json', text))
  local folder, file = place_of(tok)
  for name in pairs(folder and listed(folder) or {}) do
    if is_copied(name) then copy(folder .. '/' .. name, path .. '/' .. name) end
  end
  if file and not is_copied(file) then
    copy(folder .. '/' .. file, path .. '/' .. (file:find '%.json$' and 'tokenizer.json'
                                                  or 'tokenizer.model'))
  end
  local generation = (model.source or '') .. '/generation_config.json'
  if model.source and config.read_file(generation, true) then
    copy(generation, path .. '/generation_config.json')
  end
end

local function save(folder, model, tok, read, group)
  local path, first = folder .. '.saving', agree.is_first(group)
  local shards, bytes = plan(model, read.dtype, read.shard), 0
  for _, shard in ipairs(shards) do bytes = bytes + shard.bytes end
  local function together(f, ...)
    agree.first(group, 'hf.save', function(...)
      local ok, sentence = pcall(f, ...)
      if ok then return end
      core.path_remove(path)
      error(sentence, 0)
    end, ...)
  end
  local text = config_text(model, read.dtype, tok, read)
  together(begin, folder, path, bytes)
  for _, shard in ipairs(shards) do
    core.no_grad(core.scope, function()
      together(write_shard, path, shard, tensors_of(shard, read.dtype, first))
    end)
  end
  together(function()
    if #shards > 1 then
      must(core.file_write(path .. '/model.safetensors.index.json', index_text(shards)))
    end
    write_rest(path, model, tok, text)
    finish(folder, path)
  end)
end

--- Saves a model so that Transformers loads it: model.safetensors, in several files with an index
--- where it is large, config.json, and as they are the tokenizer's files, its chat template and
--- generation_config.json. The folder is whole or not there; where a model was saved before, it
--- stays until the new one is whole. All ranks of the model's mesh call it together.
---   dtype     'f32' or 'bf16'; that of the parameters where it is left out
---   shard     bytes of a file at most, 5e9
---   settings  those of a recipe's model, which came from no folder: cfg.model; `max_tokens` is
---             the longest text that it has learned
---   config    other values for config.json
---@param folder string
---@param model table
---@param tok Tokenizer|string|table|nil that of the model where it is left out
---@param given { dtype: Dtype?, shard: integer?, settings: table?,
---  max_tokens: integer?, config: table? }?
return function(folder, model, tok, given)
  local read = options.read('hf.save', given, {
    dtype = options.none, shard = 5 * GB, settings = options.none, config = options.none,
    max_tokens = options.none,
  })
  if type(folder) ~= 'string' or folder == '' then
    raise('hf.save: expected the name of a folder, got a %s', type(folder))
  elseif type(model) ~= 'table' or not model.named_parameters then
    raise('hf.save: expected a model, got a %s', type(model))
  end
  if folder:sub(1, 2) == '~/' then folder = (os.getenv 'HOME' or '~') .. folder:sub(2) end
  folder = folder:gsub('(.)/+$', '%1')
  if not read.dtype then
    local dtype = model:parameters()[1]:dtype()
    read.dtype = BYTES[dtype] and dtype or 'f32'
  end
  if not BYTES[read.dtype] then
    raise("hf.save: a checkpoint is saved as f32 or bf16, not %s", tostring(read.dtype))
  end
  if type(tok) == 'string' then tok = tokenizer.resolve('hf.save', tok) end
  local world = model.mesh and model.mesh.world
  local group = world and world.size > 1 and world.transport ~= 'plan' and world or nil
  core.signals.hold()
  local ok, message = pcall(save, folder, model, tok or model.tokenizer, read, group)
  core.signals.release()
  if not ok then error(message, 0) end
end
