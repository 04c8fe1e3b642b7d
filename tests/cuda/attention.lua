-- attention.lua - a case of attention, forward and backward, on one device against another.
local ul = require 'ulysses'
local abs, huge, max = math.abs, math.huge, math.max

local attention = {}

-- q, k, v and the seed of o as bf16, or case.dtype, on the cpu. Wider rows than heads where `pad`
-- says so.
function attention.inputs_of(case)
  local B, tq, H, D = case.B or 1, case.tq or case.t, case.H or 2, case.D or 64
  local tk, kv = case.tk or case.t, case.kv or 1
  ul.manual_seed(5)
  local function make(t, heads, scale)
    local x = ul.randn({ B, t, heads, D + (case.pad or 0) }, { dtype = 'f32' }) * (scale or 1)
    return x:to(case.dtype or 'bf16'):narrow(4, 1, D)
  end
  return make(tq, H, case.large), make(tk, kv), make(tk, kv), make(tq, H)
end

-- o, lse, dq, dk, dv in f64 on the cpu.
function attention.run(case, inputs, device, dtype)
  local x = {}
  for i, t in ipairs(inputs) do x[i] = t:to(dtype or t:dtype()):to(device) end
  if case.pad then -- the copy of a view is contiguous: a view of wider rows again
    for i = 1, 3 do
      local wide = ul.zeros({ x[i]:size(1), x[i]:size(2), x[i]:size(3), x[i]:size(4) + case.pad },
                            { dtype = x[i]:dtype(), device = device })
      local view = wide:narrow(4, 1, x[i]:size(4))
      view:copy_(x[i])
      x[i] = view
    end
  end
  for i = 1, 3 do x[i] = x[i]:detach():requires_grad_() end
  local options = { causal = case.causal, window = case.window, docs = case.docs, lse = true,
                    scale = case.scale, kv_head = case.kv_head }
  local o, lse = ul.F.attention(x[1], x[2], x[3], options)
  ul.backward({ o }, { x[4]:contiguous() })
  local results = { o:detach(), lse:detach(), x[1].grad, x[2].grad, x[3].grad }
  for i, y in ipairs(results) do results[i] = y:to('cpu'):to('f64'):contiguous() end
  return results
end

attention.names = { 'o', 'lse', 'dq', 'dk', 'dv' }

-- The largest gap, relative to the largest number, of each result; infinities must be the same.
function attention.gaps_of(expected, actual)
  local gaps = {}
  for i, y in ipairs(actual) do
    local want, got, largest, gap = expected[i]:data(), y:data(), 0.05, 0
    for k = 0, y:numel() - 1 do
      if abs(want[k]) < huge then largest = max(largest, abs(want[k])) end
      local d = want[k] == got[k] and 0 or abs(want[k] - got[k])
      if not (d <= gap) then gap = d end
    end
    gaps[i] = gap / largest
  end
  return gaps
end

function attention.close(expected, actual, limit)
  for i, gap in ipairs(attention.gaps_of(expected, actual)) do
    if not (gap <= limit) then error(('%s is off by %.3g'):format(attention.names[i], gap)) end
  end
end

return attention
