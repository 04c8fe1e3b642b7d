-- config.lua - reads config.json: what model it asks for, where that is one that is computed
-- exactly, and a sentence where it is not.
local json = require 'ulysses.json'
local open_file = require 'ulysses.open_file'
local read_rope = require 'ulysses.hf.config_rope'
local refuse = require 'ulysses.refuse'
local shown = require 'ulysses.hf.shown'

---@class HfConfig
---@field path string the file
---@field text string its text, as it was
---@field values table its values, json.null among them
---@field changed table<string, any> values that the caller has set
---@field settings DecoderSettings
---@field dtype Dtype of the file's tensors, where it says so: 'f32', 'bf16'

local config = {}

-- Sizes, tokens of a text, and layers, at most.
local LARGEST, LONGEST, DEEPEST = 2 ^ 24, 2 ^ 31, 2 ^ 14

-- By architecture: what holds where the file says nothing, as in the classes of that name.
local architectures = {
  LlamaForCausalLM = { model_type = 'llama', max_position_embeddings = 2048 },
  MistralForCausalLM = { model_type = 'mistral', max_position_embeddings = 131072,
                         num_key_value_heads = 8, sliding_window = 4096 },
  Qwen2ForCausalLM = { model_type = 'qwen2', max_position_embeddings = 32768,
                       num_key_value_heads = 32, sliding_window = 4096, max_window_layers = 28 },
  Qwen3ForCausalLM = { model_type = 'qwen3', max_position_embeddings = 32768, head_dim = 128,
                       num_key_value_heads = 32, sliding_window = 4096, max_window_layers = 28 },
}
local known = { 'LlamaForCausalLM', 'MistralForCausalLM', 'Qwen2ForCausalLM', 'Qwen3ForCausalLM' }

-- ---- reading values ----

---@class ConfigReader
---@field path string
---@field values table
---@field defaults table of the architecture
---@field changed table<string, any> values that the caller has set
local Reader = {}
Reader.__index = Reader

-- What the file says; nil for null and where it says nothing, which differ where a class has an
-- answer of its own.
function Reader:value(name)
  local value = self.values[name]
  if value == json.null then return nil end
  if value == nil then return self.defaults[name] end
  return value
end

function Reader:refuse(...) refuse('%s: %s', self.path, (...):format(select(2, ...))) end

function Reader:number(name, default)
  local value = self:value(name)
  if value == nil then value = default end
  if type(value) ~= 'number' or not (value > 0) or value == math.huge then
    self:refuse('%s must be a number above 0, and is %s', name,
                value == nil and 'missing' or shown(value))
  end
  return value
end

-- most: no model has more, and what it is multiplied with stays countable
function Reader:whole(name, default, most)
  local value = self:number(name, default)
  if value ~= math.floor(value) then
    self:refuse('%s must be a whole number, and is %s', name, shown(value))
  elseif value > (most or LARGEST) then
    self:refuse('%s must be at most %d, and is %s', name, most or LARGEST, shown(value))
  end
  return value
end

function Reader:flag(name)
  local value = self:value(name)
  if value ~= nil and type(value) ~= 'boolean' then
    self:refuse('%s must be true or false, and is %s', name, shown(value))
  end
  return value == true
end

-- ---- what is asked for ----

local function architecture_of(self)
  local named, kind = self.values.architectures, self.values.model_type
  local name = type(named) == 'table' and named[1] or nil
  if not name then -- some files have the type alone
    for _, one in ipairs(known) do
      if architectures[one].model_type == kind then name = one end
    end
  end
  if not name and type(kind) == 'string' then
    self:refuse('model_type %s is not known', shown(kind))
  end
  if type(name) ~= 'string' then self:refuse 'architectures is missing: it names no model' end
  local defaults = architectures[name]
  if not defaults then
    self:refuse('architecture %s is none of those that are computed: %s', shown(name),
                table.concat(known, ', '))
  end
  if kind ~= nil and kind ~= defaults.model_type then
    self:refuse('model_type %s does not go with architecture %s', shown(kind), shown(name))
  end
  self.name, self.defaults = name, defaults
end

-- Options whose other values change what is computed, in ways that are not computed here.
local function check_options(self)
  local act = self:value 'hidden_act' or 'silu'
  if act ~= 'silu' and act ~= 'swish' then
    self:refuse('hidden_act %s is not computed; silu is', shown(act))
  end
  local function only(name, allowed)
    local value = self:value(name)
    if value ~= nil and value ~= allowed then
      self:refuse('%s = %s is not computed; %s is', name, shown(value), shown(allowed))
    end
  end
  only('attention_dropout', 0)
  only('pretraining_tp', 1)
  only('partial_rotary_factor', 1)
  if self:value 'quantization_config' then
    self:refuse 'quantization_config: quantized weights are not read; take the model before that'
  end
end

