-- folder.lua - the folder that holds the checkpoints of a run: what is in it, and tidying up.
--
-- step-12       a checkpoint
-- step-12.tmp   one that is being written, or removed: of no use
-- step-12.old   one that is being replaced: of use where there is no step-12
-- latest        points at the newest
local core = require 'ulysses.core'
local manifest = require 'ulysses.checkpoint.manifest'

local folder = {}

local NO_SUCH_FILE = 2

--- The names of checkpoints by their step, and the steps in rising order; none where there is no
--- such folder.
---@param dir string
---@return table<integer, string>|nil names, integer[]|string steps or what is wrong
function folder.find(dir)
  local list, sentence = core.folder_list(dir)
  local names, steps = {}, {}
  if not list then
    local code = not core.system.kind_of(dir) and select(3, io.open(dir))
    if code == NO_SUCH_FILE then return names, steps end
    return nil, sentence
  end
  for _, name in ipairs(list) do
    local digits, tail = name:match '^step%-(%d+)(.*)$'
    local step = tonumber(digits)
    if step and (tail == '' or tail == '.old') and tostring(step) == digits then
      if not names[step] then steps[#steps + 1] = step end
      if not names[step] or tail == '' then names[step] = name end
    end
  end
  table.sort(steps)
  return names, steps
end

--- Ends what a killed program left behind.
---@param dir string
---@return true|nil ok, string? sentence
function folder.tidy(dir)
  local list, sentence = core.folder_list(dir)
  if not list then return nil, sentence end
  local there, ok = {}, true
  for _, name in ipairs(list) do there[name] = true end
  for _, name in ipairs(list) do
    local step, tail = name:match '^(step%-%d+)%.(%a+)$'
    local path = dir .. '/' .. name
    if tail == 'old' and not there[step] then
      ok, sentence = core.file_rename(path, dir .. '/' .. step)
    elseif tail == 'old' or tail == 'tmp' or name == 'latest.tmp' then
      ok, sentence = core.path_remove(path)
    end
    if not ok then return nil, sentence end
  end
  return true
end

-- Takes the folder of this name away first, if there is one. Either both happen or neither.
local function replace(path)
  local replaces = core.folder_list(path) ~= nil
  local ok, sentence = true, nil
  if replaces then ok, sentence = core.file_rename(path, path .. '.old') end
  if not ok then return nil, sentence end
  ok, sentence = core.file_rename(path .. '.tmp', path)
  if not ok and replaces then core.file_rename(path .. '.old', path) end
  return ok, sentence
end

--- Gives the finished folder step-N.tmp its name. Where that fails, it is gone.
---@return true|nil ok, string? sentence
function folder.finish(dir, name)
  local path = dir .. '/' .. name
  local ok, sentence = replace(path)
  if not ok then
    core.path_remove(path .. '.tmp')
    return nil, sentence
  end
  ok, sentence = core.folder_sync(dir)
  if ok then ok, sentence = core.path_remove(path .. '.old') end
  if not ok then return nil, sentence end
  ok, sentence = core.file_point(dir .. '/latest', name)
  if not ok and sentence:find 'Is a directory' then -- in a copy that has followed the link
    core.path_remove(dir .. '/latest')
    ok, sentence = core.file_point(dir .. '/latest', name)
  end
  return ok, sentence
end

local function is_whole(path)
  local content = manifest.read(path)
  return content and manifest.check_sizes(path, content)
end

--- Removes all but the `keep` newest up to `step`. Damaged ones do not count, and those of later
--- steps are left alone: nothing that might be the only good one is removed.
---@return true|nil ok, string? sentence
function folder.prune(dir, step, keep)
  local names, steps = folder.find(dir)
  if not names then return nil, steps end
  local kept = 0
  for i = #steps, 1, -1 do
    local path = dir .. '/' .. names[steps[i]]
    if steps[i] <= step and kept >= keep then
      local ok, sentence = core.file_rename(path, path .. '.tmp')
      if ok then ok, sentence = core.path_remove(path .. '.tmp') end
      if not ok then return nil, sentence end
    elseif steps[i] <= step and is_whole(path) then
      kept = kept + 1
    end
  end
  return true
end

return folder
