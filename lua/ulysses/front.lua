-- front.lua - one prompt over several ranks: reads entries, has all ranks run them, and shows what
-- they print as one text. The ranks run repl.lua; the connections are front.c's.
local core = require 'ulysses.core'
local entry = require 'ulysses.entry'
local halt = require 'ulysses.halt'
local history = require 'ulysses.history'
local merge = require 'ulysses.merge'

local front = {}

-- Seconds:
local SLOW = 0.1   -- from which on the time is shown
local TICK = 0.02  -- between two questions, while ranks are being stopped
local EARLY = 1    -- until errors of some ranks are shown while others run
local ANSWER = 2   -- in which a completion must come

local line, clock = core.line, core.system.clock
local job        -- front.c's functions
local terminal
local ranks      -- rank -> { progress =, prompt =, asked = }
local printed    -- 'o' and 'e' -> what the ranks print
local said       -- 'v' and 'x' -> rank -> text: values, errors
local over       -- the ranks have ended
local last_renewal, renewal_due = 0, false
local stopping   -- while ranks are being stopped: { since, changed, signature, asked_at, clearing }
local entry_state -- of the entry at work: { began, presses, failed_at, is_command }

-- ---- output ----

local function coloured(code, text)
  if not terminal or (os.getenv 'NO_COLOR' or '') ~= '' then return text end
  return ('\27[%sm%s\27[0m'):format(code, text)
end

local function write_to(file)
  return function(text)
    file:write(text)
    file:flush()
  end
end

local function complain(text)
  io.stdout:flush()
  io.stderr:write(coloured('31', text), '\n')
  io.stderr:flush()
end

-- The errors of ranks, of all together or of some of them.
local function show_errors()
  for _, group in ipairs(merge.groups(said.x, job.ranks)) do
    local text = group.text
    if #group.ranks < job.ranks then
      text = merge.labelled(group.ranks, text)
    elseif text ~= 'interrupted!' then
      text = text:gsub('\n', ' (on all ranks)\n', 1)
      if not group.text:find '\n' then text = text .. ' (on all ranks)' end
    end
    complain(text)
  end
  said.x = {}
end

local function show_values()
  local groups = merge.groups(said.v, job.ranks)
  for _, group in ipairs(groups) do
    local all = #group.ranks == job.ranks
    io.stdout:write(all and group.text or merge.labelled(group.ranks, group.text), '\n')
  end
  io.stdout:flush()
  said.v = {}
end

local function show_all()
  local now = clock()
  printed.o:finish(now)
  printed.e:finish(now)
  show_values()
  show_errors()
  printed.o:clear()
  printed.e:clear()
end

-- ---- what ranks send ----

local function add_to(list, rank, text)
  list[rank] = list[rank] and list[rank] .. '\n' .. text or text
end

local receivers = {
  o = function(rank, text) printed.o:add(rank, text, clock()) end,
  e = function(rank, text) printed.e:add(rank, text, clock()) end,
  v = function(rank, text) add_to(said.v, rank, text) end,
  x = function(rank, text)
    add_to(said.x, rank, text)
    entry_state.failed_at = entry_state.failed_at or clock()
    entry_state.failed = true
  end,
  s = function(rank, text)
    local state = ranks[rank]
    state.asked = false
    local progress = halt.parse(text)
    if progress.state ~= 'p' and state.progress.state ~= 'p' then state.progress = progress end
  end,
  p = function(rank, text)
    local progress, prompt = text:match '^(.-)\n(.*)$'
    ranks[rank].progress, ranks[rank].asked = halt.parse(progress), false
    ranks[rank].prompt = prompt
  end,
  c = function(_, text) entry_state.completion = text end,
}

-- Takes what comes within so many seconds; whether something did.
local function receive(seconds)
  local rank, kind, text = job.receive(seconds)
  if rank == false then
    over = true
  elseif rank then
    receivers[kind](rank, text)
    return true
  end
  return false
end

local function each_running(visit)
  for rank = 0, job.ranks - 1 do
    if ranks[rank].progress.state ~= 'p' then visit(rank, ranks[rank]) end
  end
end

local function is_running()
  local found = false
  each_running(function() found = true end)
  return found
end

-- ---- Ctrl-C ----

local function all_progress()
  local list = {}
  for rank = 0, job.ranks - 1 do list[rank] = ranks[rank].progress end
  return list
end

local function say(text) io.stderr:write(text, '\n') end

local function press()
  entry_state.presses = entry_state.presses + 1
  if entry_state.presses > 2 or job.connected() < job.ranks then return job.end_ranks() end
  if entry_state.presses == 2 then say '\nCtrl-C once more ends the program' end
  local now = clock()
  stopping = { changed = now, signature = '', asked_at = 0 }
  each_running(function(rank) job.send(rank, 'i') end)
end

-- A rank that parks again meanwhile takes no notice: the order is about where it was.
local function send_orders(orders)
  for rank, kind in pairs(orders) do job.send(rank, kind, ranks[rank].progress.parked) end
