-- nn_state_spec.lua - modules as trees: freezing, casting, buffers, loading; what a call keeps.
local ul = require 'ulysses'
local nn = ul.nn

local Block = nn.class 'Block'
function Block:init()
  self.norm = nn.RMSNorm(2)
  self.linear = nn.Linear(2, 2, { bias = true })
end
function Block:forward(x) return self.linear(self.norm(x)) end

local Model = nn.class 'Model'
function Model:init(n)
  self.embed = nn.Embedding(3, 2)
  self.layers = nn.List()
  for _ = 1, n or 2 do self.layers:append(Block()) end
  self.head = self.embed
  self.table = ul.ones(2)
end
function Model:forward(ids) return self.layers(self.embed(ids)) end

local function names(iterator)
  local list = {}
  for name in iterator do list[#list + 1] = name end
  return list
end

local function raised(f, ...)
  local arguments = { ... }
  local ok, message = pcall(function() f(unpack(arguments)) end)
  assert.is_false(ok)
  assert.matches('^tests/spec/nn_state_spec.lua:%d+: ', message)
  return (message:gsub('^.-: ', ''))
end

local ids = ul.tensor({ { 0, 1 } }, { dtype = 'i64' })

describe('a tree of modules', function()
  it('is walked in order, each module once', function()
    local model = Model(1)
    assert.same({ '', 'embed', 'layers', 'layers.1', 'layers.1.norm', 'layers.1.linear' },
                names(model:named_modules()))
    assert.same({ 'embed', 'layers', 'head' }, names(model:children()))
    local seen = {}
    assert.equal(model, model:apply(function(module, name) seen[name] = module.class_name end))
    assert.same({ [''] = 'Model', embed = 'Embedding', layers = 'List', ['layers.1'] = 'Block',
                  ['layers.1.norm'] = 'RMSNorm', ['layers.1.linear'] = 'Linear' }, seen)
  end)

  it('may know the way back #cpu', function() -- a model elsewhere says where
    local model = Model(1)
    model.layers[1].up = model
    assert.equal(4, #model:parameters())
    assert.equal('Model  (14)\n  embed: Embedding 3 x 2  (6)\n  layers: List of 1  (14)\n'
                 .. '    1: Block  (14)\n      norm: RMSNorm 2  (2)\n'
                 .. '      linear: Linear 2 -> 2  (6)\n      up: is the whole\n'
                 .. '  head: is embed\n  table: [2] buffer', tostring(model))
  end)

  it('says whether it trains', function()
    local model = Model()
    assert.is_true(model.layers[2].norm.training)
    assert.equal(model, model:eval())
    assert.is_false(model.layers[2].norm.training)
    assert.is_true(model:train().layers[1].training)
    assert.equal(7, #model:parameters())
  end)

  it('refuses names that are methods, and modules without forward', function()
    local Wrong = nn.class 'Wrong'
    function Wrong:init() self.parameters = nn.List() end
    assert.equal('Wrong.parameters: modules have a method of this name; choose another',
                 raised(Wrong))
    local Silent = nn.class 'Silent'
    assert.equal('Silent: the class has no forward', raised(Silent(), 1))
  end)

  it('refuses parameters in a plain table, not results', function()
    local Hidden = nn.class 'Hidden'
    function Hidden:init() self.weights = { nn.parameter(2) } end
    assert.equal('Hidden.weights is a plain table that holds parameters, which nobody would find; '
                 .. 'use nn.List or fields of their own',
                 raised(function() Hidden():parameters() end))
    local model = Model(1)
    model.seen = { model.embed.weight * 2 }
    assert.equal(4, #model:parameters())
  end)

  it('has classes that inherit', function()
    local Wide = nn.class('Wide', Block)
    function Wide:init()
      Block.init(self)
      self.more = nn.Linear(2, 1)
    end
    function Wide:forward(x) return self.more(Block.forward(self, x)) end
    local wide = Wide()
    assert.same({ 'norm.weight', 'linear.weight', 'linear.bias', 'more.weight' },
                names(wide:named_parameters()))
    assert.same({ 4, 1 }, { wide(ul.randn(4, 2)):size() })
    assert.matches('^Wide', tostring(wide))
  end)
end)

describe('tensors of a module', function()
  it('are buffers where no gradient is wanted, or has only passed', function()
    local model = Model(1)
    assert.same({ 'table' }, names(model:named_buffers()))
    local Store = nn.class 'Store'
    function Store:init() self.weight = nn.parameter(2) end
    function Store:forward(x)
      self.seen = x * self.weight
      return self.seen
    end
    local store = Store()
    store(ul.ones(2)):sum():backward()
    assert.is_true(store.seen.requires_grad)
    assert.same({ 'weight' }, names(store:named_parameters()))
    assert.same({ 'seen' }, names(store:named_buffers()))
    store.weight = nil
    store.weight = ul.ones(2)
    assert.same({}, names(store:named_parameters()))
  end)

  it('begin as zeros, or as the values of a tensor', function()
    assert.same({ { 0, 0 } }, nn.parameter(1, 2):tolist())
    local values = ul.ones(2)
    local p = nn.parameter(values)
    assert.is_true(p.requires_grad)
    assert.is_false(values.requires_grad)
    assert.same({ 1, 1 }, p:tolist())
  end)

  it('are cast and moved', function()
    local model = Model(1):freeze 'embed'
    model:to { dtype = 'f64' }
    assert.equal('f64', model.layers[1].linear.bias:dtype())
    assert.equal('f32', model.table:dtype())
    assert.is_false(model.head.weight.requires_grad)
    assert.is_true(model.layers[1].linear.bias.requires_grad)
    assert.equal(4, #model:parameters())
    model:to { dtype = 'bf16', device = 'meta' }
    assert.same({ 'meta', 'meta', 'bf16' }, { model.table:device(), model.embed.weight:device(),
                                              model.embed.weight:dtype() })
    assert.equal('cpu', Model(1):to('cpu').table:device())
    assert.equal('to: parameters are f32, bf16 or f64, not i64', raised(model.to, model, 'i64'))
    assert.equal('to: parameters are f32, bf16 or f64, not f16', raised(model.to, model, 'f16'))
    assert.equal("to: no option 'dtpe'; did you mean 'dtype'?",
                 raised(model.to, model, { dtpe = 'f32' }))
  end)

  it('outlive a call when they are kept or returned, however deep', function()
    local held, plain = nil, {}
    local Many = nn.class 'Many'
    function Many:init() self.cache = {} end
    function Many:forward(x)
      held = (x + 1):keep()
      self.cache[1] = (x + 2):keep()
      plain[1] = x + 3
      return { a = x + 4, { b = { x + 5 } } }, x + 6
    end
    local many = Many()
    local tree, last = many(ul.zeros(1))
    assert.same({ 1, 2, 4, 5, 6 }, { held:item(), many.cache[1]:item(), tree.a:item(),
                                     tree[1].b[1]:item(), last:item() })
    assert.error_matches(function() return plain[1] + 1 end,
                         'freed at the end of Many %(.*nn_state_spec.lua:%d+%); return it or call '
                         .. ':keep%(%)')
  end)
end)

describe('frozen parameters', function()
  it('get no gradient and do not move, but are named and counted', function()
    local model = Model(1):init_weights { seed = 1 }
    assert.equal(model, model:freeze 'embed')
    assert.same({ 'embed.weight', 'layers.1.norm.weight', 'layers.1.linear.weight',
                  'layers.1.linear.bias' }, names(model:named_parameters()))
    local before = model.embed.weight:tolist()
    local optim = ul.optim.adamw(model, { lr = 0.1 })
    for _ = 1, 2 do
      model(ids):square():sum():backward()
      assert.is_nil(model.embed.weight.grad)
      optim:step()
    end
    assert.same(before, model.embed.weight:tolist())
    for name in optim:named_state() do assert.not_matches('^embed', name) end
    assert.matches('embed: Embedding 3 x 2  %(6, frozen%)', tostring(model))
    assert.matches('^Model  %(14, 6 frozen%)', tostring(model))
    model:unfreeze()
    model(ids):square():sum():backward()
    assert.is_table(model.embed.weight.grad.shape)
    optim:step()
    assert.not_same(before, model.embed.weight:tolist())
  end)

  it('drop the gradient they had', function()
    local model = Model(1)
    model(ids):sum():backward()
    model:freeze()
    for _, parameter in ipairs(model:parameters()) do
      assert.is_nil(parameter.grad)
      assert.is_false(parameter.requires_grad)
    end
    ul.optim.sgd(model):zero_grad()
  end)

  it('are named by parts of their names', function()
    local model = Model(2)
    local function trained()
      local list = {}
      for name, parameter in model:named_parameters() do
        if parameter.requires_grad then list[#list + 1] = name end
      end
      return list
    end
    model:freeze():unfreeze('layers.*.linear'):freeze 'layers.2'
    assert.same({ 'layers.1.linear.weight', 'layers.1.linear.bias' }, trained())
    assert.equal("freeze: 'layer' matches no parameter of Model; did you mean 'layers'?",
                 raised(model.freeze, model, 'layer'))
  end)
end)

describe('the state of a module', function()
  local function state_of(model)
    local copy = {}
    for name, tensor in pairs(model:state()) do copy[name] = tensor:detach():to 'f64' end
    return copy
  end

  it('goes into another by name', function()
    local a = Model(1):init_weights({ seed = 1 }):freeze 'embed'
    local b = Model(1):init_weights { seed = 2 }
    local state = state_of(a)
    assert.equal(b, b:load(state))
    for name, tensor in a:named_parameters() do
      assert.same(tensor:tolist(), b:state()[name]:tolist())
    end
    assert.is_true(b.embed.weight.requires_grad)
    assert.equal('f32', b.embed.weight:dtype())
  end)

  it('must fit, or nothing is changed', function()
    local model = Model(1):init_weights { seed = 1 }
    local before = model:state()['embed.weight']:tolist()
    local function wrong(change)
      local state = state_of(Model(1):init_weights { seed = 2 })
      change(state)
      local sentence = raised(model.load, model, state)
      assert.same(before, model:state()['embed.weight']:tolist())
      return sentence
    end
    assert.equal("load: nothing is given for 'layers.1.linear.bias' of Model",
                 wrong(function(state) state['layers.1.linear.bias'] = nil end))
    assert.equal("load: Model has no parameter 'embed.wieght' and 1 more; did you mean "
                 .. "'embed.weight'?", wrong(function(state)
      state['embed.wieght'], state['zzzz'] = state['embed.weight'], state['embed.weight']
    end))
    assert.equal("load: 'layers.1.linear.bias' is [3], the parameter is [2]",
                 wrong(function(state) state['layers.1.linear.bias'] = ul.ones(3) end))
    assert.equal("load: 'layers.1.linear.bias' is a number, not a tensor",
                 wrong(function(state) state['layers.1.linear.bias'] = 3 end))
    assert.equal('load: expected a table of tensors, got a string', raised(model.load, model, 'x'))
  end)

  it('may be a part, where that is asked for', function()
    local model = Model(1):init_weights { seed = 1 }
    local norm = model:state()['layers.1.norm.weight']
    model:load({ ['embed.weight'] = ul.ones(3, 2), other = ul.ones(1) }, { strict = false })
    assert.same({ { 1, 1 }, { 1, 1 }, { 1, 1 } }, model.embed.weight:tolist())
    assert.same({ 1, 1 }, norm:tolist())
    assert.equal('load: none of these tensors has the name of a parameter of Model',
                 raised(model.load, model, { x = norm }, { strict = false }))
  end)
end)

describe('dropout', function()
  it('zeros some and scales the rest, in training alone', function()
    ul.manual_seed(1)
    local dropout, x = nn.Dropout(0.25), ul.ones(100, 100):requires_grad_()
    local y = dropout(x)
    local zeros = y:eq(0):sum():item()
    assert.is_true(zeros > 2200 and zeros < 2800)
    assert.near(4 / 3, y:max():item(), 1e-6)
    y:sum():backward()
    assert.equal(0, (x.grad - y):abs():max():item())
    assert.equal(x, dropout:eval()(x))
    assert.equal(x, nn.Dropout(0)(x))
    assert.equal('nn.Dropout: p must lie from 0 to below 1, got 1', raised(nn.Dropout, 1))
    assert.equal('Dropout 0.25  (0)', tostring(dropout))
  end)

  it('is the same when run again', function()
    local dropout, x = nn.Dropout(0.5), ul.ones(64):requires_grad_()
    local y = ul.recompute(function(t) return dropout(t) end, x)
    y:sum():backward()
    assert.same(y:tolist(), x.grad:tolist())
  end)
end)
