-- offload.lua - ul.offload(f, x, ...): runs f again in backward, and keeps x off the device.
local core = require 'ulysses.core'
local raise = require 'ulysses.raise'
local recompute = require 'ulysses.recompute'
local rerun = require 'ulysses.rerun'

-- The copy begins before f, and goes on behind it.
local run = core.fn {
  name = 'offload', captures = true,
  forward = function(context, f, x, ...)
    rerun.keep(context, f, ...)
    context.parked = core.off_device.park(x)
    return f(x, ...)
  end,
  backward = rerun.backward,
}

local function free_input(x, ...)
  x:free()
  return ...
end

--- f(x, ...) as ul.recompute(f, x, ...) does it, but the device does not keep x meanwhile: its
--- values wait in pinned memory of the host, or on the cpu in an unnamed file in the folder TMPDIR,
--- and come back in backward while the call behind it is computed. An x that ops have made is freed
--- by this, and may not be used any more; a leaf stays where it is. The results are the same to the
--- bit.
--- ```lua
--- local x, w = ul.randn(4, 8), ul.randn(8, 8):requires_grad_()
--- local function layer(h) return ul.F.linear(h, w):tanh() + h end
--- for _ = 1, 3 do x = ul.offload(layer, x) end
--- x:sum():backward()
--- ```
---@param f function
---@param x Tensor
---@param ... any
---@return any ...
return function(f, x, ...)
  rerun.check('offload', f)
  if not core.is_tensor(x) then
    raise('offload: expected a tensor to keep off the device, got a %s', type(x))
  end
  if not core.is_grad_enabled() then return f(x, ...) end
  if x.is_leaf then return recompute(f, x, ...) end
  return free_input(x, run(f, x, ...))
end
