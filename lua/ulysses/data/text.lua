-- text.lua - ul.data.read: documents of text from files, plain or gzipped.
local corpus = require 'ulysses.data.corpus'
local files = require 'ulysses.data.files'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local sample = require 'ulysses.data.sample'

---@class Text
---@field name string what it was read from
---@field paths string[]|nil files, each a document
---@field texts string[]|nil documents that are there already
local Text = {}
Text.__index = Text
function Text.__tostring(self)
  local n = #(self.texts or self.paths)
  return ('%d document%s of %s'):format(n, n == 1 and '' or 's', self.name)
end

--- The documents, as strings.
---@return string[]
function Text:documents()
  local list = {}
  for i, text in ipairs(self.texts or {}) do list[i] = text end
  if self.texts then return list end
  for i, path in ipairs(self.paths) do
    local bytes = files.read(path)
    list[i] = bytes:tostring()
    bytes:free()
  end
  return list
end

--- Turns each document into tokens and an end-of-document token.
---@param tokenizer string|Tokenizer|table 'bytes', the path of a tokenizer, one that is loaded, or
--- what has count, encode_into, eos, pad and vocab
---@return Corpus
function Text:tokenize(tokenizer)
  local chosen = require('ulysses.tokenizer').resolve('tokenize', tokenizer)
  if self.texts then return corpus.tokenize(self.texts, chosen) end
  local documents, total = {}, 0
  for i, path in ipairs(self.paths) do
    documents[i] = files.read(path)
    total = total + #documents[i]
  end
  if total == 0 then refuse("data.read: '%s' is empty", self.name) end
  local tokens = corpus.tokenize(documents, chosen)
  for _, bytes in ipairs(documents) do bytes:free() end
  return tokens
end

--- A file, or all that match a pattern (docs/*.md): one document each. They are read when they are
--- asked for; what is not there is refused now.
---@param pattern string
---@return Text
local function read(pattern)
  if type(pattern) ~= 'string' then
    raise('data.read: expected the name of a file, got a %s', type(pattern))
  end
  sample.announce(pattern)
  return setmetatable({ name = pattern, paths = files.find(pattern) }, Text)
end

--- The same for texts that are there already.
---@param documents string[]
---@return Text
local function from(documents)
  if type(documents) == 'string' then documents = { documents } end
  for i, text in ipairs(type(documents) == 'table' and documents or { documents }) do
    if type(text) ~= 'string' then
      raise('data.from: document %d is a %s, not a string', i, type(text))
    end
  end
  return setmetatable({ name = 'a text', texts = documents }, Text)
end

return { read = read, from = from }
