-- batch.lua - rows of tokens with their labels, and the one denominator that their losses share.
local ul = require 'ulysses'
local raise = require 'ulysses.raise'

local IGNORE = -100

---@class Batch
---@field inputs userdata i64 [B, T]
---@field targets userdata i64 [B, T]; -100 where there is nothing to predict
---@field positions userdata i64 [T], or [B, T] where documents restart them
---@field docs userdata|nil i64 offsets of documents over the flattened rows, nil: a row is one
---@field count integer labels of the rows in here
---@field denominator integer labels in the whole step
---@field length integer tokens of a row, of which T are this rank's
---@field mesh Mesh|nil whose ranks share the rows
---@field n_rows integer rows in here, on all ranks together
local Batch = {}
Batch.__index = Batch
function Batch.__tostring(self)
  return ('batch [%s]%s, %d labels%s'):format(
    table.concat(self.inputs.shape, ', '),
    self.mesh and (' of rows of %d tokens'):format(self.length) or '', self.count,
    self.docs and ', several documents in a row' or '')
end

-- Rows are read and written on the host; the batch lies where the model is.
local function host(B, T) return ul.empty { B, T, dtype = 'i64', device = 'cpu' } end
local function moved(t) return t:to(ul.default_device()) end

-- Tells the mesh what its ranks are about to work on.
local function begin(self)
  if self.mesh then self.mesh.tokens, self.mesh.n_rows = self.length, self.n_rows end
  return self
end

-- This rank's tokens of whole rows, and nothing that keeps the others alive.
local function sliced(mesh, t)
  if not mesh or mesh.sequence.size == 1 then return t end
  return mesh:slice(t, t:dim()):clone()
end

-- A step's batch and the micro-batches cut from it share the losses that were reported.
local function new(fields, parent)
  fields.count = 0
  for _, row in ipairs(fields.rows) do fields.count = fields.count + row.count end
  fields.denominator = parent and parent.denominator or fields.denominator or fields.count
  fields.losses = parent and parent.losses or {}
  return begin(setmetatable(fields, Batch))
end

