-- sharded.lua - module:shard(mesh): each rank keeps a slice of every parameter.
--
-- The slice is the parameter from then on: of the optimizer, of checkpoints, of gradients. What the
-- module computes with is whole: memory of that is there only while ops need it, which the engine
-- sees to (engine/op/sharded.c).
local core = require 'ulysses.core'
local module = require 'ulysses.nn.module'
local raise = require 'ulysses.raise'
local weight_parts = require 'ulysses.nn.weight_parts'

-- Sizes of the slices of n elements.
local function sizes_of(n, group)
  local sizes, each, more = {}, math.floor(n / group.size), n % group.size
  for r = 1, group.size do sizes[r] = each + (r <= more and 1 or 0) end
  return sizes
end

-- What a module gets for its slice: of the slice's dtype and device, which may change by :to().
local function user(group, shape, unit)
  local whole, dtype, device
  return function(mine)
    if not whole or dtype ~= mine:dtype() or device ~= mine:device() then
      dtype, device = mine:dtype(), mine:device()
      whole = core.sharded.whole(group, mine, shape, unit):keep()
    end
    return core.sharded.use(whole, mine)
  end
end

local function with(parallel, field, part)
  local copy = { [field] = part }
  for name, known in pairs(parallel or {}) do copy[name] = copy[name] or known end
  return copy
end

-- What is sliced, by the parameter: tied weights are one slice.
local slices = setmetatable({}, { __mode = 'k' })

local function set(owner, field, parameter)
  local known = slices[parameter]
  owner.parallel = with(owner.parallel, field, known.part)
  module.set_slice(owner, field, parameter, known.use)
end

local function slice(parameter, owner, field, mesh, unit)
  local inner = weight_parts.of(owner, field)
  if inner and inner.group.size == 1 then inner = nil end
  local group = inner and mesh.replicas or mesh.world
  if group.size == 1 then return end
  local part = { dim = 1, group = group, sizes = sizes_of(parameter:numel(), group),
                 flat = { unpack(parameter.shape) }, inner = inner, world = mesh.world }
  local flat = parameter:detach():view(-1)
  local mine = weight_parts.slice(part, flat):clone():requires_grad_(parameter.requires_grad)
  core.swap(parameter, mine)
  mine:free()
  flat:free()
  weight_parts.note(parameter, part)
  slices[parameter] = { part = part, use = user(group, part.flat, unit) }
end

local Module = module.methods

--- Shards the parameters over the ranks of a mesh, where it says shard = true: each keeps an equal
--- slice of every one (of a part that tp ranks share, over mesh.replicas), and so of gradients and
--- of the optimizer's state. The parameters that are there now are one unit: each is gathered when
--- an op needs it, over NCCL before that, and all are freed when those of another unit are needed.
--- A block of a model is a good unit. Before the optimizer is made. Returns the module.
---
--- All ranks run the same ops in the same order. Parameters that are added later (adapters) stay
--- whole.
--- ```lua
--- local model = ul.nn.Linear(8, 4):shard(ul.mesh { shard = true })
--- ```
---@param mesh Mesh
function Module:shard(mesh)
  if type(mesh) ~= 'table' or not mesh.world then
    raise('shard: expected a mesh, got a %s', type(mesh))
  end
  if not mesh.shard or mesh.world.size == 1 then return self end
  local unit = core.sharded.unit()
  core.no_grad(core.scope, function()
    for _, parameter, owner, field in module.each_parameter(self) do
      if type(field) == 'number' then
        raise('shard: parameter %d of %s needs a name, not a number', field, owner.class_name)
      end
      if parameter.grad and not slices[parameter] then
        raise('shard: %s has a gradient; shard it before', field)
      end
      if not slices[parameter] then slice(parameter, owner, field, mesh, unit) end
      if slices[parameter] and not module.is_sliced(owner, field) then
        set(owner, field, parameter)
      end
    end
  end)
  return self
end

return {}
