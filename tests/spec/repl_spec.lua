-- repl_spec.lua - the prompt, on a pseudo-terminal as users have it, and plain from a pipe.
local program = require 'tests.program'
local pty = require 'tests.pty'

local CTRL_C, CTRL_D, CTRL_P, CTRL_R, TAB = '\3', '\4', '\16', '\18', '\t'
local PROMPT = 'ul> $'

describe('the prompt', function()
  local state, terminal, script

  before_each(function()
    state, script = os.tmpname(), os.tmpname()
    os.remove(state)
  end)

  after_each(function()
    if terminal then terminal:close() end
    terminal = nil
    os.execute('rm -rf ' .. state .. ' ' .. script)
  end)

  -- Starts the program with arguments; waits for the prompt where there is to be one at once.
  local function open(arguments, environment, first)
    if terminal then terminal:close() end
    terminal = pty.start(('unset LD_PRELOAD; XDG_STATE_HOME=%s TERM=xterm NO_COLOR=1 %s %s %s')
                         :format(state, environment or '', program.path, arguments or ''))
    terminal:expect(first or PROMPT)
    return terminal
  end

  -- Types a line and returns what is printed until the next prompt, without the line itself.
  local function answer(text, prompt)
    terminal:enter(text)
    local echo = text:gsub('%W', '%%%0') .. '\r*\n'
    terminal:expect(echo)
    terminal:expect(prompt or PROMPT)
    -- a terminal that is slow to change its mode has shown the line twice
    local twice = '^' .. text:gsub('%W', '%%%0') .. '\n(.+)$'
    return (terminal.before:gsub('\r', ''):gsub(twice, '%1'))
  end

  local function write_script(text)
    local file = io.open(script, 'w')
    file:write(text)
    file:close()
  end

  it('prints values', function()
    open()
    assert.equal('3\n', answer '1 + 2')
    assert.equal('3\n', answer '_')
    assert.equal('4\tnil\tx\n', answer "=4, nil, 'x'")
    assert.equal('', answer 'local y, z = 1, 2')
    assert.equal('', answer 'local function add(a) local b = a return b + z end')
    assert.equal('3\n', answer 'add(y)')
    assert.equal('', answer 'for i = 1, 2 do local inner = i end')
    assert.equal('nil\n', answer 'inner')
    assert.equal("local s\n", answer "'local s'")
    assert.equal('', answer 'local type, other = 1, 2')
    assert.equal('2\n', answer '1 + 1')
    assert.equal('nil\n', answer 'nothing')
    assert.equal('tensor [2] f32 ' .. (os.getenv 'UL_DEVICE' or 'cpu') .. '\n[1, 1]\n',
                 answer 'ul.ones(2)')
    assert.equal("{ 1, { 2 }, a = 'b', c = { d = true } }\n",
                 answer "{ 1, { 2 }, c = { d = true }, a = 'b' }")
    assert.matches('%.%.%. 76 more', answer(
      '(function() local t = {} for i = 1, 100 do t[i] = i end return t end)()'))
    assert.matches('stdin:1: attempt to perform arithmetic', answer '1 + {}')
    assert.matches("stdin:1: matmul: .*", answer 'ul.ones(2):matmul(3)')
    terminal:type(CTRL_D)
    assert.equal(0, terminal:ended())
  end)

  it('shows a text while it is written, and once', function()
    open()
    answer 'm = {}'
    answer 'function m:logits() local x = ul.zeros(1, 1, 260); x[1][1][67] = 9; return x end'
    answer 'function say(how) how.n, how.temperature = 3, 0; return ul.generate(m, "x", how) end'
    assert.equal('BBB\n', answer 'say {}')
    assert.equal('BBB\n', answer '_')
    assert.equal('BBB\n', answer 'say { stream = false }')
    assert.equal('', answer 'text = say { stream = false }')
    assert.equal('BBB\n', answer 'text = say {}')
    assert.equal('BBB\t3\n', answer 'say { stream = false }, 3')
  end)

  it('takes entries of several lines, and recalls them whole', function()
    open()
    assert.equal('', answer('for i = 1, 2 do', '%.%.> $'))
    assert.equal('', answer('print(i * 10)', '%.%.> $'))
    assert.equal('10\n20\n', answer 'end')
    terminal:type(CTRL_P)
    terminal:expect 'end'
    terminal:type '\r'
    terminal:expect '10\r\n20\r\n'
    terminal:expect(PROMPT)
    answer('if true then', '%.%.> $')
    terminal:type(CTRL_C)
    terminal:expect(PROMPT)
    assert.equal('7\n', answer '7')
  end)

  it('completes names', function()
    open()
    terminal:type('ul.manual_s' .. TAB)
    terminal:expect 'eed'
    terminal:type(CTRL_C)
    terminal:expect(PROMPT)
    answer 'x = ul.ones(2)'
    terminal:type('x:matm' .. TAB .. '(x):item()\r')
    terminal:expect '\n2\r\n'
    terminal:expect(PROMPT)
    terminal:type('ul.zeros' .. TAB .. TAB)
    terminal:expect 'zeros  zeros_like'
  end)

  it('keeps the history', function()
    open()
    answer 'print("first" .. 1)'
    terminal:type(CTRL_D)
    terminal:ended()
    open()
    terminal:type(CTRL_R)
    terminal:type 'fir'
    terminal:expect 'first'
    terminal:type '\r'
    terminal:expect '\nfirst1\r\n'
    local file = assert(io.open(state .. '/ulysses-lua/history'))
    file:close()
  end)

  it('explains, and ends, in words from here and from elsewhere', function()
    open()
    answer 'my_model = ul.nn.Linear(2, 2)'
    for _, case in ipairs {
      { '?matmul', 'matmul%(' }, { '?lora', 'ul.lora.add ' }, { '?g', 'ul.generate ' },
      { '?my_model', 'ul.nn.Linear%(' }, { ':help', ':continue' },
      { ':local', "did you mean 'locals'" }, { 'help()', ':continue' },
      { "help('matmul')", 'matmul%(' }, { 'help(ul.nn.Linear)', 'ul.nn.Linear%(' },
      { 'help, exit = 5, 6', '^$' }, { 'help', '^5\n$' }, { 'exit', '^6\n$' },
    } do
      assert.matches(case[2], (answer(case[1])))
    end
    for _, word in ipairs { ':quit', 'quit()', 'exit' } do
      open()
      terminal:enter(word)
      assert.equal(0, terminal:ended())
    end
  end)

  it('outlives names that are taken', function()
    open()
    for _, name in ipairs { 'type', 'string', 'pcall', 'print', '_G' } do
      answer(name .. " = 'mine'")
      assert.equal('mine\n', answer(name))
    end
    assert.equal('{ 3, {} }\n', answer '{ 1 + 2, {} }')
    assert.matches('stdin:1: x', answer 'error "x"')
    answer 'function f() type = 1 return type end'
    assert.equal('1\n', answer 'f()')
    assert.equal("{ 'type' }\n", answer '{ (ul.json.encode("type"):match "%a+") }')
    answer 'type = nil'
    assert.matches('^function', answer 'type')
  end)

  it('shows the variables where an error was', function()
    open()
    assert.matches("in function 'f'", answer 'function f(a) local b = a + 1; return a.x.y end f(5)')
    assert.equal('a = 5\nb = 6\n', answer ':locals')
    assert.equal('6\n', answer 'b')
    answer 'function f() local off, b = false, 3 error "x" end f()'
    assert.equal('false\n', answer 'off')
    answer 'N = nn.class "N"'
    answer 'function N:forward() local inner = 7 local y = ul.ones(2):matmul(3) return y end'
    assert.matches('matmul', answer 'N()()')
    assert.equal('7\n', answer 'inner')
  end)

  it('comes back at Ctrl-C', function()
    open()
    for _, busy in ipairs {
      'io.write("on\\n") while true do end',
      'coroutine.wrap(function() io.write("on\\n") while true do end end)()',
      'io.write("on\\n") io.read()',
      'os.execute "echo on; sleep 20"',
      'io.write("on\\n") io.popen("sleep 20; true"):read "*a"',
      'io.write("on\\n") local a = ul.ones(300, 300) while true do local b = a:matmul(a) end',
      'io.write("on\\n") for i = 1, 1e9 do ul.scope(function() ul.ones(2):exp() end) end',
    } do
      terminal:enter(busy)
      terminal:expect '\non\r'
      os.execute 'sleep 0.1' -- a shell that is about to fork may miss it
      terminal:type(CTRL_C)
      assert(pcall(terminal.expect, terminal, 'interrupted!'), busy)
      terminal:expect(PROMPT)
      assert.equal('3\n', answer '1 + 2')
    end
    terminal:type 'half a line'
    terminal:expect 'line'
    terminal:type(CTRL_C)
    terminal:expect(PROMPT)
    assert.equal('8\n', answer '8')
  end)

  it('opens inside a loop that it stops, and goes on', function()
    write_script [[
      local ul = require 'ulysses'
      local signals = require('ulysses.core').signals
      local repl = require 'ulysses.repl'
      local total = 0
      signals.watch(true)
      for step = 1, 1000000 do
        local loss = ul.ones(100):sum():item()
        total = total + loss
        if step == 3 then print 'three' end
        if signals.take() then repl.inside('interrupted after step ' .. step) end
        if total < 0 then print('stopped by hand', step >= 3) break end
      end
      signals.watch(false)
    ]]
    open('-i ' .. script, nil, 'three')
    terminal:type(CTRL_C)
    terminal:expect 'interrupted after step %d+'
    terminal:expect 'run> $'
    assert.equal('100\n', answer('loss', 'run> $'))
    assert.equal('true\n', answer('step > 2 and total == step * 100', 'run> $'))
    -- a typo has no frames but its own, and leaves the variables
    assert.matches('^stdin:1: attempt to index global \'stepp\' %(a nil value%)\n$',
                   (answer('stepp.x', 'run> $'):gsub('\27%[%d*m', '')))
    assert.matches('\nstep = %d+\n', '\n' .. answer(':locals', 'run> $'))
    terminal:enter 'print "on" while true do end'
    terminal:expect '\non\r'
    terminal:type(CTRL_C)
    terminal:expect 'interrupted!'
    terminal:expect 'run> $'
    answer('total = -1e9', 'run> $')
    terminal:enter ':continue'
    terminal:expect 'stopped by hand\ttrue'
    terminal:expect(PROMPT)
    assert.equal('5\n', answer '5')
  end)

  it('opens inside a recipe that trains', function()
    open('-i recipes/llama3.lua steps=1000000 seq_len=32 batch=1 model.dim=32 model.n_layers=1 '
         .. 'model.ffn=32 out=' .. state .. '/run', nil, 'step %d+/1000000')
    terminal:type(CTRL_C)
    terminal:expect 'interrupted after step %d+ of 1000000'
    terminal:expect 'run> $'
    assert.equal('true\n', answer('at = run.step; return optim.steps == at', 'run> $'))
    terminal:enter ':continue'
    terminal:expect 'step %d+/1000000'
    terminal:type(CTRL_C)
    terminal:expect 'run> $'
    assert.equal('true\n', answer('run.step > at and optim.steps == run.step', 'run> $'))
    terminal:enter ':stop'
    terminal:expect 'saved [^\n]*/run/step%-%d+, and the same command goes on from there'
    terminal:expect 'interrupted!'
    terminal:expect(PROMPT)
    assert.equal('5\n', answer '5')
  end)

  it('stops a run for good at Ctrl-D', function()
    open()
    assert.equal('', answer 'i = 0; signals = require("ulysses.core").signals')
    terminal:enter('signals.watch(true) print "on" while true do i = i + 1 if signals.take() then '
                   .. 'require("ulysses.repl").inside "stopped" end end')
    terminal:expect '\non\r'
    terminal:type(CTRL_C)
    terminal:expect 'run> $'
    terminal:type(CTRL_D)
    terminal:expect 'interrupted!'
    terminal:expect(PROMPT)
    assert.equal('true\n', answer 'i > 0')
    terminal:enter 'print "on" while true do end'
    terminal:expect '\non\r'
    terminal:type(CTRL_C) -- watched no more
    terminal:expect 'interrupted!'
  end)

  it('follows a script with -i, also one that fails', function()
    write_script 'kept = 4 local inner = 5 error "sad"'
    open('-i ' .. script)
    assert.matches('sad', terminal.before)
    assert.equal('4\t5\n', answer 'kept, inner')
    write_script 'while true do end'
    open('-i ' .. script, 'A=1', '^')
    os.execute 'sleep 0.5'
    terminal:type(CTRL_C)
    terminal:expect 'interrupted!'
    terminal:expect(PROMPT)
    write_script 'x ='
    open('-i ' .. script)
    assert.matches('near', terminal.before)
  end)

  it('does without libedit and without colours', function()
    open('', 'TERM=dumb NO_COLOR=')
    assert.equal('3\n', answer '1 + 2')
    assert.equal('', answer('if true then', '%.%.> $'))
    terminal:type(CTRL_C)
    terminal:expect(PROMPT)
    terminal:enter 'print "on" while true do end'
    terminal:expect '\non\r'
    terminal:type(CTRL_C)
    terminal:expect '\27%[31minterrupted!'
    terminal:expect(PROMPT)
    open()
    assert.is_nil(answer 'error "x"':find '\27[31m')
  end)

  it('reads plainly from a pipe', function()
    assert.same({ '3\nx\n', 0 },
                { program.shell [[printf '1+2\nif true then\nprint("x")\nend' | $P -i]] })
    assert.same({ '1\n2\n', 0 }, { program.shell "echo 2 | $P -e 'print(1)' -i" })
  end)
end)

describe('globals of a script', function()
  it('must have been assigned', function()
    assert.matches("^ulysses%-lua: script.lua:2: undefined variable 'wieghts'; did you mean 'wei"
                   .. "ghts'%?",
                   (program.run 'local weights = 1\nprint(wieghts)'))
    assert.matches("script.lua:1: 'n' is assigned in a function",
                   (program.run 'local function f() n = 1 end f()'))
    assert.equal('1\n', (program.run 'n = nil local function f() n = 1 end f() print(n)'))
    assert.equal('nil\n', (program.shell "$P -e 'print(x)'"))
  end)

  it('are said to be near an option', function()
    assert.matches("no option '%-%-devise'; did you mean '%-%-device'%?",
                   (program.shell '$P --devise cpu'))
  end)
end)
