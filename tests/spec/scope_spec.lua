-- scope_spec.lua - what a scope frees, what it hands out, and what it says afterwards.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise

local function live() return ul.memory(home).live end

-- Memory before and after f, with the collector stopped.
local function leaves(f)
  collectgarbage()
  collectgarbage()
  collectgarbage 'stop'
  local before = live()
  local ok, message = pcall(f)
  local after = live()
  collectgarbage 'restart'
  assert(ok, message)
  return after - before
end

describe('scope', function()
  it('frees what it does not return', function()
    local held
    assert.equal(0, leaves(function()
      ul.scope(function()
        held = ul.ones(100)
        return (held + 1):sum():item()
      end)
    end))
    local _, message = pcall(function() return held + 1 end)
    assert.matches('scope_spec%.lua:%d+: add: tensor freed at the end of scope '
                   .. '%(.*scope_spec%.lua:%d+%); return it or call :keep%(%)', message)
  end)

  it('passes arguments and results through', function()
    local a, b, c, d = ul.scope(function(...) return select('#', ...), nil, ... end, nil, 5)
    assert.same({ 2, nil, nil, 5 }, { a, b, c, d })
    assert.equal(0, select('#', ul.scope(function() end)))
  end)

  it('hands out what it returns, in tables too, however they hang together', function()
    local result = ul.scope(function()
      local y = ul.ones(2)
      local t = { y, nested = { deep = { ul.ones(3) } }, [ul.ones(4)] = true }
      t.self, t.nested.up = t, t
      setmetatable(t, { __index = error, __pairs = error })
      return t
    end)
    assert.equal(2, result[1]:sum():item())
    assert.equal(3, rawget(result, 'nested').deep[1]:sum():item())
    for key in next, result do
      if ul.is_tensor(key) then assert.equal(4, key:numel()) end
    end
  end)

  it('hands results to the scope around it', function()
    local inner, outer
    ul.scope(function()
      inner = ul.scope(function() return ul.ones(2) end)
      assert.equal(2, inner:sum():item())
      outer = ul.ones(3):keep()
    end)
    assert.error_matches(function() return inner:sum() end, 'freed at the end of scope')
    assert.equal(3, outer:sum():item())
  end)

  it('leaves alone what was there before, and what is kept', function()
    local before, kept = ul.ones(2), nil
    ul.scope(function()
      kept = (before * 2):keep()
      return before
    end)
    assert.equal(2, before:sum():item())
    assert.equal(4, kept:sum():item())
  end)

  it('frees everything on an error, which it passes on as it is', function()
    local thing = setmetatable({}, { __tostring = function() return 'thing' end })
    assert.equal(0, leaves(function()
      local ok, e = pcall(ul.scope, function()
        ul.ones(1000)
        ul.scope(function()
          ul.ones(1000)
          error(thing)
        end)
      end)
      assert(not ok and rawequal(e, thing))
      assert.same({ false, nil }, { pcall(ul.scope, error) })
    end))
  end)

  it('keeps what the tape needs until backward has passed', function()
    local w = ul.ones({ 256, requires_grad = true })
    local after_forward
    assert.equal(0, leaves(function()
      ul.scope(function()
        local start = live()
        local loss = ul.scope(function() return (w * w):exp():sum() end)
        after_forward = live() - start
        loss:backward()
        w.grad = nil
      end)
    end))
    assert.is_true(after_forward >= 1024)
  end)

  it('gives its name to the error of a module', function()
    local Leaky = ul.nn.class 'Leaky'
    function Leaky:forward(x)
      self.holder[1] = x * 2
      return x
    end
    local module = Leaky()
    module.holder = {}
    local x = ul.ones(2)
    assert.equal(x, module(x))
    assert.error_matches(function() return module.holder[1] + 1 end,
                         'freed at the end of Leaky %(.*scope_spec%.lua:%d+%)')
  end)

  it('ends where a loop says so', function()
    local step, held = nil, {}
    assert.equal(0, leaves(function()
      for i = 1, 5 do
        if step then ul.scope_end(step) end
        step = ul.scope_begin('step ' .. i)
        held[i] = ul.ones(100)
      end
      ul.scope_end(step)
      ul.scope_end(step)
    end))
    assert.error_matches(function() return held[5]:sum() end, 'freed at the end of step 5 %(')
    local token = ul.scope_begin 'handing out'
    local x, y = ul.scope_end(token, ul.ones(2), { 7 })
    assert.equal(2, x:sum():item())
    assert.same({ 7 }, y)
  end)

  it('takes over what a loop left open that was broken out of', function()
    local held
    assert.equal(0, leaves(function()
      ul.scope(function()
        for i = 1, 3 do
          ul.scope_begin 'step'
          held = ul.ones(100)
          if i == 2 then break end
        end
      end)
    end))
    assert.error_matches(function() return held:sum() end, 'freed at the end of scope')
    local token = ul.scope_begin 'forgotten' -- luacheck: ignore
    local x = ul.ones(2)
    token = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(2, x:sum():item())
  end)

  it('belongs to the coroutine that began it', function()
    local inside
    local worker = coroutine.wrap(function()
      local token = ul.scope_begin 'worker'
      inside = ul.ones(2)
      coroutine.yield()
      ul.scope_end(token)
    end)
    worker()
    local outside = ul.ones(3)
    worker()
    assert.equal(3, outside:sum():item())
    assert.error_matches(function() return inside:sum() end, 'freed at the end of worker')
    local made
    ul.scope(function() coroutine.wrap(function() made = ul.ones(2) end)() end)
    assert.error_matches(function() return made:sum() end, 'freed at the end of scope')
    assert.error_matches(function()
      coroutine.wrap(function() ul.scope(coroutine.yield) end)()
    end, 'yield')
  end)

  it('is no trouble for the collector', function()
    for _ = 1, 50 do
      ul.scope(function()
        local list = {}
        for i = 1, 100 do list[i % 7] = ul.ones(3) end
        collectgarbage 'step'
        return list
      end)
    end
    collectgarbage()
    local abandoned = coroutine.create(function()
      ul.scope_begin 'abandoned'
      ul.ones(3)
      coroutine.yield()
    end)
    coroutine.resume(abandoned)
    abandoned = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(3, ul.ones(3):sum():item())
  end)

  it('says what is wrong', function()
    assert.error_matches(function() ul.scope(1) end, 'scope: expected a function, got 1')
    assert.error_matches(function() ul.scope() end, 'scope: expected a function, got nil')
    assert.error_matches(function() ul.no_grad {} end, 'no_grad: expected a function')
    assert.error_matches(function() ul.scoped(nil, print) end, 'the name must be a string')
    assert.error_matches(function() ul.scope_end(io.stdout) end, 'scope')
    assert.error_matches(function() ul.scope_end() end, 'scope')
  end)

  it('costs no more memory for a step than its liveness asks for', function()
    local w = {}
    for i = 1, 8 do w[i] = (ul.randn(64, 64) * 0.1):requires_grad_() end
    local function step()
      ul.scope(function()
        local x = ul.ones(64, 64)
        for i = 1, 8 do
          x = ul.scope(function() return (x:matmul(w[i]) + 1):tanh() end)
        end
        x:sum():backward()
      end)
      for i = 1, 8 do w[i].grad = nil end
    end
    step()
    local system = ul.memory(home).system_allocations
    local function peak()
      ul.reset_peak_memory()
      step()
      return ul.memory(home).peak
    end
    collectgarbage 'stop'
    local stopped = peak()
    collectgarbage 'restart'
    assert.equal(stopped, peak())
    assert.equal(system, ul.memory(home).system_allocations)
  end)
end)
