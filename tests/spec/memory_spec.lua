-- memory_spec.lua - what lives when: scopes, the tape and the collector, to the byte.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local F = ul.F

local function live() return ul.memory(home).live end

-- Frees what earlier specs left to the collector.
local function settle()
  collectgarbage()
  collectgarbage()
end

describe('memory', function()
  before_each(settle)
  after_each(function()
    collectgarbage 'restart'
    ul.debug.fail_allocation(0)
  end)

  it('after a scoped step equals memory before it, to the byte', function()
    local w = ul.randn(64, 64):requires_grad_()
    local x = ul.randn(32, 64)
    local m, v = ul.zeros(64, 64), ul.zeros(64, 64)
    local function step()
      ul.scope(function()
        local loss = F.silu(x:matmul(w)):square():sum()
        loss:backward()
        ul.clip_grad_norm_({ w.grad }, 1)
        ul.adamw_(w, w.grad, m, v, { lr = 1e-3, step = 1 })
      end)
      w.grad = nil
    end
    collectgarbage 'stop'
    step()
    local before, handles = live(), ul.memory(home).live_tensors
    for _ = 1, 10 do step() end
    assert.equal(before, live())
    assert.equal(handles, ul.memory(home).live_tensors)
  end)

  it('asks the system for nothing once a step has run', function()
    local w = ul.randn(300, 300):requires_grad_()
    local function step()
      ul.scope(function() w:matmul(w):gelu():sum():backward() end)
      w.grad = nil
    end
    step()
    local asked = ul.memory(home).system_allocations
    for _ = 1, 20 do step() end
    assert.equal(asked, ul.memory(home).system_allocations)
  end)

  -- Layers y = silu(x w) + x of equal activations: each saves its input for w's gradient and the
  -- product for silu's.
  local function train_layers(rows, cols, layers, device)
    local weights = {}
    for i = 1, layers do
      weights[i] = ul.zeros { cols, cols, device = device }
      weights[i]:requires_grad_()
    end
    local x = ul.zeros { rows, cols, device = device }
    local function step()
      ul.scope(function()
        local h = x
        for i = 1, layers do
          local input = h
          h = ul.scope(function() return F.silu(input:matmul(weights[i])) + input end)
        end
        h:sum():backward()
      end)
      for i = 1, layers do weights[i].grad = nil end
    end
    return step
  end

  for _, mode in ipairs { 'stopped', 'running' } do
    -- The engine asks for the same on cuda, where products of this size take minutes emulated.
    it('of 24 layers #cpu peaks within 2 % of the least there can be, ' .. mode, function()
      local rows, cols, layers = 8192, 256, 24
      local activation, weight = rows * cols * 4, cols * cols * 4
      if mode == 'stopped' then collectgarbage 'stop' end
      for _, device in ipairs { home, 'meta' } do
        local step = train_layers(rows, cols, layers, device)
        step()
        local before = ul.memory(device).live
        ul.reset_peak_memory()
        step()
        local peak = ul.memory(device).peak - before
        -- Held when backward begins: the outputs of the layers but the last (each the next one's
        -- input; x was there before) and the products, so 2 * layers - 1, and the gradient that
        -- arrives. Passing a layer adds the gradient of its product, and that of its input beside
        -- the one it arrived with, before it lets go.
        local least = (2 * layers - 1 + 3) * activation + weight
        assert.is_true(peak <= 1.02 * least,
                       ('%s: peak %d, least %d: %.3f'):format(device, peak, least, peak / least))
        assert.equal(before, ul.memory(device).live)
      end
    end)
  end

  it('of tensors that Lua has dropped is found under pressure', function()
    local limit = live() + ul.memory(home).cached + 256 * 2 ^ 20
    ul.set_memory_limit(home, limit)
    for _ = 1, 200 do ul.zeros(4 * 2 ^ 20) end -- 16 MiB each, never freed by hand
    ul.set_memory_limit(home, 0)
  end)

  it('that is not there is refused in a sentence that names lines', function()
    local held = ul.zeros(8 * 2 ^ 20)
    ul.set_memory_limit(home, live() + ul.memory(home).cached + 2 ^ 20)
    local ok, message = pcall(function() return ul.zeros(2 ^ 28) end)
    ul.set_memory_limit(home, 0)
    assert.is_false(ok)
    assert.matches('memory_spec.lua:%d+: out of memory on ' .. home .. ': 1024.0 MiB wanted',
                   message)
    assert.matches('32.0 MiB from [^,]*memory_spec.lua:%d+', message)
    held:free()
  end)

  it('recompute keeps inputs only', function()
    local x = ul.randn(1000, 1000):requires_grad_()
    local function deep(h)
      for _ = 1, 10 do h = h:tanh() end
      return h
    end
    local before = live()
    local y = ul.recompute(deep, x)
    assert.is_true(live() - before <= 4.1e6)
    y:sum():backward()
    local plain = ul.scope(function()
      local z = x:detach():requires_grad_()
      deep(z):sum():backward()
      return z.grad
    end)
    assert.equal(0, (plain - x.grad):abs():max():item())
  end)
end)

describe('every allocation of a training step', function()
  it('may fail: an error, no leak, and the next step works', function()
    local nn = ul.nn
    local embed, head = nn.Embedding(16, 8), nn.Linear(8, 16)
    local norm = nn.RMSNorm(8)
    local ids = ul.tensor({ { 1, 2, 3 } }, { dtype = 'i64' })
    local targets = ul.tensor({ { 2, 3, 4 } }, { dtype = 'i64' })
    local positions = ul.arange(3)
    local optim = ul.optim.adamw({ embed.weight, head.weight, norm.weight }, { lr = 1e-3 })
    local function step()
      return ul.scope(function()
        local x = norm(embed(ids))
        local q = F.rope(x:view(1, 3, 2, 4), F.rope_table(positions, 4))
        local o = F.attention(q, q, q, { causal = true })
        local h = ul.recompute(function(t) return F.swiglu(t, t) end, o:view(1, 3, 8))
        local loss = F.linear_cross_entropy(h, head.weight, targets)
        loss:backward()
        optim:clip(1)
        optim:step()
        return loss:item()
      end)
    end
    local function clear()
      optim:zero_grad()
      settle()
    end
    step()
    clear()
    local before, handles = live(), ul.memory(home).live_tensors
    local count = ul.debug.allocations()
    step()
    count = ul.debug.allocations() - count
    assert.is_true(count > 100)
    for n = 1, count do
      clear()
      ul.debug.fail_allocation(n)
      local ok, message = pcall(step)
      ul.debug.fail_allocation(0)
      assert.is_false(ok, ('allocation %d of %d'):format(n, count))
      assert.matches('out of memory', tostring(message))
      clear()
      assert.equal(before, live(), ('allocation %d of %d leaks'):format(n, count))
      assert.equal(handles, ul.memory(home).live_tensors)
    end
    assert.is_number(step())
  end)
end)
