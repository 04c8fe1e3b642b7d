-- sharded_spec.lua - weights, gradients and moments of which each rank keeps a slice: trained,
-- counted, saved and gone on with as by one.
local ul = require 'ulysses'
local agree = require 'ulysses.agree'
local cases = require 'tests.cases'
local core = require 'ulysses.core'
local weight_parts = require 'ulysses.nn.weight_parts'
local llama3, mistral = require 'recipes.llama3', require 'recipes.mistral'

local STEPS = 4

-- Nothing is a multiple of 3; norms of 36 numbers, and a bias of 2.
local models = {
  llama = { llama3.model, llama3:configure { model = { dim = 36, n_layers = 3, n_heads = 6,
                                                       n_kv_heads = 3, ffn = 50 } } },
  tied = { llama3.model, llama3:configure { model = { dim = 32, n_layers = 2, n_heads = 8,
                                                      n_kv_heads = 2, ffn = 50, tied = true } } },
  mistral = { mistral.model, mistral:configure { model = { dim = 32, n_layers = 2, n_heads = 4,
                                                           n_kv_heads = 4, head_dim = 12, ffn = 50,
                                                           window = 9 } } },
}

local texts = {}
for i = 1, 60 do
  texts[i] = ('%d foxes jump over %d lazy dogs. '):format(i, i * i):rep(1 + i % 4)
end

local function rows(mesh)
  return ul.data.from(texts):tokenize('bytes'):pack(33):batch(12):shuffle({ seed = 1 }):shard(mesh)
end

-- given: which, dtype, steps, dir, offload, freeze, lora, micros
local function train(mesh, given)
  local class, cfg = unpack(models[given.which or 'llama'])
  local model = class(cfg.model, mesh):to(given.dtype or 'f32'):init_weights { seed = 1 }
  if given.freeze then model:freeze(given.freeze) end
  if given.lora then ul.lora.add(model, { rank = 2, seed = 3 }) end
  model.offload = given.offload or false
  local optim = ul.optim.adamw(model, { lr = 3e-3, offload = given.offload })
  local run = ul.run { model = model, optim = optim, data = rows(mesh), dir = given.dir,
                       log_every = 0 }
  local norms = {}
  for step, batch in run:steps(given.steps or STEPS) do
    for micro in batch:micros(given.micros or 2) do model(micro):backward() end
    norms[step] = optim:clip(0.5)
    optim:step()
  end
  return { run = run, losses = run.losses, norms = norms, model = model, optim = optim }
end

