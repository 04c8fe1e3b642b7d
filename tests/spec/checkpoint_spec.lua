-- checkpoint_spec.lua - checkpoints: bit for bit, whole or not there, and what is wrong is named.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local core = require 'ulysses.core'
local checkpoints = require 'tests.checkpoints'
local manifest = require 'ulysses.checkpoint.manifest'
local checkpoint, nn, optim = ul.checkpoint, ul.nn, ul.optim
local new_model, train, values = checkpoints.model, checkpoints.train, checkpoints.values

local folder

local function here(name) return folder .. '/' .. name end

local function read(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read '*a'
  file:close()
  return text
end

local function write(path, text)
  local file = assert(io.open(path, 'wb'))
  file:write(text)
  file:close()
end

-- Changes one byte of a file.
local function damage(path, at)
  local text = read(path)
  at = at or #text
  write(path, text:sub(1, at - 1) .. string.char((text:byte(at) + 1) % 256) .. text:sub(at + 1))
end

local function names_in(path)
  local list = assert(core.folder_list(path))
  table.sort(list)
  return list
end

local function refusal(f, ...)
  local ok, refused = pcall(f, ...)
  assert.is_false(ok)
  assert.equal('table', type(refused), tostring(refused))
  return refused.sentence
end

local function error_of(f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.equal('string', type(message), tostring(message))
  return (message:gsub('^[^ ]-:%d+: ', ''))
end

-- Warnings of load() are gathered here.
local warnings

local function load(given)
  given.warn = function(sentence) warnings[#warnings + 1] = sentence end
  return checkpoint.load(folder, given)
end

describe('checkpoint', function()
  before_each(function()
    folder, warnings = checkpoints.folder(), {}
  end)
  after_each(function()
    ul.debug.fail_write(0)
    ul.debug.fail_allocation(0)
    core.path_remove(folder)
  end)

  for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
    for _, kind in ipairs { 'adamw', 'sgd' } do
      it('goes on bit for bit: ' .. dtype .. ', ' .. kind, function()
        local function make(seed)
          local model = new_model(seed, dtype)
          local given = kind == 'sgd' and { momentum = 0.9 } or nil
          return model, optim[kind](model, given)
        end
        local model, optimizer = make(1)
        train(model, optimizer, 3)
        local state = { losses = { 0.1, 1 / 3, 0 / 0 }, position = 2 ^ 53, note = 'x' }
        assert.equal(here 'step-3', checkpoint.save(folder, 3, {
          model = model, optim = optimizer, state = state, config = { lr = 3e-4 },
        }))
        local saved = values(model, optimizer)
        train(model, optimizer, 2)
        local expected, next_number = values(model, optimizer), ul.rand(1):item()

        local again, its_optimizer = make(2)
        local parameters = again:parameters()
        local loaded = load { model = again, optim = its_optimizer }
        assert.same(saved, values(again, its_optimizer))
        assert.same(parameters, again:parameters())
        assert.equal(again.embed.weight, again.head.weight)
        assert.is_false(again.up.bias.requires_grad)
        assert.equal(3, loaded.step)
        assert.equal(1 / 3, loaded.losses[2])
        assert.is_true(loaded.losses[3] ~= loaded.losses[3])
        assert.equal(2 ^ 53, loaded.position)
        train(again, its_optimizer, 2)
        assert.same(expected, values(again, its_optimizer))
        assert.equal(next_number, ul.rand(1):item())
        assert.same({}, warnings)
        assert.same({ lr = 3e-4 }, checkpoint.config(folder))
      end)
    end
  end

  it('fills the state of a parameter that was frozen at first', function()
    local function make()
      local model = new_model(1, 'bf16')
      model.up.weight:requires_grad_(false)
      return model, optim.adamw(model)
    end
    local model, optimizer = make()
    train(model, optimizer, 1)
    model.up.weight:requires_grad_(true)
    train(model, optimizer, 1)
    checkpoint.save(folder, 2, { model = model, optim = optimizer })
    local again, its_optimizer = make()
    load { model = again, optim = its_optimizer }
    assert.same(values(model, optimizer), values(again, its_optimizer))
  end)

  it('keeps random numbers where only a model is loaded', function()
    local model = new_model(1)
    checkpoint.save(folder, 1, { model = model, optim = optim.adamw(model) })
    ul.manual_seed(7)
    local expected = ul.rand(3):tolist()
    ul.manual_seed(7)
    local other = new_model(2)
    ul.manual_seed(7)
    load { model = other }
    assert.same(expected, ul.rand(3):tolist())
    assert.same(values(model), values(other))
  end)

  it('keeps a large seed', function()
    local model = new_model(1)
    local optimizer = optim.adamw(model)
    ul.manual_seed(0xfedcba9876543210ULL)
    local seed = ul.random_state()
    checkpoint.save(folder, 1, { model = model, optim = optimizer })
    ul.manual_seed(1)
    load { model = model, optim = optimizer }
    assert.equal(seed, (ul.random_state()))
  end)

  it('finds nothing where there is nothing', function()
    assert.is_nil(load { model = new_model(1) })
    assert.same({}, checkpoint.steps(folder))
    assert.is_nil(checkpoint.config(folder))
    core.folder_make(here 'step-x')
    core.folder_make(here 'step-007')
    assert.is_nil(load {})
    assert.same({}, checkpoint.steps(folder))
  end)

  it('writes the files that it says', function()
    local model = new_model(1)
    checkpoint.save(folder .. '/', 12, { model = model, optim = optim.adamw(model), config = {} })
    assert.same({ 'latest', 'step-12' }, names_in(folder))
    assert.same({ 'config.json', 'manifest.json', 'model.safetensors', 'optimizer.safetensors',
                  'trainer_state.json' }, names_in(here 'step-12'))
    local content = assert(manifest.read(here 'latest'))
    assert.equal(12, content.step)
    assert.same({ dtype = 'f32', shape = { 3, 4 }, shards = {
      { file = 'model.safetensors', offset = { 0, 0 }, shape = { 3, 4 } },
    } }, content.tensors.model['up.weight'])
    assert.is_nil(content.tensors.model['head.weight'])
    local file = assert(ul.safetensors.open(here 'latest/model.safetensors'))
    assert.same(model.up.weight:tolist(), file:get('up.weight'):tolist())
  end)

  it('loads one of several by its folder, or by `latest`', function()
    local model = new_model(1)
    for step = 9, 11 do checkpoint.save(folder, step, { model = model, state = { at = step } }) end
    assert.same({ 9, 10, 11 }, checkpoint.steps(folder))
    assert.equal(11, checkpoint.load(folder).at)
    assert.equal(10, checkpoint.load(here 'step-10').at)
    assert.equal(11, checkpoint.load(here 'latest').step)
  end)

  it('keeps the last ones', function()
    local model = new_model(1)
    for step = 1, 5 do checkpoint.save(folder, step, { model = model, keep = 2 }) end
    assert.same({ 'latest', 'step-4', 'step-5' }, names_in(folder))
    -- A damaged one does not count, and goes when it is out of reach.
    damage(here 'step-5/manifest.json')
    checkpoint.save(folder, 6, { model = model, keep = 2 })
    assert.same({ 4, 5, 6 }, checkpoint.steps(folder))
    checkpoint.save(folder, 7, { model = model, keep = 2 })
    assert.same({ 6, 7 }, checkpoint.steps(folder))
    -- One from a later step may be all there is of another attempt.
    checkpoint.save(folder, 3, { model = model, keep = 1 })
    assert.same({ 3, 6, 7 }, checkpoint.steps(folder))
  end)

  it('saves the same step again', function()
    local model = new_model(1)
    checkpoint.save(folder, 1, { model = model, state = { n = 1 } })
    checkpoint.save(folder, 1, { model = model, state = { n = 2 } })
    assert.equal(2, load({}).n)
    assert.same({ 'latest', 'step-1' }, names_in(folder))
  end)

  it('puts tensors together from any shards', function()
    local whole = ul.randn(6, 5, 2)
    core.folder_make(here 'step-1')
    local boxes = { { 0, 0, 3, 5 }, { 3, 0, 3, 2 }, { 3, 2, 1, 3 }, { 4, 2, 2, 3 } }
    local files, shards = {}, {}
    for i, box in ipairs(boxes) do
      local name = ('model-%d.safetensors'):format(i)
      local part = whole:narrow(1, box[1] + 1, box[3]):narrow(2, box[2] + 1, box[4])
      local bytes, hash = ul.safetensors.save(here('step-1/' .. name), { w = part })
      files[name] = { bytes = bytes, xxh3 = hash }
      shards[i] = { file = name, offset = { box[1], box[2], 0 }, shape = { box[3], box[4], 2 } }
    end
    local bytes, hash = core.file_write(here 'step-1/trainer_state.json',
                                        '{"version":1,"step":1,"state":{}}')
    files['trainer_state.json'] = { bytes = bytes, xxh3 = hash }
    local listed = { dtype = 'f32', shape = { 6, 5, 2 }, shards = shards }
    local function store()
      assert(manifest.write(here 'step-1', {
        step = 1, files = files, tensors = { model = { w = listed }, optimizer = {} },
      }))
    end
    store()
    local Single = nn.class 'Single'
    function Single:init() self.w = nn.parameter(6, 5, 2) end
    local model = Single()
    load { model = model }
    assert.same(whole:tolist(), model.w:tolist())

    -- A rank that wants a part of it.
    local assemble = require 'ulysses.checkpoint.shards'
    local part = ul.zeros(3, 2, 1)
    assert.equal(6, assemble(part, listed, 'w', function(name)
      return assert(ul.safetensors.open(here('step-1/' .. name)))
    end, { 2, 1, 1 }))
    assert.same(whole:narrow(1, 3, 3):narrow(2, 2, 2):narrow(3, 2, 1):tolist(), part:tolist())

    table.remove(shards, 3)
    store()
    assert.equal(here 'step-1' .. ": parameter 'w': 54 of its 60 numbers are in the checkpoint",
                 refusal(load, { model = model }))
  end)

  describe('that is damaged', function()
    local model, optimizer, good

    before_each(function()
      model = new_model(1)
      optimizer = optim.adamw(model)
      checkpoint.save(folder, 1, { model = model, optim = optimizer, config = { a = 1 } })
      good = values(model, optimizer)
      train(model, optimizer, 1)
      checkpoint.save(folder, 2, { model = model, optim = optimizer, config = { a = 2 } })
    end)

    local function falls_back(reason)
      local again = new_model(2)
      local its_optimizer = optim.adamw(again)
      warnings = {}
      assert.equal(1, load({ model = again, optim = its_optimizer }).step)
      assert.same(good, values(again, its_optimizer))
      assert.equal(1, #warnings)
      assert.equal(here 'step-2 is damaged (', warnings[1]:sub(1, #here 'step-2 is damaged ('))
      assert.matches('; step%-1 is used instead$', warnings[1])
      assert.matches(reason, warnings[1])
    end

    it('is named, and the one before it used', function()
      for _, name in ipairs(names_in(here 'step-2')) do
        local path = here('step-2/' .. name)
        local text = read(path)
        damage(path, math.floor(#text / 2))
        falls_back(name .. ': ')
        write(path, text:sub(1, -3)) -- a line's end may be missing
        falls_back(name .. ': ')
        write(path, '')
        falls_back(name .. ': ')
        os.remove(path)
        falls_back(name .. ': ')
        write(path, text)
      end
      assert.equal(2, load({}).step)
    end)

    it('is found by every byte of its manifest', function()
      local path = here 'step-2/manifest.json'
      local text = read(path)
      local changed = 0
      for at = 1, #text, 7 do
        damage(path, at)
        local content = manifest.read(here 'step-2')
        -- White space alone may differ.
        if content then assert.matches('%s', text:sub(at, at)) else changed = changed + 1 end
        write(path, text)
      end
      assert.is_true(changed > 100)
    end)

    it('is refused where no other is left', function()
      damage(here 'step-1/model.safetensors')
      os.remove(here 'step-2/manifest.json')
      local before = values(model, optimizer)
      assert.equal(folder .. ': no checkpoint is whole: step-2: manifest.json: No such file or '
                   .. 'directory; step-1: model.safetensors: holds other bytes than were written',
                   refusal(load, { model = model, optim = optimizer }))
      assert.same(before, values(model, optimizer))
    end)

    it('is not deleted as the last one', function()
      damage(here 'step-2/manifest.json')
      checkpoint.save(folder, 3, { model = model, keep = 1 })
      assert.same({ 3 }, checkpoint.steps(folder))
      damage(here 'step-3/manifest.json')
      ul.debug.fail_write(20)
      refusal(checkpoint.save, folder, 4, { model = model, keep = 1 })
    end)

    it('is told from one of a newer version', function()
      local content = assert(manifest.read(here 'step-2'))
      content.version = 2
      local plain = {}
      for key, value in pairs(content) do plain[key] = value end
      plain.xxh3 = nil
      content.xxh3 = core.hash(ul.json.encode(plain))
      write(here 'step-2/manifest.json', ul.json.encode(content))
      assert.equal(here 'step-2' .. ': has version 2 of the format, and this program knows 1',
                   refusal(load, { model = model }))
    end)
  end)

  it('refuses another model by the first difference', function()
    local model = new_model(1)
    checkpoint.save(folder, 1, { model = model, optim = optim.adamw(model) })
    local at = here 'step-1' .. ': '
    local embed = at .. "parameter 'embed.weight' is "
    assert.equal(embed .. '[5, 4] in the checkpoint and [5, 6] in the model',
                 refusal(load, { model = new_model(1, nil, 6) }))
    assert.equal(embed .. 'f32 in the checkpoint and bf16 in the model',
                 refusal(load, { model = new_model(1, 'bf16') }))
    local larger = new_model(1)
    larger.extra = nn.Linear(2, 2)
    local before = values(larger)
    assert.equal(at .. "parameter 'extra.weight' [2, 2] of the model is not in the checkpoint",
                 refusal(load, { model = larger }))
    assert.same(before, values(larger))
    local Smaller = nn.class 'Smaller'
    function Smaller:init() self.embed = nn.Embedding(5, 4) end
    assert.equal(at .. "parameter 'norm.weight' [4] of the checkpoint is not in the model",
                 refusal(load, { model = Smaller() }))
  end)

  it('refuses another optimizer', function()
    local model = new_model(1)
    checkpoint.save(folder, 1, { model = model, optim = optim.adamw(model) })
    local kind = here 'step-1' .. ': another kind of optimizer: the one in the checkpoint keeps '
    assert.equal(kind .. 'exp_avg and exp_avg_sq, this one velocity',
                 refusal(load, { model = model, optim = optim.sgd(model, { momentum = 0.5 }) }))
    assert.equal(kind .. 'exp_avg and exp_avg_sq, this one nothing',
                 refusal(load, { model = model, optim = optim.sgd(model) }))
    assert.equal(here 'step-1' .. ": optimizer state 'parameter 1.exp_avg' [3, 4] of the optimizer "
                 .. 'is not in the checkpoint',
                 refusal(load, { model = model, optim = optim.adamw { model.up.weight } }))
    checkpoint.save(folder, 2, { model = model })
    assert.equal(here 'step-2' .. ': was saved without an optimizer',
                 refusal(load, { model = model, optim = optim.adamw(model) }))
  end)

  it('raises what was called wrongly, and writes nothing', function()
    local model = new_model(1)
    assert.equal('checkpoint.save: a model is needed', error_of(checkpoint.save, folder, 1, {}))
    assert.equal('checkpoint.save: the step must be a whole number, got 1.5',
                 error_of(checkpoint.save, folder, 1.5, { model = model }))
    assert.equal('checkpoint.save: keep must be at least 1, got 0',
                 error_of(checkpoint.save, folder, 1, { model = model, keep = 0 }))
    assert.equal('checkpoint.save: the folder must be a string, got nil',
                 error_of(checkpoint.save, nil, 1, { model = model }))
    assert.equal("checkpoint.load: no option 'modle'; did you mean 'model'?",
                 error_of(checkpoint.load, folder, { modle = model }))
    assert.equal('json.encode: state.f: no JSON for a function',
                 error_of(checkpoint.save, folder, 1, { model = model, state = { f = print } }))
    assert.is_nil(core.folder_list(folder)) -- not even made
  end)

  it('refuses a folder that is none', function()
    write(folder, 'x')
    assert.equal(folder .. ': cannot be created: File exists',
                 refusal(checkpoint.save, folder, 1, { model = new_model(1) }))
    assert.equal(folder .. ': cannot be read: Not a directory', refusal(load, {}))
    os.remove(folder)
  end)

  it('frees all when an allocation fails', function()
    local model = new_model(1, 'bf16')
    local optimizer = optim.adamw(model)
    local function work()
      checkpoint.save(folder, 1, { model = model, optim = optimizer, keep = 1 })
      load { model = model, optim = optimizer }
    end
    work()
    collectgarbage()
    local live, first = ul.memory(home).live, ul.debug.allocations()
    work()
    local count, expected = ul.debug.allocations() - first, values(model, optimizer)
    for n = 1, count do
      ul.debug.fail_allocation(n)
      assert.is_false((pcall(work)))
      ul.debug.fail_allocation(0)
      collectgarbage()
      assert.equal(live, ul.memory(home).live)
    end
    load { model = model, optim = optimizer }
    assert.same(expected, values(model, optimizer))
    assert.same({}, warnings)
  end)
end)
