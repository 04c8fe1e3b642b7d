-- data_spec.lua - from text to batches: nothing lost, nothing twice, no label across documents.
local ul = require 'ulysses'
local permutation = require 'ulysses.data.permutation'

local function corpus(...) return ul.data.from({ ... }):tokenize 'bytes' end

-- Labels of a corpus that count, in order, as a string.
local function labels(rows)
  local ids, count = {}, 0
  for batch in rows:once() do
    count = count + batch.count
    for _, row in ipairs(batch.targets:tolist()) do
      for _, id in ipairs(row) do
        if id >= 0 then ids[#ids + 1] = id end
      end
    end
  end
  return ids, count
end

describe('data', function()
  it('takes bytes for tokens and ends a document', function()
    local text = corpus 'ab'
    assert.same({ 97, 98, 257 }, text.tokens:tolist())
    assert.same({ 104, 105 }, ul.data.bytes.encode 'hi')
    assert.equal('hi', ul.data.bytes.decode { 256, 104, 105, 257 })
  end)

  it('makes each token but the first a label once, whatever the length of rows', function()
    local expected = { 98, 99, 100, 101, 102, 103, 257 }
    for length = 1, 10 do
      local ids, count = labels(corpus('abcdefg'):pack(length):batch(2))
      assert.same(expected, ids)
      assert.equal(7, count)
    end
  end)

  it('shifts labels on the whole row', function()
    local batch = corpus('abcdef'):pack(3):batch(2):at(1)
    assert.same({ { 97, 98, 99 }, { 100, 101, 102 } }, batch.inputs:tolist())
    assert.same({ { 98, 99, 100 }, { 101, 102, 257 } }, batch.targets:tolist())
    assert.same({ 0, 1, 2 }, batch.positions:tolist())
    assert.is_nil(batch.docs)
  end)

  it('fills up the last row without labels', function()
    local batch = corpus('abc'):pack(5):batch(1):at(1)
    assert.same({ { 97, 98, 99, 257, 258 } }, batch.inputs:tolist())
    assert.same({ { 98, 99, 257, -100, -100 } }, batch.targets:tolist())
    assert.equal(3, batch.count)
  end)

  it('has no label across documents: the sum of (length - 1)', function()
    for length = 1, 12 do
      local _, count = labels(corpus('ab', '', 'cdefg', 'h'):pack(length):batch(3))
      assert.equal(2 + 0 + 5 + 1, count)
    end
  end)

  it('restarts positions and marks documents', function()
    local batch = corpus('ab', 'cd'):pack(3):batch(2):at(1)
    assert.same({ { 97, 98, 257 }, { 99, 100, 257 } }, batch.inputs:tolist())
    assert.same({ { 98, 257, -100 }, { 100, 257, -100 } }, batch.targets:tolist())
    assert.is_nil(batch.docs)
    batch = corpus('ab', 'cd'):pack(4):batch(2):at(1)
    assert.same({ { 97, 98, 257, 99 }, { 100, 257, 258, 258 } }, batch.inputs:tolist())
    assert.same({ { 98, 257, -100, 100 }, { 257, -100, -100, -100 } }, batch.targets:tolist())
    assert.same({ { 0, 1, 2, 0 }, { 0, 1, 2, 3 } }, batch.positions:tolist())
    assert.same({ 0, 3, 4, 8 }, batch.docs:tolist())
  end)

  it('cuts a batch into micro-batches that share its denominator', function()
    local batch = corpus('abcdefghi', 'jklmnop'):pack(4):batch(5):at(1)
    local rows, count = {}, 0
    for micro in batch:micros(3) do
      assert.equal(batch.count, micro.denominator)
      for _, row in ipairs(micro.inputs:tolist()) do rows[#rows + 1] = row end
      for _, row in ipairs(micro.targets:tolist()) do
        for _, id in ipairs(row) do count = count + (id >= 0 and 1 or 0) end
      end
    end
    assert.same(batch.inputs:tolist(), rows)
    assert.equal(batch.count, count)
    assert.error_matches(function() batch:micros(6) end, 'cannot cut 5 rows into 6 parts')
  end)

  it('permutes: every index once, a pure function of seed, epoch and index', function()
    for _, n in ipairs { 1, 2, 3, 7, 64, 65, 1000 } do
      for seed = 1, 3 do
        local seen = {}
        for i = 0, n - 1 do
          local to = permutation(n, seed, 0, i)
          assert.is_true(to >= 0 and to < n and not seen[to])
          seen[to] = true
        end
      end
    end
    assert.not_equal(permutation(1000, 1, 0, 0), permutation(1000, 2, 0, 0))
    assert.not_equal(permutation(1000, 1, 0, 0), permutation(1000, 1, 1, 0))
  end)

  it('serves every row once an epoch, in another order in each', function()
    local text = ('abcdefghijklmnopqrstuvwxyz'):rep(2)
    local rows = corpus(text):pack(4):shuffle { seed = 3 }:batch(1)
    local orders = {}
    for epoch = 0, 1 do
      local seen, order = {}, {}
      for k = 1, rows.n do
        local first = rows:at(epoch * rows.n + k).rows[1].first
        assert.is_nil(seen[first])
        seen[first], order[k] = true, first
      end
      orders[epoch + 1] = table.concat(order, ' ')
    end
    assert.not_equal(orders[1], orders[2])
  end)

  it('holds out the end of the text', function()
    local rest, held_out = corpus('abcdefghi'):hold_out(0.2)
    assert.same({ 97, 98, 99, 100, 101, 102, 103, 104 }, rest.tokens:tolist())
    assert.same({ 105, 257 }, held_out.tokens:tolist())
  end)

  it('knows the bigram entropy of a text', function()
    -- after a: b, b, c, each a third of the time; after b and c: always the same
    local text = corpus 'abacab'
    assert.near((3 * (2 / 3 * math.log(3 / 2) + 1 / 3 * math.log(3)) + 2 * math.log(2)) / 6,
                text:bigram_entropy(), 1e-12)
  end)

  it('has a fingerprint that tells what has changed', function()
    local function rows(text, length, size) return corpus(text):pack(length):batch(size) end
    local own = rows('abcdef', 3, 2)
    local fingerprint = own:fingerprint()
    assert.same({ tokens = 7, hash = fingerprint.hash, length = 3, size = 2 }, fingerprint)
    assert.matches('^%x+$', fingerprint.hash)
    assert.equal(16, #fingerprint.hash)
    assert.is_nil(own:difference(fingerprint))
    assert.is_nil(rows('abcdef', 3, 2):difference(fingerprint))
    local changed = {
      ['a text of 7 tokens, not 8 (data, held_out, tokenizer)'] = rows('abcdefg', 3, 2),
      ['another text (data, or how it is read: tokenizer, held_out, what of a conversation is '
       .. 'learned)'] = rows('abcdeg', 3, 2),
      ['rows of 3 tokens, not 4 (seq_len)'] = rows('abcdef', 4, 2),
      ['batches of 2 rows, not 3 (batch)'] = rows('abcdef', 3, 3),
      ['a shuffle with seed none, not 5 (seed)'] = rows('abcdef', 3, 2):shuffle { seed = 5 },
    }
    for sentence, other in pairs(changed) do
      assert.equal(sentence, other:difference(fingerprint))
    end
    -- each part of a corpus has its own
    local first, last = corpus('abcdefgh'):hold_out(0.5)
    assert.not_equal(first:hash(), last:hash())
  end)

  it('takes documents that are there already', function()
    assert.same({ 'a', 'b' }, ul.data.from({ 'a', 'b' }):documents())
    assert.same({ 97, 257 }, ul.data.from('a'):tokenize('bytes').tokens:tolist())
    assert.matches('data_spec.lua:%d+: data.from: document 2 is a number, not a string',
                   select(2, pcall(function() ul.data.from { 'a', 3 } end)))
    assert.error_matches(function() ul.data.from(3) end, 'document 1 is a number')
  end)

  it('takes a tokenizer of the caller, who gets strings', function()
    local words = { vocab = 9, eos = 7, pad = 8 }
    function words.count(text) return select(2, text:gsub('%a+', '')) end
    function words.encode_into(text, ids)
      local i = 0
      for word in text:gmatch '%a+' do ids[i], i = #word, i + 1 end
    end
    assert.same({ 1, 2, 3, 7 }, ul.data.from('a bb ccc'):tokenize(words).tokens:tolist())
  end)

  it('says what is wrong', function()
    assert.error_matches(function() corpus('ab'):pack(0) end, 'positive length, got 0')
    assert.error_matches(function() corpus('ab'):pack(2):at(1) end, 'with :batch%(n%)')
    assert.error_matches(function() corpus(''):pack(2):batch(1):at(1) end, 'less than two tokens')
    assert.error_matches(function() corpus('ab'):hold_out(1) end, 'between 0 and 1')
    assert.error_matches(function() corpus('ab'):hold_out 'x' end, 'between 0 and 1, got x')
    assert.error_matches(function() corpus('ab'):pack 'x' end, 'a positive length, got x')
    local rows = corpus('abcdefgh'):pack(2)
    assert.error_matches(function() rows:batch 'x' end, 'a positive number of rows, got x')
    assert.error_matches(function() rows:batch(2):at(1):micros 'x' end, 'into x parts')
    assert.error_matches(function() ul.data.batch() end, 'expected tensors of inputs and targets')
    assert.error_matches(function() ul.run { model = {} } end, 'run: data are needed')
    assert.error_matches(function() ul.data.from({}):tokenize 'byte' end,
                         "no tokenizer 'byte'; there is 'bytes'")
    assert.error_matches(function() corpus('ab'):pack(2):shuffle { sed = 1 } end,
                         "shuffle: no option 'sed'; did you mean 'seed'")
  end)
end)
