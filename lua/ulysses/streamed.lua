-- streamed.lua - text that is printed while it is written: at the prompt the result of such a call
-- is on the screen already.

---@class streamed
---@field at_prompt boolean whether someone who typed the call is watching
---@field text string? what the call has printed
local streamed = { at_prompt = false }

--- Around what is typed at the prompt: nothing is printed yet.
---@param at_prompt boolean
function streamed.begin(at_prompt) streamed.at_prompt, streamed.text = at_prompt, nil end

--- Prints a piece.
---@param piece string
function streamed.write(piece)
  io.write(piece)
  io.flush()
end

--- Ends the line, of which `text` is the whole.
---@param text string
function streamed.finish(text)
  if not streamed.at_prompt then return end
  if text:sub(-1) ~= '\n' then io.write '\n' end
  streamed.text = text
end

return streamed
