-- adapter.lua - what low-rank adapters add to a linear map: y = x W^T + s (x A^T) B^T, where A has
-- few rows.
--
-- A layer has an adapter where it has the parameters lora_a [rank, inputs] and lora_b [outputs,
-- rank]. Where ranks share the weight they share the one of the two that lies along the same dim,
-- and send each other the few numbers between them.
local F = require('ulysses').F

local adapter = {}

--- For a layer that has all of its weight.
---@param layer table
---@param x Tensor [.., inputs]
---@return Tensor [.., outputs]
function adapter.whole(layer, x)
  return F.linear(F.linear(x, layer.lora_a) * layer.lora_scale, layer.lora_b)
end

--- For one whose outputs are shared: x is this rank's tokens, the result is of all.
---@param layer ColumnLinear
---@param x Tensor [.., T, inputs]
---@param b Tensor what this rank uses of lora_b
---@return Tensor [.., S, outputs on this rank]
function adapter.columns(layer, x, b)
  local inner = layer.group:all_gather(F.linear(x, layer.lora_a), { dim = -2 })
  return F.linear(inner * layer.lora_scale, b)
end

--- For one whose inputs are shared: x is of all tokens, the result of this rank's.
---@param layer RowLinear
---@param x Tensor [.., S, inputs on this rank]
---@return Tensor [.., T, outputs]
function adapter.rows(layer, x)
  local inner = layer.group:reduce_scatter(F.linear(x, layer.lora_a), { dim = -2 })
  return F.linear(inner * layer.lora_scale, layer.lora_b)
end

--- What the adapter makes of this rank's part of the weight: W + s B A.
---@param layer table
---@return Tensor
function adapter.merged(layer)
  return layer.weight + layer.lora_b:matmul(layer.lora_a) * layer.lora_scale
end

return adapter
