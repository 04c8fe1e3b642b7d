-- hf_recipes_settings_spec.lua - what settings of recipes do to a model that they begin with, and
-- to what they leave.
local llama3 = require 'recipes.llama3'
local models = require 'tests.hf_models'
local program = require 'tests.program'
local tuning = require 'tests.tuning'
local ul = require 'ulysses'

local parent, text

describe('a setting of a recipe', function()
  setup(function()
    parent = models.new_folder()
    text = parent .. '/text.txt'
    models.write(text, ('A fox jumps over 7 dogs. '):rep(40))
  end)
  teardown(function() models.remove(parent) end)

  it('saves each run in a folder of its own', function()
    local base = tuning.model(parent)
    local data = { finetune = parent .. '/asked.jsonl', dpo = tuning.pairs(parent) }
    for _, recipe in ipairs { 'finetune', 'dpo' } do
      local function train(more)
        local output, status = program.shell(([[
          $P recipes/%s.lua model=%s data=%s tokenizer=bytes seq_len=64 steps=1 batch=2 %s
        ]]):format(recipe, base, data[recipe], more))
        assert.equal(0, status, output)
        return output
      end
      local first = ('%s/%s-1'):format(parent, recipe)
      local output = train('out=' .. first)
      assert.equal(('saved: %s/model'):format(first), output:match '([^\n]*)\n$')
      local weights = models.read(first .. '/model/model.safetensors')
      output = train(('lr=1e-2 out=%s/%s-2'):format(parent, recipe))
      assert.equal(('saved: %s/%s-2/model'):format(parent, recipe), output:match '([^\n]*)\n$')
      assert.is_nil(train('lr=1e-2 out='):find('saved', 1, true))
      assert.is_nil(train('lr=1e-2 save= out=' .. first .. '-3'):find('saved', 1, true))
      assert.is_true(weights == models.read(first .. '/model/model.safetensors'))
      output = train('out=' .. first) -- nothing is left to do, and nothing has changed
      assert.is_nil(output:find('changed', 1, true), output)
      assert.is_true(weights == models.read(first .. '/model/model.safetensors'))
      output = train(('out= save=%s/named-%s'):format(parent, recipe))
      assert.matches('saved: [^\n]*/named%-' .. recipe .. '\n$', output)
    end
  end)

  it('learns from all of a text where nothing is held out', function()
    for _, recipe in ipairs { 'llama3', 'mistral' } do
      local output, status = program.shell(([[$P recipes/%s.lua data=%s held_out=0 seq_len=32 \
        model.dim=32 batch=2 steps=1 out= sample=4]]):format(recipe, text))
      assert.equal(0, status, output)
      assert.matches('\nfirst loss [^\n]*\na sample:\n', output)
    end
  end)

  it('is refused for what is wrong with it, not for where the model is to be saved', function()
    local base, empty, save = tuning.model(parent), parent .. '/empty', parent .. '/saved'
    assert.equal(0, os.execute(('mkdir %s %s'):format(empty, save)))
    models.write(save .. '/tokenizer.json', '{}')
    local data = { finetune = parent .. '/asked.jsonl', dpo = tuning.pairs(parent), llama3 = text }
    local function refused(recipe, arguments)
      local output, status = program.shell(('$P recipes/%s.lua data=%s save=%s out= %s'):format(
        recipe, data[recipe], save, arguments))
      assert.equal(1, status, output)
      return output:match '([^\n]*)\n$'
    end
    for recipe in pairs(data) do
      assert.matches('/empty/config.json: No such file', refused(recipe, 'model=' .. empty))
      assert.matches("/saved: has 'tokenizer.json' in it", refused(recipe, 'model=' .. base))
    end
    for _, recipe in ipairs { 'finetune', 'dpo' } do
      local lora = ('model=%s lora.rank=400 lora.targets='):format(base)
      assert.matches("no linear map of the model is called 'wx'", refused(recipe, lora .. 'wq,wx'))
      assert.matches('rank 400 is above that of the weight', refused(recipe, lora .. 'wq'))
    end
  end)

  it('refuses a tokenizer of more ids than the model has, before the run', function()
    local base, made = tuning.model(parent), require 'tests.small_tokenizers'
    local path = parent .. '/tokenizer.json'
    models.write(path, made.made(made.golden[1]))
    local ids = ul.tokenizer.load(path):vocab_size()
    local function refused(arguments)
      local output, status = program.shell('$P recipes/' .. arguments .. ' out= tokenizer=' .. path)
      assert.equal(1, status, output)
      assert.is_nil(output:find('traceback', 1, true), output)
      return output:match '([^\n]*)\n$'
    end
    local sentence = ("ulysses-lua: tokenizer: '%s' has %d ids, and the model 260 (%%s)"):format(
      path, ids)
    assert.equal(sentence:format 'model.vocab', refused 'mistral.lua')
    assert.matches("'bytes' has 260 ids, and the model 100 %(model.vocab%)\n$",
                   (program.shell '$P recipes/llama3.lua model.vocab=100 out='))
    local data = { finetune = parent .. '/asked.jsonl', dpo = tuning.pairs(parent), llama3 = text }
    for recipe, file in pairs(data) do
      assert.equal(sentence:format 'vocab_size of its config.json', refused(
        ('%s.lua model=%s data=%s'):format(recipe, base, file)))
    end
  end)

  it('makes a model one of longer texts', function()
    local base = tuning.model(parent)
    local data = { finetune = parent .. '/asked.jsonl', dpo = tuning.pairs(parent) }
    local c = llama3:configure { model = tuning.small }.model
    ul.hf.save(base, (ul.hf.load(base)), 'bytes', { settings = c, config = {
      max_position_embeddings = 16 } })
    for _, recipe in ipairs { 'finetune', 'dpo', 'llama3' } do
      local out = ('%s/longer-%s'):format(parent, recipe)
      local function train(more)
        return program.shell(('$P recipes/%s.lua model=%s tokenizer=bytes data=%s seq_len=64 '
          .. 'steps=1 batch=2 out=%s save=%s/model %s'):format(recipe, base, data[recipe] or text,
                                                              out, out, more))
      end
      local output, status = train 'max_tokens=64 rope_theta=8e6'
      assert.equal(0, status, output)
      assert.is_nil(output:find('meant for', 1, true), output)
      local again = ul.hf.load(out .. '/model').settings
      assert.same({ 64, 8e6 }, { again.max_tokens, again.rope.theta })
      output, status = train 'max_tokens=64 rope_theta=9e6'
      assert.equal(1, status, output)
      assert.matches("was trained with rope_theta=8000000, not 9000000; set that again", output)
      output = program.shell(('$P recipes/%s.lua model=%s tokenizer=bytes data=%s seq_len=64 '
        .. 'steps=1 batch=2 out= max_tokens=32'):format(recipe, base, data[recipe] or text))
      assert.matches('rows of %d+ tokens are longer than the 32 that the model is meant for',
                     output)
    end
    local function refused(arguments)
      local output, status = program.shell('$P recipes/' .. arguments)
      assert.equal(1, status, output)
      return output:match '([^\n]*)\n$'
    end
    assert.matches('finetune: max_tokens is for a model that is saved as a whole: merge=true, or '
                   .. 'lora.rank=0$', refused(('finetune.lua model=%s data=%s lora.rank=2 '
                   .. 'max_tokens=64'):format(base, data.finetune)))
    assert.matches('dpo: rope_theta is for a model that is saved as a whole: lora.rank=0$', refused(
      ('dpo.lua model=%s data=%s lora.rank=2 rope_theta=64'):format(base, data.dpo)))
    assert.matches('rope_theta is for a model=path/to/folder; that of a new model is '
                   .. 'model.rope_theta$', refused 'mistral.lua out= rope_theta=1e6')
    assert.matches('has its own; rope_theta=7 changes it$', refused(
      ('llama3.lua model=%s model.rope_theta=7'):format(base)))
    program.shell(('$P recipes/llama3.lua data=%s model.dim=32 seq_len=32 batch=2 steps=1 out= '
                   .. 'max_tokens=99 save=%s/new'):format(text, parent))
    assert.equal(99, ul.hf.load(parent .. '/new').settings.max_tokens)
  end)

  it('says where a prompt is longer than a model is meant for', function()
    local out, c = parent .. '/short', llama3:configure { model = tuning.small }.model
    ul.hf.save(out, llama3.model(c):init_weights { seed = 1 }, 'bytes',
               { settings = c, max_tokens = 16 })
    local function said(more)
      return (program.shell(('$P recipes/generate.lua model=%s tokenizer=bytes n=4 prompt=%s %s '
        .. '2>&1 >/dev/null'):format(out, ('x'):rep(40), more or '')))
    end
    assert.matches('generate: of a prompt of 40 tokens the model sees the last 16 %(context%)\n$',
                   said())
    assert.matches('generate: texts of 44 tokens are longer than the 16 that the model is meant '
                   .. 'for %(max_position_embeddings of its config.json%)\n$', said 'context=64')
    assert.is_nil(said('context=16 2>&1'):find('meant for', 1, true))
  end)
end)
