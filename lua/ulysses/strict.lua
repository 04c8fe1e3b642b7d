-- strict.lua - misspelt globals of a script are errors.
--
-- Reading a global that nobody has assigned, and making one inside a function, are errors where the
-- code is the script's or lies in its folder; modules from elsewhere have ways of their own.
local suggest = require 'ulysses.suggest'

local strict = {}
local declared = {}

-- Whether a chunk is the script's, or of a file beside or below it.
local function is_ours(source, folder)
  if source:sub(1, 1) ~= '@' then return false end
  if folder == '' then return not source:find '^@[/\\]' end
  return source:sub(2, #folder + 1) == folder
end

-- Locals in sight of the function at a level, and globals.
local function candidates(level)
  local names, index = {}, 1
  for name in pairs(_G) do
    if type(name) == 'string' then names[#names + 1] = name end
  end
  while true do
    local name = debug.getlocal(level + 1, index)
    if not name then break end
    if name:find '^[%a_]' then names[#names + 1] = name end
    index = index + 1
  end
  local f = debug.getinfo(level + 1, 'f').func
  index = 1
  while debug.getupvalue(f, index) do
    names[#names + 1] = debug.getupvalue(f, index)
    index = index + 1
  end
  return names
end

--- From now on, for the script at this path.
---@param script string
function strict.on(script)
  local folder = script:match '^(.*[/\\])' or ''
  setmetatable(_G, {
    __index = function(_, name)
      local info = debug.getinfo(2, 'S')
      if declared[name] or not info or not is_ours(info.source, folder) then return nil end
      error(("undefined variable '%s'%s"):format(tostring(name),
                                                suggest(tostring(name), candidates(2))), 2)
    end,
    __newindex = function(globals, name, value)
      local info = debug.getinfo(2, 'S')
      if info and info.what == 'Lua' and not declared[name] and is_ours(info.source, folder) then
        error(("'%s' is assigned in a function but declared nowhere; make it local, or assign it "
               .. 'at the top of the script too'):format(tostring(name)), 2)
      end
      declared[name] = true
      rawset(globals, name, value)
    end,
  })
end

--- No longer: at the prompt.
function strict.off() setmetatable(_G, nil) end

return strict
