-- ranks_run_spec.lua - a recipe on several ranks that is stopped, killed, and goes on.
local core = require 'ulysses.core'
local metrics = require 'ulysses.metrics'
local program = require 'tests.program'
local pty = require 'tests.pty'

local STEPS = 200
local SETTINGS = 'export ASAN_OPTIONS=detect_leaks=0 UL_THREADS=1 UL_COMM_TIMEOUT=20; '
  .. 'unset UL_RANK_OUTPUT; '

local folder

-- A shell command for the recipe on two ranks, with the subfolder `name` for its run.
local function command(name, more)
  return ('$P --ranks 2 recipes/llama3.lua sp=2 model.dim=16 model.n_layers=1 model.n_heads=2 '
          .. 'model.n_kv_heads=1 model.ffn=16 seq_len=33 batch=1 steps=%d save_every=20 sample=3 '
          .. "log_every=0 out='%s/%s' %s"):format(STEPS, folder, name,
                                                  more or 'data=recipes/llama3.lua')
end

local function shell(text) return program.shell(SETTINGS .. text) end

-- Waits until the metrics of a run have so many lines.
local function when(name, lines)
  return ([[i=0; until [ "$(cat %s/%s/metrics.jsonl 2>/dev/null | wc -l)" -ge %d ] ||
      [ $((i += 1)) = 2000 ]; do sleep 0.01; done]]):format(folder, name, lines)
end

-- Starts the recipe and runs shell code when its metrics have so many lines: $front is the process
-- that was started, $ranks are those of the ranks.
local function disturbed(name, lines, code, more)
  local output, status = shell(([[
    env --default-signal=INT %s & front=$!
    %s
    ranks=$(ps -o pid= --ppid $(ps -o pid= --ppid $front))
    %s
    wait $front; exit $?]]):format(command(name, more), when(name, lines), code))
  return (output:gsub('\nTerminated\n$', '\n')), status -- said by the shell, of any program
end

-- Weights and optimizer of the last step, byte by byte, and the losses of all steps.
local function state_of(name)
  local state = {}
  for _, kind in ipairs { 'model', 'optimizer' } do
    local path = ('%s/%s/step-%d/%s.safetensors'):format(folder, name, STEPS, kind)
    local file = assert(io.open(path, 'rb'))
    state[kind] = core.hash(file:read '*a')
    file:close()
  end
  for _, values in ipairs(metrics.read(('%s/%s/metrics.jsonl'):format(folder, name))) do
    state[values.step] = values.loss
  end
  assert.equal(STEPS, #state)
  return state
end

-- On cuda that is minutes under emulation; tests/dist/cuda_spec.lua has ranks there.
describe('a recipe on two ranks #cpu', function()
  local undisturbed

  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    core.folder_make(folder)
    program.needs_mpirun()
    local output, status = shell(command 'undisturbed')
    assert.equal(0, status, output)
    for _, line in ipairs { 'first loss', 'held%-out loss', 'a sample:', 'the report:' } do
      assert.equal(1, select(2, output:gsub('\n' .. line, '')), output)
    end
    undisturbed = state_of 'undisturbed'
  end)
  teardown(function() core.path_remove(folder) end)

  -- Goes on where it was stopped, and comes to what it would have come to.
  local function goes_on(name)
    local output, status = shell(command(name))
    assert.equal(0, status, output)
    assert.matches('\nresumed [^\n]* at step %d+ of 200\n', output)
    assert.same(undisturbed, state_of(name))
  end

  local ends = {
    { 'SIGTERM', 'kill -TERM $front', 'terminated', 143 },
    { 'Ctrl-C', 'kill -INT $front', 'interrupted', 130 },
    { 'SIGTERM that one rank alone gets', 'kill -TERM $(echo $ranks | cut -d" " -f2)',
      'terminated', 143 },
  }
  for i, case in ipairs(ends) do
    local title, code, word, expected = unpack(case)
    it('saves once at ' .. title, function()
      local name = 'stopped' .. i
      local output, status = disturbed(name, 5 * i, code)
      -- Open MPI's mpirun may complain of its own pipes when it is interrupted.
      output = output:gsub('%[warn%] Epoll [^\n]*\n\n?', '')
      local sentence = ('%s after step (%%d+) of 200; saved [^\n]*/%s/step%%-(%%d+), and the same '
                        .. 'command goes on from there\n'):format(word, name)
      local step, saved = output:match(sentence .. '$')
      assert.equal(step, saved, output)
      assert.is_truthy(step, output)
      assert.equal(1, select(2, output:gsub(word, '')))
      assert.equal(expected, status)
      goes_on(name)
    end)
  end

  it('has the status of the signal where it comes twice', function()
    for name, expected in pairs { INT = 130, TERM = 143 } do
      local kill = ('kill -%s $front; sleep 0.1; '):format(name)
      local output, status = disturbed('twice' .. name, 5, kill:rep(2))
      assert.equal(expected, status, output)
    end
  end)

  it('says at Ctrl-C on a terminal that the step at work comes first, once', function()
    -- the shell gets it too
    local start = 'unset LD_PRELOAD; %s P=%s; trap : INT; env --default-signal=INT %s'
    local terminal = pty.start(start:format(SETTINGS, program.path, command 'typed'))
    finally(function() terminal:close() end)
    os.execute(when('typed', 5))
    terminal:type '\3'
    terminal:expect('interrupted after step %d+ of 200; saved ', 60)
    local said = terminal.before:gsub('\r', '')
    assert.equal(1, select(2, said:gsub(
      '\nstopping after this step; Ctrl%-C again stops at once\n', '')), said)
    assert.equal(130, terminal:ended())
    goes_on 'typed'
  end)

  it('ends between two batches of an evaluation', function()
    local output, status = disturbed('evaluated', STEPS, 'sleep 0.2; kill -TERM $front',
                                     'data=docs/api.md held_out=0.9')
    assert.matches('terminated after step 200 of 200; saved [^\n]*/step%-200, and [^\n]*\n$',
                   output)
    assert.equal(143, status)
  end)

  it('is the same as if none of its ranks had ever been killed', function()
    for i = 1, 2 do
      local kill = ('kill -9 $(echo $ranks | cut -d" " -f%d)'):format(i)
      local output, status = disturbed('killed', 60 * i, kill)
      assert.matches(('ulysses%%-lua: rank %d was ended by signal 9'):format(i - 1), output)
      assert.not_equal(0, status)
    end
    goes_on 'killed'
  end)

  it('ends with one sentence where its folder is another run\'s', function()
    local output, status = shell(([[
      flock '%s/undisturbed/lock' sh -c "%s"]]):format(folder, command 'undisturbed'))
    assert.equal(1, status)
    assert.matches("ulysses%-lua: run: another run is at work in '[^\n]*\n$", output)
    assert.equal(1, select(2, output:gsub('another run', '')))
  end)
end)
