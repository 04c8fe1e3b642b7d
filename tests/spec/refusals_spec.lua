-- refusals_spec.lua - input that is wrong: one sentence, exit status 1, and no file is damaged.
local program = require 'tests.program'

local folder

local tiny = {
  ['model.dim'] = 16, ['model.n_layers'] = 1, ['model.n_heads'] = 2, ['model.n_kv_heads'] = 1,
  ['model.ffn'] = 32, seq_len = 32, batch = 1, steps = 4, warmup = 1, save_every = 2, log_every = 0,
  sample = 0, data = 'README.md',
}

-- Runs the recipe; `options` come before it.
local function train(overrides, options)
  local words, given = {}, {}
  for key, value in pairs(tiny) do given[key] = value end
  given.out = folder .. '/run'
  for key, value in pairs(overrides) do given[key] = value end
  for key, value in pairs(given) do words[#words + 1] = ("'%s=%s'"):format(key, value) end
  table.sort(words)
  return program.shell(('timeout 60 $P %s recipes/llama3.lua %s'):format(options or '',
                                                                        table.concat(words, ' ')))
end

-- Everything below the folder with its hash, but for what records each sitting.
local function contents()
  local pipe = io.popen(("cd '%s' && find . -type f -not -name metrics.jsonl -not -name lock "
                         .. '-not -name run.json '
                         .. '| sort | xargs -r md5sum'):format(folder))
  local text = pipe:read '*a'
  pipe:close()
  return text
end

-- The last line of the output is the sentence and the only one of its kind; it is returned.
local function refused(output, status)
  assert.equal(1, status, output)
  local last
  for line in output:gmatch '[^\n]+' do
    assert.is_nil(last and last:match '^ulysses%-lua: ', output)
    last = line
  end
  assert.matches('^ulysses%-lua: ', last)
  assert.is_nil(output:find 'traceback', output)
  return last
end

local function truncate(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read '*a'
  file:close()
  file = assert(io.open(path, 'wb'))
  file:write(text:sub(1, #text / 2))
  file:close()
end

describe('what is refused:', function()
  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    os.execute('mkdir ' .. folder)
  end)
  after_each(function() os.execute('rm -rf ' .. folder) end)

  it('for want of memory says how to know before, and what takes less', function()
    local output, status = program.run [[
      local ul = require 'ulysses'
      local mine = ul.recipe 'mine' { offload = false, recompute = true, sp = 1 }
      function mine.train() ul.empty(2 ^ 44) end
      return mine:main()]]
    assert.equal(1, status)
    assert.matches('out of memory on [^\n]*\nulysses%-lua %-%-plan, before the script, says what a '
                   .. 'step takes of memory; less with offload=true, more ranks %(sp=N%)\nstack '
                   .. 'traceback:\n%s*script.lua:3: ', output)
  end)

  it('a missing file', function()
    assert.matches("no file '/nowhere.txt'", refused(train { data = '/nowhere.txt' }))
    assert.matches('cannot open nothing.lua', refused(program.shell '$P nothing.lua'))
    assert.equal('', contents())
  end)

  it('a misspelt key', function()
    assert.matches("no setting 'modle.dim'; did you mean 'model.dim'%?",
                   refused(train { ['modle.dim'] = 3 }))
    assert.equal('', contents())
  end)

  it('a value of another type', function()
    assert.matches("steps.*'many'", refused(train { steps = 'many' }))
    assert.matches("model.tied.*'perhaps'", refused(train { ['model.tied'] = 'perhaps' }))
    assert.equal('', contents())
  end)

  it('a setting that is no UTF-8', function()
    for _, key in ipairs { 'prompt', 'out', 'data' } do
      assert.matches(key .. " is no UTF%-8 from byte 2 on: 'a\\xff'",
                     refused(train { [key] = 'a\xff' }))
    end
    assert.equal('', contents())
  end)

  it('a pipe or a device where a file is expected', function()
    local pipe = folder .. '/pipe'
    os.execute('mkfifo ' .. pipe)
    for _, data in ipairs { pipe, folder .. '/p*' } do
      assert.matches('data.read: cannot read .*/pipe: it is a pipe, not a file',
                     refused(train { data = data }))
    end
    assert.matches('data.read: cannot read /dev/zero: it is a device',
                   refused(train { data = '/dev/zero' }))
    assert.matches('llama3: cannot read .*/pipe: it is a pipe', refused(train { config = pipe }))
    assert.matches('llama3: cannot read /dev/zero: it is a device',
                   refused(train { config = '/dev/zero' }))
    assert.matches("/pipe: cannot be read: Not a directory", refused(program.shell(
      ([[timeout 60 $P -e "require('ulysses').checkpoint.load('%s', {})"]]):format(pipe))))
    os.remove(pipe)
    assert.equal('', contents())
  end)

  it('a pipe among the files of a run', function()
    train {}
    local function refused_with(name, words)
      local path = folder .. '/run/' .. name
      os.rename(path, folder .. '/kept')
      os.execute('mkfifo ' .. path)
      local sentence = refused(program.shell(words)):gsub(folder:gsub('%W', '%%%0'), '$')
      os.rename(folder .. '/kept', path)
      return sentence
    end
    local again = ("timeout 60 $P recipes/llama3.lua steps=6 'config=%s/again'"):format(folder)
    local file = io.open(folder .. '/again', 'w')
    file:write((io.open(folder .. '/run/run.json'):read '*a'):match '"config": (%b{})')
    file:close()
    for _, name in ipairs { 'metrics.jsonl', 'samples.jsonl', 'lock' } do
      assert.matches('%$/run/' .. name .. ': it is a pipe, not a file', refused_with(name, again))
    end
    local page = ('timeout 60 $P --report %s/run'):format(folder)
    for _, name in ipairs { 'metrics.jsonl', 'samples.jsonl', 'run.json' } do
      assert.matches('%$/run/' .. name .. ': it is a pipe, not a file', refused_with(name, page))
    end
    for _, name in ipairs { 'manifest.json', 'model.safetensors', 'trainer_state.json' } do
      os.execute(('cd %s && cp -r run kept'):format(folder))
      local path = folder .. '/run/step-4/' .. name
      os.execute(('test -e %s && rm %s && mkfifo %s'):format(path, path, path))
      local output, status = program.shell(again)
      assert.equal(0, status, output)
      assert.matches(name .. ': it is a pipe, not a file', output)
      assert.matches('at step 2 of 6', output)
      os.execute(('cd %s && rm -r run && mv kept run'):format(folder))
    end
  end)

  it('values that make no model or no batch', function()
    for setting, sentence in pairs {
      ['seq_len=0'] = 'seq_len=0 is too small; it is 1 at least', ['batch=0'] = 'batch=0',
      ['dtype=f16'] = "dtype='f16'; parameters are f32, bf16 or f64",
      ['model.n_layers=0'] = 'model.n_layers=0', ['accumulate=2'] = 'accumulate=2 cuts a batch',
      ['model.n_heads=3'] = 'model.dim=16 is no multiple of model.n_heads=3',
      ['model.n_kv_heads=3'] = 'model.n_heads=2 is no multiple of model.n_kv_heads=3',
      ['steps=0'] = 'steps=0', ['held_out=1'] = 'held_out=1 leaves nothing',
      ['lr=-1'] = 'lr=%-1',
      ['batch=1e12'] = 'batch=1000000000000 is too large; it is 1048576 at most',
      ['seq_len=1e12'] = 'seq_len=1000000000000 is too large', ['model.dim=1e9'] = 'model.dim=',
      ['model.n_layers=1e9'] = 'model.n_layers=1000000000 is too large; it is 4096 at most',
      ['model.vocab=1e12'] = 'model.vocab=', ['model.ffn=1e12'] = 'model.ffn=',
      ['model.rope_theta=0'] = 'model.rope_theta=0 is too small; it is above 0',
      ['model.eps=-1'] = 'model.eps=%-1 is too small', ['sp=1e9'] = 'sp=1000000000 is too large',
      ['tp=1e9'] = 'tp=1000000000 is too large', ['sample=1e12'] = 'sample=1000000000000 is too',
    } do
      local key, value = setting:match '^(.-)=(.*)$'
      assert.matches(sentence, refused(train { [key] = value }))
    end
    assert.equal('', contents())
  end)

  it('a script that is no Lua', function()
    local output, status = program.run 'local x = = 3'
    assert.equal("ulysses-lua: script.lua:1: unexpected symbol near '='", refused(output, status))
  end)

  it('a loss that is not finite, five times in a row', function()
    assert.matches('not finite in 5 steps in a row', refused(train { lr = 1e30, steps = 20 }))
  end)

  it('an output that cannot be written', function()
    assert.matches('/dev/null: cannot be created', refused(train { out = '/dev/null/x' }))
  end)

  it('a disk that is full, which leaves the checkpoint before', function()
    local _, status = train {}
    assert.equal(0, status)
    local before = contents()
    local fail = [[-e "require('ulysses').debug.fail_write(12, 'ENOSPC')"]]
    assert.matches('No space left', refused(train({ steps = 8 }, fail)))
    assert.equal(before, contents())
    assert.matches('at step 4 of 8', (train { steps = 8 }))
  end)

  it('a truncated checkpoint, if there is no other', function()
    train {}
    truncate(folder .. '/run/step-4/model.safetensors')
    local before = contents()
    local output, status = train { steps = 6 }
    assert.equal(0, status, output)
    assert.matches('step%-4', output)
    assert.matches('at step 2 of 6', output)
    assert.not_equal(before, contents())
    for _, step in ipairs { 2, 4, 6 } do
      local path = ('%s/run/step-%d/model.safetensors'):format(folder, step)
      local file = io.open(path)
      if file then
        file:close()
        truncate(path)
      end
    end
    before = contents()
    assert.matches('model.safetensors', refused(train { steps = 8 }))
    assert.equal(before, contents())
  end)

  it('a checkpoint of another model', function()
    train {}
    local before = contents()
    assert.matches("%[260, 16%] in the checkpoint and %[260, 32%] in the model; give this run a "
                   .. 'folder of its own %(out=..%), or set again what has changed: '
                   .. 'model.dim 16 %-> 32$', refused(train { ['model.dim'] = 32, steps = 6 }))
    assert.matches('is f32 in the checkpoint and bf16 in the model; give .* changed: '
                   .. 'dtype none %-> bf16$', refused(train { dtype = 'bf16', steps = 6 }))
    assert.equal(before, contents())
  end)

  it('a device that is not there', function()
    assert.matches("no device 'gpu'; there is cpu, meta", refused(train({}, '--device gpu')))
    assert.matches("no device 'cuda:x'", refused(train({}, '--device cuda:x')))
    assert.equal('', contents())
  end)

  it('an option that is not there', function()
    assert.matches("no option '%-%-reprot'; did you mean '%-%-report'%?",
                   refused(program.shell '$P --reprot x'))
  end)
end)
