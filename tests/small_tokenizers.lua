-- small_tokenizers.lua - the tokenizers of tests/golden/tokenizer.jsonl; where real ones lie.
local json = require 'ulysses.json'

local base
local small = { golden = {} } -- golden: { name =, of =, settings =, model =, rows = }, ...
for line in io.lines 'tests/golden/tokenizer.jsonl' do
  if base then
    small.golden[#small.golden + 1] = json.decode(line)
  else
    base = json.decode(line)
  end
end

--- The text of tokenizer.json of a variant, with further changes.
---@param variant table
---@param change table?
---@return string
function small.made(variant, change)
  local whole, model = {}, {}
  for key, value in pairs(base[variant.of]) do whole[key] = value end
  for key, value in pairs(variant.settings) do whole[key] = value end
  for key, value in pairs(whole.model) do model[key] = value end
  for key, value in pairs(variant.model) do model[key] = value end
  whole.model = model
  for key, value in pairs(change or {}) do whole[key] = value end
  return json.encode(whole)
end

--- The variant of this name.
---@param name string
---@return table
function small.variant(name)
  for _, one in ipairs(small.golden) do
    if one.name == name then return one end
  end
  error('no tokenizer ' .. name)
end

--- The special tokens of a variant, and more of these names behind all ids.
---@param variant table
---@param names string[]
---@return table[] added_tokens
function small.with_specials(variant, names)
  local list, last = {}, 0
  for i, token in ipairs(base[variant.of].added_tokens) do list[i] = token end
  for _, id in pairs(base[variant.of].model.vocab) do last = math.max(last, id) end
  for i, name in ipairs(names) do
    list[#list + 1] = { id = last + i, content = name, single_word = false, lstrip = false,
                        rstrip = false, normalized = false, special = true }
  end
  return list
end

-- ---- the same in other files ----

-- The tokens of a vocabulary from `first` on, in the order of their ids.
local function tokens_of(of, first)
  local list = {}
  for token, id in pairs(base[of].model.vocab) do
    if id >= first then list[id - first + 1] = token end
  end
  return list
end

-- The bytes that the characters of a byte-level token stand for.
local function bytes_of(token)
  local bytes, odd = {}, {}
  for byte = 0, 255 do
    if byte < 33 or byte > 126 and byte < 161 or byte == 173 then odd[#odd + 1] = byte end
  end
  for character in token:gmatch '[%z\1-\127\194-\244][\128-\191]*' do
    local a, b = character:byte(1, 2)
    local code = b and (a - 192) * 64 + b - 128 or a
    bytes[#bytes + 1] = string.char(code < 256 and code or odd[code - 255])
  end
  return table.concat(bytes)
end

local digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

local function base64(bytes)
  local text = bytes:gsub('..?.?', function(three)
    local a, b, c = three:byte(1, 3)
    local bits = a * 65536 + (b or 0) * 256 + (c or 0)
    local four = {}
    for i = 1, 4 do
      local digit = math.floor(bits / 64 ^ (4 - i)) % 64
      four[i] = i <= #three + 1 and digits:sub(digit + 1, digit + 1) or '='
    end
    return table.concat(four)
  end)
  return text
end

--- The text of tekken.json with the tokens of the variant 'tekken', whose ids they keep; or with
--- the first n of them.
---@param n integer?
---@return string
function small.tekken(n)
  local variant = small.variant 'tekken'
  local added, vocab = base[variant.of].added_tokens, {}
  local split = variant.settings.pre_tokenizer.pretokenizers[1]
  for i, token in ipairs(tokens_of(variant.of, #added)) do
    if i <= (n or math.huge) then
      vocab[i] = { rank = i - 1, token_bytes = base64(bytes_of(token)), token_str = json.null }
    end
  end
  local specials = {}
  for i, token in ipairs(added) do
    specials[i] = { rank = i - 1, token_str = token.content, is_control = true }
  end
  return json.encode { config = { pattern = split.pattern.Regex,
                                  default_vocab_size = #added + #vocab,
                                  default_num_special_tokens = #added, version = 'v3' },
                       vocab = vocab, special_tokens = specials }
end

local function varint(n)
  local bytes = {}
  repeat
    local low = n % 128
    n = (n - low) / 128
    bytes[#bytes + 1] = string.char(n > 0 and low + 128 or low)
  until n == 0
  return table.concat(bytes)
end

-- Fields of a protocol buffer: a value, and bytes.
local function value(number, n) return varint(number * 8) .. varint(n) end
local function text(number, bytes) return varint(number * 8 + 2) .. varint(#bytes) .. bytes end

local NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

-- A whole number below 2^24 as a float, little-endian.
local function float(n)
  if n == 0 then return '\0\0\0\0' end
  local mantissa, exponent = math.frexp(math.abs(n))
  local bits = (exponent + 126) * 2 ^ 23 + (mantissa * 2 - 1) * 2 ^ 23 + (n < 0 and 2 ^ 31 or 0)
  local bytes = {}
  for i = 1, 4 do bytes[i] = string.char(math.floor(bits / 256 ^ (i - 1)) % 256) end
  return table.concat(bytes)
end

--- The bytes of a tokenizer.model of SentencePiece with the tokens of the variant 'legacy', whose
--- ids they keep; or with the first n of them.
---@param n integer?
---@return string
function small.sentencepiece(n)
  local parts = {}
  for i, token in ipairs(tokens_of('characters', 0)) do
    if i > (n or math.huge) then break end
    local kind = token == '<unk>' and UNKNOWN or token:match '^<0x%x%x>$' and BYTE
      or i <= 5 and CONTROL or NORMAL
    parts[i] = text(1, text(1, token) .. varint(2 * 8 + 5) .. float(-i) .. value(3, kind))
  end
  local trainer = value(3, 2) .. value(35, 1) .. value(41, 1) .. value(42, 2)
  return table.concat(parts) .. text(2, trainer) .. text(3, value(3, 1) .. value(4, 0))
end

--- The folder with the real tokenizers and what others make of texts with them, or nil: these files
--- are not ours to pass on.
---@return string?
function small.shared()
  for _, place in ipairs { 'shared', '../shared', '../../shared' } do
    local file = io.open(place .. '/data/golden/llama3.jsonl')
    if file then
      file:close()
      return place .. '/data/'
    end
  end
end

return small
