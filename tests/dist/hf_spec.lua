-- hf_spec.lua - published models on several ranks: loaded by their parts, saved whole, writing and
-- learning what one rank does.
local agree = require 'ulysses.agree'
local json = require 'ulysses.json'
local models = require 'tests.hf_models'
local ul = require 'ulysses'
local weight_parts = require 'ulysses.nn.weight_parts'

local function same(expected, got, what)
  local a, b = json.encode(expected), json.encode(got)
  if a ~= b then error(('%s: %s instead of %s'):format(what or 'a list', b, a), 2) end
end

local function near(expected, got, tolerance, what)
  if not (math.abs(expected - got) <= tolerance) then
    error(('%s: %.9g instead of %.9g'):format(what, got, expected), 2)
  end
end

-- The ways in which so many ranks may share a model with 4 heads, of which 2 are kv heads.
local function meshes(n)
  local list = { { sp = n } }
  if n == 2 or n == 4 then list[2] = { tp = n } end
  if n == 4 then
    list[3] = { sp = 2, tp = 2 }
    list[4] = { sp = 4, ring = 2 }
    list[5] = { sp = 2, tp = 2, shard = true }
  end
  if n == 2 or n == 3 then list[#list + 1] = { sp = n, shard = true } end
  return list
end

local function greedy(n) return { n = n, temperature = 0, eos = false, context = 300 } end

local function first_of(list, n) return { unpack(list, 1, n) } end

-- This rank's tokens of the golden batch, and its share of the loss.
local function share_of(mesh)
  local whole = models.batch()
  local share = { denominator = whole.denominator }
  share.inputs, share.targets = mesh:slice(whole.inputs), mesh:slice(whole.targets)
  share.positions = mesh:slice(ul.arange(models.T), 1)
  function share:mean(sum)
    self.loss = sum / self.denominator
    return self.loss
  end
  return share
end

return function(test, g)
  local group, colors = g.size > 1 and g or nil, {}
  for rank = 1, g.size do colors[rank] = rank end
  local one = g:split(colors) -- each rank by itself
  local function alone() return ul.mesh { group = one } end
  local parent = agree.first(group, 'a folder', models.new_folder)
  local function make(name) return agree.first(group, 'a model', models.make, parent, name) end

  test('writes on these ranks what one rank writes', function()
    local prompts = { { 3, 1, 4, 1, 5, 9, 2, 6, 5 }, { 8, 8, 8 } }
    for _, name in ipairs { 'mistral', 'llama31' } do
      local long = g.size == 4 and name == 'mistral' and 256 or 12
      local folder = make(name)
      local expected = ul.hf.load(folder, { mesh = alone() }):generate(prompts, greedy(long))
      for i, given in ipairs(meshes(g.size)) do
        local n = i == 1 and long or 12
        local got = ul.hf.load(folder, { mesh = given }):generate(prompts, greedy(n))
        for k = 1, 2 do same(first_of(expected[k], n), got[k], name) end
      end
    end
  end)

  test('is sampled alike on all ranks', function()
    local folder, how = make 'qwen3', { n = 12, temperature = 2, seed = 7, eos = false }
    local expected = ul.hf.load(folder, { mesh = alone() }):generate({ 1, 2, 3 }, how)
    local model = ul.hf.load(folder, { mesh = { sp = g.size } })
    same(expected, model:generate({ 1, 2, 3 }, how))
  end)

  test('is loaded by its parts and saved whole', function()
    for _, name in ipairs { 'llama_biases', 'qwen3' } do
      local folder, out = make(name), parent .. '/out'
      local whole = ul.hf.load(folder, { mesh = alone() })
      for _, given in ipairs(meshes(g.size)) do
        ul.hf.save(out, ul.hf.load(folder, { mesh = given }), nil, { shard = 30000 })
        local state = ul.hf.load(out, { mesh = alone() }):state()
        for key, parameter in whole:named_parameters() do
          same(parameter:tolist(), state[key]:tolist(), key)
        end
        g:barrier()
      end
    end
  end)

  test('has the loss and the gradients of one rank', function()
    for _, name in ipairs { 'llama_biases', 'dynamic', 'qwen3' } do
      local folder = make(name)
      local whole = ul.hf.load(folder, { mesh = alone() })
      whole(models.batch()):backward()
      local state = whole:state()
      for i, given in ipairs(meshes(g.size)) do
        local model = ul.hf.load(folder, { mesh = given, recompute = i % 2 == 0,
                                              offload = i % 3 == 0 })
        local optim = ul.optim.sgd(model, { lr = 0.1, mesh = model.mesh })
        local share = share_of(model.mesh)
        model(share):backward()
        local loss = model.mesh.sequence:all_reduce(share.loss:detach()):item()
        near(models.golden[name].loss, loss, 1e-5, 'the loss')
        optim:clip(1e9) -- gradients are summed over the ranks
        for key, parameter, owner, field in model:named_parameters() do
          local expected = weight_parts.cut(weight_parts.of(owner, field), state[key].grad)
          near(0, (parameter.grad - expected):abs():max():item(), 2e-5, key)
        end
      end
    end
  end)

  test('has adapters that ranks share, merged and saved whole', function()
    local folder, out = make 'llama_biases', parent .. '/adapter'
    local function adapted(mesh)
      local model = ul.lora.add(ul.hf.load(folder, { mesh = mesh }), { rank = 3 })
      ul.manual_seed(4)
      ul.no_grad(function()
        for name, parameter, owner, field in model:named_parameters() do
          if name:find 'lora_b$' then
            local part = weight_parts.of(owner, field)
            local whole = ul.randn(weight_parts.shape(part, parameter)) * 0.05
            parameter:copy_(weight_parts.cut(part, whole))
          end
        end
      end)
      return model
    end
    local whole = adapted(alone())
    whole(models.batch()):backward()
    local state, prompt = whole:state(), { 3, 1, 4, 1, 5 }
    local said = whole:generate(prompt, greedy(9))
    for _, given in ipairs(meshes(g.size)) do
      local model = adapted(given)
      local optim = ul.optim.sgd(model, { lr = 0.1, mesh = model.mesh })
      model(share_of(model.mesh)):backward()
      optim:clip(1e9)
      for key, parameter, owner, field in model:named_parameters() do
        local part = weight_parts.of(owner, field)
        near(0, (parameter:detach() - weight_parts.cut(part, state[key]:detach())):abs():max()
             :item(), 0, key)
        if parameter.requires_grad then
          local expected = weight_parts.cut(part, state[key].grad)
          near(0, (parameter.grad - expected):abs():max():item(), 1e-5, key)
        end
      end
      ul.lora.save(out, model)
      same(said, ul.hf.load(folder, { mesh = alone(), adapter = out }):generate(prompt, greedy(9)))
      same(said, ul.hf.load(folder, { mesh = given, adapter = out }):generate(prompt, greedy(9)))
      g:barrier()
      ul.hf.save(parent .. '/out', model)
      same(said, ul.hf.load(parent .. '/out', { mesh = alone() }):generate(prompt, greedy(9)))
      ul.lora.merge(model)
      same(said, model:generate(prompt, greedy(9)))
      g:barrier()
    end
  end)

  test('has the preferences of one rank, and their gradients', function()
    local folder = make 'llama31'
    local function loss_of(model, batch)
      local scores = ul.preference.log_probs(model, batch) -- the first row is the chosen one
      local policy = { chosen = scores:narrow(1, 1, 1), rejected = scores:narrow(1, 2, 1) }
      local constant = ul.tensor { -100 }
      return ul.preference.dpo(policy, { chosen = constant, rejected = constant },
                               { mesh = model.mesh })
    end
    local whole = ul.hf.load(folder, { mesh = alone() })
    local expected, seen = loss_of(whole, models.batch())
    expected:backward()
    local state = whole:state()
    for _, given in ipairs(meshes(g.size)) do
      local model = ul.hf.load(folder, { mesh = given })
      local optim = ul.optim.sgd(model, { lr = 0.1, mesh = model.mesh })
      local loss, mine = loss_of(model, share_of(model.mesh))
      loss:backward()
      near(seen.loss, mine.loss, 1e-4, 'the loss')
      near(expected:item(), model.mesh.sequence:all_reduce(loss:detach()):item(), 1e-4, 'the sum')
      optim:clip(1e9)
      for key, parameter, owner, field in model:named_parameters() do
        local part = weight_parts.cut(weight_parts.of(owner, field), state[key].grad)
        near(0, (parameter.grad - part):abs():max():item(), 2e-4, key)
      end
    end
  end)

  g:barrier()
  if g.rank == 0 then models.remove(parent) end
end
