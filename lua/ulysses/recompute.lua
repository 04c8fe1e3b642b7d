-- recompute.lua - ul.recompute(f, ...): runs f again in backward instead of keeping what it saved.
--
-- The node for f has f's inputs as inputs, but hands back no gradients for them: f's second run is
-- differentiated by a backward of its own, which adds to the gradients of the same inputs, and of
-- whatever parameters f uses, in the order in which they would have come without all this. So the
-- results are the same to the bit.
local core = require 'ulysses.core'
local raise = require 'ulysses.raise'

local function collect(...) return { n = select('#', ...), ... } end

-- f's results once more, with gradients, and with the random numbers of the first time.
local function run_again(context)
  local seed, next_key = core.random_state()
  core.set_random_state(context.seed, context.next_key)
  local results = core.enable_grad(function()
    return collect(context.f(unpack(context.inputs, 1, context.inputs.n)))
  end)
  core.set_random_state(seed, next_key)
  return results
end

local run = core.fn {
  name = 'recompute', captures = true,
  forward = function(context, f, ...)
    context.f, context.inputs = f, collect(...)
    context.seed, context.next_key = core.random_state()
    return f(...)
  end,
  backward = function(context, ...)
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
  end,
}

--- f(...), of which only the inputs are kept: backward runs f again for what it needs. f may use
--- parameters that it is not given; they get their gradients. It must do the same both times
--- (dropout does).
---@param f function
---@return any ...
return function(f, ...)
  if type(f) ~= 'function' and not (getmetatable(f) or {}).__call then
    raise('recompute: expected a function, got a %s', type(f))
  end
  if not core.is_grad_enabled() then return f(...) end
  return run(f, ...)
end
