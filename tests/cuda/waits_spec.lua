-- waits_spec.lua - how often the host waits for the device in a step of training.
local library = os.getenv 'UL_CUDA_BACKEND' or ''
local there = library:match 'emulated'

describe('a step of training on cuda', function()
  if not there then
    pending 'is watched by the emulation, which is not here'
    return
  end
  local ffi = require 'ffi'
  local ul = require 'ulysses'
  ffi.cdef 'int64_t cuemu_waits;'
  local driver = ffi.load(library)

  -- How often the host waits while f computes.
  local function waits(f, ...)
    local before = driver.cuemu_waits
    f(...)
    return tonumber(driver.cuemu_waits - before)
  end

  local function parameters(n, device)
    local list = {}
    for i = 1, n do
      ul.manual_seed(i)
      list[i] = ul.randn({ 3 * i, 5 }):to(device):detach()
      list[i].requires_grad = true
    end
    return list
  end

  -- An optimizer whose parameters have gradients, with its list of them.
  local function trained(n, device)
    local list = parameters(n, device)
    local optimizer = ul.optim.adamw(list, { lr = 1e-2 })
    return optimizer, list, function()
      local loss = list[1]:square():sum()
      for i = 2, n do loss = loss + list[i]:square():sum() end
      loss:backward()
    end
  end

  it('waits once for the norm, of however many parameters', function()
    for _, n in ipairs { 1, 7, 40 } do
      local optimizer, _, backward = trained(n, 'cuda')
      for _ = 1, 3 do
        assert.equal(0, waits(backward))
        assert.equal(1, waits(optimizer.clip, optimizer, 0.5))
        assert.equal(0, waits(optimizer.step, optimizer))
      end
    end
  end)

  it('waits once for the norm where nobody clips', function()
    local optimizer, _, backward = trained(9, 'cuda')
    backward()
    assert.equal(1, waits(optimizer.step, optimizer))
  end)

  it('has the norm of the cpu, with what is empty and what lies apart', function()
    local x = ul.randn { 40, 30 }
    local function list(device)
      local there_x = x:to(device)
      return { there_x, ul.zeros { 0, 3, device = device }, there_x:transpose(1, 2) }
    end
    local here, there_too = ul.global_norm(list 'cpu'), ul.global_norm(list 'cuda')
    assert.is_true(math.abs(here - there_too) <= 1e-12 * here)
    assert.equal(0, ul.global_norm { ul.zeros { 0, device = 'cuda' } })
    local mixed = list 'cuda'
    mixed[2] = x
    assert.is_true(math.abs(ul.global_norm(mixed) - here * math.sqrt(1.5)) <= 1e-12 * here)
  end)

  it('leaves out a step whose gradient is not finite, and goes on', function()
    local optimizer, list, backward = trained(5, 'cuda')
    backward()
    list[3].grad:fill_(0 / 0)
    local before = list[5]:tolist()
    local norm = optimizer:clip(1)
    optimizer:step()
    assert.is_true(norm ~= norm and optimizer.skipped)
    assert.same(before, list[5]:tolist())
    backward()
    optimizer:clip(1)
    optimizer:step()
    assert.is_false(optimizer.skipped)
    assert.equal(1, optimizer.steps)
  end)

  -- How often a recipe waits in its training and behind it.
  local function waits_of_recipe(name, steps, further)
    local path, recipe = os.tmpname(), require('recipes.' .. name)
    local file = assert(io.open(path, 'w'))
    for i = 1, 60 do file:write(('line %d of %d\n'):format(i, i * i % 17)) end
    file:close()
    local settings = { 'model.dim=32', 'model.n_layers=2', 'model.n_heads=4', 'model.n_kv_heads=2',
                       'model.ffn=48', 'seq_len=24', 'batch=2', 'warmup=2', 'out=', 'sample=1',
                       'held_out=0.1', 'data=' .. path, 'steps=' .. steps }
    for _, setting in ipairs(further) do settings[#settings + 1] = setting end
    local before, print_before = ul.default_device(), print
    ul.set_default_device 'cuda'
    _G.print = function() end
    local ok, n = pcall(waits, function() recipe.train(recipe:configure(settings)) end)
    _G.print = print_before
    ul.set_default_device(before)
    os.remove(path)
    return ok and n or error(n, 0)
  end

  it('waits for the norm and for the loss of each part, and for nothing else', function()
    local windowed = { 'model.head_dim=6', 'model.window=5' }
    local cases = { { 'llama3', 1, {} }, { 'llama3', 2, {} }, { 'mistral', 1, windowed } }
    for _, case in ipairs(cases) do
      local name, parts, further = unpack(case)
      local settings = { 'accumulate=' .. parts, unpack(further) }
      local few, more = waits_of_recipe(name, 2, settings), waits_of_recipe(name, 5, settings)
      assert.equal((1 + parts) * 3, more - few, name)
    end
  end)

  -- Two rows, the first of two documents; all that is looked at came from the host.
  local function documents()
    local function tensor(values)
      return ul.tensor(values, { dtype = 'i64', device = 'cuda' })
    end
    return tensor { { 1, 2, 3 }, { 4, 0, 2 } }, tensor { { 2, -100, 4 }, { 0, 2, -100 } },
      tensor { 0, 2, 3, 6 }
  end

  it('looks at ids, labels and documents where they came from', function()
    local w = ul.randn { 5, 8, device = 'cuda', requires_grad = true }
    local ids, labels, docs = documents()
    local function forward()
      local x = ul.F.embedding(ids, w):view(2, 3, 1, 8)
      x = ul.F.attention(x, x, x, { causal = true, docs = docs })
      return ul.F.linear_cross_entropy(x:view(2, 3, 8), w, labels)
    end
    assert.equal(0, waits(function() forward():backward() end))
  end)

  it('looks at what has changed since on the device', function()
    local w = ul.randn { 5, 8, device = 'cuda' }
    local ids = documents()
    ids:narrow(2, 3, 1):fill_(7)
    local message = ul.tensor({ 1, 9 }, { dtype = 'i64', device = 'cuda' })
    assert.error_matches(function() ul.F.embedding(ids, w) end, 'id 7 at position 3 is outside')
    assert.error_matches(function() ul.F.embedding(message, w) end, 'id 9 at position 2 is outside')
    assert.same({ { 1, 2, 7 }, { 4, 0, 7 } }, ids:tolist())
    ids:add_(ul.ones_like(ids))
    assert.same({ { 2, 3, 8 }, { 5, 1, 8 } }, ids:to('cpu'):tolist())
    assert.same({ { 8 }, { 8 } }, ids:narrow(2, 3, 1):tolist())
    local y = select(2, documents())
    assert.same({ -100, 2 }, y:transpose(1, 2):select(1, 2):tolist())
    assert.same({ { 0, 2, -100 } }, y:narrow(1, 2, 1):tolist())
  end)
end)
