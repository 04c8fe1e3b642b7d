-- repl.lua - the prompt: reads, runs and prints, also inside a loop that Ctrl-C has stopped.
local core = require 'ulysses.core'
local entry = require 'ulysses.entry'
local frames = require 'ulysses.frames'
local history = require 'ulysses.history'
local remote = require 'ulysses.remote'
local show = require 'ulysses.show'
local streamed = require 'ulysses.streamed'

local signals = core.signals
local line = core.remote.is_open() and remote or core.line
local repl = {}

-- What Lua itself has: the library and this prompt run on it, whatever is typed.
local standard = {}
for name, value in pairs(_G) do
  standard[name] = type(value) == 'function' or package.loaded[name] == value or nil
end

local SLOW = 0.1 -- seconds from which on the time is shown
local QUIT = setmetatable({}, { __tostring = function() return 'quit' end })

local started, editable, terminal = false, false, false
local variables   -- of the frame that the prompt is in, or that failed last
local environment -- what is typed runs in
local raised_in   -- variables where the last error was that has left a module's call or a scope

local help = [[
what is typed is run; values of an expression are printed, and the first is kept in _; variables
stay, local or not
  ?name       what a function takes, returns and does: ?matmul, ?ul.optim.adamw
  :locals     the variables where the last error was, or where the loop stands
  :continue   goes on with the loop that Ctrl-C has stopped
  :stop       ends that loop (Ctrl-D does the same)
  :help       this
  :quit       leaves (Ctrl-D at the outer prompt does the same)
Tab completes names, ^R searches what was typed before, Ctrl-C stops what runs.]]

-- ---- output ----

local function coloured(code, text)
  if not terminal or (os.getenv 'NO_COLOR' or '') ~= '' then return text end
  return ('\27[%sm%s\27[0m'):format(code, text)
end

local function say(text)
  if line == remote then return remote.say('v', text) end
  io.stdout:write(text, '\n')
  io.stdout:flush()
end

local function complain(text)
  if line == remote then return remote.say('x', text) end
  io.stdout:flush()
  io.stderr:write(coloured('31', text), '\n')
  io.stderr:flush()
end

local function print_values(first, ...)
  local texts = {}
  if first ~= nil and first == streamed.text and select('#', ...) == 0 then -- it is printed
    rawset(_G, '_', first)
    return
  end
  for i = 1, select('#', first, ...) do texts[i] = show((select(i, first, ...))) end
  say(table.concat(texts, '\t'))
  rawset(_G, '_', first)
end

-- ---- running ----

-- The frames of what was typed; below them are those of the loop that the prompt is in.
local function above_the_prompt(text)
  local last = text:find "\n[^\n]*[/\\]ulysses[/\\]repl%.lua:%d+: in function 'protected'"
  return frames.trim(last and text:sub(1, last - 1) or text)
end

-- What was typed has failed itself: where the prompt is has more to show.
local function take_variables()
  local there = frames.snapshot()
  if there and #there:names() > 0 then variables = there end
end

-- What an error is to become: its sentence with the frames that are the user's.
local function on_error(problem)
  signals.hold() -- until the prompt is back
  if problem == QUIT then return problem end
  local meta = debug.getmetatable(problem)
  if type(meta) == 'table' and rawget(meta, 'refusal') then return tostring(problem) end
  local text = type(problem) == 'string' and problem
  if not text and type(meta) == 'table' and rawget(meta, '__tostring') then
    text = tostring(problem)
  end
  text = text or ('(the error is a %s: %s)'):format(type(problem), tostring(problem))
  local registry = debug.getregistry()
  if rawequal(registry['ulysses.error'], problem) and registry['ulysses.traceback'] then
    variables = raised_in or variables
    return above_the_prompt(text .. registry['ulysses.traceback'])
  end
  take_variables()
  return above_the_prompt(debug.traceback(text, 2))
end

