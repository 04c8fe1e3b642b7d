-- raise.lua - raises an error at the line that called into the library.

local folder = debug.getinfo(1, 'S').source:match '^(.*[/\\])' or '@./'

--- Formats a sentence and raises it with the position of the nearest caller outside of the library.
---@param format string
return function(format, ...)
  local level = 2
  local info = debug.getinfo(level, 'S')
  while info and (info.what == 'C' or info.source:sub(1, #folder) == folder) do
    level = level + 1
    info = debug.getinfo(level, 'S')
  end
  error(format:format(...), info and level or 2)
end
