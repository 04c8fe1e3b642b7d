-- views.lua - wrong calls of what reshapes, picks, joins and converts.
local ul = require 'ulysses'
local F = ul.F
local x, y, ids = ul.ones(2, 3), ul.ones(4), ul.tensor({ 0, 1 }, { dtype = 'i64' })
local cases = {}

for _, name in ipairs { 'view', 'reshape' } do
  cases[name] = {
    { 'sizes', function() x[name](x, 4, 2) end,
      name .. ': the 6 elements of x [2, 3] do not fit [4, 2]' },
    { 'no shape', function() x[name](x) end, name .. ': no shape' },
    { 'two open sizes', function() x[name](x, -1, -1) end,
      name .. ': [-1, -1] is no shape: sizes are not negative, but one may be -1' },
    { 'a negative size', function() x[name](x, -2, 3) end,
      name .. ': [-2, 3] is no shape: sizes are not negative, but one may be -1' },
    { 'an open size that does not come out', function() x[name](x, 4, -1) end,
      name .. ': the 6 elements of x [2, 3] do not fit [4, -1]' },
    { 'a fraction', function() x[name](x, 1.5) end,
      name .. ': size of dim 1 must be an integer, got 1.5' },
    { 'a hole', function() x[name](x, { 2, nil, 3 }) end,
      name .. ': the table has a hole, or keys that are no positions' },
    { 'too many dims', function() x[name](x, 1, 1, 1, 1, 1, 1, 1, 2, 3) end,
      name .. ': 9 dims, at most 8' },
    { 'a string', function() x[name](x, '6') end,
      name .. ": size of dim 1 must be an integer, got '6'" },
  }
end
table.insert(cases.view, { 'strides', function() x:t():view(6) end,
  'view: x [3, 2] does not lie in memory in a way that [6] could show; use reshape' })
cases.expand = {
  { 'a size that is not 1', function() x:expand(4, 3) end,
    'expand: x [2, 3] does not expand to [4, 3]' },
  { 'fewer dims', function() x:expand(3) end, 'expand: x [2, 3] does not expand to 1 dims' },
  { 'a new open dim', function() x:expand(-1, 2, 3) end,
    'expand: x [2, 3] does not expand to [-1, 2, 3]' },
  { 'no shape', function() x:expand() end, 'expand: no shape' },
}
cases.flatten = {
  { 'a dim', function() x:flatten(2) end, 'flatten: 2 arguments, at most 1 are known' },
  { 'no tensor', function() F.flatten(2) end, 'flatten: expected a tensor, got 2 (argument 1)' },
}
cases.permute = {
  { 'too few dims', function() x:permute(1) end, 'permute: 1 dims given for x [2, 3]' },
  { 'a dim twice', function() x:permute(1, 1) end, 'permute: dim 1 of x [2, 3] is given twice' },
  { 'dim 0', function() x:permute(0, 1) end,
    'permute: dim 0: dims are counted from 1, or from -1 backwards' },
  { 'a dim it has not', function() x:permute(1, 3) end, 'permute: dim 3 of a tensor with 2 dims' },
  { 'a string', function() x:permute('a', 1) end,
    "permute: dim in place 1 must be an integer, got 'a'" },
}
cases.transpose = {
  { 'dim 0', function() x:transpose(0, 1) end,
    'transpose: dim 0: dims are counted from 1, or from -1 backwards' },
  { 'a dim it has not', function() x:transpose(1, 3) end,
    'transpose: dim 3 of a tensor with 2 dims' },
  { 'one dim', function() x:transpose(1) end, 'transpose: dim must be an integer, got nil' },
}
cases.t = {
  { 'one dim', function() y:t() end,
    't: the tensor has 1 dims, not 2; transpose(a, b) names them' },
  { 'an argument', function() x:t(1) end, 't: 2 arguments, at most 1 are known' },
}
cases.select = {
  { 'a position it has not', function() x:select(1, 3) end,
    'select: position 3 of dim 1, which has 2' },
  { 'position 0', function() x:select(1, 0) end,
    'select: position 0 of dim 1: positions are counted from 1' },
  { 'a dim it has not', function() x:select(3, 1) end, 'select: dim 3 of a tensor with 2 dims' },
  { 'no position', function() x:select(1) end, 'select: the position must be an integer, got nil' },
}
cases.narrow = {
  { 'too long', function() x:narrow(2, 2, 3) end,
    'narrow: 3 from position 2 on of dim 2, which has 3' },
  { 'position 0', function() x:narrow(2, 0, 1) end,
    'narrow: 1 from position 0 on of dim 2, which has 3' },
  { 'a negative length', function() x:narrow(2, 1, -1) end,
    'narrow: -1 from position 1 on of dim 2, which has 3' },
  { 'a dim it has not', function() x:narrow(3, 1, 1) end, 'narrow: dim 3 of a tensor with 2 dims' },
  { 'no length', function() x:narrow(1, 1) end, 'narrow: length must be an integer, got nil' },
}
cases.unsqueeze = {
  { 'a place it has not', function() x:unsqueeze(4) end,
    'unsqueeze: dim 4 of a tensor with 3 dims' },
  { 'dim 0', function() x:unsqueeze(0) end,
    'unsqueeze: dim 0: dims are counted from 1, or from -1 backwards' },
  { 'no dim', function() x:unsqueeze() end, 'unsqueeze: dim must be an integer, got nil' },
  { 'too many dims', function() ul.ones(1, 1, 1, 1, 1, 1, 1, 1):unsqueeze(1) end,
    'unsqueeze: x [1, 1, 1, 1, 1, 1, 1, 1] has 8 dims already' },
}
cases.squeeze = {
  { 'a size that is not 1', function() x:squeeze(2) end,
    'squeeze: dim 2 of x [2, 3] is of size 3, not 1' },
  { 'a dim it has not', function() x:squeeze(3) end, 'squeeze: dim 3 of a tensor with 2 dims' },
}
cases.split = {
  { 'sizes', function() x:split({ 1, 2 }, 1) end, 'split: the sizes sum to 3, dim 1 has 2' },
  { 'size 0', function() x:split(0) end, 'split: size 0 is not positive' },
  { 'a negative size', function() x:split({ 3, -1 }, 1) end, 'split: size -1 is negative' },
  { 'a dim it has not', function() x:split(1, 3) end, 'split: dim 3 of a tensor with 2 dims' },
  { 'too many parts', function() ul.ones(2000):split(1) end, 'split: 2000 parts, at most 1000' },
  { 'no size', function() x:split() end, 'split: the size must be an integer, got nil' },
}
cases.chunk = {
  { 'none', function() x:chunk(0) end, 'chunk: 0 parts' },
  { 'a dim it has not', function() x:chunk(2, 3) end, 'chunk: dim 3 of a tensor with 2 dims' },
  { 'no number', function() x:chunk() end,
    'chunk: the number of parts must be an integer, got nil' },
}
for _, name in ipairs { 'contiguous', 'clone', 'detach' } do
  cases[name] = {
    { 'an argument', function() x[name](x, 1) end, name .. ': 2 arguments, at most 1 are known' },
    { 'no tensor', function() x[name](1) end, name .. ': expected a tensor, got 1 (argument 1)' },
  }
