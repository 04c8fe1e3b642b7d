-- shown.lua - a value of a JSON file as a sentence shows it.
local json = require 'ulysses.json'

local LONGEST = 60

--- JSON, strings in single quotes; long ones are cut, and nothing in it gives orders to a terminal.
---@param value any
---@return string
return function(value)
  local text = tostring(value)
  if type(value) == 'table' and value ~= json.null then text = json.encode(value) end
  text = text:gsub('%c', '?')
  if #text > LONGEST then -- at a whole character
    text = text:sub(1, LONGEST):gsub('[\192-\255]?[\128-\191]*$', '') .. '...'
  end
  return type(value) == 'string' and "'" .. text .. "'" or text
end
