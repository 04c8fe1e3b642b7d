-- streamed.lua - text that is printed while it is written: at the prompt the result of such a call
-- is on the screen already.

local refuse = require 'ulysses.refuse'

---@class streamed
---@field at_prompt boolean whether someone who typed the call is watching
---@field text string? what the call has printed
local streamed = { at_prompt = false }

--- Around what is typed at the prompt: nothing is printed yet.
---@param at_prompt boolean
function streamed.begin(at_prompt) streamed.at_prompt, streamed.text = at_prompt, nil end

--- Prints a piece; refuses where nobody can read it, for the text would be made in vain.
---@param piece string
function streamed.write(piece)
  local out = io.output()
  local ok, why = out:write(piece)
  if ok then ok, why = out:flush() end
  if not ok then refuse('cannot write to standard output: %s', (why:gsub('^.*: ', ''))) end
end

-- Compiled code that finds flush() failing calls it once more, and that succeeds: nothing is left.
jit.off(streamed.write)

--- Ends the line, of which `text` is the whole.
---@param text string
function streamed.finish(text)
  if not streamed.at_prompt then return end
  if text:sub(-1) ~= '\n' then io.write '\n' end
  streamed.text = text
end

return streamed
