-- chat_spec.lua - ul.chat: each format by its ids, what is learned, what is refused.
local core = require 'ulysses.core'
local own = require 'tests.own_folder' ()
local small = require 'tests.small_tokenizers'
local tools = require 'ulysses.tools'
local ul = require 'ulysses'

setup(own.make)
teardown(own.remove)

local llama3_specials = { '<|begin_of_text|>', '<|end_of_text|>', '<|start_header_id|>',
                          '<|end_header_id|>', '<|eom_id|>' }

-- A small tokenizer with further special tokens; `more`: settings.
local function load(name, specials, more)
  local variant = small.variant(name)
  local change = { added_tokens = small.with_specials(variant, specials) }
  for key, value in pairs(more or {}) do change[key] = value end
  return ul.tokenizer.load(own.write(('%s-%d.json'):format(name, #specials),
                                     small.made(variant, change)))
end

local function user(text) return { role = 'user', content = text } end
local function assistant(text) return { role = 'assistant', content = text } end
local function system(text) return { role = 'system', content = text } end

-- The text of ids, and that of those to learn.
local function written(tok, ids, mask)
  local mine = {}
  for i, id in ipairs(ids) do
    if mask[i] == 1 then mine[#mine + 1] = id end
  end
  return tok:decode(ids, { specials = true }), tok:decode(mine, { specials = true })
end

describe('chat', function()
  it('writes the format of Llama 3', function()
    local tok = load('llama3', llama3_specials)
    assert.equal('llama3', ul.chat.family(tok))
    local all, mine = written(tok, ul.chat.encode(tok, nil, {
      system ' the quick\n', user '\194\160brown fox\226\128\131', assistant ' jump ',
      { role = 'tool', content = '12' }, assistant 'over' }))
    local function part(role, text)
      return '<|start_header_id|>' .. role .. '<|end_header_id|>\n\n' .. text .. '<|eot_id|>'
    end
    assert.equal('<|begin_of_text|>' .. part('system', 'the quick') .. part('user', 'brown fox')
                 .. part('assistant', 'jump') .. part('ipython', '12') .. part('assistant', 'over'),
                 all)
    assert.equal('jump<|eot_id|>over<|eot_id|>', mine)
  end)

  it('learns the last answer alone, where that is asked for', function()
    local tok = load('llama3', llama3_specials)
    local talk = { user 'a', assistant 'b', user 'c', assistant 'd', user 'e' }
    local _, mine = written(tok, ul.chat.encode(tok, 'llama3', talk, { loss = 'last' }))
    assert.equal('d<|eot_id|>', mine)
  end)

  it('ends with what stands before an answer', function()
    local tok = load('llama3', llama3_specials)
    local all, mine = written(tok, ul.chat.encode(tok, nil, { user 'a' }, { reply = true }))
    assert.matches('a<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n$', all)
    assert.equal('', mine)
  end)

  it('dates the system message, and goes on after a call', function()
    local tok = load('llama3', llama3_specials)
    local all = written(tok, ul.chat.encode(tok, nil, {
      user 'a', { role = 'assistant', content = 'x', continues = true } }, { date = '1 May 2025' }))
    assert.matches('system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n'
                   .. 'Today Date: 1 May 2025\n\n<|eot_id|>', all, 1, true)
    assert.matches('x<|eom_id|>$', all)
    all = written(tok, ul.chat.encode(tok, nil, { system 'S', user 'a' }, { date = '1 May 2025' }))
    assert.matches('2025\n\nS<|eot_id|><|start_header_id|>user', all, 1, true)
  end)

  it('never makes special tokens of what messages say', function()
    for _, case in ipairs { { load('llama3', llama3_specials), 'llama3' },
                            { load('first', { '[INST]', '[/INST]' }), 'mistral_v3' } } do
      local tok, family = unpack(case)
      local function specials(text)
        local n = 0
        for _, id in ipairs((ul.chat.encode(tok, family, { user(text), assistant(text) }))) do
          n = n + (select(2, tok:token(id)) and 1 or 0)
        end
        return n
      end
      assert.equal(specials 'a', specials '</s><s><|eot_id|>[INST] [/INST]<|start_header_id|>')
    end
  end)

  it('writes the formats of Mistral', function()
    local talk = { system 'S', user 'a', assistant 'b ', user 'c', assistant 'd' }
    for _, prepend in ipairs { 'first', 'legacy', 'never', 'always' } do
      local tok = load(prepend, { '[INST]', '[/INST]' })
      assert.equal('mistral_v3', ul.chat.family(tok))
      local all, mine = written(tok, ul.chat.encode(tok, 'mistral_v1', talk))
      assert.equal('<s> [INST] S\n\na [/INST] b </s> [INST] c [/INST] d</s>', all)
      assert.equal('b </s> d</s>', (mine:gsub('^ ', '')))
      all, mine = written(tok, ul.chat.encode(tok, nil, talk))
      assert.equal('<s>[INST] a[/INST] b</s>[INST] S\n\nc[/INST] d</s>', all)
      assert.equal('b</s> d</s>', (mine:gsub('^ ', '')))
    end
    local tok = load('tekken', { '[INST]', '[/INST]' })
    assert.equal('mistral_v3_tekken', ul.chat.family(tok))
    assert.equal('<s>[INST]a[/INST]b</s>[INST]S\n\nc[/INST]d</s>',
                 (written(tok, ul.chat.encode(tok, nil, talk))))
  end)

  it('refuses by name what a format does not have', function()
    local tok, spaces = load('llama3', llama3_specials), load('first', { '[INST]', '[/INST]' })
    local function refused(sentence, ...)
      local ok, what = pcall(ul.chat.encode, ...)
      assert.is_false(ok)
      assert.matches(sentence, tostring(what), 1, true)
    end
    refused("message 2 is from the user, but 'assistant' is due: in the format mistral_v3", spaces,
            nil, { user 'a', user 'b' })
    refused("message 1 is from the assistant, but 'user' is due", spaces, nil, { assistant 'a' })
    refused('message 2 is from the system; in the format mistral_v1 only the first may be', spaces,
            'mistral_v1', { user 'a', system 'b' })
    refused("message 1 has the role 'tool', which the format mistral_v1 does not have", spaces,
            'mistral_v1', { { role = 'tool', content = 'a' } })
    refused("message 1 has the role 'robot', which the format llama3 does not have", tok, nil,
            { { role = 'robot', content = 'a' } })
    refused('message 1 needs a role and a content', tok, nil, { { role = 'user' } })
    refused('there are no messages', tok, nil, {})
    refused('needs a message of the user', spaces, nil, { system 'a' })
    refused("no format 'lama3'; there are 'llama3', "
            .. "'mistral_v1', 'mistral_v3', 'mistral_v3_tekken', 'chatml', 'qwen2', 'qwen2.5', "
            .. "'qwen3'; did you mean 'llama3'?", spaces, 'lama3',
            { user 'a' })
    refused("is not for a tokenizer like", tok, 'mistral_v3', { user 'a' })
    refused("do not tell which format they are for; name it: 'llama3'", load('first', {}), nil,
            { user 'a' })
    refused("has no special token '[INST]', which the format mistral_v3 needs", load('first', {}),
            'mistral_v3', { user 'a' })
    refused("has no special token '<|start_header_id|>'", load('llama3', {}), 'llama3',
            { user 'a' })
    refused("loss must be 'all' or 'last', got 'some'", tok, nil, { user 'a' }, { loss = 'some' })
    refused('expected a tokenizer', 'llama3', nil, { user 'a' })
    assert.error_matches(function() ul.chat.family(5) end, 'chat.family: expected a tokenizer')
    refused('only the format llama3 has a date', spaces, nil, { user 'a' }, { date = '1 May' })
    for _, how in ipairs { { date = '1 May' }, { thinking = false } } do -- a setting is wrong
      local _, problem = pcall(ul.chat.encode, spaces, nil, { user 'a' }, how)
      assert.is_true(type(problem) == 'table' and problem.refusal, tostring(problem))
    end
  end)

  it('refuses a tokenizer of a later format', function()
    assert.is_nil(ul.chat.family(load('tekken', { '[INST]', '[/INST]', '[SYSTEM_PROMPT]' })))
  end)
end)

describe('chat as ChatML and Qwen', function()
  local added = { '<|im_start|>', '<|im_end|>', '<tool_response>', '</tool_response>', '<think>',
                  '</think>', '\n\n' }

  -- The small tokenizer of the golden rows, in a folder with a template.
  local function qwen(template, name)
    local variant, place = small.variant 'qwen2', ('%s/%s'):format(own.path, name or 'qwen')
    local list = small.with_specials(variant, added)
    for i = #list - 4, #list do list[i].special = false end
    assert(core.folder_make(place))
    local path = own.write((name or 'qwen') .. '/tokenizer.json',
                           small.made(variant, { added_tokens = list }))
    if template then
      own.write((name or 'qwen') .. '/tokenizer_config.json',
                ul.json.encode { chat_template = template })
    end
    return ul.tokenizer.load(path, { cache = false })
  end

  it('gives the golden ids', function()
    local tok, n = qwen(), 0
    for line in io.lines 'tests/golden/chatml.jsonl' do
      local row = ul.json.decode(line)
      local ids = ul.chat.encode(tok, row.family, row.messages,
                                 { reply = row.reply, thinking = row.thinking })
      assert.same({ row.family, tok:decode(row.ids, { specials = true }) },
                  { row.family, tok:decode(ids, { specials = true }) })
      assert.same(row.ids, ids)
      n = n + 1
    end
    assert.equal(12 + 12 + 16 + 39, n)
  end)

  it('learns what an answer says, and what it thinks', function()
    local tok = qwen()
    local function mine(family, answer, given)
      return (select(2, written(tok, ul.chat.encode(tok, family, { user 'a', assistant(answer) },
                                                    given))))
    end
    assert.equal('fox<|im_end|>', mine('qwen2.5', 'fox'))
    assert.equal('<think>\n\n</think>\n\nfox<|im_end|>', mine('qwen3', 'fox'))
    assert.equal('fox<|im_end|>', mine('qwen3', 'fox', { thinking = false }))
    assert.equal('<think>\nso\n</think>\n\nfox<|im_end|>',
                 mine('qwen3', '<think>so</think>fox', { thinking = false }))
    -- the first token is of the line break before the answer and of its own
    assert.equal('\n\n\nfox<|im_end|>', mine('chatml', '\n\nfox'))
  end)

  it('knows the format by the template', function()
    local function told(template, name) return { ul.chat.family(qwen(template, name)) } end
    local head = "'<|im_start|>system\n%s<|im_end|>\n'"
    assert.same({ 'chatml' }, told(nil, 'none'))
    assert.same({ 'chatml' }, told("'<|im_start|>' + message.role", 'plain'))
    assert.same({ 'qwen2' }, told(head:format 'You are a helpful assistant.', 'q2'))
    local alibaba = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.'
    assert.same({ 'qwen2.5' }, told(head:format(alibaba):gsub('\n', '\\n'), 'q25'))
    assert.same({ 'qwen3' }, told("last_query_index '<|im_start|>' '</think>'", 'q3'))
    assert.same({}, told("last_query_index '<|im_start|>assistant\\n<think>\\n' '</think>'", 'q3t'))
    assert.same({}, told("'<|im_start|>' message.content | trim", 'trims'))
    assert.same({}, told("'[INST]'", 'other'))
    local tok = qwen(head:format 'You are S.', 'own')
    assert.same({ 'chatml', 'You are S.' }, { ul.chat.family(tok) })
    assert.equal('<|im_start|>system\nYou are S.<|im_end|>\n<|im_start|>user\na<|im_end|>\n',
                 (written(tok, ul.chat.encode(tok, nil, { user 'a' }))))
    own.write('none/chat_template.jinja', 'x')
    assert.is_nil(ul.chat.family(ul.tokenizer.load(own.path .. '/none', { cache = false })))
  end)

  it('ends an answer that is written', function()
    local tok, n = qwen(), 0
    local stop = tok:id '<|im_end|>'
    local model, seen = {}, nil
    function model.logits(_, inputs)
      n = n + 1
      seen = inputs:tolist()[1]
      local row = {}
      for id = 0, stop + 9 do row[id + 1] = id == (n < 3 and stop + 3 or stop) and 9 or -9 end
      return ul.tensor { { row } }
    end
    local how = { tokenizer = tok, n = 9, temperature = 0, context = 1000 }
    assert.equal('<think><think>', ul.generate(model, { user 'a' }, how))
    assert.equal(3, n)
    how.family, how.tools = 'qwen2.5', { { name = 'f' } }
    ul.generate(model, { user 'a' }, how)
    assert.same((ul.chat.encode(tok, 'qwen2.5', { user 'a' }, { reply = true, tools = how.tools })),
                seen)
  end)

  it('refuses what a format does not have', function()
    local tok = qwen()
    local function refused(sentence, family, messages, given)
      local ok, what = pcall(ul.chat.encode, tok, family, messages, given)
      assert.is_false(ok)
      assert.matches(sentence, tostring(what), 1, true)
    end
    refused("message 1 has the role 'tool', which the format qwen2 does not have", 'qwen2',
            { { role = 'tool', content = 'a' } })
    refused('message 1 has reasoning_content, which the format qwen2.5 does not have', 'qwen2.5',
            { { role = 'assistant', content = 'a', reasoning_content = 'b' } })
    local calls = { { role = 'assistant', content = '', tool_calls = { { name = 'f' } } } }
    refused('message 1 has tool_calls, which the format qwen2 does not have', 'qwen2', calls)
    refused('there are tools, which the format chatml does not have', 'chatml', { user 'a' },
            { tools = { { name = 'f' } } })
    refused('message 1 has function_call, which is not written; tool_calls are', 'qwen3',
            { { role = 'assistant', content = 'a', function_call = { name = 'f' } } })
    for change, sentence in pairs {
      [{ 5 }] = 'message 1: call 1 has no name', [5] = 'message 1 has tool_calls that are no list',
      [{ a = 5 }] = 'message 1 has tool_calls that are no list',
      [{ { name = 'f', arguments = '{' } }] = 'call 1 needs arguments that are a JSON object',
      [{ { name = 'f', arguments = '[1]' } }] = 'call 1 needs arguments that are a JSON object',
    } do
      calls[1].tool_calls = change
      refused(sentence, 'qwen3', calls)
    end
    local none = "'tools' must be a list of tools"
    for change, sentence in pairs { [5] = none, ['{}'] = none, [{ a = 1 }] = none,
                                    [{ 5 }] = 'tool 1 is no JSON object',
                                    [{ '[]' }] = 'tool 1 is no JSON object' } do
      refused(sentence, 'qwen3', { user 'a' }, { tools = change })
    end
    refused('thinking is for the format qwen3, not for chatml', nil, { user 'a' },
            { thinking = true })
  end)
end)

describe('chat with tools', function()
  local toks = {}

  setup(function()
    toks['qwen2.5'] = load('qwen2', { '<|im_start|>', '<|im_end|>' })
    toks.qwen3, toks.llama3 = toks['qwen2.5'], load('llama3', llama3_specials)
    local specials = { '[INST]', '[/INST]', '[TOOL_CALLS]' }
    for _, name in ipairs { 'AVAILABLE_TOOLS', 'TOOL_RESULTS' } do
      specials[#specials + 1], specials[#specials + 2] = '[' .. name .. ']', '[/' .. name .. ']'
    end
    toks.mistral_v3, toks.mistral_v3_tekken = load('first', specials), load('tekken', specials)
  end)

  it('gives the golden texts', function()
    local n = 0
    for line in io.lines 'tests/golden/tools.jsonl' do
      local row = ul.json.decode(line)
      tools.keep_order(row, line)
      local tok, date = toks[row.family], row.family == 'llama3' and '26 Jul 2024' or nil
      local ids = ul.chat.encode(tok, row.family, row.messages, { tools = row.tools, date = date })
      assert.same({ row.family, row.text }, { row.family, tok:decode(ids, { specials = true }) })
      n = n + 1
    end
    assert.equal(2 * (6 + 8 + 3) + 2 * 8, n)
  end)

  it('spells JSON as Python does', function()
    for text, expected in pairs {
      ['{"a" :[ 1,{ } ,"\\u00e9\\/\\u001f\\"]{"] , "b":\ttrue}']
        = '{"a": [1, {}, "\195\169/\\u001f\\"]{"], "b": true}',
      ['1.0e0'] = '1.0', ['1E2'] = '100.0', ['-0'] = '0', ['-0.0'] = '-0.0', ['1e22'] = '1e+22',
      ['3e-5'] = '3e-05', ['0.1'] = '0.1', ['123456.789'] = '123456.789', ['1e16'] = '1e+16',
      ['1e15'] = '1000000000000000.0', ['12345678901234567890'] = '12345678901234567890',
    } do
      assert.equal(expected, tools.spell(text))
    end
  end)

  it('learns calls, and takes tables and texts', function()
    local call = { name = 'f', arguments = { b = { 1, 'x' }, a = 0.5 } }
    local asks = { role = 'assistant', content = ul.json.null,
                   tool_calls = { { type = 'function', ['function'] = call } } }
    local talk = { user 'a', asks, { role = 'tool', content = '12' }, assistant 'b' }
    local function mine(family, given)
      local tok = toks[family]
      return (select(2, written(tok, ul.chat.encode(tok, family, talk, given))))
    end
    local text = '<tool_call>\n{"name": "f", "arguments": {"a": 0.5, "b": [1, "x"]}}\n</tool_call>'
    assert.equal(text .. '<|im_end|>b<|im_end|>', mine 'qwen2.5')
    call.arguments = '{"a":0.5,"b":[1,"x"]}'
    assert.equal(text .. '<|im_end|>b<|im_end|>', mine 'qwen2.5')
    assert.equal('{"name": "f", "parameters": {"a": 0.5, "b": [1, "x"]}}<|eot_id|>b<|eot_id|>',
                 mine('llama3', { date = '1 May 2025' }))
    local named = ul.chat.encode(toks.qwen3, 'qwen3', talk, { tools = { { name = 'f' } } })
    assert.same(named, (ul.chat.encode(toks.qwen3, 'qwen3', talk, { tools = '[{"name":"f"}]' })))
    for _, none in ipairs { {}, '', ul.json.null, '[]' } do
      assert.same((ul.chat.encode(toks.qwen3, 'qwen3', talk)),
                  (ul.chat.encode(toks.qwen3, 'qwen3', talk, { tools = none })))
    end
  end)

  it('refuses what Mistral has no place for', function()
    local function refused(sentence, ...)
      local ok, what = pcall(ul.chat.encode, toks.mistral_v3, 'mistral_v3', { user 'a', ... })
      assert.is_false(ok)
      assert.matches(sentence, tostring(what), 1, true)
    end
    local function asks(id, content)
      return { role = 'assistant', content = content, tool_calls = { { name = 'f', id = id } } }
    end
    local function gave(id) return { role = 'tool', content = 'is "5"', tool_call_id = id } end
    refused("the id of a call is 'call_1'; in the format mistral_v3 it has 9 letters and digits",
            asks 'call_1')
    refused('the id of a call is missing', asks(nil))
    refused('the id of a call is missing', asks 'abcdefghi', gave(nil))
    refused('there is text beside a call, which', asks('abcdefghi', 'b'))
    refused("message 3 is from the user, but 'tool' is due", asks 'abcdefghi', user 'b')
    refused("message 4 is from the tool, but 'assistant' is due", asks 'abcdefghi',
            gave 'abcdefghi', gave 'abcdefghi')
    refused("message 2 is from the tool, but 'assistant' is due", gave 'abcdefghi')
    local all, mine = written(toks.mistral_v3, ul.chat.encode(toks.mistral_v3, nil, {
      user 'a', asks 'abcdefghi', gave 'abcdefghi' }))
    local result = '[TOOL_RESULTS] {"content": "is \\"5\\"", "call_id": "abcdefghi"}[/TOOL_RESULTS]'
    assert.matches(result, all, 1, true)
    assert.equal('[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}]</s>', mine)
  end)

  it('refuses what Llama has no place for', function()
    local function refused(sentence, talk, given)
      local ok, what = pcall(ul.chat.encode, toks.llama3, 'llama3', talk, given)
      assert.is_false(ok)
      assert.matches(sentence, tostring(what), 1, true)
    end
    local dated, f = { date = '1 May 2025' }, { name = 'f', arguments = {} }
    local function asks(content, ...)
      return { user 'a', { role = 'assistant', content = content, tool_calls = { ... } } }
    end
    refused("message 2 has tool_calls, which the format llama3 does not have without a date",
            asks('', f))
    refused('there are tools, which the format llama3 does not have without a date', { user 'a' },
            { tools = { f } })
    refused('message 2 has 2 calls; in the format llama3 it may have one', asks('', f, f), dated)
    refused('message 2 has text beside its call, which the format llama3 has no place for',
            asks('b', f), dated)
    refused('message 1 is from the assistant; where there are tools, the format llama3 begins with '
            .. 'the user', { assistant 'a' }, { date = '1 May 2025', tools = { f } })
    refused('message 1 has tool_calls, and is from the user',
            { { role = 'user', content = 'a', tool_calls = { f } } }, dated)
  end)
end)

describe('chat with a real tokenizer', function()
  local files = { llama3 = 'llama3', mistral_nemo_v3tekken = 'mistral_nemo',
                  mistral_v1 = 'mistral_v03/tokenizer.model', mistral_v3 = 'mistral_v03' }
  local families = { mistral_nemo_v3tekken = 'mistral_v3_tekken' }
  local toks = {}
  local function tok_of(place, family)
    local path = place .. 'tokenizers/' .. files[family]
    toks[family] = toks[family] or ul.tokenizer.load(path, { cache = false })
    return toks[family]
  end

  local function check(place, row)
    local tok = tok_of(place, row.family)
    local ids, mask = ul.chat.encode(tok, families[row.family] or row.family, row.messages)
    -- The rows of the first format are for v0.1, whose other tokens stand 768 ids lower.
    if row.family == 'mistral_v1' then
      for i, id in ipairs(ids) do ids[i] = id > 2 and id - 768 or id end
    else
      assert.same(ids, (ul.chat.encode(tok, nil, row.messages)))
    end
    assert.same(row.ids, ids)
    assert.same(row.loss_mask, mask)
  end

  it('gives the golden ids and masks', function()
    local place, n = small.shared(), 0
    if not place then return pending 'shared/data is not there' end
    for _, path in ipairs { place .. 'golden/chat.jsonl', 'tests/golden/chat.jsonl' } do
      for line in io.lines(path) do
        check(place, ul.json.decode(line))
        n = n + 1
      end
    end
    assert.equal(24 + 12, n)
  end)
end)
