-- own_folder.lua - a folder that the specs of one file have for themselves:
--
--   local own = require 'tests.own_folder' ()
--   setup(own.make)
--   teardown(own.remove)
local core = require 'ulysses.core'

---@return { path: string, make: function, remove: function, write: function, read: function }
return function()
  local own = { path = os.tmpname() }
  os.remove(own.path) -- the name alone is wanted

  function own.make() assert(core.folder_make(own.path)) end

  function own.remove() assert(core.path_remove(own.path)) end

  --- Writes a file in it.
  ---@return string path
  function own.write(name, text)
    local path = own.path .. '/' .. name
    local file = assert(io.open(path, 'wb'))
    file:write(text)
    file:close()
    return path
  end

  ---@return string
  function own.read(name)
    local file = assert(io.open(own.path .. '/' .. name, 'rb'))
    local text = file:read '*a'
    file:close()
    return text
  end

  return own
end
