-- elementwise.lua - cases of arithmetic, comparisons, functions of one tensor, changes in place.
local ul = require 'ulysses'
local F = ul.F
local cases = {}

local wide, row, column, none, no_row = { 193, 259 }, { 259 }, { 193, 1 }, { 0, 5 }, { 5 }
local integers = { gradcheck = 'integers' }
local in_place = { gradcheck = 'in_place' }

local function add(case) cases[#cases + 1] = case end

-- ---- two tensors ----

local pairs_of = {
  add = { wide, row }, sub = { column, row }, mul = { wide, row }, div = { wide, row },
  pow = { wide, row }, maximum = { wide, wide }, minimum = { wide, row }, swiglu = { wide, wide },
}
local empty_of = { sub = { { 0, 1 }, no_row }, maximum = { none, none }, swiglu = { none, none } }
for _, name in ipairs { 'add', 'sub', 'mul', 'div', 'pow', 'maximum', 'minimum', 'swiglu' } do
  -- bf16: the gradient of the row sums 193 products, each rounded.
  add { name = name, call = F[name], large = pairs_of[name], loose = 4,
        empty = empty_of[name] or { none, no_row } }
end
for _, name in ipairs { 'eq', 'ne', 'lt', 'le', 'gt', 'ge' } do
  add { name = name, call = F[name], large = { wide, wide }, empty = { none, none },
        without = integers }
end
add { name = 'where', large = { { 259, below = 2 }, wide, row },
      empty = { { 5, below = 2 }, none, no_row },
      call = function(c, a, b) return F.where(c:to 'u8', a, b) end }
add { name = 'masked_fill', large = { wide, { 259, below = 2 } },
      empty = { none, { 5, below = 2 } },
      call = function(x, mask) return x:masked_fill(mask:to 'u8', -2) end }
add { name = 'scalars', op = 'add', large = { wide }, empty = { none },
      call = function(x) return 3 - 2 * x / 4 + 1 / x + x ^ 2 + 0.5 ^ x end }

-- ---- one tensor ----

local names = {
  'neg', 'abs', 'exp', 'log', 'sqrt', 'rsqrt', 'sin', 'cos', 'tanh', 'sigmoid', 'silu', 'relu',
  'gelu', 'square',
}
for _, name in ipairs(names) do
  add { name = name, call = F[name], large = { wide }, empty = { none } }
end
add { name = 'gelu_tanh', op = 'gelu', large = { wide }, empty = { none },
      call = function(x) return F.gelu(x, { approximate = 'tanh' }) end }
add { name = 'clamp', large = { wide }, empty = { none },
      call = function(x) return x:clamp(-0.5, 0.25) end }
add { name = 'clamp_below', op = 'clamp', large = { wide }, empty = { none },
      inputs = { { shape = { 3, 5 }, k = 0.2 } },
      call = function(x) return x:clamp { min = -0.5 } end }

-- ---- shapes of the operands ----

local function x(shape, k) return { shape = shape, k = k, offset = 2 } end

for _, name in ipairs { 'add', 'sub', 'mul', 'div', 'pow', 'maximum', 'minimum', 'swiglu' } do
  add { name = name .. ': outer', op = name, call = F[name],
        inputs = { x({ 3, 1, 2 }, 0.1), x({ 1, 4, 1 }, 2) },
        large = { { 41, 1, 37 }, { 1, 35, 1 } }, empty = { { 0, 1, 2 }, { 1, 4, 1 } } }
  add { name = name .. ': no dims', op = name, call = F[name],
        inputs = { x({}, 0.1), x({ 2, 3 }, 2) }, large = { {}, wide } }
  add { name = name .. ': twice the same', op = name,
        inputs = { x({ 2, 3 }, 0.1) }, large = { wide },
        without = (name == 'maximum' or name == 'minimum') and { gradcheck = 'kink' } or nil,
        call = function(a) return F[name](a, a) end }
end
add { name = 'where: broadcast', op = 'where',
      inputs = { { shape = { 3, 1 }, below = 2 }, x({ 1, 4 }, 1), x({ 2, 1, 1 }, 2) },
      large = { { 193, 1, below = 2 }, { 1, 259 }, { 2, 1, 1 } },
      call = function(c, a, b) return F.where(c:to 'u8', a, b) end }

-- ---- in place ----

for _, name in ipairs { 'add_', 'sub_', 'mul_', 'div_', 'copy_' } do
  add { name = name, large = { wide, row }, empty = { none, no_row }, without = in_place,
        call = function(a, b) return a:clone()[name](a:clone(), b) end }
end
add { name = 'fill_', large = { wide }, empty = { none }, without = in_place,
      call = function(a) return a:clone():fill_(1.5) end }
add { name = 'zero_', large = { wide }, empty = { none }, without = in_place,
      call = function(a) return a:clone():zero_() end }

return cases
