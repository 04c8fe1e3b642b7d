-- data_pairs_spec.lua - ul.data.pairs: two answers to a prompt, from JSON lines to batches.
local own = require 'tests.own_folder' ()
local small = require 'tests.small_tokenizers'
local ul = require 'ulysses'

local write, tok = own.write, nil

setup(function()
  own.make()
  local variant = small.variant 'first'
  tok = ul.tokenizer.load(write('tokenizer.json', small.made(variant, {
    added_tokens = small.with_specials(variant, { '[INST]', '[/INST]' }) })))
end)
teardown(own.remove)

local function says(role, content) return { role = role, content = content } end

local function plain(n)
  local list = {}
  for i = 1, n do
    list[i] = { prompt = ('p'):rep(i), chosen = 'good' .. i, rejected = 'bad' }
  end
  return list
end

describe('data.pairs', function()
  it('makes rows of what was chosen, and then of what was rejected', function()
    local all = ul.data.pairs { { prompt = 'ab', chosen = 'cde', rejected = 'f' },
                                { prompt = 'g', chosen = 'h', rejected = 'ij' } }:tokenize 'bytes'
    local batch = all:batch(2):at(1)
    local part = batch:micros(1)()
    local eos, pad = 257, require('ulysses.data.bytes').pad
    assert.same({ { 97, 98, 99, 100, 101, eos }, { 103, 104, eos, pad, pad, pad },
                  { 97, 98, 102, eos, pad, pad }, { 103, 105, 106, eos, pad, pad } },
                part.inputs:tolist())
    assert.same({ { -100, 99, 100, 101, eos, -100 }, { 104, eos, -100, -100, -100, -100 },
                  { -100, 102, eos, -100, -100, -100 }, { 105, 106, eos, -100, -100, -100 } },
                part.targets:tolist())
    assert.same({ 2, 2, 24 }, { part.n, part.total, batch.tokens })
    -- parts of a step tell it their shares of its means
    batch = all:at(1)
    for micro in batch:micros(2) do
      micro:report(ul.tensor(micro.n / micro.total), { margin = 3, accuracy = micro.n })
    end
    assert.near(1, batch:loss(), 1e-6)
    assert.same({ margin = 3, accuracy = 1 }, batch:seen())
    assert.error_matches(function() all:at(1):micros(3) end, '2 pairs .* into 3 equal parts')
  end)

  it('takes conversations, however the prompt is given', function()
    local question, good, bad = says('user', 'the quick'), says('assistant', 'brown fox'),
      says('assistant', 'lazy dogs')
    local expected
    for _, example in ipairs {
      { chosen = { question, good }, rejected = { question, bad } },
      { prompt = { question }, chosen = { good }, rejected = { bad } },
      { prompt = { question }, chosen = 'brown fox', rejected = 'lazy dogs' },
      { prompt = 'the quick', chosen = { good }, rejected = { bad } },
      { prompt = 'the quick', chosen = { question, good }, rejected = { question, bad } },
      { prompt = ul.json.null, chosen = { question, good }, rejected = { question, bad } },
    } do
      local all = ul.data.pairs { example }:tokenize(tok)
      expected = expected or all:fingerprint().hash
      assert.equal(expected, all:fingerprint().hash)
    end
    local ids, mask = ul.chat.encode(tok, nil, { question, good })
    local x, y = {}, {}
    for i, id in ipairs(ids) do
      x[i], y[i] = id, mask[i + 1] == 1 and ids[i + 1] or -100
    end
    local part = ul.data.pairs { { chosen = { question, good }, rejected = { question, bad } } }
      :tokenize(tok):batch(1):at(1):micros(1)()
    assert.same({ x, y }, { { unpack(part.inputs:tolist()[1], 1, #ids) },
                            { unpack(part.targets:tolist()[1], 1, #ids) } })
  end)

  it('shows each pair once in an epoch, and knows other data', function()
    local function read(list, given)
      return ul.data.pairs(list):tokenize('bytes', given):shuffle { seed = 3 }
    end
    local all = read(plain(6), { length = 12 }):batch(2)
    assert.same({ 6, 0 }, { all.n, all.long })
    local seen = {}
    for k = 1, 3 do
      local targets = all:at(k):micros(1)().targets:tolist()
      for b = 1, 2 do
        for t, id in ipairs(targets[b]) do
          if id >= 49 and id <= 54 and targets[b][t + 1] == 257 then seen[id - 48] = true end
        end
      end
    end
    assert.equal(6, #seen)
    local before = all:fingerprint()
    assert.is_nil(all:difference(before))
    local function differs(other) return other:difference(before) end
    assert.equal('batches of 2 pairs, not 3 (batch)', differs(read(plain(6)):batch(3)))
    local short = read(plain(6), { length = 9 })
    assert.equal(3, short.long)
    assert.equal('6 pairs, not 3 (data, seq_len)', differs(short:batch(2)))
    local list = plain(6)
    list[4].rejected = 'dab'
    assert.equal('other pairs (data, tokenizer)', differs(read(list):batch(2)))
  end)

  it('says what is wrong, and where', function()
    local function refused(sentence, text, tokenizer, given)
      local path = write('wrong.jsonl', text)
      local ok, what = pcall(function()
        return ul.data.pairs(path):tokenize(tokenizer or tok, given)
      end)
      assert.is_false(ok)
      assert.matches(sentence, tostring(what), 1, true)
    end
    local good = ul.json.encode(plain(1)[1])
    refused('wrong.jsonl:2: begins a list', good .. '\n[')
    refused('wrong.jsonl:2: is no JSON object', good .. '\n5')
    refused("wrong.jsonl:1: 'chosen' must be text, or a list of messages", '{"messages": 5}')
    refused("wrong.jsonl:1: 'rejected' must be text, or a list of messages",
            '{"prompt": "a", "chosen": "b", "rejected": {}}')
    refused("wrong.jsonl:1: 'prompt' must be text, or a list of messages",
            '{"prompt": 5, "chosen": "b", "rejected": "c"}')
    refused("wrong.jsonl:1: 'prompt' must be text where the answers are",
            '{"chosen": "b", "rejected": "c"}')
    refused("wrong.jsonl:3: 'chosen' has no answer to learn: no message in it is from the assist",
            good .. '\n\n{"prompt": "a", "chosen": [{"role": "user", "content": "b"}], '
            .. '"rejected": "c"}')
    refused("wrong.jsonl:1: 'chosen' has nothing to learn: it is empty",
            '{"prompt": "", "chosen": "", "rejected": "a"}', 'bytes')
    refused("wrong.jsonl:1: chat: message 1 has the role 'me'",
            '{"chosen": [{"role": "me", "content": "b"}, {"role": "assistant", "content": "b"}], '
            .. '"rejected": "c"}')
    refused('conversations need a tokenizer with special tokens',
            '{"chosen": [{"role": "assistant", "content": "b"}], "rejected": "c"}', 'bytes')
    refused('has no examples', '\n')
    refused("wrong.jsonl:1: 'rejected' has nothing to learn: it is empty",
            '{"prompt": "a", "chosen": "b", "rejected": ""}')
    refused("wrong.jsonl:1: 'chosen' has nothing to learn: it is empty",
            '{"prompt": [{"role": "user", "content": "a"}], "chosen": "", "rejected": "b"}')
    refused("has nothing to learn: what was chosen is what was rejected",
            '{"prompt": "a", "chosen": "b", "rejected": "b"}')
    refused("none of the 1 pairs of", good, tok, { length = 2 })
    assert.error_matches(function() ul.data.pairs(3) end, 'data.pairs: expected the name of a file')
  end)
end)