-- Fills the positions, and the document offsets where a row holds more than one document; they lie
-- where the rows are.
local function mark_documents(fields)
  local rows, length, several = fields.rows, fields.length, false
  local device = fields.inputs:device()
  for _, row in ipairs(rows) do several = several or #row.starts > 1 end
  if not several then
    fields.positions = sliced(fields.mesh, ul.arange(length, { device = device }))
    return
  end
  local offsets, positions = {}, host(#rows, length)
  local p = positions:data()
  for b, row in ipairs(rows) do
    local base = (b - 1) * length
    for i, start in ipairs(row.starts) do
      local stop = row.starts[i + 1] or length
      offsets[#offsets + 1] = base + start
      for t = start, stop - 1 do p[base + t] = t - start end
    end
  end
  offsets[#offsets + 1] = #rows * length
  fields.positions = sliced(fields.mesh, positions):to(device)
  fields.docs = ul.tensor(offsets, { dtype = 'i64', device = device })
end

--- Makes the batch of some rows { first =, starts =, boundaries =, count = } of a corpus (see
--- rows.lua). The label of a token is the token after it, shifted here on the whole row; none
--- across documents. Only then are rows cut for the ranks of a mesh.
---@param corpus Corpus
---@param rows table[] those of this rank
---@param length integer
---@param mesh Mesh|nil
---@param denominator integer labels in the whole step
---@param n_rows integer rows of the whole step
local function assemble(corpus, rows, length, mesh, denominator, n_rows)
  local inputs, targets = host(#rows, length), host(#rows, length)
  local x, y, tokens = inputs:data(), targets:data(), corpus.tokens:data()
  local n, pad, mask = corpus.n, corpus.tokenizer.pad, corpus.mask and corpus.mask:data()
  for b, row in ipairs(rows) do
    local base = (b - 1) * length
    for t = 0, length - 1 do
      local i = row.first + t
      x[base + t] = i < n and tokens[i] or pad
      local learned = i + 1 < n and (not mask or mask[i + 1] == 1)
      y[base + t] = learned and tokens[i + 1] or IGNORE
    end
    for _, boundary in ipairs(row.boundaries) do y[base + boundary - 1] = IGNORE end
  end
  local fields = { inputs = moved(sliced(mesh, inputs)), targets = moved(sliced(mesh, targets)),
                   rows = rows, length = length, mesh = mesh, denominator = denominator,
                   n_rows = n_rows }
  mark_documents(fields)
  return new(fields)
end

--- A batch of tensors that are there already; labels of -100 do not count.
---@param inputs userdata i64 [B, T]
---@param targets userdata i64 [B, T]
local function from(inputs, targets)
  if not ul.is_tensor(inputs) or not ul.is_tensor(targets) then
    raise('data.batch: expected tensors of inputs and targets, got a %s and a %s', type(inputs),
          type(targets))
  end
  local B, T = inputs:size()
  local known = targets:device() ~= 'meta' and targets:to('cpu'):contiguous()
  local rows, y = {}, known and known:data()
  for b = 1, B do
    local count = T -- on meta there is nothing to look at: every label counts
    if y then
      count = 0
      for i = (b - 1) * T, b * T - 1 do
        if y[i] ~= IGNORE then count = count + 1 end
      end
    end
    rows[b] = { starts = { 0 }, count = count }
  end
  if known then known:dim() end -- it is held until here, and what y points to with it
  local fields = { inputs = inputs, targets = targets, rows = rows, length = T, n_rows = B }
  mark_documents(fields)
  return new(fields)
end

--- What this rank of a mesh has of a batch that all ranks have: its rows, and of these its tokens.
---@param mesh Mesh
---@return Batch
function Batch:shard(mesh)
  if self.mesh then raise 'batch:shard: its rows are shared by a mesh already' end
  local fields = { rows = {}, length = self.length, mesh = mesh, denominator = self.denominator,
                   n_rows = self.n_rows }
  local inputs, targets = {}, {}
  for i, b in ipairs(mesh:rows(#self.rows)) do
    fields.rows[i] = self.rows[b]
    inputs[i], targets[i] = self.inputs:narrow(1, b, 1), self.targets:narrow(1, b, 1)
  end
  if #inputs == 0 then
    inputs[1], targets[1] = self.inputs:narrow(1, 1, 0), self.targets:narrow(1, 1, 0)
  end
  fields.inputs, fields.targets = sliced(mesh, ul.cat(inputs, 1)), sliced(mesh, ul.cat(targets, 1))
  mark_documents(fields)
  return new(fields)
end

-- The i-th of n parts of B rows: its first and last.
local function part(B, n, i) return math.floor((i - 1) * B / n) + 1, math.floor(i * B / n) end

-- How many rows the i-th of n parts has on all ranks together.
local function rows_of_part(self, n, i)
  local dp, count = self.mesh and self.mesh.dp.size or 1, 0
  for d = 0, dp - 1 do
    local first, last = part(math.ceil((self.n_rows - d) / dp), n, i)
    count = count + last - first + 1
  end
  return count
end

--- Iterates over n micro-batches: the same rows in n parts. Their losses and gradients add up to
--- those of the whole batch, for they share its denominator.
---@param n integer
function Batch:micros(n)
  local B, least = #self.rows, self.mesh and self.mesh:least_rows(self.n_rows) or self.n_rows
  if type(n) ~= 'number' or n < 1 or n > least or n ~= math.floor(n) then
    raise('batch:micros: cannot cut %d rows into %s parts', least, tostring(n))
  end
  local i = 0
  return function()
    if i == n then return nil end
    i = i + 1
    if n == 1 then return begin(self) end
    local first, last = part(B, n, i)
    local rows = {}
    for b = first, last do rows[#rows + 1] = self.rows[b] end
    local fields = {
      inputs = self.inputs:narrow(1, first, #rows),
      targets = self.targets:narrow(1, first, #rows),
      rows = rows, length = self.length, mesh = self.mesh,
      n_rows = rows_of_part(self, n, i),
    }
    mark_documents(fields)
    return new(fields, self)
  end
end

--- Turns a sum of losses over the labels in here into this batch's share of the step's mean, and
--- reports it to the step.
---@param sum userdata
---@return userdata
function Batch:mean(sum)
  local loss = sum / math.max(1, self.denominator)
  self.losses[#self.losses + 1] = loss:detach():keep()
  return loss
end

--- Whether no loss was reported although there was one to report.
---@return boolean
function Batch:is_silent()
  return #self.losses == 0 and self.losses.total == nil and self.denominator > 0
end

-- What all ranks of a mesh have reported, as each of them is told.
local function over_ranks(mesh, mine)
  if not mesh or mesh.world.size == 1 or mesh.world.transport == 'plan' then return mine end
  return ul.scope(function()
    return mesh.world:all_reduce(ul.tensor({ mine }, { dtype = 'f64', device = 'cpu' })):item()
  end)
end

--- The step's loss: what was reported so far, NaN on meta. Reading it ends the reports. Ranks of a
--- mesh read it together, and get the same.
---@return number
function Batch:loss()
  local losses = self.losses
  if losses.total and #losses == 0 then return losses.total end
  local total = losses.total and 0 or nil
  for i, loss in ipairs(losses) do
    total = (total or 0) + (loss:device() == 'meta' and 0 / 0 or loss:item())
    loss:free()
    losses[i] = nil
  end
  if not total and not self.mesh then return 0 end
  losses.total = (losses.total or 0) + over_ranks(self.mesh, total or 0)
  return losses.total
end

--- How an earlier fingerprint of data differs from that of these, or nil.
---@param differences string[][] a field, and a sentence about its two values
---@param before table
---@param now table
---@return string?
local function difference(differences, before, now)
  for _, one in ipairs(differences) do
    local field, sentence = unpack(one)
    if before[field] ~= now[field] then
      return sentence:format(tostring(before[field] or 'none'), tostring(now[field] or 'none'))
    end
  end
end

-- reports: what other batches do as these, with the losses that they were told
return { assemble = assemble, from = from, difference = difference,
         reports = { loss = Batch.loss, is_silent = Batch.is_silent } }
