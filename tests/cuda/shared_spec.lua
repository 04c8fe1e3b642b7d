-- shared_spec.lua - attention on devices whose blocks have less shared memory than others', against
-- the cpu. Under tests/cuemu alone, which has as much as it is told.
local program = require 'tests.program'

local there = (os.getenv 'UL_CUDA_BACKEND' or ''):find 'emulated'

-- Of sm_86, sm_89 and sm_120; of sm_80; of sm_90 and sm_100.
local sizes = { 99, 163, 227 }

local function run(kilobytes, text)
  local output, status = program.run(([[
    local ul = require 'ulysses'
    local attention = require 'tests.cuda.attention'
    ul.attention_backend 'native'
    local function check(case, limit, other)
      local inputs = { attention.inputs_of(case) }
      local expected = attention.run(case, inputs, other or 'cpu')
      attention.close(expected, attention.run(case, inputs, 'cuda'), limit)
    end
    %s]]):format(text), '', ('CUEMU_SHARED=%d'):format(kilobytes * 1024))
  assert(status == 0, output)
  return output
end

describe('attention in the shared memory of a device', function()
  if not there then
    pending 'is made by the emulation, which is not here'
    return
  end
  for _, size in ipairs(sizes) do
    for dtype, limit in pairs { bf16 = 0.02, f32 = 1e-5 } do
      it(('gives what the cpu gives: %d KiB, %s'):format(size, dtype), function()
        run(size, ([[
          for _, D in ipairs { 64, 96, 128, 160, 256, 320 } do
            ul.scope(check, { t = 70, D = D, H = 1, causal = true, dtype = '%s' }, %g)
          end]]):format(dtype, limit))
      end)
    end
  end

  it('gives the same bits in every run', function()
    run(99, [[check({ t = 70, D = 256, H = 1, causal = true }, 0, 'cuda')]])
  end)

  it('has no room for a row of a head that is too large', function()
    local output = run(99, [[
      print(pcall(check, { t = 1, D = 6400, H = 1, dtype = 'f32' }, 1e-5))]])
    assert.matches('attention: heads of 6400 are too large for the 101376 bytes of shared memory '
                   .. 'that this device gives a block', output)
  end)
end)
