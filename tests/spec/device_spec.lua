-- device_spec.lua - where tensors are made unless a call says otherwise.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local program = require 'tests.program'

describe('the default device', function()
  after_each(function() ul.set_default_device(home) end)

  it('is the cpu until another is set', function()
    assert.equal(os.getenv 'UL_DEVICE' or 'cpu', ul.default_device())
    ul.set_default_device 'meta'
    assert.equal('meta', ul.default_device())
  end)

  local on_meta = {
    empty = function() return ul.empty(2, 3) end,
    zeros = function() return ul.zeros { 2, 3, dtype = 'bf16' } end,
    randn = function() return ul.randn(2, 3) end,
    full = function() return ul.full({ 2 }, 7) end,
    randint = function() return ul.randint(0, 9, { 4 }) end,
    arange = function() return ul.arange(5) end,
    tensor = function() return ul.tensor { { 1, 2 }, { 3, 4 } } end,
    parameter = function() return ul.nn.Linear(2, 3, { bias = true }).bias end,
    ['rope table'] = function() return ul.F.rope_table(ul.arange(4), 8).cos end,
  }
  for name, make in pairs(on_meta) do
    it('takes what is made: ' .. name, function()
      assert.equal(home, make():device())
      ul.set_default_device 'meta'
      assert.equal('meta', make():device())
    end)
  end

  it('gives way to a device that is named, or to that of another tensor', function()
    local x = ul.ones(3)
    ul.set_default_device 'meta'
    assert.equal('cpu', ul.zeros({ 2, device = 'cpu' }):device())
    assert.equal(home, ul.zeros_like(x):device())
    assert.same({ 2, 2, 2 }, (x + 1):tolist())
    assert.same({ 2, 3, 4 }, ul.arange(2, 5, { device = 'cpu' }):tolist())
  end)

  local function refusal(name)
    local ok, message = pcall(function() ul.set_default_device(name) end)
    assert.is_false(ok)
    return message
  end

  it('must be one that there is', function()
    assert.matches("device_spec.lua:%d+: set_default_device: no device 'gpu'; there is cpu, meta, "
                   .. 'cuda %(or cuda:1 %.%.%)$', refusal 'gpu')
    assert.matches("no device 'cuda:x'; there is cpu, meta, cuda", refusal 'cuda:x')
    assert.matches('device must be a string, got 3', refusal(3))
    assert.equal(home, ul.default_device())
  end)
end)

describe('on meta', function()
  before_each(function() ul.set_default_device 'meta' end)
  after_each(function() ul.set_default_device(home) end)

  it('a batch has the shapes that it has on the cpu', function()
    local function shapes()
      local data = ul.data.from({ 'abcd', 'efg', 'hijklmno' }):tokenize('bytes'):pack(6):batch(2)
      local batch = data:at(1)
      return { batch.inputs.shape, batch.targets.shape, batch.positions.shape, batch.docs.shape,
               batch.count, batch.denominator }, batch.docs:device()
    end
    local there, device = shapes()
    assert.equal('meta', device)
    ul.set_default_device(home)
    assert.same(shapes(), there)
  end)

  it('a batch of tensors counts every label', function()
    local ids = ul.zeros { 2, 3, dtype = 'i64' }
    assert.equal(6, ul.data.batch(ids, ids).count)
  end)

  it('a batch of tensors lies where they are', function()
    local ids = ul.zeros { 2, 3, dtype = 'i64', device = 'cpu' }
    local batch = ul.data.batch(ids, ids)
    assert.same({ 'cpu', 'cpu' }, { batch.inputs:device(), batch.positions:device() })
  end)

  it('no loss and no norm is known', function()
    local batch = ul.data.from({ 'some text' }):tokenize('bytes'):pack(4):batch(1):at(1)
    local w = ul.randn(4, 260):requires_grad_()
    local optim = ul.optim.adamw({ w }, { lr = 1 })
    local x = ul.randn(1, 4, 4)
    batch:mean(ul.F.linear_cross_entropy(x, w:t():contiguous(), batch.targets)):backward()
    local loss, norm, clipped = batch:loss(), optim:norm(), optim:clip(1)
    assert.is_true(loss ~= loss and norm ~= norm and clipped ~= clipped)
    optim:step()
    assert.has_error(function() return x:sum():item() end)
  end)
end)

describe('UL_DEVICE', function()
  local print_device = [[-e "print(require('ulysses').default_device())"]]

  it('is where tensors are made, for --device to change', function()
    assert.same({ 'meta\n', 0 }, { program.shell('UL_DEVICE=meta $P ' .. print_device) })
    assert.same({ 'cpu\n', 0 }, { program.shell('UL_DEVICE= $P ' .. print_device) })
    assert.same({ 'cpu\n', 0 }, { program.shell('UL_DEVICE=meta $P --device cpu '
                                                .. print_device) })
    local child = [[$P --device meta -e 'os.execute("$CHILD")']]
    assert.equal('meta\n', program.shell(
      [[export CHILD; CHILD="$P -e 'print(require[=[ulysses]=].default_device())'"; ]]
      .. child:gsub('"$CHILD"', 'os.getenv "CHILD"')))
  end)

  it('must be one that there is', function()
    local output, status = program.shell('UL_DEVICE=gpu $P ' .. print_device)
    assert.same({ "ulysses-lua: UL_DEVICE: no device 'gpu'; there is cpu, meta, cuda (or cuda:1 ..)"
                  .. '\n', 1 }, { output, status })
  end)
end)

describe('ulysses-lua --device', function()
  it('sets it for the script', function()
    local output, status = program.shell(
      [[$P --device meta -e "print(require('ulysses').ones(2, 3))"]])
    assert.same({ 'tensor [2, 3] f32 meta\n', 0 }, { output, status })
  end)

  it('says in one sentence what there is instead', function()
    local cases = {
      ['gpu'] = "--device: no device 'gpu'; there is cpu, meta, cuda (or cuda:1 ..)",
      [''] = '--device needs a name',
    }
    for name, sentence in pairs(cases) do
      local output, status = program.shell('$P --device ' .. name)
      assert.same({ 'ulysses-lua: ' .. sentence .. '\n', 1 }, { output, status })
    end
  end)

  it('says what cuda lacks', function()
    local output, status = program.shell 'UL_CUDA_BACKEND=/nowhere.so $P --device cuda -e 1'
    assert.equal(1, status)
    assert.matches('^ulysses%-lua: %-%-device: UL_CUDA_BACKEND: /nowhere.so: [^\n]*\n$', output)
    output, status = program.shell 'UL_CUDA_BACKEND=libm.so.6 $P --device cuda:1 -e 1'
    assert.equal(1, status)
    assert.equal('ulysses-lua: --device: the backend was built for another version of the engine '
                 .. '(0, not N)\n', (output:gsub('not %d+', 'not N')))
  end)
end)
