-- hf_models.lua - the tiny models of tests/golden/make_hf.py, as folders that ul.hf.load reads.
local core = require 'ulysses.core'
local ul = require 'ulysses'

local models = { golden = dofile 'tests/golden/hf.lua', VOCAB = 61, B = 2, T = 24, NEW = 40 }

--- The value of element i (from 0) of the k-th tensor.
local function value_of(i, k, is_norm)
  local value = 9999 * math.sin(12.9898 * i + 78.233 * k)
  value = 0.7 * (value - math.floor(value) - 0.5)
  return is_norm and 1 + value / 5 or value
end

--- The tensors of a golden model, by name.
---@param name string
---@return table<string, Tensor>
function models.tensors(name)
  local tensors = {}
  for k, entry in ipairs(models.golden[name].gradients) do
    local tensor = ul.empty(entry[2], { device = 'cpu' })
    local data = tensor:data()
    for i = 0, tensor:numel() - 1 do
      data[i] = value_of(i, k, entry[1]:find 'norm' ~= nil)
    end
    tensors[entry[1]] = tensor:to(ul.default_device())
  end
  return tensors
end

function models.write(path, text)
  local file = assert(io.open(path, 'wb'))
  file:write(text)
  file:close()
end

function models.read(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read '*a'
  file:close()
  return text
end

--- A folder of its own for the tests of a file.
---@return string
function models.new_folder()
  local folder = require('tests.checkpoints').folder()
  assert(core.folder_make(folder))
  return folder
end

function models.remove(folder) assert(core.path_remove(folder)) end

--- Makes the folder of a golden model in `parent`; `change` may change its tensors.
---@return string
function models.make(parent, name, change)
  local folder = parent .. '/' .. name
  assert(core.folder_make(folder))
  models.write(folder .. '/config.json', models.golden[name].config)
  local tensors = models.tensors(name)
  if change then change(tensors) end
  ul.safetensors.save(folder .. '/model.safetensors', tensors, { metadata = { format = 'pt' } })
  return folder
end

-- Sums with these factors see where a value stands.
local function factor(i) return math.sin(0.7 * i) end

--- How far logits are from the golden ones, at most: of those that are kept, and of each token's
--- sum, the latter by sqrt(VOCAB).
---@param name string
---@param logits Tensor [B, T, VOCAB]
---@return number
function models.gap_of_logits(name, logits)
  local golden, data, gap = models.golden[name], logits:to('cpu'):contiguous():data(), 0
  for i, value in ipairs(golden.logits) do
    gap = math.max(gap, math.abs(value - data[17 * (i - 1)]))
  end
  for row, expected in ipairs(golden.sums) do
    local sum = 0
    for i = 0, models.VOCAB - 1 do sum = sum + factor(i) * data[(row - 1) * models.VOCAB + i] end
    gap = math.max(gap, math.abs(sum - expected) / math.sqrt(models.VOCAB))
  end
  return gap
end

--- How far a gradient is from the golden one, against its norm: the sums by sqrt(n), the norm, and
--- each element that is kept.
---@param entry table of models.golden[name].gradients
---@param gradient Tensor
---@return number
function models.gap_of_gradient(entry, gradient)
  local data, n = gradient:to('cpu', 'f64'):contiguous():data(), gradient:numel()
  local sum, other, squares = 0, 0, 0
  for i = 0, n - 1 do
    sum, other, squares = sum + data[i], other + factor(i) * data[i], squares + data[i] ^ 2
  end
  local kept, some = entry[3], entry[4]
  local norm = kept[3]
  local gap = math.max(math.abs(sum - kept[1]), math.abs(other - kept[2])) / math.sqrt(n)
  gap = math.max(gap, math.abs(math.sqrt(squares) - norm))
  for i, value in ipairs(some) do
    local at = (i - 1) * (math.floor(n / #some) + 1) % n
    gap = math.max(gap, math.abs(value - data[at]))
  end
  return gap / norm
end

--- The rows of ids that the golden results are of.
---@return integer[][]
function models.rows()
  local rows = {}
  for b = 1, models.B do
    rows[b] = {}
    for t = 1, models.T do
      local i = (b - 1) * models.T + t - 1
      rows[b][t] = (i * i * 7 + i * 13) % models.VOCAB
    end
  end
  return rows
end

--- The same as a batch of ul.data: each token's label is the next one.
---@return Batch
function models.batch()
  local rows, targets = models.rows(), {}
  for b, row in ipairs(rows) do
    targets[b] = {}
    for t = 1, models.T do targets[b][t] = row[t + 1] or -100 end
  end
  return ul.data.batch(ul.tensor(rows, { dtype = 'i64' }), ul.tensor(targets, { dtype = 'i64' }))
end

return models
