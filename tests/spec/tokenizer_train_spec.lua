-- tokenizer_train_spec.lua - ul.tokenizer.train: the merges that counting by hand gives, and files.
local core = require 'ulysses.core'
local own = require 'tests.own_folder' ()
local ul = require 'ulysses'

local folder, read = own.path, own.read

setup(own.make)
teardown(own.remove)

-- Merges as lists of two strings, found by counting all pairs of all words each time.
local function by_hand(words, n)
  local rank, merges = {}, {}
  local order = {} -- the ids of bytes: those that print first
  for printing = 1, 0, -1 do
    for byte = 0, 255 do
      local prints = byte >= 33 and byte <= 126 or byte >= 161 and byte ~= 173
      if prints == (printing == 1) then
        order[#order + 1] = string.char(byte)
        rank[string.char(byte)] = #order
      end
    end
  end
  local ids = 256
  while #merges < n do
    local counts, best = {}, nil
    for _, word in ipairs(words) do
      for i = 1, #word - 1 do
        local key = word[i] .. '\0\0' .. word[i + 1]
        counts[key] = counts[key] or { n = 0, left = word[i], right = word[i + 1] }
        counts[key].n = counts[key].n + 1
      end
    end
    for _, c in pairs(counts) do
      if not best or c.n > best.n or c.n == best.n and (rank[c.left] < rank[best.left]
         or c.left == best.left and rank[c.right] < rank[best.right]) then
        best = c
      end
    end
    if not best or best.n < 2 then return merges end
    merges[#merges + 1] = { best.left, best.right }
    local both = best.left .. best.right
    if not rank[both] then
      ids = ids + 1
      rank[both] = ids
    end
    for k, word in ipairs(words) do
      local merged, i = {}, 1
      while i <= #word do
        local hit = word[i] == best.left and word[i + 1] == best.right
        merged[#merged + 1] = hit and both or word[i]
        i = i + (hit and 2 or 1)
      end
      words[k] = merged
    end
  end
  return merges
end

describe('tokenizer.train', function()
  it('finds the merges that counting by hand finds', function()
    math.randomseed(11)
    for round = 1, 12 do
      local texts, words = {}, {}
      for k = 1, 30 do
        local letters = {}
        for i = 1, math.random(12) do letters[i] = string.char(math.random(97, 97 + round % 4)) end
        texts[k], words[k] = table.concat(letters), letters
      end
      ul.tokenizer.train(texts, { out = folder, vocab = 290, specials = {} })
      local merges = ul.json.decode(read 'tokenizer.json').model.merges
      local expected = by_hand(words, 34)
      for i = 1, math.min(#merges, #expected) do assert.same(expected[i], merges[i]) end
      assert.is_true(#merges == #expected or #merges > 30)
    end
  end)

  it('makes what is loaded, and gives every text back', function()
    local text = table.concat(ul.data.read(ul.data.sample()):documents()):sub(1, 60000)
    local tok = ul.tokenizer.train({ text }, { out = folder, vocab = 700 })
    assert.same({ 700, 0, 1, 2 }, { tok:vocab_size(), tok.bos, tok.eos, tok.pad })
    local ids = tok:encode(text, { bos = true })
    assert.equal(0, ids[1])
    assert.equal(text, tok:decode(ids))
    assert.is_true(#ids < 0.6 * #text)
    assert.equal('x\228\184\173\239\191\189\0',
                 tok:decode(tok:encode 'x\228\184\173\255\0'))
    assert.equal('llama3', ul.chat.family(tok))
    local first = read 'tokenizer.json'
    ul.tokenizer.train({ text }, { out = folder, vocab = 700 })
    assert.equal(first, read 'tokenizer.json')
  end)

  it('splits as it is told, and ends where nothing stands there twice', function()
    for _, split in ipairs { 'llama3', 'tekken', 'qwen2', 'gpt2' } do
      local tok = ul.tokenizer.train({ 'abab 1212 abab' }, { out = folder, vocab = 400,
                                                             split = split })
      assert.equal(split, tok.split)
      assert.is_true(tok:vocab_size() < 300)
      assert.is_nil(tok:id 'abab 1')
    end
    local tok = ul.tokenizer.train({ 'abab' }, { out = folder, vocab = 264, least = 1 })
    assert.equal(264, tok:vocab_size())
  end)

  it('cuts words that are longer than any token', function()
    local tok = ul.tokenizer.train({ ('ab'):rep(2e5) }, { out = folder, vocab = 290 })
    assert.equal(2e4, #tok:decode(tok:encode(('ab'):rep(1e4))))
  end)

  it('names what is wrong', function()
    local function refused(sentence, from, given)
      local ok, what = pcall(ul.tokenizer.train, from, given)
      assert.is_false(ok)
      assert.matches(sentence, tostring(what), 1, true)
    end
    refused("say where it is kept, with out = 'a folder'", { 'a' }, {})
    refused("split must be 'llama3', 'tekken', 'qwen2' or 'gpt2', got 'bert'", { 'a' },
            { out = folder, split = 'bert' })
    refused('vocab must be a whole number from 263 on', { 'a' }, { out = folder, vocab = 100 })
    refused("bos is '<s>', which is none of the special tokens", { 'a' },
            { out = folder, bos = '<s>' })
    refused('each of them once', { 'a' }, { out = folder, specials = { '<s>', '<s>' } })
    refused('text 1 is a number', { 3 }, { out = folder })
    refused("no option 'vocabulary'; did you mean 'vocab'?", { 'a' }, { vocabulary = 3 })
    refused('no file', folder .. '/none.txt', { out = folder })
  end)

  it('leaves the files that were there where the disk fails', function()
    local function train(text)
      ul.tokenizer.train({ text }, { vocab = 300, out = folder .. '/kept' })
    end
    train 'the old text, the old words'
    local old, first = read 'kept/tokenizer.json', ul.debug.writes()
    train 'the old text, the old words'
    local steps = ul.debug.writes() - first
    assert.is_true(steps >= 6)
    for n = 1, steps do
      ul.debug.fail_write(n, 'ENOSPC')
      local ok, sentence = pcall(train, 'words that are new and new again')
      ul.debug.fail_write(0)
      assert.is_false(ok)
      assert.matches(': No space left on device$', tostring(sentence))
      assert.is_nil(core.system.kind_of(folder .. '/kept/tokenizer.json.new'))
      local text = read 'kept/tokenizer.json'
      assert.is_true(text == old or n > 4 and #text > 100 and text:sub(-2) == '}\n')
    end
  end)
end)
