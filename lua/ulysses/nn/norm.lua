-- norm.lua - nn.RMSNorm and nn.LayerNorm, over the last dim.
local F = require('ulysses').F
local module = require 'ulysses.nn.module'
local options = require 'ulysses.options'

---@class RMSNorm
local RMSNorm = module.class 'RMSNorm'

--- x weight / sqrt(mean(x^2) + eps) over the last dim, of size `dim`.
---@param dim integer
---@param given { eps: number? }?
function RMSNorm:init(dim, given)
  self.eps = options.read('nn.RMSNorm', given, { eps = 1e-5 }).eps
  self.weight = module.parameter(dim)
  self:reset_parameters()
end

--- norm(x), or with a residual: norm(x + residual), x + residual in one pass.
---@param x Tensor [.., dim]
---@param residual? Tensor [.., dim]
---@return Tensor y
---@return Tensor? sum x + residual, where there is a residual
function RMSNorm:forward(x, residual)
  if residual then return F.add_rms_norm(x, residual, self.weight, self.eps) end
  return F.rms_norm(x, self.weight, self.eps)
end

function RMSNorm:init_parameter(_, parameter) parameter:fill_(1) end

function RMSNorm:describe() return (' %d'):format(self.weight:numel()) end

---@class LayerNorm
local LayerNorm = module.class 'LayerNorm'

--- (x - mean) / sqrt(variance + eps) weight + bias over the last dim, of size `dim`.
---@param dim integer
---@param given { eps: number?, bias: boolean? }?
function LayerNorm:init(dim, given)
  local read = options.read('nn.LayerNorm', given, { eps = 1e-5, bias = true })
  self.eps = read.eps
  self.weight = module.parameter(dim)
  if read.bias then self.bias = module.parameter(dim) end
  self:reset_parameters()
end

--- The norm of x.
---@param x Tensor [.., dim]
---@return Tensor
function LayerNorm:forward(x) return F.layer_norm(x, self.weight, self.bias, self.eps) end

function LayerNorm:init_parameter(name, parameter) parameter:fill_(name == 'bias' and 0 or 1) end

function LayerNorm:describe() return (' %d'):format(self.weight:numel()) end

return { RMSNorm = RMSNorm, LayerNorm = LayerNorm }
