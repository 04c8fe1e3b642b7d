-- device_spec.lua - what is said where a GPU can not be used. Under tests/cuemu alone: it answers
-- what drivers would.
local program = require 'tests.program'

local there = (os.getenv 'UL_CUDA_BACKEND' or ''):find 'emulated'

local function refusal(environment, device)
  local output, status = program.shell(('%s $P --device %s -e 1'):format(environment,
                                                                         device or 'cuda'))
  assert.equal(1, status)
  return (output:match '^ulysses%-lua: %-%-device: ([^\n]*)\n$')
end

describe('a device that can not be used', function()
  if not there then
    pending 'is made by the emulation, which is not here'
    return
  end

  it('is told by what its driver answers', function()
    local sentences = {
      [34] = "the libcuda.so.1 that was found is the toolkit's stub and no driver: take its folder "
        .. 'out of LD_LIBRARY_PATH',
      [35] = 'the NVIDIA driver is too old for this build: it needs CUDA 13 (driver 580) or newer',
      [100] = 'the NVIDIA driver sees no GPU (nvidia-smi lists those of the machine)',
      [999] = 'the NVIDIA driver does not answer: cuemu (error 999); nvidia-smi may say why',
    }
    for code, sentence in pairs(sentences) do
      assert.equal(sentence, refusal('CUEMU_ERROR=' .. code))
    end
    assert.equal('the NVIDIA driver sees no GPU with CUDA_VISIBLE_DEVICES=7 (nvidia-smi lists '
                 .. 'those of the machine)', refusal 'CUEMU_DEVICES=0 CUDA_VISIBLE_DEVICES=7')
  end)

  it('is one of more than there are', function()
    assert.equal('there is no cuda:2, only 2 devices', refusal('CUEMU_DEVICES=2', 'cuda:2'))
    assert.equal('there is no cuda:1, only 1 device', refusal('CUEMU_DEVICES=1', 'cuda:1'))
  end)

  it('is too old', function()
    assert.equal('cuemu has compute capability 7.0; 8.0 (Ampere) or newer is needed',
                 refusal 'CUEMU_CAPABILITY=70')
  end)
end)

describe('memory of a small GPU', function()
  if not there then
    pending 'is made by the emulation, which is not here'
    return
  end

  it('that is not there is refused in a sentence with the largest tensors', function()
    local script = os.tmpname()
    local file = io.open(script, 'w')
    file:write [[
      local ul = require 'ulysses'
      local held = ul.zeros { 2 ^ 22, device = 'cuda' }
      print(pcall(function() return ul.zeros { 2 ^ 24, device = 'cuda' } end))
      held:free()
      for _ = 1, 20 do ul.zeros { 2 ^ 22, device = 'cuda' } end -- dropped, never freed by hand
      print(ul.zeros({ 2 ^ 22, device = 'cuda' }):numel())]]
    file:close()
    local output, status = program.shell('CUEMU_MEMORY=50331648 $P ' .. script)
    os.remove(script)
    assert.equal(0, status, output)
    assert.matches('out of memory on cuda:0: 64.0 MiB wanted, 16.0 MiB in use and 3%d%.%d MiB free '
                   .. 'of 48.0 MiB; the largest tensors: 16.0 MiB from [^,\n]*:2', output)
    assert.matches('\n4194304\n$', output)
  end)
end)
