-- corpus.lua - all tokens of a text in one row, and where its documents begin.
local ffi = require 'ffi'
local ul = require 'ulysses'
local hash = require 'ulysses.hash'
local raise = require 'ulysses.raise'
local rows = require 'ulysses.data.rows'

---@class Corpus
---@field tokens userdata i32 [n]
---@field n integer
---@field starts integer[] offsets (from 0) at which documents begin
---@field tokenizer table
local Corpus = {}
Corpus.__index = Corpus
function Corpus.__tostring(self)
  return ('%d tokens in %d documents'):format(self.n, #self.starts)
end

local function new(tokens, starts, tokenizer)
  local fields = { tokens = tokens:keep(), n = tokens:numel(), starts = starts,
                   tokenizer = tokenizer }
  return setmetatable(fields, Corpus)
end

-- How many tokens a document, a string or a string.buffer, has, and a function that writes them.
local function encode(document, tokenizer)
  if type(document) ~= 'string' and tokenizer.encode_bytes then
    return #document, function(ids)
      tokenizer.encode_bytes(document:ref(), #document, ids)
    end
  end
  local text = tostring(document)
  if not tokenizer.encode_ids then
    return tokenizer.count(text), function(ids) tokenizer.encode_into(text, ids) end
  end
  local from, n, owner = tokenizer.encode_ids(text)
  return n, function(ids)
    ffi.copy(ids, from, 4 * n)
    owner:free()
  end
end

--- Documents one after the other, each with its end token. They are strings or string.buffers.
local function tokenize(documents, tokenizer)
  local n, counts, write = 0, {}, {}
  for i, document in ipairs(documents) do
    counts[i], write[i] = encode(document, tokenizer)
    n = n + counts[i] + 1
  end
  local tokens, starts, at = ul.empty { n, dtype = 'i32', device = 'cpu' }, {}, 0
  local ids = tokens:data()
  for i = 1, #documents do
    starts[i] = at
    write[i](ids + at)
    at = at + counts[i]
    ids[at] = tokenizer.eos
    at = at + 1
  end
  return new(tokens, starts, tokenizer)
end

-- Tokens [first, last) as a corpus of its own; a document that is cut begins anew.
local function part(self, first, last)
  local starts = { 0 }
  for _, start in ipairs(self.starts) do
    if start > first and start < last then starts[#starts + 1] = start - first end
  end
  return new(self.tokens:narrow(1, first + 1, last - first), starts, self.tokenizer)
end

--- Splits off the last `fraction` of the tokens: returns what is left, and what is held out.
---@param fraction number in (0, 1)
function Corpus:hold_out(fraction)
  if not (fraction > 0 and fraction < 1) then
    raise('hold_out: the fraction must lie between 0 and 1, got %g', fraction)
  end
  local cut = math.floor(self.n * (1 - fraction))
  return part(self, 0, cut), part(self, cut, self.n)
end

--- H(next token | this token) in nats, from the counts of this text: what a table of pairs that
--- knew the text by heart would lose per token.
---@return number
function Corpus:bigram_entropy()
  local pairs_seen, seen, ids, vocab = {}, {}, self.tokens:data(), self.tokenizer.vocab
  for i = 0, self.n - 2 do
    local pair = ids[i] * vocab + ids[i + 1]
    pairs_seen[pair] = (pairs_seen[pair] or 0) + 1
    seen[ids[i]] = (seen[ids[i]] or 0) + 1
  end
  -- Integers first: the sum must not depend on the order of pairs().
  local order = {}
  for pair in pairs(pairs_seen) do order[#order + 1] = pair end
  table.sort(order)
  local sum = 0
  for _, pair in ipairs(order) do
    local count = pairs_seen[pair]
    sum = sum - count * math.log(count / seen[math.floor(pair / vocab)])
  end
  return sum / math.max(1, self.n - 1)
end

--- A hash of all tokens, as 16 hexadecimal digits.
---@return string
function Corpus:hash()
  self.digest = self.digest or hash.integers(self.tokens:data(), self.n)
  return self.digest
end

--- Cuts the tokens into rows of `length` inputs and as many labels; the last row is filled up.
---@param length integer
function Corpus:pack(length)
  if length < 1 or length ~= math.floor(length) then
    raise('pack: a row needs a positive length, got %g', length)
  end
  return rows.new(self, length)
end

return { tokenize = tokenize }
