-- elementwise.lua - wrong calls of arithmetic, comparisons, functions of one tensor, and in place.
local ul = require 'ulysses'
local F = ul.F
local x, y, ints = ul.ones(2, 3), ul.ones(4), ul.ones(2, 3, { dtype = 'i64' })
local cases = {}

for _, name in ipairs {
  'add', 'sub', 'mul', 'div', 'pow', 'maximum', 'minimum', 'eq', 'ne', 'lt', 'le', 'gt', 'ge',
  'swiglu',
} do
  local call = F[name]
  cases[name] = {
    { 'shapes', function() call(x, y) end,
      name .. ': shapes [2, 3] and [4] do not broadcast together' },
    { 'dtypes', function() call(x, ints) end,
      name .. ': dtypes differ (a is f32, b is i64); convert one with :to()' },
    { 'devices', function() call(x, x:to('meta')) end,
      name .. ': a is on cpu, b on meta; bring them together with :to()' },
    { 'a string', function() call(x, '2') end,
      name .. ": expected a tensor or a number, got '2' (argument 2)" },
    { 'nothing', function() call(x) end,
      name .. ': expected a tensor or a number, got nil (argument 2)' },
    { 'two numbers', function() call(1, 2) end, name .. ': neither argument is a tensor' },
    { 'three tensors', function() call(x, x, x) end, name .. ': 3 arguments, at most 2 are known' },
  }
end

for _, name in ipairs { 'add', 'sub', 'mul', 'maximum', 'minimum', 'eq', 'lt' } do
  table.insert(cases[name], { 'a fraction beside integers',
                              function() F[name](ints, 0.5) end,
                                name .. ': 0.5 is not a number that i64 can hold; convert the '
                                .. 'tensor with :to()' })
end
for name, input in pairs { div = 'a', pow = 'a', swiglu = 'gate' } do
  table.insert(cases[name], { 'integers', function() F[name](ints, ints) end,
                             name .. ': ' .. input .. ' must be f32, bf16 or f64, not i64' })
end

for _, name in ipairs {
  'neg', 'abs', 'exp', 'log', 'sqrt', 'rsqrt', 'sin', 'cos', 'tanh', 'sigmoid', 'silu', 'relu',
  'square', 'gelu', 'clamp',
} do
  cases[name] = {
    { 'a number', function() F[name](2) end, name .. ': expected a tensor, got 2 (argument 1)' },
  }
end
for _, name in ipairs { 'neg', 'exp', 'log', 'sqrt', 'rsqrt', 'sin', 'cos', 'tanh', 'sigmoid',
  'silu', 'relu', 'square' } do
  table.insert(cases[name], { 'a second argument', function() F[name](x, 1) end,
    name .. ': 2 arguments, at most 1 are known' })
end
for _, name in ipairs { 'exp', 'log', 'sqrt', 'rsqrt', 'sin', 'cos', 'tanh', 'sigmoid', 'silu',
  'gelu', 'relu' } do
  table.insert(cases[name], { 'integers', function() F[name](ints) end,
    name .. ': x must be f32, bf16 or f64, not i64' })
end

table.insert(cases.gelu, { 'an unknown form', function() F.gelu(x, { approximate = 'tan' }) end,
                           "gelu: no approximate 'tan'; did you mean 'tanh'?" })
table.insert(cases.gelu, { 'a misspelt option', function() F.gelu(x, { aproximate = 'tanh' }) end,
                           "gelu: no option 'aproximate'; did you mean 'approximate'?" })
table.insert(cases.clamp, { 'bounds', function() F.clamp(x, 2, 1) end,
  'clamp: low 2 is above high 1' })
table.insert(cases.clamp, { 'nan', function() F.clamp(x, 0 / 0, 1) end,
  '^clamp: low %-?nan is above high 1$' })
table.insert(cases.clamp, { 'an option', function() F.clamp(x, { low = 1 }) end,
  "clamp: no option 'low'; there is min, max" })
table.insert(cases.clamp, { 'a string', function() F.clamp(x, 'a') end,
  "clamp: min must be a number, got 'a'" })

cases.where = {
  { 'the condition', function() F.where(x, x, x) end, 'where: the condition must be u8, not f32' },
  { 'shapes', function() F.where(x:gt(0), x, y) end,
    'where: shapes [2, 3] and [4] do not broadcast together' },
  { 'shape of the condition', function() F.where(y:gt(0), x, x) end,
    'where: shapes [4] and [2, 3] do not broadcast together' },
  { 'dtypes', function() F.where(x:gt(0), x, ints) end,
    'where: dtypes differ (a is f32, b is i64); convert one with :to()' },
  { 'two numbers', function() F.where(x:gt(0), 1, 2) end, 'where: neither a nor b is a tensor' },
  { 'devices', function() F.where(x:gt(0):to('meta'), x, x) end,
    'where: the condition is on meta, a on cpu; bring them together with :to()' },
}
cases.masked_fill = {
  { 'the mask', function() x:masked_fill(x, 0) end,
    'masked_fill: the condition must be u8, not f32' },
  { 'shapes', function() x:masked_fill(y:gt(0), 0) end,
    'masked_fill: shapes [4] and [2, 3] do not broadcast together' },
  { 'no value', function() x:masked_fill(x:gt(0)) end,
    'masked_fill: the value must be a number, got nil' },
  { 'a fraction', function() ints:masked_fill(x:gt(0), 0.5) end,
    'masked_fill: 0.5 is not a number that i64 can hold; convert the tensor with :to()' },
}

