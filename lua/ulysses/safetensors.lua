-- safetensors.lua - ul.safetensors: files of tensors by name, as other libraries write them.
local core = require 'ulysses.core'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local suggest = require 'ulysses.suggest'

---@class safetensors
local safetensors = {}

--- An open file. Its header is checked and in memory; tensors are read when they are asked for.
---@class SafetensorsFile
---@field path string
local File = {}
File.__index = File
function File.__tostring(self)
  return ('safetensors %s, %d tensors'):format(self.path, #self.file:names())
end

--- The names of the tensors, in the order in which they lie in the file.
---@return string[]
function File:names() return self.file:names() end

-- Raises for a name that the file does not have.
local function known(self, what, name, value)
  if value == nil then
    raise("%s: %s has no tensor '%s'%s", what, self.path, tostring(name),
          suggest(tostring(name), self.file:names()))
  end
  return value
end

---@param name string
---@return integer[]
function File:shape(name) return known(self, 'shape', name, self.file:shape(name)) end

--- 'f32', 'bf16', 'f16', 'f64', 'i32', 'i64', 'u8', 'bool', or another dtype of the format.
---@param name string
---@return string
function File:dtype(name) return known(self, 'dtype', name, self.file:dtype(name)) end

---@return table<string, string>
function File:metadata() return self.file:metadata() end

--- Reads a tensor, or the rows `first` to `last` of its first dim. f16 comes as f32 and bool as
--- u8, others as they are, unless `dtype` asks for another; `into` is filled in place instead.
---@param name string
---@param given { into: Tensor?, dtype: Dtype?, device: Device?, first: integer?, last: integer? }?
---@return Tensor
function File:get(name, given)
  if given and given.device and core.planning() then
    local elsewhere = {}
    for key, value in pairs(given) do elsewhere[key] = value end
    given, elsewhere.device = elsewhere, nil
  end
  local tensor, sentence = self.file:get(name, given)
  if sentence then refuse('%s', sentence) end
  return known(self, 'get', name, tensor)
end

--- Closes the file at once; else the collector does.
function File:close() self.file:close() end

--- Opens a file, whose header must keep every rule of the format.
---@param path string
---@return SafetensorsFile? file, string? sentence nil and what is wrong with it
function safetensors.open(path)
  local file, sentence = core.safetensors_open(path)
  if not file then return nil, sentence end
  return setmetatable({ file = file, path = path }, File)
end

-- Names and tensors of a table by name, or of a list of { name, tensor }.
local function read_items(what)
  if type(what) ~= 'table' then
    raise('safetensors.save: expected a table of tensors, got a %s', type(what))
  end
  local names, tensors = {}, {}
  local function add(name, tensor)
    if type(name) ~= 'string' or not core.is_tensor(tensor) then
      raise("safetensors.save: expected tensors by name, got a %s for '%s'", type(tensor),
            tostring(name))
    end
    if name:find('\0', 1, true) then raise('safetensors.save: a name with a zero byte') end
    names[#names + 1], tensors[#tensors + 1] = name, tensor
  end
  for key, value in pairs(what) do
    if type(key) == 'number' and type(value) == 'table' then
      add(value[1], value[2])
    else
      add(key, value)
    end
  end
  return names, tensors
end

--- Writes tensors, straight from their memory: a table by name, or a list of { name, tensor }.
--- Afterwards the file is whole and on the disk, or the one before is still there. Where the path
--- is a symbolic link, the file that it leads to is written, and the link stays. A script that is
--- planned writes nothing.
---@param path string
---@param tensors table<string, Tensor>
---@param given { metadata: table<string, string>? }?
---@return integer bytes, string hash
function safetensors.save(path, tensors, given)
  local metadata = options.read('safetensors.save', given, { metadata = {} }).metadata
  local keys, pairs_of = {}, {}
  for key, value in pairs(metadata) do
    if type(key) ~= 'string' or type(value) ~= 'string' then
      raise('safetensors.save: metadata must be strings by name; %s is a %s', tostring(key),
            type(value))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys) -- the same bytes for the same contents
  for i, key in ipairs(keys) do pairs_of[2 * i - 1], pairs_of[2 * i] = key, metadata[key] end
  local names, list = read_items(tensors)
  if core.planning() then return 0, '' end
  local bytes, hash = core.safetensors_save(path, names, list, pairs_of)
  if not bytes then refuse('%s', hash) end
  return bytes, hash
end

return safetensors
