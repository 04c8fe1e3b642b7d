-- reduce.lua - cases of sums, extremes, and what else runs along dims.
local ul = require 'ulysses'
local F = ul.F
local cases = {}

local wide, none = { 17, 31, 97 }, { 0, 4, 5 }
local integers = { gradcheck = 'integers' }

-- Sums of sines nearly cancel.
local function add(name, op, call, more)
  local case = more or {}
  case.loose = case.loose or 4
  case.name, case.op, case.call = name, op, call
  case.large = case.large or { wide }
  if case.empty == nil then case.empty = { none } end
  cases[#cases + 1] = case
end

add('sum', 'sum', function(x) return x:sum() end)
add('sum_dims', 'sum', function(x) return x:sum { 1, 3 } end, { empty = { { 3, 0, 5 } } })
add('mean', 'mean', function(x) return x:mean(2) end)
add('var', 'var', function(x) return x:var(2) end)
add('var_biased', 'var', function(x) return x:var({ 1, 3 }, { unbiased = false }) end,
    { empty = { { 3, 0, 5 } } })
add('std', 'std', function(x) return x:std() end)
add('std_dims', 'std', function(x) return x:std({ 1, 3 }, { keepdim = true }) end,
    { empty = { { 3, 0, 5 } } })
add('max', 'max', function(x) return (x:max(2)) end)
add('min', 'min', function(x) return x:min() end, { empty = false })
add('min_dim', 'min', function(x) return x:min(3) end)
add('argmax', 'argmax', function(x) return x:argmax(3) end, { without = integers })
add('argmin', 'argmin', function(x) return x:argmin(2) end, { without = integers })
add('logsumexp', 'logsumexp', function(x) return x:logsumexp(3) end)
add('logsumexp_dims', 'logsumexp', function(x) return x:logsumexp { 1, 3 } end)
add('softmax', 'softmax', function(x) return x:softmax(2) end)
add('log_softmax', 'log_softmax', function(x) return x:log_softmax(3) end, { loose = 1 })
add('cumsum', 'cumsum', function(x) return x:cumsum(2) end)
add('sort', 'sort', function(x) return x:sort(3, { descending = true }) end)
add('topk', 'topk', function(x) return x:topk(3, 3) end)
add('norm', 'norm', function(x) return x:norm() end)

-- ---- other dims, kept dims, one dim, one element ----

local function x(shape, k) return { shape = shape, k = k or 0.3, scale = 2 } end

for _, name in ipairs { 'sum', 'mean', 'logsumexp' } do
  add(name .. ': all, kept', name, function(a) return F[name](a, nil, { keepdim = true }) end,
      { inputs = { x { 3, 4, 5 } }, empty = false })
  add(name .. ': first, kept', name, function(a) return F[name](a, 1, { keepdim = true }) end,
      { inputs = { x { 3, 4, 5 } }, empty = { { 3, 0, 5 } } })
  add(name .. ': last two', name, function(a) return F[name](a, { -1, 2 }) end,
      { inputs = { x { 3, 4, 5 } } })
  add(name .. ': one element', name, function(a) return F[name](a, 1) end,
      { inputs = { x { 1 } }, large = { { 50021 } }, empty = false })
end
for _, name in ipairs { 'max', 'min' } do
  add(name .. ': all', name, function(a) return F[name](a) end,
      { inputs = { x { 3, 4, 5 } }, empty = false })
  add(name .. ': first, kept', name, function(a) return F[name](a, 1, { keepdim = true }) end,
      { inputs = { x { 3, 4, 5 } }, empty = { { 3, 0, 5 } } })
end
for _, name in ipairs { 'softmax', 'log_softmax', 'cumsum' } do
  local loose = name ~= 'log_softmax' and 4 or 1
  add(name .. ': first', name, function(a) return F[name](a, 1) end,
      { inputs = { x { 3, 4, 5 } }, loose = loose })
  add(name .. ': one dim', name, function(a) return F[name](a) end,
      { inputs = { x { 7 } }, loose = loose, large = { { 50021 } }, empty = { { 0 } } })
end
add('log_softmax: far apart', 'log_softmax', function(a) return a:log_softmax(2) end,
    { inputs = { { shape = { 5, 9 }, k = 0.3, scale = 20 } }, large = { { 19, 259 } },
      empty = { { 0, 3 } }, loose = 1 })
add('sort: first', 'sort', function(a) return a:sort(1) end, { inputs = { x { 5, 3 } },
    large = { { 193, 259 } }, empty = { { 0, 3 } } })
add('topk: smallest of the first', 'topk', function(a) return a:topk(2, 1, { largest = false }) end,
    { inputs = { x { 5, 3 } }, large = { { 193, 259 } }, empty = { { 5, 0 } } })
add('topk: all', 'topk', function(a) return a:topk(5) end,
    { inputs = { x { 3, 5 } }, large = { { 10007, 5 } }, empty = { { 0, 5 } } })

return cases
