-- plan_spec.lua - ulysses-lua --plan: its counts are those of a run, its floors those of the docs.
local floors = require 'ulysses.floors'
local machines = require 'ulysses.plan_machines'
local plan = require 'ulysses.plan'
local program = require 'tests.program'
local ul = require 'ulysses'

local small = 'recipes/llama3.lua seq_len=64 steps=2 out= log_every=0 sample=0 model.n_layers=2 '
  .. 'model.n_heads=4 model.n_kv_heads=2 model.ffn=48 model.dim=32 data=\'docs/*.md\' '

-- The output of the program with these arguments.
local function planned(arguments, environment)
  local output, status = program.shell((environment or '') .. ' $P ' .. arguments)
  assert.equal(0, status, output)
  return output
end

local function refused(arguments)
  local output, status = program.shell('$P ' .. arguments)
  assert.equal(1, status, output)
  return output
end

describe('floors', function()
  it('are those of docs/gpu.md', function()
    local file = assert(io.open 'docs/gpu.md')
    local text = file:read '*a'
    file:close()
    assert.is_truthy(text:find('\n' .. floors.markdown() .. '\n', 1, true),
                     'the table of floors in docs/gpu.md is not floors.markdown():\n'
                     .. floors.markdown())
  end)

  it('name kernels that there are, and kinds', function()
    local file = assert(io.open 'kernels/kernels.def')
    local text, kinds = file:read '*a', {}
    file:close()
    for _, kind in ipairs(floors.kinds) do kinds[kind] = true end
    for _, row in ipairs(floors.rows) do
      assert.is_true(kinds[row.kind], row.kind)
      for _, name in ipairs(row.kernels or {}) do
        assert.is_truthy(text:find('UL_KERNEL_%u+%(' .. name .. ','), name)
        assert.equal(row, floors.of(name))
      end
    end
  end)

  it('are what meta counts', function()
    local function count(f)
      ul.reset_meta_counts()
      ul.scope(f)
      local list = {}
      for _, one in ipairs(ul.meta_kernels()) do list[one.name] = one end
      return list
    end
    local function on_meta(...) return ul.empty { dtype = 'bf16', device = 'meta', ... } end
    local n = 2 ^ 20
    local product = count(function() return on_meta(64, 32):matmul(on_meta(32, 16)) end).gemm
    assert.equal(2 * 64 * 16 * 32, product.flops)
    assert.equal(2 * (64 * 32 + 32 * 16 + 64 * 16), product.bytes)
    assert.equal('bf16', product.dtype)
    local B, S, Hq, Hkv, D, W = 2, 256, 4, 2, 64, 100
    local function attention(options)
      return count(function()
        return ul.F.attention(on_meta(B, S, Hq, D), on_meta(B, S, Hkv, D), on_meta(B, S, Hkv, D),
                              options)
      end).attention
    end
    local causal = attention { causal = true }
    assert.equal(4 * D * S * (S + 1) / 2 * B * Hq, causal.flops)
    assert.equal(4 * D * B * S * (Hq + Hkv) + 4 * B * Hq * S, causal.bytes)
    assert.equal(4 * D * (W * S - W * (W - 1) / 2) * B * Hq,
                 attention { causal = true, window = W }.flops)
    assert.equal(3 * 2 * n, count(function() return ul.F.swiglu(on_meta(n), on_meta(n)) end)
      .swiglu.bytes)
    local function adamw(dtype, master)
      return count(function()
        local function averages() return ul.zeros { n, device = 'meta', dtype = 'f32' } end
        ul.adamw_(ul.zeros { n, device = 'meta', dtype = dtype }, averages(), averages(),
                  averages(), { master = master and averages() or nil, step = 1 })
      end).adamw.bytes
    end
    assert.equal(28 * n, adamw('f32', false))
    assert.equal(30 * n, adamw('bf16', true))
  end)
end)

