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
