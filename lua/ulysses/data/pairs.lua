-- pairs.lua - ul.data.pairs: two answers to each prompt, of which one is preferred, and batches of
-- such pairs.
local ffi = require 'ffi'
local ul = require 'ulysses'
local batch = require 'ulysses.data.batch'
local chat = require 'ulysses.chat'
local examples = require 'ulysses.data.examples'
local hash = require 'ulysses.hash'
local options = require 'ulysses.options'
local permutation = require 'ulysses.data.permutation'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'

local field = examples.field
local SIDES = { 'chosen', 'rejected' }

-- ---- an example ----

-- The messages of a prompt with an answer. Where the answer is a whole conversation, a prompt that
-- is text is what its first message says again.
local function conversation(prompt, answer)
  local messages = {}
  if type(answer) == 'string' then answer = { { role = 'assistant', content = answer } } end
  local first = answer[1]
  if type(prompt) == 'string' then
    local is_whole = type(first) == 'table' and first.role ~= 'assistant'
    prompt = is_whole and {} or { { role = 'user', content = prompt } }
  end
  for _, list in ipairs { prompt or {}, answer } do
    for _, message in ipairs(list) do messages[#messages + 1] = message end
  end
  return messages
end

local function check_answers(messages, side)
  for _, message in ipairs(messages) do
    if type(message) == 'table' and message.role == 'assistant' then return end
  end
  refuse("'%s' has no answer to learn: no message in it is from the assistant", side)
end

-- Whether an answer has no more to score than its end.
local function is_empty(answer)
  if type(answer) == 'string' then return answer == '' end
  for i = #answer, 1, -1 do
    if answer[i].role == 'assistant' then return not chat.says(answer[i]) end
  end
end

-- Ids of a prompt with an answer, and for each whether it belongs to the answer.
local function encode(example, side, tok, how)
  local prompt, answer = field(example, 'prompt'), field(example, side)
  if type(answer) ~= 'string' and (type(answer) ~= 'table' or #answer == 0) then
    refuse("'%s' must be text, or a list of messages that is not empty", side)
  elseif prompt ~= nil and type(prompt) ~= 'string' and type(prompt) ~= 'table' then
    refuse "'prompt' must be text, or a list of messages"
  end
  if type(answer) == 'table' or type(prompt) == 'table' then
    if type(answer) == 'table' then check_answers(answer, side) end
    if not tok.tokenizer then
      refuse 'conversations need a tokenizer with special tokens, as models come with'
    end
    return chat.encode(tok.tokenizer, how.family, conversation(prompt, answer),
                       { loss = 'last', date = how.date, tools = field(example, 'tools') })
  end
  if not prompt then refuse "'prompt' must be text where the answers are" end
  local ids, mask = {}, {}
  for _, id in ipairs(tok.encode(prompt)) do ids[#ids + 1], mask[#mask + 1] = id, 0 end
  local rest = tok.tokenizer and tok.tokenizer:encode(answer) or tok.encode(answer)
  for _, id in ipairs(rest) do ids[#ids + 1], mask[#mask + 1] = id, 1 end
  ids[#ids + 1], mask[#mask + 1] = tok.eos, 1
  return ids, mask
end

-- An answer in C's memory: ids, and 1 for those that are to be scored.
local function side_of(example, side, tok, how)
  local ids, mask = encode(example, side, tok, how)
  local kept, scored = { n = #ids, ids = ffi.new('int32_t[?]', #ids),
                         mask = ffi.new('uint8_t[?]', #ids) }, 0
  for i, id in ipairs(ids) do
    local counts = i > 1 and mask[i] == 1 -- no token before it predicts the first one
    kept.ids[i - 1], kept.mask[i - 1] = id, counts and 1 or 0
    scored = scored + (counts and 1 or 0)
  end
  if scored == 0 or is_empty(field(example, side)) then
    refuse("'%s' has nothing to learn: it is empty", side)
  end
  return kept
end

local function is_same(a, b)
  return a.n == b.n and ffi.string(a.ids, 4 * a.n) == ffi.string(b.ids, 4 * b.n)
end

-- ---- a batch ----

--- Some pairs, filled up to one length: what was chosen, then what was rejected.
---@class PairBatch
---@field inputs Tensor i64 [2 n, T]
---@field targets Tensor i64 [2 n, T]: what each token is followed by in an answer, else -100
---@field positions Tensor i64 [T]
---@field n integer pairs of this rank in here
---@field total integer pairs of the whole step, on all ranks
---@field mesh Mesh
local PairBatch = {}
PairBatch.__index = PairBatch

PairBatch.loss, PairBatch.is_silent = batch.reports.loss, batch.reports.is_silent

-- The rows of some pairs, those of this rank of which each gets its tokens.
local function fill(fields, list)
  local mine, length, mesh = {}, 0, fields.mesh
  for i, k in ipairs(mesh and mesh:rows(#list) or {}) do mine[i] = list[k] end
  if not mesh then mine = list end
  for _, pair in ipairs(list) do
    length = math.max(length, pair.chosen.n, pair.rejected.n)
  end
  local function rows() return ul.empty { 2 * #mine, length, dtype = 'i64', device = 'cpu' } end
  local inputs, targets = rows(), rows()
  local x, y = inputs:data(), targets:data()
  for s, name in ipairs(SIDES) do
    for b, pair in ipairs(mine) do
      local side, base = pair[name], ((s - 1) * #mine + b - 1) * length
      for t = 0, length - 1 do
        x[base + t] = t < side.n and side.ids[t] or fields.pad
        local is_scored = t + 1 < side.n and side.mask[t + 1] == 1
        y[base + t] = is_scored and side.ids[t + 1] or -100
      end
    end
  end
  local device = ul.default_device()
  local function slice(rows_or_places, dim)
    return (mesh and mesh:slice(rows_or_places, dim) or rows_or_places):to(device)
  end
  fields.inputs, fields.targets = slice(inputs), slice(targets)
  fields.positions, fields.n = slice(ul.arange(length, { device = 'cpu' }), 1), #mine
  if mesh then mesh.n_rows = 2 * #list end
  return setmetatable(fields, PairBatch)
end

--- Iterates over n micro-batches: the same pairs in n parts, each filled up to its own length.
---@param n integer
function PairBatch:micros(n)
  local ranks = self.mesh and self.mesh.dp.size or 1
  if type(n) ~= 'number' or n < 1 or #self.list % (n * ranks) ~= 0 then
    raise('batch:micros: %d pairs of %d ranks cannot be cut into %s equal parts', #self.list,
          ranks, tostring(n))
  end
  local i, each = 0, #self.list / n
  return function()
    if i == n then return nil end
    local list = {}
    for k = 1, each do list[k] = self.list[i * each + k] end
    i = i + 1
    local part = fill({ mesh = self.mesh, pad = self.pad, total = self.total, whole = self }, list)
    self.tokens = self.tokens + part.inputs:numel()
    return part
  end
end

--- Tells the step what ul.preference.dpo has given for these pairs.
---@param loss Tensor this rank's part
---@param seen { margin: number, accuracy: number }
function PairBatch:report(loss, seen)
  local whole = self.whole
  table.insert(whole.losses, loss:detach():keep())
  whole.margin = whole.margin + seen.margin * self.n / self.total
  whole.accuracy = whole.accuracy + seen.accuracy * self.n / self.total
end

--- The means over all pairs of the step, on all ranks, of what was reported.
---@return { margin: number, accuracy: number }
function PairBatch:seen()
  local mesh, values = self.mesh, { self.margin, self.accuracy }
  if mesh and mesh.dp.size > 1 and mesh.world.transport ~= 'plan' then
    values = ul.scope(function()
      return mesh.dp:all_reduce(ul.tensor(values, { dtype = 'f64', device = 'cpu' })):tolist()
    end)
  end
  return { margin = values[1], accuracy = values[2] }
end

-- ---- all pairs ----

---@class Pairs
---@field n integer how many there are
---@field long integer how many were left out as one of the answers was too long
---@field length integer the most tokens that one may have, its prompt included
local Pairs = {}
Pairs.__index = Pairs
function Pairs.__tostring(self)
  return ('%d pairs of answers, of %d tokens at most'):format(self.n, self.length)
end

--- Another order in each epoch, the same for the same seed.
---@param given { seed: integer }?
function Pairs:shuffle(given)
  self.seed = options.read('shuffle', given, { seed = 0 }).seed
  return self
end

--- How many pairs a step has, on all ranks and over all micro-batches.
---@param size integer
function Pairs:batch(size)
  if type(size) ~= 'number' or size < 1 or size ~= math.floor(size) then
    raise('batch: a batch needs a positive number of pairs, got %s', tostring(size))
  end
  self.size = size
  return self
end

--- Cuts each batch for the ranks of a mesh: a rank gets some of the pairs, and of these its tokens.
---@param mesh Mesh
function Pairs:shard(mesh)
  if type(mesh) ~= 'table' or not mesh.sequence then
    raise('shard: expected a mesh, as ul.mesh { sp = 2 } makes one, got a %s', type(mesh))
  end
  self.mesh = mesh
  return self
end

--- The k-th batch (from 1) of an endless sequence of epochs; its rows are made by :micros(n).
---@param k integer
---@return PairBatch
function Pairs:at(k)
  if not self.size then raise 'at: say how large a batch is first, with :batch(n)' end
  local list = {}
  for b = 1, self.size do
    local place = (k - 1) * self.size + b - 1
    local epoch, index = math.floor(place / self.n), place % self.n
    if self.seed then index = permutation(self.n, self.seed, epoch, index) end
    list[b] = self.list[index + 1]
  end
  return setmetatable({ list = list, mesh = self.mesh, pad = self.pad, total = #list, tokens = 0,
                        losses = {}, margin = 0, accuracy = 0, denominator = #list }, PairBatch)
end

-- A hash of all answers, and of what of them is scored.
local function digest(list)
  local parts = {}
  for _, pair in ipairs(list) do
    for _, name in ipairs(SIDES) do
      parts[#parts + 1] = hash.integers(pair[name].ids, pair[name].n)
      parts[#parts + 1] = hash.integers(pair[name].mask, pair[name].n)
    end
  end
  local text = table.concat(parts)
  return hash.integers(ffi.cast('const uint8_t *', text), #text)
end

--- What decides which pairs come when: a run keeps it in its checkpoints.
---@return { pairs: integer, hash: string, size: integer, seed: integer? }
function Pairs:fingerprint()
  self.digest = self.digest or digest(self.list)
  return { pairs = self.n, hash = self.digest, size = self.size, seed = self.seed }
end

local differences = {
  { 'size', 'batches of %s pairs, not %s (batch)' },
  { 'seed', 'a shuffle with seed %s, not %s (seed)' },
  { 'pairs', '%s pairs, not %s (data, seq_len)' },
  { 'hash', 'other pairs (data, tokenizer)' },
}

--- How an earlier fingerprint differs from this one, or nil.
---@param fingerprint table
---@return string?
function Pairs:difference(fingerprint)
  return batch.difference(differences, fingerprint, self:fingerprint())
end

-- ---- reading ----

---@class PairFile
local PairFile = {}
PairFile.__index = PairFile
function PairFile.__tostring(self) return ('the pairs of %s'):format(self.name) end

--- The tokens of all pairs. Pairs with an answer that is longer than `length` tokens, its prompt
--- included, are left out. `family` and `date` are those of `ul.chat.encode`.
---@param tokenizer string|Tokenizer|table the path of a tokenizer, or one that is loaded
---@param given { length: integer?, family: string?, date: string? }?
---@return Pairs
function PairFile:tokenize(tokenizer, given)
  local how = options.read('tokenize', given, { length = 1024, family = options.none,
                                                date = options.none })
  local tok = require('ulysses.tokenizer').resolve('tokenize', tokenizer)
  local list, long, differ = {}, 0, false
  examples.each(self, function(example)
    local pair = {}
    for _, side in ipairs(SIDES) do pair[side] = side_of(example, side, tok, how) end
    differ = differ or not is_same(pair.chosen, pair.rejected)
    local fits = math.max(pair.chosen.n, pair.rejected.n) <= how.length
    if fits then list[#list + 1] = pair else long = long + 1 end
  end)
  if #list + long == 0 then refuse("data.pairs: '%s' has no examples", self.name) end
  if #list == 0 then
    refuse("data.pairs: none of the %d pairs of '%s' is as short as %d tokens (seq_len)", long,
           self.name, how.length)
  end
  if not differ then
    refuse("data.pairs: '%s' has nothing to learn: what was chosen is what was rejected", self.name)
  end
  return setmetatable({ list = list, n = #list, long = long, length = how.length, pad = tok.pad },
                      Pairs)
end

--- Pairs of answers to learn from which is preferred: a file of JSON lines, or all that match a
--- pattern (gzipped ones too), or a list of such tables. A line is one of
---
---   {"prompt": "..", "chosen": "..", "rejected": ".."}
---   {"prompt": [messages], "chosen": [messages], "rejected": [messages]}
---   {"chosen": [messages], "rejected": [messages]}                with the prompt in both
---
--- What is wrong with one is said with its file and line, when they are made into tokens:
---
---   ul.data.pairs('pairs.jsonl'):tokenize(tok, { length = 1024 }):shuffle { seed = 1 }:batch(8)
---@param from string|table[]
---@return PairFile
local function read(from) return setmetatable(examples.find('data.pairs', from), PairFile) end

return { read = read }
