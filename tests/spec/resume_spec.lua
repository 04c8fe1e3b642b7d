-- resume_spec.lua - runs that are killed, stopped, refused, and go on from what they have left.
local core = require 'ulysses.core'
local json = require 'ulysses.json'
local metrics = require 'ulysses.metrics'
local program = require 'tests.program'

local STEPS = 40
local folder

-- A run on a tiny model whose loss depends on random numbers too. Arguments: its folder, and Lua
-- code that changes the settings `s` first.
local script = [[
local ul = require 'ulysses'
local nn, F = ul.nn, ul.F
s = { dir = arg[1], steps = 40, every = 3, rows = 2, seed = 1, lr = 1e-2, wait = 0, width = 8 }
assert(loadstring(arg[2] or ''))()
local Model = nn.class 'Model'
function Model:init()
  self.embed, self.head = nn.Embedding(260, s.width), nn.Linear(s.width, 260)
end
function Model:forward(batch)
  local x = self.embed(batch.inputs) * (1 + ul.rand(s.width))
  if s.is_bad then x = x * (0 / 0) end
  return batch:mean(F.linear_cross_entropy(x, self.head.weight, batch.targets))
end
local model = Model():init_weights { seed = 1 }
local optim = ul.optim[s.sgd and 'sgd' or 'adamw'](model, { lr = s.lr })
local text = ('Of all that came to pass in those days little is known. '):rep(40)
local data = ul.data.from { s.text or text }:tokenize 'bytes':pack(16):shuffle { seed = s.seed }
  :batch(s.rows)
local run = ul.run { model = model, optim = optim, data = data, dir = s.dir, log_every = 0,
                     config = { lr = s.lr, steps = s.steps } }
for step, batch in run:steps(s.steps) do
  local is_bad = s.bad and step >= s.bad and step < s.bad + (s.bad_steps or 100)
  s.is_bad = is_bad and not s.bad_gradient
  local loss = model(batch)
  if is_bad then loss = loss * (0 / 0) end
  loss:backward()
  local norm = s.no_clip and optim:norm() or optim:clip(1)
  optim:step()
  run:log { grad_norm = norm }
  if step % s.every == 0 then run:save() end
  if s.then_do then s.then_do(step, run) end
end
print(('done: %d losses, first %.4f'):format(#run.losses, run.losses[1]))
]]

-- A shell command that runs it in the subfolder `name`.
local function command(name, change)
  return ("$P '%s/script.lua' '%s/%s' '%s'"):format(folder, folder, name, change or '')
end

-- The shell stays, to take the word about a killed program with it.
local function run(name, change) return program.shell(command(name, change) .. '; exit $?') end

local function contents(path)
  local file = assert(io.open(folder .. '/' .. path, 'rb'))
  local text = file:read '*a'
  file:close()
  return text
end

-- Weights and optimizer of a step, byte by byte, and the losses of all steps.
local function state_of(name)
  local path, state = ('%s/step-%d/'):format(name, STEPS), {}
  for _, file in ipairs(core.folder_list(folder .. '/' .. path)) do
    if file:match 'safetensors$' then state[file] = core.hash(contents(path .. file)) end
  end
  assert.is_truthy(next(state))
  for _, values in ipairs(metrics.read(folder .. '/' .. name .. '/metrics.jsonl')) do
    state[values.step] = values.loss
  end
  assert.equal(STEPS, #state)
  return state
end

-- Numbers from 0 on below n, the same in each run of the specs.
local seed = 7
local function random(n)
  seed = seed * 16807 % 2147483647
  return seed % n
end

describe('a run', function()
  local undisturbed

  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    core.folder_make(folder)
    local file = io.open(folder .. '/script.lua', 'w')
    file:write(script)
    file:close()
    local output, status = run 'undisturbed'
    assert.matches('^done: 40 losses, first 5%.5', output)
    assert.equal(0, status)
    undisturbed = state_of 'undisturbed'
  end)
  teardown(function() core.path_remove(folder) end)

  it('is the same as if it had never been killed', function()
    -- Ten times at some step that changes the disk, in the midst of a save mostly, ...
    for _ = 1, 10 do
      local _, status = run('killed', ([[require("ulysses.core").debug_fail_write(%d, "SIGKILL")]])
                            :format(3 + random(50)))
      assert.equal(137, status)
    end
    -- ... and ten times at some moment, the first ones before it has begun.
    for i = 1, 10 do
      program.shell(('(%s) & sleep %.3f; kill -9 $!; wait $!'):format(
        'exec ' .. command('killed', 's.then_do = function() os.execute "sleep 0.01" end'),
        0.02 + 0.02 * i + random(100) / 1000))
    end
    local output, status = run 'killed'
    assert.equal(0, status)
    assert.matches('done: 40 losses, first 5%.5', output)
    assert.same(undisturbed, state_of 'killed')
  end)

  it('is the same as if it had never been terminated', function()
    local output, status
    for i = 1, 20 do
      output, status = run('terminated', ([[s.then_do = function(step, run)
        if step == (run.resumed or 0) + 1 then
          os.execute "(sleep %.4f; kill -TERM $PPID) &"
        end
        os.execute "sleep 0.005"
      end]]):format(i > 1 and random(150) / 10000 or 0))
      if i > 10 and output:find 'done' then break end
      assert.equal(143, status)
      assert.matches('terminated after step %d+ of 40; saved .*/terminated/step%-%d+, and the same '
                     .. 'command goes on from there\n$', output)
    end
    run 'terminated'
    assert.same(undisturbed, state_of 'terminated')
  end)

  it('says where it goes on, and when it is complete', function()
    assert.matches('^done', (run('long', 's.steps = 6')))
    local output = run('long', 's.steps = 9 s.lr = 2e-2')
    assert.equal(('resumed %s/long at step 6 of 9\nchanged since: lr 0.01 -> 0.02, steps 6 -> 9\n')
                 :format(folder), output:match '^(.*)done')
    local before = contents 'long/metrics.jsonl'
    output = run('long', 's.steps = 9 s.lr = 2e-2')
    assert.matches('^[^\n]*/long is complete at step 9: nothing is left to do [^\n]*\ndone: 9 ',
                   output)
    assert.equal(before, contents 'long/metrics.jsonl')
  end)

  it('says which file it has learned from, and whether that is still there', function()
    local models, parent = require 'tests.hf_models', folder .. '/files'
    assert(core.folder_make(parent))
    local first, second = parent .. '/first.txt', parent .. '/second.txt'
    models.write(first, ('A fox jumps over 7 dogs. '):rep(40))
    models.write(second, ('The fox jumps over 8 dogs. '):rep(37) .. 'x')
    local function train(data, more)
      local output, status = program.shell(([[$P recipes/llama3.lua data=%s model.dim=32 batch=2 \
        seq_len=32 steps=1 sample=0 out=%s/run %s]]):format(data, parent, more or ''))
      return output:match '([^\n]*)\n$', status, output
    end
    local _, status, all = train(first)
    assert.equal(0, status, all)
    local said = train(second)
    assert.equal(("ulysses-lua: run: '%s/run' was trained on another text (data, or how it is "
      .. "read: tokenizer, held_out, what of a conversation is learned), data='%s'; set that "
      .. 'again, or give this run a folder of its own (out=..)'):format(parent, first), said)
    os.remove(first)
    assert.matches("data='" .. first .. "', which is no longer there; give this run a folder of "
                   .. 'its own %(out=..%)$', (train(second)))
    models.write(first, ('A fox jumps over 7 cats. '):rep(40))
    assert.matches("; give back what '" .. first .. "' was, or set that again, or give this run a "
                   .. 'folder of its own', (train(first)))
    models.write(first, ('A fox jumps over 7 dogs. '):rep(40))
    _, _, all = train(first, 'prompt=')
    assert.matches("\nchanged since: prompt A hacker is %-> ''\n", all)
  end)

  it('refuses to go on with other data or another model', function()
    run('data', 's.steps = 3')
    for change, sentence in pairs {
      ['s.rows = 3'] = 'was trained on batches of 2 rows, not 3',
      ['s.seed = 2'] = 'was trained on a shuffle with seed 1, not 2',
      ['s.text = "other"'] = 'was trained on a text of %d+ tokens, not 6',
      ['s.width = 4'] = '',
    } do
      local output, status = run('data', 's.steps = 6 ' .. change)
      assert.equal(1, status)
      assert.matches('^ulysses%-lua: [^\n]*' .. sentence .. '[^\n]*\n$', output)
    end
  end)

  it('loses nothing to a full disk', function()
    run('full', 's.steps = 3')
    for n = 1, 12 do
      local output, status = run('full', ([[s.steps = 6
        s.then_do = function(step)
          if step == 4 then require("ulysses.core").debug_fail_write(%d, "ENOSPC") end
        end
        s.every = 5]]):format(n))
      if status == 0 then break end
      assert.equal(1, status)
      assert.matches('^resumed [^\n]*\nchanged [^\n]*\nulysses%-lua: [^\n]*'
                     .. 'No space left on device\n$', output)
    end
    run 'full'
    assert.same(undisturbed, state_of 'full')
  end)

  it('skips a bad step, and stops after five in a row', function()
    for _, kind in ipairs { '', 's.no_clip = true', 's.sgd = true', 's.bad_gradient = true' } do
      local known = kind:find 'gradient' ~= nil
      core.path_remove(folder .. '/bad')
      local output, status = run('bad', 's.bad = 8 ' .. kind)
      assert.equal(1, status)
      assert.matches('^ulysses%-lua: run: the loss or its gradient was not finite in 5 steps in a '
                     .. 'row, up to step 12 %(loss ' .. (known and '5%.%d+' or '%-?nan')
                     .. ', grad_norm %-?nan%); the weights are those after step 7; [^\n]*/bad/'
                     .. 'step%-6 is the last checkpoint\n$', output)
      local records = metrics.read(folder .. '/bad/metrics.jsonl')
      assert.equal(12, #records)
      for step, values in ipairs(records) do
        assert.equal(step >= 8 or nil, values.skipped)
        assert.equal(step >= 8 and not known, values.loss == json.null)
      end
    end
    -- Four are survived, and the checkpoint that was due comes after them.
    core.path_remove(folder .. '/bad')
    local output, status = run('bad', 's.bad = 8 s.bad_steps = 4 s.steps = 12 s.every = 9')
    assert.matches('^done: 12 losses', output)
    assert.equal(0, status)
    local names = core.folder_list(folder .. '/bad')
    table.sort(names)
    assert.matches('step%-12', table.concat(names, ' '))
    assert.is_nil(table.concat(names, ' '):find 'step%-9')
  end)

  -- Sends a signal in step 4, and goes on until it has come.
  local function on_signal(name)
    return ([[s.then_do = function(step)
      if step ~= 4 then return end
      os.execute "(sleep 0.02; kill -%s $PPID) &"
      while not require("ulysses.core").signals.pending() do end
    end]]):format(name)
  end

  it('is saved where its output is no longer read, or its terminal is gone', function()
    local prints = 's.then_do = function(step) print(step) io.flush() os.execute "sleep 0.01" end'
    local output = program.shell(('(%s; echo "exit $?" >&2) | head -n 3'):format(
      command('unread', prints)))
    local step = tonumber(output:match 'stopped after step (%d+) of 40')
    assert.is_true(step and step < 40, output)
    assert.matches(('standard output is no longer read: stopped after step %d of 40; saved '
                    .. '%s/unread/step%%-%d, and the same command goes on from there\n'):format(
                      step, folder:gsub('%W', '%%%0'), step), output)
    assert.matches('exit 1', output)
    run 'unread'
    assert.same(undisturbed, state_of 'unread')
    local status
    output, status = run('hung', on_signal 'HUP')
    assert.equal(143, status)
    assert.matches('^terminated after step 4 of 40; saved', output)
  end)

  it('goes on where its output is lost, and fails in the end', function()
    local output, status = program.shell(
      command('lost', 's.then_do = function(step) print(step) end') .. ' >/dev/full')
    assert.equal(1, status)
    assert.matches('^ulysses%-lua: cannot write to standard output[^\n]*\n$', output)
    assert.same(undisturbed, state_of 'lost')
  end)

  it('saves at Ctrl-C where there is no prompt', function()
    local output, status = run('stopped', on_signal 'INT')
    assert.equal(130, status)
    assert.equal(('interrupted after step 4 of 40; saved %s/stopped/step-4, and the same command '
                  .. 'goes on from there\n'):format(folder), output)
    run 'stopped'
    assert.same(undisturbed, state_of 'stopped')
  end)

  it('has the status of Ctrl-C where a second one breaks the step off', function()
    local output, status = run('broken', [[s.then_do = function(step)
      if step ~= 4 then return end
      os.execute "(for i in 1 2; do sleep 0.02; kill -INT $PPID; done) &"
      jit.off() -- a compiled loop never looks
      while true do end
    end]])
    assert.matches('^ulysses%-lua: interrupted!\nstack traceback:\n', output)
    assert.equal(130, status)
  end)

  it('opens the prompt at Ctrl-C where there is one', function()
    local stub = [[package.loaded["ulysses.repl"] = {
      available = function() return true end,
      inside = function(sentence) print(sentence) %s end,
    }]]
    local output, status = run('prompt', on_signal 'INT' .. '\n' .. stub:format '')
    assert.matches('^interrupted after step 4 of 40\ndone: 40 losses', output)
    assert.equal(0, status)
    assert.same(undisturbed, state_of 'prompt')
    output, status = run('left', on_signal 'INT' .. '\n' .. stub:format 'error("interrupted!", 0)')
    assert.equal(130, status)
    assert.matches('^interrupted after step 4 of 40\nsaved [^\n]*/left/step%-4, and the same '
                   .. 'command goes on from there\nulysses%-lua: interrupted!\n', output)
  end)

  it('without a folder ends at once and saves nothing', function()
    for name, expected in pairs { TERM = { 'terminated', 143 }, INT = { 'interrupted', 130 } } do
      local output, status = run('none', 's.dir = nil ' .. on_signal(name))
      assert.equal(expected[2], status)
      assert.equal(expected[1] .. ' after step 4 of 40; nothing is saved\n', output)
    end
  end)

  it('ends between two batches of an evaluation', function()
    for _, step in ipairs { 4, 40 } do
      local output, status = run('evaluated' .. step, ([[s.then_do = function(step, run)
        if step ~= %d then return end
        local signals, n = require("ulysses.core").signals, 0
        if step == 40 then for _ in run:steps(40) do end end -- behind the last step
        os.execute "(sleep 0.02; kill -TERM $PPID) &"
        run:eval { once = function() return function()
          while not signals.pending() do end
          n = n + 1
          print("batch", n)
          return run.data:at(n)
        end end }
      end]]):format(step))
      assert.equal(143, status)
      assert.matches(('^batch\t1\nterminated after step %d of 40; saved [^\n]*\n$'):format(step),
                     output)
    end
    run 'evaluated4'
    assert.same(undisturbed, state_of 'evaluated4')
  end)

  it('saves, and ends what is to be done, behind the last step', function()
    local ended = '^%sterminated after step 40 of 40; saved [^\n]*/step%%-40, and [^\n]*\n$'
    local signal = [[local function signal(word)
      io.write(word) os.execute "kill -TERM $PPID"
      while not require("ulysses.core").signals.pending() do end
    end ]]
    local output, status = run('last save', signal .. [[s.then_do = function(step, run)
      if step < 40 then return end
      local save = run.save_now
      function run:save_now() signal "" return save(self) end
    end]])
    assert.matches(ended:format '', output)
    assert.equal(143, status)
    assert.same(undisturbed, state_of 'last save')
    output, status = run('after', signal .. [[s.then_do = function(step, run)
      if step < 40 then return end
      for _ in run:steps(40) do end
      run:after(function()
        run:after(function() signal "one, " end)
        io.write "two, "
      end)
      io.write "never"
    end]])
    assert.matches(ended:format 'one, two, ', output)
    assert.equal(143, status)
  end)

  it('wants a folder that can be written', function()
    local output, status = program.shell(("$P '%s/script.lua' /dev/null/x"):format(folder))
    assert.equal(1, status)
    assert.matches('^ulysses%-lua: run: /dev/null[^\n]*\n$', output)
  end)

  it('has its folder for itself', function()
    local output, status = run('own', ([[s.steps = 2 s.then_do = function(step)
      if step == 2 then os.execute(%q) end
    end]]):format(command 'own':gsub('%$P', program.path):gsub("'", '"') .. ' 2>&1; echo =$?'))
    assert.equal(0, status)
    assert.matches("another run is at work in '[^\n]*/own' %(process %d+%); give this one a folder "
                   .. 'of its own %(out=..%)\n=1\n', output)
  end)
end)
