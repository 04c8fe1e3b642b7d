-- offload_spec.lua - what is kept off the device: inputs of layers, and the optimizer's state.
local checkpoints = require 'tests.checkpoints'
local core = require 'ulysses.core'
local program = require 'tests.program'
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local kind = home:match '^%a+'
local F = ul.F

local function memory() return ul.memory(kind) end

local function settle()
  collectgarbage()
  collectgarbage()
  ul.reset_peak_memory()
end

local function block(w)
  return function(x, scale) return F.dropout((F.linear(x, w):silu() * scale) + x, 0.25) end
end

local function plainly(f, ...) return f(...) end

describe('ul.offload', function()
  before_each(settle)

  -- The loss and all gradients of one step through layers that `call` runs.
  local function gradients(dtype, call)
    local w = ul.full({ 8, 8 }, 0.1):to(dtype):requires_grad_()
    local x = (ul.arange(32, { dtype = 'f32' }):view(4, 8) * 0.1):to(dtype):requires_grad_()
    ul.manual_seed(7)
    local f, h = block(w), x * 1
    for i = 1, 4 do h = call(f, h, i) end
    local loss = h:to('f32'):square():sum()
    loss:backward()
    return { loss:item(), x.grad:tolist(), w.grad:tolist(), (select(2, ul.random_state())) }
  end

  for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
    it('changes no bit in ' .. dtype, function()
      local plain = gradients(dtype, plainly)
      assert.same(plain, gradients(dtype, ul.offload))
      assert.same(plain, gradients(dtype, function(f, x, scale) -- one within another
        return ul.offload(function(h) return ul.offload(f, h * 1, scale) end, x)
      end))
    end)
  end

  it('keeps a leaf, views, results of no op and empty ones', function()
    local x = ul.randn(3, 4):requires_grad_()
    ul.offload(function(h) return h * 2 end, x:transpose(1, 2)):sum():backward()
    assert.same({ { 2, 2, 2, 2 }, { 2, 2, 2, 2 }, { 2, 2, 2, 2 } }, x.grad:tolist())
    local y = ul.offload(function(h) return h * x end, ul.ones(3, 4))
    y:sum():backward()
    assert.equal(3, x.grad:max():item())
    assert.equal(0, ul.offload(function(h) return h * 2 end, x:narrow(1, 1, 0)):numel())
    local none = ul.offload(F.exp, ul.ones(2))
    assert.is_false(none.requires_grad)
    ul.no_grad(function() assert.equal(2, ul.offload(F.exp, ul.zeros(2)):numel()) end)
  end)

  it('runs backward twice', function()
    local x = ul.randn(4, 4):requires_grad_()
    local loss = ul.offload(F.tanh, ul.offload(F.tanh, x * 1)):sum()
    loss:backward { retain = true }
    local once = x.grad:tolist()
    loss:backward()
    assert.same((ul.tensor(once) * 2):tolist(), x.grad:tolist())
    assert.equal(0, memory().off_device)
  end)

  it('leaves two inputs on the device of as many as there are', function()
    local n, bytes = 6, 64 * 256 * 4
    local w = ul.randn(256, 256):requires_grad_()
    local x = ul.randn(64, 256):requires_grad_()
    local function layer(h) return F.linear(h, w) end
    -- What is live behind the last layer, and the most in backward.
    local function step(call)
      return ul.scope(function()
        local h = x * 1
        local before = memory().live - bytes
        for _ = 1, n do h = call(layer, h) end
        local behind = memory().live - before
        ul.reset_peak_memory()
        h:sum():backward()
        w.grad, x.grad = nil, nil
        return { behind, memory().peak - before, memory().off_device_peak }
      end)
    end
    collectgarbage 'stop'
    local kept, moved = step(ul.recompute), step(ul.offload)
    collectgarbage 'restart'
    assert.equal((n + 1) * bytes, kept[1])
    assert.equal(bytes, moved[1])
    assert.equal(n * bytes, moved[3])
    assert.equal(0, memory().off_device)
    if kind ~= 'cpu' then -- the cpu's are read in the file
      assert.equal(kept[2] - (n - 2) * bytes, moved[2])
    end
  end)

  it('asks the host for no memory after the second step', function()
    local w = ul.randn(8, 8):requires_grad_()
    local reserved, live
    for step = 1, 100 do
      ul.scope(function()
        local h = ul.randn(4, 8):requires_grad_() * 1
        for _ = 1, 4 do h = ul.offload(block(w), h, 2) end
        h:sum():backward()
        w.grad = nil
      end)
      if step == 2 then reserved, live = memory().off_device_reserved, memory().live end
    end
    assert.equal(reserved, memory().off_device_reserved)
    assert.equal(live, memory().live)
  end)

  it('is counted on meta', function()
    ul.scope(function()
      local w = ul.zeros { 8, 8, device = 'meta' }:requires_grad_()
      local h = ul.zeros { 4, 8, device = 'meta' } * w:sum()
      for _ = 1, 3 do h = ul.offload(function(x) return F.linear(x, w) end, h) end
      assert.equal(3 * 128, ul.memory('meta').off_device)
      h:sum():backward()
      assert.equal(0, ul.memory('meta').off_device)
    end)
  end)

  it('frees what it has copied, and says so', function()
    local w = ul.randn(8, 8):requires_grad_()
    local x = ul.ones(2, 8):matmul(w)
    ul.offload(F.tanh, x)
    assert.error_matches(function() return x * 2 end, 'tensor freed')
    assert.error_matches(function() ul.offload(1, x) end, 'offload: expected a function, got a num')
    assert.error_matches(function() ul.offload(F.tanh, 1) end,
                         'offload: expected a tensor to keep off the device, got a number')
  end)

  it('may fail at every allocation without a leak', function()
    local w = ul.randn(8, 8):requires_grad_()
    local function step()
      ul.scope(function()
        local h = ul.ones(4, 8):matmul(w)
        for _ = 1, 3 do h = ul.offload(function(x) return F.linear(x, w) end, h) end
        h:sum():backward()
      end)
      w.grad = nil
    end
    step()
    settle()
    local live, failed = memory().live, 0
    for n = 1, 1000 do
      ul.debug.fail_allocation(n)
      local ok = pcall(step)
      ul.debug.fail_allocation(0)
      w.grad = nil
      collectgarbage()
      collectgarbage()
      assert.equal(0, memory().off_device)
      assert.equal(live, memory().live)
      if ok then break end
      failed = failed + 1
    end
    assert.is_true(failed > 20)
  end)

  it('leaves the memory of the process #cpu', function() -- it is the device's elsewhere
    local function most(how)
      local output = program.shell(([[$P -e "
        local ul = require 'ulysses'
        local x = ul.ones(2 ^ 21):requires_grad_() * 1
        for _ = 1, 8 do x = ul.%s(ul.F.neg, x) end
        x:sum():backward()
        print(io.open('/proc/self/status'):read '*a':match 'VmHWM:%%s*(%%d+)')"]]):format(how))
      return tonumber(output) / 1024
    end
    -- 8 inputs of 8 MiB; in the file they cost what has been read of them
    assert.is_true(most 'recompute' - most 'offload' > 32)
  end)

  it('says where there is no room for its file #cpu', function() -- it is pinned memory elsewhere
    local output, status = program.shell [[TMPDIR=/nowhere/at/all $P -e "
      local ul = require 'ulysses'
      ul.offload(ul.F.exp, ul.ones(2):requires_grad_() * 2)"]]
    assert.equal(1, status)
    assert.matches('offload: cannot make a file in /nowhere/at/all: No such file or directory '
                   .. '%(TMPDIR names another folder%)', output)
    output, status = program.shell [[ulimit -f 1024; trap '' XFSZ; $P -e "
      local ul = require 'ulysses'
      ul.offload(ul.F.exp, ul.ones(2 ^ 20):requires_grad_() * 2)"]]
    assert.equal(1, status)
    assert.matches('offload: no room for 4.0 MiB more in [^ ]+ beside 0.0 MiB: File too large',
                   output)
  end)
end)

describe('adamw with its state off the device', function()
  before_each(settle)

  -- Parameters after some steps, and the optimizer.
  local function train(dtype, offload, n, steps)
    ul.manual_seed(3)
    local list = { ul.randn(n, 2):to(dtype):requires_grad_(),
                   ul.randn(5):to(dtype):requires_grad_() }
    local optim = ul.optim.adamw(list, { lr = 0.1, offload = offload })
    for _ = 1, steps do
      ul.scope(function()
        for _, p in ipairs(list) do p:to('f32'):square():sum():backward() end
        optim:step()
      end)
    end
    return list, optim
  end

  for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
    it('changes no bit in ' .. dtype, function()
      local want, have = train(dtype, false, 7, 3), train(dtype, true, 7, 3)
      for i = 1, 2 do assert.same(want[i]:tolist(), have[i]:tolist()) end
    end)
  end

  it('takes pieces in turn', function()
    local n = 2 ^ 21 + 3 -- 2 pieces and a little
    local grad, options = ul.arange(n, { dtype = 'f32' }) * 1e-7, { lr = 0.1, step = 2 }
    local function step(place)
      local p = grad:to 'bf16'
      local m, v, master = place(grad * 0.5), place(grad * 0.25), place(grad * 2)
      options.master = master
      ul.adamw_(p, grad, m, v, options)
      core.off_device.wait()
      return { p, m, v, master }
    end
    local want = step(function(x) return x end)
    for i, x in ipairs(step(core.off_device.copy)) do
      assert.equal(0, (x:to(home) - want[i]):abs():max():item())
    end
  end)

  it('takes none of the device but the parameters and their gradients', function()
    local live, off = memory().live, memory().off_device
    local list, optim = train('bf16', true, 500, 2)
    settle()
    assert.equal(live + 2048 + 64, memory().live)
    assert.equal(off + 3 * (4032 + 64), memory().off_device)
    local names = {}
    for name, state in optim:named_state() do
      names[#names + 1] = name:match '[^.]*$' .. ' ' .. state:size(1)
    end
    assert.same({ 'exp_avg 500', 'exp_avg_sq 500', 'master 500', 'exp_avg 5', 'exp_avg_sq 5',
                  'master 5' }, names)
    assert.equal(2, #list)
  end)

  it('may be mixed with nothing', function()
    local p = ul.zeros(2):requires_grad_()
    local off = core.off_device
    assert.error_matches(function()
      ul.adamw_(p, ul.zeros(2), off.copy(ul.zeros(2)), ul.zeros(2))
    end, 'adamw_: m and v must both be off the device, or neither')
    assert.error_matches(function() off.unpark(p) end, 'unpark: %[2%] was not parked')
    assert.error_matches(function() off.copy(off.copy(p)) end, 'is off its device already')
  end)

  it('leaves Ctrl-C as it was, where its state does not come back', function()
    local w = ul.randn(4):requires_grad_()
    local optim = ul.optim.adamw({ w }, { offload = true })
    local wait, hold, release, held = core.off_device.wait, core.signals.hold,
                                      core.signals.release, 0
    core.off_device.wait = function() error('the disk is gone', 0) end
    core.signals.hold = function() held = held + 1 return hold() end
    core.signals.release = function() held = held - 1 return release() end
    w:sum():backward()
    local ok, problem = pcall(optim.step, optim)
    core.off_device.wait, core.signals.hold, core.signals.release = wait, hold, release
    assert.same({ false, 'the disk is gone', 0 }, { ok, problem, held })
    assert.is_nil(w.grad)
  end)

  it('is kept and resumed as any other', function()
    local path = os.tmpname()
    os.remove(path)
    local function begun(offload)
      local model = checkpoints.model(1, 'bf16')
      return model, ul.optim.adamw(model, { lr = 0.01, offload = offload })
    end
    local model, optim = begun(true)
    checkpoints.train(model, optim, 2)
    ul.checkpoint.save(path, 2, { model = model, optim = optim })
    ul.manual_seed(2)
    checkpoints.train(model, optim, 2)
    for _, offload in ipairs { true, false } do
      local other, its = begun(offload)
      ul.checkpoint.load(path, { model = other, optim = its })
      ul.manual_seed(2)
      checkpoints.train(other, its, 2)
      assert.same(checkpoints.values(model, optim), checkpoints.values(other, its))
    end
    assert(core.path_remove(path))
  end)
end)

describe('sgd with its state off the device', function()
  before_each(settle)

  -- Parameters and state after some steps.
  local function train(dtype, momentum, offload, n)
    ul.manual_seed(3)
    local list = { ul.randn(n, 2):to(dtype):requires_grad_(),
                   ul.randn(5):to(dtype):requires_grad_() }
    local optim = ul.optim.sgd(list, { lr = 0.1, momentum = momentum, nesterov = momentum > 0.5,
                                       weight_decay = 0.01, offload = offload })
    for _ = 1, 3 do
      ul.scope(function()
        for _, p in ipairs(list) do p:to('f32'):square():sum():backward() end
        optim:step()
      end)
    end
    for _, state in optim:named_state() do list[#list + 1] = state end
    return list
  end

  for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
    it('changes no bit in ' .. dtype, function()
      for momentum, states in pairs { [0] = 0, [0.5] = 1, [0.9] = 1 } do
        local want, have = train(dtype, momentum, false, 7), train(dtype, momentum, true, 7)
        assert.equal(2 + 2 * (states + (dtype == 'bf16' and 1 or 0)), #have)
        for i, x in ipairs(want) do assert.same(x:tolist(), have[i]:tolist()) end
      end
    end)
  end

  it('takes pieces in turn', function()
    local grad = ul.arange(2 ^ 20 + 3, { dtype = 'f32' }) * 1e-6 -- a piece and a little
    local function step(momentum, place)
      local p, master = grad:to 'bf16', place(grad * 2)
      local velocity = momentum > 0 and place(grad * 0.5) or nil
      ul.sgd_(p, grad, { lr = 0.1, momentum = momentum, velocity = velocity, master = master })
      core.off_device.wait()
      return { p, master, velocity }
    end
    for _, momentum in ipairs { 0, 0.9 } do
      local want = step(momentum, function(x) return x end)
      for i, x in ipairs(step(momentum, core.off_device.copy)) do
        assert.equal(0, (x:to(home) - want[i]):abs():max():item())
      end
    end
  end)

  it('takes none of the device but the parameters', function()
    local live, off = memory().live, memory().off_device
    local list = train('bf16', 0.9, true, 500)
    settle()
    assert.equal(live + 2048 + 64, memory().live)
    assert.equal(off + 2 * (4032 + 64), memory().off_device)
    assert.equal(6, #list)
  end)

  it('may be mixed with nothing', function()
    local p = ul.zeros({ 2 }, { dtype = 'bf16' }):requires_grad_()
    assert.error_matches(function()
      ul.sgd_(p, ul.zeros(2), { lr = 1, momentum = 0.5, master = ul.zeros(2),
                                velocity = core.off_device.copy(ul.zeros(2)) })
    end, 'sgd_: momentum and master must both be off the device, or neither')
  end)
end)

describe('a recipe with offload=true', function()
  local small = 'model.dim=16 model.ffn=16 model.n_layers=3 model.n_heads=2 model.n_kv_heads=1 '
    .. 'seq_len=16 batch=2 steps=2 log_every=1 sample=1 out= data=README.md'

  it('prints the same losses', function()
    local function losses(given)
      local output = program.shell(('$P recipes/llama3.lua %s %s'):format(small, given))
      local list = {}
      for loss in output:gmatch 'loss +([%d.]+)' do list[#list + 1] = loss end
      assert.equal(4, #list, output)
      return list
    end
    assert.same(losses 'offload=false', losses 'offload=true')
  end)

  it('is planned: two inputs of as many as there are, and no moments', function()
    local function plan(given)
      local output = program.shell(('$P --device meta recipes/mistral.lua %s %s'):format(
        small:gsub('seq_len=16', 'seq_len=4K'), given))
      return output:match 'takes (%d+) MB at its peak([^\n]*)'
    end
    local plain, moved, off = plan 'offload=false', plan 'offload=true'
    assert.is_true(tonumber(moved) < 0.7 * plain)
    -- 3 layers of 2 x 4096 x 16 numbers, and 2 of each of the model's
    assert.matches('^, 2 MB off the device and [%d.]+ GFLOP', off)
  end)
end)
