-- refuse.lua - ends with one sentence what cannot be done with the user's files and settings.
--
-- raise.lua is for a call that is wrong: the caller's line and a traceback help. A refusal is for
-- input that is wrong (a missing file, a setting, a damaged checkpoint): the program prints its
-- sentence alone and exits with 1.

local Refusal = { refusal = true }
Refusal.__index = Refusal
function Refusal.__tostring(self) return self.sentence end

--- Formats a sentence that says what was wrong and where, and raises it.
---@param format string
return function(format, ...)
  error(setmetatable({ sentence = format:format(...) }, Refusal), 0)
end
