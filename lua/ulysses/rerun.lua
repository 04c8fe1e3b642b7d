-- rerun.lua - what ul.recompute and ul.offload share: a node that runs its function again in
-- backward.
--
-- The node for f has f's inputs as inputs, but hands back no gradients for them: f's second run is
-- differentiated by a backward of its own, which adds to the gradients of the same inputs, and of
-- whatever parameters f uses, in the order in which they would have come without all this. So the
-- results are the same to the bit.
local core = require 'ulysses.core'
local raise = require 'ulysses.raise'

local function collect(...) return { n = select('#', ...), ... } end

local rerun = { flops = 0 } -- of all second runs so far

--- Refuses what cannot be called.
---@param name string of the caller
---@param f any
function rerun.check(name, f)
  if type(f) ~= 'function' and not (getmetatable(f) or {}).__call then
    raise('%s: expected a function, got a %s', name, type(f))
  end
end

--- Notes what a second run must find as the first one does. Before the first.
---@param context table the node's
---@param f function
---@param ... any what it is called with
function rerun.keep(context, f, ...)
  context.f, context.inputs = f, collect(...)
  context.seed, context.next_key = core.random_state()
end

-- f's results once more, with gradients, and with the random numbers of the first time.
local function run_again(context)
  local seed, next_key = core.random_state()
  local flops = core.flops()
  core.set_random_state(context.seed, context.next_key)
  local results = core.enable_grad(function()
    local inputs = context.inputs
    if not context.parked then return collect(context.f(unpack(inputs, 1, inputs.n))) end
    local x = core.off_device.unpark(context.parked)
    return collect(context.f(x, unpack(inputs, 1, inputs.n)))
  end)
  core.set_random_state(seed, next_key)
  rerun.flops = rerun.flops + core.flops() - flops
  return results
end

--- The node's rule.
---@param context table
---@param ... Tensor? gradients of the results that are tensors
function rerun.backward(context, ...)
  local results, gradients = run_again(context), collect(...)
  local outputs, seeds, n_tensors = {}, {}, 0
  for i = 1, results.n do
    local y = results[i]
    if core.is_tensor(y) then
      n_tensors = n_tensors + 1
      if y.requires_grad and gradients[n_tensors] then
        outputs[#outputs + 1], seeds[#seeds + 1] = y, gradients[n_tensors]
      end
    end
  end
  core.backward(outputs, seeds)
end

return rerun
