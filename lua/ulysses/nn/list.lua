-- list.lua - nn.List: modules by number. list[i], #list and ipairs(list) work as on a table.
local module = require 'ulysses.nn.module'
local raise = require 'ulysses.raise'

---@class List
local List = module.class 'List'

--- Modules by number: list[i], #list and ipairs(list) work as on a table, and their parameters are
--- those of the list.
---@param modules table[]? to begin with
function List:init(modules)
  for _, item in ipairs(modules or {}) do self:append(item) end
end

--- Adds a module at the end; returns the list.
---@param item table a module
---@return List
function List:append(item)
  if not module.is_module(item) then
    raise('nn.List: expected a module, got a %s', type(item))
  end
  self[#self + 1] = item
  return self
end

--- Calls one after the other, each with the result of the one before it.
---@param x any
---@return any
function List:forward(x)
  for _, item in ipairs(self) do x = item(x) end
  return x
end

function List:describe() return (' of %d'):format(#self) end

return List