describe('a machine', function()
  it('has rates that are said to be published or reached', function()
    for _, name in ipairs(machines.names) do
      local it = machines.get(name, 2)
      for _, key in ipairs { 'memory', 'bandwidth', 'link', 'network', 'per_node' } do
        assert.is_true(it[key] > 0, name .. ' ' .. key)
      end
      assert.is_true(it.flops.bf16 <= it.peak.bf16)
      assert.matches(name == 'here' and '^measured now' or 'published', it.source)
    end
    assert.equal(790e12, machines.get('h200', 8).flops.bf16)
  end)
end)

describe('--plan', function()
  it('counts the FLOPs of a Llama', function()
    local output = planned('--plan ' .. small .. 'batch=2')
    -- of weights in products: 6 for each and token; attention: 2 D P for each product, of which
    -- forward has 2 and backward 5
    local dim, kv, ffn, vocab, layers, tokens, S = 32, 16, 48, 260, 2, 128, 64
    local weights = layers * (2 * dim * dim + 2 * dim * kv + 3 * dim * ffn) + dim * vocab
    local products, pairs = 6 * weights * tokens, 2 * S * (S + 1) / 2 -- of two rows
    assert.is_truthy(output:find(('products%%s+%.1f M'):format(products / 1e6)), output)
    assert.is_truthy(output:find(('in all%%s+%.1f M'):format(
      (products + layers * 14 * dim * pairs) / 1e6)), output)
    assert.matches('bound by\n', output)
    assert.matches('fits in 141.00 GB', output)
    assert.matches('MFU', output)
  end)

  it('knows the peak that a run on meta has', function()
    local page = planned('--plan ' .. small .. 'batch=2')
    local line = planned('--device meta ' .. small .. 'batch=2')
    assert.is_truthy(page:match 'peak%s+[%d.]+ MB')
    assert.is_truthy(line:match 'takes %d+ MB')
    local of_text = 2 -- MB: the text of a batch stays on the host
    assert.is_true(math.abs(page:match 'peak%s+([%d.]+) MB' - line:match 'takes (%d+) MB')
                   <= of_text, page .. line)
  end)

  -- A loop of ul.run as recipes have it, which prints what a rank has sent in its second step.
  local script = [[
    package.path = 'recipes/?.lua;' .. package.path
    local ul = require 'ulysses'
    local recipe = require 'llama3'
    local mesh = ul.mesh { sp = 2, heads = 4 }
    local c = recipe:configure { model = { dim = 64, n_layers = 2, n_heads = 4, n_kv_heads = 2,
                                           ffn = 48 } }
    local model = recipe.model(c.model, mesh):init_weights()
    local optim = ul.optim.adamw(model, { mesh = mesh })
    local text = ul.data.from({ ('some text '):rep(200) }):tokenize 'bytes'
    local run = ul.run { model = model, optim = optim, log_every = 0,
                         data = text:pack(64):batch(2):shard(mesh) }
    for step, batch in run:steps(2) do
      if step == 2 and ul.default_device() ~= 'meta' then mesh.world:reset_counts() end
      model(batch):backward()
      optim:step()
      if step == 2 and mesh.world.rank == 0 then
        for kind, count in pairs(mesh.world:counts()) do
          print(('sent %s %d %d'):format(kind, count.calls, count.bytes))
        end
      end
    end
  ]]

  it('sends what ranks send', function()
    program.needs_mpirun()
    local name = os.tmpname()
    finally(function() os.remove(name) end)
    local file = io.open(name, 'w')
    file:write(script)
    file:close()
    -- what MPI keeps to its end is not ours
    local real = planned('--ranks 2 ' .. name, 'ASAN_OPTIONS=detect_leaks=0 UL_THREADS=1')
    local page = planned('--plan ' .. name)
    local function sent(text, kind)
      local calls, bytes = text:match('sent ' .. kind .. ' (%d+) (%d+)')
      assert.is_truthy(calls, text)
      return tonumber(calls), tonumber(bytes)
    end
    -- A real step also asks whether the loss is finite on all ranks: two calls of a few numbers.
    for kind, few in pairs { all_to_all = 0, all_reduce = 32 } do
      local calls, bytes = sent(page, kind)
      local real_calls, real_bytes = sent(real, kind)
      assert.is_true(real_calls - calls >= 0 and real_calls - calls <= few / 16, page .. real)
      assert.is_true(real_bytes - bytes >= 0 and real_bytes - bytes <= few, page .. real)
      assert.is_truthy(page:find(('%s%%s+all%%s+of 2%%s+%d calls%%s+%.1f MB'):format(
        kind, calls, bytes / 1e6)), page)
    end
  end)

  it('plans for ranks that are not there', function()
    local page = planned('--ranks 16 --plan=h100 ' .. small .. 'sp=4 batch=4')
    assert.matches('plan for 16 x H100 SXM on 2 nodes', page)
    assert.matches('ranks   16 %(dp 4 x sp 4%)', page)
    assert.matches('all_to_all +ulysses +of 4 [^\n]* link\n', page)
    assert.matches('all_reduce +all +of 16 [^\n]* network\n', page)
  end)

  it('refuses ranks that a run would refuse', function()
    local counts = { [1] = 'there is one', [4] = 'there are 4', [12] = 'there are 12' }
    for ranks, there in pairs(counts) do
      assert.equal(("ulysses-lua: mesh: sp = 8 needs 8 ranks or a multiple of that, and %s: "
                    .. 'ulysses-lua --ranks %d ..\n'):format(there, ranks > 8 and 16 or 8),
                   refused(('--ranks %d --plan %s sp=8 batch=1'):format(ranks, small))
                     :match '[^\n]*\n$')
    end
  end)

  it('says what would make it fit', function()
    local page = planned('--plan recipes/llama3.lua data=\'docs/*.md\' model.dim=8192 '
                         .. 'model.n_layers=16 model.n_heads=64 model.n_kv_heads=8 model.ffn=28672 '
                         .. 'dtype=bf16 batch=1 seq_len=64K')
    assert.matches('does not fit in 141.00 GB: [%d.]+ GB too much\n'
                   .. ' +with recompute=true on 1 ranks: +[%d.]+ GB  [^\n]*\n'
                   .. ' +with offload=true on 1 ranks: +[%d.]+ GB  ', page)
    page = planned('--plan=a100 recipes/llama3.lua data=\'docs/*.md\' model.dim=4096 sp=2 '
                   .. 'model.n_layers=8 model.n_heads=32 model.n_kv_heads=8 model.ffn=14336 '
                   .. 'dtype=bf16 batch=1 seq_len=256K')
    assert.matches('with shard=true on 2 ranks: ', page)
  end)

  it('needs of a model of a folder its config alone, and minds no place to save in', function()
    local models = require 'tests.hf_models'
    local llama3 = require 'recipes.llama3'
    local folder = models.new_folder()
    finally(function() models.remove(folder) end)
    local c = llama3:configure { 'model.dim=16', 'model.n_heads=2', 'model.n_kv_heads=2' }.model
    ul.hf.save(folder .. '/model', llama3.model(c), 'bytes', { settings = c, dtype = 'bf16',
                                                               max_tokens = 32 })
    assert(os.remove(folder .. '/model/model.safetensors'))
    models.write(folder .. '/data.jsonl', '{"prompt": "a", "completion": "b"}\n')
    models.write(folder .. '/pairs.jsonl', '{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    models.write(folder .. '/other', 'not a model')
    local there = program.shell('ls ' .. folder)
    for _, command in ipairs {
      "recipes/llama3.lua data='docs/*.md'", 'recipes/finetune.lua held_out=0 data=$D/data.jsonl',
      'recipes/dpo.lua batch=1 data=$D/pairs.jsonl',
    } do
      local page = planned((('--plan %s tokenizer=bytes model=$D/model save=$D out=$D'):format(
        command):gsub('%$D', folder)))
      assert.matches('parameters, bf16\n', page)
    end
    assert.equal(there, (program.shell('ls ' .. folder)))
  end)

  it('refuses what it cannot plan', function()
    assert.equal("ulysses-lua: --plan: no machine 'h20'; there is a100, b200, h100, h200, here\n",
                 refused '--plan=h20 recipes/llama3.lua')
    assert.equal('ulysses-lua: --plan needs a script: ulysses-lua --plan recipe.lua ..\n',
                 refused '--plan')
    assert.matches("no option '%-%-plam'; did you mean '%-%-plan'?", refused '--plam x')
    local name = os.tmpname()
    finally(function() os.remove(name) end)
    io.open(name, 'w'):close()
    assert.equal('ulysses-lua: --plan: the script took no step of ul.run, which is what is '
                 .. 'planned\n', refused('--plan ' .. name))
    assert.equal('ulysses-lua: --plan: the script took no step of ul.run, which is what is '
                 .. 'planned\n', refused "--plan=b200 -e 'x=1'")
    assert.is_nil(plan.machine)
  end)
end)

-- A script of this text is planned in a folder of its own: what it prints, what then lies there.
local function planned_in_folder(text, options)
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute('mkdir ' .. folder) == 0)
  finally(function() os.execute('rm -rf ' .. folder) end)
  local file = io.open(folder .. '/script.lua', 'w')
  file:write(text)
  file:close()
  local output, status = program.shell(('root=$PWD; case $P in /*) ;; *) P=$root/$P ;; esac; '
    .. 'cd %s && $P --plan %s script.lua'):format(folder, options or ''))
  local there = program.shell(('cd %s && find . -type f | sort'):format(folder))
  return output, status, there
