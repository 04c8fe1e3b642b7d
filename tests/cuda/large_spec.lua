-- large_spec.lua - offsets past 2^31 elements on cuda: wrong ones would be of other memory.
local ul = require 'ulysses'

local there, why = pcall(ul.zeros, 1, { device = 'cuda' })

describe('on cuda', function()
  if not there then
    pending('is not here: ' .. tostring(why))
    return
  end

  -- Rows are more than 2^31 elements apart, but only their ends are touched.
  for _, dtype in ipairs { 'u8', 'bf16' } do
    it('rows far apart are filled, copied and summed, in ' .. dtype, function()
      ul.scope(function()
        local ok, x = pcall(ul.empty, 2, 2 ^ 31 + 3, { dtype = dtype, device = 'cuda' })
        if not ok then return pending 'needs 9 GB of memory on the device' end
        local few = x:narrow(2, 2 ^ 31 - 4, 8)
        few:fill_(1)
        few:select(1, 2):narrow(1, 3, 1):fill_(9)
        assert.same({ { 1, 1, 1, 1, 1, 1, 1, 1 }, { 1, 1, 9, 1, 1, 1, 1, 1 } }, few:tolist())
        assert.equal(24, few:sum():item())
        assert.same({ 8, 16 }, few:sum(2):tolist())
        assert.same({ { 1, 1 }, { 1, 9 } }, few[{ {}, { 2, 3 } }]:contiguous():tolist())
        few:t():copy_(few:t() + few:t())
        assert.equal(48, few:sum():item())
      end)
      ul.trim_memory()
    end)
  end
end)
