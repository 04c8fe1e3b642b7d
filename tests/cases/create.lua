-- create.lua - cases of what makes tensors: filled, counted, from tables, random.
local ul = require 'ulysses'
local cases = {}

local constant = { gradcheck = 'constant' }
local random = { gradcheck = 'constant', golden = 'random', precision = 'random' }
local filled_later = { gradcheck = 'constant', golden = 'unset', precision = 'unset' }

local function add(name, call, without, fixed)
  cases[#cases + 1] = {
    name = name, call = call, without = without,
    large = not fixed and { { 193, 259 } } or nil, empty = not fixed and { { 0, 3 } } or nil,
    inputs = without ~= constant and { { shape = { 2, 3 } } } or nil,
  }
end

-- The options that make a tensor like x.
local function like(x) return { dtype = x:dtype(), device = x:device() } end

for _, name in ipairs { 'zeros', 'ones' } do
  add(name, function(x) return ul[name](x.shape, like(x)) end, constant)
  add(name .. '_like', ul[name .. '_like'], constant)
end
add('full', function(x) return ul.full(x.shape, 2.5, like(x)) end, constant)
add('arange', function(x)
  return ul.arange(1, 2, 0.3, like(x)), ul.arange(5, { device = x:device() })
end, constant, true)
add('tensor', function(x) return ul.tensor({ { 1, 2.5 }, { -3, 0 } }, like(x)) end, constant, true)

add('empty', function(x) return ul.empty(x.shape, like(x)):fill_(1) end, filled_later)
add('empty_like', function(x) return ul.empty_like(x):fill_(1) end, filled_later)

-- The same numbers at each call.
local function drawn(name, draw)
  add(name, function(x)
    ul.manual_seed(7)
    return draw(x)
  end, random)
end

drawn('rand', function(x) return ul.rand(x.shape, like(x)) end)
drawn('randn', function(x) return ul.randn(x.shape, like(x)) end)
drawn('randint', function(x) return ul.randint(-5, 5, x.shape, like(x)) end)
drawn('rand_like', function(x) return ul.rand_like(x) end)
drawn('randn_like', function(x) return ul.randn_like(x) end)
random = { gradcheck = 'in_place', golden = 'random', precision = 'random' }
drawn('uniform_', function(x) return x:clone():uniform_(-1, 2) end)
drawn('normal_', function(x) return x:clone():normal_(1, 2) end)

return cases
