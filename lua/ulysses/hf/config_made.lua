-- config_made.lua - the config.json that a model is saved with: that of the folder it came from, or
-- one that is made from the settings of a recipe.
local edit = require 'ulysses.hf.config_text'
local json = require 'ulysses.json'
local raise = require 'ulysses.raise'

local torch_names = { f32 = 'float32', bf16 = 'bfloat16' }

-- The older spelling of RoPE, which all versions of transformers read.
local function spell_rope(values, changes, removed)
  local given = values.rope_parameters
  if given == nil or given == json.null then return end
  local scaling = {}
  for name, value in pairs(given) do
    if name ~= 'rope_theta' then scaling[name] = value end
  end
  changes.rope_theta = given.rope_theta or changes.rope_theta
  local kind = scaling.rope_type or scaling.type or 'default'
  changes.rope_scaling = kind ~= 'default' and scaling or json.null
  removed.rope_parameters = true
end

local function from_folder(config, dtype)
  local changes, removed = {}, {}
  for name, value in pairs(config.changed) do changes[name] = value end
  spell_rope(config.values, changes, removed)
  local key = config.values.dtype and 'dtype' or 'torch_dtype'
  if config.values[key] ~= torch_names[dtype] then changes[key] = torch_names[dtype] end
  return edit(config.text, changes, removed)
end

local function from_settings(c, dtype, tok, max_tokens)
  local function setting(name) return rawget(c, name) end -- a recipe's table raises for others
  for _, name in ipairs { 'vocab', 'dim', 'ffn', 'n_layers', 'n_heads', 'n_kv_heads' } do
    if type(setting(name)) ~= 'number' then
      raise("hf.save: the settings have no %s; give those of the model: settings = cfg.model", name)
    end
  end
  local window = setting 'window' or 0
  local kind = window > 0 and 'Mistral' or 'Llama'
  local values = {
    architectures = { kind .. 'ForCausalLM' }, model_type = kind:lower(),
    vocab_size = c.vocab, hidden_size = c.dim, intermediate_size = c.ffn,
    num_hidden_layers = c.n_layers, num_attention_heads = c.n_heads,
    num_key_value_heads = c.n_kv_heads, head_dim = setting 'head_dim' or c.dim / c.n_heads,
    hidden_act = 'silu', rms_norm_eps = setting 'eps' or 1e-5,
    rope_theta = setting 'rope_theta' or 10000, rope_scaling = json.null,
    max_position_embeddings = max_tokens, initializer_range = 0.02, use_cache = true,
    tie_word_embeddings = setting 'tied' == true, torch_dtype = torch_names[dtype],
    bos_token_id = tok and tok.bos or json.null, eos_token_id = tok and tok.eos or json.null,
  }
  if kind == 'Mistral' then values.sliding_window = window end
  return edit('{}', values)
end

--- The text of config.json.
---@param model table
---@param dtype 'f32'|'bf16'
---@param tok table?
---@param given { settings: table?, max_tokens: integer?, config: table? }
---@return string
return function(model, dtype, tok, given)
  local more = given.config or {}
  local text
  if model.config then
    text = from_folder(model.config, dtype)
  else
    local settings = given.settings or model.settings
    if type(settings) ~= 'table' then
      raise 'hf.save: a model that was not loaded needs its settings: settings = cfg.model'
    end
    text = from_settings(settings, dtype, tok, given.max_tokens or 4096)
  end
  return next(more) == nil and text or edit(text, more)
end