end

describe('a script that is planned', function()
  -- %s: what it says of devices
  local script = [[
    local ul = require 'ulysses'
    %s
    local nn = ul.nn
    local Model = nn.class 'Model'
    function Model:init()
      self.embed, self.head = nn.Embedding(260, 8), nn.Linear(8, 260)
      self.bias = nn.parameter(ul.zeros { 8, device = device })
    end
    function Model:forward(batch)
      local x = self.embed(batch.inputs) + self.bias
      return batch:mean(ul.F.linear_cross_entropy(x, self.head.weight, batch.targets))
    end
    local model = Model()
    if device then model:to(device):to { device = device } end
    local x = ul.ones { 4, device = device }
    print(x:to(device or 'cpu'):device(), ul.tensor({ 1 }, { device = device }):device())
    local text = ul.data.from { ('some text '):rep(50) }:tokenize 'bytes'
    local run = ul.run { dir = 'run', model = model, optim = ul.optim.sgd(model, { lr = 1 }),
                         data = text:pack(16):batch(2) }
    for step, batch in run:steps(3) do
      for part in batch:micros(1) do model(part):backward() end
      run.optim:step()
      run:save()
    end
    ul.safetensors.save('x.safetensors', { x = x })
    ul.checkpoint.save('kept', 1, { model = model })
    local settings = { vocab = 260, dim = 8, n_layers = 1, n_heads = 2, n_kv_heads = 2, ffn = 8,
                       rope_theta = 1e4, eps = 1e-5 }
    local Llama = require 'recipes.llama3'.model
    ul.hf.save('saved', Llama(settings), 'bytes', { settings = settings })
    run:report()
  ]]

  for name, devices in pairs {
    ['names no device'] = 'local device',
    ['sets the cpu'] = "local device ul.set_default_device 'cpu'",
    ['sets a cuda that is not there'] = "local device ul.set_default_device 'cuda:7'",
    ['makes all on the cpu'] = "local device = 'cpu'",
    ['makes all on cuda'] = "local device = 'cuda'",
  } do
    it(name .. ', and computes and writes nothing', function()
      local output, status, there = planned_in_folder(script:format(devices))
      assert.equal(0, status, output)
      assert.matches('^meta\tmeta\n', output)
      assert.matches('plan for one H200', output)
      assert.equal('./script.lua\n', there)
    end)
  end

  it('may be given a device that is no matter, before or behind --plan', function()
    local text = script:format 'local device'
    for _, options in ipairs { '--device cpu', '--device cuda' } do
      local output, status, there = planned_in_folder(text, options)
      assert.equal(0, status, output)
      assert.matches('plan for one H200', output)
      assert.equal('./script.lua\n', there)
    end
    assert.matches("no device 'gpu'", (planned_in_folder(text, '--device gpu')))
  end)

  it('is refused where nothing is trained', function()
    assert.equal("ulysses-lua: --plan: 'generate' trains nothing, and what is planned is a step of "
                 .. 'training\n', refused '--plan recipes/generate.lua model=none')
  end)
end)
