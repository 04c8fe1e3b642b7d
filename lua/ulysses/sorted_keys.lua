-- sorted_keys.lua - the keys of a table in an order that is the same in every process.

--- The keys in rising order: all names, or all numbers.
---@param set table
---@return any[]
local function sorted_keys(set)
  local keys = {}
  for key in pairs(set) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

return sorted_keys
