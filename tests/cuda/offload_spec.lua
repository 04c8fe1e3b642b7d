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

  it('is read and written in turn, however late streams are', function()
    for _, order in ipairs { '', 'compute', 'exchange', 'back' } do
      local output, status = program.shell(
        ('CUEMU_STREAMS=%s $P --device cuda tests/cuemu/turns.lua'):format(order))
      assert.equal('well\n', output)
      assert.equal(0, status)
    end
  end)
end)
