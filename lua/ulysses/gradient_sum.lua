-- gradient_sum.lua - sums an optimizer's gradients over the ranks of its mesh, once in a step.
local core = require 'ulysses.core'
local ul = require 'ulysses'
local raise = require 'ulysses.raise'

-- Several ranks that were told no mesh train each by itself, mostly by mistake.
local function demand_mesh(optim)
  if optim.alone then return end
  local world = optim.mesh == nil and ul.group() or nil
  if world and world.size > 1 then
    raise('optim: this is one of %d ranks, and gradients are not summed over them: give the '
          .. 'optimizer their mesh, as in ul.optim.%s(model, { mesh = mesh }), or mesh = false '
          .. 'where each is to train by itself', world.size, optim.name)
  end
  optim.alone = true
end

-- The group over which the gradient of a parameter is summed: of a part of a whole weight, the
-- ranks that hold the same part.
local function group_for(mesh, entry) return entry.part and mesh.replicas or mesh.world end

-- Whether each rank holds a slice, and of the gradient the slice of the sum.
local function is_sharded(entry) return entry.part ~= nil and entry.part.flat ~= nil end

-- Ranks that begin with other weights stay apart for good.
local function compare_weights(optim, group, entries)
  if group.size == 1 or #entries == 0 then return end
  local norms = {}
  for i, entry in ipairs(entries) do norms[i] = ul.global_norm { entry.parameter } end
  local all = group:all_gather(ul.tensor({ norms }, { dtype = 'f64', device = 'cpu' })):tolist()
  for rank = 1, group.size - 1 do
    for i, entry in ipairs(entries) do
      local there, here = all[rank + 1][i], all[1][i]
      if there ~= here and (there == there or here == here) then
        raise("optim.%s: '%s' of rank %d is not that of rank 0 (norms %.9g and %.9g): all ranks "
              .. 'must begin with the same weights, of one seed or one checkpoint', optim.name,
              entry.name, rank, there, here)
      end
    end
  end
end

local function compare_all(optim, mesh)
  local wholes, parts = {}, {}
  for _, entry in ipairs(optim.entries) do
    local list = entry.part and parts or wholes
    if not is_sharded(entry) then list[#list + 1] = entry end
  end
  compare_weights(optim, mesh.world, wholes)
  compare_weights(optim, mesh.replicas, parts)
end

-- A parameter that had no part in this rank's loss may have had one in another's: it gets zeros
-- here, so that all ranks sum the same.
local function fill_in(optim, mesh)
  local entries, there = optim.entries, {}
  for i, entry in ipairs(entries) do there[i] = entry.parameter.grad and 1 or 0 end
  local mask = ul.tensor(there, { dtype = 'u8', device = 'cpu' })
  mesh.world:all_reduce_(mask, { op = 'max' })
  mask = mask:tolist()
  for i, entry in ipairs(entries) do
    if mask[i] == 1 and not entry.parameter.grad then
      entry.parameter.grad = ul.zeros_like(entry.parameter:detach())
    end
  end
end

--- Afterwards each rank has the gradients of the whole step: the sums, since each rank's loss is
--- its share of one mean. Again in the same step it does nothing.
---@param optim Optimizer
return function(optim)
  local mesh = optim.mesh
  if not mesh then return demand_mesh(optim) end
  if mesh.world.size == 1 then return end
  local passes = core.backward_passes()
  if optim.summed == passes then return end
  if optim.summed then
    raise('optim: a backward came behind clip() or norm(), which sum the gradients over the ranks: '
          .. 'call them behind the last one of the step')
  end
  ul.scope(function()
    if mesh.world.transport ~= 'plan' then
      if not optim.compared then compare_all(optim, mesh) end
      fill_in(optim, mesh)
    end
    for _, entry in ipairs(optim.entries) do
      local grad = entry.parameter.grad
      if grad and not is_sharded(entry) then group_for(mesh, entry):all_reduce_(grad) end
    end
  end)
  optim.summed, optim.compared = passes, true
end
