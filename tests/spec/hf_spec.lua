-- hf_spec.lua - ul.hf.load: published architectures computed as transformers computes them, and
-- what is refused.
local json = require 'ulysses.json'
local models = require 'tests.hf_models'
local names = require 'ulysses.hf.names'
local rope = require 'ulysses.hf.rope'
local ul = require 'ulysses'

local parent

-- The sentence with which a folder is refused.
local function refusal(folder, given)
  local ok, sentence = pcall(ul.hf.load, folder, given)
  assert.is_false(ok)
  assert.is_true(sentence.refusal)
  return (tostring(sentence):gsub(folder .. '/', ''))
end

-- A folder whose config.json has other values; false takes one away.
local function with_config(name, changes)
  local folder = parent .. '/changed'
  ul.safetensors.save(folder .. '/model.safetensors', {})
  local values = json.decode(models.golden[name].config)
  for key, value in pairs(changes) do values[key] = value ~= false and value or nil end
  models.write(folder .. '/config.json', json.encode(values))
  return folder
end

describe('hf.load', function()
  setup(function()
    parent = models.new_folder()
    assert(require('ulysses.core').folder_make(parent .. '/changed'))
  end)
  teardown(function() models.remove(parent) end)

  for name, golden in pairs(models.golden) do
    it('computes what transformers computes: ' .. name, function()
      local model, tok, config = ul.hf.load(models.make(parent, name))
      assert.is_nil(tok)
      assert.equal('f32', config.dtype or 'f32')
      local inputs = ul.tensor(models.rows(), { dtype = 'i64' })
      local logits = ul.no_grad(model.logits, model, inputs)
      assert.near(0, models.gap_of_logits(name, logits), 1e-5)
      local loss = model(models.batch())
      assert.near(golden.loss, loss:item(), 1e-5)
      loss:backward()
      local state = model:state()
      for _, entry in ipairs(golden.gradients) do
        local gradient = state[names.from_hf(entry[1])].grad
        assert.same(entry[2], gradient.shape)
        assert.near(0, models.gap_of_gradient(entry, gradient), 1e-5, entry[1])
      end
    end)
  end

  -- What is kept of the golden results must tell right from wrong.
  it('would see a fault in any gradient, and in the logits', function()
    local model = ul.hf.load(models.make(parent, 'qwen3'))
    model(models.batch()):backward()
    local state = model:state()
    local faults = {
      function(x) x:mul_(1.0001) end,
      function(x) x:narrow(1, 3, 2):zero_() end,
      function(x) x:view(-1):narrow(1, 8, 1):add_(2e-3) end,
    }
    for _, entry in ipairs(models.golden.qwen3.gradients) do
      for i, fault in ipairs(faults) do
        local wrong = state[names.from_hf(entry[1])].grad:clone()
        ul.no_grad(fault, wrong)
        assert.is_true(models.gap_of_gradient(entry, wrong) > 2e-5, entry[1] .. ' ' .. i)
      end
    end
    local logits = ul.no_grad(model.logits, model, ul.tensor(models.rows(), { dtype = 'i64' }))
    for _, at in ipairs { 3, 1500, 2925 } do
      local wrong = logits:clone()
      wrong:view(-1):narrow(1, at, 1):add_(1e-3)
      assert.is_true(models.gap_of_logits('qwen3', wrong) > 2e-5)
    end
  end)

  it('reads shards, other dtypes, and values in place of those of the file', function()
    local folder = models.make(parent, 'llama31')
    local whole = ul.hf.load(folder)
    local tensors, map, first, second = models.tensors 'llama31', {}, {}, {}
    for name, tensor in pairs(tensors) do
      local later = name:find 'layers.1' ~= nil
      map[name] = later and 'model-00002-of-00002.safetensors' or 'model-00001-of-00002.safetensors'
      local target = later and second or first
      target[name] = tensor:to 'bf16'
    end
    assert(os.remove(folder .. '/model.safetensors'))
    ul.safetensors.save(folder .. '/model-00001-of-00002.safetensors', first)
    ul.safetensors.save(folder .. '/model-00002-of-00002.safetensors', second)
    local function index(given)
      models.write(folder .. '/model.safetensors.index.json', json.encode { weight_map = given })
    end
    index(map)
    local model = ul.hf.load(folder, { dtype = 'bf16' })
    for name, parameter in model:named_parameters() do
      assert.equal('bf16', parameter:dtype())
      assert.is_true(parameter.requires_grad and parameter.is_leaf)
      assert.near(0, (parameter:to 'f32' - whole:state()[name]):abs():max():item(), 4e-3)
    end
    local other = ul.hf.load(folder, { config = { rope_theta = 1e6, vocab_size = 61 } })
    assert.equal(1e6, other.settings.rope.theta)
    assert.equal('llama3', other.settings.rope.kind)

    map['model.norm.weight'] = 'model-00002-of-00002.safetensors'
    index(map)
    assert.equal("model.safetensors.index.json: 'model.norm.weight' lies in "
                 .. 'model-00001-of-00002.safetensors, and the index does not say so',
                 refusal(folder))
    map['model.norm.weight'] = '../x.safetensors'
    index(map)
    assert.equal("model.safetensors.index.json: weight_map: 'model.norm.weight' lies in "
                 .. "'../x.safetensors', which is no plain name of a file", refusal(folder))
    map['model.norm.weight'] = 'model-00001-of-00002.safetensors'
    map['model.more.weight'] = 'model-00001-of-00002.safetensors'
    index(map)
    assert.equal("model.safetensors.index.json: 'model.more.weight' is not in "
                 .. 'model-00001-of-00002.safetensors', refusal(folder))
  end)

  it('reads the spelling of RoPE with all in one', function()
    local function rope_of(changes)
      local values = json.decode(models.golden.llama31.config)
      for key, value in pairs(changes) do values[key] = value end
      return (require('ulysses.hf.config').settings(values, 'config.json')).rope
    end
    local old = rope_of {}
    assert.same({ kind = 'llama3', theta = 5e5, factor = 8, original = 32, low_freq_factor = 1,
                  high_freq_factor = 4 }, old)
    assert.same(old, rope_of { rope_theta = json.null, rope_scaling = { type = 'linear' },
      rope_parameters = { rope_type = 'llama3', rope_theta = 5e5, factor = 8, low_freq_factor = 1,
                          high_freq_factor = 4, original_max_position_embeddings = 32 } })
    assert.same({ kind = 'linear', theta = 5e5, factor = 2, original = 128 },
                rope_of { rope_scaling = { type = 'linear', factor = 2 } })
  end)

  it('takes other values for what a text may be in either spelling of RoPE', function()
    local function load(name, changes, given)
      return require('ulysses.hf.config').read(with_config(name, changes), given).settings
    end
    local inside = { rope_theta = json.null, rope_scaling = json.null,
                     rope_parameters = { rope_type = 'default', rope_theta = 5e5 } }
    for _, changes in ipairs { {}, inside } do
      local longer = load('llama3', changes, { rope_theta = 8e6, max_position_embeddings = 4096 })
      assert.same({ 8e6, 4096 }, { longer.rope.theta, longer.max_tokens })
    end
    local scaled = load('llama31', {}, { max_position_embeddings = 4096 })
    assert.same({ 'llama3', 32, 4096 }, { scaled.rope.kind, scaled.rope.original,
                                          scaled.max_tokens })
    local function refused(scaling, given)
      return refusal(with_config('llama3', { rope_scaling = scaling }), { config = given })
    end
    local longer = { max_position_embeddings = 4096 }
    for _, kind in ipairs { 'dynamic', 'yarn' } do
      assert.equal('config.json: max_position_embeddings cannot be another, since rope_scaling of '
                   .. kind .. ' is counted from it', refused({ type = kind, factor = 2 }, longer))
    end
    local yarn = { type = 'yarn', factor = 2, original_max_position_embeddings = 64 }
    assert.equal(64, load('llama3', { rope_scaling = yarn }, longer).rope.original)
    longer.rope_scaling = { type = 'dynamic', factor = 3 }
    assert.equal(4096, load('llama3', { rope_scaling = { type = 'dynamic', factor = 2 } },
                            longer).rope.original)
  end)

  it('shows a model without its weights, and leaves nothing of it', function()
    local folder = models.make(parent, 'qwen2')
    collectgarbage()
    collectgarbage()
    local live, n = ul.memory('meta').live, 0
    ul.hf.outline(folder, { rope_theta = 7 }, function(model)
      n = ul.lora.add(model, { rank = 2 }):n_parameters()
      assert.same({ 'meta', 7 }, { model:parameters()[1]:device(), model.settings.rope.theta })
    end)
    assert.is_true(n > 0)
    assert.equal(live, ul.memory('meta').live)
  end)

  it('has the frequencies of published models', function()
    local file
    for _, place in ipairs { 'shared', '../shared', '../../shared' } do
      file = file or io.open(place .. '/data/golden/rope_inv_freq_golden.json')
    end
    if not file then return pending 'shared/data is not there' end
    local golden = json.decode(file:read '*a')
    file:close()
    local function scaled(factor)
      return { kind = 'llama3', theta = 5e5, factor = factor, low_freq_factor = 1,
               high_freq_factor = 4, original = 8192 }
    end
    for name, kind in pairs {
      llama3_8b = { 128, { kind = 'default', theta = 5e5 } }, llama31_8b = { 128, scaled(8) },
      llama32_1b = { 64, scaled(32) }, llama32_3b = { 128, scaled(32) },
      mistral_v01 = { 128, { kind = 'default', theta = 1e4 } },
      mistral_v03_nemo = { 128, { kind = 'default', theta = 1e6 } },
    } do
      local list = rope.frequencies(kind[2], kind[1], 0)
      assert.equal(#golden[name], #list)
      for i, f in ipairs(golden[name]) do assert.near(1, list[i] / f, 1e-6, name) end
    end
  end)

  it('refuses by name what it would not compute exactly', function()
    for sentence, changes in pairs {
      ["architecture 'Gemma2ForCausalLM' is none of those that are computed: LlamaForCausalLM, "
       .. 'MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM#'] =
        { architectures = { 'Gemma2ForCausalLM' } },
      ["model_type 'gpt2' is not known"] = { architectures = false, model_type = 'gpt2' },
      ["model_type 'mistral' does not go with architecture 'LlamaForCausalLM'"] =
        { model_type = 'mistral' },
      ["hidden_act 'gelu' is not computed; silu is"] = { hidden_act = 'gelu' },
      ['attention_dropout = 0.1 is not computed; 0 is'] = { attention_dropout = 0.1 },
      ['pretraining_tp = 2 is not computed; 1 is'] = { pretraining_tp = 2 },
      ['partial_rotary_factor = 0.5 is not computed'] = { partial_rotary_factor = 0.5 },
      ['quantization_config: quantized weights are not read'] =
        { quantization_config = { bits = 4 } },
      ["rope_scaling: rope_type 'longrope' is not computed"] =
        { rope_scaling = { rope_type = 'longrope' } },
      ['rope_scaling of llama3 needs low_freq_factor'] =
        { rope_scaling = { rope_type = 'llama3', factor = 8 } },
      ["rope_scaling: 'alpha' is not known for dynamic"] =
        { rope_scaling = { type = 'dynamic', factor = 2, alpha = 3 } },
      ['rope_scaling: factor must be a number above 0'] =
        { rope_scaling = { type = 'linear', factor = '2' } },
      ['vocab_size must be a number above 0, and is missing'] = { vocab_size = false },
      ["hidden_size must be a number above 0, and is '32'"] = { hidden_size = '32' },
      ['num_hidden_layers must be a whole number, and is 1.5'] = { num_hidden_layers = 1.5 },
      ['4 attention heads do not share 3 key-value heads equally'] = { num_key_value_heads = 3 },
      ['hidden_size 33 is no multiple of 4 attention heads, and there is no head_dim'] =
        { hidden_size = 33, head_dim = json.null },
      ['mlp_bias must be true or false, and is 1'] = { mlp_bias = 1 },
    } do
      local got = refusal(with_config('llama3', changes))
      assert.equal('config.json: ' .. sentence, (got .. '#'):sub(1, #sentence + 13))
    end
    assert.equal("config.json: layer_types: 'chunked_attention' is not computed",
      refusal(with_config('qwen2', { layer_types = { 'full_attention', 'chunked_attention' } })))
  end)

  it('refuses files that do not go together', function()
    assert.equal("hf.load: there is no folder './no/such'", refusal './no/such')
    assert.equal("hf.load: there is no folder 'meta-llama/Llama-3.2-1B'; if it is a model of the "
                 .. 'Hugging Face hub, download it first (hf download meta-llama/Llama-3.2-1B '
                 .. '--local-dir Llama-3.2-1B) and name that folder',
                 refusal 'meta-llama/Llama-3.2-1B')
    assert.equal("hf.load: 'recipes/dpo.lua' is a file, not a folder", refusal 'recipes/dpo.lua')
    local folder = models.make(parent, 'qwen3', function(tensors)
      tensors['model.layers.1.self_attn.q_norm.weight'] = nil
    end)
    assert.equal("model.safetensors: has no tensor 'model.layers.1.self_attn.q_norm.weight'",
                 refusal(folder))
    models.make(parent, 'qwen3', function(tensors)
      tensors['model.layers.1.self_attn.q_proj.bias'] = ul.zeros(48)
    end)
    assert.equal("model.safetensors: 'model.layers.1.self_attn.q_proj.bias' has no place in the "
                 .. 'model that config.json asks for', refusal(folder))
    models.make(parent, 'qwen3', function(tensors) tensors['model.norm.weight'] = ul.zeros(31) end)
    assert.equal("model.safetensors: 'model.norm.weight' is [31], and config.json asks for [32]",
                 refusal(folder))
    models.make(parent, 'qwen3', function(tensors) tensors['lm_head.weight'] = nil end)
    assert.equal("model.safetensors: has no tensor 'lm_head.weight', and config.json does not say "
                 .. 'that it is the embedding', refusal(folder))
    models.write(folder .. '/model.safetensors', 'x')
    assert.matches('^model.safetensors: ', refusal(folder))
    assert(os.remove(folder .. '/model.safetensors'))
    assert.matches('qwen3: has neither model.safetensors nor model.safetensors.index.json$',
                   refusal(folder))
    models.write(folder .. '/config.json', '{"a": 1,}')
    assert.matches('^config.json: ', refusal(folder))
    assert(os.remove(folder .. '/config.json'))
    assert.equal('config.json: No such file or directory', refusal(folder))
  end)
end)
