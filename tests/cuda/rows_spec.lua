-- rows_spec.lua - kernels that keep a row in registers, against the cpu: rows of one warp and of
-- many, of 16 bytes at a time and of one element, that are kept and that are read again.
local ul = require 'ulysses'
local F = ul.F
local abs, max = math.abs, math.max

local there, why = pcall(ul.zeros, 1, { device = 'cuda' })

local limits = { f32 = 1e-5, bf16 = 1.2e-2, f64 = 1e-12 }
-- Multiples of 16 bytes and others; the longest are read again.
local widths = { f32 = { 7, 1032, 2100, 8200 }, bf16 = { 64, 1030, 16392 }, f64 = { 64 } }

-- Each is given rows x and z [n, cols], weights w and v [cols], and targets; all of them float but
-- the last.
local calls = {
  softmax = function(x) return { x:softmax(2) } end,
  log_softmax = function(x) return { x:log_softmax(2) } end,
  rms_norm = function(x, _, w) return { F.rms_norm(x, w, 1e-5) } end,
  add_rms_norm = function(x, z, w) return { F.add_rms_norm(x, z, w, 1e-5) } end,
  layer_norm = function(x, _, w, v) return { F.layer_norm(x, w, v, 1e-5) } end,
  cross_entropy = function(x, _, _, _, targets)
    return { F.cross_entropy(x, targets, { ignore_index = 3, reduction = 'sum' }) }
  end,
}

-- Results, then gradients, as f64 on the cpu.
local function results_of(call, cols, dtype, device)
  ul.manual_seed(11)
  local inputs, n = {}, cols > 2000 and 3 or 5
  for i = 1, 4 do
    local shape = i <= 2 and { n, cols } or { cols }
    inputs[i] = ul.randn(shape, { dtype = 'f32' }):to(dtype):to(device):requires_grad_()
  end
  local targets = ul.tensor({ 0, 3, cols - 1, 4, 1 }, { dtype = 'i64', device = device })
  inputs[5] = targets:narrow(1, 1, n)
  local outputs, seeds = call(unpack(inputs)), {}
  for i, y in ipairs(outputs) do
    local seed = ul.randn(y.shape, { dtype = 'f32' })
    seeds[i] = seed:to(y:dtype()):to(device)
  end
  ul.backward(outputs, seeds)
  local results = {}
  for _, y in ipairs(outputs) do results[#results + 1] = y:detach() end
  for i = 1, 4 do
    if inputs[i].grad then results[#results + 1] = inputs[i].grad end
  end
  for i, y in ipairs(results) do results[i] = y:to('cpu'):to('f64'):contiguous() end
  return results
end

local function check(name, cols, dtype)
  local expected = results_of(calls[name], cols, dtype, 'cpu')
  local actual = results_of(calls[name], cols, dtype, 'cuda')
  assert.equal(#expected, #actual)
  for i, y in ipairs(actual) do
    local want, got, largest, gap = expected[i]:data(), y:data(), 0.05, 0
    for k = 0, y:numel() - 1 do
      largest = max(largest, abs(want[k]))
      local d = abs(want[k] - got[k])
      if not (d <= gap) then gap = d end
    end
    if not (gap <= limits[dtype] * largest) then
      error(('%s, rows of %d: result %d is off by %g, of %g'):format(dtype, cols, i, gap, largest))
    end
  end
end

describe('rows on cuda', function()
  if not there then
    pending('is not here: ' .. tostring(why))
    return
  end
  for name in pairs(calls) do
    it('give what the cpu gives: ' .. name, function()
      for dtype, lengths in pairs(widths) do
        for _, cols in ipairs(lengths) do
          ul.scope(function() check(name, cols, dtype) end)
        end
      end
    end)
  end
end)
