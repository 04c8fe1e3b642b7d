-- place.lua - the folder that a model or an adapter is saved in, whole or not there.
--
-- All is written to a folder beside it, each file is on the disk before the folder gets its name;
-- what was there keeps it until then. One process at a time writes there.
--
-- X.saving       what is being written, or what a killed program has left of it: of no use
-- X.saving.lock  locked while a process writes; without a process it holds up nobody
-- X.replaced     what X was, where a file system cannot exchange two names in one step
local agree = require 'ulysses.agree'
local core = require 'ulysses.core'
local log = require 'ulysses.log'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local uninterrupted = require 'ulysses.uninterrupted'

local place = {}

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

--- A folder, or where it is not there, what a save that was killed has left of it, which may have
--- its own name again meanwhile; nil where there is none.
---@param folder string
---@return string?
function place.find(folder)
  for _, name in ipairs { folder, folder .. '.replaced', (folder:gsub('%.replaced$', '')) } do
    if core.system.kind_of(name) == 'folder' then return name end
  end
end

-- ---- copies ----

-- Copies a file as it is.
local function copy(from, to)
  local file = io.open(from, 'rb')
  local text = file and file:read '*a'
  if file then file:close() end
  if not text then refuse('%s: cannot be read', from) end
  must(core.file_write(to, text))
end

