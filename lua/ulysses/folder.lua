-- folder.lua - the folder of a run: made, found writable, and held by one run at a time.
local core = require 'ulysses.core'
local refuse = require 'ulysses.refuse'

-- Locks of this process by path: at the prompt a new run may take the folder of the one before it.
local held = {}

--- Makes the folder where there is none and locks it until this process ends or another run in it
--- asks for the same folder; refuses where it cannot be written or another process runs in it.
---@param path string
---@return table lock
local function open(path)
  local ok, why = core.folder_make(path)
  if not ok then refuse('run: %s', why) end
  if held[path] then held[path]:release() end
  local lock
  local kind = core.system.kind_of(path .. '/lock')
  if kind and kind ~= 'file' then refuse("run: %s/lock: it is a %s, not a file", path, kind) end
  lock, why = core.system.lock(path .. '/lock')
  if lock == nil then refuse("run: cannot write to the folder '%s': %s", path, why) end
  if not lock then
    refuse("run: another run is at work in '%s' (process %d); give this one a folder of its own "
           .. '(out=..)', path, why)
  end
  held[path] = lock
  return lock
end

--- Writes a whole file: what was there stays until the new text is on the disk.
---@param path string
---@param text string
local function write(path, text)
  local ok, why = core.file_write(path .. '.new', text)
  if ok then ok, why = core.file_rename(path .. '.new', path) end
  if ok then return end
  core.path_remove(path .. '.new')
  refuse('%s', why)
end

return { open = open, write = write }
