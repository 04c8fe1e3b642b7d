-- hf_config_spec.lua - whatever stands in the JSON files of a model's folder, it is loaded, or
-- refused in one sentence.
local json = require 'ulysses.json'
local models = require 'tests.hf_models'
local shown = require 'ulysses.hf.shown'
local ul = require 'ulysses'

local parent

-- What each value of a file becomes in turn.
local strange = {
  'x', '', -1, 0, 1.5, 2 ^ 31, 1e300, true, false, json.null, {}, json.array {}, { 1 }, { {} },
  { a = { 1 } }, ('long '):rep(1000) .. '\n\27[31m',
}

-- Loads, or refuses: whether it is loaded
local function load(folder, what, given)
  local ok, sentence = pcall(ul.hf.load, folder, given)
  if ok then return true end
  local text = tostring(sentence)
  assert.is_true(type(sentence) == 'table' and sentence.refusal, what .. text)
  assert.equal(parent, text:sub(1, #parent), what)
  assert.is_nil(text:find '%c' or text:find('table: 0x', 1, true) or text:find 'traceback',
                what .. text)
  assert.is_true(#text < 400, what .. text)
  return false
end

-- Writes the file with each of its values, and of those within, replaced by each strange one.
local function each_change(path, values, inner, visit)
  for key in pairs(inner) do
    local before = inner[key]
    if type(before) == 'table' and next(before) ~= nil then
      each_change(path, values, before, visit)
    end
    for i, value in ipairs(strange) do
      inner[key] = value
      models.write(path, json.encode(values))
      visit(('%s = %s: '):format(tostring(key), shown(value)), i)
    end
    inner[key] = before
  end
end

describe('the JSON of a folder', function()
  setup(function() parent = models.new_folder() end)
  teardown(function() models.remove(parent) end)

  for _, name in ipairs { 'llama31', 'mistral', 'qwen2', 'qwen3', 'yarn' } do
    it('may say anything: config.json of ' .. name, function()
      local folder = models.make(parent, name)
      local values, loaded, refused = json.decode(models.golden[name].config), 0, 0
      for _, key in ipairs { 'partial_rotary_factor', 'quantization_config', 'layer_types',
                             'rope_parameters', 'torch_dtype', 'dtype', 'pretraining_tp' } do
        if values[key] == nil then values[key] = json.null end
      end
      each_change(folder .. '/config.json', values, values, function(what)
        if load(folder, what) then loaded = loaded + 1 else refused = refused + 1 end
      end)
      assert.is_true(loaded > 100 and refused > 200, loaded .. ' ' .. refused)
    end)
  end

  it('may say anything: the index, and how a model is sampled', function()
    local folder = models.make(parent, 'qwen3')
    ul.hf.save(parent .. '/out', ul.hf.load(folder), nil, { shard = 30000 })
    local path = parent .. '/out/model.safetensors.index.json'
    local text = models.read(path)
    local values = json.decode(text)
    each_change(path, values, values, function(what) load(parent .. '/out', what) end)
    models.write(path, text)
    path, values = parent .. '/out/generation_config.json', {
      eos_token_id = { 1, 2 }, do_sample = true, temperature = 1, top_k = 3, top_p = 0.5, min_p = 0,
    }
    each_change(path, values, values, function(what) load(parent .. '/out', what) end)
  end)

  it('says which value is wrong', function()
    local folder = models.make(parent, 'qwen2')
    for sentence, changes in pairs {
      ['num_hidden_layers must be at most 16384, and is 2147483648'] =
        { num_hidden_layers = 2 ^ 31 },
      ['vocab_size must be at most 16777216, and is 1e+300'] = { vocab_size = 1e300 },
      ["max_window_layers must be a number above 0, and is 'x'"] = { max_window_layers = 'x' },
      ["torch_dtype 'int8' is none that is known: float32, bfloat16, float16, float64"] =
        { torch_dtype = 'int8' },
      ["eos_token_id must be an id or a list of ids, and is '2'"] = { eos_token_id = '2' },
      ['rope_scaling: rope_type {"a":[]} is not computed; default, linear, dynamic, yarn and '
       .. 'llama3 are'] = { rope_scaling = { rope_type = { a = json.array {} } } },
    } do
      local ok, said = pcall(ul.hf.load, folder, { config = changes })
      assert.is_false(ok)
      assert.equal(folder .. '/config.json: ' .. sentence, tostring(said))
    end
    folder = models.make(parent, 'mistral')
    local ok, said = pcall(ul.hf.load, folder, { config = { num_hidden_layers = 9000 } })
    assert.is_false(ok)
    assert.equal(folder .. '/model.safetensors: has tensors of 2 layers, and config.json asks for '
                 .. '9000', tostring(said))
  end)

  it('refuses a head that is another than the embedding, and what is no weight', function()
    local function said(change)
      local folder = models.make(parent, 'llama32', change)
      local ok, sentence = pcall(ul.hf.load, folder)
      return not ok and tostring(sentence):gsub('^' .. folder:gsub('%W', '%%%0') .. '/', '') or ''
    end
    local differs = "model.safetensors: 'lm_head.weight' differs from 'model.embed_tokens.weight', "
      .. 'and config.json says that they are one: tie_word_embeddings'
    local function with_head(f)
      return function(tensors)
        tensors['lm_head.weight'] = f(tensors['model.embed_tokens.weight'])
      end
    end
    assert.equal('', said(with_head(function(embed) return embed:clone() end)))
    assert.equal(differs, said(with_head(function(embed)
      local head = embed:clone()
      head[61][32]:add_(1e-3)
      return head
    end)))
    assert.equal(differs, said(with_head(function(embed) return embed:narrow(1, 1, 60) end)))
    for _, dtype in ipairs { 'i64', 'u8', 'i32' } do
      assert.equal("model.safetensors: 'model.norm.weight' is of dtype " .. dtype
                   .. ', and weights are f32, bf16, f16 or f64', said(function(tensors)
        tensors['model.norm.weight'] = ul.ones(32):to(dtype)
      end))
    end
  end)

  it('may begin with a byte-order mark, which is not saved', function()
    local folder = models.make(parent, 'qwen3')
    local text, generation = models.read(folder .. '/config.json'), '/generation_config.json'
    models.write(folder .. '/config.json', '\239\187\191' .. text)
    models.write(folder .. generation, '\239\187\191{"eos_token_id": 9}')
    local model, _, config = ul.hf.load(folder)
    assert.same({ 9, 2 }, config.generation.eos)
    ul.hf.save(parent .. '/marked', model)
    assert.equal('{', models.read(parent .. '/marked/config.json'):sub(1, 1))
    assert(os.remove(folder .. generation))
  end)

  it('takes the dtype of the weights where it names none', function()
    local folder = models.make(parent, 'qwen3', function(tensors)
      for name, tensor in pairs(tensors) do tensors[name] = tensor:to 'bf16' end
    end)
    assert.equal('bf16', ul.hf.load(folder).norm.weight:dtype())
  end)
end)
