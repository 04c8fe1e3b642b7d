-- flash_spec.lua - attention of bf16 by the tensor cores: heads, masks, strides and numbers around
-- the edges of its tiles, against the cpu and, once, f64; the same bits in every run.
local ffi = require 'ffi'
local ul = require 'ulysses'
local attention = require 'tests.cuda.attention'
local inputs_of, attend = attention.inputs_of, attention.run
local gaps_of, close, names = attention.gaps_of, attention.close, attention.names

ffi.cdef 'int setenv(const char *name, const char *value, int overwrite);'

local there, why = pcall(ul.zeros, 1, { device = 'cuda' })

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
  ['documents of all keys of a tile, and no order'] = {
    t = 200, B = 2, D = 16, docs = { 0, 3, 64, 128, 140, 200, 263, 264, 400 } },
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
