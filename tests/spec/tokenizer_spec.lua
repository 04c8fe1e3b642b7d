-- tokenizer_spec.lua - ul.tokenizer: small tokenizers of every kind against another implementation,
-- real ones where they lie beside the checkout, streaming, offsets, and long words.
local own = require 'tests.own_folder' ()
local small = require 'tests.small_tokenizers'
local ul = require 'ulysses'
local json, tokenizer = ul.json, ul.tokenizer

local folder, write = own.path, own.write

setup(own.make)
teardown(own.remove)

-- ---- the tokenizers of tests/golden/tokenizer.jsonl ----

local golden, made = small.golden, small.made

local function load(name, change)
  return tokenizer.load(write('tokenizer.json', made(small.variant(name), change)))
end

local template = {
  type = 'TemplateProcessing',
  single = { { SpecialToken = { id = '<s>', type_id = 0 } },
             { Sequence = { id = 'A', type_id = 0 } } },
  special_tokens = { ['<s>'] = { id = '<s>', ids = { 1 }, tokens = { '<s>' } } },
}

-- What a decoder makes of ids, one after the other.
local function streamed(tok, ids)
  local decoder, parts = tok:decoder { specials = true }, {}
  for i, id in ipairs(ids) do parts[i] = decoder:push(id) end
  parts[#parts + 1] = decoder:finish()
  return table.concat(parts)
end

-- Tokens cover the text from its first byte to its last.
local function check_offsets(tok, text)
  local ids, first, last = tok:encode(text, { offsets = true, specials = true })
  local at = 0
  for i = 1, #ids do
    assert(first[i] == at + 1 and last[i] >= at, text)
    at = last[i]
  end
  assert.equal(#text, at)
end

describe('tokenizer', function()
  for _, one in ipairs(golden) do
    it('does as the Rust implementation does: ' .. one.name, function()
      local tok = tokenizer.load(write('tokenizer.json', made(one)))
      for _, row in ipairs(one.rows) do
        local text, plain, ids, decoded = unpack(row)
        assert.same(plain, tok:encode(text))
        assert.same(ids, tok:encode(text, { specials = true }))
        assert.equal(decoded, tok:decode(ids, { specials = true }))
        assert.equal(#plain, tok:count(text))
        check_offsets(tok, text)
        assert.equal(decoded, streamed(tok, ids))
      end
    end)
  end

  for name, make in pairs { tekken = small.tekken, legacy = small.sentencepiece } do
    it('reads the same from another kind of file: ' .. name, function()
      local tok = tokenizer.load(write('other', make()))
      for _, row in ipairs(small.variant(name).rows) do
        local text, plain, ids, decoded = unpack(row)
        assert.same(plain, tok:encode(text))
        assert.same(ids, tok:encode(text, { specials = true }))
        assert.equal(decoded, tok:decode(ids, { specials = true }))
      end
    end)
  end

  it('passes over a byte-order mark at the beginning of a file', function()
    local one, mark = golden[1], '\239\187\191'
    for _, text in ipairs { made(one), small.tekken() } do
      local plain = tokenizer.load(write('plain', text))
      local marked = tokenizer.load(write('marked', mark .. text))
      assert.same(plain:encode 'Some text', marked:encode 'Some text')
    end
  end)

  it('says where each token lies', function()
    local tok = load 'llama3'
    local text = 'the <s>\255 fox \228\189\160'
    local ids, first, last = tok:encode(text, { offsets = true, specials = true, bos = false })
    local parts = {}
    for i = 1, #ids do parts[i] = text:sub(first[i], last[i]) end
    assert.equal(text, table.concat(parts))
    assert.equal('the', parts[1])
    assert.equal('<s>', parts[3])
    tok = load('first', { post_processor = template })
    ids, first, last = tok:encode('fox  \228\189\160 a', { offsets = true, bos = true })
    assert.same({ 1, 1, 0 }, { ids[1], first[1], last[1] })
    assert.equal('fox', ('fox  \228\189\160 a'):sub(first[2], last[2]))
    assert.equal(#'fox  \228\189\160 a', last[#last])
  end)

  it('keeps text text unless special tokens are asked for', function()
    for _, name in ipairs { 'llama3', 'first' } do
      local tok = load(name)
      for _, id in ipairs(tok:encode '<s>hi</s><|eot_id|>') do assert.is_true(id > 4) end
      local ids = tok:encode('<s>hi</s>', { specials = true })
      assert.same({ 1, 2 }, { ids[1], ids[#ids] })
      assert.equal('hi', tok:decode(ids))
      assert.equal('<s>hi</s>', (tok:decode(ids, { specials = true }):gsub('> ', '>')))
      -- the longest of those that begin alike
      assert.same({ 4, 3 }, tok:encode('<|eot_id|><|eot|>', { specials = true }))
    end
    assert.same({ ['<unk>'] = 0, ['<s>'] = 1, ['</s>'] = 2, ['<|eot|>'] = 3, ['<|eot_id|>'] = 4 },
                load('llama3'):specials())
  end)

  it('puts BOS and EOS around a text once', function()
    local tok = load('llama3', { post_processor = template })
    assert.same({ 1, 2 }, { tok.bos, tok.eos })
    local ids = tok:encode('the', { bos = true, eos = true })
    assert.same({ 1, 2, 3 }, { ids[1], ids[#ids], #ids })
    assert.same({ 1, 2 }, tok:encode('', { bos = true, eos = true }))
    assert.same(ids, tok:encode('<s>the</s>', { bos = true, eos = true, specials = true }))
    local text = tok:encode('<s>the', { bos = true })
    assert.is_true(text[1] == 1 and text[2] > 4)
    assert.error_matches(function()
      local without = load 'llama3'
      assert.same({ 1, 2 }, { without.bos, without:encode('x', { bos = true, eos = true })[3] })
      without.bos = nil
      without:encode('x', { bos = true })
    end, 'encode: this tokenizer has no BOS')
  end)

  it('normalizes a million marks in a row', function()
    local tok, n = load 'nfc', 1e6
    local above, below = '\204\129', '\204\163' -- U+0301 and U+0323: what is below comes first
    local ids = tok:encode((above .. below):rep(n))
    assert.is_true(below:rep(n) .. above:rep(n) == tok:decode(ids))
  end)

  it('replaces what is no UTF-8, or refuses it', function()
    local tok = load 'qwen2'
    assert.same(tok:encode 'a\239\191\189\239\191\189b', tok:encode 'a\255\226\130b')
    assert.equal(2, tok.replaced)
    assert.error_matches(function() tok:encode('ab\192', { invalid = 'error' }) end,
                         '^encode: byte 3 of the text, 0xC0, is no UTF%-8')
    local ids = {}
    for i, byte in ipairs { 0xe4, 0xbd, 0xa0, 0xe4, 0xbd, 0x61, 0xf0, 0x9f } do
      ids[i] = tok:id(string.char(byte))
    end
    assert.equal('\228\189\160\239\191\189a\239\191\189', tok:decode(ids))
    assert.equal('\228\189\160\239\191\189a\239\191\189', streamed(tok, ids))
  end)

  it('streams whole characters as soon as they are', function()
    local tok = load 'qwen2'
    local decoder = tok:decoder()
    assert.same({ '', '', '\228\189\160' }, {
      decoder:push(tok:id '\228'), decoder:push(tok:id '\189'), decoder:push(tok:id '\160') })
    tok = load 'first'
    decoder = tok:decoder()
    assert.equal('a', decoder:push(tok:id 'a'))
    assert.equal(' ', decoder:push(tok:id '\226\150\129'))
    assert.equal('', decoder:push(tok:id '<0xE4>'))
    assert.equal('\239\191\189', decoder:push(tok:id '<s>') .. decoder:finish())
  end)

  it('takes time in proportion to any text', function()
    for _, name in ipairs { 'llama3', 'tekken', 'first' } do
      local tok = load(name)
      for _, unit in ipairs { 'a', ' ', '\228\184\173', '\n ', 'A\194\170', '\226\150\129',
                              '\255' } do
        local text = unit:rep(math.floor(2e5 / #unit))
        local decoded = tok:decode(tok:encode(text))
        if unit ~= '\226\150\129' and unit ~= '\255' then
          assert(decoded == text or decoded == text:sub(2), name .. ': ' .. unit)
        end
      end
    end
  end)

  it('remembers words, and forgets them, without a difference', function()
    local tok, fresh = load 'llama3', load 'llama3'
    math.randomseed(3)
    for _ = 1, 300 do
      local words = {}
      for i = 1, 200 do
        local letters = {}
        for k = 1, math.random(1, 24) do letters[k] = string.char(math.random(97, 104)) end
        words[i] = table.concat(letters)
      end
      local text = table.concat(words, ' ')
      assert.equal(text, tok:decode(tok:encode(text)))
      tok:encode(text)
      assert.same(fresh:encode(words[1]), tok:encode(words[1]))
    end
  end)

  it('takes a word for a token only where it is a word', function()
    -- a token that no merges make, spelled as files spell its bytes
    local two = '\228\184\173\230\150\135'
    local model = ul.json.decode(made(small.variant 'llama3')).model
    model.vocab['\195\164\194\184\197\131\195\166\196\184\196\169'] = 5000
    local tok = load('llama3', { model = model })
    for _ = 1, 2 do -- the second time, they have been seen
      assert.same({ 5000 }, tok:encode(two))
      for _, text in ipairs { two .. '\229\155\189', '\229\155\189' .. two, two .. 'a' } do
        for _, id in ipairs(tok:encode(text)) do assert.is_true(id < 5000) end
        assert.equal(text, tok:decode(tok:encode(text)))
      end
    end
  end)

  it('tells tokens by id and name', function()
    local tok = load 'first'
    assert.same({ '<s>', true }, { tok:token(1) })
    assert.same({ 1, nil }, { tok:id '<s>', tok:id 'no such token' })
    assert.is_nil(tok:token(-1))
    assert.is_nil(tok:token(tok:vocab_size()))
    assert.matches('^tokenizer .*tokenizer.json, %d+ tokens$', tostring(tok))
    assert.error_matches(function() tok:decode { tok:vocab_size() } end,
                         '^decode: there is no token %d+; ids lie in')
    assert.error_matches(function() tok:encode(3) end, 'encode: the text must be a string, got 3')
    assert.error_matches(function() tok:encode('x', { special = true }) end,
                         "no option 'special'; did you mean 'specials'")
  end)

  it('serves data and generation', function()
    local tok = load('llama3', { post_processor = template })
    local ids = tok:encode 'the quick'
    local expected = { 1, unpack(ids) }
    expected[#expected + 1] = 2
    local corpus = ul.data.from({ 'the quick', 'the quick' }):tokenize(tok)
    local both = { unpack(expected) }
    for _, id in ipairs(expected) do both[#both + 1] = id end
    assert.same(both, corpus.tokens:tolist())
    assert.same(corpus.tokens:tolist(), ul.data.from({ 'the quick', 'the quick' })
      :tokenize(folder).tokens:tolist())
    local pieces, model = {}, { n = 0 }
    function model:logits(inputs)
      local logits = ul.zeros(1, 1, tok:vocab_size(), { device = 'cpu' })
      if self.n == 0 then self.first = inputs[1][1]:item() end
      self.n = self.n + 1
      logits:data()[ids[self.n] or 2] = 9
      return logits
    end
    local text = ul.generate(model, 'the', { tokenizer = tok, temperature = 0, n = 9,
                                             stream = function(s) pieces[#pieces + 1] = s end })
    assert.same({ 1, 'the quick', 'the quick' }, { model.first, text, table.concat(pieces) })
  end)

  it('reads BOS, EOS and padding beside the file', function()
    local path = folder .. '/tokenizer_config.json'
    write('tokenizer_config.json', '{"bos_token": null, "eos_token": {"content": "<|eot|>"}, '
      .. '"pad_token": "<unk>", "model_max_length": 1000000000000000019884624838656}')
    local tok = load 'llama3'
    assert.same({ nil, 3, 0 }, { tok.bos, tok.eos, tok.pad })
    os.remove(path)
  end)
end)

-- ---- the real ones ----

local function from_hexadecimal(text)
  return (text:gsub('..', function(pair) return string.char(tonumber(pair, 16)) end))
end

local function check_golden(tok, row, bos)
  local text = row.bytes_hex and from_hexadecimal(row.bytes_hex) or row.text
  local decoded = row.decoded == true and row.text or row.decoded
  assert.same(row.ids_no_bos, tok:encode(text, { specials = true }))
  -- the other implementation puts a BOS before one that is written out
  local with = row.ids[2] == bos and row.ids_no_bos or row.ids
  assert.same(with, tok:encode(text, { specials = true, bos = true }))
  assert.equal(decoded, tok:decode(row.ids_no_bos, { specials = true }))
  assert.equal(decoded, streamed(tok, row.ids_no_bos))
  if row.ids_specials_as_text then
    assert.same(row.ids_specials_as_text, tok:encode(text))
    assert.equal(row.decoded_skip_special, tok:decode(row.ids))
  end
  check_offsets(tok, text)
end

describe('a real tokenizer', function()
  local files = {
    { 'llama3', 'llama3/tokenizer.json' },
    { 'mistral', 'mistral_v03/tokenizer.json' },
    { 'nemo', 'mistral_nemo/tokenizer.json' },
    { 'nemo', 'mistral_nemo/tekken.json' },
  }
  for _, pair in ipairs(files) do
    it('gives the golden ids: ' .. pair[2], function()
      local place = small.shared()
      if not place then return pending 'shared/data is not there' end
      local tok, n = tokenizer.load(place .. 'tokenizers/' .. pair[2], { cache = folder }), 0
      for line in io.lines(place .. 'golden/' .. pair[1] .. '.jsonl') do
        check_golden(tok, json.decode(line), tok.bos)
        n = n + 1
      end
      assert.equal(195, n)
      local again = tokenizer.load(place .. 'tokenizers/' .. pair[2], { cache = folder })
      assert.is_true(again.about.cached)
      assert.same(tok:encode 'again', again:encode 'again')
    end)
  end

  it('is the same from tokenizer.model', function()
    local place = small.shared()
    if not place then return pending 'shared/data is not there' end
    local json_form = tokenizer.load(place .. 'tokenizers/llama3', { cache = false })
    local tiktoken = tokenizer.load(place .. 'tokenizers/llama3/tokenizer.model', { cache = false })
    assert.equal(128256, tiktoken:vocab_size())
    assert.equal(128008, tiktoken:id '<|eom_id|>')
    local metaspace = tokenizer.load(place .. 'tokenizers/mistral_v03', { cache = false })
    local pieces = tokenizer.load(place .. 'tokenizers/mistral_v03/tokenizer.model')
    assert.same({ 1, 2, 0 }, { pieces.bos, pieces.eos, pieces.unknown })
    for line in io.lines(place .. 'golden/llama3.jsonl') do
      local text = json.decode(line).text
      assert.same(json_form:encode(text), tiktoken:encode(text))
      -- SentencePiece itself puts a space before every text, also before one that has some
      if text ~= '' and text:sub(1, 1) ~= ' ' and text:sub(1, 3) ~= '\226\150\129' then
        assert.same(metaspace:encode(text), pieces:encode(text))
      end
    end
  end)

  it('merges one word of 10 MB', function()
    local place = small.shared()
    if not place then return pending 'shared/data is not there' end
    local tok = tokenizer.load(place .. 'tokenizers/llama3', { cache = false })
    local ids = tok:encode(('a'):rep(1e7))
    assert.equal(1e7, #tok:decode(ids))
  end)
end)
