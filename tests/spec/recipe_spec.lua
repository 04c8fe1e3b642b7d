-- recipe_spec.lua - settings: what may be overridden, and what is said otherwise.
local ul = require 'ulysses'

describe('recipe', function()
  local recipe = ul.recipe 'toy' {
    model = { dim = 4, deep = { width = 2 } }, lr = 1e-3, tied = false, name = 'a', steps = 10,
  }

  it('overrides leaves by key=value', function()
    local cfg = recipe:configure { 'model.dim=8', 'model.deep.width=3', 'lr=3e-4', 'tied=true',
                                   'name=b=c' }
    assert.same({ 8, 3, 3e-4, true, 'b=c', 10 },
                { cfg.model.dim, cfg.model.deep.width, cfg.lr, cfg.tied, cfg.name, cfg.steps })
  end)

  it('reads K, M and G as powers of two', function()
    local cfg = recipe:configure { 'steps=4K', 'model.dim=1M', 'lr=0.5K' }
    assert.same({ 4096, 1048576, 512 }, { cfg.steps, cfg.model.dim, cfg.lr })
  end)

  it('overrides by a table', function()
    local cfg = recipe:configure { model = { dim = 16 }, tied = true }
    assert.same({ 16, 2, true }, { cfg.model.dim, cfg.model.deep.width, cfg.tied })
  end)

  it('leaves the defaults alone', function()
    recipe:configure { 'model.dim=8' }
    assert.equal(4, recipe:configure().model.dim)
  end)

  -- The sentence of the refusal of these arguments.
  local function refused(of, ...)
    local ok, refusal = pcall(of.configure, of, { ... })
    assert.is_false(ok)
    assert.is_table(refusal)
    return tostring(refusal)
  end

  local wrong = {
    ['model.dimm=3'] = "toy: no setting 'model.dimm'; did you mean 'model.dim'?",
    ['modle.dim=3'] = "toy: no setting 'modle.dim'; did you mean 'model.dim'?",
    ['width=3'] = "toy: no setting 'width'; did you mean 'model.deep.width'?",
    ['widht=3'] = "toy: no setting 'widht'; did you mean 'model.deep.width'?",
    ['learning_rate=1'] = "toy: no setting 'learning_rate'; did you mean 'lr'?",
    ['zzzzzzzz=1'] = "toy: no setting 'zzzzzzzz'",
    ['=1'] = "toy: '=1' is not of the form key=value",
    ['model=3'] = 'toy: model is a table; set one of its leaves, such as model.dim',
    ['model.deep=3'] = 'toy: model.deep is a table; set one of its leaves, such as '
      .. 'model.deep.width',
    ['lr=fast'] = "toy: lr wants a number, got 'fast'",
    ['lr='] = "toy: lr wants a number, got ''",
    ['tied=1'] = "toy: tied wants true or false, got '1'",
    ['steps'] = "toy: 'steps' is not of the form key=value",
    ['--steps=5'] = "toy: '--steps=5' is not of the form key=value; did you mean steps=5?",
    ['--tied'] = "toy: '--tied' is not of the form key=value; did you mean tied=true?",
    ['--model.dimm=5'] = "toy: '--model.dimm=5' is not of the form key=value; did you mean "
      .. "'model.dim'?",
    ['-x'] = "toy: '-x' is not of the form key=value",
    ['steps=2.5'] = "toy: steps wants a whole number (the default is 10; written as 10.0 it would "
      .. "take fractions), got '2.5'",
    ['steps=a lot'] = "toy: steps wants a whole number, got 'a lot'",
  }
  for argument, message in pairs(wrong) do
    it('refuses ' .. argument, function() assert.equal(message, refused(recipe, argument)) end)
  end

  it('reads decimal numbers alone', function()
    for text, value in pairs { ['1e6'] = 1e6, ['1E-3'] = 1e-3, ['-.5'] = -0.5, ['+2.'] = 2,
                               ['2.5K'] = 2560, ['1e1K'] = 10240, ['2G'] = 2 ^ 31 } do
      assert.equal(value, recipe:configure({ 'lr=' .. text }).lr)
    end
    for text in ('nan inf -inf 0x10 1e999 1e 1.2.3 . K k 1-5 1,2 10KK 1e3e3'):gmatch '%S+' do
      assert.equal(("toy: lr wants a number, got '%s'"):format(text),
                   refused(recipe, 'lr=' .. text))
    end
    assert.equal(2560, recipe:configure({ 'steps=2.5K' }).steps)
    assert.equal(1000000, recipe:configure({ 'steps=1e6' }).steps)
    assert.matches('whole number', refused(recipe, 'steps=1e300'))
  end)

  it('knows how a number was meant that is written otherwise', function()
    for text, meant in pairs { ['32k'] = '32K', ['1.5m'] = '1.5M', ['8KB'] = '8K', ['2Gi'] = '2G',
                               ['4kib'] = '4K', ['32_000'] = '32000', ['1e2k'] = '1e2K' } do
      assert.equal(("toy: lr wants a number, got '%s'; did you mean %s?"):format(text, meant),
                   refused(recipe, 'lr=' .. text))
    end
    assert.equal("toy: steps wants a whole number, got '4k'; did you mean 4K?",
                 refused(recipe, 'steps=4k'))
    assert.equal("toy: steps wants a whole number, got '0.3k'", refused(recipe, 'steps=0.3k'))
  end)

  it('refuses text that is no UTF-8, which no record could hold', function()
    assert.equal("toy: name is no UTF-8 from byte 4 on: 'caf\\xe9'",
                 refused(recipe, 'name=caf\xe9'))
    assert.equal("toy: name is no UTF-8 from byte 1 on: '\\xed\\xa0\\x80'",
                 refused(recipe, 'name=\xed\xa0\x80'))
    assert.equal('caf\u{e9} \u{1f600}',
                 recipe:configure({ 'name=caf\u{e9} \u{1f600}' }).name)
    assert.has_error(function() recipe:configure { name = '\xff' } end,
                     "toy: name is no UTF-8 from byte 1 on: '\\xff'")
    assert.has_error(function() return ul.recipe 'x' { name = '\xff' } end,
                     "recipe 'x': name is a string that is no UTF-8; a setting is a number, a "
                     .. 'string, a boolean or a list of these')
  end)

  it('refuses a setting that is given twice', function()
    assert.equal("toy: lr is set twice, to '1' and to '2'", refused(recipe, 'lr=1', 'lr=2'))
  end)

  local kinds = ul.recipe 'kinds' {
    betas = { 0.9, 0.95 }, sizes = { 1, 2 }, words = { 'a', 'b' }, flags = { true },
    clip = 1.0, resume = ul.none 'string', decay = ul.none 'integer',
  }

  it('takes lists, fractions and settings without a value', function()
    local cfg = kinds:configure()
    assert.same({ 0.9, 0.95 }, cfg.betas)
    assert.is_nil(cfg.resume)
    cfg = kinds:configure { 'betas=0.8,1', 'sizes=4K, 5,6', 'words=x', 'flags=', 'clip=0.5',
                            'resume=runs/x', 'decay=10' }
    assert.same({ { 0.8, 1 }, { 4096, 5, 6 }, { 'x' }, {}, 0.5, 'runs/x', 10 },
                { cfg.betas, cfg.sizes, cfg.words, cfg.flags, cfg.clip, cfg.resume, cfg.decay })
    assert.is_nil(kinds:configure({ 'decay=none' }).decay)
    kinds:configure().betas[1] = 0
    assert.same({ 0.9, 0.95 }, kinds:configure().betas)
    assert.equal("kinds: betas wants a list a,b,... of numbers, got '0.9,x'",
                 refused(kinds, 'betas=0.9,x'))
    assert.equal("kinds: sizes wants a list a,b,... of whole numbers, got '1.5'",
                 refused(kinds, 'sizes=1.5'))
    assert.equal("kinds: sizes wants a list a,b,... of whole numbers, got '1k,2'; did you mean "
                 .. '1K,2?', refused(kinds, 'sizes=1k,2'))
    assert.equal("kinds: words is no UTF-8 from byte 3 on: 'a,\\xff'",
                 refused(kinds, 'words=a,\xff'))
    assert.equal("kinds: decay wants a whole number or none, got 'x'", refused(kinds, 'decay=x'))
  end)

  it('reads config=FILE first', function()
    local name = os.tmpname()
    local function write(text)
      local file = assert(io.open(name, 'w'))
      file:write(text)
      file:close()
    end
    write '{ "model": { "dim": 16, "deep": { "width": 5 } }, "lr": 0.5, "steps": 7 }'
    local cfg = recipe:configure { 'steps=8', 'config=' .. name }
    assert.same({ 16, 5, 0.5, 8 }, { cfg.model.dim, cfg.model.deep.width, cfg.lr, cfg.steps })
    local own = ul.json.encode(cfg)
    write(own)
    assert.equal(own, ul.json.encode(recipe:configure { 'config=' .. name }))
    local function sentence() return (refused(recipe, 'config=' .. name):gsub(name, 'FILE', 1)) end
    write '{ "model": { "dimm": 16 } }'
    assert.equal("toy: no setting 'model.dimm'; did you mean 'model.dim'? (in FILE)", sentence())
    write '{ "steps": 1.5 }'
    assert.matches("steps wants a whole number .*, got '1.5' %(in FILE%)$", sentence())
    write '{ "steps": [1] }'
    assert.equal("toy: steps wants a whole number, got '1' (in FILE)", sentence())
    write '{ "steps": '
    assert.matches('^toy: FILE: ', sentence())
    write '3'
    assert.equal('toy: FILE: it holds no table of settings', sentence())
    os.remove(name)
    assert.equal('toy: cannot read FILE: No such file or directory', sentence())
  end)

  it('raises where a table in the code is wrong', function()
    for given, message in pairs {
      [{ model = { dimm = 1 } }] = "toy: no setting 'model.dimm'; did you mean 'model.dim'?",
      [{ model = 3 }] = 'toy: model is a table; set one of its leaves, such as model.dim',
      [{ lr = { 1 } }] = "toy: lr wants a number, got '1'",
      [{ lr = { a = 1 } }] = "toy: lr wants a number, got 'a table'",
      [{ tied = 3 }] = "toy: tied wants true or false, got '3'",
    } do
      local ok, raised = pcall(function() recipe:configure(given) end)
      assert.is_false(ok)
      assert.equal(message, (raised:gsub('^tests/spec/recipe_spec.lua:%d+: ', '')))
    end
  end)

  it('refuses to hold what cannot be set', function()
    for message, settings in pairs {
      ["recipe 'r': f is a function; a setting is a number, a string, a boolean or a list of "
       .. 'these'] = { f = print },
      ["recipe 'r': a.b is a list of several types; a setting is a number, a string, a boolean or "
       .. 'a list of these'] = { a = { b = { 1, 'x' } } },
      ["recipe 'r': a.1x is no name for a setting"] = { a = { ['1x'] = 1, b = 2 } },
      ["recipe 'r': l is a list with the key x; a setting is a number, a string, a boolean or a "
       .. 'list of these'] = { l = { 1, x = 2 } },
    } do
      local ok, raised = pcall(function() ul.recipe 'r'(settings) end)
      assert.is_false(ok)
      assert.equal(message, (raised:gsub('^tests/spec/recipe_spec.lua:%d+: ', '')))
    end
    assert.error_matches(function() ul.recipe 'r'() end, 'expected a table of settings')
    assert.error_matches(function() ul.none 'tensor' end, "none: expected 'number', 'integer'")
  end)

  it('can be shown, walked and copied', function()
    local cfg = recipe:configure { 'model.dim=8', 'name=', 'lr=0.1' }
    assert.equal('toy: model.dim=8* model.deep.width=2 lr=0.1* tied=false name=* steps=10',
                 recipe:describe(cfg))
    assert.equal("toy: model.dim=4 model.deep.width=2 lr=0.001 tied=false "
                 .. "name='it'\\''s a'* steps=10",
                 recipe:describe(recipe:configure { "name=it's a" }))
    assert.equal('dim = 8\ndeep.width = 2', tostring(cfg.model))
    local paths = {}
    for path, value in recipe:each(cfg) do paths[#paths + 1] = path .. ':' .. tostring(value) end
    assert.equal('model.dim:8 model.deep.width:2 lr:0.1 tied:false name: steps:10',
                 table.concat(paths, ' '))
    local plain = recipe.plain(cfg)
    assert.same({ model = { dim = 8, deep = { width = 2 } }, lr = 0.1, tied = false, name = '',
                  steps = 10 }, plain)
    assert.is_nil(getmetatable(plain.model))
    for line in (recipe.describe(kinds, kinds:configure()) .. '\n'):gmatch '(.-)\n' do
      assert.is_true(#line <= 100)
    end
  end)

  it('knows options of other programs by the argument that follows', function()
    local recipes = { llama3 = require 'recipes.llama3', finetune = require 'recipes.finetune' }
    for words, meant in pairs {
      ['llama3 --model some/where lr=1'] = '--model.-; did you mean model=some/where?',
      ['llama3 --model=some/where'] = '--model=some/where.-; did you mean model=some/where?',
      ['llama3 --seq-len 4K'] = '--seq%-len.-; did you mean seq_len=4K?',
      ['llama3 --shard lr=1'] = '--shard.-; did you mean shard=true?',
      ['llama3 --shard --sp 2'] = '--shard.-; did you mean shard=true?',
      ['llama3 step=20'] = "no setting 'step'; did you mean 'steps'?",
      ['llama3 max_steps=20'] = "no setting 'max_steps'; did you mean 'steps'?",
      ['llama3 stesp=20'] = "no setting 'stesp'; did you mean 'steps'?",
      ['llama3 --stepz 9'] = "--stepz.-; did you mean 'steps'?",
      ['finetune --model a;b'] = "--model.-; did you mean model='a;b'?",
    } do
      local list = {}
      for word in words:gmatch '%S+' do list[#list + 1] = word end
      local chosen = recipes[table.remove(list, 1)]
      local ok, message = pcall(chosen.configure, chosen, list)
      assert.is_false(ok)
      assert.matches(meant, tostring(message))
    end
  end)

  it('refuses to set what is not there', function()
    local cfg = recipe:configure()
    local ok, message = pcall(function() cfg.model.dimm = 3 end)
    assert.is_false(ok)
    assert.matches("^tests/spec/recipe_spec.lua:%d+: toy: no setting 'model.dimm'; did you mean "
                   .. "'dim'", message)
    cfg.model.dim = 5
    assert.equal(5, cfg.model.dim)
    local none = kinds:configure()
    none.resume = 'x'
    assert.equal('x', none.resume)
  end)

  it('refuses to read what is not there, at the line of the reader', function()
    local cfg = recipe:configure()
    local ok, message = pcall(function() return cfg.stepz end)
    assert.is_false(ok)
    assert.matches("^tests/spec/recipe_spec.lua:%d+: toy: no setting 'stepz'; did you mean 'steps'",
                   message)
  end)

  it('does not run when required', function()
    local llama = require 'recipes.llama3'
    assert.equal('llama3', llama.name)
    assert.is_function(llama.train)
    assert.is_table(llama.model)
  end)

  it('shows its table for --help, with the comments', function()
    local help = require('recipes.mistral'):help()
    assert.matches('^a Mistral, trained from scratch', help)
    assert.matches('\n  model.rope_theta=10000\n', help)
    assert.matches('\n  model.window=64 +tokens that one sees, itself among them; 0: all\n', help)
  end)
end)

describe('the source of a recipe', function()
  local source = require 'ulysses.recipe.source'

  local function parse(text)
    local lines = {}
    for i, entry in ipairs(source.parse(text, 'toy', 1).entries) do
      lines[i] = ('%s|%s|%s'):format(entry.path or '--', entry.literal or '',
                                     entry.comment or entry.heading or '')
    end
    return lines
  end

  it('has the order, the spelling and the comments', function()
    assert.same({
      '--||a heading', 'model||', 'model.dim|4|', 'model.deep||', 'model.deep.width|2|} braces {',
      'model.eps|1e-5|', "text|'by}t\\'es'|", 'long|[[ }, x = 3 ]]|', 'betas|{ 0.9, 0.95 }|two',
      'data|f{ x = 1, "}" } .. g(a, b)|of a line and more', 'same|a == b|', 'lr|1.0|in brackets',
    }, parse [==[
      local y = { z = 1 } -- toy
      ul.recipe 'other' { x = 1 }
      local recipe = ul.recipe 'toy' {
        -- a heading
        model = { dim = 4, deep = { width = 2 }, -- } braces {
                  eps = 1e-5 },
        text = 'by}t\'es', long = [[ }, x = 3 ]],
        betas = { 0.9, 0.95 },                  -- two
        data = f{ x = 1, "}" } .. g(a, b),      -- of a line
                                                -- and more
        same = a == b; lr = 1.0, --[[ in brackets ]]
      }
      local after = { q = 1 }]==])
  end)

  it('tells comments that go on from others', function()
    assert.same({ 'a|1|one', '--||two', '--||three', 'b|2|four five', '--||six' }, parse [[
      recipe 'toy' {
        a = 1, -- one
        -- two
        -- three
        b = 2, -- four
               -- five

               -- six
      }]])
  end)

  it('shares a comment out among the settings of its line', function()
    assert.same({ 'a|1|one', 'b|2|two', 'c|3|', 'd|4|three; four; five', 'e||',
                  'e.f|5|six; 0: none', 'e.g|6|', 'e.h|7|eight', 'i|9|nine',
                  'j|10|ten goes on' }, parse [[
      recipe 'toy' {
        a = 1, b = 2,  -- one; two
        c = 3, d = 4,  -- three; four; five
        e = { f = 5,   -- six; 0: none
              g = 6, h = 7 }, -- eight
        i = 9, j = 10, -- nine; ten
                       -- goes on
      }]])
  end)

  it('comes before what is spelt otherwise', function()
    local order = {}
    local recipe = ul.recipe 'order' { ['b'] = 1, z = 2, ['a'] = 3, c = 4 }
    for path in recipe:each(recipe:configure()) do order[#order + 1] = path end
    assert.same({ 'z', 'c', 'a', 'b' }, order)
  end)

  it('may end anywhere', function()
    local text = "recipe 'toy' { a = { b = 'x', --[[ c ]] d = [=[ e ]=] }, f = 1 }"
    for i = 1, #text do parse(text:sub(1, i)) end
    assert.same({}, parse 'nothing')
  end)

  it('begins with what the file says of itself', function()
    assert.same({ 'a toy', '', '  usage' },
                source.parse('#!/bin/x\n-- toy.lua - a toy\n--\n--   usage\nlocal x\n-- no\n',
                             'toy', 1).about)
  end)
end)
