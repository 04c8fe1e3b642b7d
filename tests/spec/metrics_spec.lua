-- metrics_spec.lua - metrics.jsonl: a line for each step, cut back where a run goes on from.
local ul = require 'ulysses'
local metrics = require 'ulysses.metrics'

local folder

local function contents(name)
  local file = assert(io.open(folder .. '/' .. name, 'rb'))
  local text = file:read '*a'
  file:close()
  return text
end

local function steps_of(path)
  local steps = {}
  for i, record in ipairs(metrics.read(path)) do steps[i] = record.step end
  return steps
end

-- A model of one weight: its loss is that weight squared.
local function new_run(given)
  local weight = ul.tensor({ 1, 2 }):requires_grad_()
  local data = {}
  function data.at()
    return { inputs = ul.zeros(2, 3), loss = function() return weight:square():sum():item() end }
  end
  given = given or {}
  given.model, given.data, given.log_every = ul.nn.Linear(1, 1), data, 0
  given.dir = folder .. '/run'
  return ul.run(given)
end

describe('metrics', function()
  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    require('ulysses.core').folder_make(folder)
  end)
  after_each(function() os.execute("rm -r '" .. folder .. "'") end)

  it('hold every step with what the run knows and what it is told', function()
    local run = new_run()
    for step in run:steps(3) do
      run:log { lr = 0.5 / step, norm = ul.tensor(step) }
      run:log { more = step == 2 and 0 / 0 or 1 }
      ul.zeros(2 ^ 18):free() -- of the device that the step is on
    end
    local records = metrics.read(folder .. '/run/metrics.jsonl')
    assert.equal(3, #records)
    for step, record in ipairs(records) do
      assert.equal(step, record.step)
      assert.equal(5, record.loss)
      assert.equal(0.5 / step, record.lr)
      assert.equal(step, record.norm)
      assert.equal(6 * step, record.tokens)
      for _, name in ipairs { 'tokens_per_s', 'peak_bytes', 'seconds' } do
        assert.is_true(record[name] > 0, name)
      end
      assert.is_true(record.peak_bytes >= 2 ^ 20)
    end
    assert.equal(ul.json.null, records[2].more)
    assert.matches('"loss":5,', contents 'run/metrics.jsonl')
  end)

  it('can be read while the run goes on', function()
    local run = new_run()
    for step in run:steps(3) do
      assert.equal(step - 1, #metrics.read(folder .. '/run/metrics.jsonl'))
    end
  end)

  it('have evaluations beside the steps', function()
    local run = new_run()
    function run.model.forward() end
    local data = { once = function()
      local left = 2
      return function()
        left = left - 1
        if left >= 0 then return { denominator = 3 - left, loss = function() return left end } end
      end
    end }
    for step in run:steps(2) do
      if step == 2 then
        local loss, perplexity = run:eval(data)
        assert.equal((1 * 2 + 0 * 3) / 5, loss)
        assert.equal(math.exp(loss), perplexity)
      end
    end
    local record = metrics.read(folder .. '/run/metrics.jsonl')[2]
    assert.equal(5, record.loss)
    assert.equal(0.4, record.eval_loss)
    assert.equal(math.exp(0.4), record.perplexity)
  end)

  it('have samples in a file beside them, each once', function()
    local run = new_run()
    function run.model.logits(_, inputs)
      local row = ul.zeros { 1, 1, 260 }
      row[1][1][inputs:tolist()[1][inputs:size(2)] % 250 + 2] = 99 -- what comes next in the table
      return row
    end
    for step in run:steps(2) do
      local before = { ul.random_state() }
      assert.equal('bcd', run:sample('a', { n = 3, temperature = 0 }))
      if step == 2 then run:sample('\254\195', { n = 1, temperature = 0 }) end
      run:sample('a', { n = 3, temperature = 0 })
      assert.same(before, { ul.random_state() })
    end
    local samples = metrics.read_all(folder .. '/run/samples.jsonl')
    assert.same({ { step = 1, prompt = 'a', text = 'bcd' },
                  { step = 2, prompt = 'a', text = 'bcd' },
                  { step = 2, prompt = '??', text = '?' } }, samples)
    new_run():steps(2)
    assert.equal(3, #metrics.read_all(folder .. '/run/samples.jsonl'))
  end)

  it('are cut back to a step, and a broken last line goes', function()
    local path = folder .. '/lines.jsonl'
    local function write(text)
      local file = io.open(path, 'wb')
      file:write(text)
      file:close()
    end
    local three = '{"step":1}\n{"step":2}\n{"a":1,"step":2}\n{"step":3}\n'
    for _, case in ipairs {
      { three, 9, { 1, 2, 3 } }, { three, 2, { 1, 2 } }, { three, 0, {} },
      { three .. '{"step":4', 9, { 1, 2, 3 } }, { three .. '{"step":4}', 9, { 1, 2, 3 } },
      { three .. 'x\n{"step":4}\n', 9, { 1, 2, 3, 4 } }, { '', 5, {} }, { 'x', 5, {} },
    } do
      write(case[1])
      local seen = 0
      local file = metrics.open(path, case[2], function() seen = seen + 1 end)
      assert.same(case[3], steps_of(path))
      assert.equal(#case[3] + (#case[3] > 1 and 1 or 0), seen)
      file:write { step = 5 }
      file:close()
      table.insert(case[3], 5)
      assert.same(case[3], steps_of(path))
    end
    assert.same({}, metrics.read(folder .. '/none.jsonl'))
  end)

  it('are refused where they cannot be written', function()
    local ok, refusal = pcall(metrics.open, folder .. '/none/metrics.jsonl', 0)
    assert.is_false(ok)
    assert.equal(("cannot write '%s/none/metrics.jsonl': No such file or directory"):format(folder),
                 tostring(refusal))
    local path = folder .. '/metrics.jsonl'
    local file = metrics.open(path, 0)
    file:close()
    file.file = io.open('/dev/full', 'ab')
    ok, refusal = pcall(file.write, file, { step = 1 })
    assert.is_false(ok)
    assert.equal(("cannot write '%s': No space left on device"):format(path), tostring(refusal))
    file:close()
  end)

  it('belong to one process at a time', function()
    new_run()
    local program = require 'tests.program'
    local output, status = program.shell(([[$P -e "
      require 'ulysses.folder'.open('%s/run')"]]):format(folder))
    assert.equal(1, status)
    assert.matches("^ulysses%-lua: run: another run is at work in '.*/run' %(process %d+%);"
                   .. "[^\n]*\n$", output)
    new_run() -- this process may have it again
  end)

  it('want a folder that can be made', function()
    local ok, refusal = pcall(ul.run, { model = {}, data = {}, dir = '/dev/null/x' })
    assert.is_false(ok)
    assert.matches('^run: /dev/null', tostring(refusal))
  end)
end)
