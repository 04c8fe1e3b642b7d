-- flash_spec.lua - attention of bf16 by the tensor cores: heads, masks, strides and numbers around
-- the edges of its tiles, against the cpu and, once, f64; the same bits in every run.
local ffi = require 'ffi'
local ul = require 'ulysses'
local F = ul.F
local abs, huge, max = math.abs, math.huge, math.max

ffi.cdef 'int setenv(const char *name, const char *value, int overwrite);'

local there, why = pcall(ul.zeros, 1, { device = 'cuda' })

-- q, k, v and the seed of o as bf16 on the cpu. Wider rows than heads where `pad` says so.
local function inputs_of(case)
  local B, tq, H, D = case.B or 1, case.tq or case.t, case.H or 2, case.D or 64
  local tk, kv = case.tk or case.t, case.kv or 1
  ul.manual_seed(5)
  local function make(t, heads, scale)
    local x = ul.randn({ B, t, heads, D + (case.pad or 0) }, { dtype = 'f32' }) * (scale or 1)
    return x:to('bf16'):narrow(4, 1, D)
  end
  return make(tq, H, case.large), make(tk, kv), make(tk, kv), make(tq, H)
end

-- o, lse, dq, dk, dv in f64 on the cpu.
local function attend(case, inputs, device, dtype)
  local x = {}
  for i, t in ipairs(inputs) do x[i] = t:to(dtype or 'bf16'):to(device) end
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
  local o, lse = F.attention(x[1], x[2], x[3], options)
  ul.backward({ o }, { x[4]:contiguous() })
  local results = { o:detach(), lse:detach(), x[1].grad, x[2].grad, x[3].grad }
  for i, y in ipairs(results) do results[i] = y:to('cpu'):to('f64'):contiguous() end
  return results
end

local names = { 'o', 'lse', 'dq', 'dk', 'dv' }

-- The largest gap, relative to the largest number, of each result; infinities must be the same.
local function gaps_of(expected, actual)
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

local function close(expected, actual, limit)
  for i, gap in ipairs(gaps_of(expected, actual)) do
    if not (gap <= limit) then error(('%s is off by %.3g'):format(names[i], gap)) end
  end
end

local cases = {
  ['heads of 40'] = { t = 70, D = 40, causal = true },
  ['heads of 96'] = { t = 65, D = 96, causal = true, H = 1 },
  ['heads of 128, tiles that are full'] = { t = 128, D = 128, causal = true, H = 1 },
  ['heads of 200'] = { t = 66, D = 200, causal = true, H = 1 },
  ['heads of 256, no mask'] = { t = 65, D = 256, H = 1 },
  ['heads of 33, at no multiple of 16 bytes'] = { t = 70, D = 33, causal = true },
  ['rows wider than heads'] = { t = 67, D = 24, pad = 8, causal = true },
  ['rows wider than heads, unaligned'] = { t = 67, D = 24, pad = 3, causal = true },
  ['four query heads to a kv head'] = { t = 97, H = 8, kv = 2, D = 16, causal = true },
  ['heads in no order'] = { t = 65, H = 5, kv = 2, D = 16, causal = true,
                            kv_head = { 1, 0, 1, 1, 0 } },
  ['a window over several tiles'] = { t = 300, D = 16, causal = true, window = 70 },
  ['a window of one'] = { t = 130, D = 16, causal = true, window = 1 },
  ['documents'] = { t = 150, B = 2, D = 16, causal = true,
                    docs = { 0, 1, 64, 65, 129, 150, 200, 300 } },
  ['documents, and no order'] = { t = 200, D = 16, docs = { 0, 70, 134, 200 } },
  ['documents and a window'] = { t = 200, D = 16, causal = true, window = 20,
                                 docs = { 0, 3, 100, 200 } },
  ['few queries at the end of many keys'] = { tq = 3, tk = 333, D = 16, causal = true },
  ['rows that see no key'] = { tq = 150, tk = 40, D = 16, causal = true },
  ['no queries'] = { tq = 0, tk = 7, D = 16 },
  ['no keys'] = { tq = 5, tk = 0, D = 16 },
  ['large scores'] = { t = 130, D = 16, causal = true, large = 60, scale = 1, limit = 0.06 },
  ['a scale below zero'] = { t = 70, D = 16, causal = true, scale = -0.3 },
}

local function check(case)
  ul.scope(function()
    local inputs = { inputs_of(case) }
    close(attend(case, inputs, 'cpu'), attend(case, inputs, 'cuda'), case.limit or 0.02)
  end)
end

describe('attention by tensor cores', function()
  if not there then
    pending('is not here: ' .. tostring(why))
    return
  end
  local chosen = ul.attention_backend()
  setup(function() ul.attention_backend 'native' end)
  teardown(function() ul.attention_backend(chosen) end)
  for name, case in pairs(cases) do
    it('gives what the cpu gives: ' .. name, function() check(case) end)
  end

  it('is near f64, lse nearer than bf16', function()
    ul.scope(function()
      local case = { t = 140, H = 4, kv = 1, D = 64, causal = true, window = 100 }
      local inputs = { inputs_of(case) }
      local gaps = gaps_of(attend(case, inputs, 'cpu', 'f64'), attend(case, inputs, 'cuda'))
      assert(gaps[2] < 1e-6, ('lse is off by %g'):format(gaps[2]))
      for _, i in ipairs { 1, 3, 4, 5 } do
        assert(gaps[i] < 0.01, ('%s is off by %g'):format(names[i], gaps[i]))
      end
    end)
  end)

  it('gives the same bits in every run and in every order of threads', function()
    ul.scope(function()
      local case = { t = 100, H = 4, kv = 1, D = 64, causal = true }
      local inputs = { inputs_of(case) }
      local before, first = os.getenv 'CUEMU_ORDER' or 'forward', nil
      for _, order in ipairs { 'forward', 'forward', 'random', 'reverse' } do
        ffi.C.setenv('CUEMU_ORDER', order, 1)
        local results = attend(case, inputs, 'cuda')
        first = first or results
        for i, gap in ipairs(gaps_of(first, results)) do
          assert(gap == 0, ('%s differs, %s'):format(names[i], order))
        end
      end
      ffi.C.setenv('CUEMU_ORDER', before, 1)
    end)
  end)
end)
