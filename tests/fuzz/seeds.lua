-- seeds.lua - what fuzzing begins with, made anew each time: small files of every kind.
--
--   luajit tests/fuzz/seeds.lua folder
--
-- Writes folder/<target>/<name>.
local hf_models = require 'tests.hf_models'
local small = require 'tests.small_tokenizers'
local core = require 'ulysses.core'

local root = assert(arg[1], 'usage: seeds.lua folder')

local function write(target, name, bytes)
  local folder = root .. '/' .. target
  assert(core.folder_make(folder))
  local file = assert(io.open(folder .. '/' .. name, 'wb'))
  file:write(bytes)
  file:close()
end

-- ---- safetensors ----

local function safetensors(header, bytes)
  header = header .. (' '):rep(-(8 + #header) % 8)
  local n = #header
  return string.char(n % 256, math.floor(n / 256), 0, 0, 0, 0, 0, 0) .. header .. ('x'):rep(bytes)
end

local function entry(dtype, shape, first, last)
  return ('{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(dtype, shape, first, last)
end

write('safetensors', 'empty', safetensors('{}', 0))
write('safetensors', 'metadata', safetensors(
  '{"__metadata__":{"format":"pt","k":""},"w":' .. entry('F32', '2,2', 0, 16) .. '}', 16))
write('safetensors', 'several', safetensors(
  '{"b":' .. entry('BF16', '3', 0, 6) .. ',"a":' .. entry('F16', '2,1', 6, 10) .. ',"s":'
  .. entry('F64', '', 10, 18) .. ',"z":' .. entry('I64', '0,5', 18, 18) .. ',"u":'
  .. entry('U8', '1,1,1', 18, 19) .. '}', 19))
write('safetensors', 'others', safetensors(
  '{"\\u00e9":' .. entry('F8_E4M3', '4', 0, 4) .. ',"f4":' .. entry('F4', '2', 4, 5) .. ',"b":'
  .. entry('BOOL', '3', 5, 8) .. ',"i":' .. entry('I32', '1', 8, 12) .. '}', 12))

-- ---- tokenizers ----

for _, variant in ipairs(small.golden) do
  write('tokenizer_json', variant.name, small.made(variant))
end
write('tokenizer_json', 'template', small.made(small.variant 'llama3', {
  post_processor = { type = 'Sequence', processors = {
    { type = 'ByteLevel', trim_offsets = false },
    { type = 'TemplateProcessing',
      single = { { SpecialToken = { id = '<s>', type_id = 0 } },
                 { Sequence = { id = 'A', type_id = 0 } } },
      special_tokens = { ['<s>'] = { id = '<s>', ids = { 1 }, tokens = { '<s>' } } } } } },
}))
for _, n in ipairs { 256, 300 } do
  write('tekken', tostring(n), small.tekken(n))
  write('sentencepiece', tostring(n), small.sentencepiece(n + 5))
end
write('sentencepiece', 'tiktoken', 'IQ== 0\nIg== 1\nIyQ= 2\n')


-- ---- config.json ----

for name, model in pairs(hf_models.golden) do write('config', name, model.config) end
write('config', 'yarn', [[{"architectures": ["MistralForCausalLM"], "model_type": "mistral",
"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
"num_key_value_heads": null, "head_dim": null, "vocab_size": 99, "sliding_window": 8,
"eos_token_id": [1, 2], "max_position_embeddings": 64, "torch_dtype": "bfloat16",
"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
"original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}}]])
write('config', 'scaled', [[{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
"vocab_size": 99, "tie_word_embeddings": true, "rope_scaling": {"type": "linear", "factor": 2.0},
"attention_bias": false, "pretraining_tp": 1, "hidden_act": "silu", "rms_norm_eps": 1e-05}]])
