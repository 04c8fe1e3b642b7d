-- ops_cuda.lua - what `ulysses-lua --device cuda tests/bench/run.lua` times: as ops.lua, at the
-- sizes of a layer of Llama 3 8B on 16K tokens, far larger than a GPU's caches.
local cases = {}
local T, C, FFN, VOCAB = 16384, 4096, 14336, 128256

local function add(op, size, dtype, make)
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
  add('matmul', form .. ' 16384x4096x4096', 'bf16', function(new)
    local a, b = form == 'tn' and new(C, T):t() or new(T, C), new(C, C)
    if form == 'nt' then b = b:t() end
    return function() return a:matmul(b) end
  end)
end
add('matmul', 'nn 4096x4096x4096', 'f32', function(new)
  local a, b = new(C, C), new(C, C)
  return function() return a:matmul(b) end
end)

for _, tokens in ipairs { 8192, 32768 } do
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

add('clone', '16384x4096', 'bf16', function(new)
  local x = new(T, C)
  return function() return x:clone() end
end)
add('to', 'f32 to bf16, 16384x4096', 'f32', function(new)
  local x = new(T, C)
  return function() return x:to 'bf16' end
end)
add('contiguous', 'transposed 16384x4096', 'bf16', function(new)
  local x = new(T, C)
  return function() return x:t():contiguous() end
end)
streaming('add', '16384x4096', function(new)
  local a, b = new(T, C), new(T, C)
  return function() return a + b end, { a, b }
end)
streaming('add_rms_norm', '16384x4096', function(new, ul)
  local x, h, w = new(T, C), new(T, C), new(C)
  return function() return (ul.F.add_rms_norm(x, h, w)) end, { x, h, w }
end)
streaming('rope', '16384 tokens, 32 heads of 128', function(new, ul)
  local x = new(1, T, 32, 128)
  local rope = ul.F.rope_table(ul.arange(T):to(x:device()), 128)
  return function() return ul.F.rope(x, rope) end, { x }
end)
streaming('swiglu', '16384x14336', function(new, ul)
  local g, u = new(T, FFN), new(T, FFN)
  return function() return ul.F.swiglu(g, u) end, { g, u }
end)
streaming('embedding', '16384 ids, 128256x4096', function(new, ul)
  local w = new(VOCAB, C)
  local ids = ul.randint(0, VOCAB, { T }):to(w:device())
  return function() return ul.F.embedding(ids, w) end, { w }
end)
streaming('cross_entropy', '4096x128256', function(new, ul)
  local x = new(4096, VOCAB)
  local targets = ul.zeros { 4096, dtype = 'i64', device = x:device() }
  return function() return ul.F.cross_entropy(x, targets) end, { x }
end)
streaming('linear_cross_entropy', '8192x4096, 128256 words', function(new, ul)
  local x, w = new(8192, C), new(VOCAB, C)
  local targets = ul.zeros { 8192, dtype = 'i64', device = x:device() }
  return function() return (ul.F.linear_cross_entropy(x, w, targets)) end, { x, w }
end)
add('global_norm', '16384x14336', 'bf16', function(new, ul)
  local x = new(T, FFN)
  return function() return ul.global_norm { x } end
end)
add('adamw_', '235M parameters, f32 master', 'bf16', function(new, ul)
  local p, g = new(T, FFN), new(T, FFN)
  local function f32() return ul.zeros { T, FFN, dtype = 'f32', device = p:device() } end
  local m, v, master = f32(), f32(), f32()
  return function() ul.adamw_(p, g, m, v, { lr = 1e-3, step = 1, master = master }) end
end)

return cases
