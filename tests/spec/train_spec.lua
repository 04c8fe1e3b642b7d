-- train_spec.lua - the training loop: one denominator, nothing left behind, the same numbers again.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local recipe = require 'recipes.llama3'

local text = ('The quick brown fox jumps over the lazy dog, and the dog sleeps on. '):rep(20)

local function new_model(seed)
  local settings = recipe:configure {
    model = { dim = 32, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 48 },
  }
  return recipe.model(settings.model):init_weights { seed = seed or 1 }
end

local function rows(length, size, ...)
  return ul.data.from({ ... }):tokenize('bytes'):pack(length):batch(size)
end

local function train(given)
  local model = new_model()
  local optim = ul.optim.adamw(model, { lr = 1e-2 })
  local data = rows(32, 4, text):shuffle { seed = 1 }
  local run = ul.run { model = model, optim = optim, data = data, log_every = 0 }
  local live = {}
  for _, batch in run:steps(given.steps or 6) do
    for micro in batch:micros(given.accumulate or 1) do model(micro):backward() end
    optim:clip(1)
    optim:step()
    live[#live + 1] = ul.memory(home).live
  end
  return run.losses, model, run, live
end

-- Runs f and returns what it printed.
local function printed(f)
  local lines, print_before = {}, print
  _G.print = function(line) lines[#lines + 1] = line end
  local ok, message = pcall(f)
  _G.print = print_before
  assert(ok, message)
  return lines
end

describe('training', function()
  it('learns', function()
    local losses = train { steps = 40 }
    assert.equal(40, #losses)
    assert.near(math.log(260), losses[1], 0.1)
    assert.is_true(losses[40] < 2.5)
  end)

  it('gives the same numbers again, whatever the number of threads', function()
    local expected, before = train {}, ul.threads()
    for _, threads in ipairs { 1, 2, 3 } do
      ul.threads(threads)
      assert.same(expected, (train {}))
    end
    ul.threads(before)
  end)

  it('does not depend on how a batch is cut', function()
    local expected = train {}
    for _, accumulate in ipairs { 2, 3, 4 } do
      assert.near(expected, (train { accumulate = accumulate }), 1e-4)
    end
  end)

  it('weighs labels equally when micro-batches have few and many', function()
    local model = new_model()
    local function gradient(parts)
      local batch = rows(31, 2, text:sub(1, 34)):at(1)
      local counts = {}
      for micro in batch:micros(parts) do
        counts[#counts + 1] = micro.count
        model(micro):backward()
      end
      if parts == 2 then assert.same({ 31, 3 }, counts) end
      local norm = ul.optim.sgd(model):norm()
      ul.optim.sgd(model):zero_grad()
      return norm, batch:loss()
    end
    local whole, loss = gradient(1)
    local halves, same_loss = gradient(2)
    assert.near(whole, halves, 1e-5)
    assert.near(loss, same_loss, 1e-6)
  end)

  it('holds as much memory after one step as after another', function()
    -- The collector would free what earlier tests left, at any time.
    collectgarbage()
    collectgarbage 'stop'
    local _, _, _, live = train { steps = 5 }
    collectgarbage 'restart'
    for step = 2, 5 do assert.equal(live[1], live[step]) end
  end)

  it('counts nothing, and is finite, where there is no label', function()
    local model = new_model()
    local batch = ul.data.batch(ul.tensor({ { 1, 2, 3 } }, { dtype = 'i64' }),
                                ul.tensor({ { -100, -100, -100 } }, { dtype = 'i64' }))
    assert.equal(0, batch.count)
    model(batch):backward()
    assert.equal(0, batch:loss())
    assert.equal(0, ul.optim.sgd(model):norm())
  end)

  it('evaluates every label once, and changes nothing', function()
    local losses, model, run = train { steps = 2 }
    assert.equal(2, #losses)
    local before = model:parameters()[2]:tolist()
    local loss = run:eval(rows(32, 4, text))
    for _, shape in ipairs { { 32, 3 }, { 32, 1 } } do
      assert.near(loss, run:eval(rows(shape[1], shape[2], text)), 1e-5)
    end
    assert.same(before, model:parameters()[2]:tolist())
    assert.is_nil(model:parameters()[2].grad)
  end)

  it('sees a document as if it were alone', function()
    local model = new_model()
    local a, b = text:sub(1, 20), text:sub(31, 44)
    local run = ul.run { model = model, data = {}, log_every = 0 }
    local function loss(...) return run:eval(rows(64, 1, ...)) end
    local mean = (20 * loss(a) + 14 * loss(b)) / 34
    assert.near(mean, loss(a, b), 1e-5)
  end)

  it('trains in bf16', function()
    local model = new_model():to 'bf16'
    local optim = ul.optim.adamw(model, { lr = 1e-2 })
    local run = ul.run { model = model, optim = optim, data = rows(32, 4, text), log_every = 0 }
    for _, batch in run:steps(20) do
      model(batch):backward()
      optim:step()
    end
    assert.is_true(run.losses[20] < run.losses[1] - 1)
  end)

  it('shortens rates by thousands', function()
    local rate = require('ulysses.log').rate
    assert.same({ '850', '9.4k', '13k', '180k', '1.2M' },
                { rate(850), rate(9386), rate(12900), rate(180388), rate(1.2e6) })
  end)

  it('is refused where no loss is reported, or nothing has a gradient', function()
    local model = new_model()
    local optim = ul.optim.adamw(model, { lr = 1e-2 })
    local run = ul.run { model = model, optim = optim, data = rows(8, 1, text), log_every = 0 }
    assert.error_matches(function()
      for _, batch in run:steps(2) do
        model:logits(batch.inputs):sum():backward()
        optim:step()
      end
    end, 'reported no loss in step 1; its forward must return batch:mean')
    assert.error_matches(function() optim:step() end, 'no parameter has a gradient')
    model:to 'bf16'
    model:logits(rows(8, 1, text):at(1).inputs):sum():backward()
    assert.error_matches(function() optim:step() end, 'was cast or moved by :to%(%)')
  end)

  it('records a step whole, whatever is asked of the run before its update', function()
    local function losses(ask)
      local model = new_model():init_weights { seed = 1 }
      local optim = ul.optim.adamw(model, { lr = 1e-2 })
      local data = rows(8, 1, text)
      local run = ul.run { model = model, optim = optim, data = data, log_every = 0 }
      for _, batch in run:steps(3) do
        if ask then
          run:eval(rows(32, 4, text))
          run:save()
        end
        model(batch):backward()
        optim:step()
      end
      return run.losses
    end
    assert.same(losses(false), losses(true))
  end)

  it('prints the first step, the last, and every so many', function()
    local lines = printed(function()
      local run = ul.run { model = new_model(), data = rows(8, 1, text), log_every = 3 }
      for step in run:steps(7) do run:log { b = step, a = 0.5 } end
    end)
    local steps = {}
    for i, line in ipairs(lines) do steps[i] = tonumber(line:match '^step (%d+)/7 ') end
    assert.same({ 1, 3, 6, 7 }, steps)
    assert.matches('^step 1/7  loss 0.0000  a 0.5  b 1  [%d.]+k? tokens/s  [%d.]+ .?B  eta 0:00$',
                   lines[1])
  end)

  -- A loop that breaks off in step 3: when(step, 'backward' or 'update') may raise or say 'break'.
  local function interrupted(when)
    local model = new_model()
    local optim = ul.optim.adamw(model, { lr = 1e-2 })
    local data = rows(32, 4, text):shuffle { seed = 1 }
    local run = ul.run { model = model, optim = optim, data = data, log_every = 0 }
    local seen = {}
    local function loop()
      for step, batch in run:steps(6) do
        seen[#seen + 1] = step
        model(batch):backward()
        ul.rand(1)
        if when(step, 'backward') == 'break' then break end
        optim:clip(1)
        optim:step()
        if when(step, 'update') == 'break' then break end
      end
    end
    pcall(loop)
    when = function() end
    loop()
    return run.losses, seen, ul.rand(1):item()
  end

  it('takes a step again that an error has cut short, unless it has moved the weights', function()
    local function never() end
    ul.manual_seed(1)
    local expected, _, number = interrupted(never)
    assert.equal(6, #expected)
    for _, how in ipairs { 'error', 'break' } do
      for place, steps in pairs { backward = { 1, 2, 3, 3, 4, 5, 6 },
                                  update = { 1, 2, 3, 4, 5, 6 } } do
        ul.manual_seed(1)
        local losses, seen, same_number = interrupted(function(step, at)
          if step ~= 3 or at ~= place then return end
          if how == 'error' then error 'interrupted!' end
          return 'break'
        end)
        assert.same(expected, losses)
        assert.same(steps, seen)
        assert.equal(number, same_number)
      end
    end
  end)

  -- Trains to the end through as many errors as `interruptions`, each after so many instructions.
  local function interrupted_anywhere(interruptions)
    local model = new_model()
    local optim = ul.optim.adamw(model, { lr = 1e-2 })
    local data = rows(32, 4, text):shuffle { seed = 1 }
    local run = ul.run { model = model, optim = optim, data = data, log_every = 0 }
    local step_of, busy = optim.step, true
    function optim.step(...)
      busy = true -- signals are held there
      step_of(...)
      busy = false
    end
    local function loop()
      busy = false
      for _, batch in run:steps(6) do
        model(batch):backward()
        ul.rand(1)
        optim:clip(1)
        optim:step()
      end
      busy = true
    end
    ul.manual_seed(1)
    for _, count in ipairs(interruptions) do
      debug.sethook(function()
        if busy then return end
        busy = true
        debug.sethook()
        error('interrupted!', 0)
      end, '', count)
      pcall(loop)
      debug.sethook()
    end
    loop()
    return run.losses, ul.rand(1):item(), run.tokens
  end

  it('is the same wherever it was interrupted', function()
    jit.off() -- compiled code looks at no hooks
    local expected, number, tokens = interrupted_anywhere {}
    local counts = {}
    for i = 1, 150 do counts[i] = 1 + i * 7919 % 1100 end
    local losses, same_number, same_tokens = interrupted_anywhere(counts)
    jit.on()
    assert.equal(6, #losses)
    assert.same(expected, losses)
    assert.equal(number, same_number)
    assert.equal(tokens, same_tokens)
  end)

  it('is the same where leaving a step was interrupted', function()
    jit.off()
    -- Leaves step 3 by an error, and what that takes at its n-th line by another; whether it came
    -- so far.
    local function trained(n)
      local model = new_model()
      local optim = ul.optim.adamw(model, { lr = 1e-2 })
      local run = ul.run { model = model, optim = optim, data = rows(32, 4, text), log_every = 0 }
      local lines, left = 0, false
      local function loop(leave)
        for step, batch in run:steps(5) do
          ul.rand(1)
          model(batch):backward()
          if step == 3 and leave then error 'interrupted!' end
          optim:step()
        end
      end
      ul.manual_seed(1)
      pcall(loop, n > 0)
      debug.sethook(function()
        if debug.getinfo(2, 'n').name ~= 'leave_step' then return end
        lines = lines + 1
        if lines == n then
          left = true
          debug.sethook()
          error('interrupted!', 0)
        end
      end, 'l')
      if n > 0 then pcall(run.steps, run, 5) end
      debug.sethook()
      loop()
      return left, { run.losses, ul.rand(1):item(), run.tokens }
    end
    local _, expected = trained(0)
    local n = 0
    repeat
      n = n + 1
      local left, found = trained(n)
      assert.same(expected, found, 'line ' .. n)
    until not left
    jit.on()
    assert.is_true(n > 2)
  end)

  it('on meta takes two steps and says what they take', function()
    local lines = printed(function()
      local model = new_model():to 'meta'
      local optim = ul.optim.adamw(model)
      local run = ul.run { model = model, optim = optim, data = rows(32, 4, text),
                           dir = '/dev/null/x' }
      for step, batch in run:steps(100) do
        assert.is_true(step <= 2)
        ul.scope(function() model:logits(batch.inputs:to 'meta'):sum():backward() end)
        run:log { grad_norm = optim:clip(1) }
        optim:step()
        run:save()
      end
      local loss = run:eval(rows(32, 4, text))
      assert.is_true(loss ~= loss) -- NaN
      assert.same({ '', nil }, { run:sample 'x', (run:report()) })
    end)
    assert.equal(1, #lines)
    assert.matches('^plan: [%d.]+ k parameters; a step of 128 tokens takes [%d.]+ .?B at its peak '
                   .. 'and [%d.]+ MFLOP$', lines[1])
  end)

  it('on meta is planned for ranks that are not there', function()
    local before = ul.default_device()
    ul.set_default_device 'meta'
    local lines = printed(function()
      local mesh = ul.mesh { sp = 4, heads = 4 }
      local settings = recipe:configure { model = { dim = 32, n_layers = 2, n_heads = 4,
                                                    n_kv_heads = 2, ffn = 48 } }
      local model = recipe.model(settings.model, mesh):init_weights()
      local optim = ul.optim.adamw(model)
      local data = rows(32, 4, text):shard(mesh)
      local run = ul.run { model = model, optim = optim, data = data }
      for _, batch in run:steps(3) do
        model(batch):backward()
        optim:step()
      end
    end)
    ul.set_default_device(before)
    assert.equal(1, #lines)
    assert.matches('^plan: [%d.]+ k parameters on 4 ranks %(sp 4%); a step of 128 tokens takes '
                   .. '[%d.]+ .?B at its peak and [%d.]+ MFLOP on each$', lines[1])
  end)
end)
