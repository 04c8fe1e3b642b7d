-- views.lua - cases of other shapes and dtypes, parts, joins and picks.
local ul = require 'ulysses'
local F = ul.F
local cases = {}

local wide, none = { 17, 31, 97 }, { 0, 4, 5 }

local function add(name, op, call, more)
  local case = more or {}
  case.name, case.op, case.call = name, op, call
  case.large = case.large or { wide }
  if case.empty == nil then case.empty = { none } end
  cases[#cases + 1] = case
end

-- Shapes that hold for any size of x.
local function view(x) return x:view(x:size(1) * x:size(2), x:size(3)) end

add('reshape', 'reshape',
    function(x) return x:permute(3, 1, 2):reshape(x:size(3), x:size(1) * x:size(2)) end)
add('view', 'view', function(x) return view(x) * view(x) end, { strided = false })
add('permute', 'permute', function(x) return x:permute(3, 1, 2) * 2 end)
add('transpose', 'transpose', function(x) return x:transpose(1, 3) * 2 end)
add('select', 'select', function(x) return x:select(2, 3) * 3 end)
add('slice', 'index', function(x) return x[{ {}, { 2, 4, 2 }, { 3, -1 } }] * 3 end)
add('expand', 'expand', function(x) return x:expand(2, x:size(1), 4, 5) * 1.5 end,
    { large = { { 1237, 1, 5 } }, empty = { { 0, 1, 5 } } })
add('unsqueeze', 'unsqueeze', function(x) return x:unsqueeze(2) * 2 end)
add('squeeze', 'squeeze', function(x) return x:squeeze(2) * 2 end,
    { large = { { 193, 1, 259 } }, empty = { { 0, 1, 5 } } })
add('flatten', 'flatten', function(x) return x:flatten() * 2 end)
add('t', 't', function(x) return x:t() * 2 end, { large = { { 193, 259 } }, empty = { { 0, 5 } } })
add('narrow', 'narrow', function(x) return x:narrow(3, 2, 3) * 2 end)

local function twice(...)
  local list = { ... }
  for i, y in ipairs(list) do list[i] = y * 2 end
  return unpack(list)
end

add('split', 'split', function(x) return twice(x:split({ 3, x:size(3) - 3 }, 3)) end)
add('chunk', 'chunk', function(x) return twice(x:chunk(2, 3)) end)
add('cat', 'cat', function(...) return ul.cat({ ... }, 2) end,
    { large = { { 193, 101 }, { 193, 1 }, { 193, 157 } },
      empty = { { 2, 0 }, { 2, 0 }, { 2, 0 } } })
add('stack', 'stack', function(...) return ul.stack({ ... }, 2) end,
    { large = { { 193, 129 }, { 193, 129 } }, empty = { { 0, 3 }, { 0, 3 } } })
add('gather', 'gather', function(x, i) return x:gather(2, i) end,
    { large = { wide, { 17, 31, 97, below = 31 } }, empty = { none, { 0, 2, 5, below = 4 } } })
add('index_select', 'index_select', function(x, i) return x:index_select(1, i) end,
    { large = { wide, { 43, below = 17 } }, empty = { { 3, 4, 0 }, { 2, below = 3 } } })
add('clone', 'clone', function(x) return x:clone() * 2 end)
add('contiguous', 'contiguous', function(x) return x:transpose(1, 2):contiguous() * 2 end)
add('cast', 'to', function(x) return x:to('f32'):to(x) end,
    { without = { gradcheck = 'rounded' } })
add('to_integers', 'to', function(x) return x:to 'i32', x:to 'i64' end,
    { without = { gradcheck = 'integers' }, large = { { 193, 259 } }, empty = { { 0, 5 } } })
add('detach', 'detach', function(x) return x:detach() end,
    { without = { gradcheck = 'detached' }, large = { { 193, 259 } }, empty = { { 0, 5 } } })

-- ---- other forms ----

local function x(shape, k) return { shape = shape, k = k or 0.3, scale = 2 } end

add('index: strings and steps', 'index', function(a) return a['2, 1:3:2, ...'], a[-1] end,
    { inputs = { x { 3, 4, 5 } }, empty = { { 3, 4, 0 } } })
add('index: an element', 'index', function(a) return a[{ 2, 3 }] * 2 end,
    { inputs = { x { 3, 4 } }, large = { { 193, 259 } }, empty = false })
add('expand: new dims', 'expand', function(a) return a:expand(2, 3, -1) * 1.5 end,
    { inputs = { x { 4 } }, large = { { 25013 } }, empty = { { 0 } } })
add('squeeze: all', 'squeeze', function(a) return a:squeeze() * 2 end,
    { inputs = { x { 1, 3, 1 } }, large = { { 1, 50021, 1 } }, empty = { { 1, 0, 1 } },
      strided = false })
add('cat: twice the same', 'cat', function(a) return ul.cat({ a, a, a:t():contiguous():t() }) end,
    { inputs = { x { 2, 3 } }, large = { { 129, 131 } }, empty = { { 0, 3 } } })
add('split: equal parts, one left out', 'split',
    function(a)
      local first, _, last = a:split(math.ceil(a:size(1) / 3))
      return first * 2, last * 3
    end, { inputs = { x { 5, 2 } }, large = { { 193, 259 } }, empty = { { 5, 0 } } })
add('index_select: each many times', 'index_select',
    function(a, i) return a:index_select(-1, i) end,
    { inputs = { x { 3, 4 }, { shape = { 6 }, ids = { 1, 1, 3, 1, 0, 3 } } },
      large = { { 193, 19 }, { 259, below = 19 } }, empty = { { 0, 4 }, { 6, below = 4 } } })
add('gather: shorter index', 'gather', function(a, i) return F.gather(a, -1, i) end,
    { inputs = { x { 3, 4 }, { shape = { 3, 1 }, ids = { 3, 0, 3 } } },
      large = { { 20011, 4 }, { 20011, 3, below = 4 } },
      empty = { { 0, 4 }, { 0, 3, below = 4 } } })

return cases