-- In place.
for _, name in ipairs { 'add_', 'sub_', 'mul_', 'div_' } do
  cases[name] = {
    { 'shapes', function() x[name](x, y) end,
      name .. ': shapes [2, 3] and [4] do not broadcast together' },
    { 'a larger one', function() y[name](ul.ones(3), x) end,
      name .. ': [2, 3] does not fit into [3]' },
    { 'dtypes', function() x[name](x, ints:to('f64')) end,
      name .. ': dtypes differ (a is f32, b is f64); convert one with :to()' },
    { 'a string', function() x[name](x, 'a') end,
      name .. ": expected a tensor or a number, got 'a' (argument 2)" },
    { 'what requires grad', function() x[name](x, ul.ones(3):requires_grad_()) end,
      name .. ': [3] requires grad, which a change in place cannot pass on; use a pure op, or '
      .. 'detach()' },
  }
end
table.insert(cases.add_, { 'a leaf', function() ul.ones(2):requires_grad_():add_(1) end,
  'add_: this tensor [2] takes part in differentiation and cannot change in place; use a pure '
  .. 'op, or ul.no_grad' })
table.insert(cases.sub_, { 'a result', function() (ul.ones(2):requires_grad_() * 2):sub_(1) end,
  'sub_: this tensor [2] takes part in differentiation and cannot change in place; use a pure '
  .. 'op, or ul.no_grad' })
table.insert(cases.mul_, { 'an expanded one', function() ul.ones(1, 3):expand(2, 3):mul_(2) end,
  'mul_: several elements of the expanded [2, 3] are one in memory; use contiguous()' })
table.insert(cases.div_, { 'integers', function() ints:clone():div_(2) end,
  'div_: a must be f32, bf16 or f64, not i64' })
cases.fill_ = {
  { 'nothing', function() ul.ones(2):fill_() end, 'fill_: the value must be a number, got nil' },
  { 'a fraction', function() ul.ones(2, { dtype = 'i32' }):fill_(0.5) end,
    'fill_: 0.5 is not a number that i32 can hold; convert the tensor with :to()' },
  { 'too large', function() ul.ones(2, { dtype = 'u8' }):fill_(256) end,
    'fill_: 256 is not a number that u8 can hold; convert the tensor with :to()' },
  { 'a leaf', function() ul.ones(2):requires_grad_():fill_(1) end,
    'fill_: this tensor [2] takes part in differentiation and cannot change in place; use a '
    .. 'pure op, or ul.no_grad' },
}
cases.zero_ = {
  { 'an argument', function() ul.ones(2):zero_(1) end, 'zero_: 2 arguments, at most 1 are known' },
  { 'a leaf', function() ul.ones(2):requires_grad_():zero_() end,
    'zero_: this tensor [2] takes part in differentiation and cannot change in place; use a '
    .. 'pure op, or ul.no_grad' },
}
cases.copy_ = {
  { 'shapes', function() ul.ones(2, 3):copy_(y) end,
    'copy_: shapes [2, 3] and [4] do not broadcast together' },
  { 'a number', function() ul.ones(2):copy_(1) end,
    'copy_: expected a tensor, got 1 (argument 2)' },
  { 'devices', function() ul.ones(4):copy_(y:to('meta')) end,
    'copy_: a is on cpu, b on meta; bring them together with :to()' },
  { 'a leaf', function() ul.ones(4):requires_grad_():copy_(y) end,
    'copy_: this tensor [4] takes part in differentiation and cannot change in place; use a '
    .. 'pure op, or ul.no_grad' },
}
cases.uniform_ = {
  { 'bounds', function() ul.ones(2):uniform_(2, 1) end,
    'uniform_: low = 2 must not be above high = 1' },
  { 'integers', function() ints:clone():uniform_() end,
    'uniform_: x must be f32, bf16 or f64, not i64' },
  { 'a string', function() ul.ones(2):uniform_('low') end,
    "uniform_: low must be a number, got 'low'" },
}
cases.normal_ = {
  { 'a negative std', function() ul.ones(2):normal_(0, -1) end,
    'normal_: mean = 0 and std = -1 must be finite, and std not negative' },
  { 'integers', function() ints:clone():normal_() end,
    'normal_: x must be f32, bf16 or f64, not i64' },
  { 'nan', function() ul.ones(2):normal_(0 / 0) end,
    '^normal_: mean = %-?nan and std = 1 must be finite, and std not negative$' },
}

return cases
