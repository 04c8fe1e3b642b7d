-- dropout.lua - nn.Dropout: in training, zeros in random places.
local ul = require 'ulysses'
local module = require 'ulysses.nn.module'
local raise = require 'ulysses.raise'

---@class Dropout
local Dropout = module.class 'Dropout'

--- Each element is zero with probability p, else 1 / (1 - p) times itself; after :eval() nothing
--- happens. The numbers come from the generator (ul.manual_seed).
---@param p number in [0, 1)
function Dropout:init(p)
  if type(p) ~= 'number' or not (p >= 0 and p < 1) then
    raise('nn.Dropout: p must lie from 0 to below 1, got %s', tostring(p))
  end
  self.p = p
end

--- x with zeros in random places; x itself after :eval().
---@param x Tensor
---@return Tensor
function Dropout:forward(x)
  if self.p == 0 or not self.training then return x end
  local stays = ul.rand(x.shape, { device = x:device() }):ge(self.p)
  return ul.where(stays, x * (1 / (1 - self.p)), 0)
end

function Dropout:describe() return (' %g'):format(self.p) end

return Dropout
