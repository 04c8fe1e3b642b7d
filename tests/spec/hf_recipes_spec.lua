-- hf_recipes_spec.lua - recipes that begin with a model from a folder, and leave one there.
local json = require 'ulysses.json'
local llama3 = require 'recipes.llama3'
local models = require 'tests.hf_models'
local program = require 'tests.program'
local tuning = require 'tests.tuning'
local ul = require 'ulysses'

local parent, text

local small = tuning.small

local function quietly(f, ...)
  local print_it, lines = print, {}
  function _G.print(...) lines[#lines + 1] = table.concat({ ... }, '\t') end
  local ok, first, second = pcall(f, ...)
  _G.print = print_it
  if not ok then error(first, 0) end
  return first, second, table.concat(lines, '\n')
end

local function settings(more)
  local cfg = { data = text, seq_len = 32, batch = 2, steps = 4, warmup = 1, out = '',
                log_every = 0, sample = 4 }
  for key, value in pairs(more) do cfg[key] = value end
  return cfg
end

local function same_weights(expected, actual)
  local state = actual:state()
  for name, parameter in expected:named_parameters() do
    assert.same(parameter:tolist(), state[name]:tolist(), name)
  end
end

describe('a recipe', function()
  setup(function()
    parent = models.new_folder()
    text = parent .. '/text.txt'
    models.write(text, ('A fox jumps over %d dogs. '):rep(40):gsub('%%d', '7'))
  end)
  teardown(function() models.remove(parent) end)

  it('leaves a model that another goes on from', function()
    local out = parent .. '/out'
    local first, _, said = quietly(llama3.train,
                                   llama3:configure(settings { model = small, save = out }))
    assert.equal('saved: ' .. out, said:match '[^\n]*$')
    local _, _, noted = quietly(llama3.train, llama3:configure(settings { model = out, steps = 1 }))
    assert.matches("^'" .. out .. "' has no tokenizer: text is taken as bytes\n", noted)
    same_weights(first, (ul.hf.load(out)))
    assert.equal(32, ul.hf.load(out).settings.max_tokens)
    local half, both = parent .. '/half', parent .. '/both' -- bf16 comes back as bf16
    ul.hf.save(half, (ul.hf.load(out)), 'bytes', { dtype = 'bf16' })
    quietly(llama3.train, llama3:configure(settings { model = half, save = both, steps = 1 }))
    assert.equal('bf16', ul.safetensors.open(both .. '/model.safetensors'):dtype 'lm_head.weight')
    assert.matches('"bfloat16"', models.read(both .. '/config.json'))
    -- the same step as by the model of the recipe itself
    local of_folder = llama3:configure(settings { model = out, steps = 1 })
    local again = quietly(llama3.train, of_folder)
    local c = of_folder.model -- what the record of the run has
    assert.same({ out, 32, 2, 48 }, { c.path, c.dim, c.n_layers, c.ffn })
    assert.is_nil(c.rope_theta)
    local other = quietly(function()
      local cfg = llama3:configure(settings { model = small, steps = 1 })
      local class = setmetatable({}, { __call = function(_, given, mesh)
        local model = llama3.model(given, mesh):load(first:state())
        function model.to(self) return self end
        function model.init_weights(self) return self end
        return model
      end })
      return llama3.train(cfg, class)
    end)
    local state = again:state()
    for name, parameter in other:named_parameters() do
      assert.near(0, (parameter - state[name]):abs():max():item(), 1e-6, name)
    end
  end)

  it('goes on with dtype and tokenizer of a folder, or with those that are named', function()
    local folder, more = parent .. '/known', { model = parent .. '/known', steps = 1 }
    local made = require('tests.small_tokenizers')
    local cfg = llama3:configure { model = small, 'model.vocab=1K' }.model
    ul.hf.save(folder, llama3.model(cfg), 'bytes', { settings = cfg, dtype = 'bf16',
                                                     max_tokens = 16 })
    models.write(folder .. '/tokenizer.json', made.made(made.golden[1]))
    local function trained(given)
      for key, value in pairs(more) do given[key] = value end
      local model, run, said = quietly(llama3.train, llama3:configure(settings(given)))
      return model:parameters()[1]:dtype(), run.data.corpus.n, said
    end
    local dtype, tokens = trained {}
    assert.equal('bf16', dtype)
    local other, bytes = trained { dtype = 'f32', tokenizer = 'bytes', recompute = true }
    assert.equal('f32', other)
    assert.is_true(bytes > tokens)
    assert.error_matches(function() trained { tokenizer = 'nowhere' } end, "no tokenizer 'nowhere'")
    local output = program.shell(("$P recipes/llama3.lua data='%s' model=%s seq_len=32 batch=2 "
      .. 'steps=1 out= sample=0'):format(text, folder))
    assert.matches('rows of 32 tokens are longer than the 16 that the model is meant for', output)
  end)

  it('computes layers again where it is told to, to the same end', function()
    local plain = quietly(llama3.train, llama3:configure(settings { model = small }))
    local again = quietly(llama3.train, llama3:configure(settings { model = small,
                                                                    recompute = true }))
    same_weights(plain, again)
  end)

  it('takes model=folder for model.path', function()
    local cfg = llama3:configure { 'model=some/where', 'steps=3' }
    assert.equal('some/where', cfg.model.path)
    assert.equal('some/where', llama3:configure { model = 'some/where' }.model.path)
    assert.is_nil(llama3:configure { 'model=none' }.model.path)
    assert.error_matches(function() llama3:configure { 'model=a', 'model.path=b' } end,
                         "model.path is set twice, to 'a' and to 'b'")
    assert.matches('^llama3: model.path=some/where%* data=', llama3:describe(cfg))
    assert.matches('^llama3: model.vocab=', llama3:describe(llama3:configure {}))
    local output, status = program.shell '$P recipes/llama3.lua model=a model.dim=64'
    assert.equal(1, status)
    assert.matches("model.dim=64 says nothing: the model of 'a' has its own\n$", output)
  end)

  it('writes what a model says', function()
    local out = parent .. '/model'
    local model = llama3.model(llama3:configure { model = small }.model):init_weights { seed = 1 }
    ul.hf.save(out, model, 'bytes', { settings = llama3:configure { model = small }.model })
    local how = { n = 12, seed = 3, temperature = 0.5, tokenizer = 'bytes' }
    local expected = ul.hf.load(out):generate('Once upon a time', how)
    local command = '$P recipes/generate.lua model=' .. out
      .. ' tokenizer=bytes n=12 seed=3 temperature=0.5 '
    local output, status = program.shell(command)
    assert.equal(0, status, output)
    assert.equal('Once upon a time' .. expected .. '\n', output:sub(-17 - #expected))
    models.write(parent .. '/prompts', 'One\n\nTwo\nThree\n')
    output = program.shell(command .. ('prompts=%s/prompts 2>/dev/null'):format(parent))
    for line in output:gmatch '[^\n]+' do assert.is_string(json.decode(line).prompt) end
    output, status = program.shell(command .. ('prompts=%s/prompts out=%s/answers batch=2'):format(
      parent, parent))
    assert.equal(0, status, output)
    local lines = {}
    for line in io.lines(parent .. '/answers') do lines[#lines + 1] = json.decode(line) end
    assert.equal(3, #lines)
    assert.equal('Three', lines[3].prompt)
    assert.equal((ul.hf.load(out):generate('Three', how):gsub('[\128-\255]', '?')), lines[3].text)
    local tuned = ul.lora.add((ul.hf.load(out)))
    for name, parameter in tuned:named_parameters() do
      if name:find 'lora_b' then ul.no_grad(parameter.normal_, parameter, 0, 0.3) end
    end
    ul.lora.save(parent .. '/beside', tuned)
    output = program.shell(command .. 'adapter=' .. parent .. '/beside')
    local other = tuned:generate('Once upon a time', how)
    assert.not_equal(expected, other)
    assert.equal('Once upon a time' .. other .. '\n', output:sub(-17 - #other), output)
    output, status = program.shell '$P recipes/generate.lua'
    assert.equal(1, status)
    assert.matches('no folder with a model is named; recipes have it from model=path/to/folder\n$',
                   output)
  end)

  it('tells a model of tools', function()
    local made, ids = require 'tests.small_tokenizers', 1024
    local variant = made.variant 'qwen2'
    local added = made.with_specials(variant, { '<|im_start|>', '<|im_end|>' })
    for _, token in ipairs(added) do ids = math.max(ids, token.id + 1) end
    local c = llama3:configure { model = small, 'model.vocab=' .. ids }.model
    local folder, path = parent .. '/caller', parent .. '/tools.json'
    ul.hf.save(folder, llama3.model(c):init_weights { seed = 1 }, 'bytes',
               { settings = c, max_tokens = 512 })
    models.write(folder .. '/tokenizer.json', made.made(variant, { added_tokens = added }))
    models.write(path, '[{"type": "function", "function": {"name": "add", "a": 1, "B": 2}}]')
    local command = ('$P recipes/generate.lua model=%s chat=true temperature=0 n=8 '
                     .. "prompt='2 + 2?' tools=%s "):format(folder, path)
    local how = { family = 'qwen3', temperature = 0, n = 8, tools = models.read(path) }
    local expected = ul.hf.load(folder):generate({ { role = 'user', content = '2 + 2?' } }, how)
    assert.equal(expected .. '\n', (program.shell(command .. 'family=qwen3 2>/dev/null')))
    assert.matches('there are tools, which the format chatml does not have\n$',
                   (program.shell(command .. 'family=chatml')))
  end)

  it('says what is wrong before it writes', function()
    local function said(arguments, command)
      local output, status = program.shell(('$P %s recipes/generate.lua %s %s'):format(
        command or '', arguments:find 'model=' and '' or 'model=' .. parent .. '/model', arguments))
      assert.equal(1, status, output)
      assert.is_nil(output:find 'traceback', output)
      return output:match '([^\n]*)\n$'
    end
    local model = llama3.model(llama3:configure { model = small }.model):init_weights { seed = 1 }
    ul.hf.save(parent .. '/model', model, 'bytes',
               { settings = llama3:configure { model = small }.model })
    models.write(parent .. '/prompts', 'One\n')
    models.write(parent .. '/blank', ' \n')
    models.write(parent .. '/bytes', 'One\n\255\n')
    models.write(parent .. '/tools', '{"name": "f"}')
    models.write(parent .. '/none', '[]')
    models.write(parent .. '/broken', '[{"name"]')
    for arguments, sentence in pairs {
      ['n=-3'] = 'n=-3 is too small; it is 0 at least',
      ['top_k=0'] = 'top_k=0 is too small; it is 1 at least',
      ['top_p=1.5'] = 'top_p=1.5 is too large; it is 1 at most',
      ['min_p=0'] = 'min_p=0 is too small; it is above 0',
      ['temperature=-1'] = 'temperature=-1 is too small; it is 0 at least',
      ['stop=a,,b'] = 'stop has an empty text in it',
      ['out=/nonexist/x'] = 'cannot write out=/nonexist/x: No such file or directory',
      ['prompts=' .. parent .. '/blank'] = "prompts='" .. parent
        .. "/blank' is empty; it wants a prompt on each line",
      ['prompts=' .. parent .. '/bytes'] = "prompts='" .. parent .. "/bytes': line 2 is no UTF-8",
      ['tools=x'] = "tools='x' says nothing without chat=true",
      ['system=Hi'] = "system='Hi' says nothing without chat=true",
      ['prompts=a prompt=b'] = 'prompt and prompts are both set, and one of them would be ignored',
      ['prompts=a out=a'] = "out='a' is the file of the prompts, which would be lost",
    } do
      assert.equal('ulysses-lua: generate: ' .. sentence, said('model=/nonexist ' .. arguments))
    end
    for name, sentence in pairs { tools = "'tools' must be a list of tools", broken = 'line 1',
                                  none = 'it has no tools', nowhere = 'No such file' } do
      assert.matches(('%s/%s: .*%s'):format(parent, name, sentence),
                     said('chat=true tools=' .. parent .. '/' .. name))
    end
    assert.matches('sizes alone', said('tokenizer=bytes', '--device meta'))
    assert.matches('nowhere/adapter_config.json: No such', said 'adapter=nowhere')
    assert.matches('cannot write /dev/full: No space left', said(
      'tokenizer=bytes n=1 out=/dev/full prompts=' .. parent .. '/prompts'))
    assert.matches('generate: cannot write to standard output: No space left', (program.shell(
      '$P recipes/generate.lua tokenizer=bytes model=' .. parent .. '/model 2>&1 >/dev/full')))
  end)

  -- The model that the recipe has saved, and what it has said.
  local function finetune(base, kind, ranks)
    local out = ('%s/tuned%d%s'):format(parent, ranks, kind:gsub('%W', ''))
    local output, status = program.shell(([[
      unset UL_RANK_OUTPUT; export ASAN_OPTIONS=detect_leaks=0 UL_THREADS=1 UL_COMM_TIMEOUT=20
      $P %s recipes/finetune.lua model=%s tokenizer=bytes data=%s/asked.jsonl seq_len=40 batch=3 \
        steps=5 lr=1e-2 warmup=1 out= dtype=f64 held_out=0.2 sp=%d save=%s %s]]):format(
      ranks > 1 and '--ranks ' .. ranks or '', base, parent, ranks, out, kind))
    assert.equal(0, status, output)
    local only_adapter = not kind:find 'merge' and kind:find 'lora'
    if only_adapter then return (ul.hf.load(base, { adapter = out })), output end
    return (ul.hf.load(out)), output
  end

  it('teaches a model answers, with all its weights or adapters, on two ranks as on one', function()
    program.needs_mpirun()
    local base = tuning.model(parent)
    local plain = ul.hf.load(base):state()
    for _, kind in ipairs { '', 'lora.rank=4', 'lora.rank=4 merge=true overlong=cut' } do
      local model, output = finetune(base, kind, 1)
      local before, now = output:match 'held%-out loss  ([%d.]+) before, ([%d.]+) now'
      assert.is_true(tonumber(now) < tonumber(before), output)
      assert.matches(kind:find 'cut' and '40 tokens: 0 left out, 1 cut'
                     or '40 tokens: 1 left out, 0 cut', output)
      local state, changed = finetune(base, kind, 2):state(), 0
      for name, parameter in model:named_parameters() do
        assert.near(0, (parameter - state[name]):abs():max():item(), 1e-6, name)
        local far = plain[name] and (parameter - plain[name]):abs():max():item() or 0
        changed = changed + (far > 1e-4 and 1 or 0)
      end
      local all = #model:parameters()
      assert.equal(kind == '' and all or kind == 'lora.rank=4' and 0 or 14, changed)
    end
  end)

  it('teaches a model what is preferred, on two ranks as on one', function()
    program.needs_mpirun()
    local base, data = tuning.model(parent), tuning.pairs(parent)
    for _, kind in ipairs { '', 'lora.rank=4' } do
      local results, said = {}, {}
      for ranks, more in ipairs { '', 'sp=2 accumulate=2' } do
        local out = ('%s/preferred%d%s'):format(parent, ranks, kind)
        local output, status = program.shell(([[
          unset UL_RANK_OUTPUT; export ASAN_OPTIONS=detect_leaks=0 UL_THREADS=1 UL_COMM_TIMEOUT=20
          $P %s recipes/dpo.lua model=%s tokenizer=bytes data=%s batch=4 steps=6 \
            lr=3e-3 warmup=1 dtype=f64 beta=0.5 out= save=%s %s %s]]):format(
          ranks > 1 and '--ranks 2' or '', base, data, out, kind, more))
        assert.equal(0, status, output)
        local lines = {}
        for line in output:gmatch 'step %d/6  (.-)  %S+ tokens/s' do lines[#lines + 1] = line end
        said[ranks] = lines
        results[ranks] = ul.hf.load(kind == '' and out or base, {
          adapter = kind ~= '' and out or nil,
        }):state()
      end
      assert.same(said[1], said[2])
      assert.matches('^loss 0.6931  grad_norm [%d.]+  lr 0.003  accuracy 0  margin 0$', said[1][1])
      assert.is_true(tonumber(said[1][6]:match 'loss ([%d.]+)') < 0.68, said[1][6])
      for name, parameter in pairs(results[1]) do
        assert.near(0, (parameter - results[2][name]):abs():max():item(), 1e-6, name)
      end
    end
  end)

  it('goes on with what is preferred as if it had never stopped', function()
    local base, data = tuning.model(parent), tuning.pairs(parent)
    local function dpo(out, more, options)
      return program.shell(([[$P %s recipes/dpo.lua model=%s tokenizer=bytes data=%s batch=4 \
        lr=3e-3 steps=4 save_every=1 keep=4 lora.rank=2 out=%s/%s save=%s/%s-model %s]]):format(
        options or '', base, data, parent, out, parent, out, more or ''))
    end
    local output, status = dpo 'whole'
    assert.equal(0, status, output)
    assert.matches('\npairs: 12, in a step: 4; steps: 4 %(epochs: 1.33%), lr rises in 1 of them\n',
                   output)
    assert.equal(0, os.execute(('mkdir %s/part && cp -r %s/whole/step-2 %s/part'):format(
      parent, parent, parent)))
    output, status = dpo 'part'
    assert.equal(0, status, output)
    assert.matches('resumed [^\n]*/part at step 2 of 4\nchanged since: out [^\n]*\nstep 3/4',
                   output)
    for _, name in ipairs { '-model/adapter_model.safetensors', '/step-4/optimizer.safetensors' } do
      local whole = models.read(parent .. '/whole' .. name)
      assert.is_true(whole == models.read(parent .. '/part' .. name), name)
    end
    local last = models.read(parent .. '/part/metrics.jsonl'):match '([^\n]*)\n$'
    for _, field in ipairs { 'loss', 'margin', 'accuracy', 'grad_norm', 'lr' } do
      assert.is_number(json.decode(last)[field], field)
    end
    local kept = ul.safetensors.open(parent .. '/part/step-4/model.safetensors'):names()
    assert.equal(2 * 7 * 2, #kept) -- A and B of each map of two layers, and no weights
    assert.matches('<svg', models.read(parent .. '/part/report.html'))
    for change, sentence in pairs {
      ['lora.alpha=3'] = "whole' was trained with lora.alpha=16, not 3; set that again, or give "
        .. 'this run a folder of its own (out=..)',
      ['lora.targets=wq'] = "whole' was trained with lora.targets=none, not wq; set that again",
    } do
      output, status = dpo('whole', change)
      assert.equal(1, status)
      assert.is_truthy(output:find(sentence, 1, true), output)
    end
    output, status = dpo('meta', '', '--device meta')
    assert.equal(0, status, output)
    assert.matches('\nplan: [^\n]* parameters; a step of %d+ tokens takes [^\n]*\n$', output)
  end)

  it('says what is needed before a model is loaded', function()
    models.write(parent .. '/empty.jsonl', '{"text": "abc"}')
    local function said(recipe, arguments)
      local output, status = program.shell(('$P recipes/%s.lua model=/nonexist %s'):format(
        recipe, arguments))
      assert.equal(1, status, output)
      return output:match '([^\n]*)\n$'
    end
    local file = 'data=' .. parent .. '/empty.jsonl '
    for arguments, sentence in pairs {
      ['finetune '] = 'data= is needed: a .jsonl file of conversations or answers, or a text',
      ['finetune data=a.json'] = "data='a.json' is no text; examples are read from JSON lines "
        .. '(.jsonl)',
      ['finetune learn=lst'] = "learn='lst' is none of 'all', 'last'; did you mean 'last'?",
      ['finetune overlong=dorp'] = "overlong='dorp' is none of 'drop', 'cut', 'refuse'; did you "
        .. "mean 'drop'?",
      ['finetune clip=0'] = 'clip=0 makes all gradients nothing; one that is large (1e9) clips '
        .. 'none',
      ['finetune lora.alpha=0'] = 'lora.alpha=0 is too small; it is above 0',
      ['finetune merge=true ' .. file] = 'merge=true is for adapters, and there are none: '
        .. 'lora.rank=0',
      ['dpo '] = 'data= is needed: a .jsonl file of lines with prompt, chosen and rejected',
      ['dpo beta=0'] = 'beta=0 is too small; it is above 0',
      ['dpo smoothing=0.7'] = 'smoothing=0.7 is too large; it is 0.5 at most',
      ['dpo lora.targets=wq ' .. file] = 'lora.targets is for adapters, and there are none: '
        .. 'lora.rank=0',
    } do
      local recipe, rest = arguments:match '^(%S+) (.*)$'
      assert.equal(('ulysses-lua: %s: %s'):format(recipe, sentence), said(recipe, rest))
    end
  end)

  it('counts epochs where there is little to learn from', function()
    local base = tuning.model(parent)
    models.write(parent .. '/few.jsonl', ('{"text": "abc"}\n'):rep(3))
    local command = ('$P recipes/finetune.lua model=%s tokenizer=bytes out= save= held_out=0 '
                     .. 'data=%s/few.jsonl '):format(base, parent)
    local output, status = program.shell(command .. 'seq_len=40 epochs=4 lr=1e-2')
    assert.equal(0, status, output)
    assert.matches('\nrows of 40 tokens: 1, in a step: 1; steps: 4 %(epochs: 4%), lr rises in 1 of '
                   .. 'them\n', output)
    assert.matches('step 1/4[^\n]* lr 0.01 ', output)
    output = program.shell(command .. 'seq_len=40 steps=1 warmup=0 lr=1e-2')
    assert.matches('step 1/1[^\n]* lr 0.01 ', output)
    local short = llama3:configure(settings { model = small, steps = 1, warmup = 9 })
    assert.matches('lr rises in all of the 1 steps, for warmup=9\n',
                   select(3, quietly(llama3.train, short)))
    output = program.shell(command .. 'lora.rank=2 lora.targets=wqq')
    assert.matches("\nulysses%-lua: lora.add: no linear map of the model is called 'wqq'; did you "
                   .. "mean 'wq'%?; there are 'wq', [^\n]*\n$", output)
  end)
end)
