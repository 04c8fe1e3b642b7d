-- embedding_spec.lua - gradients of rows that are chosen many times, against the cpu: added in the
-- order of the index, so that even the last bits are the same.
local ul = require 'ulysses'
local F = ul.F

local there, why = pcall(ul.zeros, 1, { device = 'cuda' })

-- Rows of the table, columns, ids: runs of 16 bytes and single elements, ids that nearly all
-- repeat, and few that do.
local shapes = { { 5, 64, 700 }, { 300, 8, 1 }, { 3, 137, 257 }, { 1000, 4, 600 } }

local function gradient(device, dtype, shape, ids, dy)
  local w = ul.zeros { shape[1], shape[2], dtype = dtype, device = device }:requires_grad_()
  for _ = 1, 2 do (F.embedding(ids:to(device), w) * dy:to(device)):sum():backward() end
  return w.grad:to 'cpu'
end

describe('rows chosen on cuda', function()
  for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
    it('give their gradients in order, ' .. dtype, function()
      if not there then return pending(why) end
      ul.manual_seed(5)
      for _, shape in ipairs(shapes) do
        local ids = ul.randint(0, shape[1], { shape[3], dtype = 'i64', device = 'cpu' })
        local dy = ul.randn { shape[3], shape[2], dtype = dtype, device = 'cpu' }
        local want = gradient('cpu', dtype, shape, ids, dy)
        local got = gradient('cuda:0', dtype, shape, ids, dy)
        assert.equal(0, (want - got):abs():max():item())
        assert.is_true(want:abs():max():item() > 0)
      end
    end)
  end
end)
