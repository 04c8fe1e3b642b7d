-- machine_spec.lua - how fast the machine can be, of which a run says what share it reaches.
local gpus = require 'ulysses.gpus'

describe('what is published of a GPU', function()
  it('is found by the name that its driver gives it', function()
    local peaks = {
      ['NVIDIA A100-SXM4-80GB'] = 312e12, ['NVIDIA A100-PCIE-40GB'] = 312e12,
      ['NVIDIA A100 80GB PCIe'] = 312e12, ['NVIDIA H100 80GB HBM3'] = 989e12,
      ['NVIDIA H200'] = 989e12, ['NVIDIA B200'] = 2250e12,
    }
    for name, peak in pairs(peaks) do assert.equal(peak, gpus.peak(name, 'bf16', false), name) end
  end)

  it('is not taken from one of another speed', function()
    for _, name in ipairs {
      'NVIDIA H100 PCIe', 'NVIDIA H100 NVL', 'NVIDIA H200 NVL', 'NVIDIA GB200',
      'NVIDIA GH200 480GB',
      'NVIDIA RTX A1000', 'NVIDIA GeForce RTX 4090', 'NVIDIA H20', 'NVIDIA B200A', 'cuemu', '',
    } do
      assert.is_nil(gpus.peak(name, 'bf16', false), name)
    end
  end)

  it('depends on the dtype, and f32 on tf32', function()
    local name = 'NVIDIA H100 80GB HBM3'
    assert.equal(67e12, gpus.peak(name, 'f32', false))
    assert.equal(494.5e12, gpus.peak(name, 'f32', true))
    assert.equal(989e12, gpus.peak(name, 'bf16', true))
    assert.equal(67e12, gpus.peak(name, 'f64', true))
  end)
end)