--- The files that a tokenizer came from, with its chat template: where each lies, and its name.
--- Without a tokenizer they are those of the model's own folder.
---@param tok Tokenizer|table|string|nil a string: a folder or a file, or 'bytes'
---@param source string? the folder that the model came from
---@return { from: string, name: string }[]
function place.tokenizer_files(tok, source)
  local from = type(tok) == 'string' and tok ~= 'bytes' and tok
    or type(tok) == 'table' and (tok.path or tok.tokenizer and tok.tokenizer.path) or nil
  local folder, file, list = source, nil, {}
  if from and core.system.kind_of(from) == 'folder' then
    folder = from
  elseif from then
    folder, file = from:match '^(.*)/[^/]*$' or '.', from:match '[^/]*$'
  elseif tok then
    return list
  end
  folder = folder and place.find(folder)
  for _, name in ipairs(folder and core.folder_list(folder) or {}) do
    if is_copied(name) then list[#list + 1] = { from = folder .. '/' .. name, name = name } end
  end
  if file and not is_copied(file) then
    local name = file:find '%.json$' and 'tokenizer.json' or 'tokenizer.model'
    list[#list + 1] = { from = from, name = name }
  end
  return list
end

-- ---- the folder ----

-- The folder that a user has named; behind links, which stay what they are.
local function read_name(caller, folder)
  if type(folder) ~= 'string' or folder == '' then
    raise('%s: expected the name of a folder, got a %s', caller, type(folder))
  elseif folder:find '%z' then
    raise('%s: the name of a folder has no zero byte', caller)
  end
  if folder:sub(1, 2) == '~/' then folder = (os.getenv 'HOME' or '~') .. folder:sub(2) end
  local path = folder
  for _ = 1, 40 do
    path = path:gsub('(.)/+$', '%1')
    local target = core.system.link_of(path)
    local name = path:match '[^/]*$'
    if name == '.' or name == '..' then
      refuse("%s: a folder that is saved gets its name when it is whole; name it, and not '%s'",
             folder, name)
    end
    if not target then return path end
    path = target:sub(1, 1) == '/' and target or (path:match '^.*/' or '') .. target
  end
  refuse('%s: its links lead nowhere', folder)
end

-- Whether files of a tokenizer are among those that are saved.
local function has_tokenizer(files)
  for _, one in ipairs(files) do
    if is_copied(one.name) then return true end
  end
  return false
end

-- Refuses a place where something else would be lost.
local function check(folder, what, files)
  local kind = core.system.kind_of(folder)
  if kind and kind ~= 'folder' then refuse('%s: is a %s, not a folder', folder, kind) end
  for _, name in ipairs(kind and must(core.folder_list(folder)) or {}) do
    if not is_own(name, what) then
      refuse("%s: has '%s' in it, which is no part of what is saved and would be lost; save "
             .. 'elsewhere (save=..)', folder, name)
    elseif is_copied(name) and files and not has_tokenizer(files) then
      refuse("%s: has '%s' in it, which belongs to a tokenizer and would be lost, since none is "
             .. 'saved; save elsewhere', folder, name)
    end
  end
end

-- Refuses to remove what no save has left beside the folder.
local function check_beside(folder)
  for _, path in ipairs { folder .. '.saving', folder .. '.replaced' } do
    local kind = core.system.kind_of(path)
    if kind and kind ~= 'folder' then
      refuse('%s: is a %s, and would be lost; move it', path, kind)
    end
    for _, name in ipairs(kind and core.folder_list(path) or {}) do
      local plain = name:gsub('%.tmp$', '')
      if not is_own(plain, 'model') and not is_own(plain, 'adapter') then
        refuse("%s: has '%s' in it, which no save has left there and would be lost; move it", path,
               name)
      end
    end
  end
end

-- Refuses to take for a lock what is none.
local function check_lock(folder)
  local path = folder .. '.saving.lock'
  local kind = core.system.kind_of(path)
  local file = kind == 'file' and io.open(path, 'rb')
  local text = file and file:read(64) or ''
  if file then file:close() end
  if kind and kind ~= 'file' or not text:find '^%d*\n?$' then
    refuse('%s: no save has left it, and it would be lost; move it', path)
  end
end

local function folder_above(path) return path:match '^(.+)/[^/]*$' or path:match '^/' or '.' end

-- Refuses a place where no folder can be made, or get its name in the end.
local function check_room(folder)
  local above = folder_above(folder)
  while above ~= folder_above(above) and not core.system.kind_of(above) do
    above = folder_above(above)
  end
  local may, why = core.system.may_write(above)
  if not may then refuse('%s: cannot be saved in %s: %s', folder, above, why) end
  if core.system.is_mount(folder) then
    refuse('%s: a file system is mounted there, so that no other folder can take its place; save '
           .. 'into a folder in it', folder)
  end
end

--- Refuses what write() would refuse after all the work; a script that is planned will not write.
---@param caller string
---@param folder string
---@param what 'model'|'adapter'
---@param files { from: string, name: string }[]? of the tokenizer that will be saved
function place.check(caller, folder, what, files)
  folder = read_name(caller, folder)
  if core.planning() then return end
  check(folder, what, files)
  check_beside(folder)
  check_lock(folder)
  check_room(folder)
end

-- Keeps other processes from saving into the folder.
local function take(folder)
  check_lock(folder)
  must(core.folder_make(folder_above(folder)))
  local path = folder .. '.saving.lock'
  local lock, why = core.system.lock(path)
  if lock == nil then refuse('%s: cannot be created: %s', path, why) end
  if not lock then
    refuse('%s: another save into it is at work (process %d); save elsewhere, or after it', folder,
           why)
  end
  return function()
    core.path_remove(path)
    lock:release()
  end
end

-- Makes an empty folder to write to.
local function begin(folder, path, about)
  check(folder, about.what, about.files)
  check_room(folder)
  must(core.path_remove(path))
  must(core.folder_make(path))
  local free, needed = must(core.disk_free(path)), about.bytes * 1.01 + 2 ^ 20
  if free < needed then
    must(core.path_remove(path))
    refuse('%s: it needs %s, and the disk has %s free', folder, log.bytes(needed),
           log.bytes(free))
  end
end

-- Gives the finished folder its name; what had it is removed.
local function finish(folder, path)
  must(core.folder_sync(path))
  local replaces = core.system.kind_of(folder) ~= nil
  if not replaces then
    must(core.file_rename(path, folder))
  elseif not core.path_exchange(path, folder) then -- a file system that cannot
    must(core.path_remove(folder .. '.replaced'))
    must(core.file_rename(folder, folder .. '.replaced'))
    must(core.file_rename(path, folder))
  end
  must(core.folder_sync(folder_above(folder)))
  must(core.path_remove(path))
  must(core.path_remove(folder .. '.replaced'))
end

--- Writes a folder: write(path, together) puts files into the folder `path`; what the first rank
--- does alone, together(f, ..) does, and where it fails all ranks refuse the same, and nothing is
--- left. Where another process writes it, it refuses. A script that is planned writes nothing.
---@param folder string
---@param group Group?
---@param caller string
---@param about { bytes: integer, what: 'model'|'adapter', files: { from: string, name: string }[] }
--- files: those that are copied
---@param write fun(path: string, together: fun(f: function, ...))
function place.write(folder, group, caller, about, write)
  folder = read_name(caller, folder)
  if core.planning() then return end
  local path = folder .. '.saving'
  local let_go = function() end
  local function together(f, ...)
    agree.first(group, caller, function(...)
      local ok, sentence = pcall(f, ...)
      if ok then return end
      core.path_remove(path)
      error(sentence, 0)
    end, ...)
  end
  local function save()
    agree.first(group, caller, function() -- not together(), which removes `path` where it fails
      let_go = take(folder)
      check_beside(folder)
    end)
    together(begin, folder, path, about)
    write(path, together)
    together(function()
      for _, one in ipairs(about.files) do copy(one.from, path .. '/' .. one.name) end
      finish(folder, path)
    end)
  end
  uninterrupted(function()
    local ok, sentence = pcall(save)
    let_go()
    if not ok then error(sentence, 0) end
  end)
end

return place
