-- recompute.lua - ul.recompute(f, ...): forgets what f saves for backward, and runs f again when it is needed.
local core = require 'ulysses.core'
local raise = require 'ulysses.raise'

local function run_again(context)
  local inputs = {}
  for i = 1, context.n do
    local x = context[i]
    if core.is_tensor(x) then
      local requires_grad = x.requires_grad
      x = x:detach()
      if requires_grad then x:requires_grad_() end
    end
    inputs[i] = x
  end
  -- Random numbers are drawn again as they were, then the generator goes on from where it was.
  local seed, next_key = core.random_state()
  core.set_random_state(context.seed, context.next_key)
  local function collect(...) return { n = select('#', ...), ... } end
  local results = core.enable_grad(function()
    return collect(context.f(unpack(inputs, 1, context.n)))
  end)
  core.set_random_state(seed, next_key)
  return inputs, results
end

local run = core.fn {
  name = 'recompute', captures = true,
  forward = function(context, f, ...)
    context.f, context.n = f, select('#', ...)
    context.seed, context.next_key = core.random_state()
    for i = 1, context.n do context[i] = (select(i, ...)) end
    return f(...)
  end,
  backward = function(context, ...)
    local inputs, results = run_again(context)
    local outputs, seeds, k = {}, {}, 0
    for i = 1, results.n do
      if core.is_tensor(results[i]) then
        k = k + 1
        if results[i].requires_grad then
          outputs[#outputs + 1], seeds[#seeds + 1] = results[i], (select(k, ...)) or false
        end
      end
    end
    core.backward(outputs, seeds)
    local gradients = {}
    for i = 1, context.n do
      local x = inputs[i]
      local g = core.is_tensor(x) and x.requires_grad and x.grad or nil
      gradients[i] = g and g:to(x:dtype()) -- a leaf's gradient may be wider
    end
    return nil, unpack(gradients, 1, context.n) -- nil: for f itself
  end,
}

--- f(...), of which only the inputs are kept: backward runs f again for what it needs. f may use parameters
--- that it is not given; they get their gradients. It must do the same both times (dropout does).
---@param f function
---@return any ...
return function(f, ...)
  if type(f) ~= 'function' and not (getmetatable(f) or {}).__call then
    raise('recompute: expected a function, got a %s', type(f))
  end
  return run(f, ...)
end
