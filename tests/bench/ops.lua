-- ops.lua - what `make bench` times: a list of { op =, size =, dtype =, make = }.
--
-- make(new, ul) gets a function new(...) that makes a tensor of the case's dtype on the device that
-- is asked for, and returns what is to be timed: a function without arguments. The same function
-- runs on the meta device to count the FLOPs and bytes of the floor.
local cases = {}

local function add(op, size, dtype, make)
  cases[#cases + 1] = { op = op, size = size, dtype = dtype, make = make }
end

local function backward_of(forward)
  return function(new, ul)
    local run, inputs = forward(new, ul)
    for _, x in ipairs(inputs) do x:requires_grad_() end
    return function()
      local y = run()
      y:backward(ul.ones_like(y))
      for _, x in ipairs(inputs) do x.grad = nil end
    end
  end
end

-- ---- products ----

for _, dtype in ipairs { 'f32', 'bf16' } do
  for _, form in ipairs { 'nn', 'nt', 'tn' } do
    add('matmul', form .. ' 2048x2048x2048', dtype, function(new)
      local a, b = new(2048, 2048), new(2048, 2048)
      if form == 'tn' then a = a:t() end
      if form == 'nt' then b = b:t() end
      return function() return a:matmul(b) end
    end)
  end
  add('linear', '2048x768 -> 3072, and back', dtype, backward_of(function(new, ul)
    local x, w = new(2048, 768), new(3072, 768)
    return function() return ul.F.linear(x, w) end, { x, w }
  end))
end

-- ---- attention: FLOPs of the pairs that see each other ----

local function attention(heads, kv_heads, dim, opts)
  return function(new, ul)
    local q, k = new(1, 4096, heads, dim), new(1, 4096, kv_heads, dim)
    local v = new(1, 4096, kv_heads, dim)
    return function() return ul.F.attention(q, k, v, opts) end, { q, k, v }
  end
end

for _, dtype in ipairs { 'f32', 'bf16' } do
  for _, dim in ipairs { 64, 128 } do
    local size = ('4096 tokens, 4 heads of %d, causal'):format(dim)
    local forward = attention(4, 4, dim, { causal = true })
    add('attention', size, dtype, forward)
    add('attention', size .. ', and back', dtype, backward_of(forward))
  end
end
add('attention', '4096 tokens, 8:2 heads of 64, window 512', 'f32',
    attention(8, 2, 64, { causal = true, window = 512 }))

-- ---- what moves memory ----

local function unary(name)
  add(name, '4096x2048', 'f32', function(new)
    local x = new(4096, 2048)
    return function() return x[name](x) end
  end)
end

for _, name in ipairs {
  'clone', 'neg', 'abs', 'exp', 'log', 'sqrt', 'rsqrt', 'sin', 'cos', 'tanh', 'sigmoid', 'silu',
  'gelu', 'relu',
} do
  unary(name)
end

local function binary(name)
  add(name, '4096x2048', 'f32', function(new)
    local a, b = new(4096, 2048), new(4096, 2048)
    return function() return a[name](a, b) end
  end)
end

for _, name in ipairs {
  'add', 'sub', 'mul', 'div', 'pow', 'maximum', 'minimum', 'eq', 'ne', 'lt', 'le', 'gt', 'ge',
} do
  binary(name)
end

local function simple(op, size, dtype, f)
  add(op, size, dtype, function(new, ul)
    local x = new(4096, 2048)
    return function() return f(x, ul.F, ul) end
  end)
end

simple('add_', '4096x2048', 'f32', function(x) return x:add_(1) end)
simple('fill_', '4096x2048', 'f32', function(x) return x:fill_(1) end)
simple('uniform_', '4096x2048', 'f32', function(x) return x:uniform_() end)
simple('normal_', '4096x2048', 'f32', function(x) return x:normal_() end)
simple('dropout', '4096x2048', 'f32', function(x, F) return F.dropout(x, 0.1) end)
simple('clamp', '4096x2048', 'f32', function(x) return x:clamp(-1, 1) end)
simple('where', '4096x2048', 'f32', function(x, F) return F.where(x:gt(0), x, 0) end)
simple('to', 'f32 to bf16, 4096x2048', 'f32', function(x) return x:to 'bf16' end)
simple('contiguous', 'transposed 4096x2048', 'f32', function(x) return x:t():contiguous() end)
simple('cat', '2 of 4096x2048', 'f32', function(x, _, ul) return ul.cat({ x, x }, 1) end)
simple('sum', '4096x2048', 'f32', function(x) return x:sum() end)
simple('sum', 'of columns, 4096x2048', 'f32', function(x) return x:sum(1) end)
simple('mean', 'of rows, 4096x2048', 'f32', function(x) return x:mean(2) end)
simple('max', 'of rows, 4096x2048', 'f32', function(x) return (x:max(2)) end)
simple('min', '4096x2048', 'f32', function(x) return x:min() end)
simple('argmax', 'of rows, 4096x2048', 'f32', function(x) return x:argmax(2) end)
simple('argmin', 'of rows, 4096x2048', 'f32', function(x) return x:argmin(2) end)
simple('logsumexp', 'of rows, 4096x2048', 'f32', function(x) return x:logsumexp(2) end)
simple('softmax', '4096x2048', 'f32', function(x) return x:softmax(2) end)
simple('log_softmax', '4096x2048', 'f32', function(x) return x:log_softmax(2) end)
simple('cumsum', '4096x2048', 'f32', function(x) return x:cumsum(2) end)
simple('sort', '4096x2048', 'f32', function(x) return (x:sort(2)) end)
simple('topk', '8 of 2048, 4096 rows', 'f32', function(x) return (x:topk(8, 2)) end)
simple('norm', '4096x2048', 'f32', function(x) return x:norm() end)
simple('global_norm', '4096x2048', 'f32', function(x, _, ul) return ul.global_norm { x } end)
simple('clip_grad_norm_', '4096x2048', 'f32', function(x, _, ul)
  return ul.clip_grad_norm_({ x }, 1)
end)

add('gather', '4096x2048 of 4096x2048', 'f32', function(new, ul)
  local x = new(4096, 2048)
  local index = ul.zeros { 4096, 2048, dtype = 'i64', device = x:device() }
  return function() return x:gather(2, index) end
end)
add('index_select', '4096 rows of 2048', 'f32', function(new, ul)
  local x, index = new(4096, 2048), ul.arange(4096):to(new(1):device())
  return function() return x:index_select(1, index) end
end)
add('embedding', '8192 ids, 32000x768, and back', 'f32', backward_of(function(new, ul)
  local w = new(32000, 768)
  local ids = ul.randint(0, 32000, { 8192 }):to(w:device())
  return function() return ul.F.embedding(ids, w) end, { w }
end))

-- ---- layers ----

for _, dtype in ipairs { 'f32', 'bf16' } do
  add('rms_norm', '4096x2048', dtype, function(new, ul)
    local x, w = new(4096, 2048), new(2048)
    return function() return ul.F.rms_norm(x, w) end
  end)
end
add('rms_norm', '4096x2048, and back', 'f32', backward_of(function(new, ul)
  local x, w = new(4096, 2048), new(2048)
  return function() return ul.F.rms_norm(x, w) end, { x, w }
end))
add('add_rms_norm', '4096x2048', 'f32', function(new, ul)
  local x, h, w = new(4096, 2048), new(4096, 2048), new(2048)
  return function() return (ul.F.add_rms_norm(x, h, w)) end
end)
add('layer_norm', '4096x2048', 'f32', function(new, ul)
  local x, w, b = new(4096, 2048), new(2048), new(2048)
  return function() return ul.F.layer_norm(x, w, b) end
end)
add('rope_table', '131072 positions of 128', 'f32', function(new, ul)
  local positions = ul.arange(131072):to(new(1):device())
  return function() return ul.F.rope_table(positions, 128) end
end)
add('rope', '4096 tokens, 16 heads of 128', 'f32', function(new, ul)
  local x = new(1, 4096, 16, 128)
  local rope = ul.F.rope_table(ul.arange(4096):to(x:device()), 128)
  return function() return ul.F.rope(x, rope) end
end)
add('swiglu', '4096x2048, and back', 'f32', backward_of(function(new, ul)
  local g, u = new(4096, 2048), new(4096, 2048)
  return function() return ul.F.swiglu(g, u) end, { g, u }
end))
add('cross_entropy', '1024x32000, and back', 'f32', backward_of(function(new, ul)
  local x = new(1024, 32000)
  local targets = ul.zeros { 1024, dtype = 'i64', device = x:device() }
  return function() return ul.F.cross_entropy(x, targets) end, { x }
end))
for _, dtype in ipairs { 'f32', 'bf16' } do
  local size = '2048x768, 32000 words, and back'
  add('linear_cross_entropy', size, dtype, backward_of(function(new, ul)
    local x, w = new(2048, 768), new(32000, 768)
    local targets = ul.zeros { 2048, dtype = 'i64', device = x:device() }
    return function() return (ul.F.linear_cross_entropy(x, w, targets)) end, { x, w }
  end))
end
add('adamw_', '8M parameters', 'f32', function(new, ul)
  local p, g, m, v = new(4096, 2048), new(4096, 2048), new(4096, 2048), new(4096, 2048):square()
  return function() ul.adamw_(p, g, m, v, { lr = 1e-3, step = 1 }) end
end)
add('sgd_', '8M parameters', 'f32', function(new, ul)
  local p, g = new(4096, 2048), new(4096, 2048)
  return function() ul.sgd_(p, g, { lr = 1e-3 }) end
end)

return cases
