-- reduce.lua - wrong calls of sums, extremes and what else runs along dims.
local ul = require 'ulysses'
local F = ul.F
local x, ints = ul.ones(2, 3), ul.ones(2, 3, { dtype = 'i64' })
local none = ul.ones(2, 0)
local cases = {}

for _, name in ipairs { 'sum', 'mean', 'logsumexp' } do
  cases[name] = {
    { 'dim 0', function() x[name](x, 0) end,
      name .. ': dim 0: dims are counted from 1, or from -1 backwards' },
    { 'a dim it has not', function() x[name](x, 3) end, name .. ': dim 3 of a tensor with 2 dims' },
    { 'a dim from the end', function() x[name](x, -3) end,
      name .. ': dim -3 of a tensor with 2 dims' },
    { 'a dim twice', function() x[name](x, { 2, -1 }) end,
      name .. ': dim 2 of x [2, 3] is given twice' },
    { 'no dims', function() x[name](x, {}, { keepdim = true }) end,
      name .. ': an empty list of dims' },
    { 'a fraction', function() x[name](x, 1.5) end, name .. ': dim must be an integer, got 1.5' },
    { 'an option', function() x[name](x, 1, { keepdims = true }) end,
      name .. ": no option 'keepdims'; did you mean 'keepdim'?" },
    { 'a string', function() x[name](x, 1, { keepdim = 'yes' }) end,
      name .. ": keepdim must be true or false, got 'yes'" },
    { 'an argument', function() x[name](x, 1, nil, 2) end,
      name .. ': 4 arguments, at most 3 are known' },
  }
end
for _, name in ipairs { 'var', 'std' } do
  cases[name] = {
    { 'dim 0', function() x[name](x, 0) end,
      name .. ': dim 0: dims are counted from 1, or from -1 backwards' },
    { 'a dim it has not', function() x[name](x, 3) end, name .. ': dim 3 of a tensor with 2 dims' },
    { 'a dim twice', function() x[name](x, { 2, -1 }) end,
      name .. ': dim 2 of x [2, 3] is given twice' },
    { 'an option', function() x[name](x, 1, { biased = true }) end,
      name .. ": no option 'biased'; did you mean 'unbiased'?" },
    { 'a number', function() x[name](x, 1, { unbiased = 1 }) end,
      name .. ': unbiased must be a boolean, got a number' },
    { 'an argument', function() x[name](x, 1, nil, 2) end,
      name .. ': 4 arguments, at most 3 are known' },
    { 'no tensor', function() F[name](1) end, name .. ': expected a tensor, got 1 (argument 1)' },
  }
end
for _, name in ipairs { 'mean', 'var', 'std', 'logsumexp', 'softmax', 'log_softmax', 'norm' } do
  cases[name] = cases[name] or {}
  table.insert(cases[name], { 'integers', function() F[name](ints) end,
    name .. ': x must be f32, bf16 or f64, not i64' })
end
for _, name in ipairs { 'max', 'min', 'argmax', 'argmin' } do
  cases[name] = {
    { 'dim 0', function() x[name](x, 0) end,
      name .. ': dim 0: dims are counted from 1, or from -1 backwards' },
    { 'a dim it has not', function() x[name](x, 3) end, name .. ': dim 3 of a tensor with 2 dims' },
    { 'two dims', function() x[name](x, { 1, 2 }) end,
      name .. ': dim must be an integer, got a table' },
    { 'nothing to choose from', function() none[name](none, 2) end,
      name .. ': x [2, 0] has nothing there to choose from' },
    { 'nothing at all', function() none[name](none) end,
      name .. ': x [2, 0] has nothing there to choose from' },
    { 'an option', function() x[name](x, 1, { keep = true }) end,
      name .. ": no option 'keep'; there is keepdim" },
  }
end
for _, name in ipairs { 'softmax', 'log_softmax', 'cumsum', 'sort' } do
  cases[name] = cases[name] or {}
  table.insert(cases[name], { 'dim 0', function() x[name](x, 0) end,
    name .. ': dim 0: dims are counted from 1, or from -1 backwards' })
  table.insert(cases[name], { 'a dim it has not', function() x[name](x, -3) end,
    name .. ': dim -3 of a tensor with 2 dims' })
  table.insert(cases[name], { 'no dims', function() F[name](ul.tensor(1)) end,
    name .. ': dim -1 of a tensor with 0 dims' })
  table.insert(cases[name], { 'a string', function() x[name](x, 'last') end,
    name .. ": dim must be an integer, got 'last'" })
  table.insert(cases[name], { 'no tensor', function() F[name](1) end,
    name .. ': expected a tensor, got 1 (argument 1)' })
end
table.insert(cases.sort, { 'an option', function() x:sort(1, { ascending = true }) end,
  "sort: no option 'ascending'; did you mean 'descending'?" })
cases.topk = {
  { 'no k', function() x:topk() end, 'topk: k must be an integer, got nil' },
  { 'more than there are', function() x:topk(4) end,
    'topk: k is 4, but dim 2 of x [2, 3] has 3 elements' },
  { 'less than none', function() x:topk(-1) end,
    'topk: k is -1, but dim 2 of x [2, 3] has 3 elements' },
  { 'a dim it has not', function() x:topk(1, 3) end, 'topk: dim 3 of a tensor with 2 dims' },
  { 'dim 0', function() x:topk(1, 0) end,
    'topk: dim 0: dims are counted from 1, or from -1 backwards' },
  { 'an option', function() x:topk(1, 1, { larger = true }) end,
    "topk: no option 'larger'; did you mean 'largest'?" },
}
table.insert(cases.norm, { 'a dim', function() x:norm(1) end,
  'norm: 2 arguments, at most 1 are known' })
table.insert(cases.norm, { 'a string', function() F.norm('x') end,
  "norm: expected a tensor, got 'x' (argument 1)" })

return cases
