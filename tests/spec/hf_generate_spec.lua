-- hf_generate_spec.lua - loaded models write: what transformers writes, with the cache of keys and
-- values as without it, many texts as each alone.
local models = require 'tests.hf_models'
local new_cache = require 'ulysses.cache'
local recipe = require 'recipes.mistral'
local ul = require 'ulysses'

local parent
local loaded = {}

local function model_of(name)
  loaded[name] = loaded[name] or ul.hf.load(models.make(parent, name))
  return loaded[name]
end

local function greedy(given)
  local how = { temperature = 0, eos = false }
  for key, value in pairs(given or {}) do how[key] = value end
  return how
end

-- The largest gap between the logits of pieces of a text, given with a cache, and of the whole.
local function gap_of_pieces(model, lengths)
  local ids, at, gap = {}, 1, 0
  for _, n in ipairs(lengths) do
    for _ = 1, n do ids[#ids + 1] = (#ids * #ids * 7 + 3) % models.VOCAB end
  end
  local whole = model:logits(ids)
  local cache = new_cache(1, #ids)
  for _, n in ipairs(lengths) do
    local piece = {}
    for i = at, at + n - 1 do piece[#piece + 1] = ids[i] end
    local logits = model:logits(piece, { cache = cache })
    gap = math.max(gap, (logits - whole:narrow(2, at, n)):abs():max():item())
    at = at + n
  end
  cache:free()
  return gap
end

describe('a loaded model', function()
  setup(function() parent = models.new_folder() end)
  teardown(function()
    loaded = {}
    models.remove(parent)
  end)

  for name, golden in pairs(models.golden) do
    it('writes what transformers writes: ' .. name, function()
      local model = model_of(name)
      collectgarbage()
      collectgarbage()
      local live = ul.memory('cpu').live
      for _, cache in ipairs { true, false } do
        assert.same(golden.greedy, model:generate(models.rows(), greedy { n = models.NEW,
          context = 128, cache = cache }))
      end
      assert.equal(live, ul.memory('cpu').live)
    end)
  end

  it('writes the same where layers are computed again, or wait off the device', function()
    local name, golden = next(models.golden)
    local model = model_of(name)
    finally(function() model.recompute, model.offload = false, false end)
    for _, way in ipairs { 'recompute', 'offload' } do
      model.recompute, model.offload = way == 'recompute', way == 'offload'
      assert.same(golden.greedy, model:generate(models.rows(), greedy { n = models.NEW,
                                                                        context = 128 }), way)
    end
  end)

  it('writes the same with the cache for many tokens, beyond the window too', function()
    local emulated = ul.default_device() ~= 'cpu' and os.getenv 'UL_CUDA_BACKEND'
    local most = emulated and 80 or 256
    for _, name in ipairs { 'llama31', 'mistral', 'qwen2' } do
      local model, prompt = model_of(name), { 3, 1, 4, 1, 5, 9, 2, 6 }
      local plain = model:generate(prompt, greedy { n = most, context = 300, cache = false })
      assert.equal(most, #plain)
      assert.same(plain, model:generate(prompt, greedy { n = most, context = 300 }))
      local seen = {}
      for _, id in ipairs(plain) do seen[id] = true end
      local n = 0
      for _ in pairs(seen) do n = n + 1 end
      assert.is_true(n > 5) -- it says more than one thing
    end
  end)

  it('sees the same in pieces of any length', function()
    ul.no_grad(function()
      for _, name in ipairs { 'llama32', 'mistral', 'qwen2', 'qwen3' } do
        for _, lengths in ipairs { { 1, 1, 1, 1, 1, 1, 1, 1, 1 }, { 3, 4, 1, 5, 7, 1, 2 },
                                   { 20, 1, 11 }, { 4, 1, 1, 12 } } do
          assert.near(0, gap_of_pieces(model_of(name), lengths), 1e-5)
        end
      end
    end)
  end)

  it('writes many texts of several lengths as it writes each alone', function()
    local prompts = { { 7 }, { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5 }, { 8, 8, 8, 8 }, { 1, 2, 3, 4 } }
    for _, name in ipairs { 'mistral', 'qwen3' } do
      local model, each = model_of(name), {}
      for i, prompt in ipairs(prompts) do each[i] = model:generate(prompt, greedy { n = 30 }) end
      assert.same(each, model:generate(prompts, greedy { n = 30 }))
      local stop = each[2][7] -- some end earlier than others
      local ended = model:generate(prompts, greedy { n = 30, stop = stop })
      for i, ids in ipairs(each) do
        local n = 0
        while n < 30 and ids[n + 1] ~= stop do n = n + 1 end
        assert.same({ unpack(ids, 1, n) }, ended[i])
      end
    end
  end)

  it('shows the last tokens of a text that outgrows its context', function()
    local model, prompt = model_of 'llama3', { 3, 1, 4, 1, 5, 9, 2, 6 }
    local plain = model:generate(prompt, greedy { n = 20, context = 12, cache = false })
    assert.same(plain, model:generate(prompt, greedy { n = 20, context = 12 }))
    assert.is_false(pcall(assert.same, plain, model:generate(prompt, greedy { n = 20 })))
  end)

  it('ends where its generation_config.json says, and samples as it says', function()
    local folder = models.make(parent, 'llama31')
    local prompt = { 3, 1, 4, 1, 5 }
    local plain = ul.hf.load(folder):generate(prompt, greedy { n = 12 })
    models.write(folder .. '/generation_config.json', ('{"eos_token_id": [60, %d],'
      .. '"do_sample": true, "temperature": 0.5, "top_k": 1}'):format(plain[6]))
    local model = ul.hf.load(folder)
    local first = 1
    while plain[first] ~= plain[6] do first = first + 1 end
    local ids = model:generate(prompt, { n = 12 })
    assert.same({ unpack(plain, 1, first - 1) }, ids)
    assert.same(plain, model:generate(prompt, { n = 12, eos = false }))
    assert.is_false(pcall(assert.same, plain, model:generate(prompt, {
      n = 12, eos = false, top_k = 61, temperature = 3, seed = 1,
    })))
    local ok, sentence = pcall(model.generate, model, 'Once')
    assert.is_false(ok)
    assert.equal("generate: '" .. folder .. "' has no tokenizer; give one (tokenizer = ..), or ids "
                 .. 'instead of a text', tostring(sentence))
  end)

  it('is sampled alike for one seed, in the batch and with the cache', function()
    local model, how = model_of 'qwen2', { n = 25, temperature = 1.5, seed = 4, eos = false }
    local first = model:generate({ 5, 6 }, how)
    assert.same(first, model:generate({ 5, 6 }, how))
    how.cache = false
    assert.same(first, model:generate({ 5, 6 }, how))
    assert.same(first, model:generate({ { 5, 6 }, { 7, 8 } }, how)[1])
    local ids = {}
    how.stream = function(id, row) ids[#ids + 1] = row == 1 and id or -1 end
    assert.same(first, model:generate({ 5, 6 }, how))
    assert.same(first, ids)
    how.stream = nil
    how.seed = 5
    assert.is_false(pcall(assert.same, first, model:generate({ 5, 6 }, how)))
  end)

  it('writes text with a tokenizer, and stops at texts', function()
    local settings = recipe:configure {
      model = { vocab = 260, dim = 32, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 48,
                head_dim = 8, window = 5 },
    }.model
    local model = recipe.model(settings):init_weights { seed = 3 }
    local pieces, how = {}, { n = 40, temperature = 1.2, seed = 1 }
    local text = ul.generate(model, 'abc', how)
    how.stream = function(piece, row) pieces[#pieces + 1] = row .. piece end
    assert.equal(text, ul.generate(model, 'abc', how))
    assert.equal(text, (table.concat(pieces):gsub('1(.)', '%1')))
    how.cache = false
    assert.equal(text, ul.generate(model, 'abc', how))
    how.cache, how.stream = true, nil
    assert.same({ text }, ul.generate(model, { 'abc' }, how))
    pieces, how.stream = {}, function(piece) pieces[#pieces + 1] = piece end
    how.stop = { text:sub(21, 23), text:sub(36, 39) }
    assert.equal(text:sub(1, text:find(how.stop[1], 1, true) - 1), ul.generate(model, 'abc', how))
    assert.equal(text:sub(1, text:find(how.stop[1], 1, true) - 1), table.concat(pieces))
    how.stop = text:sub(-1) .. 'never'
    assert.equal(text, ul.generate(model, 'abc', how))
  end)

  it('answers in a conversation', function()
    local path
    for _, place in ipairs { 'shared', '../shared', '../../shared' } do
      local file = io.open(place .. '/data/tokenizers/llama3/tokenizer.json')
      if file then
        file:close()
        path = place .. '/data/tokenizers/llama3'
      end
    end
    if not path then return pending 'shared/data is not there' end
    local tok, settings = ul.tokenizer.load(path), require('recipes.llama3'):configure {
      model = { vocab = 128256, dim = 8, n_layers = 1, n_heads = 2, n_kv_heads = 1, ffn = 8 },
    }.model
    local model = require('recipes.llama3').model(settings):init_weights { seed = 1 }
    local messages = { { role = 'user', content = 'Hello' } }
    local ids = ul.chat.encode(tok, 'llama3', messages, { reply = true })
    local how = { n = 6, temperature = 0, tokenizer = tok }
    local expected = tok:decode(ul.generate(model, ids, { n = 6, temperature = 0 }))
    assert.equal(expected, ul.generate(model, messages, how))
    assert.same({ expected, expected }, ul.generate(model, { messages, messages }, how))
    -- a prompt is read with BOS, and what follows keeps its space
    local text = ul.generate(model, 'Once', how)
    local more = ul.generate(model, tok:encode('Once', { bos = true }), { n = 6, temperature = 0 })
    assert.equal(tok:decode(tok:encode('Once' .. text)), 'Once' .. tok:decode(more))
  end)

  it('refuses what it cannot do', function()
    local model = model_of 'llama3'
    for sentence, call in pairs {
      ['cache: no gradient flows through it'] = function()
        model:logits({ 1 }, { cache = new_cache(1, 3) })
      end,
      ['cache: 0 tokens and 4 more do not go into room for 3'] = function()
        model:logits({ 1, 2, 3, 4 }, { cache = new_cache(1, 3) })
      end,
      ['prompt 2 must be a string or a list of ids, as all of them'] = function()
        model:generate { { 1 }, 'x' }
      end,
      ['got an empty table'] = function() model:generate {} end,
      ['stream = true is for one text'] = function()
        model:generate({ { 1 }, { 2 } }, { stream = true })
      end,
      ['a prompt of ids has no texts to stop at; give the id of "x"'] = function()
        model:generate({ 1 }, { stop = 'x' })
      end,
      ['stop wants ids, texts, or a list of these'] = function()
        model:generate({ 1 }, { stop = true })
      end,
    } do
      assert.error_matches(call, sentence, 1, true)
    end
  end)
end)
