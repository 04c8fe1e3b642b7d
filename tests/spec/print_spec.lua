-- print_spec.lua - how tensors look where their values are many, odd or not there.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise

describe('print', function()
  local function last_line(x) return tostring(x):match '([^\n]*)$' end

  it('counts what is not finite, and measures the rest', function()
    local x = ul.tensor { 1, 0 / 0, 3, 1 / 0, -1 / 0 }
    assert.equal('(nan: 1) (inf: 2)', last_line(x))
    local big = ul.arange(2000):to 'f32'
    big['1:12'] = 0 / 0
    big[2000] = 1 / 0
    assert.equal('min 12, mean 1005, max 1998 (nan: 12) (inf: 1)', last_line(big))
    assert.equal('(nan: 2000)', last_line(ul.full({ 2000 }, 0 / 0)))
    assert.equal('[1, 2]', last_line(ul.tensor { 1, 2 }))
  end)

  it('measures integers, masks, bf16, views and what comes in parts', function()
    assert.equal('min 0, mean 999.5, max 1999', last_line(ul.arange(2000)))
    assert.equal('min 1, mean 1, max 1', last_line(ul.ones { 2000, dtype = 'u8' }))
    assert.equal('min 1, mean 1, max 1', last_line(ul.ones { 2000, dtype = 'bf16' }))
    local x = ul.arange(600000):view(2, 300000)
    assert.equal('min 0, mean 3e+05, max 6e+05', last_line(x))
    assert.equal(last_line(x), last_line(x:t()))
  end)

  it('measures without a wide copy', function()
    local x = ul.zeros(2 ^ 23)
    ul.reset_peak_memory()
    local before = ul.memory(home).live
    local _ = tostring(x)
    assert.is_true(ul.memory(home).peak - before < 2 ^ 24)
  end)

  it('says what other things are #cpu', function() -- a model elsewhere says where
    local text = ul.data.from { 'some text', 'and more' }
    assert.matches('^2 documents of ', tostring(text))
    assert.equal('1 document of a text', tostring(ul.data.from 'a'))
    assert.equal('2 tokens in 1 document', tostring(ul.data.from('a'):tokenize 'bytes'))
    local corpus = text:tokenize 'bytes'
    assert.equal('19 tokens in 2 documents', tostring(corpus))
    local data = corpus:pack(8):shuffle():batch(2)
    assert.equal('3 rows of 8 tokens, in batches of 2, shuffled', tostring(data))
    assert.matches('^batch %[2, 8%], %d+ labels', tostring(data:at(1)))
    local model = ul.nn.Linear(2, 3)
    local optim = ul.optim.sgd(model)
    assert.equal('sgd of 1 parameter (6 numbers): lr 0.01, momentum 0, weight_decay 0, 0 steps',
                 tostring(optim))
    assert.equal('run at step 0', tostring(ul.run { model = model, optim = optim, data = data }))
    assert.equal("recipe 'mine'\n  lr=0.5\n  model.dim=8\n  name=none",
                 tostring(ul.recipe 'mine' { lr = 0.5, model = { dim = 8 },
                                             name = ul.none 'string' }))
    assert.equal('Linear 2 -> 3  (6)', tostring(model))
  end)

  it('says what an optimizer moves, and how', function()
    local model = ul.nn.Linear(2, 3, { bias = true }):freeze 'bias'
    local optim = ul.optim.adamw(model)
    model(ul.ones(1, 2)):sum():backward()
    optim:step()
    assert.equal('adamw of 2 parameters (9 numbers, 3 frozen): lr 0.001, betas 0.9 0.95, '
                 .. 'weight_decay 0.1, 1 step', tostring(optim))
    optim = ul.optim.adamw(model, { groups = { { match = 'weight', weight_decay = 0.5 } } })
    assert.matches('weight_decay 0.5,', tostring(optim))
  end)

  it('shows the edges of many dims', function()
    local _, lines = tostring(ul.zeros(9, 9, 9, 9)):gsub('\n', '')
    assert.is_true(lines < 300)
    assert.matches('%[0, 0, 0, 0, 0, 0, 0, 0, 0%]', tostring(ul.zeros(9, 9)))
  end)

  it('says what functions are at the prompt', function()
    local show = require 'ulysses.show'
    assert.equal('ul.randn(...) -> Tensor', show(ul.randn))
    assert.equal('x:add_(y) -> x: Tensor', show(ul.ones(1).add_))
    assert.matches('adamw = ul.optim.adamw%(what, options%)', show(ul.optim))
    assert.matches('^function at .*print_spec.lua:%d+$', show(function() end))
    assert.matches('^function: builtin', show(print))
  end)

  it('says what a model is made of #cpu', function() -- one elsewhere says where
    local nn = ul.nn
    local Block = nn.class 'Block'
    function Block:init()
      self.scale = nn.parameter(3)
      self.up = nn.Linear(3, 3)
      self.mask = ul.ones(2, 3)
    end
    local Model = nn.class 'Model'
    function Model:init()
      self.embed = nn.Embedding(5, 3)
      self.layers = nn.List { Block(), Block(), Block() }
      self.gain = self.layers[1].scale
    end
    assert.equal('class Model', tostring(Model))
    local model = Model()
    local block = '      scale: [3]\n      up: Linear 3 -> 3  (9)\n      mask: [2, 3] buffer\n'
    assert.equal('Model  (51)\n  embed: Embedding 5 x 3  (15)\n  layers: List of 3  (36)\n'
                 .. '    1 to 3: Block  (12)\n' .. block .. '  gain: is layers.1.scale',
                 tostring(model))
    model:freeze 'layers.2.scale'
    assert.equal('Model  (51, 3 frozen)\n  embed: Embedding 5 x 3  (15)\n'
                 .. '  layers: List of 3  (36, 3 frozen)\n    1: Block  (12)\n' .. block
                 .. '    2: Block  (12, 3 frozen)\n' .. block:gsub('3%]\n', '3], frozen\n', 1)
                 .. '    3: Block  (12)\n' .. block .. '  gain: is layers.1.scale',
                 tostring(model))
    assert.equal('Linear 2 -> 2  (4)  bf16 meta',
                 tostring(nn.Linear(2, 2):to { dtype = 'bf16', device = 'meta' }))
  end)

  it('says what a tensor without values is', function()
    assert.equal('tensor [0, 3] f32 ' .. home, tostring(ul.zeros(0, 3)))
    assert.equal('tensor [2] i64 meta', tostring(ul.zeros { 2, dtype = 'i64', device = 'meta' }))
    local x = ul.ones(2):requires_grad_()
    assert.equal('tensor [2] f32 ' .. home .. ' requires_grad\n[1, 1]', tostring(x))
    x:free()
    assert.equal('tensor (freed)', tostring(x))
  end)
end)
