-- metrics.lua - files of one JSON object a line, each with its step: metrics.jsonl, samples.jsonl.
--
-- Lines stand in the order of steps; several lines of one step belong together. A line is written
-- as a whole or, where the machine went down, broken off at the end of the file.
local core = require 'ulysses.core'
local json = require 'ulysses.json'
local open_file = require 'ulysses.open_file'
local refuse = require 'ulysses.refuse'

local NO_SUCH_FILE = 2

---@class Lines
local Lines = {}
Lines.__index = Lines

-- Calls visit(record, its end in bytes) for each whole line of the file. Returns the bytes of all.
local function each(path, visit)
  local file, why, code = open_file(path, 'rb')
  if not file and code ~= NO_SUCH_FILE then refuse('cannot read %s', why) end
  if not file then return 0 end
  local at, size = 0, file:seek 'end'
  file:seek 'set'
  for line in (size > 0 and file:lines() or function() end) do
    at = at + #line + 1
    local record = at <= size and json.decode(line)
    local whole = type(record) == 'table' and type(record.step) == 'number'
    if whole and visit(record, at) == false then break end
  end
  file:close()
  return size
end

--- Opens the file to go on behind `step`: later lines are cut off. visit gets what stays.
---@param path string
---@param step integer
---@param visit fun(record: table)?
---@return Lines
local function open(path, step, visit)
  local keep = 0
  local size = each(path, function(record, at)
    if record.step > step then return false end
    keep = at
    if visit then visit(record) end
  end)
  if size > keep then
    local ok, why = core.system.cut_file(path, keep)
    if not ok then refuse("cannot write '%s': %s", path, why) end
  end
  local file, why = open_file(path, 'ab')
  if not file then refuse("cannot write '%s': %s", path, (why:gsub('^.*: ', ''))) end
  return setmetatable({ path = path, file = file, size = keep }, Lines)
end

--- Writes a line; it is in the system's hands when this returns.
---@param record table with its step; a number that is not finite becomes null
function Lines:write(record)
  local line = json.encode(record) .. '\n'
  local ok, why = self.file:write(line)
  if ok then ok, why = self.file:flush() end
  if ok then
    self.size = self.size + #line
    return
  end
  -- Half a line must not stay for the next one to be joined to.
  self.file:close()
  core.system.cut_file(self.path, self.size)
  self.file = io.open(self.path, 'ab') or self.file
  refuse("cannot write '%s': %s", self.path, (why:gsub('^.*: ', '')))
end

-- Compiled code that finds flush() failing calls it once more, and that succeeds: nothing is left.
jit.off(Lines.write)

function Lines:close() self.file:close() end

--- All records of a file, as many as it has lines.
---@param path string
---@return table[]
local function read_all(path)
  local records = {}
  each(path, function(record) records[#records + 1] = record end)
  return records
end

--- The same with the lines of one step put together, in the order of steps.
---@param path string
---@return table[]
local function read(path)
  local records = {}
  each(path, function(record)
    local last = records[#records]
    if not last or last.step ~= record.step then
      records[#records + 1] = record
      return
    end
    for key, value in pairs(record) do last[key] = value end
  end)
  return records
end

return { open = open, read = read, read_all = read_all }
