-- open_file.lua - opens what is a file, and nothing that would wait for another program or never
-- end.
local core = require 'ulysses.core'

--- io.open for files alone: that it is a pipe is an answer like 'Permission denied'.
---@param path string
---@param mode string
---@return file*|nil file, string? sentence, integer? code nil where it is no file
return function(path, mode)
  local kind = core.system.kind_of(path)
  if kind and kind ~= 'file' then return nil, ('%s: it is a %s, not a file'):format(path, kind) end
  return io.open(path, mode)
end
