-- dropout.lua - nn.Dropout: in training, zeros in random places.
local ul = require 'ulysses'
local module = require 'ulysses.nn.module'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'

---@class Dropout
local Dropout = module.class 'Dropout'

--- Each element is zero with probability p, else 1 / (1 - p) times itself; after :eval() nothing
--- happens. The numbers come from the generator (ul.manual_seed).
---@param p number in [0, 1)
---@param given? { mesh: Mesh? } for x [B, T, ..] that is sliced: the same zeros under every mesh
function Dropout:init(p, given)
  if type(p) ~= 'number' or not (p >= 0 and p < 1) then
    raise('nn.Dropout: p must lie from 0 to below 1, got %s', tostring(p))
  end
  self.p, self.mesh = p, options.read('nn.Dropout', given, { mesh = options.none }).mesh
end

--- x with zeros in random places; x itself after :eval().
---@param x Tensor
---@return Tensor
function Dropout:forward(x)
  if self.p == 0 or not self.training then return x end
  local numbers = self.mesh and self.mesh:rand_like(x) or ul.rand(x.shape, { device = x:device() })
  local stays = numbers:ge(self.p)
  return ul.where(stays, x * (1 / (1 - self.p)), 0)
end

function Dropout:describe() return (' %g'):format(self.p) end

return Dropout
