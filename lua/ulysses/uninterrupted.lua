-- uninterrupted.lua - what has to end before Ctrl-C is an error: a save, a step of an optimizer.
local core = require 'ulysses.core'

--- Calls f(..); an interruption is an error only behind it. Returns its first result.
---@param f function
---@return any
local function uninterrupted(f, ...)
  core.signals.hold()
  local ok, result = pcall(f, ...)
  core.signals.release()
  if not ok then error(result, 0) end
  return result
end

return uninterrupted
