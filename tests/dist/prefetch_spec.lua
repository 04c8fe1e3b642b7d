-- prefetch_spec.lua - units of sharded weights that are on their way while another is computed
-- with: by NCCL, whose streams tests/cuemu keeps apart; elsewhere none is.
local ul = require 'ulysses'
local core = require 'ulysses.core'
local nn = ul.nn

local LAYERS, WIDTH = 4, 17

local Stack = nn.class 'Stack'
function Stack:init(mesh)
  self.layers = nn.List()
  for _ = 1, LAYERS do
    self.layers:append(nn.Linear(WIDTH, WIDTH, { bias = true, std = 0.3 }):shard(mesh))
  end
end
function Stack:forward(x)
  for _, layer in ipairs(self.layers) do x = layer(x):tanh() end
  return x
end

return function(test, g)
  if g.size ~= 2 then return end
  local device = ul.default_device()
  local ahead = os.getenv 'UL_COMM_CUDA' == 'nccl'
  local function gathers() return (g:counts().all_gather or { calls = 0 }).calls end

  -- Gathers of a rank while it computes f()
  local function counted(f)
    local before = gathers()
    local y = f()
    return gathers() - before, y
  end

  test('the unit behind this one is asked for before this one is computed with', function()
    local model, x = Stack(ul.mesh { shard = true }), ul.ones(3, WIDTH)
    core.sharded.release()
    ul.no_grad(function()
      local first = counted(function() return model(x) end)
      assert(first == 2 * LAYERS, first)
      core.sharded.release()
      -- a unit is two weights; the first one finds none of them, and brings two more
      for i, layer in ipairs(model.layers) do
        local want = ahead and (i == 1 and 4 or i < LAYERS and 2 or 0) or 2
        local n = counted(function() return layer(x) end)
        assert(n == want, ('layer %d: %d gathers, not %d'):format(i, n, want))
      end
      -- no more than two are there
      local held = ul.memory(device).live
      core.sharded.release()
      local freed = held - ul.memory(device).live
      local bytes = 4 * (WIDTH * WIDTH + WIDTH)
      assert(freed > 0 and freed <= (ahead and 2 or 1) * (bytes + 256), freed)
    end)
  end)

  test('slices that change are gathered again, on their way or not', function()
    local model, x = Stack(ul.mesh { shard = true }):init_weights { seed = 1 }, ul.ones(3, WIDTH)
    ul.no_grad(function()
      model(x) model(x)
      for _, layer in ipairs(model.layers) do
        local before = layer(x)
        for _, slice in model:named_parameters() do slice:mul_(2) end
        assert((layer(x) - before * 2):abs():max():item() < 1e-5, 'old values')
        for _, slice in model:named_parameters() do slice:mul_(0.5) end
      end
    end)
    local y = model.layers[1](ul.ones(3, WIDTH):requires_grad_()):sum()
    ul.no_grad(function()
      for _, slice in model:named_parameters() do slice:mul_(2) end
    end)
    local ok, message = pcall(y.backward, y)
    assert(not ok and message:find('changed in place', 1, true), message)
  end)

  test('what is computed is what whole weights give', function()
    local results = {}
    for i, mesh in ipairs { ul.mesh {}, ul.mesh { shard = true } } do
      local model = Stack(mesh):init_weights { seed = 1 }
      local optim = ul.optim.adamw(model, { lr = 0.01, mesh = mesh })
      results[i] = {}
      for step = 1, 4 do
        ul.scope(function()
          -- numbers that take a while
          local x = (ul.ones(64, WIDTH):cumsum(1) * (g.rank + 1)):narrow(1, 1, 3) * 0.1
          local loss = model(x):sum()
          loss:backward()
          optim:clip(1)
          optim:step()
          results[i][step] = loss:item()
        end)
      end
    end
    for step, loss in ipairs(results[1]) do
      assert(math.abs(loss - results[2][step]) < 1e-4,
             ('step %d: %.9g, not %.9g'):format(step, results[2][step], loss))
    end
  end)
end
