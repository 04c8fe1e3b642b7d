-- recompute.lua - ul.recompute(f, ...): runs f again in backward instead of keeping what it saved.
local core = require 'ulysses.core'
local rerun = require 'ulysses.rerun'

local run = core.fn {
  name = 'recompute', captures = true,
  forward = function(context, f, ...)
    rerun.keep(context, f, ...)
    return f(...)
  end,
  backward = rerun.backward,
}

--- f(...), of which only the inputs are kept: backward runs f again for what it needs. f may use
--- parameters that it is not given; they get their gradients. It must do the same both times
--- (dropout does).
---@param f function
---@return any ...
return function(f, ...)
  rerun.check('recompute', f)
  if not core.is_grad_enabled() then return f(...) end
  return run(f, ...)
end
