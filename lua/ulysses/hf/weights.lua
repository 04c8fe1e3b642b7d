-- weights.lua - the tensors of a checkpoint's folder: in one file, or in several with an index.
local config = require 'ulysses.hf.config'
local core = require 'ulysses.core'
local ffi = require 'ffi'
local json = require 'ulysses.json'
local refuse = require 'ulysses.refuse'
local safetensors = require 'ulysses.safetensors'
local shown = require 'ulysses.hf.shown'
local sorted_keys = require 'ulysses.sorted_keys'

ffi.cdef 'int memcmp(const void *, const void *, size_t);'

local SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'

-- Rows are read so many bytes at a time where only some columns of them are wanted.
local AT_ONCE = 64 * 2 ^ 20

---@class HfWeights
---@field path string the file that says what there is
---@field files table<string, SafetensorsFile> by the name of the tensor
local Weights = {}
Weights.__index = Weights

local function open(path)
  local file, sentence = safetensors.open(path)
  return file or refuse('%s', sentence)
end

-- Which file each tensor is in, as the index has it; every one must be there, and no other.
local function open_shards(folder, path, map)
  if type(map) ~= 'table' or map == json.null or #map > 0 then
    refuse('%s: weight_map must be an object, and is %s', path, map and shown(map) or 'missing')
  end
  local of_name, shards, listed = {}, {}, {}
  for _, name in ipairs(sorted_keys(map)) do
    local shard = map[name]
    if type(shard) ~= 'string' or shard == '' or shard:find '[/%c]'
       or shard:sub(1, 1) == '.' or #shard > 255 then
      refuse("%s: weight_map: '%s' lies in %s, which is no plain name of a file", path,
             name, shown(shard))
    end
    shards[shard], listed[name] = shards[shard] or open(folder .. '/' .. shard), shard
    of_name[name] = shards[shard]
  end
  for _, shard in ipairs(sorted_keys(shards)) do
    local there = {}
    for _, name in ipairs(shards[shard]:names()) do
      there[name] = true
      if listed[name] ~= shard then
        refuse("%s: '%s' lies in %s, and the index does not say so", path, name, shard)
      end
    end
    for _, name in ipairs(sorted_keys(listed)) do
      if listed[name] == shard and not there[name] then
        refuse("%s: '%s' is not in %s", path, name, shard)
      end
    end
  end
  return of_name
end

--- Opens what is there: headers are read and checked, tensors are not.
---@param folder string
---@return HfWeights
function Weights.open(folder)
  local there = {}
  for _, name in ipairs(core.folder_list(folder) or {}) do there[name] = true end
  local self = setmetatable({ path = folder .. '/' .. SINGLE, files = {} }, Weights)
  if there[SINGLE] then
    local file = open(self.path)
    for _, name in ipairs(file:names()) do self.files[name] = file end
  elseif there[INDEX] then
    self.path = folder .. '/' .. INDEX
    self.files = open_shards(folder, self.path, config.read_file(self.path).weight_map)
  elseif there['pytorch_model.bin'] or there['pytorch_model.bin.index.json'] then
    refuse('%s: has its weights in pytorch_model.bin alone; safetensors are read', folder)
  else
    refuse('%s: has neither %s nor %s', folder, SINGLE, INDEX)
  end
  return self
end

--- The names, sorted.
---@return string[]
function Weights:names() return sorted_keys(self.files) end

--- Its sizes; nil where there is no such tensor.
---@param name string
---@return integer[]?
function Weights:shape(name) return self.files[name] and self.files[name]:shape(name) end

---@param name string
---@return string
function Weights:dtype(name) return self.files[name]:dtype(name) end

-- Columns first to first + n - 1 of all rows.
local function read_columns(file, name, target, first)
  local rows, n = target:size()
  local all = file:shape(name)[2]
  local step = math.max(1, math.floor(AT_ONCE / (all * 4)))
  for row = 1, rows, step do
    local last = math.min(rows, row + step - 1)
    local piece = file:get(name, { first = row, last = last, device = 'cpu' })
    target:narrow(1, row, last - row + 1):copy_(piece:narrow(2, first, n))
    piece:free()
  end
end

--- Fills `target`, in place: the whole tensor, or the part of it that this rank holds.
---@param name string
---@param target Tensor
---@param part Part?
function Weights:read(name, target, part)
  local file, first = self.files[name], 1
  if not part then
    file:get(name, { into = target })
    return
  end
  for r = 1, part.group.rank do first = first + part.sizes[r] end
  if target:size(part.dim) == 0 then return end
  if part.dim == 1 then
    file:get(name, { into = target, first = first })
  else
    read_columns(file, name, target, first)
  end
end

--- How many layers there are of which it has tensors.
---@return integer
function Weights:count_layers()
  local seen, n = {}, 0
  for name in pairs(self.files) do
    local layer = name:match '^model%.layers%.(%d+)%.'
    if layer and not seen[layer] then seen[layer], n = true, n + 1 end
  end
  return n
end

--- The dtype that parameters of this checkpoint have where its config does not say so.
---@return Dtype
function Weights:common_dtype()
  for _, name in ipairs(self:names()) do
    if self:dtype(name) ~= 'bf16' then return 'f32' end
  end
  return next(self.files) and 'bf16' or 'f32'
end

--- Refuses what is no weight.
---@param path string
---@param name string
---@param dtype string
function Weights.check_dtype(path, name, dtype)
  if dtype ~= 'f32' and dtype ~= 'bf16' and dtype ~= 'f16' and dtype ~= 'f64' then
    refuse("%s: '%s' is of dtype %s, and weights are f32, bf16, f16 or f64", path, name, dtype)
  end
end

--- Whether two matrices have the same values.
---@param a string
---@param b string
---@return boolean
function Weights:equal(a, b)
  local shape, other = self:shape(a), self:shape(b)
  if #shape ~= 2 or #other ~= 2 or shape[1] ~= other[1] or shape[2] ~= other[2] then
    return false
  end
  local dtype = self:dtype(a)
  if dtype ~= self:dtype(b) or dtype == 'f16' then dtype = 'f32' end
  local step = math.max(1, math.floor(AT_ONCE / (math.max(shape[2], 1) * 8)))
  for row = 1, shape[1], step do
    local same = core.scope(function()
      local how = { first = row, last = math.min(shape[1], row + step - 1), device = 'cpu',
                    dtype = dtype }
      local x, y = self.files[a]:get(a, how), self.files[b]:get(b, how)
      local bytes = x:numel() * (dtype == 'bf16' and 2 or dtype == 'f64' and 8 or 4)
      return ffi.C.memcmp(x:data(), y:data(), bytes) == 0
    end)
    if not same then return false end
  end
  return true
end

function Weights:close()
  for _, file in pairs(self.files) do file:close() end
end

return Weights
