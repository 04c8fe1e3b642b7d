-- remote.lua - the prompt on a rank: lines come from the front process (front.lua), and what is
-- said goes there.
local core = require 'ulysses.core'

local remote = {}
local complete = function() end

--- As core.line.open(): the history is the front's.
---@param _ string?
---@param f fun(line: string): string?, string?
function remote.open(_, f) complete = f end

--- As core.line.add(), which is the front's to do.
function remote.add() end

--- The next entry, a whole one; nil at the end.
---@param prompt string
---@return string?
function remote.read(prompt)
  core.remote.ready(prompt)
  while true do
    local kind, text = core.remote.next()
    if kind == 'l' then
      core.signals.prompt(true, 0, 1) -- what came on the way to the prompt is forgotten
      return text
    elseif kind == 'c' then
      local insert, list = complete(text)
      core.remote.say('c', insert and 'i' .. insert or list and 'l' .. list or '')
    elseif kind == 'n' then
      core.remote.renew(tonumber(text))
    else
      return nil
    end
  end
end

--- To the front: 'v' a value, 'x' an error.
---@param kind string
---@param text string
function remote.say(kind, text) core.remote.say(kind, text) end

return remote
