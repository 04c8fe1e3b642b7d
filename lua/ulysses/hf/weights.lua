-- weights.lua - the tensors of a checkpoint's folder: in one file, or in several with an index.
local config = require 'ulysses.hf.config'
local core = require 'ulysses.core'
local refuse = require 'ulysses.refuse'
local safetensors = require 'ulysses.safetensors'

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

local function sorted(set)
  local list = {}
  for key in pairs(set) do list[#list + 1] = key end
  table.sort(list)
  return list
end

-- Which file each tensor is in, as the index has it; every one must be there, and no other.
local function open_shards(folder, path, map)
  if type(map) ~= 'table' then refuse('%s: has no weight_map', path) end
  local of_name, shards, listed = {}, {}, {}
  for _, name in ipairs(sorted(map)) do
    local shard = map[name]
    if type(name) ~= 'string' or type(shard) ~= 'string' or shard == '' or shard:find '[/%z]'
       or shard:sub(1, 1) == '.' then
      refuse("%s: weight_map: '%s' lies in %s, which is no plain name of a file", path,
             tostring(name), tostring(shard))
    end
    shards[shard], listed[name] = shards[shard] or open(folder .. '/' .. shard), shard
    of_name[name] = shards[shard]
  end
  for _, shard in ipairs(sorted(shards)) do
    local there = {}
    for _, name in ipairs(shards[shard]:names()) do
      there[name] = true
      if listed[name] ~= shard then
        refuse("%s: '%s' lies in %s, and the index does not say so", path, name, shard)
      end
    end
    for _, name in ipairs(sorted(listed)) do
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
function Weights:names() return sorted(self.files) end

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

function Weights:close()
  for _, file in pairs(self.files) do file:close() end
end

return Weights