end
cases.to = {
  { 'an unknown dtype', function() x:to('f23') end,
    "to: no dtype or device 'f23'; did you mean 'f32'?" },
  { 'an unknown device', function() x:to { device = 'gpu' } end,
    "to: no device 'gpu'; there is cpu, meta, cuda (or cuda:1 ..)" },
  { 'a misspelt option', function() x:to { dtpye = 'f32' } end,
    "to: no option 'dtpye'; did you mean 'dtype'?" },
  { 'nothing', function() x:to() end, 'to: dtype or device must be a string, got nil' },
  { 'from meta', function() x:to('meta'):to('cpu') end,
    'to: x [2, 3] is on meta and has no values to bring to cpu' },
}
cases.cat = {
  { 'shapes', function() ul.cat { x, y } end, 'cat: [4] does not fit beside [2, 3]' },
  { 'other sizes', function() ul.cat { x, ul.ones(2, 4) } end,
    'cat: [2, 4] does not fit beside [2, 3]' },
  { 'dtypes', function() ul.cat { x, x:to('f64') } end,
    'cat: dtypes differ (the first tensor is f32, another is f64); convert one with :to()' },
  { 'devices', function() ul.cat { x, x:to('meta') } end,
    'cat: the first tensor is on cpu, another on meta; bring them together with :to()' },
  { 'an empty list', function() ul.cat {} end, 'cat: the list is empty' },
  { 'no list', function() ul.cat(x, x) end, 'cat: dim must be an integer, got a tensor' },
  { 'a number in the list', function() ul.cat { x, 2 } end,
    'cat: element 2 of the list is 2, not a tensor' },
  { 'a dim it has not', function() ul.cat({ x, x }, 3) end, 'cat: dim 3 of a tensor with 2 dims' },
}
cases.stack = {
  { 'shapes', function() ul.stack { x, y } end, 'stack: [1, 4] does not fit beside [1, 2, 3]' },
  { 'dtypes', function() ul.stack { x, x:to('f64') } end,
    'stack: dtypes differ (the first tensor is f32, another is f64); convert one with :to()' },
  { 'an empty list', function() ul.stack {} end, 'stack: the list is empty' },
  { 'a dim it has not', function() ul.stack({ x, x }, 4) end,
    'stack: dim 4 of a tensor with 3 dims' },
}
cases.gather = {
  { 'dims', function() x:gather(2, ids) end,
    'gather: index [2] must have the shape of x [2, 3], but for the size of the dim gathered '
    .. 'from' },
  { 'dtypes', function() x:gather(1, ul.ones(1, 3)) end, 'gather: index must be i64, not f32' },
  { 'out of range', function() x:gather(2, ul.full({ 2, 1 }, 3, { dtype = 'i64' })) end,
    'gather: index 3 at position 1 is outside [0, 3)' },
  { 'a dim it has not', function() x:gather(3, ids) end, 'gather: dim 3 of a tensor with 2 dims' },
  { 'no index', function() x:gather(1) end, 'gather: expected a tensor, got nil (argument 3)' },
}
cases.index_select = {
  { 'dims', function() x:index_select(1, ul.zeros(1, 2, { dtype = 'i64' })) end,
    'index_select: index [1, 2] must have one dim' },
  { 'dtypes', function() x:index_select(1, ul.zeros(2)) end,
    'index_select: index must be i64, not f32' },
  { 'out of range', function() x:index_select(1, ids + 1) end,
    'index_select: index 2 at position 2 is outside [0, 2)' },
  { 'negative', function() x:index_select(1, ids - 1) end,
    'index_select: index -1 at position 1 is outside [0, 2)' },
  { 'a dim it has not', function() x:index_select(3, ids) end,
    'index_select: dim 3 of a tensor with 2 dims' },
}

