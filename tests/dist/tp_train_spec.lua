-- tp_train_spec.lua - runs whose ranks share weights: trained, written and gone on with as by one.
local ul = require 'ulysses'
local agree = require 'ulysses.agree'
local core = require 'ulysses.core'
local weight_parts = require 'ulysses.nn.weight_parts'
local llama3, mistral = require 'recipes.llama3', require 'recipes.mistral'

local STEPS = 20

local settings = {
  -- 8 ranks cut the query heads of 2 kv heads; 3 ranks have whole ones
  llama = llama3:configure { model = { dim = 32, n_layers = 2, n_heads = 8, n_kv_heads = 2,
                                       ffn = 50, tied = true } },
  odd = llama3:configure { model = { dim = 36, n_layers = 1, n_heads = 6, n_kv_heads = 3,
                                     ffn = 50 } },
  mistral = mistral:configure { model = { dim = 32, n_layers = 1, n_heads = 4, n_kv_heads = 4,
                                          head_dim = 12, ffn = 50, window = 9 } },
}
local models = { llama = llama3.model, odd = llama3.model, mistral = mistral.model }

-- Documents end within rows, and no length of a row is a multiple of ranks.
local texts = {}
for i = 1, 40 do
  texts[i] = ('%d foxes jump over %d lazy dogs. '):format(i, i * i):rep(1 + i % 4)
end

local function rows(mesh)
  return ul.data.from(texts):tokenize('bytes'):pack(33):batch(4):shuffle({ seed = 1 }):shard(mesh)
end

local kinds = {
  sgd = function(model) return ul.optim.sgd(model, { lr = 0.1, momentum = 0.9 }) end,
  adamw = function(model) return ul.optim.adamw(model, { lr = 3e-3 }) end,
}

-- A run on a mesh. given: which, kind, steps, dir
local function train(mesh, given)
  local which = given.which or 'llama'
  local model = models[which](settings[which].model, mesh):init_weights { seed = 1 }
  local optim = kinds[given.kind or 'adamw'](model)
  local run = ul.run { model = model, optim = optim, data = rows(mesh), dir = given.dir,
                       log_every = 0 }
  local norms = {}
  for step, batch in run:steps(given.steps or STEPS) do
    for micro in batch:micros(2) do model(micro):backward() end
    norms[step] = optim:clip(0.5)
    optim:step()
  end
  return { run = run, losses = run.losses, norms = norms, model = model }
end

-- All ranks call it: weights that they share are gathered.
local function compare(mine, reference, limit, what)
  local function near(a, b, where)
    assert(math.abs(a - b) <= limit * math.max(1, math.abs(b)),
           ('%s, %s: %.9g, not %.9g'):format(what, where, a, b))
  end
  assert(#mine.losses == #reference.losses, what)
  local clipped = false
  for step = 1 + (mine.run.resumed or 0), #reference.losses do
    near(mine.losses[step], reference.losses[step], 'loss ' .. step)
    near(mine.norms[step], reference.norms[step], 'norm ' .. step)
    clipped = clipped or reference.norms[step] > 0.5
  end
  assert(clipped, 'nothing was clipped')
  local state = reference.model:state()
  for name, parameter, owner, field in mine.model:named_parameters() do
    local all = weight_parts.gather(weight_parts.of(owner, field), parameter:detach())
    local gap = (all - state[name]:detach()):abs():max():item()
    assert(gap <= limit, ('%s: %s differs by %g'):format(what, name, gap))
  end
end

-- What goes with so many ranks.
local function meshes(P)
  local list = {
    [2] = { { tp = 2 } },
    [4] = { { tp = 4 }, { tp = 2, sp = 2 }, { tp = 2 } },
    [8] = { { tp = 8 }, { tp = 2, sp = 4 } },
  }
  return list[P] or {}
end

local function name_of(mesh) return tostring(mesh):match ': (.*), this' end

local function parity(test, g, alone)
  local references = {}
  local function reference(kind)
    references[kind] = references[kind] or train(alone, { kind = kind })
    return references[kind]
  end
  for _, given in ipairs(meshes(g.size)) do
    for _, kind in ipairs { 'sgd', 'adamw' } do
      local mesh = ul.mesh(given)
      test(('training equals one rank: %s, %s'):format(name_of(mesh), kind), function()
        compare(train(mesh, { kind = kind }), reference(kind), 1e-5, name_of(mesh))
      end)
    end
  end
  for _, which in ipairs { 'odd', 'mistral' } do
    if g.size == (which == 'odd' and 3 or 4) then
      test('training equals one rank: ' .. which, function()
        local mesh = ul.mesh { tp = g.size }
        compare(train(mesh, { which = which, kind = 'sgd' }),
                train(alone, { which = which, kind = 'sgd' }), 1e-5, which)
      end)
    end
  end
  test('evaluation and samples equal one rank', function()
    local mesh = ul.mesh { tp = g.size }
    local function results(on)
      local trained = train(on, { steps = 3, which = g.size == 3 and 'odd' or 'llama' })
      local held_out = ul.data.from(texts):tokenize('bytes'):pack(20):batch(3)
      return trained.run:eval(held_out), trained.run:sample('7 foxes', { n = 12, context = 9 })
    end
    local loss, text = results(mesh)
    local want, expected = results(alone)
    assert(math.abs(loss - want) < 1e-5 and text == expected, text)
  end)
end

-- The same new folder on all ranks.
local function with_folder(g, f)
  local folder = agree.first(g, 'a folder', function()
    local name = os.tmpname()
    os.remove(name)
    return name
  end)
  local ok, problem = pcall(f, folder)
  g:barrier()
  if g.rank == 0 then core.path_remove(folder) end
  assert(ok, problem)
end

local function checkpoints(test, g, alone)
  test('a run goes on under any mesh, as if it were one', function()
    local P = g.size
    if P ~= 2 and P ~= 4 then return end
    local reference = train(alone, { steps = 8 })
    with_folder(g, function(dir)
      train(ul.mesh { tp = P }, { steps = 2, dir = dir })
      if g.rank == 0 then
        local one = train(alone, { steps = 4, dir = dir })
        assert(one.run.resumed == 2)
        local file = ul.safetensors.open(dir .. '/step-4/model.safetensors')
        local weight = file:get('layers.1.attention.wq.weight')
        assert(weight:size(1) == 32 and weight:size(2) == 32)
      end
      g:barrier()
      train(ul.mesh { sp = P }, { steps = 6, dir = dir })
      local last = train(P == 4 and ul.mesh { tp = 2, sp = 2 } or ul.mesh { tp = 2 },
                         { steps = 8, dir = dir })
      assert(last.run.resumed == 6)
      compare(last, reference, 1e-5, 'resumed')
    end)
  end)
end

return function(test, g)
  local alone = ul.mesh { group = g:split(g.rank) }
  parity(test, g, alone)
  checkpoints(test, g, alone)
end
