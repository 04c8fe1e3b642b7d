-- hf_recipes_spec.lua - recipes that begin with a model from a folder, and leave one there.
local json = require 'ulysses.json'
local llama3 = require 'recipes.llama3'
local models = require 'tests.hf_models'
local program = require 'tests.program'
local ul = require 'ulysses'

local parent, text

local small = { dim = 32, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 48 }

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
    same_weights(first, (ul.hf.load(out)))
    assert.equal(32, ul.hf.load(out).settings.max_tokens)
    local half, both = parent .. '/half', parent .. '/both' -- bf16 comes back as bf16
    ul.hf.save(half, (ul.hf.load(out)), 'bytes', { dtype = 'bf16' })
    quietly(llama3.train, llama3:configure(settings { model = half, save = both, steps = 1 }))
    assert.equal('bf16', ul.safetensors.open(both .. '/model.safetensors'):dtype 'lm_head.weight')
    assert.matches('"bfloat16"', models.read(both .. '/config.json'))
    -- the same step as by the model of the recipe itself
    local again = quietly(llama3.train, llama3:configure(settings { model = out, steps = 1 }))
    local other = quietly(function()
      local cfg = llama3:configure(settings { model = small, steps = 1 })
      local class = setmetatable({}, { __call = function(_, c, mesh)
        local model = llama3.model(c, mesh):load(first:state())
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

  it('takes model=folder for model.path', function()
    local cfg = llama3:configure { 'model=some/where', 'steps=3' }
    assert.equal('some/where', cfg.model.path)
    assert.equal('some/where', llama3:configure { model = 'some/where' }.model.path)
    assert.is_nil(llama3:configure { 'model=none' }.model.path)
    assert.error_matches(function() llama3:configure { 'model=a', 'model.path=b' } end,
                         "model.path is set twice, to 'a' and to 'b'")
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
      ['prompts=a out=a'] = "out='a' is the file of the prompts, which would be lost",
    } do
      assert.equal('ulysses-lua: generate: ' .. sentence, said('model=/nonexist ' .. arguments))
    end
    assert.matches('sizes alone', said('tokenizer=bytes', '--device meta'))
    assert.matches('nowhere/adapter_config.json: No such', said 'adapter=nowhere')
    assert.matches('cannot write /dev/full: No space left', said(
      'tokenizer=bytes n=1 out=/dev/full prompts=' .. parent .. '/prompts'))
    assert.matches('generate: cannot write to standard output: No space left', (program.shell(
      '$P recipes/generate.lua tokenizer=bytes model=' .. parent .. '/model 2>&1 >/dev/full')))
  end)

  -- A model of bytes, and questions for it.
  local function base_model()
    local out, list = parent .. '/base', {}
    local cfg = llama3:configure { model = small }.model
    ul.hf.save(out, llama3.model(cfg):init_weights { seed = 1 }, 'bytes', { settings = cfg })
    list[1] = json.encode { prompt = ('long '):rep(30), completion = 'no' }
    for i = 2, 30 do
      list[i] = json.encode { prompt = ('%d and %d make '):format(i, i),
                              completion = ('%d'):format(2 * i) }
    end
    models.write(parent .. '/asked.jsonl', table.concat(list, '\n'))
    return out
  end

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
    if os.execute 'mpirun --version 2>/dev/null | grep -q "Open MPI"' ~= 0 then
      return pending 'no mpirun of Open MPI'
    end
    local base = base_model()
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
    if os.execute 'mpirun --version 2>/dev/null | grep -q "Open MPI"' ~= 0 then
      return pending 'no mpirun of Open MPI'
    end
    local base, lines = base_model(), {}
    for i = 1, 12 do
      lines[i] = json.encode { prompt = i .. ' and ' .. i .. ' make ', chosen = 'it is ' .. 2 * i,
                               rejected = 'who cares?' }
    end
    models.write(parent .. '/pairs.jsonl', table.concat(lines, '\n'))
    for _, kind in ipairs { '', 'lora.rank=4' } do
      local results, said = {}, {}
      for ranks, more in ipairs { '', 'sp=2 accumulate=2' } do
        local out = ('%s/preferred%d%s'):format(parent, ranks, kind)
        local output, status = program.shell(([[
          unset UL_RANK_OUTPUT; export ASAN_OPTIONS=detect_leaks=0 UL_THREADS=1 UL_COMM_TIMEOUT=20
          $P %s recipes/dpo.lua model=%s tokenizer=bytes data=%s/pairs.jsonl batch=4 steps=6 \
            lr=3e-3 warmup=1 dtype=f64 beta=0.5 save=%s %s %s]]):format(
          ranks > 1 and '--ranks 2' or '', base, parent, out, kind, more))
        assert.equal(0, status, output)
        said[ranks] = output:match '(step 1/6.*)saved'
        results[ranks] = ul.hf.load(kind == '' and out or base, {
          adapter = kind ~= '' and out or nil,
        }):state()
      end
      assert.equal(said[1], said[2])
      local first, last = said[1]:match 'loss ([%d.]+).*loss ([%d.]+)'
      assert.equal('0.6931', first)
      assert.is_true(tonumber(last) < 0.68, said[1])
      for name, parameter in pairs(results[1]) do
        assert.near(0, (parameter - results[2][name]):abs():max():item(), 1e-6, name)
      end
    end
  end)
end)
