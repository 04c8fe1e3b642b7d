-- cuda_spec.lua - ranks that train on cuda, against the same on the cpu.
local ul = require 'ulysses'

local settings = { vocab = 260, dim = 16, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 24,
                   rope_theta = 500000, eps = 1e-5 }

-- Losses and norms of three steps.
local function train(device, options)
  local before = ul.default_device()
  ul.set_default_device(device)
  local numbers = {}
  local mesh = ul.mesh { sp = options.sp, ring = options.ring, tp = options.tp,
                         heads = settings.n_heads }
  local model = require('recipes.llama3').model(settings, mesh):init_weights { seed = 3 }
  local optim = ul.optim.adamw(model, { lr = 1e-2 })
  local data = ul.data.from { ('some words '):rep(200) }:tokenize 'bytes':pack(24):batch(4)
  local run = ul.run { model = model, optim = optim, data = data:shard(mesh), log_every = 0 }
  for step, batch in run:steps(3) do
    for micro in batch:micros(options.accumulate or 1) do model(micro):backward() end
    numbers[2 * step - 1] = optim:clip(1)
    optim:step()
    numbers[2 * step] = run.losses[step] or 0
  end
  assert(model.norm.weight:device() == ul.default_device())
  ul.set_default_device(before)
  for step = 1, 3 do numbers[2 * step] = run.losses[step] end
  return numbers
end

return function(test, g)
  local device = ul.default_device()
  if device == 'cpu' or g.size > 4 then return end -- the other specs have done this
  local meshes = { { sp = g.size }, { sp = 1 }, { sp = g.size, ring = g.size } }
  if g.size % 2 == 0 then
    meshes[#meshes + 1] = { tp = 2 }
    meshes[#meshes + 1] = { sp = 2, accumulate = 2 }
  end
  for _, options in ipairs(meshes) do
    local name = ('sp %s, ring %s, tp %s'):format(options.sp, options.ring, options.tp)
    test('three steps are those of the cpu: ' .. name, function()
      local expected, numbers = train('cpu', options), train(device, options)
      for i, number in ipairs(expected) do
        local gap = math.abs(numbers[i] - number) / number
        assert(gap < 1e-5, ('number %d: %.9g on %s, %.9g on the cpu'):format(i, numbers[i],
                                                                          device, number))
      end
    end)
  end
  test('a group of one copies on the device', function()
    local alone = g:split(g.rank)
    local x = ul.randn(3, 4)
    for _, y in ipairs { alone:all_gather(x), alone:reduce_scatter(x), alone:all_reduce(x),
                         alone:broadcast(x, 0), alone:all_to_all(x, { split = 1, cat = 2 }),
                         alone:all_to_all({ x })[1] } do
      assert(y:device() == device and (y - x):abs():max():item() == 0)
    end
  end)
end
