-- members.lua - a table of the library in which a misspelt name is an error, not nil.
local raise = require 'ulysses.raise'
local suggest = require 'ulysses.suggest'

local members = {}

--- Raises the sentence about a name that `owner` does not have, at the line that asked for it.
---@param owner string what the table is called
---@param name any
---@param known string[]
function members.refuse(owner, name, known)
  raise("%s has no '%s'%s", owner, tostring(name), suggest(tostring(name), known))
end

--- From now on, of this table.
---@param owner string
---@param part table without a metatable
---@return table part
function members.guard(owner, part)
  return setmetatable(part, { __index = function(self, name)
    local known = {}
    for key in pairs(self) do known[#known + 1] = tostring(key) end
    members.refuse(owner, name, known)
  end })
end

return members
