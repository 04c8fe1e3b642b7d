-- data_chat_spec.lua - ul.data.chat: examples with answers, from JSON lines to batches.
local fit = require 'ulysses.data.fit'
local own = require 'tests.own_folder' ()
local small = require 'tests.small_tokenizers'
local ul = require 'ulysses'

local folder, write, tok = own.path, own.write, nil

setup(function()
  own.make()
  local variant = small.variant 'first'
  tok = ul.tokenizer.load(write('tokenizer.json', small.made(variant, {
    added_tokens = small.with_specials(variant, { '[INST]', '[/INST]' }) })))
end)
teardown(own.remove)

local function talk(question, answer)
  return { messages = { { role = 'user', content = question },
                        { role = 'assistant', content = answer } } }
end

-- What each row of a corpus learns, as text; all of its labels are looked at.
local function learned(tokenizer, corpus, length)
  local list = {}
  for batch in corpus:pack(length):batch(1):once() do
    local x, y, ids, count = batch.inputs:tolist()[1], batch.targets:tolist()[1], {}, 0
    for t = 1, length do
      if y[t] ~= -100 then
        ids[#ids + 1], count = y[t], count + 1
        if t < length then assert.equal(y[t], x[t + 1]) end
      end
    end
    assert.equal(count, batch.count)
    list[#list + 1] = tokenizer:decode(ids, { specials = true })
  end
  return list
end

describe('data.chat', function()
  it('learns what the assistant says', function()
    local lines = {}
    for i, example in ipairs { talk('the quick', 'brown fox'), talk('lazy', 'dogs') } do
      lines[i] = ul.json.encode(example)
    end
    local path = write('talk.jsonl', lines[1] .. '\n\n' .. lines[2])
    local corpus = ul.data.chat(path):tokenize(tok)
    local rows = learned(tok, corpus, 64)
    assert.same({ 'brown fox</s> dogs</s>' }, { (rows[1]:gsub('^ ', '')) })
    assert.equal(2, #corpus.starts)
    local ids, mask = ul.chat.encode(tok, nil, talk('the quick', 'brown fox').messages)
    for i = 1, #ids do
      assert.same({ ids[i], mask[i] }, { corpus.tokens[i]:item(), corpus.mask[i]:item() })
    end
    -- the same from a list, and as ShareGPT has it
    local same = ul.data.chat { talk('the quick', 'brown fox'), { conversations = {
      { from = 'human', value = 'lazy' }, { from = 'gpt', value = 'dogs' } } } }:tokenize(folder)
    assert.equal(corpus:hash(), same:hash())
    local three = { talk('a', 'b').messages[1], talk('a', 'b').messages[2],
                    talk('c', 'd').messages[1], talk('c', 'd').messages[2] }
    local last = ul.data.chat { { messages = three } }:tokenize(tok, { loss = 'last' })
    assert.same({ 'd</s>' }, { (learned(tok, last, 64)[1]:gsub('^ ', '')) })
    local all = ul.data.chat { { messages = three } }:tokenize(tok)
    assert.are_not.equal(all:hash(), last:hash())
  end)

  it('learns completions and texts', function()
    local corpus = ul.data.chat { { prompt = 'ab', completion = 'cd' }, { text = 'xyz' } }
      :tokenize 'bytes'
    assert.same({ 97, 98, 99, 100, 257, 120, 121, 122, 257 }, corpus.tokens:tolist())
    assert.same({ 0, 0, 1, 1, 1, 0, 1, 1, 1 }, corpus.mask:tolist())
    local with_bos = ul.data.chat { { prompt = 'the', completion = ' fox' } }:tokenize(tok)
    assert.equal(tok.bos, with_bos.tokens[1]:item())
    assert.equal(tok.eos, with_bos.tokens[-1]:item())
  end)

  it('reads lines as other programs write them', function()
    local long = ('x'):rep(1e5)
    local path = write('odd.jsonl', '\239\187\191{"text": "ab"}\r\n\r\n \t\r\n'
                       .. '{"text": "\\u00e9\\ud83d\\ude00"}\r\n{"text":"' .. long .. '"}')
    local corpus = ul.data.chat(path):tokenize 'bytes'
    assert.same({ 0, 3, 10 }, { corpus.starts[1], corpus.starts[2], corpus.starts[3] })
    assert.equal(3 + 7 + 1e5 + 1, corpus.n)
    assert.same({ 195, 169, 240, 159, 152, 128, 257 }, corpus.tokens:narrow(1, 4, 7):tolist())
    local four = { talk('a', 'b').messages[1], talk('a', 'b').messages[2],
                   talk('c', 'd').messages[1], talk('c', 'd').messages[2] }
    four[2].weight, four[4].weight = 0, 1
    local some = ul.data.chat { { messages = four } }:tokenize(tok)
    assert.same({ 'd</s>' }, { (learned(tok, some, 64)[1]:gsub('^ ', '')) })
  end)

  it('takes null for a column that is not there', function()
    local null = ul.json.null
    local corpus = ul.data.chat { { prompt = null, completion = null, messages = null,
                                    text = 'ab' } }
    assert.same({ 97, 98, 257 }, corpus:tokenize 'bytes'.tokens:tolist())
  end)

  it('lays whole examples into rows, the longest first', function()
    local examples = {}
    for i, n in ipairs { 3, 9, 5, 2, 6, 9 } do
      examples[i] = { prompt = '', completion = string.char(96 + i):rep(n) }
    end
    local corpus = ul.data.chat(examples):tokenize 'bytes'
    local rows = corpus:pack(10)
    local texts = {}
    for i = 0, rows.n - 1 do
      local row = {}
      for k = 1, 10 do
        local id = rows.corpus.tokens[i * 10 + k]:item()
        row[k] = id < 256 and string.char(id) or id == 257 and '|' or '.'
      end
      texts[i + 1] = table.concat(row)
    end
    assert.same({ 'bbbbbbbbb|', 'fffffffff|', 'eeeeee|dd|', 'ccccc|aaa|' }, texts)
    rows = corpus:pack(9)
    assert.same({ 2, 0 }, { rows.corpus.dropped, rows.corpus.cut })
    rows = corpus:pack(9, { overlong = 'cut' })
    assert.same({ 0, 2 }, { rows.corpus.dropped, rows.corpus.cut })
    assert.error_matches(function() corpus:pack(9, { overlong = 'refuse' }) end,
                         'example 2 has 10 tokens, and a row 9')
    assert.error_matches(function() corpus:pack(2) end, 'none of 6 examples is as short')
  end)

  it('attends within an example alone', function()
    local corpus = ul.data.chat { { text = 'abc' }, { text = 'de' } }:tokenize 'bytes'
    local batch = corpus:pack(8):batch(1):at(1)
    assert.same({ 0, 4, 7, 8 }, batch.docs:tolist())
    assert.same({ 0, 1, 2, 3, 0, 1, 2, 0 }, batch.positions:tolist()[1])
    assert.same({ 98, 99, 257, -100, 101, 257, -100, -100 }, batch.targets:tolist()[1])
    assert.equal(5, batch.count)
  end)

  it('holds out whole examples', function()
    local examples = {}
    for i = 1, 10 do examples[i] = { text = ('x'):rep(i) } end
    local corpus = ul.data.chat(examples):tokenize 'bytes'
    local train, rest = corpus:hold_out(0.2)
    assert.equal(10, #train.starts + #rest.starts)
    assert.equal(257, train.tokens[-1]:item())
    assert.equal(corpus.n, train.n + rest.n)
    assert.equal(rest.n, rest.mask:numel())
  end)

  it('fills rows as first fit does', function()
    math.randomseed(5)
    for _ = 1, 50 do
      local lengths, order, free, expected = {}, {}, {}, {}
      for i = 1, math.random(40) do lengths[i], order[i] = math.random(20), i end
      table.sort(order, function(a, b)
        if lengths[a] ~= lengths[b] then return lengths[a] > lengths[b] end
        return a < b
      end)
      for _, k in ipairs(order) do
        local row = 1
        while (free[row] or 20) < lengths[k] do row = row + 1 end
        free[row] = (free[row] or 20) - lengths[k]
        expected[row] = expected[row] or {}
        table.insert(expected[row], k)
      end
      assert.same(expected, fit(lengths, 20))
    end
  end)

  it('says what is wrong, and where', function()
    local function refused(sentence, text, tokenizer, given)
      local path = write('wrong.jsonl', text)
      local ok, what = pcall(function()
        return ul.data.chat(path):tokenize(tokenizer or tok, given)
      end)
      assert.is_false(ok)
      assert.matches(sentence, tostring(what), 1, true)
    end
    local good = ul.json.encode(talk('a', 'b'))
    refused('wrong.jsonl:2: column', good .. '\n{"messages": [}')
    refused('wrong.jsonl:3: is no JSON object', good .. '\n\n3')
    refused("wrong.jsonl:1: has none of 'messages'", '{"message": []}')
    refused("wrong.jsonl:1: 'completion' must be text", '{"prompt": "a"}')
    refused("wrong.jsonl:1: turn 1 is from 'me', who is not known",
            '{"conversations": [{"from": "me", "value": "a"}]}')
    refused("wrong.jsonl:1: chat: message 1 is from the assistant, but 'user' is due",
            '{"messages": [{"role": "assistant", "content": "a"}]}')
    refused('need a tokenizer with special tokens', good, 'bytes')
    refused("no format 'lama3'", good, tok, { family = 'lama3' })
    refused('has no examples', '\n')
    refused("wrong.jsonl:1: 'messages' must be a list of messages", '{"messages": 5}')
    refused("wrong.jsonl:1: 'conversations' must be a list", '{"conversations": {"a": 1}}')
    refused('wrong.jsonl:2: has nothing to learn: no message is from the assistant',
            good .. '\n{"messages": [{"role": "user", "content": "a"}]}')
    refused('wrong.jsonl:1: has nothing to learn: its text is empty', '{"text": ""}', 'bytes')
    refused("wrong.jsonl:2: has nothing to learn: 'completion' is empty",
            good .. '\n{"prompt": "a", "completion": ""}')
    local gap = ul.json.encode { messages = { talk('a').messages[1], talk('', ' \n').messages[2],
                                              talk('c').messages[1], talk('', 'd').messages[2] } }
    refused('wrong.jsonl:2: the answer in message 2 is empty', good .. '\n' .. gap)
    refused('wrong.jsonl:1: the answer in message 2 is empty', ul.json.encode(talk('a', '')), tok,
            { loss = 'last' })
    assert.equal(1, #ul.data.chat(write('gap.jsonl', gap)):tokenize(tok, { loss = 'last' }).starts)
    for _, key in ipairs { 'functions', 'images' } do
      refused(("wrong.jsonl:2: has '%s', which are not written"):format(key),
              good .. ('\n{"%s": [5], '):format(key) .. good:sub(2))
    end
    refused('wrong.jsonl:1: chat: message 2 has the weight 0.5; it may be 0 or 1',
            (good:gsub('"content":"b"', '"weight":0.5,%0')))
    refused('wrong.jsonl:1: chat: message 2 has the weight {"a":1}; it may be 0 or 1',
            (good:gsub('"content":"b"', '"weight":{"a":1},%0')))
    refused('wrong.jsonl:1: has nothing to learn', (good:gsub('"content":"b"', '"weight":0,%0')))
    for _, call in ipairs { '{"function": null}', '{"function": []}', 'null', '[1]' } do
      refused('wrong.jsonl:1: chat: message 2: call 1 has no name',
              (good:gsub('"content":"b"', '"tool_calls":[' .. call .. '],%0')))
    end
    refused('wrong.jsonl:1: begins a list; in JSON lines each line is one object',
            '[' .. good .. ',\n' .. good .. ']')
    refused('wrong.jsonl:1: begins a list', '[' .. good .. ']')
    refused('wrong.jsonl:1: is a part of an object; in JSON lines', '{\n"text": "a"\n}')
    refused('wrong.jsonl:1: has lines that end with a carriage return alone',
            good .. '\r' .. good .. '\r')
    refused('wrong.jsonl:1: is UTF-16 text, and UTF-8 is read', '\255\254{\0"\0a\0"\0')
    refused('wrong.jsonl:1: is UTF-16 text, and UTF-8 is read', '{\0"\0a\0"\0}\0\n\0')
    refused('wrong.jsonl:2: column', good .. '\n{"text": "caf\233"}')
    refused('wrong.jsonl:2: column', good .. '\n{"text": "\\ud83d"}')
    refused('wrong.jsonl:1: column 1000010: premature end of input', '{"text": "' .. ('x'):rep(1e6))
    refused('wrong.jsonl:1: chat: there are tools, which the format mistral_v1 does not have',
            '{"tools": [{"name": "f"}], ' .. good:sub(2), tok, { family = 'mistral_v1' })
    local one = ul.data.chat { talk('a', 'b') }
    assert.error_matches(function() one:tokenize(tok, { loss = 'lst' }) end,
                         "loss must be 'all' or 'last', got 'lst'")
    assert.error_matches(function()
      ul.data.chat { { prompt = 'abcdef', completion = 'g' } }:tokenize 'bytes':pack(4, {
        overlong = 'cut' })
    end, 'nothing is left to learn: all answers begin behind the 4 tokens')
    for _, corpus in ipairs { ul.data.from 'abcde':tokenize 'bytes',
                              ul.data.chat { { text = 'abcde' } }:tokenize 'bytes' } do
      assert.error_matches(function() corpus:hold_out(0.05) end, 'held_out=0 of a recipe')
    end
    assert.error_matches(function() ul.data.chat(3) end, 'expected the name of a file')
    assert.error_matches(function()
      ul.data.from('a text'):tokenize('bytes'):pack(4, { overlong = 'cut' })
    end, 'overlong is for examples with answers')
  end)
end)
