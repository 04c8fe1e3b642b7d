-- sharded_spec.lua - module:shard() of one process: what a plan counts, what it refuses, and a
-- recipe on ranks that share weights.
local llama3 = require 'recipes.llama3'
local program = require 'tests.program'
local ul = require 'ulysses'

local settings = llama3:configure { model = { vocab = 512, dim = 64, n_layers = 6, n_heads = 4,
                                              n_kv_heads = 2, ffn = 172 } }.model

describe('sharded weights', function()
  it('are counted by a plan: slices, and two units of whole ones', function()
    local P, bytes, peak, live = 8, nil, {}, {}
    local device = ul.default_device()
    for _, shard in ipairs { false, true } do
      local mesh = ul.mesh { group = ul.group { pretend = P, rank = 0 }, sp = P, shard = shard }
      ul.set_default_device 'meta'
      local ok, problem = pcall(function()
        collectgarbage() collectgarbage()
        local before = ul.memory('meta').live
        local model = llama3.model(settings, mesh)
        bytes = 4 * model:n_parameters()
        local optim = ul.optim.adamw(model, { mesh = mesh })
        live[shard] = ul.memory('meta').live - before
        local ids = ul.zeros({ 1, 2 }, { dtype = 'i64', device = 'meta' })
        for step = 1, 2 do
          if step == 2 then ul.reset_peak_memory() end
          ul.scope(function()
            local batch = { inputs = ids, targets = ids,
                            positions = ul.zeros({ 2 }, { dtype = 'i64', device = 'meta' }) }
            mesh.tokens = 2 * P
            function batch.mean(_, sum) return sum / 2 end
            model(batch):backward()
            optim:step()
          end)
        end
        peak[shard] = ul.memory('meta').peak - before
      end)
      ul.set_default_device(device)
      assert.is_true(ok, problem)
    end
    -- weights and two moments
    assert.is_true(live[false] >= 3 * bytes and live[false] < 3 * bytes + 60000)
    assert.is_true(live[true] < 3 * bytes / P + 60000, live[true])
    -- and gradients; the head is the largest unit, and has one too
    local head = 4 * 512 * 64
    assert.is_true(peak[false] >= 4 * bytes)
    assert.is_true(peak[true] < 4 * bytes / P + 3 * head + 400000, peak[true])
  end)

  it('stay whole where nobody shares them', function()
    local layer = ul.nn.Linear(4, 3):shard(ul.mesh { shard = true, group = ul.group { pretend = 1,
                                                                                       rank = 0 } })
    assert.same({ 3, 4 }, layer:parameters()[1].shape)
    assert.has_error(function() layer:shard {} end)
  end)

  it('give the losses of a recipe on two ranks #cpu', function()
    program.needs_mpirun()
    local losses = {}
    for i, shard in ipairs { 'false', 'true' } do
      local output, status = program.shell((
        'export ASAN_OPTIONS=detect_leaks=0 UL_THREADS=1 UL_COMM_TIMEOUT=20; $P --ranks 2 '
        .. 'recipes/llama3.lua shard=%s sp=2 model.dim=20 model.n_layers=2 model.n_heads=2 '
        .. 'model.n_kv_heads=1 model.ffn=25 seq_len=33 batch=2 accumulate=2 steps=5 sample=3 '
        .. 'log_every=1 out= data=recipes/llama3.lua'):format(shard))
      assert.equal(0, status, output)
      losses[i] = {}
      for step, loss in output:gmatch 'step (%d+)/5%s+loss ([%d.]+)' do
        losses[i][tonumber(step)] = loss
      end
      assert.equal(5, #losses[i], output)
      losses[i].held_out = output:match 'held%-out loss%s+([%d.]+)'
    end
    assert.same(losses[1], losses[2])
  end)
end)
