-- whole.lua - the way between the tensors that a rank holds and the whole ones that files hold.
--
-- Most tensors are the same on every rank. Of a weight that a module shares out among ranks
-- (module.parallel) each holds a part along one dim, and of the optimizer's state for it the same
-- part. Files know nothing of that: a part is made whole here before it is written, and cut from
-- the whole after it was read, one tensor at a time.
local agree = require 'ulysses.agree'
local core = require 'ulysses.core'
local weight_parts = require 'ulysses.nn.weight_parts'

local whole = {}

---@class WholeItem
---@field name string
---@field tensor Tensor what this rank holds
---@field shape integer[] of the whole
---@field part Part|nil where this rank holds a part alone

local function item(name, tensor, part)
  if part and part.group.size == 1 then part = nil end
  return { name = name, tensor = tensor, part = part, shape = weight_parts.shape(part, tensor) }
end

--- The parameters of a model.
---@param model table
---@param trained boolean? only those that are not frozen
---@return WholeItem[]
function whole.of_model(model, trained)
  local list = {}
  for name, tensor, owner, field in model:named_parameters() do
    if not trained or tensor.requires_grad then
      list[#list + 1] = item(name, tensor, weight_parts.of(owner, field))
    end
  end
  return list
end

--- The same of what an optimizer keeps.
---@param optim Optimizer
---@return WholeItem[]
function whole.of_optimizer(optim)
  local list, parts = {}, {}
  for _, entry in ipairs(optim.entries) do parts[entry.name] = entry.part end
  for name, tensor in optim:named_state() do
    list[#list + 1] = item(name, tensor, parts[name:match '^(.*)%.' or name])
  end
  return list
end

---@param items WholeItem[]
---@return boolean
function whole.has_parts(items)
  for _, one in ipairs(items) do
    if one.part then return true end
  end
  return false
end

--- The whole tensor. Ranks that hold parts of it call it together.
---@param one WholeItem
---@return Tensor
function whole.gather(one) return weight_parts.gather(one.part, one.tensor) end

--- Fills what this rank holds: the first rank of the group reads the whole, and tells the others.
---@param one WholeItem
---@param group Group?
---@param read fun(target: Tensor)
function whole.fill(one, group, read)
  local target = one.tensor
  if one.part then
    target = core.empty(one.shape, { dtype = target:dtype(), device = target:device() })
  end
  if agree.is_first(group) then read(target) end
  if group then group:broadcast_(target) end
  if not one.part then return end
  one.tensor:copy_(weight_parts.cut(one.part, target))
  target:free()
end

return whole
