-- create.lua - wrong calls of what makes tensors, reads them, and of the engine as a whole.
local ul = require 'ulysses'
local x = ul.ones(2, 3)
local meta, ints = x:to('meta'), x:to('i64')
local cases = {}

for _, name in ipairs { 'empty', 'zeros', 'ones', 'rand', 'randn' } do
  cases[name] = {
    { 'a negative size', function() ul[name](2, -1) end, name .. ': size -1 of dim 2 is negative' },
    { 'a string', function() ul[name]('2') end,
      name .. ": size of dim 1 must be an integer, got '2'" },
    { 'a fraction', function() ul[name](2.5) end,
      name .. ': size of dim 1 must be an integer, got 2.5' },
    { 'a misspelt option', function() ul[name](2, { dtpye = 'f64' }) end,
      name .. ": no option 'dtpye'; did you mean 'dtype'?" },
    { 'an unknown dtype', function() ul[name] { 2, dtype = 'float' } end,
      name .. ": no dtype 'float'; there is f32, bf16, f64, i32, i64, u8" },
    { 'an unknown device', function() ul[name](2, { device = 'gpu' }) end,
      name .. ": no device 'gpu'; there is cpu, meta, cuda (or cuda:1 ..)" },
    { 'too many dims', function() ul[name](1, 1, 1, 1, 1, 1, 1, 1, 1) end,
      name .. ': 9 dims, at most 8' },
    { 'too large', function() ul[name](2 ^ 40, 2 ^ 40) end,
      name .. ': [1099511627776, 1099511627776] is too large' },
    { 'after the options', function() ul[name]({ 2 }, { dtype = 'f64' }, 3) end,
      name .. ': arguments after the options' },
    { 'options twice', function() ul[name]({ 2, dtype = 'f64' }, { dtype = 'f64' }) end,
      name .. ": no option 'dtype'; there is none" },
  }
  cases[name .. '_like'] = {
    { 'no tensor', function() ul[name .. '_like'](2) end,
      name .. '_like: expected a tensor, got 2 (argument 1)' },
    { 'a misspelt option', function() ul[name .. '_like'](x, { divice = 'cpu' }) end,
      name .. "_like: no option 'divice'; did you mean 'device'?" },
  }
end
table.insert(cases.rand, { 'integers', function() ul.rand(2, { dtype = 'i64' }) end,
  'rand: x must be f32, bf16 or f64, not i64' })
table.insert(cases.randn, { 'integers', function() ul.randn(2, { dtype = 'u8' }) end,
  'randn: x must be f32, bf16 or f64, not u8' })
table.insert(cases.zeros, { 'gradients of integers', function()
  ul.zeros(2, { dtype = 'i32', requires_grad = true })
end, 'zeros: x must be f32, bf16 or f64, not i32' })

