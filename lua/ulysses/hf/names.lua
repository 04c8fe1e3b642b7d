-- names.lua - the names of parameters, here and in published checkpoints.

-- Pairs of what is called otherwise; within a layer, and outside of layers.
local in_layer = {
  { 'attention_norm', 'input_layernorm' }, { 'ffn_norm', 'post_attention_layernorm' },
  { 'attention.wq', 'self_attn.q_proj' }, { 'attention.wk', 'self_attn.k_proj' },
  { 'attention.wv', 'self_attn.v_proj' }, { 'attention.wo', 'self_attn.o_proj' },
  { 'attention.q_norm', 'self_attn.q_norm' }, { 'attention.k_norm', 'self_attn.k_norm' },
  { 'ffn.gate', 'mlp.gate_proj' }, { 'ffn.up', 'mlp.up_proj' }, { 'ffn.down', 'mlp.down_proj' },
}
local outside = {
  { 'embed', 'model.embed_tokens' }, { 'norm', 'model.norm' }, { 'head', 'lm_head' },
}

local theirs, ours = {}, {}
for _, list in ipairs { in_layer, outside } do
  for _, pair in ipairs(list) do theirs[pair[1]], ours[pair[2]] = pair[2], pair[1] end
end

local names = {}

--- layers.1.attention.wq.weight -> model.layers.0.self_attn.q_proj.weight; nil for a name that no
--- checkpoint has. What is behind the module's name (weight, bias, lora_a) stays.
---@param name string
---@return string?
function names.to_hf(name)
  local number, inner = name:match '^layers%.(%d+)%.(.*)$'
  local module, field = (inner or name):match '^(.*)%.([^.]+)$'
  local other = module and theirs[module]
  if not other then return nil end
  if not number then return other .. '.' .. field end
  return ('model.layers.%d.%s.%s'):format(tonumber(number) - 1, other, field)
end

--- The way back.
---@param name string
---@return string?
function names.from_hf(name)
  local number, inner = name:match '^model%.layers%.(%d+)%.(.*)$'
  local module, field = (inner or name):match '^(.*)%.([^.]+)$'
  local other = module and ours[module]
  if not other then return nil end
  if not number then return other .. '.' .. field end
  return ('layers.%d.%s.%s'):format(tonumber(number) + 1, other, field)
end

return names
