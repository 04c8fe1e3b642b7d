-- history.lua - the file that what was typed is kept in.
local core = require 'ulysses.core'

local history = {}

--- Where it is: nil where no folder can be made for it.
---@return string?
function history.path()
  local state = os.getenv 'XDG_STATE_HOME'
  if not state or state == '' then
    local home = os.getenv 'HOME'
    if not home or home == '' then return nil end
    state = home .. '/.local/state'
  end
  local folder = state .. '/ulysses-lua'
  return core.folder_make(folder) and folder .. '/history' or nil
end

return history
