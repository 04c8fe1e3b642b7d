-- tokenizer.lua - ul.tokenizer: the tokenizers of published models, text to ids and back.
local bit = require 'bit'
local ffi = require 'ffi'
local core = require 'ulysses.core'
local json = require 'ulysses.json'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local suggest = require 'ulysses.suggest'

-- As engine/tokenizer.h has them.
local SPECIALS, BOS, EOS, STRICT = 1, 2, 4, 8

---@class tokenizer
local tokenizer = {}

--- Text to token ids and back. Ids are 0-based, as the files have them.
---@class Tokenizer
---@field path string the file
---@field split string how text is cut into words: 'llama3', 'tekken', 'qwen2', 'gpt2' or
--- 'sentencepiece'
---@field hash string of the file
---@field bos integer? the id that begins a text
---@field eos integer? the id that ends one
---@field pad integer? the id that fills up
---@field unknown integer?
---@field replaced integer how many pieces that were no UTF-8 have become U+FFFD so far
local Tokenizer = {}
Tokenizer.__index = Tokenizer
function Tokenizer.__tostring(self)
  return ('tokenizer %s, %d tokens'):format(self.path, self:vocab_size())
end

-- ---- text to ids ----

local function flags_of(how)
  return bit.bor(how.specials and SPECIALS or 0, how.bos and BOS or 0, how.eos and EOS or 0,
                 how.invalid == 'error' and STRICT or 0)
end

local function read_flags(caller, given)
  if given == nil then return 0 end
  local how = options.read(caller, given, { bos = false, eos = false, specials = false,
                                            invalid = 'replace', offsets = false })
  if how.invalid ~= 'replace' and how.invalid ~= 'error' then
    raise("%s: invalid must be 'replace' or 'error', got '%s'", caller, how.invalid)
  end
  return flags_of(how), how.offsets
end

