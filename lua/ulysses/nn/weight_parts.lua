-- weight_parts.lua - parameters of which each rank of a group holds a part: cut from the whole, put
-- together again.
--
-- A module says so in its field `parallel`, by the name of the parameter, as in
-- { weight = { dim = 1, group = mesh.tp, sizes = sizes } }. What else is said of the parameter
-- (initial values, counts, norms, checkpoints) is said of the whole.
local ul = require 'ulysses'
local raise = require 'ulysses.raise'

---@class Part
---@field dim integer along which the whole is cut
---@field group Group the ranks that hold one part each
---@field sizes integer[] of the parts along dim
---@field flat integer[]|nil where it is a slice of the elements: the shape of what is sliced
---@field inner Part|nil what part of the whole that is itself, where it is not the whole
---@field world Group|nil beside `flat`: all ranks that have slices or parts of the whole

local weight_parts = {}

local parts = setmetatable({}, { __mode = 'k' }) -- by tensor

--- The part that a module says its parameter is; nil where it is a whole.
---@param owner table a module
---@param field string
---@return Part|nil
function weight_parts.of(owner, field)
  local part = type(owner.parallel) == 'table' and owner.parallel[field] or nil
  if part and not part.sizes then
    raise('%s: parallel.%s needs dim, group and sizes, those of all ranks along dim',
          owner.class_name, field)
  end
  return part
end

--- The part that a parameter is of whatever module has it; nil where it is a whole.
---@param parameter Tensor
---@return Part|nil
function weight_parts.of_tensor(parameter) return parts[parameter] end

--- Notes that.
---@param parameter Tensor
---@param part Part|nil
function weight_parts.note(parameter, part) parts[parameter] = part end

--- What a module's field `parallel` says where one of its parameters is no slice any more.
---@param parallel table<string, Part>
---@param field string
---@return table<string, Part>
function weight_parts.without(parallel, field)
  local copy = {}
  for name, part in pairs(parallel) do copy[name] = part end
  copy[field] = parallel[field] and parallel[field].inner
  return copy
end

--- The same of what a module computes with: slices are put together for that.
---@param owner table
---@param field string
---@return Part|nil
function weight_parts.in_use(owner, field)
  local part = weight_parts.of(owner, field)
  if part and part.flat then return part.inner end
  return part
end

-- Where this rank's part stands in the whole, from 1, and its size.
local function place(part)
  local first = 1
  for r = 1, part.group.rank do first = first + part.sizes[r] end
  return first, part.sizes[part.group.rank + 1]
end

--- The shape of the whole.
---@param part Part|nil
---@param mine Tensor this rank's part
---@return integer[]
function weight_parts.shape(part, mine)
  if part and part.flat then
    return weight_parts.shape(part.inner, { shape = part.flat })
  end
  local shape = { unpack(mine.shape) }
  if part then
    shape[part.dim] = 0
    for _, n in ipairs(part.sizes) do shape[part.dim] = shape[part.dim] + n end
  end
  return shape
end

--- How many numbers the whole has.
---@param part Part|nil
---@param mine Tensor
---@return integer
function weight_parts.numel(part, mine)
  local n = 1
  for _, size in ipairs(weight_parts.shape(part, mine)) do n = n * size end
  return n
end

--- This rank's slice of what it computes with.
---@param part Part that says `flat`
---@param used Tensor
---@return Tensor
function weight_parts.slice(part, used) return used:reshape(-1):narrow(1, place(part)) end

--- This rank's part of a whole tensor, as a view.
---@param part Part|nil
---@param whole Tensor
---@return Tensor
function weight_parts.cut(part, whole)
  if not part then return whole end
  if part.flat then return weight_parts.slice(part, weight_parts.cut(part.inner, whole)) end
  return whole:narrow(part.dim, place(part))
end

--- The whole tensor, on all ranks of the group, which must call this together.
---@param part Part|nil
---@param mine Tensor
---@return Tensor
function weight_parts.gather(part, mine)
  if not part then return mine end
  local all = ul.no_grad(part.group.all_gather, part.group, mine:detach(), { dim = part.dim })
  if not part.flat then return all end
  return weight_parts.gather(part.inner, all:view(part.flat))
end

--- Sets a parameter to what its module is to compute with, on ranks that keep a slice of that too.
---@param owner table a module
---@param field string
---@param used Tensor
function weight_parts.set(owner, field, used)
  local part = weight_parts.of(owner, field)
  if not part or not part.flat then
    owner[field]:copy_(used)
    return
  end
  for _, parameter, its_owner, its_field in owner:named_parameters() do
    if its_owner == owner and its_field == field then
      parameter:copy_(weight_parts.slice(part, used))
    end
  end
end

return weight_parts
