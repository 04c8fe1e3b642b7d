-- options.lua - reads the table that ends a call: defaults, and an error for a misspelt key.
local raise = require 'ulysses.raise'
local suggest = require 'ulysses.suggest'

-- Stands in a table of defaults for an option that has none.
local none = {}

--- A copy of `defaults` with `given` over it. `caller` names the function in errors.
---@param caller string
---@param given table|nil
---@param defaults table for each key that may be given: a value, or none
---@return table
local function read(caller, given, defaults)
  if given ~= nil and type(given) ~= 'table' then
    raise('%s: options must be a table, got a %s', caller, type(given))
  end
  local result, known = {}, {}
  for key, value in pairs(defaults) do
    known[#known + 1] = key
    if value ~= none then result[key] = value end
  end
  for key, value in pairs(given or {}) do
    if defaults[key] == nil then
      raise("%s: no option '%s'%s", caller, tostring(key), suggest(tostring(key), known))
    end
    local default = result[key]
    if default ~= nil and type(value) ~= type(default) then
      raise('%s: %s must be a %s, got a %s', caller, key, type(default), type(value))
    end
    result[key] = value
  end
  return result
end

return { read = read, none = none }
