-- ranks_repl_spec.lua - one prompt over several ranks, on a pseudo-terminal and from a pipe.
local program = require 'tests.program'
local pty = require 'tests.pty'

local CTRL_C, CTRL_D, CTRL_P, TAB = '\3', '\4', '\16', '\t'
local PROMPT = 'ul> $'

describe('the prompt over several ranks', function()
  local folder, terminal

  before_each(function()
    program.needs_mpirun()
    folder = os.tmpname()
    os.remove(folder)
    os.execute('mkdir ' .. folder)
  end)

  after_each(function()
    if terminal then terminal:close() end
    terminal = nil
    if folder then os.execute('rm -rf ' .. folder) end
  end)

  local settings = 'unset LD_PRELOAD UL_RANK_OUTPUT; export ASAN_OPTIONS=detect_leaks=0 '
    .. 'UL_THREADS=1 TERM=xterm NO_COLOR=1 XDG_STATE_HOME=%s; '

  -- Starts the program; waits for what is to be there first.
  local function open(arguments, first)
    terminal = pty.start(settings:format(folder) .. program.path .. ' ' .. arguments)
    terminal:expect(first or PROMPT, 60)
  end

  -- Types a line and returns what is printed until the next prompt, without the line itself, and
  -- without the time it took.
  local function answer(text, prompt)
    terminal:enter(text)
    terminal:expect(text:gsub('%W', '%%%0') .. '\r*\n')
    terminal:expect(prompt or PROMPT, 60)
    local twice = '^' .. text:gsub('%W', '%%%0') .. '\n(.+)$'
    return (terminal.before:gsub('\r', ''):gsub(twice, '%1'):gsub('%(%d+%.%d+ s%)\n', ''))
  end

  -- Ctrl-C in what prints "on" first; what is printed until the prompt is back.
  local function interrupt(text, prompt)
    terminal:enter(text)
    terminal:expect '\non\r'
    os.execute 'sleep 0.1'
    terminal:type(CTRL_C)
    terminal:expect(prompt or PROMPT, 60)
    return (terminal.before:gsub('\r', ''):gsub('%(%d+%.%d+ s%)\n', ''))
  end

  -- Groups work, and all ranks are where the others are.
  local function works()
    assert.equal('6\n', answer 'g:all_reduce(ul.tensor { g.rank }):item()')
    assert.equal('', answer 'g:barrier()')
    assert.equal('[0,2] 0\n[1,3] 1\n', answer 'g:split(g.rank % 2).rank * 0 + g.rank % 2')
  end

  it('shows what ranks have in common once', function()
    open '--ranks 4'
    assert.equal('3\n', answer '1 + 2')
    assert.equal('3\n', answer '_')
    assert.equal('[0] 0\n[1] 1\n[2] 2\n[3] 3\n', answer 'g.rank')
    assert.equal('[0] 0\n[1-3] 1\n', answer 'math.min(g.rank, 1)')
    assert.equal('[2] 5\n', answer 'if g.rank == 2 then return 5 end')
    assert.equal('a\n', answer 'print "a"')
    assert.equal('0\n[1] 1\n[2] 2\n[3] 3\n', answer 'print(g.rank)')
    assert.equal('a\nz\n[2] b\n', answer 'print "a" if g.rank == 2 then print "b" end print "z"')
    assert.equal('tensor [2] f32 cpu\n[6, 6]\n',
                 answer "g:all_reduce(ul.ones(2):to 'cpu' * g.rank)")
    assert.equal('[0,2] tensor [1] f32 cpu\n      [0]\n[1,3] tensor [1] f32 cpu\n      [1]\n',
                 answer "ul.ones(1):to 'cpu' * (g.rank % 2)")
    assert.equal('', answer('for i = 1, 2 do', '%.%.> $'))
    assert.equal('10\n20\n', answer('print(i * 10) end'))
    terminal:type(CTRL_P)
    terminal:expect 'end'
    terminal:type '\r'
    terminal:expect '10\r\n20\r\n'
    terminal:expect(PROMPT)
    assert.matches('matmul%(', answer '?matmul')
    assert.matches("^no command :local; did you mean 'locals'", answer ':local')
    terminal:type('ul.manual_s' .. TAB)
    terminal:expect 'eed'
    terminal:type(CTRL_C)
    terminal:expect(PROMPT)
    terminal:type('ul.zeros' .. TAB .. TAB)
    terminal:expect 'zeros  zeros_like'
    terminal:type(CTRL_C)
    terminal:expect(PROMPT)
    terminal:type(CTRL_D)
    assert.equal(0, terminal:ended())
  end)

  it('names the ranks of errors', function()
    open '--ranks 4'
    assert.equal('stdin:1: sad (on all ranks)\n', answer 'error "sad"')
    assert.matches("^stdin:1: .*near '%?'\n$", answer 'x = ?')
    assert.equal('[2] stdin:1: sad\n', answer 'if g.rank == 2 then error "sad" end')
    assert.equal('[0,1] stdin:1: low\n[2,3] stdin:1: high\n',
                 answer 'error(g.rank < 2 and "low" or "high")')
    local both = answer 'if g.rank == 1 then error "sad" end return 7'
    assert.matches('%[0,2,3%] 7\n', both)
    assert.matches('%[1%] stdin:1: sad\n', both)
    works()
  end)

  it('comes back at Ctrl-C, and groups work', function()
    open '--ranks 4'
    assert.matches('interrupted!\n$', interrupt 'print "on" while true do end')
    works()
    assert.matches('%[1%-3%] interrupted!\n$',
                   interrupt 'print "on" if g.rank > 0 then g:barrier() end')
    works()
    assert.matches('interrupted!\n$', interrupt(
      'n = 0 print "on" while true do g:all_reduce_(ul.ones(1000)) n = n + 1 end'))
    assert.matches('^%d+\n$', answer 'n')
    works()
    terminal:type(CTRL_D)
    assert.equal(0, terminal:ended())
  end)

  it('opens inside of a loop that trains, and goes on', function()
    local file = io.open(folder .. '/train.lua', 'w')
    file:write [[
      local ul = require 'ulysses'
      local llama3 = require 'recipes.llama3'
      local mesh = ul.mesh { sp = 2 }
      local model = llama3.model(llama3:configure { model = { dim = 16, n_layers = 1, n_heads = 2,
        n_kv_heads = 1, ffn = 16 } }.model, mesh):init_weights { seed = 1 }
      local data = ul.data.from { ('words and words '):rep(50) }:tokenize 'bytes'
      local run = ul.run { model = model, optim = ul.optim.adamw(model), log_every = 1,
                           data = data:pack(16):batch(2):shard(mesh) }
      last = 1e6
      for step, batch in run:steps(last) do
        model(batch):backward()
        run.optim:step()
        if step == last then break end
      end
      print('the end at ' .. last)
    ]]
    file:close()
    open('--ranks 2 -i ' .. folder .. '/train.lua', 'step 3')
    terminal:type(CTRL_C)
    terminal:expect('run> $', 60)
    assert.matches('interrupted after step %d+ of 1000000', terminal.before)
    assert.equal('true\n', answer('run.step > 2', 'run> $'))
    assert.equal('', answer('last = run.step + 5', 'run> $'))
    terminal:enter ':continue'
    terminal:expect('the end at %d+', 60)
    terminal:expect(PROMPT, 60)
    assert.equal('1\n', answer 'ul.group():all_reduce(ul.tensor { ul.group().rank }):item()')
    terminal:type(CTRL_D)
    assert.equal(0, terminal:ended())
  end)
end)
