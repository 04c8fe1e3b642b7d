-- lora_spec.lua - ul.lora: adapters beside frozen weights, merged, saved and loaded.
local core = require 'ulysses.core'
local json = require 'ulysses.json'
local llama3 = require 'recipes.llama3'
local models = require 'tests.hf_models'
local ul = require 'ulysses'

local parent

-- Adapters whose B is not zero either.
local function with_values(model)
  ul.no_grad(function()
    for name, parameter in model:named_parameters() do
      if name:find 'lora_b$' then parameter:normal_(0, 0.05) end
    end
  end)
  return model
end

local function logits_of(model)
  return ul.no_grad(model.logits, model, ul.tensor(models.rows(), { dtype = 'i64' }))
end

local function gap(a, b) return (a - b):abs():max():item() end

local function trained_of(model)
  local list = {}
  for name, parameter in model:named_parameters() do
    if parameter.requires_grad then list[#list + 1] = name end
  end
  return list
end

local function refusal(...)
  local ok, sentence = pcall(...)
  assert.is_false(ok)
  return (tostring(sentence):gsub(parent .. '/', ''))
end

describe('lora', function()
  before_each(function()
    parent = models.new_folder()
    ul.manual_seed(1)
  end)
  after_each(function() models.remove(parent) end)

  it('begins with what the model was, and trains adapters alone', function()
    local folder = models.make(parent, 'qwen2')
    local plain, model = ul.hf.load(folder), ul.hf.load(folder)
    assert.equal(model, ul.lora.add(model, { rank = 3, alpha = 6, targets = { 'wq', 'v_proj' } }))
    assert.equal(0, gap(logits_of(plain), logits_of(model)))
    assert.same({
      'layers.1.attention.wq.lora_a', 'layers.1.attention.wq.lora_b',
      'layers.1.attention.wv.lora_a', 'layers.1.attention.wv.lora_b',
      'layers.2.attention.wq.lora_a', 'layers.2.attention.wq.lora_b',
      'layers.2.attention.wv.lora_a', 'layers.2.attention.wv.lora_b',
    }, trained_of(model))
    local layer = model.layers[1].attention.wv
    assert.same({ 3, 32 }, layer.lora_a.shape)
    assert.same({ 16, 3 }, layer.lora_b.shape)
    assert.equal(2, layer.lora_scale)
    local before, optim = logits_of(model), ul.optim.adamw(model, { lr = 1e-2 })
    local first = model(models.batch())
    first:backward()
    optim:step()
    assert.is_true(gap(before, logits_of(model)) > 1e-3)
    assert.is_true(model(models.batch()):item() < first:item())
    local state = plain:state()
    for name, parameter in model:named_parameters() do
      if state[name] then assert.equal(0, gap(parameter:detach(), state[name]:detach()), name) end
    end
    assert.matches('frozen', tostring(model))
  end)

  -- Values are changed in the host's memory.
  it('computes the gradient of what the weights would be #cpu', function()
    local model = with_values(ul.lora.add(llama3.model(llama3:configure {
      model = { vocab = 61, dim = 16, n_layers = 1, n_heads = 2, n_kv_heads = 1, ffn = 24 },
    }.model):init_weights { seed = 2 }, { rank = 2, targets = { 'wq', 'wo', 'down' } })):to 'f64'
    local batch = models.batch()
    model(batch):backward()
    for name, parameter in model:named_parameters() do
      if parameter.requires_grad then
        local data, i = parameter:data(), 5
        local value = data[i]
        local function loss_at(x)
          data[i] = x
          return ul.no_grad(model.forward, model, models.batch()):item()
        end
        local slope = (loss_at(value + 1e-5) - loss_at(value - 1e-5)) / 2e-5
        data[i] = value
        assert.near(slope, parameter.grad:data()[i], 1e-7, name)
      end
    end
  end)

  it('becomes part of the weights', function()
    for _, name in ipairs { 'qwen3', 'llama_biases' } do
      local folder = models.make(parent, name)
      local model = with_values(ul.lora.add(ul.hf.load(folder)))
      local expected = logits_of(model)
      ul.hf.save(parent .. '/merged', model)
      assert.near(0, gap(expected, logits_of((ul.hf.load(parent .. '/merged')))), 1e-5)
      ul.lora.merge(model)
      assert.near(0, gap(expected, logits_of(model)), 1e-5)
      for key in model:named_parameters() do assert.is_nil(key:find 'lora') end
      assert.error_matches(function() ul.lora.merge(model) end, 'the model has no adapters')
      ul.lora.add(model) -- and goes on
    end
  end)

  it('is saved and loaded as PEFT does', function()
    local folder, out = models.make(parent, 'llama31'), parent .. '/adapter'
    local how = { rank = 4, targets = { 'wq', 'up' } }
    local model = with_values(ul.lora.add((ul.hf.load(folder)), how))
    ul.lora.save(out, model)
    local file = ul.safetensors.open(out .. '/adapter_model.safetensors')
    assert.same({ 4, 32 }, file:shape(
      'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'))
    assert.same({ 48, 4 }, file:shape('base_model.model.model.layers.1.mlp.up_proj.lora_B.weight'))
    assert.equal(8, #file:names())
    local values = json.decode(models.read(out .. '/adapter_config.json'))
    assert.same({ 'q_proj', 'up_proj' }, { unpack(values.target_modules) })
    assert.equal(folder, values.base_model_name_or_path)
    assert.same({ 4, 16 }, { values.r, values.lora_alpha })
    assert.error_matches(function() ul.hf.load(out) end,
                         'holds an adapter; name the folder of the model that it is for')
    local again = ul.hf.load(folder, { adapter = out })
    assert.equal(0, gap(logits_of(model), logits_of(again)))
    assert.same(trained_of(model), trained_of(again))
    ul.lora.save(out, again) -- over itself
    assert.same(model:generate({ 1, 2 }, { n = 9, temperature = 0, eos = false }),
                again:generate({ 1, 2 }, { n = 9, temperature = 0, eos = false }))

    values.use_rslora = true
    models.write(out .. '/adapter_config.json', json.encode(values))
    assert.equal(8, ul.hf.load(folder, { adapter = out }).layers[1].attention.wq.lora_scale)
    for sentence, change in pairs {
      ['use_dora = true is not computed'] = { use_dora = true },
      ['bias = "all" is not computed'] = { bias = 'all' },
      ['rank_pattern = {"q_proj":2} is not computed'] = { rank_pattern = { q_proj = 2 } },
      ['modules_to_save = ["lm_head"] is not computed'] = { modules_to_save = { 'lm_head' } },
      ['peft_type is "IA3", and \'LORA\' alone is computed'] = { peft_type = 'IA3' },
      ['r must be a number above 0'] = { r = 0 },
      ['r must be a whole number, not 1.5'] = { r = 1.5 },
      ['lora_alpha must be a number above 0'] = { lora_alpha = '16' },
      ['use_rslora must be true or false, not 1'] = { use_rslora = 1 },
      ['use_dora = {} is not computed'] = { use_dora = {} },
      ['init_lora_weights = "pissa" is not computed'] = { init_lora_weights = 'pissa' },
    } do
      local other = json.decode(json.encode(values))
      for key, value in pairs(change) do other[key] = value end
      models.write(out .. '/adapter_config.json', json.encode(other))
      assert.equal('adapter/adapter_config.json: ' .. sentence,
                   refusal(ul.hf.load, folder, { adapter = out }))
    end
    values.r = 2
    models.write(out .. '/adapter_config.json', json.encode(values))
    assert.matches('is %[.*%], and the model asks for %[.*%]$',
                   refusal(ul.hf.load, folder, { adapter = out }))
    values.r = 4
    models.write(out .. '/adapter_config.json', json.encode(values))
    local tensors = {}
    for _, name in ipairs(file:names()) do tensors[name] = file:get(name) end
    local prefix = 'base_model.model.model.layers.0.self_attn.q_proj'
    tensors[prefix .. '.lora_B.weight'] = nil
    ul.safetensors.save(out .. '/adapter_model.safetensors', tensors)
    assert.equal("adapter/adapter_model.safetensors: half of the adapter of "
                 .. "'model.layers.0.self_attn.q_proj' is missing",
                 refusal(ul.hf.load, folder, { adapter = out }))
    tensors['base_model.model.lm_head.lora_A.weight'] = ul.zeros(4, 32)
    ul.safetensors.save(out .. '/adapter_model.safetensors', tensors)
    assert.equal("adapter/adapter_model.safetensors: 'base_model.model.lm_head.lora_A.weight' has "
                 .. 'no place in the model', refusal(ul.hf.load, folder, { adapter = out }))
  end)

  it('is all that a checkpoint keeps beside the weights of a folder', function()
    local folder, dir = models.make(parent, 'llama31'), parent .. '/run'
    local function new(path)
      local model = ul.lora.add((ul.hf.load(path or folder)), { rank = 2, targets = { 'wq' } })
      return model, ul.optim.adamw(model, { lr = 1e-2 })
    end
    local function step(model, optim)
      model(models.batch()):backward()
      optim:step()
    end
    local model, optim = new()
    step(model, optim)
    ul.checkpoint.save(dir, 1, { model = model, optim = optim, base = folder })
    local file = ul.safetensors.open(dir .. '/step-1/model.safetensors')
    assert.same(trained_of(model), file:names())
    local again, other = new()
    ul.checkpoint.load(dir, { model = again, optim = other })
    step(model, optim)
    step(again, other)
    assert.equal(0, gap(logits_of(model), logits_of(again)))
    assert.equal("run/step-1: parameter 'embed.weight' [61, 32] of the model is not in the "
                 .. 'checkpoint',
                 refusal(ul.checkpoint.load, dir, { model = (ul.hf.load(folder)) }))
    local strange = new()
    strange.source = nil
    assert.equal("run/step-1: holds what was trained beside the weights of 'llama31' alone; load "
                 .. 'that model first (ul.hf.load)',
                 refusal(ul.checkpoint.load, dir, { model = strange }))
    local changed = models.make(parent .. '/other', 'llama31', function(tensors)
      tensors['model.norm.weight']:mul_(2)
    end)
    assert.matches("^run/step%-1: was trained beside the weights of 'llama31' %(%d+ bytes%), and "
                   .. "those of 'other/llama31' %(%d+ bytes%) are others; name the same model",
                   refusal(ul.checkpoint.load, dir, { model = (new(changed)) }))
    assert.matches('nowhere: ', refusal(ul.checkpoint.save, dir, 2, {
      model = model, base = parent .. '/nowhere' }))
  end)

  it('goes on in a run with the alpha that it began with', function()
    local folder = models.make(parent, 'llama32')
    local function train(alpha, steps)
      local how = { rank = 2, alpha = alpha, targets = { 'wq' } }
      local model = ul.lora.add((ul.hf.load(folder)), how)
      local run = ul.run { model = model, optim = ul.optim.adamw(model, { lr = 1e-3 }),
                           data = { at = models.batch }, dir = parent .. '/run', log_every = 0,
                           base = folder }
      for _, batch in run:steps(steps) do
        model(batch):backward()
        run.optim:step()
      end
    end
    train(4, 1)
    assert.equal("run: 'run' was trained with adapters of alpha / rank = 2, not 3; set that again, "
                 .. 'or give this run a folder of its own (out=..)', refusal(train, 6, 2))
    local print_it, said = print, {}
    function _G.print(line) said[#said + 1] = line end
    local ok, problem = pcall(train, 4, 2)
    _G.print = print_it
    assert.is_true(ok, problem)
    assert.matches('^resumed [^\n]*/run at step 1 of 2$', said[1])
  end)

  it('warns of another base', function()
    local folder, out = models.make(parent, 'llama31'), parent .. '/of_llama31'
    ul.lora.save(out, with_values(ul.lora.add((ul.hf.load(folder)))))
    local said = {}
    local function load_beside(place)
      ul.lora.load(out, (ul.hf.load(place)), { warn = function(text) said[#said + 1] = text end })
    end
    load_beside(folder)
    assert.same({}, said)
    local other = parent .. '/other'
    ul.hf.save(other, (ul.hf.load(folder)):init_weights { seed = 9 })
    load_beside(other)
    assert.matches("/of_llama31/adapter_model.safetensors: was trained beside other weights "
                   .. "%('[^']*'%) than those of '[^']*/other': with these", said[1])
    said = {}
    assert(core.path_remove(other))
    local function load_into(model)
      ul.lora.load(out, model, { warn = function(text) said[#said + 1] = text end })
    end
    local bare = ul.hf.load(folder)
    bare.source = other
    load_into(bare)
    assert.matches("whether the weights it was trained beside %('[^']*/llama31'%) are those of the "
                   .. 'model cannot be checked, whose files are not there$', said[1])
    local kept = ul.safetensors.open(out .. '/adapter_model.safetensors'):metadata()
    assert.same({ 'pt', folder }, { kept.format, kept.base_folder })
    local own = llama3:configure { model = { dim = 16, n_layers = 1, n_heads = 2, n_kv_heads = 1,
                                             ffn = 24 } }
    local plain = ul.lora.add(llama3.model(own.model), { rank = 2 })
    ul.lora.save(parent .. '/of_none', plain) -- a model of no folder has nothing to tell it by
    kept = ul.safetensors.open(parent .. '/of_none/adapter_model.safetensors'):metadata()
    assert.same({ format = 'pt' }, kept)
  end)

  it('says that a base cannot be checked', function()
    local folder, out = models.make(parent, 'llama31'), parent .. '/as_peft'
    ul.lora.save(out, with_values(ul.lora.add((ul.hf.load(folder)))))
    local path = out .. '/adapter_model.safetensors'
    local file, tensors = ul.safetensors.open(path), {}
    for _, name in ipairs(file:names()) do tensors[name] = file:get(name) end
    ul.safetensors.save(path, tensors) -- no metadata but PEFT's
    local said = {}
    local function load()
      ul.lora.load(out, (ul.hf.load(folder)), { warn = function(text) said[#said + 1] = text end })
    end
    load()
    assert.same({ path .. (": does not tell the weights it was trained beside ('%s'): whether they "
                           .. 'are those of the model cannot be checked'):format(folder) }, said)
    local settings = out .. '/adapter_config.json'
    local values = json.decode(io.open(settings):read '*a')
    values.base_model_name_or_path = json.null
    assert(core.file_write(settings, json.encode(values)))
    load()
    assert.matches('trained beside: whether they are', said[2], 1, true)
  end)

  it('says which names there are', function()
    local model = ul.hf.load(models.make(parent, 'llama32'))
    assert.error_matches(function() ul.lora.add(model, { targets = { 'qproj' } }) end,
                         "no linear map of the model is called 'qproj'; did you mean 'q_proj'%?")
    assert.error_matches(function() ul.lora.add(model, { targets = { 'head' } }) end,
                         "no linear map of the model is called 'head'")
    assert.error_matches(function() ul.lora.add(model, { rank = 0 }) end, 'from 1 on, got 0')
    for _, alpha in ipairs { 0, -1, 0 / 0, math.huge } do
      assert.error_matches(function() ul.lora.add(model, { alpha = alpha }) end,
                           'alpha must be a number above 0, got ')
    end
    assert.error_matches(function() ul.lora.add(model, { rank = math.huge }) end, 'from 1 on')
    assert.error_matches(function() ul.lora.add(model, { rank = 33, targets = { 'up' } }) end,
                         "rank 33 is above that of the weight of 'layers.1.*.up', which is %d+")
    assert.matches("^lora.add: targets is empty, and nothing would be trained; there are 'wq', "
                   .. "'q_proj'", refusal(ul.lora.add, model, { targets = {} }))
    assert.error_matches(function() ul.lora.add(model, { targets = { 5 } }) end,
                         'targets%[1%] must be a name, got a number')
    assert.error_matches(function() ul.lora.save(model, 'x') end,
                         'lora.save: expected the name of a folder, and then a model, got a table')
    assert.error_matches(function() ul.lora.load(model, 'x') end,
                         'lora.load: expected the name of a folder, and then a model, got a table')
    for _, name in ipairs { 'merge', 'without' } do
      assert.error_matches(function() ul.lora[name] 'x' end,
                           'lora.' .. name .. ': expected a model, got a string')
    end
    assert.error_matches(function() ul.lora.save('x', 'y') end, 'expected a model, got a string')
    assert.is_true(model.head.weight.requires_grad)
    ul.lora.add(model)
    assert.error_matches(function() ul.lora.add(model) end,
                         "'layers.1.attention.wq' has an adapter already")
  end)
end)