cases.full = {
  { 'no table', function() ul.full(2, 3) end, 'full: the shape must be a table' },
  { 'no value', function() ul.full { 2 } end, 'full: the value must be a number, got nil' },
  { 'a fraction', function() ul.full({ 2 }, 0.5, { dtype = 'i64' }) end,
    'full: 0.5 is not a number that i64 can hold; convert the tensor with :to()' },
  { 'too large a value', function() ul.full({ 2 }, 300, { dtype = 'u8' }) end,
    'full: 300 is not a number that u8 can hold; convert the tensor with :to()' },
  { 'a negative size', function() ul.full({ -2 }, 1) end, 'full: size -2 of dim 1 is negative' },
}
cases.randint = {
  { 'bounds', function() ul.randint(3, 3, { 2 }) end, 'randint: low = 3 must be below high = 3' },
  { 'a fraction', function() ul.randint(0, 2.5, { 2 }) end,
    'randint: high must be an integer, got 2.5' },
  { 'no shape', function() ul.randint(0, 3) end, 'randint: the shape must be a table' },
  { 'a range for the dtype', function() ul.randint(0, 300, { 2 }, { dtype = 'u8' }) end,
    'randint: [0, 300) does not fit u8' },
}
cases.arange = {
  { 'nothing', function() ul.arange() end, 'arange: expected (start, stop, step)' },
  { 'step 0', function() ul.arange(0, 3, 0) end, 'arange: no end from 0 to 3 by 0' },
  { 'no end', function() ul.arange(math.huge) end, 'arange: no end from 0 to inf by 1' },
  { 'fractions', function() ul.arange(0, 1, 0.25, { dtype = 'i64' }) end,
    'arange: 0.75 is not a number that i64 can hold; convert the tensor with :to()' },
  { 'a string', function() ul.arange('3') end, "arange: a bound must be a number, got '3'" },
}
cases.tensor = {
  { 'rows of two sizes', function() ul.tensor { { 1, 2 }, { 3 } } end,
    'tensor: table [2] has 1 elements, the first at its depth has 2' },
  { 'a hole', function() ul.tensor { 1, nil, 3, nil, 5, nil } end,
    'tensor: the table has a hole, or keys that are no positions' },
  { 'a key', function() ul.tensor { 1, 2, n = 2 } end,
    'tensor: the table has a hole, or keys that are no positions' },
  { 'a string', function() ul.tensor { 1, 'two' } end,
    "tensor: element [2] is 'two', expected a number" },
  { 'a number among tables', function() ul.tensor { { 1 }, 2 } end,
    'tensor: table [2] is 2, expected a table of 1' },
  { 'a table among numbers', function() ul.tensor { 1, { 2 } } end,
    'tensor: element [2] is a table, others at this depth are not' },
  { 'a boolean among numbers', function() ul.tensor { 1, true } end,
    'tensor: element [2] is a boolean, expected a number' },
  { 'a fraction', function() ul.tensor({ 1, 0.5 }, { dtype = 'i64' }) end,
    'tensor: element [2] must be an integer, got 0.5' },
  { 'too large a value', function() ul.tensor({ 256 }, { dtype = 'u8' }) end,
    'tensor: element [1], 256, does not fit u8' },
  { 'too deep', function() ul.tensor { { { { { { { { { 1 } } } } } } } } } end,
    'tensor: tables nested deeper than 8' },
  { 'a tensor', function() ul.tensor(x) end, 'tensor: this is one already; x:clone() copies it' },
  { 'nothing', function() ul.tensor() end, 'tensor: expected a table or a number, got nil' },
}

-- What a tensor says of itself.
for _, name in ipairs { 'size', 'stride' } do
  cases[name] = {
    { 'dim 0', function() x[name](x, 0) end,
      name .. ': dim 0: dims are counted from 1, or from -1 backwards' },
    { 'a dim it has not', function() x[name](x, 3) end, name .. ': dim 3 of a tensor with 2 dims' },
  }
end
for _, name in ipairs { 'dim', 'numel', 'dtype', 'device', 'is_contiguous', 'keep', 'free' } do
  cases[name] = {
    { 'an argument', function() x[name](x, 1) end, name .. ': 2 arguments, at most 1 are known' },
    { 'no tensor', function() x[name](1) end, name .. ': expected a tensor, got 1 (argument 1)' },
  }
end
cases.item = {
  { 'more than one element', function() x:item() end, 'item: the tensor has 6 elements, not one' },
  { 'on meta', function() meta:sum():item() end, 'item: a meta tensor has no values' },
}
cases.tolist = { { 'on meta', function() meta:tolist() end,
  'tolist: a meta tensor has no values' } }
cases.data = {
  { 'on meta', function() meta:data() end, 'data: a meta tensor has no values' },
  { 'not contiguous', function() ul.ones(2, 3, { device = 'cpu' }):t():data() end,
    'data: the tensor is not contiguous; take x:contiguous()' },
}

