-- resident_spec.lua - what the meta device counts for a recipe is what a step takes on the cpu.
local resident = require 'tests.resident'
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise

-- What tensors of the device hold, without what earlier specs left to the collector.
local function live_now(device)
  collectgarbage()
  collectgarbage()
  ul.reset_peak_memory()
  return ul.memory(device).live
end

-- Two steps of a small Llama; returns the most that tensors of the device have held, in bytes.
local function peak_of(device, settings)
  local recipe = require 'recipes.llama3'
  ul.set_default_device(device)
  local cfg = recipe:configure(settings)
  return ul.scope(function()
    local text = ul.data.from({ ('all work and no play '):rep(2000) }):tokenize 'bytes'
    local data = text:pack(cfg.seq_len):batch(cfg.batch)
    local before = live_now(device)
    local model = recipe.model(cfg.model):to(cfg.dtype):init_weights { seed = 1 }
    local optim = ul.optim.adamw(model, { lr = 1e-3 })
    for step = 1, 2 do
      ul.scope(function()
        for micro in data:at(step):micros(cfg.accumulate) do model(micro):backward() end
        optim:clip(1)
        optim:step()
      end)
    end
    return ul.memory(device).peak - before
  end)
end

describe('the meta device', function()
  after_each(function() ul.set_default_device(home) end)

  local small = { 'model.dim=64', 'model.ffn=160', 'model.n_layers=2', 'model.n_heads=4',
                  'model.n_kv_heads=2' }
  for _, changed in ipairs { 'seq_len=64', 'seq_len=1K batch=1', 'dtype=bf16 seq_len=300',
                             'accumulate=2 seq_len=100', 'model.tied=true' } do
    it('counts a training step to the byte: ' .. changed, function()
      local settings = { unpack(small) }
      for word in changed:gmatch '%S+' do settings[#settings + 1] = word end
      assert.equal(peak_of('meta', settings), peak_of('cpu', settings))
    end)
  end

  it('knows the scratch of the threads', function()
    local threads = ul.threads()
    local before = ul.memory('meta').scratch
    ul.threads(threads + 2)
    assert.equal(before + 8 * 2 ^ 20, ul.memory('meta').scratch)
    assert.equal(ul.memory('cpu').scratch, ul.memory('meta').scratch)
    ul.threads(threads)
  end)

  for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
    it('counts the scratch of attention, in ' .. dtype, function()
      local function peak(device, head_dim)
        return ul.scope(function()
          local options = { dtype = dtype, device = device, requires_grad = true }
          local q = ul.zeros({ 1, 100, 2, head_dim }, options)
          local k = ul.zeros({ 1, 100, 1, head_dim }, options)
          local before = live_now(device)
          ul.F.attention(q, k, k, { causal = true }):backward(ul.zeros_like(q))
          return ul.memory(device).peak - before
        end)
      end
      for _, head_dim in ipairs { 32, 10000 } do -- the second is too wide for a thread's own
        assert.equal(peak('cpu', head_dim), peak('meta', head_dim))
      end
    end)
  end
end)

-- Of the memory of the host, where tensors on the cpu are.
describe('a process that trains #cpu', function()
  local folder

  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    os.execute('mkdir ' .. folder)
    local file = io.open(folder .. '/text', 'w')
    file:write((('all work and no play '):rep(1000)))
    file:close()
  end)
  after_each(function()
    os.execute('rm -r ' .. folder)
  end)

  for _, changed in ipairs { 'seq_len=1K', 'seq_len=8K', 'seq_len=8K dtype=bf16' } do
    it('holds what the meta device counts: ' .. changed, function()
      if (os.getenv 'LD_PRELOAD' or ''):find('asan', 1, true) then
        return pending 'ASan takes much more'
      end
      local taken = resident('recipes/llama3.lua', {
        changed, 'steps=2', 'batch=1', 'model.dim=64', 'model.ffn=172', 'model.n_layers=2',
        'model.n_heads=2', 'model.n_kv_heads=1', 'sample=1', 'data=' .. folder .. '/text',
        'out=' .. folder .. '/run' })
      assert.near(taken.counted, taken.plan, 0.5e6 / taken.counted)
      local gap = math.abs(taken.resident - taken.counted)
      assert.is_true(gap <= 0.05 * taken.counted + 30e6,
                     ('resident %.1f MB, counted %.1f MB'):format(taken.resident / 1e6,
                                                                  taken.counted / 1e6))
      assert.is_true(taken.held <= 1.05 * taken.tensors + 6e6,
                     ('held %.1f MB, tensors %.1f MB'):format(taken.held / 1e6,
                                                              taken.tensors / 1e6))
    end)
  end
end)