end

-- What ranks are told when all have answered.
local function decide()
  local list = all_progress()
  local signature = halt.signature(list)
  if signature ~= stopping.signature then
    stopping.signature, stopping.changed = signature, clock()
  end
  if stopping.clearing then
    local orders, done = halt.clear(list)
    send_orders(orders)
    if done then stopping = nil end
    return
  end
  local orders, verdict = halt.decide(list, clock() - stopping.changed)
  send_orders(orders)
  if verdict then renewal_due = renewal_due or verdict ~= 'by themselves' end
  if verdict == 'give up' then
    stopping.clearing = true
  elseif verdict == 'by themselves' then
    say '\nstopping after this step; Ctrl-C again stops at once'
    stopping = nil
  elseif verdict == 'raise' then
    stopping = nil
  end
end

-- Asks ranks how far they are, and acts when all have told.
local function attend_stop()
  local waiting = false
  each_running(function(_, rank) waiting = waiting or rank.asked end)
  if waiting then return end
  if stopping.is_asked then
    stopping.is_asked = false
    decide()
  end
  if not stopping or clock() - stopping.asked_at < TICK then return end
  stopping.asked_at, stopping.is_asked = clock(), true
  each_running(function(rank, state)
    state.asked = true
    job.send(rank, 'q')
  end)
end

-- ---- an entry ----

-- Errors of some ranks are shown while others go on: those may wait for them.
local function show_early()
  local failed_at = entry_state.failed_at
  if not failed_at or clock() - failed_at < EARLY or stopping then return end
  entry_state.failed_at = nil
  show_errors()
  local running = {}
  each_running(function(rank) running[#running + 1] = rank end)
  complain(('%s still running; Ctrl-C stops what runs'):format(merge.label(running)))
end

-- Until all ranks are at a prompt, or have ended.
local function gather()
  local seen = job.presses()
  while is_running() and not over do
    receive(stopping and TICK / 2 or 0.05)
    if job.presses() > seen then
      seen = job.presses()
      press()
    end
    if stopping then attend_stop() end
    local now = clock()
    printed.o:hold(now)
    printed.e:hold(now)
    show_early()
  end
  stopping = nil
  show_all()
  renewal_due = renewal_due or (entry_state.failed and not halt.is_even(all_progress()))
end

local function begin(is_command)
  entry_state = { began = clock(), presses = 0, is_command = is_command }
end

local function to_all(kind, text)
  for rank = 0, job.ranks - 1 do job.send(rank, kind, text) end
end

-- Has all ranks run an entry; nil: there is none any more.
local function run(text)
  begin(text and text:find '^%s*[?:]')
  if renewal_due then
    last_renewal, renewal_due = last_renewal + 1, false
    to_all('n', tostring(last_renewal))
  end
  for rank = 0, job.ranks - 1 do ranks[rank].progress.state = 'r' end
  to_all(text and 'l' or 'd', text)
  gather()
  local seconds = clock() - entry_state.began
  if terminal and seconds > SLOW and not (over or entry_state.failed or entry_state.is_command) then
    print(coloured('2', ('(%.2f s)'):format(seconds)))
  end
end

-- ---- the line ----

local function complete(text)
  local deadline = clock() + ANSWER
  entry_state.completion = nil
  job.send(0, 'c', text)
  while not (entry_state.completion or over) and clock() < deadline do receive(0.05) end
  local kind, answer = (entry_state.completion or ''):match '^(.)(.*)$'
  if kind == 'i' then return answer end
  if kind == 'l' then return nil, answer end
end

-- While a line is read: whether the ranks have ended meanwhile.
local function attend_line()
  if terminal then io.write '\n' end
  io.flush()
  receive(0)
  return over
end

local function read_and_run()
  local text, f, problem = entry.read(line, ranks[0].prompt)
  if over then return end
  if text == nil then
    if terminal then print '' end
    return run(nil)
  elseif text == false then
    if terminal then print '^C' end
  elseif text:find '%S' then
    line.add(text)
    if problem and not f then return complain(problem) end
    run(text)
  end
end

--- The prompt, until the ranks have ended.
---@param given table front.c's functions
function front.run(given)
  job = given
  terminal = line.is_terminal()
  ranks, said = {}, { v = {}, x = {} }
  printed = { o = merge.new(job.ranks, write_to(io.stdout)),
              e = merge.new(job.ranks, write_to(io.stderr)) }
  for rank = 0, job.ranks - 1 do ranks[rank] = { progress = halt.parse 'r' } end
  line.open(history.path(), complete)
  line.attend(job.errors, attend_line)
  if terminal then
    print(('ulysses-lua %s, %s, on %d ranks. ul, nn, F and g, the group of all, are there; ?name '
           .. 'explains, :help lists, Ctrl-D leaves.'):format(core.version, jit.version, job.ranks))
    io.flush()
  end
  begin(true)
  gather()
  while not over do read_and_run() end
end

return front
