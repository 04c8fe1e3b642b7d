-- layers.lua - wrong calls of products, norms, rotary embedding, attention, losses, optimizers.
local ul = require 'ulysses'
local F = ul.F
local x, w, meta = ul.ones(3, 8), ul.ones(4), ul.ones(3, 8, { device = 'meta' })
local ints = ul.ones(3, 8, { dtype = 'i64' })
local ids = ul.tensor({ 0, 1, 2 }, { dtype = 'i64' })
local q, k = ul.ones(2, 6, 4, 8), ul.ones(2, 6, 2, 8)
local cases = {}

local function i64(list) return ul.tensor(list, { dtype = 'i64' }) end
local function i32(list) return ul.tensor(list, { dtype = 'i32' }) end

cases.matmul = {
  { 'inner dims', function() x:matmul(x) end,
    'matmul: inner dimensions differ: a [3, 8], b [3, 8]; did you mean b:t()?' },
  { 'inner dims that no transpose mends', function() x:matmul(ul.ones(5, 4)) end,
    'matmul: inner dimensions differ: a [3, 8], b [5, 4]' },
  { 'batch dims', function() ul.ones(2, 3, 4):matmul(ul.ones(3, 4, 5)) end,
    'matmul: batch dimensions differ: a [2, 3, 4], b [3, 4, 5]' },
  { 'no dims', function() ul.tensor(1):matmul(x) end,
    'matmul: a [] and b [3, 8] must have at least one dimension' },
  { 'dtypes', function() x:matmul(x:t():to('f64')) end,
    'matmul: dtypes differ (a is f32, b is f64); convert one with :to()' },
  { 'integers', function() ints:matmul(ints:t()) end,
    'matmul: a must be f32, bf16 or f64, not i64' },
  { 'devices', function() x:matmul(meta:t()) end,
    'matmul: a is on cpu, b on meta; bring them together with :to()' },
  { 'a number', function() x:matmul(2) end, 'matmul: expected a tensor, got 2 (argument 2)' },
}
cases.linear = {
  { 'the weight', function() x:linear(ul.ones(8, 3)) end,
    'linear: weight [8, 3] does not fit x [3, 8]' },
  { 'dims of the weight', function() x:linear(ul.ones(8)) end,
    'linear: weight [8] does not fit x [3, 8]' },
  { 'the bias', function() x:linear(ul.ones(5, 8), ul.ones(8)) end,
    'linear: bias [8] does not fit weight [5, 8]' },
  { 'dtypes', function() x:linear(ul.ones(5, 8, { dtype = 'f64' })) end,
    'linear: dtypes differ (x is f32, w is f64); convert one with :to()' },
  { 'dtype of the bias', function() x:linear(ul.ones(5, 8), ul.ones(5, { dtype = 'f64' })) end,
    'linear: dtypes differ (x is f32, b is f64); convert one with :to()' },
  { 'no weight', function() x:linear() end, 'linear: expected a tensor, got nil (argument 2)' },
}
cases.rms_norm = {
  { 'the weight', function() x:rms_norm(w) end, 'rms_norm: weight [4] does not fit x [3, 8]' },
  { 'dims of the weight', function() x:rms_norm(ul.ones(1, 8)) end,
    'rms_norm: weight [1, 8] does not fit x [3, 8]' },
  { 'eps', function() x:rms_norm(nil, -1) end, 'rms_norm: eps = -1 must not be negative' },
  { 'nan', function() x:rms_norm(nil, 0 / 0) end, '^rms_norm: eps = %-?nan must not be negative$' },
  { 'dtypes', function() x:rms_norm(ul.ones(8, { dtype = 'f64' })) end,
    'rms_norm: dtypes differ (x is f32, weight is f64); convert one with :to()' },
  { 'integers', function() ints:rms_norm() end, 'rms_norm: x must be f32, bf16 or f64, not i64' },
  { 'no dims', function() ul.tensor(1):rms_norm() end, 'rms_norm: x [] has no last dimension' },
  { 'a string', function() x:rms_norm(nil, 'small') end,
    "rms_norm: eps must be a number, got 'small'" },
}
cases.add_rms_norm = {
  { 'the residual', function() F.add_rms_norm(x, ul.ones(8), ul.ones(8)) end,
    'add_rms_norm: residual [8] does not fit x [3, 8]' },
  { 'no residual', function() F.add_rms_norm(x) end,
    'add_rms_norm: expected a tensor, got nil (argument 2)' },
  { 'the weight', function() F.add_rms_norm(x, x, w) end,
    'add_rms_norm: weight [4] does not fit x [3, 8]' },
  { 'dtypes', function() F.add_rms_norm(x, x:to('f64'), nil) end,
    'add_rms_norm: dtypes differ (x is f32, residual is f64); convert one with :to()' },
}
cases.layer_norm = {
  { 'the weight', function() x:layer_norm(w) end, 'layer_norm: weight [4] does not fit x [3, 8]' },
  { 'the bias', function() x:layer_norm(ul.ones(8), w) end,
    'layer_norm: bias [4] does not fit x [3, 8]' },
  { 'integers', function() ints:layer_norm() end,
    'layer_norm: x must be f32, bf16 or f64, not i64' },
  { 'eps', function() x:layer_norm(nil, nil, -1) end, 'layer_norm: eps = -1 must not be negative' },
}
cases.rope_table = {
  { 'an odd head size', function() F.rope_table(ids, 7) end,
    'rope_table: head_dim 7 is not an even number from 2 on' },
  { 'no head size', function() F.rope_table(ids) end,
    'rope_table: head_dim must be an integer, got nil' },
  { 'positions', function() F.rope_table(x, 8) end, 'rope_table: positions must be i64, not f32' },
  { 'theta', function() F.rope_table(ids, 8, { theta = 0 }) end,
    'rope_table: theta 0 is not positive' },
  { 'dtype', function() F.rope_table(ids, 8, { dtype = 'i32' }) end,
    'rope_table: tables are f32 or f64, not i32' },
  { 'inv_freq', function() F.rope_table(ids, 8, { inv_freq = ul.ones(3) }) end,
    'rope_table: inv_freq has 3 elements, half of head_dim is 4' },
  { 'dtype of inv_freq', function() F.rope_table(ids, 8, { inv_freq = ul.ones(4) }) end,
    'rope_table: inv_freq must be f64, not f32' },
  { 'an option', function() F.rope_table(ids, 8, { tetha = 1 }) end,
    "rope_table: no option 'tetha'; did you mean 'theta'?" },
}
cases.rope = {
  { 'no table', function() F.rope(q, x) end,
    'rope: expected a table made by rope_table (argument 2)' },
  { 'the table', function() F.rope(q, F.rope_table(ids, 8)) end,
    'rope: cosine [3, 4] does not fit x [2, 6, 4, 8]; it must be [T, D/2] or [B, T, D/2]' },
  { 'half a table', function() F.rope(q, { cos = ul.ones(6, 4) }) end,
    'rope: sin must be a tensor, got nil' },
  { 'dtype of the table', function() F.rope(q, F.rope_table(ids, 8, { dtype = 'f64' })) end,
    'rope: cosine must be f32, not f64' },
  { 'dims', function() F.rope(x, F.rope_table(ids, 8)) end,
    'rope: x [3, 8] must be [B, T, H, D] with an even D' },
  { 'cosine and sine', function()
    F.rope(q, { cos = ul.ones(6, 4), sin = ul.ones(2, 6, 4) })
  end, 'rope: cosine [6, 4] and sine [2, 6, 4] differ in shape' },
}
cases.embedding = {
  { 'ids', function() F.embedding(x, x) end, 'embedding: ids must be i64, not f32' },
  { 'out of range', function() F.embedding(ids + 1, x) end,
    'embedding: id 3 at position 3 is outside [0, 3)' },
  { 'negative', function() F.embedding(ids - 1, x) end,
    'embedding: id -1 at position 1 is outside [0, 3)' },
  { 'the weight', function() F.embedding(ids, w) end, 'embedding: weight [4] must be [V, C]' },
  { 'dtype of the weight', function() F.embedding(ids, ints) end,
    'embedding: weight must be f32, bf16 or f64, not i64' },
  { 'devices', function() F.embedding(ids, meta) end,
    'embedding: ids is on cpu, weight on meta; bring them together with :to()' },
}
cases.attention = {
  { 'dims', function() F.attention(x, x, x) end,
    'attention: q [3, 8], k [3, 8] and v [3, 8] must be [B, T, H, D]' },
  { 'k and v', function() F.attention(q, k, q) end,
    'attention: k [2, 6, 2, 8] and v [2, 6, 4, 8] differ' },
  { 'batch', function() F.attention(q, ul.ones(3, 6, 2, 8), ul.ones(3, 6, 2, 8)) end,
    'attention: batch of q [2, 6, 4, 8] and k [3, 6, 2, 8] differ' },
  { 'head sizes', function() F.attention(q, ul.ones(2, 6, 2, 4), ul.ones(2, 6, 2, 4)) end,
    'attention: head sizes of q [2, 6, 4, 8] and k [2, 6, 2, 4] do not fit' },
  { 'heads', function() F.attention(q, ul.ones(2, 6, 3, 8), ul.ones(2, 6, 3, 8)) end,
    'attention: 4 heads of q do not share 3 kv heads equally; give kv_head' },
  { 'dtypes', function() F.attention(q, k:to('f64'), k) end,
    'attention: dtypes differ (q is f32, k is f64); convert one with :to()' },
  { 'integers', function() F.attention(q:to('i32'), k:to('i32'), k:to('i32')) end,
    'attention: q must be f32, bf16 or f64, not i32' },
  { 'a window', function() F.attention(q, k, k, { window = 4 }) end,
    'attention: window = 4 needs causal = true' },
  { 'a negative window', function() F.attention(q, k, k, { window = -1, causal = true }) end,
    'attention: window = -1 must not be negative' },
  { 'scale', function() F.attention(q, k, k, { scale = math.huge }) end,
    'attention: scale = inf must be finite' },
  { 'no scale', function() F.attention(q, k, k, { scale = 0 }) end,
    'attention: scale = 0 makes all keys alike; without one it is 1 / sqrt(D)' },
  { 'an option', function() F.attention(q, k, k, { casual = true }) end,
    "attention: no option 'casual'; did you mean 'causal'?" },
  { 'docs that do not rise', function() F.attention(q, k, k, { docs = { 0, 6, 6, 12 } }) end,
    'attention: docs must rise, but 6 follows 6 at position 3' },
  { 'docs that start late', function() F.attention(q, k, k, { docs = { 1, 6, 12 } }) end,
    'attention: docs must begin with 0, not 1' },
  { 'docs that end early', function() F.attention(q, k, k, { docs = { 0, 6 } }) end,
    'attention: docs must end with B T = 12, not 6' },
  { 'docs across rows', function() F.attention(q, k, k, { docs = { 0, 7, 12 } }) end,
    'attention: docs must include the edges of all 2 rows of 6 tokens' },
  { 'dtype of docs', function() F.attention(q, k, k, { docs = ul.ones(2) }) end,
    'attention: docs must be i64, not f32' },
  { 'docs with other keys', function()
    F.attention(q, ul.ones(2, 7, 2, 8), ul.ones(2, 7, 2, 8), { docs = { 0, 6, 12 } })
  end, 'attention: docs need as many queries as keys, not q [2, 6, 4, 8], k [2, 7, 2, 8]' },
  { 'kv_head', function() F.attention(q, k, k, { kv_head = i32 { 0, 0, 1 } }) end,
    'attention: kv_head [3] must name a kv head for each head of q [2, 6, 4, 8]' },
  { 'a kv head it has not', function() F.attention(q, k, k, { kv_head = { 0, 0, 1, 2 } }) end,
    'attention: kv_head sends head 3 to kv head 2, but k [2, 6, 2, 8] has 2' },
  { 'dtype of kv_head', function() F.attention(q, k, k, { kv_head = i64 { 0, 0, 1, 1 } }) end,
    'attention: kv_head must be i32, not i64' },
  { 'a string', function() F.attention(q, k, k, { lse = 'yes' }) end,
    "attention: lse must be true or false, got 'yes'" },
  { 'no values', function() F.attention(q, k) end,
    'attention: expected a tensor, got nil (argument 3)' },
}
cases.dropout = {
  { 'p', function() x:dropout(1) end, 'dropout: p = 1 is outside [0, 1)' },
  { 'a negative p', function() x:dropout(-0.5) end, 'dropout: p = -0.5 is outside [0, 1)' },
  { 'integers', function() ints:dropout(0.5) end, 'dropout: x must be f32, bf16 or f64, not i64' },
  { 'an option', function() x:dropout(0.5, { train = false }) end,
    "dropout: no option 'train'; there is training" },
}