-- The window of each layer; 0: it sees all.
local function windows_of(self, n_layers)
  local window, windows, types = 0, {}, nil
  if self.name ~= 'LlamaForCausalLM' and self:value 'sliding_window' then
    window = self:whole('sliding_window', nil, LONGEST)
  end
  if self.defaults.max_window_layers then -- Qwen
    types = self:value 'layer_types'
    if not self:flag 'use_sliding_window' then window = 0 end
    if types and (type(types) ~= 'table' or #types ~= n_layers) then
      self:refuse('layer_types must name the kind of each of %d layers', n_layers)
    end
  end
  local first = 0
  if window > 0 and self:value 'max_window_layers' ~= nil and self:value 'max_window_layers' ~= 0
  then
    first = self:whole 'max_window_layers'
  end
  for i = 1, n_layers do
    local kind = types and types[i] or i > first and 'sliding_attention' or 'full_attention'
    if kind ~= 'sliding_attention' and kind ~= 'full_attention' then
      self:refuse('layer_types: %s is not computed', shown(kind))
    end
    windows[i] = kind == 'sliding_attention' and window or 0
    if types and kind == 'sliding_attention' and window == 0 then
      self:refuse 'layer_types asks for sliding_attention, but there is no sliding_window'
    end
  end
  return windows
end

local function settings_of(self)
  local c = {
    vocab = self:whole 'vocab_size', dim = self:whole 'hidden_size',
    n_layers = self:whole('num_hidden_layers', nil, DEEPEST),
    n_heads = self:whole 'num_attention_heads', ffn = self:whole 'intermediate_size',
    eps = self:number('rms_norm_eps', 1e-6), tied = self:flag 'tie_word_embeddings',
    max_tokens = self:whole('max_position_embeddings', nil, LONGEST),
  }
  c.n_kv_heads = self:whole('num_key_value_heads', c.n_heads)
  if self.values.num_key_value_heads == json.null then c.n_kv_heads = c.n_heads end
  if c.n_heads % c.n_kv_heads ~= 0 then
    self:refuse('%d attention heads do not share %d key-value heads equally', c.n_heads,
                c.n_kv_heads)
  end
  local head_dim = self:value 'head_dim'
  if head_dim == nil and c.dim % c.n_heads ~= 0 then
    self:refuse('hidden_size %d is no multiple of %d attention heads, and there is no head_dim',
                c.dim, c.n_heads)
  end
  c.head_dim = head_dim ~= nil and self:whole 'head_dim' or c.dim / c.n_heads
  if c.head_dim % 2 ~= 0 then self:refuse('head_dim %d is not even', c.head_dim) end
  local qwen2, llama = self.name == 'Qwen2ForCausalLM', self.name == 'LlamaForCausalLM'
  local biased = (llama or self.name == 'Qwen3ForCausalLM') and self:flag 'attention_bias'
  c.qkv_bias, c.o_bias = qwen2 or biased, biased
  c.mlp_bias = llama and self:flag 'mlp_bias'
  c.qk_norm = self.name == 'Qwen3ForCausalLM'
  c.windows = windows_of(self, c.n_layers)
  c.rope = read_rope(self, c)
  return c
end

local dtypes = { float32 = 'f32', bfloat16 = 'bf16', float16 = 'f32', float64 = 'f64' }

-- In which dtype the parameters are kept; nil where nothing is said.
local function dtype_of(self)
  local name = self:value 'dtype' ~= nil and 'dtype' or 'torch_dtype'
  local said = self:value(name)
  if said == nil or said == 'auto' then return nil end
  local dtype = type(said) == 'string' and dtypes[said:gsub('^torch%.', '')]
  return dtype or self:refuse('%s %s is none that is known: float32, bfloat16, float16, float64',
                              name, shown(said))
end

--- The ids that end a text, of config.json or generation_config.json.
---@param values table
---@param path string for sentences
---@return integer[]
function config.eos_ids(values, path)
  local said, ids = values.eos_token_id, {}
  if said == nil or said == json.null then return ids end
  for i, id in ipairs(type(said) == 'table' and (#said > 0 or next(said) == nil) and said
                      or { said }) do
    if type(id) ~= 'number' or id ~= math.floor(id) or id > LONGEST then
      refuse('%s: eos_token_id must be an id or a list of ids, and is %s', path, shown(said))
    end
    ids[i] = id
  end
  return ids
end

-- ---- files ----

--- The values of a JSON file, and its text.
---@param path string
---@param optional boolean? nil where there is no such file
---@return table? values, string? text
function config.read_file(path, optional)
  local file, why, code = open_file(path, 'rb')
  if not file then
    if optional and code == 2 then return nil end
    refuse('%s', why)
  end
  local text = file:read '*a'
  file:close()
  if not text then refuse('%s: cannot be read', path) end
  text = text:gsub('^\239\187\191', '') -- a byte-order mark
  local values, sentence = json.decode(text)
  if type(values) ~= 'table' or values == json.null then
    refuse('%s: %s', path, sentence or 'is no JSON object')
  end
  return values, text
end

--- What a config.json asks for.
---@param values table
---@param path string for sentences
---@param changed table<string, any>? those that the caller has set
---@return DecoderSettings settings, string architecture, Dtype? dtype
function config.settings(values, path, changed)
  local reader = setmetatable({ path = path, values = values, defaults = {},
                                changed = changed or {} }, Reader)
  architecture_of(reader)
  check_options(reader)
  return settings_of(reader), reader.name, dtype_of(reader)
end

--- The config of a folder, with other values in place of some of its own (rope_theta, say): these
--- are saved with the model.
---@param folder string
---@param changed table<string, any>?
---@return HfConfig
function config.read(folder, changed)
  local path = folder .. '/config.json'
  local values, text = config.read_file(path)
  changed = changed or {}
  for name, value in pairs(changed) do values[name] = value end
  local rope = values.rope_parameters -- where theta is, if it is there
  if changed.rope_theta and not changed.rope_parameters and type(rope) == 'table'
    and rope ~= json.null then
    rope.rope_theta = changed.rope_theta
  end
  local self = { path = path, text = text, values = values, changed = changed }
  self.settings, self.architecture, self.dtype = config.settings(values, path, changed)
  return self
end

return config
