-- linear.lua - nn.Linear: y = x w^T + b.
local F = require('ulysses').F
local adapter = require 'ulysses.nn.adapter'
local module = require 'ulysses.nn.module'
local options = require 'ulysses.options'

---@class Linear
local Linear = module.class 'Linear'

--- Maps the last dim from `inputs` to `outputs`. std: of the weights at first.
---@param inputs integer
---@param outputs integer
---@param given { bias: boolean?, std: number? }?
function Linear:init(inputs, outputs, given)
  local read = options.read('nn.Linear', given, { bias = false, std = 0.02 })
  self.std = read.std
  self.weight = module.parameter(outputs, inputs)
  if read.bias then self.bias = module.parameter(outputs) end
  self:reset_parameters()
end

--- x weight^T + bias
---@param x Tensor [.., inputs]
---@return Tensor y [.., outputs]
function Linear:forward(x)
  local y = F.linear(x, self.weight, self.bias)
  return self.lora_a and y + adapter.whole(self, x) or y
end

function Linear:init_parameter(name, parameter)
  if name == 'bias' or name == 'lora_b' then
    parameter:fill_(0)
  elseif name == 'lora_a' then
    local bound = parameter:size(2) ^ -0.5
    parameter:uniform_(-bound, bound)
  else
    parameter:normal_(0, self.std)
  end
end

function Linear:describe()
  local outputs, inputs = self.weight:size()
  return (' %d -> %d'):format(inputs, outputs)
end

return Linear
