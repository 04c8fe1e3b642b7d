-- place.lua - the folder that a model or an adapter is saved in, whole or not there.
--
-- All is written to a folder beside it, each file is on the disk before the folder gets its name;
-- what was there keeps it until then.
local agree = require 'ulysses.agree'
local core = require 'ulysses.core'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'

local place = {}

local GB = 1000 ^ 3

-- What belongs to a tokenizer, and is copied as it is.
local copied = {
  'tokenizer.json', 'tokenizer.model', 'tekken.json', 'tokenizer_config.json',
  'special_tokens_map.json', 'added_tokens.json', 'vocab.json', 'merges.txt',
  'chat_template.jinja', 'chat_template.json',
}

local function is_copied(name)
  for _, one in ipairs(copied) do
    if one == name then return true end
  end
  return name:match '^tokenizer%.model%.v%d+$' ~= nil
end

local of_model = { ['config.json'] = true, ['generation_config.json'] = true,
                   ['model.safetensors'] = true, ['model.safetensors.index.json'] = true }
local of_adapter = { ['adapter_config.json'] = true, ['adapter_model.safetensors'] = true }

-- Whether a file is one of those that saving writes. kind: 'model' or 'adapter'
local function is_own(name, kind)
  if is_copied(name) then return true end
  if kind == 'adapter' then return of_adapter[name] end
  return of_model[name] or name:match '^model%-%d+%-of%-%d+%.safetensors$' ~= nil
end

--- `ok`, or a refusal.
function place.must(ok, sentence)
  if not ok then refuse('%s', sentence) end
  return ok
end
local must = place.must

--- The ranks that save a model together; nil where it is one.
---@param model table
---@return Group?
function place.group_of(model)
  local world = model.mesh and model.mesh.world
  return world and world.size > 1 and world.transport ~= 'plan' and world or nil
end

-- ---- copies ----

--- Copies a file as it is.
---@param from string
---@param to string
function place.copy(from, to)
  local file = io.open(from, 'rb')
  local text = file and file:read '*a'
  if file then file:close() end
  if not text then refuse('%s: cannot be read', from) end
  must(core.file_write(to, text))
end

--- Copies the files of a tokenizer that came from a file, and its chat template, to a folder.
---@param tok Tokenizer|table|nil
---@param path string
function place.copy_tokenizer(tok, path)
  local from = tok and (tok.path or tok.tokenizer and tok.tokenizer.path)
  if not from then return end
  local folder, file = from:match '^(.*)/[^/]*$' or '.', from:match '[^/]*$'
  for _, name in ipairs(core.folder_list(folder) or {}) do
    if is_copied(name) then place.copy(folder .. '/' .. name, path .. '/' .. name) end
  end
  if not is_copied(file) then
    place.copy(from, path .. (file:find '%.json$' and '/tokenizer.json' or '/tokenizer.model'))
  end
end

-- ---- the folder ----

-- The name of a folder that a user has given.
local function read_name(caller, folder)
  if type(folder) ~= 'string' or folder == '' then
    raise('%s: expected the name of a folder, got a %s', caller, type(folder))
  end
  if folder:sub(1, 2) == '~/' then folder = (os.getenv 'HOME' or '~') .. folder:sub(2) end
  return (folder:gsub('(.)/+$', '%1'))
end

-- Refuses a place where something else would be lost.
local function check(folder, what)
  local kind = core.system.kind_of(folder)
  if kind and kind ~= 'folder' then refuse('%s: is a %s, not a folder', folder, kind) end
  for _, name in ipairs(kind and must(core.folder_list(folder)) or {}) do
    if not is_own(name, what) then
      refuse("%s: has '%s' in it, which is no part of what is saved and would be lost; save "
             .. 'elsewhere', folder, name)
    end
  end
  return kind
end

-- Refuses to remove what no save has left beside the folder.
local function check_beside(path)
  local kind = core.system.kind_of(path)
  if kind and kind ~= 'folder' then
    refuse('%s: is a %s, and would be lost; move it', path, kind)
  end
  for _, name in ipairs(kind and must(core.folder_list(path)) or {}) do
    local plain = name:gsub('%.tmp$', '')
    if not is_own(plain, 'model') and not is_own(plain, 'adapter') then
      refuse("%s: has '%s' in it, which no save has left there and would be lost; move it", path,
             name)
    end
  end
end

--- Refuses what write() would refuse after all the work.
---@param caller string
---@param folder string
---@param what 'model'|'adapter'
function place.check(caller, folder, what)
  folder = read_name(caller, folder)
  check(folder, what)
  check_beside(folder .. '.saving')
  check_beside(folder .. '.replaced')
end

-- Makes an empty folder to write to.
local function begin(folder, path, about)
  if not check(folder, about.what) and core.system.kind_of(folder .. '.replaced') then
    must(core.file_rename(folder .. '.replaced', folder)) -- see finish
  end
  must(core.path_remove(path))
  must(core.folder_make(path))
  local free = must(core.disk_free(path))
  if free < about.bytes * 1.01 + 2 ^ 20 then
    must(core.path_remove(path))
    refuse('%s: it needs %.2f GB, and the disk has %.2f GB free', folder, about.bytes / GB,
           free / GB)
  end
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

-- Calls f so that Ctrl-C is an error only afterwards.
local function uninterrupted(f)
  core.signals.hold()
  local ok, message = pcall(f)
  core.signals.release()
  if not ok then error(message, 0) end
end

--- Writes a folder: write(path, together) puts files into the folder `path`; what the first rank
--- does alone, together(f, ..) does, and where it fails all ranks refuse the same, and nothing is
--- left.
---@param folder string
---@param group Group?
---@param caller string
---@param about { bytes: integer, what: 'model'|'adapter' }
---@param write fun(path: string, together: fun(f: function, ...))
function place.write(folder, group, caller, about, write)
  folder = read_name(caller, folder)
  local path = folder .. '.saving'
  local function together(f, ...)
    agree.first(group, caller, function(...)
      local ok, sentence = pcall(f, ...)
      if ok then return end
      core.path_remove(path)
      error(sentence, 0)
    end, ...)
  end
  agree.first(group, caller, function() -- not together(), which removes `path` where it fails
    check_beside(path)
    check_beside(folder .. '.replaced')
  end)
  uninterrupted(function()
    together(begin, folder, path, about)
    write(path, together)
    together(finish, folder, path)
  end)
end

return place