-- Gradients.
cases.requires_grad_ = {
  { 'integers', function() ul.ones(2, { dtype = 'i64' }):requires_grad_() end,
    'requires_grad_: x must be f32, bf16 or f64, not i64' },
  { 'a result', function() (ul.ones(2):requires_grad_() * 2):requires_grad_(false) end,
    'requires_grad_: this tensor was made by an op; detach() it instead' },
  { 'a number', function() ul.ones(2):requires_grad_(1) end,
    'requires_grad_: argument 2 must be true or false, got 1' },
}
cases.retain_grad = { { 'no gradient', function() x:retain_grad() end,
  'retain_grad: this tensor does not require grad' } }
cases.grad = {
  { 'no leaf', function() x.grad = x end, 'grad: only a leaf that requires grad has one to set' },
  { 'a shape', function() ul.ones(2):requires_grad_().grad = x end,
    'grad: [2, 3] does not fit the tensor [2]' },
  { 'a dtype', function() ul.ones(2):requires_grad_().grad = ul.ones(2):to('f64') end,
    'grad: grad must be f32, not f64' },
  { 'a number', function() ul.ones(2):requires_grad_().grad = 1 end,
    'grad: expected a tensor, got 1 (argument 3)' },
}
cases.backward = {
  { 'nothing requires grad', function() x:sum():backward() end,
    'backward: nothing that made this tensor requires grad' },
  { 'many elements', function() (ul.ones(2):requires_grad_() * 2):backward() end,
    'backward: a tensor [2] of more than one element needs a seed of its shape' },
  { 'a seed', function() (ul.ones(2):requires_grad_() * 2):backward(x) end,
    'backward: seed [2, 3] does not fit the tensor [2]' },
  { 'a misspelt option', function() x:backward { retian = true } end,
    "backward: no option 'retian'; did you mean 'retain'?" },
  { 'twice', function()
    local loss = (ul.ones(2):requires_grad_() * 2):sum()
    loss:backward()
    loss:backward()
  end,
    'backward: an earlier backward has freed the history of this tensor; pass retain = true to '
    .. 'that one' },
  { 'a history that is gone', function()
    local y = ul.ones(2):requires_grad_() * 2
    y:sum():backward()
    y:sum():backward()
  end,
    'backward: an earlier backward has freed the history of an input of sum; pass retain = true '
    .. 'to that one' },
  { 'a value that was changed', function()
    local y = ul.ones(2)
    local loss = (ul.ones(2):requires_grad_() * y):sum()
    y:add_(1)
    loss:backward()
  end, 'backward: a value [2] that mul needs for its gradient was changed in place' },
  { 'no lists', function() ul.backward(x) end,
    'backward: expected a list of gradients (argument 2)' },
  { 'a list of numbers', function() ul.backward({ 1 }, { x }) end,
    'backward: element 1 of the list is 1, not a tensor' },
  { 'seeds', function() ul.backward({ ul.ones(2):requires_grad_() * 2 }, { 1 }) end,
    'backward: a gradient must be a tensor, got 1' },
  { 'dtype of the seed', function() ul.ones(2, 3):requires_grad_():mul(2):backward(ints) end,
    'backward: dtypes differ (the seed is i64, the tensor is f32); convert one with :to()' },
}

-- Scopes, functions on the tape, the engine.
for _, name in ipairs { 'scope', 'no_grad', 'enable_grad' } do
  cases[name] = {
    { 'nothing', function() ul[name]() end, name .. ': expected a function, got nil (argument 1)' },
    { 'a tensor', function() ul[name](x) end,
      name .. ': expected a function, got a tensor (argument 1)' },
  }
end
cases.scoped = {
  { 'no name', function() ul.scoped(function() end) end, 'scoped: the name must be a string' },
  { 'no function', function() ul.scoped('name') end,
    'scoped: expected a function, got nil (argument 2)' },
}
cases.scope_begin = { { 'no name', function() ul.scope_begin() end,
  'scope_begin: the name must be a string' } }
cases.scope_end = { { 'no scope', function() ul.scope_end(x) end,
  'scope_end: expected what scope_begin returned, got a tensor (argument 1)' } }
