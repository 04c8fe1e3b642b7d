-- write.lua - writes the folder of one checkpoint.
local core = require 'ulysses.core'
local json = require 'ulysses.json'
local manifest = require 'ulysses.checkpoint.manifest'

local BYTES = { f32 = 4, bf16 = 2, f64 = 8, i32 = 4, i64 = 8, u8 = 1 }

-- What a tensor takes in the files beside its own bytes, at most, and a checkpoint beside those.
local RECORD, REST = 1024, 64 * 1024

-- The files to be made: a name, and a text or a list of { name, tensor }.
local function contents(step, given)
  local files = {}
  local function add(name, fields)
    fields.name = name
    files[#files + 1] = fields
  end
  local function tensors(name, part, iterator)
    local list = {}
    for key, tensor in iterator do list[#list + 1] = { key, tensor } end
    if #list > 0 then add(name, { part = part, tensors = list }) end
  end
  tensors('model.safetensors', 'model', given.model:named_parameters())
  local optimizer
  if given.optim then
    tensors('optimizer.safetensors', 'optimizer', given.optim:named_state())
    optimizer = { steps = given.optim.steps }
  end
  local seed, next_key = core.random_state()
  add('trainer_state.json', { text = json.encode({
    version = 1, step = step, random = { seed = seed, next = next_key }, optimizer = optimizer,
    state = given.state or {},
  }, { indent = 1 }) .. '\n' })
  if given.config then
    add('config.json', { text = json.encode(given.config, { indent = 2 }) .. '\n' })
  end
  return files
end

local function room_for(files)
  local bytes = REST
  for _, file in ipairs(files) do
    bytes = bytes + #(file.text or '')
    for _, item in ipairs(file.tensors or {}) do
      bytes = bytes + item[2]:numel() * BYTES[item[2]:dtype()] + RECORD
    end
  end
  return bytes * 1.01
end

local function size_text(bytes)
  if bytes < 2 ^ 20 then return ('%.0f KiB'):format(bytes / 2 ^ 10) end
  if bytes < 2 ^ 30 then return ('%.1f MiB'):format(bytes / 2 ^ 20) end
  return ('%.1f GiB'):format(bytes / 2 ^ 30)
end

local function check_room(dir, files)
  local free, sentence = core.disk_free(dir)
  if not free then return nil, sentence end
  local wanted = room_for(files)
  if free < wanted then
    return nil, ('%s: a checkpoint needs %s, and the disk has %s free'):format(
      dir, size_text(wanted), size_text(free))
  end
  return true
end

local function write_file(path, file)
  if file.text then return core.file_write(path, file.text) end
  local names, tensors = {}, {}
  for i, item in ipairs(file.tensors) do names[i], tensors[i] = item[1], item[2] end
  return core.safetensors_save(path, names, tensors, {})
end

local function write_all(path, step, files)
  local ok, sentence = core.folder_make(path)
  if not ok then return nil, sentence end
  local content = { step = step, files = {}, tensors = { model = {}, optimizer = {} } }
  for _, file in ipairs(files) do
    local bytes, hash = write_file(path .. '/' .. file.name, file)
    if not bytes then return nil, hash end
    content.files[file.name] = { bytes = bytes, xxh3 = hash }
    for _, item in ipairs(file.tensors or {}) do
      content.tensors[file.part][item[1]] = manifest.whole(item[2], file.name)
    end
  end
  ok, sentence = manifest.write(path, content)
  if ok then ok, sentence = core.folder_sync(path) end
  return ok, sentence
end

--- Writes the folder `name`.tmp in `dir`: files first, the manifest last. Where that fails, nothing
--- of it is left.
---@param dir string
---@param name string
---@param step integer
---@param given { model: table, optim: table?, state: table?, config: table? }
---@return true|nil ok, string? sentence
return function(dir, name, step, given)
  local files = contents(step, given)
  local path = dir .. '/' .. name .. '.tmp'
  local ok, sentence = check_room(dir, files)
  if ok then ok, sentence = write_all(path, step, files) end
  if not ok then
    core.path_remove(path)
    return nil, sentence
  end
  return true
end
