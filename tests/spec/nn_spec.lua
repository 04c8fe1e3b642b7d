-- nn_spec.lua - modules: order of parameters, scopes of calls, initial weights.
local ul = require 'ulysses'
local nn, F = ul.nn, ul.F

local Pair = nn.class 'Pair'
function Pair:init(dim)
  self.second = nn.Linear(dim, 3, { bias = true })
  self.first = nn.Linear(dim, 2)
end
function Pair:forward(x) return self.first(x), self.second(x) end

local function names(module)
  local list = {}
  for name in module:named_parameters() do list[#list + 1] = name end
  return list
end

describe('nn', function()
  it('lists parameters in the order of assignment', function()
    assert.same({ 'second.weight', 'second.bias', 'first.weight' }, names(Pair(4)))
    assert.equal(4 * 3 + 3 + 4 * 2, Pair(4):n_parameters())
  end)

  it('takes from its parent what a class does not define', function()
    local Swapped = nn.class('Swapped', Pair)
    function Swapped:forward(x)
      local first, second = Pair.forward(self, x)
      return second, first
    end
    local swapped, x = Swapped(4), ul.randn(1, 4)
    assert.same({ 'second.weight', 'second.bias', 'first.weight' }, names(swapped))
    assert.same({ 1, 3 }, { swapped(x):size() })
    assert.matches('^Swapped  %(23%)', tostring(swapped))
    assert.equal('Pair', Pair(4).class_name)
    assert.error_matches(function() nn.class('Odd', swapped) end,
                         "nn.class 'Odd': the parent is no class")
  end)

  it('numbers the modules of a list', function()
    local list = nn.List { nn.Linear(2, 3), nn.RMSNorm(3) }
    list:append(nn.Linear(3, 1))
    assert.equal(3, #list)
    assert.same({ '1.weight', '2.weight', '3.weight' }, names(list))
    assert.same({ 5, 1 }, { list(ul.randn(5, 2)):size() })
  end)

  it('keeps what a field is replaced by in its place', function()
    local pair = Pair(4)
    pair.second = nn.RMSNorm(4)
    assert.same({ 'second.weight', 'first.weight' }, names(pair))
    pair.second = nil
    assert.same({ 'first.weight' }, names(pair))
  end)

  it('lists tied weights once and casts them as one', function()
    local Tied = nn.class 'Tied'
    function Tied:init()
      self.embed = nn.Embedding(5, 4)
      self.head = nn.Linear(4, 5)
      self.head.weight = self.embed.weight
    end
    local tied = Tied()
    assert.same({ 'embed.weight' }, names(tied))
    tied:to 'bf16'
    assert.same({ 'embed.weight' }, names(tied))
    assert.equal('bf16', tied.head.weight:dtype())
    assert.is_true(tied.head.weight.requires_grad)
  end)

  it('refuses modules in a plain table', function()
    local Hidden = nn.class 'Hidden'
    function Hidden:init() self.blocks = { nn.Linear(2, 2) } end
    assert.error_matches(function() Hidden():parameters() end,
                         'Hidden.blocks is a plain table that holds modules')
  end)

  it('frees what a call neither returns nor keeps', function()
    local inner
    local Leaky = nn.class 'Leaky'
    function Leaky:forward(x)
      inner = x + 1
      return inner * 2
    end
    assert.near({ 4, 6 }, Leaky()(ul.tensor { 1, 2 }))
    assert.error_matches(function() return inner + 1 end, 'freed at the end of Leaky')
  end)

  it('keeps tensors that a call stores in the module, each time', function()
    local Store = nn.class 'Store'
    function Store:forward(x)
      self.seen = x + 1
      return x
    end
    local store = Store()
    for i = 1, 2 do
      store(ul.tensor { i })
      assert.near({ i + 1 }, store.seen)
    end
    assert.same({}, names(store))
  end)

  it('draws the same weights for a name, whatever else there is', function()
    local small, big = nn.List { nn.Linear(3, 4) }, nn.List { nn.Linear(3, 4), nn.Linear(4, 2) }
    ul.manual_seed(5)
    small:init_weights { seed = 7 }
    ul.manual_seed(6)
    big:init_weights { seed = 7 }
    assert.same(small[1].weight:tolist(), big[1].weight:tolist())
    big:init_weights { seed = 8 }
    assert.not_same(small[1].weight:tolist(), big[1].weight:tolist())
  end)

  it('leaves the generator where it was when it draws weights', function()
    ul.manual_seed(3)
    local expected = ul.randn(2):tolist()
    ul.manual_seed(3)
    Pair(4):init_weights { seed = 7 }
    ul.manual_seed(3)
    local pair = Pair(4)
    ul.manual_seed(3)
    pair:init_weights { seed = 9 }
    assert.same(expected, ul.randn(2):tolist())
  end)

  it('starts norms at one and biases at zero', function()
    local norm = nn.LayerNorm(2):init_weights { seed = 1 }
    assert.same({ { 1, 1 }, { 0, 0 } }, { norm.weight:tolist(), norm.bias:tolist() })
    assert.same({ 0, 0 }, nn.Linear(3, 2, { bias = true }).bias:tolist())
  end)

  it('computes what the functions do', function()
    local x = ul.randn(2, 3)
    local linear, norm, layer = nn.Linear(3, 4, { bias = true }), nn.RMSNorm(3), nn.LayerNorm(3)
    assert.near(F.linear(x, linear.weight, linear.bias), linear(x))
    assert.near(F.rms_norm(x, norm.weight, 1e-5), norm(x))
    assert.near(F.layer_norm(x, layer.weight, layer.bias, 1e-5), layer(x))
    local y, h = norm(x, x)
    assert.near(x + x, h)
    assert.near(F.rms_norm(x + x, norm.weight, 1e-5), y)
    local embedding = nn.Embedding(5, 3)
    assert.near(embedding.weight:tolist()[3], embedding(ul.tensor({ 2 }, { dtype = 'i64' }))[1])
  end)

  it('prints as a tree #cpu', function() -- a model elsewhere says where
    assert.equal('Pair  (23)\n  second: Linear 4 -> 3  (15)\n  first: Linear 4 -> 2  (8)',
                 tostring(Pair(4)))
  end)

  it('suggests the option that was meant, at the line of the caller', function()
    local _, message = pcall(function() nn.Linear(2, 2, { biass = true }) end)
    assert.matches("^tests/spec/nn_spec.lua:%d+: nn.Linear: no option 'biass'; "
                   .. "did you mean 'bias'", message)
    assert.error_matches(function() nn.RMSNorm(2, { eps = '1' }) end, 'eps must be a number')
  end)
end)