cases.fn = {
  { 'no table', function() ul.fn(print) end, 'fn: expected a table { forward =, backward = }' },
  { 'no backward', function() ul.fn { forward = print } end, 'fn: backward must be a function' },
  { 'a misspelt key', function() ul.fn { foreward = print, backward = print } end,
    "fn: no option 'foreward'; did you mean 'forward'?" },
  { 'a name', function() ul.fn { forward = print, backward = print, name = 1 } end,
    'fn: name must be a string' },
}
cases.recompute = { { 'no function', function() ul.recompute(x) end,
  'recompute: expected a function, got a userdata' } }
cases.gradcheck = {
  { 'no inputs', function() ul.gradcheck(print) end, 'gradcheck: inputs must be a list' },
  { 'nothing to check', function() ul.gradcheck(print, { x }) end,
    'gradcheck: no input requires grad' },
  { 'dtype', function() ul.gradcheck(print, { ul.ones(2):requires_grad_() }) end,
    'gradcheck: input 1 must be a contiguous f64 leaf' },
  { 'an option', function() ul.gradcheck(print, {}, { steps = 1 }) end,
    "gradcheck: no option 'steps'; did you mean 'step'?" },
}
cases.manual_seed = {
  { 'nothing', function() ul.manual_seed() end, 'manual_seed: seed must be an integer, got nil' },
  { 'a fraction', function() ul.manual_seed(0.5) end,
    'manual_seed: seed must be an integer, got 0.5' },
}
cases.random_state = { { 'an argument', function() ul.random_state(1) end,
  'random_state: 1 arguments, at most 0 are known' } }
cases.set_random_state = { { 'one number', function() ul.set_random_state(1) end,
  'set_random_state: seed must be an integer, got nil' } }
cases.memory = { { 'an unknown device', function() ul.memory('gpu') end,
  "memory: no device 'gpu'; there is cpu, meta, cuda (or cuda:1 ..)" } }
cases.set_memory_limit = {
  { 'a negative limit', function() ul.set_memory_limit('cpu', -1) end,
    'set_memory_limit: -1 bytes' },
  { 'no device', function() ul.set_memory_limit(1) end,
    'set_memory_limit: device must be a string, got 1' },
}
cases.set_default_device = { { 'an unknown device', function() ul.set_default_device('cdu') end,
  "set_default_device: no device 'cdu'; there is cpu, meta, cuda (or cuda:1 ..)" } }
for _, name in ipairs { 'reset_peak_memory', 'trim_memory', 'meta_counts', 'meta_kernels',
                        'reset_meta_counts', 'default_device', 'flops', 'attention_report',
                        'gpu' } do
  cases[name] = { { 'an argument', function() ul[name](1) end,
    name .. ': 1 arguments, at most 0 are known' } }
end
cases.threads = {
  { 'none', function() ul.threads(0) end, 'threads: 0 is outside [1, 256]' },
  { 'too many', function() ul.threads(1000) end, 'threads: 1000 is outside [1, 256]' },
}
cases.isa = { { 'an unknown level', function() ul.isa('mmx') end,
  "isa: this machine has no level 'mmx' (base, avx2, avx512, avx512bf16)" } }
cases.attention_backend = { { 'an unknown name', function() ul.attention_backend('cuddn') end,
  "attention_backend: no backend 'cuddn'; did you mean 'cudnn'?" } }
cases.deterministic = { { 'no boolean', function() ul.deterministic('no') end,
  "deterministic: yes must be true or false, got 'no'" } }
cases.tf32 = { { 'no boolean', function() ul.tf32('no') end,
  "tf32: allowed must be true or false, got 'no'" } }
cases.peak_flops = { { 'no float', function() ul.peak_flops 'i32' end,
  'peak_flops: dtype must be f32, bf16 or f64, got i32' } }
cases.ul = { { 'an unknown name', function() local _ = ul.tesnor end,
  "ulysses has no 'tesnor'; did you mean 'tensor'?" } }

return cases
