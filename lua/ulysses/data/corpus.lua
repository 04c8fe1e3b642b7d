-- corpus.lua - all tokens of a text in one row, and where its documents begin.
local ffi = require 'ffi'
local ul = require 'ulysses'
local fit = require 'ulysses.data.fit'
local hash = require 'ulysses.hash'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local rows = require 'ulysses.data.rows'
local sorted_keys = require 'ulysses.sorted_keys'

---@class Corpus
---@field tokens userdata i32 [n]
---@field n integer
---@field starts integer[] offsets (from 0) at which documents begin
---@field mask userdata|nil u8 [n]: 1 where a token is to be learned; nil: all are
---@field dropped integer|nil examples that pack() has left out
---@field cut integer|nil and those that it has cut
---@field tokenizer table
local Corpus = {}
Corpus.__index = Corpus
function Corpus.__tostring(self)
  local n = #self.starts
  return ('%d tokens in %d document%s'):format(self.n, n, n == 1 and '' or 's')
end

local function new(tokens, starts, tokenizer, mask)
  local fields = { tokens = tokens:keep(), n = tokens:numel(), starts = starts,
                   tokenizer = tokenizer, mask = mask and mask:keep() }
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

-- ---- examples with a mask ----

local Growing = {}
Growing.__index = Growing

-- A corpus that examples are added to.
local function growing(tokenizer)
  return setmetatable({ n = 0, room = 0, starts = {}, tokenizer = tokenizer }, Growing)
end

