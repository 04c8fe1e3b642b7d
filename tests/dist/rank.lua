-- rank.lua - what each rank of a test runs: the specs named as arguments, in step with the others.
--
-- A spec file returns function(test, g): test(name, body) runs the body on all ranks; it has failed
-- if it raised an error on any. With UL_COMM_CHECK a rank that left a body early finds the others
-- in another call: all of them are told so, and meet again here.
--
-- In the folder UL_TEST_PLACES each rank writes down where it is, in a file named by its number:
-- that is read where the job comes to no end.
local ul = require 'ulysses'

-- the groups of the prompt over several ranks
if os.getenv 'UL_TEST_INTERRUPTIBLE' then require('ulysses.core').remote.interruptible() end
if os.getenv 'UL_TEST_DEVICE' then ul.set_default_device(os.getenv 'UL_TEST_DEVICE') end
local g = ul.group()
local passed, failed = 0, 0

-- The sum over all ranks, however many calls of theirs are still on their way.
local function agree(number)
  for _ = 1, 1000 do
    local t = ul.tensor({ number }, { dtype = 'f64', device = 'cpu' })
    local ok = pcall(g.all_reduce_, g, t)
    if ok then return t:item() end
  end
  error 'the ranks do not meet again'
end

local places, spec = os.getenv 'UL_TEST_PLACES', nil

local function note(format, ...)
  if not places then return end
  local file = assert(io.open(places .. '/' .. g.rank, 'w'))
  file:write(spec and spec:match '[^/]+$' .. ': ' or '', format:format(...))
  file:close()
end

local function test(name, body)
  note('%s', name)
  local ok, message = xpcall(body, debug.traceback)
  if not ok then io.stderr:write(('[%d] %s: %s\n'):format(g.rank, name, tostring(message))) end
  note(ok and '%s, waits for the others behind it' or '%s, has failed there', name)
  if agree(ok and 0 or 1) == 0 then passed = passed + 1 else failed = failed + 1 end
end

for i = 1, #arg do
  spec = arg[i]
  note 'before its first test'
  dofile(spec)(test, g)
  note 'behind its last test'
end
spec = nil
note 'done'
if g.rank == 0 then print(('%d passed, %d failed, 0 skipped'):format(passed, failed)) end
