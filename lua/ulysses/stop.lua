-- stop.lua - how a run ends before its last step: on a signal, or where it learns nothing any more.
local agree = require 'ulysses.agree'
local core = require 'ulysses.core'
local log = require 'ulysses.log'
local refuse = require 'ulysses.refuse'

-- So many steps in a row without a finite loss and gradient, and the run stops.
local PATIENCE = 5

-- The exit status is that of a program that the signal has ended: what the script would have done
-- next has not been done, and what waits for it (`train && generate`) must not take it for done.
local STATUS = { interrupt = 130, terminate = 143 }
local UNREAD = 1 -- as where standard output cannot be written

local stop = { signals = core.signals }

--- From now on signals are noted, or no longer. A loop that was left by an error may have left them
--- watched; what was noted then is still to be done.
---@param run Run
---@param on boolean
function stop.watch(run, on)
  if on and run.watched and core.signals.pending() then return end
  if run.watched then core.signals.watch(false) end
  if on then core.signals.watch(true) end
  run.watched = on
end

--- Whether the step at work has moved the weights already.
---@param run Run
---@return boolean
function stop.has_updated(run)
  return run.optim ~= nil and run.optim.steps > run.before.updates
end

--- Calls f behind the last step with signals noted, and then does what they ask for; in the loop
--- that is done at the end of the step. All ranks come here together.
---@param run Run
---@param f function
function stop.watched(run, f)
  if run.scope or run.is_ending or not run.begun then return f() end
  if not run.watched then stop.watch(run, true) end
  run.is_ending = true
  local ok, problem = pcall(function()
    f()
    stop.where_asked_to(run)
  end)
  run.is_ending = false
  stop.watch(run, false)
  if not ok then error(problem, 0) end
end

--- Refuses to go on after too many bad steps in a row. Their updates were skipped, so the weights
--- are those of the last good one.
---@param run Run
function stop.where_nothing_is_learnt(run)
  if run.bad < PATIENCE then return end
  core.signals.take() -- it ends anyhow, and says why
  stop.watch(run, false)
  log.leave()
  local weights = run.last_good and ('those after step %d'):format(run.last_good)
    or 'those at the start'
  local saved = run.saved and ('; %s is the last checkpoint'):format(run.saved_path) or ''
  refuse('run: the loss or its gradient was not finite in %d steps in a row, up to step %d (loss '
         .. '%s, grad_norm %s); the weights are %s%s', PATIENCE, run.step,
         tostring(run.losses[run.step]), tostring(run.given.grad_norm or 'unknown'), weights, saved)
end

-- Ranks learn of a signal one after the other, and what one of them alone knows must not make it
-- leave the others: the most that any rank knows is done by all of them.
local urgency = { 'interrupt', 'terminate', interrupt = 1, terminate = 2 }

local function pending(run)
  local what = run.watched and core.signals.pending()
  if run.watched and what ~= 'terminate' and core.system.is_unread() then what = 'terminate' end
  if not run.group then return what end
  return urgency[agree.most(run.group, urgency[what] or 0, 'signals after step ' .. run.step)]
end

-- Whether Ctrl-C leads to a prompt, on all ranks.
local function prompt_of(run)
  local there, repl = pcall(require, 'ulysses.repl')
  local here = there and repl.available()
  return agree.most(run.group, here and 0 or 1, 'the prompt') == 0 and repl
end

-- What there is of a run that ends here.
local function kept(path)
  return path and ('saved %s, and the same command goes on from there'):format(path)
    or 'nothing is saved'
end

local function save_and_leave(run, what)
  local path = run:save_now()
  local unread = core.system.is_unread()
  if agree.is_first(run.group) then
    log.leave()
    local done = unread and 'standard output is no longer read: stopped'
      or what == 'terminate' and 'terminated' or 'interrupted'
    local sentence = ('%s after step %d of %d; %s'):format(done, run.step, run.last, kept(path))
    if unread then io.stderr:write(sentence, '\n') else log.say('%s', sentence) end
  end
  -- A signal that reaches this rank later than others must find it watched: the state stays open.
  os.exit(unread and UNREAD or STATUS[what], not run.group)
end

--- Does what a signal has asked for meanwhile. SIGTERM saves and ends the program, as does an
--- output that nobody reads any more; Ctrl-C opens the prompt where there is one, else it does the
--- same. Neither before the step at work is taken. All ranks come here together.
---@param run Run
function stop.where_asked_to(run)
  local what = pending(run)
  if not what or run.scope and (what == 'interrupt' or not stop.has_updated(run)) then return end
  core.signals.take()
  local repl = what == 'interrupt' and prompt_of(run)
  if not repl then return save_and_leave(run, what) end
  log.leave()
  local left, problem = pcall(repl.inside, ('interrupted after step %d of %d'):format(
    run.step, run.last))
  if left then return end
  local path = run:save_now() -- the loop is left, and perhaps the program
  if agree.is_first(run.group) then log.say('%s', kept(path)) end
  error(problem, 0)
end

return stop
