-- generate_spec.lua - ul.generate: which tokens may be chosen, and the same text for the same seed.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local recipe = require 'recipes.llama3'

-- A model whose logits behind a token are those of `table[token]`, else `otherwise`; it notes what
-- it was shown.
local function fixed(rows, otherwise)
  local model = { seen = {} }
  function model.logits(_, inputs, given)
    assert(given.last)
    local tokens = inputs:tolist()[1]
    model.seen[#model.seen + 1] = tokens
    local chosen, row = rows[tokens[#tokens]] or otherwise, {}
    for id = 0, 259 do row[id + 1] = chosen[id] or chosen[string.char(id % 256)] or -20 end
    return ul.tensor { { row } }
  end
  return model
end

local function set_of(text)
  local list, seen = {}, {}
  for c in text:gmatch '.' do
    if not seen[c] then list[#list + 1] = c end
    seen[c] = true
  end
  table.sort(list)
  return table.concat(list)
end

local many = { a = 3, b = 2, c = 1, d = 0 }

describe('generate', function()
  it('takes the likeliest where there is no temperature', function()
    local model = fixed({ [('a'):byte()] = { b = 1 }, [('b'):byte()] = { c = 1 } }, { a = 1 })
    assert.equal('bcabca', ul.generate(model, 'a', { n = 6, temperature = 0 }))
    assert.same({ ('a'):byte() }, model.seen[1])
    assert.equal('', ul.generate(model, 'a', { n = 0 }))
  end)

  it('ends with the document, and writes no other special token', function()
    local model = fixed({ [('b'):byte()] = { [257] = 9 } }, { [256] = 9, [258] = 9, b = 1 })
    assert.equal('b', ul.generate(model, 'a', { n = 9, temperature = 0 }))
    ul.generate(model, '', { n = 1, temperature = 0 })
    assert.same({ 257 }, model.seen[#model.seen])
  end)

  it('chooses as likely as the logits say', function()
    local text = ul.generate(fixed({}, many), 'x', { n = 2000, temperature = 1, seed = 3 })
    local total = 0
    for _, logit in pairs(many) do total = total + math.exp(logit) end
    for c, logit in pairs(many) do
      local _, count = text:gsub(c, '')
      assert.near(math.exp(logit) / total, count / 2000, 0.03)
    end
    local sharp = ul.generate(fixed({}, many), 'x', { n = 200, temperature = 0.1, seed = 3 })
    assert.equal('a', set_of(sharp))
  end)

  it('may be limited', function()
    local function chosen(given)
      given.n, given.seed, given.temperature = 300, 5, 1
      return set_of(ul.generate(fixed({}, many), 'x', given))
    end
    assert.equal('abcd', chosen {})
    assert.equal('a', chosen { top_k = 1 })
    assert.equal('abc', chosen { top_k = 3 })
    assert.equal('abcd', chosen { top_k = 1000 })
    assert.equal('a', chosen { top_p = 0.6 })   -- probabilities 0.64, 0.24, 0.09, 0.03
    assert.equal('ab', chosen { top_p = 0.7 })
    assert.equal('abc', chosen { top_p = 0.9 })
    assert.equal('ab', chosen { min_p = 0.3 })  -- shares of the best 1, 0.37, 0.14, 0.05
    assert.equal('a', chosen { top_k = 2, min_p = 0.5 })
  end)

  it('shows the last tokens only, and streams', function()
    local model, pieces = fixed({}, { a = 1 }), {}
    local text = ul.generate(model, 'wxyz', {
      n = 3, temperature = 0, context = 3, stream = function(piece) pieces[#pieces + 1] = piece end,
    })
    assert.equal('aaa', text)
    assert.same({ 'a', 'a', 'a' }, pieces)
    assert.same({ ('x'):byte(), ('y'):byte(), ('z'):byte() }, model.seen[1])
    assert.same({ ('z'):byte(), ('a'):byte(), ('a'):byte() }, model.seen[3])
  end)

  it('is the same for the same seed, and leaves the generator alone', function()
    local model = recipe.model(recipe:configure {
      model = { dim = 32, n_layers = 1, n_heads = 4, n_kv_heads = 2, ffn = 48 },
    }.model):init_weights { seed = 1 }
    local before = { ul.random_state() }
    local function text(seed) return ul.generate(model, 'The ', { n = 20, seed = seed }) end
    local live
    local first = text(7)
    live = ul.memory(home).live
    assert.equal(first, text(7))
    assert.equal(live, ul.memory(home).live)
    assert.not_equal(first, text(8))
    assert.same(before, { ul.random_state() })
    ul.manual_seed(1)
    local unseeded = ul.generate(model, 'The ', { n = 20 })
    assert.not_equal(unseeded, ul.generate(model, 'The ', { n = 20 }))
    ul.manual_seed(1)
    assert.equal(unseeded, ul.generate(model, 'The ', { n = 20 }))
  end)

  it('refuses what it cannot do', function()
    local model = fixed({}, many)
    for sentence, call in pairs {
      ['no method logits'] = function() ul.generate({}, 'x') end,
      ['a list of ids, or a list of these, got a number'] = function() ul.generate(model, 3) end,
      ["no option 'temprature'; did you mean 'temperature'?"] = function()
        ul.generate(model, 'x', { temprature = 1 })
      end,
      ['top_k must be a whole number from 1 on, got 0'] = function()
        ul.generate(model, 'x', { top_k = 0 })
      end,
      ['top_p must lie above 0 and at most at 1, got 2'] = function()
        ul.generate(model, 'x', { top_p = 2 })
      end,
      ['temperature must not be negative, got %-1'] = function()
        ul.generate(model, 'x', { temperature = -1 })
      end,
      ["no tokenizer 'words'"] = function() ul.generate(model, 'x', { tokenizer = 'words' }) end,
    } do
      assert.error_matches(call, sentence)
    end
    local ok, refusal = pcall(ul.generate, fixed({}, { a = 0 / 0 }), 'x')
    assert.is_false(ok)
    assert.equal('generate: the logits of the model are not finite', tostring(refusal))
  end)
end)
