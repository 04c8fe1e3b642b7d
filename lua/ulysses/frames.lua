-- frames.lua - callers outside of the library: their variables, and tracebacks that show only them.

local folder = debug.getinfo(1, 'S').source:match '^(.*[/\\])' or '@./'

local frames = {}

-- ---- tracebacks ----

local advice

--- What is said behind an error that tells of memory.
---@param sentence string
function frames.advise_on_memory(sentence) advice = sentence end

--- Leaves out lines of the library, of C and of the program from the text of a traceback.
---@param text string
---@return string
function frames.trim(text)
  local message, trace = text:match '^(.-)\nstack traceback:(.*)$'
  if not message then return text end
  if advice and message:find('out of memory', 1, true) then message = message .. '\n' .. advice end
  local lines = {}
  for line in trace:gmatch '[^\n]+' do
    local known = line:find '[/\\]ulysses[/\\][%w_/\\]*%.lua:%d+: in ' or line:find '^%s*%[C%]'
      or line:find '^%s*ulysses%-lua:%d+'
    known = known or line:find '^%s*stdin:%d+: in main chunk' -- what was just typed
    if not known then lines[#lines + 1] = line end
  end
  if #lines == 0 then return message end
  return message .. '\nstack traceback:\n' .. table.concat(lines, '\n')
end

-- ---- variables ----

---@class Variables
local Variables = {}
Variables.__index = Variables

-- Levels from the function that calls this one to the bottom of the stack.
local function height()
  local n = 1
  while debug.getinfo(n + 1, 'l') do n = n + 1 end
  return n - 1
end

local function is_library(info)
  return info.what == 'C' or info.source == '=ulysses-lua'
    or info.source:sub(1, #folder) == folder
end

-- The nearest level outside of the library, seen from the caller.
local function outside()
  local level = 2
  local info = debug.getinfo(level, 'S')
  while info and is_library(info) do
    level = level + 1
    info = debug.getinfo(level, 'S')
  end
  return info and level - 1
end

-- Calls visit(name, value, index) for the locals at a level, seen from the caller.
local function each_local(level, visit)
  local index = 1
  while true do
    local name, value = debug.getlocal(level + 1, index)
    if not name then return end
    if name:find '^[%a_]' then visit(name, value, index) end
    index = index + 1
  end
end

local function each_upvalue(f, visit)
  local index = 1
  while true do
    local name, value = debug.getupvalue(f, index)
    if not name then return end
    if name:find '^[%a_]' then visit(name, value, index) end
    index = index + 1
  end
end

-- Of one name the last local is what the code there sees, and a local before an upvalue.
local function collect(level, f)
  local found = { names = {}, values = {}, locals = {}, upvalues = {} }
  local function note(kind)
    return function(name, value, index)
      if kind == 'upvalues' and found.locals[name] then return end
      if not (found.locals[name] or found.upvalues[name]) then table.insert(found.names, name) end
      found[kind][name], found.values[name] = index, value
    end
  end
  each_upvalue(f, note 'upvalues')
  -- a local takes the place of an upvalue of its name
  each_local(level + 1, function(name, value, index)
    found.upvalues[name] = nil
    note 'locals'(name, value, index)
  end)
  return found
end

--- The variables, as they are now, of the nearest caller outside of the library; nil where there is
--- none. They stay what they are when the caller has gone.
---@return Variables?
function frames.snapshot()
  local level = outside()
  if not level then return nil end
  local info = debug.getinfo(level, 'f')
  local found = collect(level, info.func)
  return setmetatable({ found = found }, Variables)
end

--- The same, to be read and assigned while that caller runs.
---@return Variables?
function frames.live()
  local level = outside()
  if not level then return nil end
  local from_bottom = height() - level
  return setmetatable({
    from_bottom = from_bottom, thread = coroutine.running() or false,
    func = debug.getinfo(level, 'f').func,
  }, Variables)
end

-- Calls use(found, level) with the level seen from `use`, where the frame can be reached.
local function with_frame(self, use)
  if self.found then return use(self.found) end
  if (coroutine.running() or false) ~= self.thread then return nil end
  local level = height() - self.from_bottom
  local found = collect(level, self.func)
  local result = use(found, level + 1)
  return result
end

--- The names, in the order in which they were made.
function Variables:names()
  return with_frame(self, function(found) return found.names end) or {}
end

--- A name's value, and whether there is such a name.
function Variables:get(name)
  local found = with_frame(self, function(all) return all end)
  if not found then return nil, false end
  return found.values[name], (found.locals[name] or found.upvalues[name]) ~= nil
end

--- Whether the name was there, and has been assigned.
function Variables:set(name, value)
  return with_frame(self, function(found, level)
    if found.locals[name] and level then
      debug.setlocal(level, found.locals[name], value)
    elseif found.upvalues[name] and level then
      debug.setupvalue(self.func, found.upvalues[name], value)
    else
      return false
    end
    return true
  end) or false
end

return frames