local function finish(ok, ...)
  signals.prompt(true, 0, 1)
  if ok then return true, select('#', ...), ... end
  local log = package.loaded['ulysses.log']
  if type(log) == 'table' and log.leave then pcall(log.leave) end
  if (...) == QUIT then return QUIT end
  complain((...))
  return false
end

-- Calls f with Ctrl-C as an error, which is held off everywhere else in this file: true, how many
-- results, results; false where it failed.
local function protected(f, ...)
  local arguments, n = { ... }, select('#', ...)
  return finish(xpcall(function()
    signals.release()
    return f(unpack(arguments, 1, n))
  end, on_error))
end

local function same(...) return ... end

local function printed(ok, n, ...)
  if ok ~= true or n == 0 then return ok end
  local values = { ... }
  return (protected(function() print_values(unpack(values, 1, n)) end))
end

local function run(f)
  jit.off(f, true) -- compiled loops never look whether Ctrl-C was pressed
  setfenv(f, environment)
  local begun = core.system.clock()
  local seconds
  streamed.begin(terminal and line ~= remote)
  local function timed(...)
    seconds = core.system.clock() - begun
    return ...
  end
  local result = printed(timed(protected(f, same)))
  if result == true and seconds > SLOW then
    if terminal then say(coloured('2', ('(%.2f s)'):format(seconds))) end
  end
  return result
end

-- ---- what is typed ----

local function show_locals()
  local names = variables and variables:names() or {}
  if #names == 0 then return say 'no variables' end
  for _, name in ipairs(names) do
    say(('%s = %s'):format(name, show((variables:get(name)))))
  end
end

local function explain(name)
  if name == '' then return say(help) end
  local about = require 'ulysses.help'
  local value = name:find '^[%a_][%w_]*$' and (variables and variables:get(name)
                                               or rawget(_G, name))
  local text, sentence
  if value ~= nil and value ~= false then text = about.value(value) end -- a variable: ?model
  if not text then text, sentence = about.text(name) end
  say(text or sentence or ("nothing is known of '%s'"):format(name))
end

local commands = {
  help = function() say(help) end,
  locals = show_locals,
  quit = function() return QUIT end,
  ['continue'] = function(inside)
    if inside then return 'continue' end
    complain 'nothing was interrupted that could go on'
  end,
  stop = function(inside)
    if inside then return 'stop' end
    complain 'nothing is running'
  end,
}

