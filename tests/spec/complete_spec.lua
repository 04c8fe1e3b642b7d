-- complete_spec.lua - which names may follow at the end of a line.
local ul = require 'ulysses'
local complete = require 'ulysses.complete'

describe('complete', function()
  local touched
  local Point = { __index = { length = function() end, name = 'point' } }
  local environment = setmetatable({
    ul = ul, x = ul.zeros(2, 3), text = 'abc', n = 5, print = print, _private = 1,
    cfg = { model = { dim = 1, n_layers = 2, ['odd key'] = 3, ['end'] = 4 }, lr = 1 },
    point = setmetatable({ x = 1 }, Point),
    circle = setmetatable({}, {}),
    lazy = setmetatable({}, { __index = function() touched = true end }),
    call = function() touched = true end,
  }, { __index = { print = print, pairs = pairs, string = string, io = io } })
  getmetatable(environment.circle).__index = environment.circle

  local function names(line) return table.concat(select(2, complete(line, environment)), ' ') end
  local function has(line, name)
    assert.truthy((' ' .. names(line) .. ' '):find(' ' .. name .. ' ', 1, true),
                  ('%s: no %s in %s'):format(line, name, names(line)))
  end
  local function lacks(line, name)
    assert.falsy((' ' .. names(line) .. ' '):find(' ' .. name .. ' ', 1, true), line)
  end

  it('says where the word begins', function()
    assert.same({ 1, { 'print' } }, { complete('pri', environment) })
    assert.same({ 15, { 'dim' } }, { complete('y = cfg.model.d', environment) })
    assert.equal(7, (complete('point:', environment)))
    assert.equal(1, (complete('', environment)))
  end)

  it('lists globals, and keywords where a word has begun', function()
    assert.equal('pairs point print', names 'p')
    assert.equal('function', names 'x = fun')
    assert.equal('end', names 'if x then y() en')
    has('', 'cfg')
    lacks('', 'while')
    has('print(', 'cfg')
    has('?', 'cfg')
    assert.equal('', names 'nothing_like_it')
  end)

  it('follows fields and literal indices', function()
    assert.equal('lr model', names 'cfg.')
    assert.equal('dim n_layers', names 'cfg.model.')
    assert.equal('n_layers', names 'print(1 + cfg.model.n_')
    assert.equal('n_layers', names "cfg['model'].n_")
    assert.equal('n_layers', names 'cfg [ "model" ] . n_')
    assert.equal('n_layers', names '(cfg.model).n_')
    assert.equal('', names 'cfg.nothing.')
    assert.equal('', names 'cfg.lr.')
    assert.equal('', names 'nothing.')
  end)

  it('completes keys in brackets', function()
    assert.same({ 6, { 'lr' } }, { complete("cfg['l", environment) })
    assert.equal('dim end n_layers odd key', names 'cfg.model["')
    assert.equal('', names "x['1:")
  end)

  it('offers what can be called after a colon', function()
    assert.equal('length', names 'point:')
    assert.equal('length name x', names 'point.')
    has('text:', 'upper')
    has("('abc'):", 'rep')
    has('io.stdout:', 'write')
    assert.equal('', names 'cfg:')
  end)

  it('knows tensors', function()
    assert.equal('masked_fill matmul max maximum', names 'x:ma')
    assert.equal('requires_grad requires_grad_', names 'x.req')
    has('x.', 'shape')
    lacks('x:', 'shape')
    has('x[1]:', 'sum')
    has('x.grad:', 'sum')
  end)

  it('lists the parts of the library and loads only what it goes through', function()
    local before = package.loaded['ulysses.gradcheck']
    has('ul.', 'nn')
    has('ul.', 'recipe')
    has('ul.', 'randn')
    has('ul.nn.', 'Linear')
    has('ul.F.', 'rope')
    assert.equal('Linear List', names 'ul.nn.Li')
    assert.equal(before, package.loaded['ulysses.gradcheck'])
  end)

  it('lists fields and methods of modules, of optimizers and the like', function()
    local nn = ul.nn
    local Net = nn.class 'Net'
    function Net:init()
      self.size, self.first, self.layers = 4, nn.Linear(4, 4), nn.List { nn.Linear(4, 4) }
      self.gone = 1
      self.gone = nil
    end
    function Net.forward(_, x) return x end
    environment.net, environment.Net = Net(), Net
    environment.optim = ul.optim.sgd(environment.net)
    has('net.', 'first')
    has('net.', 'size')
    has('net.', 'forward')
    lacks('net.', 'gone')
    assert.equal('named_buffers named_modules named_parameters', names 'net:na')
    has('net:', 'first')
    lacks('net:', 'size')
    has('net.first.', 'weight')
    has('net.first.weight:', 'matmul')
    has('net.layers[1].', 'weight')
    has('net.layers[1]:', 'parameters')
    has('Net:', 'init')
    has('optim:', 'step')
    has('optim.', 'lr')
  end)

  it('runs nothing', function()
    for _, line in ipairs { 'lazy.', 'lazy.a.', 'lazy:', 'call().', 'call "x":', 'call{}.',
                            'x:sum():', 'circle.a.', '(call()).', 'cfg[call()].' } do
      complete(line, environment)
    end
    assert.is_nil(touched)
  end)

  it('does not complete in strings, comments and numbers', function()
    for _, line in ipairs { "print('cfg.", 'x = "pri', '-- pri', '--[[ pri', '[[cfg.',
                            '[=[ ]] cfg.', '12', '1.', 'a .. 0x', [['a\' .. cfg.]] } do
      assert.equal('', names(line), line)
    end
    assert.equal('print', names '"a\\"" .. pri')
    assert.equal('print', names '--[[ ]] pri')
    has('text .. cfg.', 'lr')
    has('text..cfg.', 'lr')
    assert.equal('print', names 'text..pri')
  end)

  it('never raises an error', function()
    for _, line in ipairs { '.', ':', '..', '...', ']', ')', '}.', '[', '].', ').', '(', '().',
                            'a.b:c.', 'end.', 'x:y:', '\'', '"', '[[', '\\', '\1', ']]', 'x[[',
                            "cfg['a'", '"".', 'cfg[].', '({}).', '=x', '?x.', ('a.'):rep(1000),
                            ('('):rep(1000) } do
      local start, list = complete(line, environment)
      assert.equal('number', type(start))
      assert.equal('table', type(list))
    end
    assert.equal('table', type(select(2, complete 'prin')))
  end)
end)
