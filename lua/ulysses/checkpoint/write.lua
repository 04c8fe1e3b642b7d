-- write.lua - writes the folder of one checkpoint.
local agree = require 'ulysses.agree'
local base = require 'ulysses.checkpoint.base'
local core = require 'ulysses.core'
local dtype_bytes = require 'ulysses.dtype_bytes'
local json = require 'ulysses.json'
local log = require 'ulysses.log'
local manifest = require 'ulysses.checkpoint.manifest'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local whole = require 'ulysses.checkpoint.whole'

-- What a tensor takes in the files beside its own bytes, at most, and a checkpoint beside those.
local RECORD, REST = 1024, 64 * 1024

-- Tensors that are put together from parts of several ranks are in memory, whole, as long as their
-- file is written: so many bytes go into one.
local AT_ONCE = 2 ^ 30

local function bytes_of(item)
  local n = dtype_bytes[item.tensor:dtype()]
  for _, size in ipairs(item.shape) do n = n * size end
  return n
end

-- The files for a list of tensors: one, or several of limited size where they have to be gathered.
local function files_for(part, items)
  local files, room = {}, 0
  for _, item in ipairs(items) do
    local bytes = item.part and bytes_of(item) or 0
    if #files == 0 or room < bytes then
      local number = #files > 0 and '-' .. #files + 1 or ''
      files[#files + 1] = { name = part .. number .. '.safetensors', part = part, items = {} }
      room = AT_ONCE
    end
    table.insert(files[#files].items, item)
    room = room - bytes
  end
  return files
end

-- The files to be made: a name, and a text or a list of items.
local function contents(step, given)
  local files = files_for('model', whole.of_model(given.model, given.base ~= nil))
  local optimizer
  if given.optim then
    for _, file in ipairs(files_for('optimizer', whole.of_optimizer(given.optim))) do
      files[#files + 1] = file
    end
    optimizer = { steps = given.optim.steps }
  end
  local seed, next_key = core.random_state()
  files[#files + 1] = { name = 'trainer_state.json', text = json.encode({
    version = 1, step = step, random = { seed = seed, next = next_key }, optimizer = optimizer,
    state = given.state or {},
  }, { indent = 1 }) .. '\n' }
  if given.config then
    files[#files + 1] = { name = 'config.json',
                          text = json.encode(given.config, { indent = 2 }) .. '\n' }
  end
  return files
end

local function room_for(files)
  local bytes = REST
  for _, file in ipairs(files) do
    bytes = bytes + #(file.text or '')
    for _, item in ipairs(file.items or {}) do bytes = bytes + bytes_of(item) + RECORD end
  end
  return bytes * 1.01
end

local function check_room(dir, files)
  local free, sentence = core.disk_free(dir)
  if not free then return nil, sentence end
  local wanted = room_for(files)
  if free < wanted then
    return nil, ('%s: a checkpoint needs %s, and the disk has %s free'):format(
      dir, log.bytes(wanted), log.bytes(free))
  end
  return true
end

local function begin(dir, path, files, content, folder)
  if folder then content.base = base.of(folder) end
  local ok, sentence = check_room(dir, files)
  if ok then ok, sentence = core.folder_make(path) end
  return ok, sentence
end

-- Writes a file and lists it. `tensors`: those of its items, whole
local function write_file(path, file, tensors, content)
  local bytes, hash
  if file.text then
    bytes, hash = core.file_write(path .. '/' .. file.name, file.text)
  else
    local names = {}
    for i, item in ipairs(file.items) do names[i] = item.name end
    bytes, hash = core.safetensors_save(path .. '/' .. file.name, names, tensors, {})
  end
  if not bytes then return nil, hash end
  content.files[file.name] = { bytes = bytes, xxh3 = hash }
  for i, item in ipairs(file.items or {}) do
    content.tensors[file.part][item.name] = manifest.whole(tensors[i], file.name)
  end
  return true
end

local function finish(path, content)
  local ok, sentence = manifest.write(path, content)
  if ok then ok, sentence = core.folder_sync(path) end
  return ok, sentence
end

local function gathered(items)
  local tensors = {}
  for i, item in ipairs(items or {}) do tensors[i] = whole.gather(item) end
  return tensors
end

--- Looks at what is to be written and returns a function that writes the folder `name`.tmp in
--- `dir`: files first, the manifest last. Where that fails, nothing of it is left, and it refuses.
--- The first rank of a group writes; all of them call it.
---@param dir string
---@param name string
---@param step integer
---@param given { model: table, optim: table?, state: table?, config: table?, base: string? }
---@param group Group?
---@return function
return function(dir, name, step, given, group)
  local files, path = contents(step, given), dir .. '/' .. name .. '.tmp'
  local content = { step = step, files = {}, tensors = { model = {}, optimizer = {} } }
  local function attempt(f, ...)
    local ok, sentence = f(...)
    if ok then return end
    core.path_remove(path)
    refuse('%s', sentence)
  end
  local function first(...) agree.first(group, 'checkpoint.save', attempt, ...) end
  for _, file in ipairs(group and {} or files) do
    if whole.has_parts(file.items or {}) then
      raise 'checkpoint.save: ranks hold parts of these weights; give it their mesh: mesh = mesh'
    end
  end
  return function()
    first(begin, dir, path, files, content, given.base)
    for _, file in ipairs(files) do
      core.scope(function() first(write_file, path, file, gathered(file.items), content) end)
    end
    first(finish, path, content)
  end
end
