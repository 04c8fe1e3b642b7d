-- layers.lua - cases of products, norms, rotary embedding, embedding, losses.
local ul = require 'ulysses'
local F = ul.F
local cases = {}

local function add(name, op, call, more)
  local case = more or {}
  case.name, case.op, case.call = name, op, call
  cases[#cases + 1] = case
end

local function x(shape, k, scale, offset)
  return { shape = shape, k = k or 0.3, scale = scale, offset = offset }
end
local function ids(shape, list) return { shape = shape, ids = list } end

-- ---- products ----

add('matmul', 'matmul', F.matmul,
    { large = { { 131, 67 }, { 67, 259 } }, empty = { { 3, 0 }, { 0, 5 } } })
add('matmul_batch', 'matmul', F.matmul,
    { large = { { 2, 1, 37, 19 }, { 3, 19, 41 } }, empty = { { 2, 1, 0, 4 }, { 3, 4, 5 } } })
add('matmul_transposed', 'matmul',
    function(a, b) return a:transpose(2, 3):matmul(b:transpose(2, 3)) end,
    { large = { { 2, 67, 61 }, { 2, 83, 67 } }, empty = { { 0, 4, 3 }, { 0, 5, 4 } } })
add('matmul_vector', 'matmul', F.matmul,
    { large = { { 5, 67, 131 }, { 131 } }, empty = { { 2, 0, 4 }, { 4 } } })
add('matmul: vector first', 'matmul', F.matmul,
    { inputs = { x { 4 }, x { 2, 4, 3 } }, large = { { 131 }, { 5, 131, 67 } },
      empty = { { 0 }, { 2, 0, 3 } } })
add('matmul: two vectors', 'matmul', F.matmul,
    { inputs = { x { 5 }, x({ 5 }, 1) }, large = { { 1009 }, { 1009 } }, empty = { { 0 }, { 0 } } })
add('matmul: itself', 'matmul', function(a) return a:matmul(a:t()) end,
    { inputs = { x { 3, 4 } }, large = { { 71, 131 } }, empty = { { 0, 4 } } })
add('matmul: one row, shared by a batch', 'matmul', F.matmul,
    { inputs = { x { 3, 1, 4 }, x { 4, 2 } }, large = { { 33, 1, 131 }, { 131, 35 } },
      empty = { { 0, 1, 4 }, { 4, 2 } } })

add('linear', 'linear', F.linear,
    { large = { { 3, 43, 67 }, { 131, 67 }, { 131 } }, empty = { { 2, 0, 4 }, { 5, 4 }, { 5 } } })
add('linear: no bias', 'linear', F.linear,
    { inputs = { x { 3, 4 }, x { 2, 4 } }, large = { { 129, 67 }, { 131, 67 } },
      empty = { { 3, 0 }, { 2, 0 } } })
add('linear: one token', 'linear', F.linear,
    { inputs = { x { 4 }, x({ 3, 4 }, 0.3, 1, 1), x { 3 } },
      large = { { 259 }, { 131, 259 }, { 131 } },
      loose = 4, empty = { { 4 }, { 0, 4 }, { 0 } } })

-- ---- norms ----

add('rms_norm', 'rms_norm', function(a, w) return F.rms_norm(a, w, 1e-5) end,
    { large = { { 17, 31, 97 }, { 97 } }, empty = { { 2, 0, 8 }, { 8 } } })
add('rms_norm: no weight', 'rms_norm', function(a) return F.rms_norm(a, nil, 1e-2) end,
    { inputs = { x { 3, 5 } }, large = { { 193, 259 } }, empty = { { 0, 5 } } })
add('add_rms_norm', 'add_rms_norm', function(a, b, w) return F.add_rms_norm(a, b, w, 1e-5) end,
    { large = { { 17, 31, 97 }, { 17, 31, 97 }, { 97 } },
      empty = { { 2, 0, 8 }, { 2, 0, 8 }, { 8 } }, loose = 6 }) -- the sum is kept in bf16
add('add_rms_norm: no weight, one result', 'add_rms_norm',
    function(a, b) return (F.add_rms_norm(a, b)) end,
    { inputs = { x { 3, 5 }, x({ 3, 5 }, 2) }, large = { { 193, 259 }, { 193, 259 } } })
add('add_rms_norm: the sum alone', 'add_rms_norm',
    function(a, w) return select(2, F.add_rms_norm(a, a, w)) end,
    { inputs = { x { 3, 5 }, x { 5 } }, large = { { 193, 259 }, { 259 } } })
add('layer_norm', 'layer_norm', function(a, w, b) return F.layer_norm(a, w, b, 1e-5) end,
    { large = { { 17, 31, 97 }, { 97 }, { 97 } }, empty = { { 2, 0, 8 }, { 8 }, { 8 } } })
add('layer_norm: no weight', 'layer_norm', function(a) return F.layer_norm(a) end,
    { inputs = { x({ 3, 5 }, 0.3, 2, 1) }, large = { { 193, 259 } }, empty = { { 0, 5 } } })
add('layer_norm: no bias', 'layer_norm', function(a, w) return F.layer_norm(a, w) end,
    { inputs = { x({ 3, 5 }, 0.3, 2, 1), x { 5 } }, large = { { 193, 259 }, { 259 } } })

-- ---- rotary embedding ----

local function table_for(t, positions, opts)
  opts = opts or {}
  opts.dtype = t:dtype() == 'f64' and 'f64' or 'f32'
  return F.rope_table(positions, t:size(-1), opts)
end

add('rope', 'rope', function(t, positions) return F.rope(t, table_for(t, positions)) end,
    { large = { { 3, 67, 5, 50 }, { 67, below = 100 } },
      empty = { { 2, 0, 2, 8 }, { 0, below = 1 } } })
add('rope_rows', 'rope', function(t, positions) return F.rope(t, table_for(t, positions)) end,
    { large = { { 3, 67, 5, 50 }, { 3, 67, below = 99 } },
      empty = { { 0, 3, 2, 8 }, { 0, 3, below = 9 } } })
add('rope_table', 'rope_table', function(positions)
  local made = F.rope_table(positions, 8, { theta = 500000, scale = 0.5, dtype = 'f64' })
  return made.cos, made.sin
end, { large = { { 5003, below = 997 } }, empty = { { 0, below = 1 } },
       without = { gradcheck = 'constant', precision = 'table' } })
add('rope_table: frequencies given', 'rope_table', function(positions)
  local slow = ul.tensor({ 1, 0.25, 0.01 }, { dtype = 'f64' }):to(positions:device())
  local made = F.rope_table(positions, 6, { inv_freq = slow })
  return made.cos, made.sin
end, { inputs = { ids({ 2, 2 }, { 0, 5, 70000, 3 }) },
       without = { gradcheck = 'constant', precision = 'table' } })

-- ---- embedding ----

add('embedding', 'embedding', F.embedding,
    { large = { { 3, 257, below = 61 }, { 61, 67 } }, empty = { { 2, 0, below = 6 }, { 6, 4 } } })
add('embedding: one id for all', 'embedding', F.embedding,
    { inputs = { ids({ 5 }, { 2, 2, 2, 2, 2 }), x { 3, 4 } },
      large = { { 1009, below = 1 }, { 3, 67 } }, empty = { { 5, below = 3 }, { 3, 0 } } })

-- ---- losses ----

local function ignoring(some)
  return function(t) return F.where(t:eq(some), -100, t) end
end
local without_3 = ignoring(3)

add('cross_entropy', 'cross_entropy', function(t, y) return F.cross_entropy(t, y) end,
    { large = { { 3, 67, 257 }, { 3, 67, below = 257 } },
      empty = { { 2, 0, 7 }, { 2, 0, below = 7 } } })
add('cross_entropy_sum', 'cross_entropy',
    function(t, y) return F.cross_entropy(t, y, { reduction = 'sum' }) end,
    { large = { { 3, 67, 257 }, { 3, 67, below = 257 } },
      empty = { { 0, 3, 7 }, { 0, 3, below = 7 } } })
add('cross_entropy: some ignored', 'cross_entropy',
    function(t, y) return F.cross_entropy(t, without_3(y)) end,
    { inputs = { x({ 5, 4 }, 0.3, 3), ids({ 5 }, { 0, 3, 1, 3, 2 }) },
      large = { { 201, 257 }, { 201, below = 8 } } })
add('cross_entropy: none counts', 'cross_entropy',
    function(t, y) return F.cross_entropy(t, y, { ignore_index = 1 }) end,
    { inputs = { x({ 3, 4 }, 0.3, 3), ids({ 3 }, { 1, 1, 1 }) } })

local function fused(opts)
  return function(t, w, y) return (F.linear_cross_entropy(t, w, y, opts)) end
end
local large = { { 3, 67, 35 }, { 257, 35 }, { 3, 67, below = 257 } }

add('linear_cross_entropy', 'linear_cross_entropy', fused(),
    { large = large, empty = { { 2, 0, 4 }, { 7, 4 }, { 2, 0, below = 7 } } })
add('linear_cross_entropy_mean', 'linear_cross_entropy',
    fused { reduction = 'mean', ignore_index = 3 },
    { large = large, empty = { { 0, 3, 4 }, { 7, 4 }, { 0, 3, below = 7 } } })
add('linear_cross_entropy: uneven tiles', 'linear_cross_entropy', fused { tile = 2 },
    { inputs = { x { 5, 3 }, x({ 4, 3 }, 1), ids({ 5 }, { 0, 3, 1, -100, 2 }) },
      large = { { 201, 35 }, { 257, 35 }, { 201, below = 257 } } })
add('linear_cross_entropy: a tile that does not count', 'linear_cross_entropy',
    fused { tile = 2, reduction = 'mean' },
    { inputs = { x { 5, 3 }, x({ 4, 3 }, 1), ids({ 5 }, { 0, 3, -100, -100, 2 }) } })
add('linear_cross_entropy: nothing counts', 'linear_cross_entropy', fused { reduction = 'mean' },
    { inputs = { x { 3, 3 }, x({ 4, 3 }, 1), ids({ 3 }, { -100, -100, -100 }) } })
add('linear_cross_entropy: its count', 'linear_cross_entropy',
    function(t, w, y) return select(2, F.linear_cross_entropy(t, w, y)) end,
    { inputs = { x { 3, 3 }, x({ 4, 3 }, 1), ids({ 3 }, { 1, -100, 2 }) },
      without = { gradcheck = 'numbers' } })

-- ---- dropout ----

add('dropout', 'dropout', function(a)
  ul.manual_seed(11)
  return F.dropout(a, 0.3)
end, { inputs = { x { 3, 5 } }, large = { { 193, 259 } }, empty = { { 0, 5 } },
       without = { golden = 'random' } })
add('dropout_off', 'dropout', function(a) return F.dropout(a, 0.5, { training = false }) * 2 end,
    { large = { { 193, 259 } }, empty = { { 0, 5 } } })

-- ---- steps of optimizers ----

local in_place = { gradcheck = 'in_place' }

-- The state and the gradients are wider than bf16.
local function wide(t) return t:dtype() == 'bf16' and t:to 'f32' or t end

local function steps(step)
  return function(p, g)
    p = p:clone()
    local states = { ul.zeros_like(wide(p)), ul.zeros_like(wide(p)) }
    for i = 1, 5 do step(p, wide(g) * i, states, i) end
    return p
  end
end

local function optimizer(name, op, step)
  add(name, op, steps(step), { large = { { 193, 259 }, { 193, 259 } },
      empty = { { 0, 5 }, { 0, 5 } }, without = in_place })
end

local adamw = { lr = 0.01, betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1 }
optimizer('adamw', 'adamw_', function(p, g, s, i)
  adamw.step = i
  ul.adamw_(p, g, s[1], s[2], adamw)
end)
optimizer('sgd', 'sgd_', function(p, g) ul.sgd_(p, g, { lr = 0.01 }) end)
optimizer('sgd_momentum', 'sgd_', function(p, g, s)
  ul.sgd_(p, g, { lr = 0.01, momentum = 0.9, weight_decay = 0.1, nesterov = true,
                  velocity = s[1] })
end)
add('clip_grad_norm', 'clip_grad_norm_', function(a, b)
  a, b = a:clone(), b:clone()
  return ul.clip_grad_norm_({ a, b }, 0.5), a, b
end, { large = { { 193, 259 }, { 17, 31 } }, empty = { { 0, 5 }, { 3 } }, without = in_place })
add('global_norm', 'global_norm', function(a, b) return ul.global_norm { a, b } end,
    { large = { { 193, 259 }, { 17, 31 } }, empty = { { 0, 5 }, { 0 } },
      without = { gradcheck = 'numbers' } })

return cases
