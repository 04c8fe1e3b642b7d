-- hf_save_spec.lua - ul.hf.save: what is saved is what was loaded, and a save that fails or is
-- killed leaves what was there.
local core = require 'ulysses.core'
local edit = require 'ulysses.hf.config_text'
local json = require 'ulysses.json'
local models = require 'tests.hf_models'
local program = require 'tests.program'
local recipe = require 'recipes.mistral'
local small_tokenizers = require 'tests.small_tokenizers'
local ul = require 'ulysses'

local parent

local function names_in(folder)
  local list = assert(core.folder_list(folder))
  table.sort(list)
  return list
end

local function same_weights(expected, actual)
  local state = actual:state()
  for name, parameter in expected:named_parameters() do
    assert.same(parameter:tolist(), state[name]:tolist(), name)
  end
end

local function refusal(...)
  local ok, sentence = pcall(ul.hf.save, ...)
  assert.is_false(ok)
  return (tostring(sentence):gsub(parent .. '/', ''))
end

describe('hf.save', function()
  before_each(function() parent = models.new_folder() end)
  after_each(function()
    ul.debug.fail_write(0)
    models.remove(parent)
  end)

  it('is refused early where nothing can be made, or take a name', function()
    local function refused(...)
      local _, sentence = pcall(ul.hf.check_folder, ...)
      return (tostring(sentence):gsub(parent, '.'))
    end
    assert.is_true(core.system.is_mount '/proc')
    assert.is_false(core.system.is_mount(parent .. '/nothing'))
    assert.is_false((core.system.may_write(parent .. '/nothing')))
    local may_write, is_mount = core.system.may_write, core.system.is_mount
    finally(function() core.system.may_write, core.system.is_mount = may_write, is_mount end)
    ul.hf.check_folder(parent .. '/a/b')
    core.system.may_write = function(above)
      assert.equal(parent, above)
      return false, 'Read-only file system'
    end
    assert.equal('./a/b: cannot be saved in .: Read-only file system', refused(parent .. '/a/b'))
    core.system.may_write, core.system.is_mount = may_write, function() return true end
    assert.matches('^./a: a file system is mounted there', refused(parent .. '/a'))
  end)

  it('saves what was loaded, in one file or several', function()
    for _, name in ipairs { 'llama31', 'qwen2', 'qwen3', 'nemo', 'llama_biases' } do
      local model = ul.hf.load(models.make(parent, name))
      local out = parent .. '/out'
      ul.hf.save(out, model)
      assert.same({ 'config.json', 'model.safetensors' }, names_in(out))
      local file = ul.safetensors.open(out .. '/model.safetensors')
      assert.same({ format = 'pt' }, file:metadata())
      local wanted = {}
      for _, entry in ipairs(models.golden[name].gradients) do wanted[entry[1]] = true end
      for _, tensor in ipairs(file:names()) do
        assert.is_true(wanted[tensor], tensor)
        wanted[tensor] = nil
      end
      assert.is_nil(next(wanted))
      same_weights(model, ul.hf.load(out))
      ul.hf.save(out, model, nil, { shard = 30000 })
      same_weights(model, ul.hf.load(out))
      local names = names_in(out)
      assert.equal('model.safetensors.index.json', names[#names])
      assert.equal(('model-00001-of-%05d.safetensors'):format(#names - 2), names[2])
      local index = json.decode(models.read(out .. '/model.safetensors.index.json'))
      assert.equal(4 * model:n_parameters(), index.metadata.total_size)
    end
  end)

  it('leaves of config.json what it does not change as it was written', function()
    local folder = models.make(parent, 'llama31')
    local text = '{\n  "other": {"a": [1.0, "\\u00e9}\\"", {}], "b":1e-05},\n  "x": null,'
      .. models.golden.llama31.config:sub(2)
    models.write(folder .. '/config.json', text)
    ul.hf.save(parent .. '/out', (ul.hf.load(folder, { dtype = 'bf16' })))
    local saved = models.read(parent .. '/out/config.json')
    assert.equal('{\n  "other": {"a": [1.0, "\\u00e9}\\"", {}], "b":1e-05},\n  "x": null,',
                 saved:sub(1, saved:find('null', 1, true) + 4))
    assert.truthy(saved:find('"factor": 8.0', 1, true))
    assert.truthy(saved:find('"torch_dtype": "bfloat16"', 1, true))
    local before, after = json.decode(text), json.decode(saved)
    before.torch_dtype = 'bfloat16'
    assert.same(before, after)
    assert.equal('bf16', ul.hf.load(parent .. '/out').head.weight:dtype())
  end)

  it('spells RoPE as all versions of transformers read it', function()
    local folder = models.make(parent, 'llama31')
    local values = json.decode(models.golden.llama31.config)
    values.rope_parameters = values.rope_scaling
    values.rope_parameters.rope_theta = values.rope_theta
    values.rope_scaling, values.rope_theta = nil, nil
    values.dtype = 'float32'
    models.write(folder .. '/config.json', json.encode(values))
    local model = ul.hf.load(folder)
    ul.hf.save(parent .. '/out', model)
    local saved = json.decode(models.read(parent .. '/out/config.json'))
    assert.is_nil(saved.rope_parameters)
    assert.is_nil(saved.torch_dtype)
    assert.equal(5e5, saved.rope_theta)
    assert.equal('llama3', saved.rope_scaling.rope_type)
    assert.same(model.settings, ul.hf.load(parent .. '/out').settings)
  end)

  it('changes the text of an object', function()
    assert.equal('{\n  "b": [1, {"c": "}"}],\n  "d": 8.0,\n  "rope_theta": 10000.0\n}\n',
                 edit(' { "a" : {"x":[]},"b": [1, {"c": "}"}] , "d":8.0}\n', { rope_theta = 1e4 },
                      { a = true }))
    assert.equal('{\n  "a": {\n    "factor": 2.0,\n    "n": 3\n  }\n}\n',
                 edit('{"a":1}', { a = { factor = 2, n = 3 } }))
    assert.equal('{\n\n}\n', edit('{}', {}))
  end)

  it('brings the tokenizer along, and what else belongs to the model', function()
    local folder = models.make(parent, 'llama31')
    local files = { ['tokenizer_config.json'] = '{"chat_template": "{{ x }}" }\n',
                    ['chat_template.jinja'] = '{% for m in messages %}\r\n\1',
                    ['generation_config.json'] = '{"eos_token_id": [2, 7], "do_sample": true, '
                      .. '"temperature": 0.6}' }
    for name, text in pairs(files) do models.write(folder .. '/' .. name, text) end
    models.write(folder .. '/README.md', 'not this')
    local model, _, config = ul.hf.load(folder)
    assert.same({ eos = { 2, 7, 2, 4, 5 }, temperature = 0.6 }, config.generation)
    ul.hf.save(parent .. '/out', model, { path = folder .. '/tokenizer.json' })
    for name, text in pairs(files) do
      assert.equal(text, models.read(parent .. '/out/' .. name))
    end
    assert.is_nil(io.open(parent .. '/out/README.md'))
  end)

  it('saves a model of a recipe', function()
    local settings = recipe:configure {
      model = { vocab = 67, dim = 32, n_layers = 1, n_heads = 4, n_kv_heads = 2, ffn = 48,
                head_dim = 12, window = 6 },
    }.model
    local model = recipe.model(settings):init_weights { seed = 3 }
    ul.hf.save(parent .. '/out', model, 'bytes', { settings = settings, max_tokens = 99 })
    local again = ul.hf.load(parent .. '/out')
    assert.equal(99, again.settings.max_tokens)
    assert.same({ 6 }, again.settings.windows)
    local inputs = ul.tensor({ { 5, 3, 60, 60, 2, 9, 1, 0, 4 } }, { dtype = 'i64' })
    local expected = ul.no_grad(model.logits, model, inputs)
    assert.equal(0, (expected - ul.no_grad(again.logits, again, inputs)):abs():max():item())
    assert.matches('a model that was not loaded needs its settings',
                   refusal(parent .. '/more', model))
  end)

  it('refuses where something would be lost', function()
    local model = ul.hf.load(models.make(parent, 'qwen3'))
    assert(core.folder_make(parent .. '/out'))
    models.write(parent .. '/out/thesis.txt', 'years of work')
    assert.equal("out: has 'thesis.txt' in it, which is no part of what is saved and would be "
                 .. 'lost; save elsewhere (save=..)', refusal(parent .. '/out', model))
    assert.error_matches(function() ul.hf.check_folder(parent .. '/out') end, 'would be lost')
    ul.hf.check_folder(parent .. '/qwen3/')
    assert.error_matches(function() ul.hf.check_folder(parent .. '/qwen3', 'adapter') end,
                         "has '[%w.]+' in it")
    ul.hf.check_folder(parent .. '/new')
    assert.equal('out/thesis.txt: is a file, not a folder',
                 refusal(parent .. '/out/thesis.txt', model))
    for _, beside in ipairs { 'more.saving', 'more.replaced' } do
      assert(core.folder_make(parent .. '/' .. beside))
      models.write(('%s/%s/thesis.txt'):format(parent, beside), 'years of work')
      assert.equal(beside .. ": has 'thesis.txt' in it, which no save has left there and would be "
                   .. 'lost; move it', refusal(parent .. '/more', model))
      assert.equal('years of work', models.read(('%s/%s/thesis.txt'):format(parent, beside)))
      assert(core.path_remove(parent .. '/' .. beside))
    end
    for _, name in ipairs { '.', '..', parent .. '/out/..', './' } do
      assert.matches("when it is whole; name it, and not '%.%.?'$", refusal(name, model))
    end
    assert.matches('no zero byte', refusal(parent .. '/zero\0byte', model))
    assert.matches('saved as f32 or bf16, not f64',
                   refusal(parent .. '/more', model, nil, { dtype = 'f64' }))
    assert.same({ 'out', 'qwen3' }, names_in(parent))
  end)

  -- A folder with a tokenizer in it, and other files that go with it.
  local function with_tokenizer(name)
    local folder = models.make(parent, name)
    local tok = small_tokenizers.made(small_tokenizers.golden[1])
    models.write(folder .. '/tokenizer.json', tok)
    models.write(folder .. '/chat_template.jinja', '{{ x }}')
    return folder
  end

  it("keeps a tokenizer's files, whether or not they were loaded", function()
    local folder = with_tokenizer 'qwen3'
    local model = ul.hf.load(folder, { tokenizer = false })
    for _, out in ipairs { folder, parent .. '/out' } do
      ul.hf.save(out, model)
      assert.same({ 'chat_template.jinja', 'config.json', 'model.safetensors', 'tokenizer.json' },
                  names_in(out))
    end
    assert.equal("out: has 'chat_template.jinja' in it, which belongs to a tokenizer and would be "
                 .. 'lost, since none is saved; save elsewhere',
                 refusal(parent .. '/out', model, 'bytes'))
    ul.hf.check_folder(folder, 'model', folder)
    assert.error_matches(function() ul.hf.check_folder(folder, 'model', 'bytes') end, 'be lost')
    ul.hf.save(parent .. '/more', model, 'bytes')
    assert.same({ 'config.json', 'model.safetensors' }, names_in(parent .. '/more'))
  end)

  it('keeps them where a save that was killed has left the folder by its other name', function()
    local folder = with_tokenizer 'qwen3'
    assert(os.rename(folder, folder .. '.replaced'))
    local model = ul.hf.load(folder, { tokenizer = false })
    for _ = 1, 2 do
      ul.hf.save(folder, model)
      assert.same({ 'chat_template.jinja', 'config.json', 'model.safetensors', 'tokenizer.json' },
                  names_in(folder))
      assert.same({ 'qwen3' }, names_in(parent))
    end
  end)

  it('saves as bf16 what came as bf16', function()
    local folder = models.make(parent, 'qwen3')
    models.write(folder .. '/config.json', edit(models.golden.qwen3.config,
                                                { torch_dtype = 'bfloat16' }))
    local model = ul.hf.load(folder, { dtype = 'f32' })
    ul.hf.save(parent .. '/out', model)
    assert.equal('bf16', ul.safetensors.open(parent .. '/out/model.safetensors')
                 :dtype 'lm_head.weight')
    ul.hf.save(parent .. '/out', model, nil, { dtype = 'f32' })
    assert.equal('f32', ul.hf.load(parent .. '/out').norm.weight:dtype())
  end)

  it('saves into what a link points at', function()
    local model = ul.hf.load(models.make(parent, 'qwen3'))
    assert(core.folder_make(parent .. '/disk/real'))
    assert(core.file_point(parent .. '/link', 'disk/real/'))
    assert(core.file_point(parent .. '/twice', parent .. '/link'))
    assert(core.file_point(parent .. '/new', 'disk/new'))
    assert(core.file_point(parent .. '/round', 'round'))
    ul.hf.save(parent .. '/twice/', model)
    ul.hf.save(parent .. '/new', model)
    for _, name in ipairs { 'link', 'twice', 'new' } do
      assert.is_string(core.system.link_of(parent .. '/' .. name))
      same_weights(model, ul.hf.load(parent .. '/' .. name))
    end
    assert.same({ 'new', 'real' }, names_in(parent .. '/disk'))
    assert.equal('round: its links lead nowhere', refusal(parent .. '/round', model))
    assert.same({ 'disk', 'link', 'new', 'qwen3', 'round', 'twice' }, names_in(parent))
  end)

  it('refuses a folder that another process is saving into', function()
    local model = ul.hf.load(models.make(parent, 'qwen3'))
    local out = parent .. '/out'
    local held = core.system.lock(out .. '.saving.lock')
    assert.matches('^out: another save into it is at work %(process %d+%); save elsewhere, or '
                   .. 'after it$', refusal(out, model))
    assert.same({ 'out.saving.lock', 'qwen3' }, names_in(parent))
    held:release() -- as when it was killed
    ul.hf.save(out, model)
    assert.same({ 'out', 'qwen3' }, names_in(parent))
    models.write(out .. '.saving.lock', 'years of work')
    assert.equal('out.saving.lock: no save has left it, and it would be lost; move it',
                 refusal(out, model))
  end)

  it('stays whole when two programs save at once', function()
    local out, script = parent .. '/out', parent .. '/save.lua'
    models.write(script, ([[
      local ul = require 'ulysses'
      local model = ul.hf.load '%s'
      local said = {}
      for i = 1, 30 do
        local ok, sentence = pcall(ul.hf.save, '%s', model, nil, { shard = 30000 })
        said[ok and 'saved' or tostring(sentence):gsub('%%d+', 'N')] = true
      end
      for sentence in pairs(said) do print(sentence) end
    ]]):format(models.make(parent, 'qwen3'), out))
    local output = program.shell(('$P %s & $P %s; wait'):format(script, script))
    for line in output:gmatch '[^\n]+' do
      local is_refused = line:find('another save into it is at work', 1, true) ~= nil
      assert.is_true(line == 'saved' or is_refused, line)
    end
    assert.matches('saved', output)
    same_weights(ul.hf.load(parent .. '/qwen3'), ul.hf.load(out))
    assert.same({ 'out', 'qwen3', 'save.lua' }, names_in(parent))
  end)

  -- The folder holds the old weights or the new ones, whole.
  local function expect_whole(out, old, new)
    local loaded = ul.hf.load(out)
    local is_new = loaded.norm.weight:tolist()[1] == new.norm.weight:tolist()[1]
    same_weights(is_new and new or old, loaded)
    return is_new
  end

  local function two_models()
    local folder = models.make(parent, 'nemo')
    local old, new = ul.hf.load(folder), ul.hf.load(folder)
    ul.no_grad(function() for _, p in ipairs(new:parameters()) do p:mul_(2) end end)
    return old, new
  end

  it('outlives a disk of which any step fails', function()
    local old, new = two_models()
    local out, how = parent .. '/out', { shard = 30000 }
    ul.hf.save(out, old, nil, how)
    local first = ul.debug.writes()
    ul.hf.save(out, old, nil, how)
    local count, saved = ul.debug.writes() - first, 0
    assert.is_true(count > 15)
    for n = 1, count do
      ul.debug.fail_write(n, n % 2 == 0 and 'ENOSPC' or 'EIO')
      local ok, sentence = pcall(ul.hf.save, out, new, nil, how)
      ul.debug.fail_write(0)
      if not ok then assert.equal(parent, tostring(sentence):sub(1, #parent)) end
      local is_new = expect_whole(out, old, new)
      saved = saved + (ok and 1 or 0)
      assert.is_true(is_new or not ok)
      ul.hf.save(out, old, nil, how)
      assert.same({ 'nemo', 'out' }, names_in(parent))
    end
    assert.is_true(saved <= 1) -- where names cannot be exchanged, there is another way
  end)

  it('outlives being killed', function()
    local old, new = two_models()
    local out, script = parent .. '/out', parent .. '/save.lua'
    for n = 2, 26, 3 do
      ul.hf.save(out, old)
      models.write(script, ([[
        local ul = require 'ulysses'
        local model = ul.hf.load '%s/nemo'
        ul.no_grad(function() for _, p in ipairs(model:parameters()) do p:mul_(2) end end)
        ul.debug.fail_write(%d, 'SIGKILL')
        ul.hf.save('%s', model)
      ]]):format(parent, n, out))
      os.execute(('%s %s >%s/log 2>&1; exit $?'):format(program.path, script, parent))
      expect_whole(out, old, new)
    end
    ul.hf.save(out, old)
    assert.same({ 'log', 'nemo', 'out', 'save.lua' }, names_in(parent))
  end)
end)