--- The ids of a text. Text is text: what is written like a special token stays text, unless
--- `specials` asks for it, which no text of strangers should. `bos` and `eos` put these around it,
--- never twice. What is no UTF-8 becomes U+FFFD, or is an error with `invalid = 'error'`. With
--- `offsets` two more lists follow: the positions of each token's first and last byte in the text;
--- those of BOS and EOS are empty.
---@param text string
---@param given { bos: boolean?, eos: boolean?, specials: boolean?, offsets: boolean?,
---  invalid: 'replace'|'error'|nil }?
---@return integer[] ids, integer[]? first, integer[]? last
function Tokenizer:encode(text, given)
  local flags, offsets = read_flags('encode', given)
  local ids, replaced, first = self.handle:encode(text, flags, self.bos or -1, self.eos or -1,
                                                   offsets)
  self.replaced = self.replaced + replaced
  if not first then return ids end
  local last = {}
  for i = 1, #ids do
    last[i] = first[i + 1]
    first[i] = first[i] + 1
  end
  first[#first] = nil
  return ids, first, last
end

--- How many tokens a text has.
---@param text string
---@return integer
function Tokenizer:count(text)
  local ids = self.handle:encode_ids(text, 0, -1, -1)
  local _, n = ids:view()
  ids:free()
  return tonumber(n)
end

-- ---- ids to text ----

local function decode_flags(caller, given)
  local how = options.read(caller, given, { specials = false })
  return how.specials and SPECIALS or 0
end

--- The text of ids. Special tokens have none, unless `specials` has them written out. What is no
--- UTF-8 becomes U+FFFD.
---@param ids integer[]
---@param given { specials: boolean? }?
---@return string
function Tokenizer:decode(ids, given)
  return self.handle:decode(ids, given and decode_flags('decode', given) or 0)
end

--- Text that comes id by id.
---@class TokenDecoder
local TokenDecoder = {}
TokenDecoder.__index = TokenDecoder

--- The characters that are whole with this id; '' where none is.
---@param id integer
---@return string
function TokenDecoder:push(id) return self.handle:push(id) end

--- What is left of a character that did not become whole; the decoder begins anew.
---@return string
function TokenDecoder:finish() return self.handle:finish() end

--- A decoder for ids that come one after the other, as a model writes them:
---
---   local decoder = tok:decoder()
---   for id in ids do io.write(decoder:push(id)) end
---   io.write(decoder:finish())
---@param given { specials: boolean? }?
---@return TokenDecoder
function Tokenizer:decoder(given)
  return setmetatable({ handle = self.handle:decoder(decode_flags('decoder', given)) },
                      TokenDecoder)
end

-- ---- tokens ----

--- The highest id, plus one: how many rows an embedding needs.
---@return integer
function Tokenizer:vocab_size() return self.about.vocab end

--- The id of a token by its name, or by the bytes that it stands for; nil where there is none.
--- SentencePiece writes spaces as U+2581.
---@param name string
---@return integer?
function Tokenizer:id(name) return self.handle:find(name) end

--- The bytes that an id stands for, and whether it is a special token; nil where there is none.
---@param id integer
---@return string? bytes, boolean? special
function Tokenizer:token(id) return self.handle:token(id) end

--- The special tokens: ids by name.
---@return table<string, integer>
function Tokenizer:specials()
  local list = {}
  for id = 0, self:vocab_size() - 1 do
    local name, special = self.handle:token(id)
    if special then list[name] = id end
  end
  return list
end

-- ---- for data and generation ----

--- What ul.data and ul.generate take, as functions: count, encode, decode, encode_ids, decoder, and
--- the ids and the size. Texts begin with BOS where there is one, as models have learned it.
---@return table
function Tokenizer:functions()
  if not self.eos then
    refuse('%s: nothing says which token ends a text; set tok.eos to its id', self.path)
  end
  local plain = { vocab = self:vocab_size(), bos = self.bos, eos = self.eos,
                  unknown = self.unknown, tokenizer = self }
  plain.pad = self.pad or self.unknown or self.bos or self.eos
  local how = { bos = self.bos ~= nil }
  function plain.encode(text) return (self:encode(text, how)) end
  function plain.decode(ids) return self:decode(ids) end
  function plain.decoder() return self:decoder() end
  -- Tokens that stay outside of Lua: a pointer to i32, how many, and what owns them.
  function plain.encode_ids(text)
    local ids, replaced = self.handle:encode_ids(text, flags_of(how), self.bos or -1, -1)
    self.replaced = self.replaced + replaced
    local from, n = ids:view()
    return ffi.cast('const int32_t *', from), tonumber(n), ids
  end
  function plain.count(text)
    local _, n, owner = plain.encode_ids(text)
    owner:free()
    return n
  end
  function plain.encode_into(text, ids)
    local from, n, owner = plain.encode_ids(text)
    for i = 0, n - 1 do ids[i] = from[i] end
    owner:free()
  end
  return plain
end

-- ---- loading ----

local function is_folder(path)
  local file = io.open(path)
  if not file then return false end
  local _, _, code = file:read(0)
  file:close()
  return code == 21 -- EISDIR
end

local names = { 'tokenizer.json', 'tekken.json', 'tokenizer.model' }

-- The tokenizer's file in a folder.
local function find_file(folder)
  local there = {}
  for _, name in ipairs(core.folder_list(folder) or {}) do there[name] = true end
  for _, name in ipairs(names) do
    if there[name] then return folder .. '/' .. name end
  end
  for name in pairs(there) do -- tokenizer.model.v3
    if name:match '^tokenizer%.model%.v%d+$' then return folder .. '/' .. name end
  end
  refuse("tokenizer.load: '%s' has no %s", folder, table.concat(names, ', '))
end

-- Where what has been made of large files is kept.
local function cache_folder()
  local base = os.getenv 'XDG_CACHE_HOME'
  if not base or base:sub(1, 1) ~= '/' then
    local home = os.getenv 'HOME'
    base = home and home ~= '' and home .. '/.cache'
  end
  return base and base .. '/ulysses-lua'
end

-- The table in a JSON file beside the tokenizer's, or an empty one where there is no such file.
local function beside(path, name)
  local file = io.open((path:match '^(.*/)' or '') .. name, 'rb')
  local text = file and file:read '*a'
  if file then file:close() end
  if not text then return {} end
  local value, sentence = json.decode(text)
  if type(value) ~= 'table' then
    refuse('%s: %s', (path:match '^(.*/)' or '') .. name, sentence or 'is no JSON object')
  end
  return value
end

-- What files call these tokens where nothing says which they are.
local usual = {
  bos = { '<s>', '<|begin_of_text|>' },
  eos = { '</s>', '<|end_of_text|>', '<|eot_id|>', '<|im_end|>', '<|endoftext|>' },
  pad = { '<pad>', '<|finetune_right_pad_id|>', '[PAD]' },
}

-- The id that tokenizer_config.json says, or the file itself, or else custom.
local function id_of(self, kind, config)
  local said = config[kind .. '_token']
  if type(said) == 'table' then said = said.content end
  if type(said) == 'string' then
    local id = self:id(said)
    if id then return id end
  end
  if self.about[kind] then return self.about[kind] end
  if next(config) ~= nil and kind == 'bos' then return nil end -- it has none, as Qwen
  for _, name in ipairs(usual[kind]) do
    local id = self.handle:find(name)
    if id and select(2, self.handle:token(id)) then return id end
  end
end

--- The tokenizer of a model: a folder as it was downloaded, or its tokenizer.json, tekken.json or
--- tokenizer.model. What is in the file and not computed exactly is refused by its name. Large
--- files are kept, ready made, in $XDG_CACHE_HOME/ulysses-lua (or ~/.cache), unless `cache` is
--- false or another folder. BOS, EOS and padding are those of tokenizer_config.json where that lies
--- beside.
---@param path string
---@param given { cache: string|boolean|nil }?
---@return Tokenizer
function tokenizer.load(path, given)
  local how = options.read('tokenizer.load', given, { cache = options.none })
  if type(path) ~= 'string' or path == '' then
    raise('tokenizer.load: expected the name of a file or folder, got a %s', type(path))
  end
  if path:sub(1, 2) == '~/' then path = (os.getenv 'HOME' or '~') .. path:sub(2) end
  if is_folder(path) then path = find_file((path:gsub('(.)/+$', '%1'))) end
  local cache = how.cache
  if cache == nil or cache == true then cache = cache_folder() end
  local handle, sentence = core.tokenizer_load(path, cache or nil)
  if not handle then refuse('tokenizer.load: %s', sentence) end
  local self = setmetatable({ path = path, handle = handle, about = handle:about(), replaced = 0 },
                            Tokenizer)
  self.split, self.hash, self.unknown = self.about.split, self.about.hash, self.about.unknown
  local config = beside(path, 'tokenizer_config.json')
  for _, kind in ipairs { 'bos', 'eos', 'pad' } do self[kind] = id_of(self, kind, config) end
  return self
end

--- A vocabulary of one's own from text: a file, all that match a pattern, or a list of texts. Words
--- are cut as `split` says, as models do that are known ('llama3', 'tekken', 'qwen2', 'gpt2'); then
--- the pair of tokens that stands side by side most often becomes a token, until there are `vocab`
--- of them, or no pair stands there `least` times (2). The same text gives the same tokens. What
--- comes out, tokenizer.json and tokenizer_config.json, lies in the folder `out`, as Transformers
--- reads it.
---
---   local tok = ul.tokenizer.train('docs/*.md', { vocab = 4096, out = 'my-tokenizer' })
---
--- `specials` are names of special tokens, of which `bos`, `eos` and `pad` are some; without it,
--- they are those of Llama 3, with which ul.chat works.
---@param from string|string[]
---@param given { out: string, vocab: integer?, split: string?, least: integer?,
---  specials: string[]?, bos: string?, eos: string?, pad: string? }
---@return Tokenizer
function tokenizer.train(from, given)
  return tokenizer.load(require 'ulysses.train_tokenizer'(from, given))
end

-- ---- by name ----

local bytes = require 'ulysses.data.bytes'
local loaded = {} -- by path: a run asks for its tokenizer more than once

--- What ul.data and ul.generate work with, of what a user gives them: 'bytes', the path of a
--- tokenizer, a Tokenizer, or a table of such functions.
---@param caller string for errors
---@param what any
---@return table
function tokenizer.resolve(caller, what)
  if what == 'bytes' then return bytes end
  if getmetatable(what) == Tokenizer then return what:functions() end
  if type(what) == 'table' then return what end
  if what == nil then
    refuse("%s: no tokenizer is named, nor is there one beside the model; name its folder, or "
           .. "'bytes' (tokenizer=..)", caller)
  elseif type(what) ~= 'string' then
    raise('%s: expected the name of a tokenizer or a table, got a %s', caller, type(what))
  end
  if loaded[what] then return loaded[what]:functions() end
  local file = io.open(what)
  if not file then
    refuse("%s: no tokenizer '%s'; there is 'bytes', or the folder or file of one%s", caller, what,
           suggest(what, { 'bytes' }))
  end
  file:close()
  loaded[what] = tokenizer.load(what)
  return loaded[what]:functions()
end

--- Refuses a tokenizer that has more ids than a model has.
---@param what string|Tokenizer|table
---@param vocab integer of the model
---@param from string? where that is from; its config.json where it is left out
function tokenizer.check_vocab(what, vocab, from)
  local n = tokenizer.resolve('tokenizer', what).vocab
  if n <= vocab then return end
  refuse("tokenizer: '%s' has %d ids, and the model %d (%s)", tostring(what), n, vocab,
         from or 'vocab_size of its config.json')
end

return tokenizer