-- x[key] and x[key] = value
cases.index = {
  { 'a position it has not', function() local _ = x[3] end,
    'index: position 3 of dim 1, which has 2' },
  { 'position 0', function() local _ = x[0] end,
    'index: position 0 of dim 1: positions are counted from 1' },
  { 'too far back', function() local _ = x[-3] end, 'index: position -3 of dim 1, which has 2' },
  { 'a fraction', function() local _ = x[1.5] end,
    'index: a position must be an integer, got 1.5' },
  { 'a second position', function() local _ = x[{ 1, 4 }] end,
    'index: position 4 of dim 2, which has 3' },
  { 'too many', function() local _ = x[{ 1, 1, 1 }] end, 'index: 3 positions for 2 dims' },
  { 'a range it has not', function() local _ = x[{ {}, { 2, 4 } }] end,
    'index: range 2:4 of dim 2, which has 3' },
  { 'a range from 0', function() local _ = x[{ {}, { 0, 2 } }] end,
    'index: range 0:2 of dim 2, which has 3' },
  { 'a range backwards', function() local _ = x[{ {}, { 3, 1 } }] end,
    'index: range 3:1 of dim 2, which has 3' },
  { 'a step', function() local _ = x[{ {}, { 1, 3, 0 } }] end, 'index: step 0 is not positive' },
  { 'a hole', function() local _ = x[{ [2] = 1 }] end,
    'index: the table has a hole, or keys that are no positions' },
  { 'a key', function() local _ = x[{ row = 1 }] end,
    'index: the table has a hole, or keys that are no positions' },
  { 'a boolean', function() local _ = x[true] end,
    'index: expected a position, a table or a string, got a boolean' },
  { 'a tensor', function() local _ = x[ids] end,
    'index: expected a position, a table or a string, got a tensor; index_select and gather '
    .. 'take tensors' },
  { 'text', function() local _ = x['1;2'] end,
    "index: cannot read '1;2'; it looks like '2, 1:3, :, ...'" },
  { 'a range as text', function() local _ = x[':, 2:4'] end,
    'index: range 2:4 of dim 2, which has 3' },
  { 'dots twice', function() local _ = x['..., ...'] end, "index: '...' stands twice" },
  { 'an unknown name', function() local _ = x.requires_gard end,
    "a tensor has no 'requires_gard'; did you mean 'requires_grad'?" },
  { 'an unknown method', function() x:rehsape(6) end,
    "a tensor has no 'rehsape'; did you mean 'reshape'?" },
  { 'a value that does not fit', function() x[1] = ul.ones(2) end,
    'index: shapes [3] and [2] do not broadcast together' },
  { 'a table that does not fit', function() x[1] = { 1, 2 } end,
    'index: shapes [3] and [2] do not broadcast together' },
  { 'a string', function() x[1] = 'one' end, "index: the value must be a number, got 'one'" },
  { 'a leaf', function() ul.ones(2):requires_grad_()[1] = 0 end,
    'index: this tensor [] takes part in differentiation and cannot change in place; use a pure '
    .. 'op, or ul.no_grad' },
  { 'a field', function() x.shape = { 3, 2 } end,
    "a tensor's 'shape' cannot be set; 'grad' and 'requires_grad' can" },
}

return cases