local function compare(mine, reference, limit, what)
  local function near(a, b, where)
    assert(math.abs(a - b) <= limit * math.max(1, math.abs(b)),
           ('%s, %s: %.9g, not %.9g'):format(what, where, a, b))
  end
  assert(#mine.losses == #reference.losses, what)
  for step = 1 + (mine.run.resumed or 0), #reference.losses do
    near(mine.losses[step], reference.losses[step], 'loss ' .. step)
    near(mine.norms[step], reference.norms[step], 'norm ' .. step)
  end
  local state = reference.model:state()
  for name, parameter, owner, field in mine.model:named_parameters() do
    local all = weight_parts.gather(weight_parts.of(owner, field), parameter:detach())
    local gap = (all - state[name]:detach()):abs():max():item()
    assert(gap <= limit, ('%s: %s differs by %g'):format(what, name, gap))
  end
end

local function alone() return ul.mesh { group = ul.group():split(ul.group().rank) } end

local function meshes(P)
  local list = {
    [2] = { {}, { sp = 2 }, { tp = 2 } },
    [3] = { { sp = 3 } },
    [4] = { {}, { sp = 4, ring = 2 }, { sp = 2, tp = 2 }, { tp = 2 } },
  }
  return list[P]
end

-- The spec of one file on the number of ranks that it is for.
return function(test, g)
  if not meshes(g.size) then return end
  local function new(ranks)
    local given = { shard = true }
    for name, value in pairs(ranks) do given[name] = value end
    return ul.mesh(given)
  end

  for _, ranks in ipairs(meshes(g.size)) do
    test('losses and weights are those of one rank', function()
      local which = ranks.tp and 'tied' or 'llama'
      local mine = train(new(ranks), { which = which })
      compare(mine, train(alone(), { which = which }), 2e-4, tostring(new(ranks)))
    end)
  end

  test('a layer that no gradient reaches, adapters, offload, a window', function()
    for _, given in ipairs { { freeze = 'layers.1' }, { offload = true }, { lora = true },
                             { which = 'mistral' }, { which = 'tied', offload = true } } do
      compare(train(new {}, given), train(alone(), given), 2e-4, next(given))
    end
  end)

  test('between steps a rank holds its slices, and a unit at most beside them in a step', function()
    core.sharded.release()
    collectgarbage() collectgarbage()
    local before = ul.memory().cpu.live
    local mine = train(new {}, { micros = 1, steps = 2 })
    collectgarbage() collectgarbage()
    local n, numbers = 0, mine.model:n_parameters()
    for _, parameter in mine.model:named_parameters() do n = n + parameter:numel() end
    assert(n <= numbers / g.size + 40 and n >= numbers / g.size - 40, n)
    local held = ul.memory().cpu.live - before -- weights and two moments; rows of 64 bytes, a batch
    assert(held < 12 * n + 40000, ('%d bytes for %d numbers'):format(held, n))
    -- what is used of a weight is whole, and takes no memory before that
    local head, live = mine.model.head.weight, ul.memory().cpu.live
    assert(head:size(2) == 36 and not pcall(head.fill_, head, 0))
    local sum = head:detach():sum():item()
    assert(ul.memory().cpu.live - live >= 4 * head:numel() and sum == sum)
    core.sharded.release()
    collectgarbage()
    assert(ul.memory().cpu.live <= live + 1000, 'not released')
  end)

  test('a step takes one block more than the slices, not the model', function()
    local function peak(mesh)
      collectgarbage() collectgarbage()
      local class, cfg = unpack(models.llama)
      local c = {}
      for name, value in pairs(cfg.model) do c[name] = value end
      c.n_layers, c.dim, c.ffn, c.vocab = 12, 48, 192, 260
      local before = ul.memory().cpu.live
      local model = class(c, mesh):init_weights { seed = 1 }
      ul.reset_peak_memory()
      local batch = ul.data.from(texts):tokenize('bytes'):pack(9):batch(g.size):shard(mesh):at(1)
      ul.scope(function() model(batch):backward() end)
      local bytes = ul.memory().cpu.peak - before
      return bytes, 4 * model:n_parameters()
    end
    local whole, bytes = peak(ul.mesh {})
    local mine = peak(new {})
    -- weights and gradients, but for a slice and the largest unit of both
    assert(mine < whole - 2 * bytes * (1 - 1 / g.size) + bytes / 3,
           ('%d, and %d where weights of %d are whole'):format(mine, whole, bytes))
  end)

  test('a checkpoint is whole, and goes on under any mesh, sharded or not', function()
    local dir = agree.first(g, 'dir', function()
      local path = os.tmpname()
      os.remove(path)
      return path
    end)
    local through = train(alone(), { steps = 6 })
    for i, order in ipairs { { new {}, ul.mesh {} }, { ul.mesh {}, new {} },
                             { new {}, new { sp = g.size } } } do
      local here = ('%s-%d'):format(dir, i)
      train(order[1], { steps = 3, dir = here }).run:save()
      local mine = train(order[2], { steps = 6, dir = here })
      assert(mine.run.resumed == 3)
      compare(mine, through, 2e-4, 'gone on, ' .. i)
      agree.first(g, 'tidy', function() core.path_remove(here) end)
    end
  end)

  test('tied by field, given by tensor, cast and back, set anew: as whole ones', function()
    local Tied = ul.nn.class 'Tied'
    function Tied:init(mesh)
      self.embed, self.norm = ul.nn.Embedding(9, 5), ul.nn.RMSNorm(2 * g.size)
      self.head = ul.nn.Linear(5, 9)
      self.head.weight = self.embed.weight
      for _, module in ipairs { self.embed, self.norm, self.head } do module:shard(mesh) end
    end
    function Tied:forward(x)
      local h = x:matmul(self.head.weight):matmul(self.embed.weight:t()):narrow(2, 1, 2 * g.size)
      return self.norm(h:tanh()):square():sum()
    end
    local function norms(mesh, trained)
      local model = Tied(mesh):init_weights { seed = 3 }
      local x = ul.randn(4, 9)
      ul.no_grad(model, x)
      model:to('bf16'):to('f32') -- other memory, and nothing used it as bf16
      local optim, list = ul.optim.adamw(trained(model), { mesh = mesh, lr = 0.1 }), {}
      for step = 1, 4 do
        if step == 3 then
          model.norm.weight = ul.nn.parameter(ul.ones(2 * g.size) * 2)
          optim = ul.optim.adamw(trained(model), { mesh = mesh, lr = 0.1 })
        end
        model(x):backward()
        list[step] = optim:clip(1)
        optim:step()
      end
      return list
    end
    for _, trained in ipairs { function(model) return model end,
                               function(model) return model:parameters() end,
                               function(model) return { model.norm:parameters()[1] } end } do
      ul.manual_seed(1)
      local mine = norms(new {}, trained)
      ul.manual_seed(1)
      for step, norm in ipairs(norms(ul.mesh {}, trained)) do
        assert(math.abs(mine[step] - norm) < 1e-4 * norm,
               ('norm %d is %.9g, not %.9g'):format(step, mine[step], norm))
      end
    end
    -- what cannot be meant
    local model, other = ul.nn.Linear(4, 4):shard(new {}), ul.nn.Linear(4, 4)
    local function refuses(words, f, ...)
      local ok, problem = pcall(f, ...)
      assert(not ok and tostring(problem):find(words, 1, true), tostring(problem))
    end
    refuses('before :shard()', function() other.weight = model.weight end)
    refuses('comes and goes', model.weight.data, model.weight)
    local optim = ul.optim.adamw(other, { mesh = new {} })
    other:shard(new {})
    other(ul.ones(1, 4)):sum():backward()
    refuses('cut by :shard()', optim.step, optim)
  end)

  test('every op takes weights that are not there', function()
    if g.size > 3 then return end
    local function slice_of(x)
      local all = x:contiguous():view(-1)
      local sizes = {}
      for r = 0, g.size - 1 do
        sizes[r + 1] = math.floor(x:numel() / g.size) + (r < x:numel() % g.size and 1 or 0)
      end
      return weight_parts.slice({ group = g, sizes = sizes }, all):clone()
    end
    local function inputs(case, sharded)
      local list, mine = {}, {}
      for i, spec in ipairs(case.inputs) do
        local x = cases.make(spec)
        list[i] = x
        if cases.is_float(spec) and not (i == 1 and case.without.gradcheck == 'in_place') then
          local leaf = sharded and slice_of(x) or x
          if cases.is_differentiable(case) then leaf:requires_grad_() end
          if sharded then
            local whole = core.sharded.whole(g, leaf, x.shape, core.sharded.unit())
            list[i] = core.sharded.use(whole, leaf)
          end
          mine[#mine + 1] = leaf
        end
      end
      return list, mine
    end
    local function results(case, sharded)
      ul.manual_seed(1)
      local list, mine = inputs(case, sharded)
      local given = cases.results(case.call(unpack(list)))
      local values = {}
      for i, y in ipairs(given) do
        values[i] = y:detach():to('f64')
        if y.requires_grad then y:backward(cases.seed(y):to(y:dtype()), { retain = i < #given }) end
      end
      for i, x in ipairs(mine) do
        values[#given + i] = x.grad
          and (sharded and x.grad or slice_of(x.grad) * g.size):to('f64') or ul.zeros({ 1 })
      end
      return values
    end
    for _, case in ipairs(cases.list) do
      if case.op ~= 'empty' and case.op ~= 'empty_like' then
        ul.scope(function()
          local whole, mine = results(case, false), results(case, true)
          for i, y in ipairs(whole) do
            local a, b = y:contiguous():view(-1):tolist(), mine[i]:contiguous():view(-1):tolist()
            assert(#a == #b, case.name)
            for k = 1, #a do
              local near = 1e-9 * (1 + math.abs(a[k]))
              assert(a[k] == b[k] or a[k] ~= a[k] or math.abs(a[k] - b[k]) < near,
                     ('%s: result %d is %.9g, not %.9g'):format(case.name, i, b[k], a[k]))
            end
          end
        end)
      end
    end
  end)

  test('the same bits as with whole weights', function()
    for _, dtype in ipairs { 'f32', 'bf16' } do
      local given = { micros = 1, dtype = dtype, steps = 3 }
      local mine, whole = train(new {}, given), train(ul.mesh {}, given)
      for step = 1, #whole.losses do
        assert(mine.losses[step] == whole.losses[step],
               ('%s: loss %d is %.9g, not %.9g'):format(dtype, step, mine.losses[step],
                                                         whole.losses[step]))
      end
    end
  end)
end