cases.cross_entropy = {
  { 'targets', function() F.cross_entropy(x, ul.zeros(4, { dtype = 'i64' })) end,
    'cross_entropy: targets [4] do not fit logits [3, 8]' },
  { 'dtype of targets', function() F.cross_entropy(x, ul.zeros(3)) end,
    'cross_entropy: targets must be i64, not f32' },
  { 'out of range', function() F.cross_entropy(x, i64 { 0, 8, 1 }) end,
    'cross_entropy: target 8 at position 2 is outside [0, 8) and is not ignore_index -100' },
  { 'negative', function() F.cross_entropy(x, i64 { 0, -1, 1 }) end,
    'cross_entropy: target -1 at position 2 is outside [0, 8) and is not ignore_index -100' },
  { 'integers', function() F.cross_entropy(ints, ids) end,
    'cross_entropy: logits must be f32, bf16 or f64, not i64' },
  { 'an unknown reduction', function() F.cross_entropy(x, ids, { reduction = 'none' }) end,
    "cross_entropy: no reduction 'none'; there is sum, mean" },
  { 'an option', function() F.cross_entropy(x, ids, { ignore = 0 }) end,
    "cross_entropy: no option 'ignore'; there is reduction, ignore_index" },
  { 'no targets', function() F.cross_entropy(x) end,
    'cross_entropy: expected a tensor, got nil (argument 2)' },
}
cases.linear_cross_entropy = {
  { 'the weight', function() F.linear_cross_entropy(x, ul.ones(5, 4), ids) end,
    'linear_cross_entropy: weight [5, 4] does not fit x [3, 8]' },
  { 'targets', function() F.linear_cross_entropy(x, ul.ones(5, 8), i64 { 1 }) end,
    'linear_cross_entropy: targets [1] do not fit x [3, 8]' },
  { 'out of range', function() F.linear_cross_entropy(x, ul.ones(5, 8), i64 { 0, 5, 1 }) end,
    'linear_cross_entropy: target 5 at position 2 is outside [0, 5) and is not ignore_index -100' },
  { 'dtypes', function() F.linear_cross_entropy(x, ul.ones(5, 8):to('f64'), ids) end,
    'linear_cross_entropy: dtypes differ (x is f32, weight is f64); convert one with :to()' },
  { 'a negative tile', function() F.linear_cross_entropy(x, ul.ones(5, 8), ids, { tile = -1 }) end,
    'linear_cross_entropy: tile = -1 must not be negative' },
  { 'no targets', function() F.linear_cross_entropy(x, ul.ones(5, 8)) end,
    'linear_cross_entropy: expected a tensor, got nil (argument 3)' },
  { 'an option', function() F.linear_cross_entropy(x, ul.ones(5, 8), ids, { tiles = 1 }) end,
    "linear_cross_entropy: no option 'tiles'; did you mean 'tile'?" },
}

