-- run_spec.lua - ul.run over a mesh: what one rank trains, evaluates, saves and goes on with.
local ul = require 'ulysses'
local agree = require 'ulysses.agree'
local core = require 'ulysses.core'
local json = require 'ulysses.json'
local metrics = require 'ulysses.metrics'
local recipe = require 'recipes.llama3'
local whole = require 'ulysses.checkpoint.whole'

local STEPS = 20

local settings = recipe:configure {
  model = { dim = 32, n_layers = 1, n_heads = 8, n_kv_heads = 2, ffn = 48 },
}

-- Documents end within rows, and no length of a row is a multiple of ranks.
local texts = {}
for i = 1, 40 do
  texts[i] = ('%d foxes jump over %d lazy dogs. '):format(i, i * i):rep(1 + i % 4)
end

local function rows(length, size)
  return ul.data.from(texts):tokenize('bytes'):pack(length):batch(size)
end

local kinds = {
  sgd = function(model) return ul.optim.sgd(model, { lr = 0.1, momentum = 0.9 }) end,
  adamw = function(model) return ul.optim.adamw(model, { lr = 3e-3 }) end,
}

-- A run on a mesh. given: kind, data, dir, steps, accumulate, clip, seed, each(step, run, loss)
local function train(mesh, given)
  local model = recipe.model(settings.model, mesh):init_weights { seed = given.seed or 1 }
  local optim = kinds[given.kind or 'adamw'](model)
  local data = given.data or rows(33, 5):shuffle { seed = 1 }:shard(mesh)
  local run = ul.run { model = model, optim = optim, data = data, dir = given.dir, log_every = 0 }
  local norms = {}
  for step, batch in run:steps(given.steps or STEPS) do
    for micro in batch:micros(given.accumulate or 1) do
      local loss = model(micro)
      if given.spoil then loss = given.spoil(step, loss) end
      loss:backward()
    end
    norms[step] = optim:clip(given.clip or 0.5)
    optim:step()
    if given.each then given.each(step, run) end
  end
  return { run = run, losses = run.losses, norms = norms, model = model, optim = optim }
end

