-- rows.lua - a corpus cut into rows, their order, and batches of them.
local batch = require 'ulysses.data.batch'
local options = require 'ulysses.options'
local permutation = require 'ulysses.data.permutation'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'

---@class Rows
---@field n integer how many rows an epoch has
local Rows = {}
Rows.__index = Rows
function Rows.__tostring(self)
  return ('%d rows of %d tokens%s%s%s'):format(
    self.n, self.length, self.size and ', in batches of ' .. self.size or '',
    self.seed and ', shuffled' or '',
    self.mesh and (', shared by %d ranks'):format(self.mesh.world.size) or '')
end

--- Row i (from 0) holds tokens [i length, (i + 1) length], both ends included: the last one is the
--- label of the one before it, and the first input of the next row.
local function new(corpus, length)
  local n = math.max(0, math.ceil((corpus.n - 1) / length))
  return setmetatable({ corpus = corpus, length = length, n = n }, Rows)
end

--- Another order in each epoch, the same for the same seed.
---@param given { seed: integer }?
function Rows:shuffle(given)
  self.seed = options.read('shuffle', given, { seed = 0 }).seed
  return self
end

--- How many rows a batch has (over all micro-batches).
---@param size integer
function Rows:batch(size)
  if type(size) ~= 'number' or size < 1 or size ~= math.floor(size) then
    raise('batch: a batch needs a positive number of rows, got %s', tostring(size))
  end
  self.size = size
  return self
end

--- Cuts each batch for the ranks of a mesh: a rank gets some of the rows, and of these its tokens.
--- All ranks go through the batches together.
---@param mesh Mesh
function Rows:shard(mesh)
  if type(mesh) ~= 'table' or not mesh.sequence then
    raise('shard: expected a mesh, as ul.mesh { sp = 2 } makes one, got a %s', type(mesh))
  end
  if self.size and self.size < mesh.dp.size then
    refuse('shard: a batch of %d rows is too small for %d data-parallel ranks', self.size,
           mesh.dp.size)
  end
  self.mesh = mesh
  return self
end

--- The same rows, to be batched or shared otherwise.
---@return Rows
function Rows:copy()
  local fields = {}
  for key, value in pairs(self) do fields[key] = value end
  return setmetatable(fields, Rows)
end

-- The first document that begins behind token `first`: its index in starts.
local function first_start_after(starts, first)
  local low, high = 1, #starts + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if starts[middle] > first then high = middle else low = middle + 1 end
  end
  return low
end

-- Row i: its first token, where documents start in it (from 0, 0 always among them), where tokens
-- stand that no token before them is to predict (1 to length), and how many labels are left.
local function row_at(self, i)
  local starts, first = self.corpus.starts, i * self.length
  local row = { first = first, starts = { 0 }, boundaries = {} }
  for k = first_start_after(starts, first), #starts do
    local at = starts[k] - first
    if at > self.length then break end
    row.boundaries[#row.boundaries + 1] = at
    if at < self.length then row.starts[#row.starts + 1] = at end
  end
  local labels = math.min(self.length, self.corpus.n - 1 - first)
  row.count = labels - #row.boundaries
  if self.corpus.mask then -- which has 0 at the first token of each document
    local mask = self.corpus.mask:data()
    row.count = 0
    for t = first + 1, first + labels do row.count = row.count + mask[t] end
  end
  return row
end

-- The row that stands at `position` of the endless sequence of epochs.
local function row_in_sequence(self, position)
  local epoch, index = math.floor(position / self.n), position % self.n
  if self.seed then index = permutation(self.n, self.seed, epoch, index) end
  return row_at(self, index)
end

local function check(self, caller)
  if self.n == 0 then refuse('%s: the text has less than two tokens', caller) end
  if not self.size then raise('%s: say how large a batch is first, with :batch(n)', caller) end
end

-- The batch of rows that all ranks know, of which each makes its own part.
local function batch_of(self, rows)
  local denominator, mine = 0, rows
  for _, row in ipairs(rows) do denominator = denominator + row.count end
  if self.mesh then
    mine = {}
    for i, b in ipairs(self.mesh:rows(#rows)) do mine[i] = rows[b] end
  end
  return batch.assemble(self.corpus, mine, self.length, self.mesh, denominator, #rows)
end

--- The k-th batch (from 1) of an endless sequence of epochs. It depends on k alone, so that a run
--- may begin anywhere.
---@param k integer
function Rows:at(k)
  if type(k) ~= 'number' or k < 1 or k ~= math.floor(k) then
    raise('at: batches count from 1, got %s', tostring(k))
  end
  check(self, 'at')
  local rows = {}
  for b = 1, self.size do rows[b] = row_in_sequence(self, (k - 1) * self.size + b - 1) end
  return batch_of(self, rows)
end

--- Iterates over all rows once, in the order of the text; the last batch may be smaller.
function Rows:once()
  check(self, 'once')
  local i = 0
  return function()
    if i >= self.n then return nil end
    local rows = {}
    while i < self.n and #rows < self.size do
      rows[#rows + 1] = row_at(self, i)
      i = i + 1
    end
    return batch_of(self, rows)
  end
end

--- What decides which rows come when, as plain values: a run keeps it in its checkpoints.
---@return { tokens: integer, hash: string, length: integer, size: integer, seed: integer? }
function Rows:fingerprint()
  return { tokens = self.corpus.n, hash = self.corpus:hash(), length = self.length,
           size = self.size, seed = self.seed }
end

local differences = {
  { 'length', 'rows of %s tokens, not %s (seq_len)' },
  { 'size', 'batches of %s rows, not %s (batch)' },
  { 'seed', 'a shuffle with seed %s, not %s (seed)' },
  { 'tokens', 'a text of %s tokens, not %s (data, held_out, tokenizer)' },
  { 'hash', 'another text (data, or how it is read: tokenizer, held_out, what of a conversation is '
            .. 'learned)' },
}

--- How an earlier fingerprint differs from this one ("rows of 512 tokens, not 1024"), or nil.
---@param fingerprint table
---@return string|nil
function Rows:difference(fingerprint)
  return batch.difference(differences, fingerprint, self:fingerprint())
end

return { new = new }
