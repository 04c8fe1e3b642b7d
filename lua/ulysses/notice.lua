-- notice.lua - a sentence on stderr, once for a job.
--
-- What is noticed where no group is at hand, all ranks of a job notice: the first of them says it.
local core = require 'ulysses.core'

---@param sentence string
return function(sentence)
  if core.launched_rank() > 0 then return end
  io.stderr:write(sentence, '\n')
  io.stderr:flush()
end