-- What so many ranks may share: sequences, rows (three ways at most), weights.
local function meshes(P)
  local list = {}
  for sp = 1, P do
    if P % sp == 0 and P / sp <= 3 then list[#list + 1] = ul.mesh { sp = sp } end
  end
  if P % 2 == 0 then list[#list + 1] = ul.mesh { sp = P / 2, tp = 2 } end
  return list
end

local function name_of(mesh)
  return ('sp %d, dp %d, tp %d'):format(mesh.sizes.ulysses, mesh.sizes.dp, mesh.sizes.tp)
end

local function near(a, b, limit, what)
  assert(math.abs(a - b) <= limit, ('%s: %.9g, not %.9g'):format(what, a, b))
end

local function compare(mine, reference, limit, what)
  assert(#mine.losses == #reference.losses, what)
  for step, loss in ipairs(reference.losses) do
    if not mine.run.resumed or step > mine.run.resumed then
      near(mine.losses[step], loss, limit * math.max(1, loss), what .. ', loss ' .. step)
      near(mine.norms[step], reference.norms[step], limit, what .. ', norm ' .. step)
    end
  end
  local others = whole.of_model(reference.model)
  for i, one in ipairs(whole.of_model(mine.model)) do
    local gap = (whole.gather(one) - others[i].tensor):detach():abs():max():item()
    assert(gap <= limit, ('%s: %s differs by %g'):format(what, one.name, gap))
  end
end

-- Every rank has these very numbers.
local function same_on_all(g, numbers, what)
  local all = g:all_gather(ul.tensor({ numbers }, { dtype = 'f64' })):tolist()
  for rank = 2, g.size do
    for i, number in ipairs(all[1]) do
      assert(all[rank][i] == number or number ~= number,
             ('%s: %.17g on rank 0, %.17g on rank %d'):format(what, number, all[rank][i], rank - 1))
    end
  end
end

local function weights(model)
  local list = {}
  for _, one in ipairs(whole.of_model(model)) do
    local values = whole.gather(one):detach():reshape(-1):tolist()
    for _, value in ipairs(values) do list[#list + 1] = value end
  end
  return list
end

-- The sentence of what f refuses or raises.
local function refusal(f)
  local ok, problem = pcall(f)
  assert(not ok, 'nothing was refused')
  return tostring(problem)
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

-- ---- training ----

local function parity(test, g, alone)
  for _, kind in ipairs { 'sgd', 'adamw' } do -- pairs() has an order of its own on each rank
    local reference
    for _, mesh in ipairs(meshes(g.size)) do
      for _, accumulate in ipairs { 1, 3 } do
        local what = ('%s, accumulate %d, %s'):format(name_of(mesh), accumulate, kind)
        test('training equals one rank: ' .. what, function()
          if accumulate * mesh.sizes.dp > 5 then return end
          reference = reference or train(alone, { kind = kind })
          local mine = train(mesh, { kind = kind, accumulate = accumulate })
          compare(mine, reference, 1e-5, what)
          assert(mine.norms[1] > 0.5, 'nothing was clipped')
          same_on_all(g, mine.losses, 'losses')
          same_on_all(g, mine.norms, 'norms')
          same_on_all(g, weights(mine.model), 'weights')
        end)
      end
    end
  end

  -- Rows of which the first half has no label, and some have none at all.
  local function sparse(mesh)
    return { mesh = mesh, at = function(_, k)
      local inputs, targets = {}, {}
      for b = 1, 3 do
        inputs[b], targets[b] = {}, {}
        for t = 1, 13 do
          inputs[b][t] = (7 * b + 3 * t + k) % 250
          targets[b][t] = (t > 7 and b ~= 2) and (5 * b + t + k) % 250 or -100
        end
      end
      return ul.data.batch(ul.tensor(inputs, { dtype = 'i64' }),
                           ul.tensor(targets, { dtype = 'i64' })):shard(mesh)
    end }
  end
  test('ranks without a label count for nothing', function()
    local reference = train(alone, { data = sparse(alone), kind = 'sgd', steps = 4 })
    for _, mesh in ipairs(meshes(g.size)) do
      local mine = train(mesh, { data = sparse(mesh), kind = 'sgd', steps = 4 })
      compare(mine, reference, 1e-5, name_of(mesh))
    end
  end)

  test('a step that is bad on one rank is skipped on all', function()
    local mesh = ul.mesh { sp = g.size }
    local function spoil(step, loss)
      return step >= 3 and g.rank == g.size - 1 and loss * (0 / 0) or loss
    end
    local before
    local sentence = refusal(function()
      train(mesh, { spoil = spoil, each = function(step, run)
        if step == 2 then before = weights(run.model) end
        assert(run.optim.skipped == (step >= 3))
        if step >= 3 then
          for i, value in ipairs(weights(run.model)) do assert(value == before[i]) end
        end
      end })
    end)
    assert(sentence:find('not finite in 5 steps in a row, up to step 7', 1, true), sentence)
  end)
end

-- ---- the record ----

local function records(test, g, alone)
  test('the record is of all ranks together', function()
    for _, mesh in ipairs(meshes(g.size)) do
      with_folder(g, function(dir)
        -- no other rank has to do with the folder: it need not be there
        local here = g.rank == 0 and dir or '/dev/null/nowhere'
        local alone_flops, flops, peak = {}, {}, 0
        local function note(list)
          return function(step) list[step] = ul.flops() end
        end
        ul.reset_peak_memory()
        train(alone, { steps = 3, each = note(alone_flops) })
        local run = train(mesh, { steps = 3, dir = here, each = function(step)
          flops[step], peak = ul.flops(), ul.memory('cpu').peak
        end }).run
        assert(run.tokens == 3 * 5 * 33)
        local sums = g:all_reduce(ul.tensor({ flops[3] - flops[2], run.peak }, { dtype = 'f64' }))
        local most = g:all_reduce(ul.tensor({ peak }, { dtype = 'f64' }), { op = 'max' }):item()
        same_on_all(g, { run.peak }, 'the peak')
        near(sums[1]:item() / (alone_flops[3] - alone_flops[2]), 1, 0.05, 'FLOP')
        if g.rank > 0 then
          assert(not run.metrics and not run.lock)
        else
          local list = metrics.read(dir .. '/metrics.jsonl')
          assert(#list == 3)
          local last = list[3]
          near(last.flops_per_s / last.tokens_per_s, sums[1]:item() / (5 * 33), 1e-3, 'FLOP/token')
          assert(last.peak_bytes >= most, 'the peak of one rank')
          local text = json.decode(io.open(dir .. '/run.json'):read '*a').ranks
          assert(g.size == 1 and not text or text:find('^' .. g.size .. ' ranks %('), text)
        end
      end)
    end
  end)
end

-- ---- evaluation and samples ----

local function evaluation(test, g, alone)
  test('an evaluation equals one rank', function()
    -- whatever the batches: with few rows for the ranks, or few tokens
    local one, shapes = train(alone, { steps = 1 }).run, { { 33, 24 }, { 300, 1 }, { 3, 500 } }
    local wanted = {}
    for i, shape in ipairs(shapes) do wanted[i] = one:eval(rows(unpack(shape))) end
    for _, mesh in ipairs(meshes(g.size)) do
      local many = train(mesh, { steps = 1 }).run
      for i, shape in ipairs(shapes) do
        local data = rows(unpack(shape))
        local what = ('%s, rows of %d by %d'):format(name_of(mesh), unpack(shape))
        local loss, perplexity = many:eval(data)
        near(loss, wanted[i], 1e-6 * wanted[i], what)
        near(perplexity, math.exp(loss), 0, what)
        assert(data.mesh == nil)
        if i == 1 then near(many:eval(data:shard(mesh)), loss, 0, what) end
        same_on_all(g, { loss }, what)
      end
    end
  end)
  test('a sample is the same on all ranks', function()
    local one = train(alone, { steps = 4 }).run
    for _, mesh in ipairs(meshes(g.size)) do
      local many = train(mesh, { steps = 4 }).run
      for _, prompt in ipairs { '', 'a', 'some more foxes' } do
        local text = many:sample(prompt, { n = 8 })
        assert(text == one:sample(prompt, { n = 8 }))
        same_on_all(g, { text:byte(1, -1) }, 'text')
      end
    end
  end)
end

-- ---- checkpoints ----

-- A run of `first` steps under a mesh, and to the end under others, one after the other.
local function resuming(test, g, alone)
  test('a run goes on under any mesh', function()
    local list = meshes(g.size)
    table.insert(list, list[1]) -- the first again, and then one rank
    local reference = train(alone, { steps = 2 * #list + 2 })
    with_folder(g, function(dir)
      for i, mesh in ipairs(list) do
        local mine = train(mesh, { steps = 2 * i, dir = dir, seed = i })
        assert(mine.run.resumed == (i > 1 and 2 * i - 2 or nil))
        assert(#mine.losses == 2 * i)
        for step = 2 * i - 1, 2 * i do
          near(mine.losses[step], reference.losses[step], 5e-5, name_of(mesh))
          near(mine.norms[step], reference.norms[step], 1e-5, name_of(mesh))
        end
        same_on_all(g, mine.losses, 'losses')
        assert(mine.run.tokens == 2 * i * 5 * 33)
        assert(mine.run.lock == nil or g.rank == 0)
        if mine.run.lock then mine.run.lock:release() end
      end
      if g.rank > 0 then return end
      local mine = train(alone, { steps = 2 * #list + 2, dir = dir, seed = 9 })
      compare(mine, reference, 5e-5, 'one rank')
    end)
  end)
  local function draw() ul.rand(3) end
  test('a run goes on bit for bit under the same mesh', function()
    for _, mesh in ipairs(meshes(g.size)) do
      ul.manual_seed(5)
      local undisturbed = train(mesh, { steps = 6, each = draw })
      local seed, number = ul.random_state()
      with_folder(g, function(dir)
        ul.manual_seed(5)
        train(mesh, { steps = 3, dir = dir, each = draw })
        ul.manual_seed(99)
        local mine = train(mesh, { steps = 6, dir = dir, seed = 2, each = draw })
        local seed_now, number_now = ul.random_state()
        assert(seed == seed_now and number == number_now, 'random numbers')
        for step = 4, 6 do assert(mine.losses[step] == undisturbed.losses[step]) end
        local list = weights(mine.model)
        for i, value in ipairs(weights(undisturbed.model)) do assert(list[i] == value) end
      end)
    end
  end)
  test('what the first rank refuses, all refuse', function()
    local mesh = ul.mesh()
    local model = recipe.model(settings.model, mesh)
    local data = rows(33, 8):shard(mesh)
    for dir, words in pairs { ['/dev/null/x'] = '/dev/null' } do
      local sentence = refusal(function() ul.run { model = model, data = data, dir = dir } end)
      assert(sentence:find(words, 1, true), sentence)
    end
    with_folder(g, function(dir)
      train(mesh, { steps = 1, dir = dir, data = data })
      local sentence = refusal(function()
        train(mesh, { steps = 2, dir = dir, data = rows(32, 8):shard(mesh) })
      end)
      assert(sentence:find('was trained on rows of 33 tokens, not 32', 1, true), sentence)
      -- the disk is full
      if g.rank == 0 then ul.debug.fail_write(4, 'ENOSPC') end
      sentence = refusal(function() train(mesh, { steps = 2, dir = dir, data = data }) end)
      if g.rank == 0 then ul.debug.fail_write(0) end
      assert(sentence:find('No space left on device', 1, true), sentence)
      -- and another model
      sentence = refusal(function()
        ul.checkpoint.load(dir, { model = ul.nn.Linear(2, 3), mesh = mesh })
      end)
      assert(sentence:find("parameter 'weight' [3, 2] of the model is not in", 1, true), sentence)
    end)
  end)
end

local function parts(test, g)
  test('a checkpoint holds whole weights', function()
    local P, r = g.size, g.rank
    local Part = ul.nn.class 'Part'
    function Part:init(dim, group)
      local sizes = {}
      for rank = 1, P do sizes[rank] = rank end
      self.parallel = { weight = { dim = dim, group = group, sizes = sizes } }
      self.bias = ul.full({ 3 }, 7):requires_grad_(true)
      local shape = { 4, 5 }
      shape[dim] = r + 1
      self.weight = ul.full(shape, r):requires_grad_(true)
    end
    for dim = 1, 2 do
      with_folder(g, function(dir)
        local model = Part(dim, g)
        local optim = ul.optim.sgd(model, { momentum = 0.9, mesh = ul.mesh { tp = P } })
        for name, tensor in optim:named_state() do
          if name == 'weight.velocity' then tensor:copy_(model.weight:detach() + 50) end
        end
        ul.checkpoint.save(dir, 3, { model = model, optim = optim })
        g:barrier()
        local path, offset = dir .. '/step-3/', 1
        local weight = ul.safetensors.open(path .. 'model.safetensors'):get 'weight'
        assert(weight:size(dim) == P * (P + 1) / 2)
        for rank = 0, P - 1 do
          local part = weight:narrow(dim, offset, rank + 1)
          assert(part:ne(rank):to('i64'):sum():item() == 0)
          offset = offset + rank + 1
        end
        local other = Part(dim, g)
        ul.no_grad(function() other.weight:fill_(-1) end)
        local another = ul.optim.sgd(other, { momentum = 0.9, mesh = ul.mesh { tp = P } })
        assert(ul.checkpoint.load(dir, { model = other, optim = another }).step == 3)
        assert(other.weight:detach():ne(r):to('i64'):sum():item() == 0)
        for name, tensor in another:named_state() do
          if name == 'weight.velocity' then
            assert(tensor:ne(r + 50):to('i64'):sum():item() == 0)
          end
        end
        if P > 1 then
          local sentence = refusal(function() ul.checkpoint.save(dir, 4, { model = model }) end)
          assert(sentence:find('ranks hold parts of these weights', 1, true), sentence)
        end
      end)
    end
  end)
end

-- ---- what is refused ----

local function refused(test, g, alone)
  test('ranks that would train apart are refused', function()
    local model = recipe.model(settings.model, alone)
    local data = rows(33, 8)
    if g.size > 1 then
      local sentence = refusal(function() ul.run { model = model, data = data } end)
      assert(sentence:find(('write data:shard(mesh), with mesh = ul.mesh { sp = %d }'):format(
        g.size), 1, true), sentence)
    end
    ul.run { model = model, data = data, optim = ul.optim.sgd(model, { mesh = false }) }
    local mesh = ul.mesh()
    if g.size > 1 then
      local other = rows(33, 8):shard(ul.mesh { sp = g.size })
      local sentence = refusal(function() ul.run { model = model, data = other } end)
      assert(sentence:find('the model was made with another mesh', 1, true), sentence)
    end
    local sentence = refusal(function()
      ul.run { model = model, data = data:shard(mesh),
               optim = ul.optim.sgd(model, { mesh = ul.mesh() }) }
    end)
    assert(sentence:find('shared by another mesh', 1, true), sentence)
    local run = ul.run { model = model, data = data }
    assert(run.mesh == mesh)
    if g.size > 1 then
      local name = g.rank == 1 and 'b' or 'a'
      local other = ul.data.from({ name:rep(300) }):tokenize('bytes'):pack(9):batch(8):shard(mesh)
      sentence = refusal(function() ul.run({ model = model, data = other }):steps(1) end)
      assert(sentence:find('the data of rank 1 are not those of rank 0', 1, true), sentence)
    end
    sentence = refusal(function() run:eval(rows(33, 8):shard(ul.mesh())) end)
    assert(sentence:find('shared by another mesh', 1, true), sentence)
    sentence = refusal(function() run:eval { once = function() end } end)
    assert(sentence:find('cannot be shared among ranks', 1, true), sentence)
  end)
  test('ranks that were stopped at different places do not go on', function()
    if g.size == 1 then return end
    local trained = train(ul.mesh(), { steps = 2, data = rows(33, 8):shard(ul.mesh()) })
    if g.rank == g.size - 1 then trained.optim.steps = 1 end
    local sentence = refusal(function() trained.run:steps(4) end)
    local words = 'rank %d has left the loop behind step 2 and update 1 of the weights, and rank 0 '
      .. 'behind step 2 and update 2'
    assert(sentence:find(words:format(g.size - 1), 1, true), sentence)
  end)
end

return function(test, g)
  local alone = ul.mesh { group = g:split(g.rank) }
  parity(test, g, alone)
  records(test, g, alone)
  evaluation(test, g, alone)
  resuming(test, g, alone)
  parts(test, g)
  refused(test, g, alone)
end
