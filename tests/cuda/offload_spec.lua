-- offload_spec.lua - pinned memory: where there is too little of it, and streams that run late.
-- Under tests/cuemu alone.
local program = require 'tests.program'

local there = (os.getenv 'UL_CUDA_BACKEND' or ''):find 'emulated'

describe('pinned memory', function()
  if not there then
    pending 'is counted by the emulation, which is not here'
    return
  end

  -- What a script prints on cuda with so much memory that may be pinned.
  local function run(pinned, script)
    local output, status = program.shell(("CUEMU_PINNED=%d $P --device cuda -e '%s'"):format(pinned,
                                                                                       script))
    return output, status
  end

  local LAYERS = [[
    local ul = require "ulysses"
    local x = ul.ones(2 ^ 18):requires_grad_() * 2
    for _ = 1, 4 do x = ul.offload(ul.F.exp, x) end]]

  it('that is not there is refused in a sentence', function()
    local output, status = run(2.5 * 2 ^ 20, LAYERS)
    assert.equal(1, status)
    assert.matches('cuda: the host cannot pin 1.0 MiB more beside 2.0 MiB: it has too little '
                   .. 'memory, or may not pin as much %(ulimit %-l%)', output)
    output, status = run(2.5 * 2 ^ 20, [[
      local ul = require "ulysses"
      local p = ul.zeros(2 ^ 18):requires_grad_()
      ul.optim.adamw({ p, ul.zeros(2 ^ 18):requires_grad_() }, { offload = true })]])
    assert.equal(1, status)
    assert.matches('cuda: the host cannot pin 1.0 MiB more', output)
  end)

  it('that is free goes to slots of another size first', function()
    local output, status = run(5 * 2 ^ 20, LAYERS .. [[

    x:sum():backward()
    x = ul.offload(ul.F.exp, ul.ones(2 ^ 20):requires_grad_() * 2)
    x:sum():backward()
    print(ul.memory("cuda").off_device_reserved / 2 ^ 20)]])
    assert.equal(0, status, output)
    assert.equal('4\n', output)
  end)

  -- Prints well where all that is moved is right.
  local TURNS = [[
    local ul = require "ulysses"
    local off = require "ulysses.core".off_device
    local function gradient(call)
      ul.manual_seed(1)
      local w, x = ul.rand(16, 16):requires_grad_(), ul.rand(8, 16):requires_grad_()
      for step = 1, 3 do -- slots are used again
        local h = x * step
        for _ = 1, 4 do
          h = call(function(y) return ul.F.linear(y, w):tanh() + y end, h)
        end
        h:sum():backward()
      end
      return w.grad
    end
    local want = gradient(function(f, x) return f(x) end)
    assert((want - gradient(ul.offload)):abs():max():item() == 0, "inputs")

    local grad = ul.arange(2 ^ 21 + 3, { dtype = "f32" }) * 1e-7 -- 2 pieces and a little
    local function step(place)
      local p, m, v = grad * 2, place(grad * 0.5), place(grad * 0.25)
      for i = 1, 2 do ul.adamw_(p, grad, m, v, { lr = 0.1, step = i }) end
      off.wait()
      return { m, v, p }
    end
    local plain = step(function(x) return x end)
    for i, x in ipairs(step(off.copy)) do
      assert((x:to "cpu" - plain[i]:to "cpu"):abs():max():item() == 0, "state")
    end
    print "well"]]

  it('is read and written in turn, however late streams are', function()
    for _, order in ipairs { 'compute', 'exchange' } do
      local output, status = program.shell(('CUEMU_STREAMS=%s $P --device cuda -e \'%s\''):format(
        order, TURNS))
      assert.equal('well\n', output)
      assert.equal(0, status)
    end
  end)
end)