function Growing:add(ids, mask)
  local n = self.n
  if n + #ids > self.room then
    self.room = math.max(2 * self.room, n + #ids, 2 ^ 16)
    local tokens, learned = ffi.new('int32_t[?]', self.room), ffi.new('uint8_t[?]', self.room)
    if n > 0 then
      ffi.copy(tokens, self.tokens, 4 * n)
      ffi.copy(learned, self.mask, n)
    end
    self.tokens, self.mask = tokens, learned
  end
  self.starts[#self.starts + 1] = n
  for i = 1, #ids do self.tokens[n + i - 1], self.mask[n + i - 1] = ids[i], mask[i] end
  self.mask[n] = 0 -- no token before it predicts the first one
  self.n = n + #ids
end

function Growing:corpus()
  local tokens = ul.empty { self.n, dtype = 'i32', device = 'cpu' }
  local mask = ul.empty { self.n, dtype = 'u8', device = 'cpu' }
  ffi.copy(tokens:data(), self.tokens, 4 * self.n)
  ffi.copy(mask:data(), self.mask, self.n)
  return new(tokens, self.starts, self.tokenizer, mask)
end

-- The documents that go into rows, [first, last), as what is longer than a row is treated.
local function documents_of(self, length, overlong)
  local list, lengths = { dropped = 0, cut = 0 }, {}
  for i, first in ipairs(self.starts) do
    local last = self.starts[i + 1] or self.n
    if last - first <= length then
      list[#list + 1] = { first, last }
    elseif overlong == 'cut' then
      list.cut = list.cut + 1
      list[#list + 1] = { first, first + length }
    elseif overlong == 'drop' then
      list.dropped = list.dropped + 1
    else
      refuse('pack: example %d has %d tokens, and a row %d (seq_len)', i, last - first, length)
    end
  end
  if #list == 0 then
    refuse('pack: none of %d examples is as short as a row of %d tokens (seq_len)', #self.starts,
           length)
  end
  for i, document in ipairs(list) do lengths[i] = document[2] - document[1] end
  return list, lengths
end

-- Refuses examples that were cut in front of all their answers.
local function check_learns(self, list, length)
  local mask = self.mask:data()
  for _, document in ipairs(list) do
    for i = document[1] + 1, document[2] - 1 do
      if mask[i] == 1 then return end
    end
  end
  refuse('pack: nothing is left to learn: all answers begin behind the %d tokens of a row', length)
end

-- Whole examples, laid into rows one of which follows the other. What is left of a row is filled
-- up, as a document of its own from which nothing is learned.
local function laid_out(self, length, overlong)
  local list, lengths = documents_of(self, length, overlong)
  check_learns(self, list, length)
  local plan = fit(lengths, length)
  local tokens = ul.full({ #plan * length }, self.tokenizer.pad, { dtype = 'i32', device = 'cpu' })
  local mask = ul.zeros { #plan * length, dtype = 'u8', device = 'cpu' }
  local starts = {}
  for i, documents in ipairs(plan) do
    local at = (i - 1) * length
    for _, k in ipairs(documents) do
      local first, n = list[k][1], lengths[k]
      ffi.copy(tokens:data() + at, self.tokens:data() + first, 4 * n)
      ffi.copy(mask:data() + at, self.mask:data() + first, n)
      starts[#starts + 1] = at
      at = at + n
    end
    if at < i * length then starts[#starts + 1] = at end
  end
  local packed = new(tokens, starts, self.tokenizer, mask)
  packed.dropped, packed.cut = list.dropped, list.cut
  return packed
end

-- ---- all ----

-- Tokens [first, last) as a corpus of its own; a document that is cut begins anew.
local function part(self, first, last)
  local starts = { 0 }
  for _, start in ipairs(self.starts) do
    if start > first and start < last then starts[#starts + 1] = start - first end
  end
  local mask = self.mask and self.mask:narrow(1, first + 1, last - first)
  return new(self.tokens:narrow(1, first + 1, last - first), starts, self.tokenizer, mask)
end

--- Splits off the last `fraction` of the tokens: returns what is left, and what is held out.
--- Examples with answers stay whole.
---@param fraction number in (0, 1)
function Corpus:hold_out(fraction)
  if type(fraction) ~= 'number' or not (fraction > 0 and fraction < 1) then
    raise('hold_out: the fraction must lie between 0 and 1, got %s', tostring(fraction))
  end
  local cut = math.floor(self.n * (1 - fraction))
  if self.mask then
    if #self.starts < 2 then
      refuse('hold_out: there is one example, and it cannot be divided; learn from it without a '
             .. 'test (held_out=0 of a recipe)')
    end
    local nearest = self.starts[2]
    for _, start in ipairs(self.starts) do
      if start > 0 and math.abs(start - cut) < math.abs(nearest - cut) then nearest = start end
    end
    cut = nearest
  elseif cut < 2 or self.n - cut < 2 then
    refuse('hold_out: %g of %d tokens is %d, and both parts need two; learn from more text, or '
           .. 'without a test (held_out=0 of a recipe)', fraction, self.n, self.n - cut)
  end
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
  local sum = 0
  for _, pair in ipairs(sorted_keys(pairs_seen)) do
    local count = pairs_seen[pair]
    sum = sum - count * math.log(count / seen[math.floor(pair / vocab)])
  end
  return sum / math.max(1, self.n - 1)
end

--- A hash of all tokens, as 16 hexadecimal digits; with a mask as 32.
---@return string
function Corpus:hash()
  local function digest(t) return hash.integers(t:data(), self.n) end
  self.digest = self.digest or digest(self.tokens)
                .. (self.mask and digest(self.mask) or '')
  return self.digest
end

--- Cuts the tokens into rows of `length` inputs and as many labels; the last row is filled up.
--- Examples with answers (ul.data.chat) are not cut: each row is filled with as many whole ones as
--- fit. One that is longer than a row is left out (`overlong = 'drop'`), cut at its end ('cut') or
--- refused ('refuse'); rows.corpus.dropped and rows.corpus.cut count them.
---@param length integer
---@param given { overlong: 'drop'|'cut'|'refuse'|nil }?
---@return Rows
function Corpus:pack(length, given)
  local overlong = options.read('pack', given, { overlong = options.none }).overlong
  if type(length) ~= 'number' or length < 1 or length ~= math.floor(length) then
    raise('pack: a row needs a positive length, got %s', tostring(length))
  end
  if overlong and not self.mask then raise 'pack: overlong is for examples with answers' end
  if not self.mask then return rows.new(self, length) end
  overlong = overlong or 'drop'
  if overlong ~= 'drop' and overlong ~= 'cut' and overlong ~= 'refuse' then
    raise("pack: overlong must be 'drop', 'cut' or 'refuse', got '%s'", tostring(overlong))
  end
  return rows.new(laid_out(self, length, overlong), length)
end

return { tokenize = tokenize, growing = growing }
