-- train_tokenizer.lua - ul.tokenizer.train: a vocabulary of one's own, as Transformers reads it.
local core = require 'ulysses.core'
local files = require 'ulysses.data.files'
local folder = require 'ulysses.folder'
local json = require 'ulysses.json'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'

-- Those of Llama 3 that a conversation needs, so that ul.chat knows the format.
local usual = { '<|begin_of_text|>', '<|end_of_text|>', '<|finetune_right_pad_id|>',
                '<|start_header_id|>', '<|end_header_id|>', '<|eom_id|>', '<|eot_id|>' }
local END = '|\\s+(?!\\S)|\\s+'
local upper, lower = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]', '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]'
local patterns = {
  llama3 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    .. '| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+' .. END,
  qwen2 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    .. '| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+' .. END,
  tekken = '[^\\r\\n\\p{L}\\p{N}]?' .. upper .. '*' .. lower .. '+'
    .. '|[^\\r\\n\\p{L}\\p{N}]?' .. upper .. '+' .. lower .. '*'
    .. '|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+' .. END,
  gpt2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+" .. END,
}

-- ---- bytes as files spell them ----

local spelled = {}
do
  local odd = 256
  local function utf8(code)
    if code < 128 then return string.char(code) end
    return string.char(192 + math.floor(code / 64), 128 + code % 64)
  end
  for byte = 0, 255 do
    local prints = byte >= 33 and byte <= 126 or byte >= 161 and byte ~= 173
    spelled[string.char(byte)] = utf8(prints and byte or odd)
    odd = prints and odd or odd + 1
  end
end
local function spell(bytes) return (bytes:gsub('.', spelled)) end

-- ---- tokenizer.json ----

local function level(before)
  return { type = 'ByteLevel', add_prefix_space = false, trim_offsets = true, use_regex = before }
end

-- What stands in front of a text.
local function template(bos, id)
  local part = { SpecialToken = { id = bos, type_id = 0 } }
  local function text(name)
    return { Sequence = { id = name, type_id = name == 'A' and 0 or 1 } }
  end
  return { type = 'TemplateProcessing', single = { part, text 'A' },
           pair = { part, text 'A', { SpecialToken = { id = bos, type_id = 1 } }, text 'B' },
           special_tokens = { [bos] = { id = bos, ids = { id }, tokens = { bos } } } }
end

local function whole(how, tokens, merges)
  local vocab, added, list = {}, {}, {}
  for i, name in ipairs(how.specials) do
    vocab[name] = i - 1
    added[i] = { id = i - 1, content = name, single_word = false, lstrip = false, rstrip = false,
                 normalized = false, special = true }
  end
  local names = {}
  for i, bytes in ipairs(tokens) do
    names[i] = spell(bytes)
    vocab[names[i]] = #added + i - 1
  end
  for i = 1, #merges, 2 do
    list[#list + 1] = { names[merges[i] + 1], names[merges[i + 1] + 1] }
  end
  return {
    version = '1.0', truncation = json.null, padding = json.null, normalizer = json.null,
    added_tokens = json.array(added),
    pre_tokenizer = { type = 'Sequence', pretokenizers = {
      { type = 'Split', pattern = { Regex = patterns[how.split] }, behavior = 'Isolated',
        invert = false }, level(false) } },
    post_processor = how.bos and template(how.bos, vocab[how.bos]) or level(false),
    decoder = level(true),
    model = { type = 'BPE', dropout = json.null, unk_token = json.null,
              continuing_subword_prefix = json.null, end_of_word_suffix = json.null,
              fuse_unk = false, byte_fallback = false, ignore_merges = false, vocab = vocab,
              merges = json.array(list) },
  }
end

-- ---- all of it ----

local function read(given)
  local how = options.read('tokenizer.train', given, {
    vocab = 4096, out = options.none, split = 'llama3', least = 2, specials = usual,
    bos = options.none, eos = options.none, pad = options.none })
  if type(how.out) ~= 'string' or how.out == '' then
    raise "tokenizer.train: say where it is kept, with out = 'a folder'"
  elseif not patterns[how.split] then
    raise("tokenizer.train: split must be 'llama3', 'tekken', 'qwen2' or 'gpt2', got '%s'",
          how.split)
  end
  local seen = {}
  for _, name in ipairs(how.specials) do
    if type(name) ~= 'string' or name == '' or seen[name] then
      raise('tokenizer.train: the special tokens are names, each of them once')
    end
    seen[name] = true
  end
  if how.specials == usual then
    how.bos, how.eos, how.pad = how.bos or usual[1], how.eos or usual[2], how.pad or usual[3]
  end
  for _, kind in ipairs { 'bos', 'eos', 'pad' } do
    if how[kind] and not seen[how[kind]] then
      raise("tokenizer.train: %s is '%s', which is none of the special tokens", kind, how[kind])
    end
  end
  if how.vocab ~= math.floor(how.vocab) or how.vocab < 256 + #how.specials then
    raise('tokenizer.train: vocab must be a whole number from %d on: there are 256 bytes and %d '
          .. 'special tokens; got %g', 256 + #how.specials, #how.specials, how.vocab)
  end
  return how
end

local function add_all(trainer, from)
  if type(from) == 'table' then
    for i, text in ipairs(from) do
      if type(text) ~= 'string' then
        raise('tokenizer.train: text %d is a %s', i, type(text))
      end
      trainer:add(text)
    end
    return
  elseif type(from) ~= 'string' then
    raise('tokenizer.train: expected the name of a file or a list of texts, got a %s', type(from))
  end
  for _, path in ipairs(files.find(from)) do
    local bytes = files.read(path)
    trainer:add(bytes:tostring())
    bytes:free()
  end
end

local function write(path, value)
  folder.write(path, json.encode(value, { indent = 1 }) .. '\n')
end

---@param from string|string[]
---@param given table
---@return string folder
return function(from, given)
  local how = read(given)
  local trainer = core.tokenizer_trainer(how.split)
  add_all(trainer, from)
  local tokens, merges = trainer:run(how.vocab - #how.specials, how.least)
  local ok, sentence = core.folder_make(how.out)
  if not ok then refuse('tokenizer.train: %s', sentence) end
  write(how.out .. '/tokenizer.json', whole(how, tokens, merges))
  write(how.out .. '/tokenizer_config.json', {
    tokenizer_class = 'PreTrainedTokenizerFast', bos_token = how.bos or json.null,
    eos_token = how.eos or json.null, pad_token = how.pad or json.null,
    clean_up_tokenization_spaces = false })
  return how.out
end
