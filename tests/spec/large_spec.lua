-- large_spec.lua - tensors past 2^31 elements and strides past 2^32 bytes.
local ul = require 'ulysses'

-- Pages that are touched cost memory; elements that are not cost none.
local function free_memory()
  local file = io.open '/proc/meminfo'
  if not file then return 0 end
  local kilobytes = file:read('*a'):match 'MemAvailable:%s*(%d+)'
  file:close()
  return tonumber(kilobytes) * 1024
end

describe('a tensor of more than 2^31 elements', function()
  local n = 2 ^ 31 + 12345

  it('indexes, sums, copies and slices #cpu', function() -- hours under emulation
    if free_memory() < 6e9 then return pending 'needs 6 GB of free memory' end
    ul.scope(function()
      local x = ul.zeros { n, dtype = 'u8' }
      x[n] = 7
      x[2 ^ 31 + 1] = 5
      x[1] = 3
      assert.equal(7, x[-1]:item())
      assert.equal(5, x[2 ^ 31 + 1]:item())
      assert.equal(15, x:sum():item())
      assert.equal(n - 1, x:argmax():item())
      local tail = x[{ { 2 ^ 31, n } }]
      assert.equal(12, tail:sum():item())
      assert.equal(5, tail[2]:item())
      local copy = x:clone()
      assert.equal(15, copy:sum():item())
      assert.equal(7, copy[n]:item())
      copy:free()
      x:fill_(1)
      assert.equal(n, x:sum():item())
    end)
    ul.trim_memory()
  end)

  it('with strides past 2^32 bytes indexes, sums, copies and slices', function()
    if free_memory() < 6e9 then return pending 'needs 6 GB of free memory' end
    ul.scope(function()
      local x = ul.empty { 2, 2 ^ 30 + 3, dtype = 'i32' } -- rows are 4 GiB + 12 bytes apart
      local few = x:narrow(2, 2 ^ 30 - 4, 8)              -- but only their ends are touched
      few:fill_(0)
      x[{ 2, 2 ^ 30 + 1 }] = 9
      x[{ 1, 2 ^ 30 + 1 }] = 4
      assert.is_true(few:stride(1) * 4 > 2 ^ 32)
      assert.equal(13, few:sum():item())
      assert.same({ 4, 9 }, few:sum(2):tolist())
      assert.equal(9, few:contiguous()[{ 2, 6 }]:item())
      assert.same({ { 4, 0 }, { 9, 0 } }, few[{ {}, { 6, 7 } }]:tolist())
      assert.same({ { 0, 4 }, { 0, 9 } }, few:t()[{ { 5, 6 } }]:t():contiguous():tolist())
      few:t():copy_(few:t() + 1)
      assert.equal(13 + 16, few:sum():item())
    end)
    ul.trim_memory()
  end)

  it('overflows nothing on meta: logits of a million tokens', function()
    collectgarbage() -- what earlier specs left
    local before = ul.memory('meta').live
    local x = ul.empty { 2 ^ 20, 128256, dtype = 'f32', device = 'meta' }
    assert.equal(2 ^ 20 * 128256, x:numel())
    assert.equal(2 ^ 20 * 128256 * 4, ul.memory('meta').live - before)
    assert.same({ 2 ^ 20 }, x:logsumexp(2).shape)
    x:free()
  end)
end)
