-- ops_cuda.lua - what `ulysses-lua --device cuda tests/bench/run.lua` times: as ops.lua, at the
-- sizes of a layer of Llama 3 8B on 16K tokens, far larger than a GPU's caches. With the emulated
-- backend (UL_CUDA_BACKEND) sizes that a CPU can do, to see that all of this runs.
local cases = {}
local emulated = os.getenv 'UL_CUDA_BACKEND'
local T, C, FFN, VOCAB = 16384, 4096, 14336, 128256
if emulated then T, C, FFN, VOCAB = 32, 64, 96, 256 end

-- `size` has T, C, FFN and VOCAB for the numbers.
local function add(op, size, dtype, make)
  size = size:gsub('%u+', { T = T, C = C, FFN = FFN, VOCAB = VOCAB })
  cases[#cases + 1] = { op = op, size = size, dtype = dtype, make = make }
end

local function backward_of(forward)
  return function(new, ul)
    local run, inputs = forward(new, ul)
    for _, x in ipairs(inputs) do x:requires_grad_() end
    local seed
    return function()
      local y = run()
      seed = seed or ul.ones_like(y):keep()
      y:backward(seed)
      for _, x in ipairs(inputs) do x.grad = nil end
    end
  end
end

for _, form in ipairs { 'nn', 'nt', 'tn' } do
  add('matmul', form .. ' TxCxC', 'bf16', function(new)
    local a, b = form == 'tn' and new(C, T):t() or new(T, C), new(C, C)
    if form == 'nt' then b = b:t() end
    return function() return a:matmul(b) end
  end)
end
add('matmul', 'nn CxCxC', 'f32', function(new)
  local a, b = new(C, C), new(C, C)
  return function() return a:matmul(b) end
end)

for _, tokens in ipairs(emulated and { 32 } or { 8192, 32768 }) do
  local function attention(new, ul)
    local q, k, v = new(1, tokens, 32, 128), new(1, tokens, 8, 128), new(1, tokens, 8, 128)
    return function() return ul.F.attention(q, k, v, { causal = true }) end, { q, k, v }
  end
  local function by(who, make)
    return function(new, ul)
      local run = make(new, ul)
      return function()
        ul.attention_backend(who)
        ul.deterministic(who ~= 'cudnn')
        run()
        ul.attention_backend 'auto'
        ul.deterministic(true)
      end
    end
  end
  for _, who in ipairs { 'cudnn', 'native' } do
    local size = ('%d tokens, 32:8 heads of 128, causal, %s'):format(tokens, who)
    add('attention', size, 'bf16', by(who, attention))
    add('attention', size .. ', and back', 'bf16', by(who, backward_of(attention)))
  end
end

local function streaming(op, size, forward)
  add(op, size, 'bf16', forward)
  add(op, size .. ', and back', 'bf16', backward_of(forward))
end

add('clone', 'TxC', 'bf16', function(new)
  local x = new(T, C)
  return function() return x:clone() end
end)
add('to', 'f32 to bf16, TxC', 'f32', function(new)
  local x = new(T, C)
  return function() return x:to 'bf16' end
end)
add('contiguous', 'transposed TxC', 'bf16', function(new)
  local x = new(T, C)
  return function() return x:t():contiguous() end
end)
streaming('add', 'TxC', function(new)
  local a, b = new(T, C), new(T, C)
  return function() return a + b end, { a, b }
end)
streaming('add_rms_norm', 'TxC', function(new, ul)
  local x, h, w = new(T, C), new(T, C), new(C)
  return function() return (ul.F.add_rms_norm(x, h, w)) end, { x, h, w }
end)
streaming('rope', 'T tokens, 32 heads of 128', function(new, ul)
  local x = new(1, T, 32, 128)
  local rope = ul.F.rope_table(ul.arange(T):to(x:device()), 128)
  return function() return ul.F.rope(x, rope) end, { x }
end)
streaming('swiglu', 'TxFFN', function(new, ul)
  local g, u = new(T, FFN), new(T, FFN)
  return function() return ul.F.swiglu(g, u) end, { g, u }
end)
streaming('embedding', 'T ids, VOCABxC', function(new, ul)
  local w = new(VOCAB, C)
  local ids = ul.randint(0, VOCAB, { T }):to(w:device())
  return function() return ul.F.embedding(ids, w) end, { w }
end)
streaming('cross_entropy', 'CxVOCAB', function(new, ul)
  local x = new(C, VOCAB)
  local targets = ul.zeros { C, dtype = 'i64', device = x:device() }
  return function() return ul.F.cross_entropy(x, targets) end, { x }
end)
streaming('linear_cross_entropy', 'TxC, VOCAB words', function(new, ul)
  local x, w = new(T, C), new(VOCAB, C)
  local targets = ul.zeros { T, dtype = 'i64', device = x:device() }
  return function() return (ul.F.linear_cross_entropy(x, w, targets)) end, { x, w }
end)
add('global_norm', 'TxFFN', 'bf16', function(new, ul)
  local x = new(T, FFN)
  return function() return ul.global_norm { x } end
end)
add('adamw_', 'TxFFN parameters, f32 master', 'bf16', function(new, ul)
  local p = new(T, FFN)
  local function f32() return ul.zeros { T, FFN, dtype = 'f32', device = p:device() } end
  local g, m, v, master = f32(), f32(), f32(), f32()
  return function() ul.adamw_(p, g, m, v, { lr = 1e-3, step = 1, master = master }) end
end)

return cases
