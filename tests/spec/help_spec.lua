-- help_spec.lua - ul.help, and that every function of the library has something to say.
local ul = require 'ulysses'
local core = require 'ulysses.core'
local help = require 'ulysses.help'
local models = require 'tests.hf_models'

describe('help', function()
  local index = help.index()

  it('finds a function under all its names', function()
    for _, name in ipairs { 'matmul', 'x:matmul', 'Tensor:matmul', 'F.matmul', 'ul.F.matmul',
                            'anything.at.all:matmul', '?matmul', ' matmul() ' } do
      assert.matches('x:matmul%(b%) %-> Tensor', (assert(help.text(name), name)))
    end
    for _, name in ipairs { 'ul.optim.adamw', 'optim.adamw', 'adamw', 'ulysses.optim.adamw' } do
      assert.matches('ul.optim.adamw%(what, options%)', (assert(help.text(name), name)))
    end
    for _, name in ipairs { 'nn.Linear', 'ul.nn.Linear', 'Linear' } do
      assert.matches('ul.nn.Linear%(inputs, outputs, options%) %-> Linear', (help.text(name)))
    end
    assert.matches('run:steps%(n%)', (help.text 'run:steps'))
    assert.matches('recipe.plain%(cfg%)', (help.text 'Recipe.plain'))
    for _, name in ipairs { 'cosine', 'linear', 'wsd', 'constant' } do
      assert.matches('ul.optim.' .. name .. '%(step, settings%)',
                     (assert(help.text('optim.' .. name))))
    end
    assert.matches('x:size%(dim%) %-> integer%.%.%.$', (help.text 'x:size':match '^[^\n]*'))
    assert.matches('F.rope%(x, table%)', (help.text 'F.rope'))
  end)

  it('says what there is to say', function()
    local text = help.text 'x:max'
    assert.matches('The largest element', text)
    assert.matches('options +KeepOptions%?\n +keepdim +boolean%? +leave', text)
    assert.matches('index +Tensor%? +i64, 0%-based', text)
    assert.matches('local values, index', text)
    assert.matches('Also F.max', text)
    assert.matches('eps +number%? +default 1e%-8', (help.text 'ul.optim.adamw'))
    assert.matches('lse +boolean', (help.text 'F.attention'))
  end)

  it('lists what a table or a class has', function()
    assert.matches('ul.optim.sgd', (help.text 'ul.optim'))
    assert.matches('ul.nn.Linear', (help.text 'nn'))
    assert.matches('F.matmul', (help.text 'F'))
    assert.matches('Run:steps', (help.text 'Run'))
    assert.matches('ul.help', (help.text ''))
  end)

  it('says each thing once, in lines that fit', function()
    local text = help.text 'Tensor'
    assert.equal(1, select(2, text:gsub('Tensor:matmul', '')))
    assert.not_matches('log:', (help.text 'o:step'))
    for _, name in ipairs { '', 'ul', 'Run', 'Optimizer', 'x:to', 'ul.checkpoint.load',
                            'F.rope_table', 'Memory', 'F' } do
      for line in (assert(help.text(name), name) .. '\n'):gmatch '(.-)\n' do
        assert(#line <= 80 and not line:find ' $', line)
      end
    end
    assert.not_matches('print_warning', (help.text 'ul.checkpoint.load'))
  end)

  it('finds names of values', function()
    assert.matches('ul.optim.adamw%(', (help.value(ul.optim.adamw)))
    assert.matches('ul.randn%(', (help.value(ul.randn)))
    assert.matches('F.rope%(', (help.value(ul.F.rope)))
    assert.matches('x:keep%(%)', (help.value(ul.ones(1).keep)))
    assert.matches('Tensor:backward', (help.value(ul.ones(1))))
    assert.matches('ul.nn.Linear%(', (help.value(ul.nn.Linear(2, 2))))
    assert.matches('ul.nn.Linear%(', (help.value(ul.nn.Linear)))
    assert.matches('Optimizer:step', (help.value(ul.optim.sgd(ul.nn.Linear(2, 2)))))
  end)

  it('knows tables of functions, loaded models, and how names begin', function()
    for _, text in ipairs { help.text 'lora', help.text 'ul.lora', (help.value(ul.lora)) } do
      assert.matches('ul.lora.add +Freezes a model', text)
      assert.matches('ul.lora.merge ', text)
    end
    for name, line in pairs { preference = 'ul.preference.dpo ', chat = 'ul.chat.encode ',
                              data = 'ul.data.pairs ', hf = 'ul.hf.load ', json = 'ul.json.decode ',
                              checkpoint = 'ul.checkpoint.save ', tokenizer = 'ul.tokenizer.train ',
                              safetensors = 'ul.safetensors.open ' } do
      assert.matches(line, (help.text(name)))
    end
    assert.matches('x:data%(%)', (help.text 'data'))
    local parent = models.new_folder()
    local model = ul.hf.load(models.make(parent, 'llama32'))
    models.remove(parent)
    local about = help.value(model)
    assert.matches('^Decoder\n.*\n  Decoder:generate +Text .*\n  Module:parameters ', about)
    assert.not_matches('Decoder:push', about) -- of another class
    local text = help.text 'g'
    for _, name in ipairs { 'ul.generate ', 'F.gelu ', 'ul.gradcheck ' } do
      assert.matches(name, text)
    end
    assert.not_matches('ul.arange', text)
  end)

  it('says so where nothing is known', function()
    local text, sentence = help.text 'adamm'
    assert.is_nil(text)
    assert.equal("help: nothing is known of 'adamm'; did you mean 'adamw'?", sentence)
    assert.equal('help: nothing is known of this number', (select(2, help.value(1))))
    assert.truthy(select(2, help.text 'ul.nothing_of_the_kind'))
    assert.truthy(select(2, help.text '%'))
  end)

  -- Calls visit(name) for all that a user can call: 'ul.optim.adamw', 'Tensor:matmul' ..
  local function each_public(visit)
    local seen = { [ul.debug] = true, [ul.json.null] = true, [ul.F] = true }
    local function enter(value, name)
      local meta = debug.getmetatable(value)
      if type(value) == 'function' or (type(meta) == 'table' and rawget(meta, '__call')) then
        visit(name)
      end
      if type(value) ~= 'table' or seen[value] or rawget(value, 'class_name') then return end
      seen[value] = true
      for key, inner in next, value do enter(inner, name .. '.' .. key) end
    end
    for _, part in ipairs(getmetatable(ul).__names()) do local _ = ul[part] end
    enter(ul, 'ul')
    for name in pairs(core.methods) do visit('Tensor:' .. name) end
    for name in pairs(core.functional) do visit('F.' .. name) end
    local text = ul.data.from 'some text'
    local corpus = text:tokenize 'bytes'
    local rows, model = corpus:pack(4):batch(1), ul.nn.Linear(2, 2)
    local optim = ul.optim.sgd(model)
    local objects = {
      Text = text, Corpus = corpus, Rows = rows, Batch = rows:at(1), Optimizer = optim,
      Run = ul.run { model = model, optim = optim, data = rows }, Recipe = ul.recipe 'mine' {},
    }
    for class, object in pairs(objects) do
      for name in pairs(getmetatable(object).__index) do
        local plain = class .. '.' .. name
        if not name:find '^__' then visit(index.names[plain] and plain or class .. ':' .. name) end
      end
    end
    for name, value in pairs(require('ulysses.nn.module').methods) do
      if type(value) == 'function' then visit('Module:' .. name) end
    end
  end

  -- Methods that the library keeps to itself.
  local private = {}
  for name in ([[ul.help.index ul.help.signature ul.help.signature_of Module:__index Recipe:listing
                 Optimizer:prepare]]):gmatch '%S+' do
    private[name] = true
  end

  it('has something to say of every function', function()
    local missing, n = {}, 0
    each_public(function(name)
      local found = index.names[name]
      n = n + 1
      if not private[name] and (not found or #table.concat(found[1].text) == 0) then
        missing[#missing + 1] = name
      end
    end)
    table.sort(missing)
    assert.same({}, missing)
    assert.is_true(n > 250)
  end)

  it('tells results on one line apart, and leaves no empty paragraphs', function()
    local page = require('tests.api_page').text
    assert.is_nil(page:find('\n\n\n', 1, true))
    assert.is_nil(page:match '[^\n]*: ,[^\n]*')
    assert.is_truthy(page:find('### `ul.chat.encode(tok, family, messages, options) -> ids: '
                               .. 'integer[], mask: integer[]`\n', 1, true))
  end)

  it('is what the reference page is made of', function()
    local page = require 'tests.api_page'
    local file = assert(io.open 'docs/api.md')
    local text = file:read '*a'
    file:close()
    assert(text == page.text, 'docs/api.md is out of date: see tests/api_page.lua')
    local missing = {}
    each_public(function(name)
      local found = index.names[name]
      if not private[name] and found and not page.written[found[1]] then
        missing[#missing + 1] = name
      end
    end)
    for _, item in ipairs(index.list) do
      if not private[item.name] and not page.written[item.entry] then
        missing[#missing + 1] = item.name
      end
    end
    table.sort(missing)
    assert.same({}, missing, 'their files are in no topic of tests/api_page.lua')
  end)

  it('knows no function that is not there', function()
    local missing, of_core = {}, {}
    for _, entry in ipairs(index.all) do
      local owner, name = entry.owner, entry.name
      local there = true
      if owner == 'Ops' then there = rawget(core.functional, name)
      elseif owner == 'F' then there = rawget(core.functional, name)
      elseif owner == 'Tensor' then there = core.methods[name]
      elseif owner == 'ul' then there = rawget(ul, name)
      elseif entry.file:find 'meta/core.lua' and owner then
        there = (owner == 'core' and core or core[owner])[name]
        of_core[owner .. '.' .. name] = true
      end
      if not there then missing[#missing + 1] = owner .. '.' .. name end
    end
    for _, part in ipairs { 'signals', 'system' } do
      for name in pairs(core[part]) do
        if not of_core[part .. '.' .. name] then missing[#missing + 1] = part .. '.' .. name end
      end
    end
    for name, value in pairs(core) do
      if type(value) == 'function' and not rawget(ul, name) and not rawget(core.functional, name)
        and not of_core['core.' .. name] then
        missing[#missing + 1] = 'core.' .. name
      end
    end
    table.sort(missing)
    assert.same({}, missing)
  end)

  it('gives examples that work', function()
    local count, backend = 0, ul.attention_backend()
    finally(function() ul.attention_backend(backend) end)
    for _, item in ipairs(index.list) do
      local text = table.concat(item.entry.text, '\n')
      for code in text:gmatch '```lua\n(.-)```' do
        local body = code:gsub('([^\n]-)%s+%-%-> ([^\n]*)', 'check(%1, [=[%2]=])')
        local chunk, why = loadstring(body, '=' .. item.name)
        assert(chunk, why)
        setfenv(chunk, setmetatable({
          ul = ul, F = ul.F, nn = ul.nn,
          check = function(value, expected)
            count = count + 1
            local shown = tostring(value)
            if ul.is_tensor(value) then shown = shown:match '^[^\n]*\n(.*)$' end
            assert.equal(expected, shown)
          end,
          print = function() end,
        }, { __index = _G }))()
      end
    end
    assert.is_true(count > 20)
  end)
end)