local function command(text, inside)
  local name = text:match '^%s*:%s*(%S*)%s*$'
  if name and commands[name] then return commands[name](inside) end
  local names = {}
  for known in pairs(commands) do names[#names + 1] = known end
  complain(('no command %s%s'):format(text, require 'ulysses.suggest'(name or '', names)))
end

-- What somebody types who comes from Python: help(), help(ul.matmul), exit(), quit(). Variables of
-- that name are left alone.
local function as_typed(text)
  local name, given = text:match '^%s*(%l+)%s*%(%s*(.-)%s*%)%s*$'
  name = name or text:match '^%s*(%l+)%s*$'
  if name ~= 'help' and name ~= 'exit' and name ~= 'quit' or rawget(_G, name) ~= nil
     or variables and variables:get(name) ~= nil then
    return text
  end
  if name ~= 'help' then return ':quit' end
  given = (given or ''):gsub('^[\'"](.*)[\'"]$', '%1')
  return given:find '^[%w_.:]*$' and '?' .. given or text
end

-- Reads and runs until something ends this prompt: 'continue', 'stop', QUIT, or nil at the end.
local function session(prompt, inside)
  while true do
    signals.prompt(true, 0, 1) -- what came too late is forgotten
    local text, f, problem = entry.read(line, prompt)
    if text == nil then
      if terminal then say '' end
      return nil
    end
    if text == false then
      if terminal then say '^C' end
    elseif text:find '%S' then
      line.add(text)
      text = as_typed(text)
      local result
      if text:find '^%s*:' then
        local _
        _, _, result = protected(command, text, inside)
      elseif text:find '^%s*%?' then
        protected(explain, text:match '^%s*%?%s*(.-)%s*$')
      elseif f then
        if run(f) == QUIT then return QUIT end
      else
        complain(problem)
      end
      if result ~= nil then return result end
    end
  end
end

-- ---- completion ----

local function complete(text)
  local start, names = require 'ulysses.complete'(text, environment)
  if #names == 0 then return nil end
  local common = names[1]
  for _, name in ipairs(names) do
    while name:sub(1, #common) ~= common do common = common:sub(1, -2) end
  end
  local typed = text:sub(start)
  if #common > #typed then return common:sub(#typed + 1) end
  if #names == 1 then return nil end
  return nil, table.concat(names, '  ')
end

-- ---- starting ----

-- system(3) ignores Ctrl-C while the command runs; the command's end tells.
local function raise_after_commands()
  local execute = os.execute
  function os.execute(text) -- luacheck: ignore 122
    local status = execute(text)
    if status == 2 or status == 130 * 256 then error('interrupted!', 0) end
    return status
  end
end

local function preset(name, value)
  if rawget(_G, name) == nil then rawset(_G, name, value) end
end

-- Assigns a global; one that would take the place of something standard is only what is typed's.
local function assign(own, name, value) rawset(standard[name] and own or _G, name, value) end

-- What the prompt is at the outside: globals, and behind them the variables where it last failed.
local function use_globals()
  environment = setmetatable({}, { __index = _G, __newindex = assign,
                                   __names = function() return {}, _G end })
  setmetatable(_G, {
    __index = function(_, name)
      if variables then return (variables:get(name)) end
    end,
    __names = function() return variables and variables:names() or {}, nil end,
  })
end

--- For -i, before the script: Ctrl-C is the prompt's from now on.
function repl.start()
  if started then return end
  started = true
  terminal = core.line.is_terminal()
  raise_after_commands()
  if line == remote then core.group() end -- while no rank is elsewhere
  core.line.on_error(function() raised_in = frames.snapshot() end)
  signals.prompt(true, 0, 0)
end

--- Whether Ctrl-C leads to a prompt.
---@return boolean
function repl.available() return started end

local function open()
  if editable then return end
  editable = true
  line.open(line ~= remote and history.path() or nil, complete)
  local ul = require 'ulysses'
  preset('ul', ul)
  preset('nn', ul.nn)
  preset('F', ul.F)
  if line == remote then preset('g', ul.group()) end
end

--- The prompt, until the user leaves it.
function repl.run()
  repl.start()
  signals.prompt(true, 0, 1)
  use_globals()
  open()
  if terminal then
    say(('ulysses-lua %s, %s. ul, nn and F are there; ?name explains, :help lists, Ctrl-D leaves.')
        :format(tostring(core.version), jit.version))
  end
  session('ul> ', false)
  signals.prompt(false, 0, 0)
end

--- Runs a script, prints the error if it fails, then the prompt.
---@param script function
function repl.after(script, ...)
  repl.start()
  signals.prompt(true, 0, 1)
  jit.off(script, true)
  if protected(script, ...) ~= QUIT then repl.run() end
end

--- A prompt inside what runs, in which the variables of the nearest caller outside of the library
--- can be read and assigned. Returns at :continue; else raises 'interrupted!'.
---@param sentence string where it stands
function repl.inside(sentence)
  local outer_environment, outer_variables = environment, variables
  local before = { signals.prompt(true, 0, 1) }
  local here = frames.live()
  variables = here
  environment = setmetatable({}, {
    __index = function(_, name)
      local value, found
      if here then value, found = here:get(name) end
      if found then return value end
      return rawget(_G, name)
    end,
    __newindex = function(own, name, value)
      if not (here and here:set(name, value)) then assign(own, name, value) end
    end,
    __names = function() return here and here:names() or {}, _G end,
  })
  open()
  say(sentence .. '; :continue goes on, Ctrl-D stops')
  local result = session('run> ', true)
  environment, variables = outer_environment, outer_variables
  signals.prompt(unpack(before))
  if result == QUIT then error(QUIT, 0) end
  if result ~= 'continue' then error('interrupted!', 0) end
end

return repl