cases.adamw_ = {
  { 'the gradient', function() ul.adamw_(x, w, x, x) end,
    'adamw_: grad [4] does not fit the parameter [3, 8]' },
  { 'statistics', function() ul.adamw_(x, x, w, x) end,
    'adamw_: m [4] does not fit the parameter [3, 8]' },
  { 'dtype of the gradient', function() ul.adamw_(x, x:to('f64'), x, x) end,
    'adamw_: grad must be f32, not f64' },
  { 'no statistics', function() ul.adamw_(x, x) end,
    'adamw_: expected a tensor, got nil (argument 3)' },
  { 'step 0', function() ul.adamw_(x, x, x, x, { step = 0 }) end,
    'adamw_: step = 0, but the first is 1' },
  { 'betas', function() ul.adamw_(x, x, x, x, { betas = { 0.9, 1 } }) end,
    'adamw_: betas 0.9 and 1 must be in [0, 1)' },
  { 'one beta', function() ul.adamw_(x, x, x, x, { betas = { 0.9 } }) end,
    'adamw_: betas must be a table of two numbers' },
  { 'lr', function() ul.adamw_(x, x, x, x, { lr = 0 / 0 }) end,
    '^adamw_: lr = %-?nan and weight_decay = 0%.01 must be finite$' },
  { 'an option', function() ul.adamw_(x, x, x, x, { beta = 1 }) end,
    "adamw_: no option 'beta'; did you mean 'betas'?" },
  { 'a parameter that is not contiguous', function() ul.adamw_(x:t(), x:t(), x, x) end,
    'adamw_: the parameter [8, 3] must be contiguous' },
}
cases.sgd_ = {
  { 'the gradient', function() ul.sgd_(x, w) end,
    'sgd_: grad [4] does not fit the parameter [3, 8]' },
  { 'no velocity', function() ul.sgd_(x, x, { momentum = 0.9 }) end,
    'sgd_: momentum = 0.9 needs a tensor to keep it in' },
  { 'momentum', function() ul.sgd_(x, x, { momentum = 1 }) end,
    'sgd_: momentum = 1 is outside [0, 1)' },
  { 'an option', function() ul.sgd_(x, x, { nestrov = true }) end,
    "sgd_: no option 'nestrov'; did you mean 'nesterov'?" },
  { 'integers', function() ul.sgd_(ints, ints) end,
    'sgd_: the parameter must be f32, bf16 or f64, not i64' },
  { 'a result', function() ul.sgd_(ul.ones(2):requires_grad_() * 2, ul.ones(2)) end,
    'sgd_: the parameter [2] was made by an op' },
}
cases.global_norm = {
  { 'no list', function() ul.global_norm(x) end,
    'global_norm: expected a list of tensors, got a tensor (argument 1)' },
  { 'a number in the list', function() ul.global_norm { x, 1 } end,
    'global_norm: element 2 of the list is 1, not a tensor' },
  { 'integers', function() ul.global_norm { ints } end,
    'global_norm: x must be f32, bf16 or f64, not i64' },
}
cases.clip_grad_norm_ = {
  { 'no norm', function() ul.clip_grad_norm_({ x }) end,
    'clip_grad_norm_: max_norm must be a number, got nil' },
  { 'a negative norm', function() ul.clip_grad_norm_({ x }, -1) end,
    'clip_grad_norm_: max_norm = -1 must not be negative' },
  { 'no list', function() ul.clip_grad_norm_(nil, 1) end,
    'clip_grad_norm_: expected a list of tensors, got nil (argument 1)' },
}

return cases
