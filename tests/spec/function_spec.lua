-- function_spec.lua - Lua functions on the tape, and recompute.
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local F = ul.F

local function live() return ul.memory(home).live end
local function leaf(...) return ul.randn(...):requires_grad_() end

local exponential = ul.fn {
  name = 'exponential',
  forward = function(context, x)
    context.y = x:exp()
    return context.y
  end,
  backward = function(context, dy) return dy * context.y end,
}

describe('fn', function()
  it('has the gradient that its backward says', function()
    local x = leaf { 3, 4, dtype = 'f64' }
    assert.is_true((ul.gradcheck(exponential, { x })))
    assert.is_true((ul.gradcheck(function(a) return exponential(a * 2) * a end, { x })))
    assert.is_true((ul.gradcheck(function(a) return exponential(exponential(a * 0.1)) end, { x })))
  end)

  it('takes and returns several values, tensors or not', function()
    local seen
    local f = ul.fn {
      forward = function(context, a, n, b)
        context.n = n
        return a * n, 'text', b + 1, ul.arange(3)
      end,
      backward = function(context, da, db, none)
        seen = { da ~= nil, db ~= nil, none ~= nil }
        return da and da * context.n, nil, db
      end,
    }
    local a, b = leaf { 2, dtype = 'f64' }, leaf { 2, dtype = 'f64' }
    local x, text, y, n = f(a, 3, b)
    assert.equal('text', text)
    assert.equal('i64', n:dtype())
    assert.is_false(n.requires_grad)
    assert.is_true(x.requires_grad and y.requires_grad)
    y:sum():backward()
    assert.same({ false, true, false }, seen)
    assert.same({ 1, 1 }, b.grad:tolist())
    assert.is_nil(a.grad)
    assert.is_true((ul.gradcheck(function(p, q)
      local u, _, v = f(p, 3, q)
      return u, v
    end, { a, b })))
  end)

  it('may return what it was given', function()
    local same = ul.fn { forward = function(_, x) return x, x end,
                         backward = function(_, a, b) return a + b end }
    local x = leaf { 3, dtype = 'f64' }
    local a, b = same(x)
    assert.is_true(x.is_leaf)
    assert.is_false(a.is_leaf)
    ;(a * 2 + b):sum():backward()
    assert.same({ 3, 3, 3 }, x.grad:tolist())
  end)

  it('is not recorded where no gradient is wanted', function()
    assert.is_false(exponential(ul.ones(2)).requires_grad)
    assert.is_false(ul.no_grad(exponential, leaf(2)).requires_grad)
  end)

  it('holds what its context holds until backward has passed, and no longer', function()
    local x = leaf(1000)
    collectgarbage()
    collectgarbage()
    collectgarbage 'stop'
    local before = live()
    local function step(retain)
      ul.scope(function()
        local y = ul.scope(function() return exponential(x * 1) end)
        local loss = y:sum()
        if retain then loss:backward { retain = true } end
        loss:backward()
      end)
      x.grad = nil
    end
    step()
    assert.equal(before, live())
    step(true)
    assert.equal(before, live())
    ul.scope(function() exponential(x) end) -- and where backward never comes
    assert.equal(before, live())
    collectgarbage 'restart'
  end)

  it('frees what forward and backward leave lying about', function()
    local f = ul.fn {
      forward = function(_, x)
        for _ = 1, 10 do x = x + 1 end
        return x
      end,
      backward = function(_, dy)
        for _ = 1, 10 do dy = dy * 1 end
        return dy
      end,
    }
    local x = leaf(1000)
    collectgarbage()
    collectgarbage 'stop'
    local before = live()
    local y = f(x)
    assert.equal(before + 4032, live())
    local loss = y:sum()
    loss:backward()
    x.grad = nil
    loss:free()
    y:free()
    assert.equal(before, live())
    collectgarbage 'restart'
  end)

  it('passes errors on, whatever they are', function()
    local thing = {}
    local function failing(what)
      return ul.fn { name = 'failing', forward = function(_, x) return x * 2 end,
                     backward = function() error(what) end }
    end
    local x = leaf(2)
    local ok, e = pcall(function() failing(thing)(x):sum():backward() end)
    assert.is_false(ok)
    assert.is_true(rawequal(e, thing))
    ok, e = pcall(function() failing 'boom'(x):sum():backward() end)
    assert.is_false(ok)
    assert.matches('function_spec%.lua:%d+: boom %(in the backward of failing%)$', e)
    local wrong = ul.fn { name = 'wrong', forward = function(_, a) return a + 0, a + 1 end,
                          backward = function(_, dy) return dy:sum() end }
    assert.error_matches(function() (wrong(x)):sum():backward() end, 'wrong: gradient 1')
    local text = ul.fn { name = 'text', forward = function(_, a) return a + 0 end,
                         backward = function() return 'zero' end }
    assert.error_matches(function() text(x):sum():backward() end,
                         "text: backward returned 'zero' as gradient 1")
    assert.error_matches(function()
      ul.fn { forward = function() error 'in front' end, backward = print } (x)
    end, 'in front')
    x.grad = nil
    exponential(x):sum():backward() -- and the tape is as it was
    assert.near(x:exp(), x.grad)
    assert.is_true(ul.is_grad_enabled())
  end)

  it('runs in the coroutine that calls backward', function()
    local x, where = leaf(2), nil
    local f = ul.fn { forward = function(_, a) return a + 0 end,
                      backward = function(_, dy)
                        where = coroutine.running()
                        return dy
                      end }
    local thread = coroutine.create(function() f(x):sum():backward() end)
    assert.is_true(coroutine.resume(thread))
    assert.equal(thread, where)
    local yielding = ul.fn { forward = function(_, a) return a + 0 end,
                             backward = function(_, dy)
                               coroutine.yield()
                               return dy
                             end }
    local ok, message = coroutine.resume(coroutine.create(function()
      yielding(x):sum():backward()
    end))
    assert.is_false(ok)
    assert.matches('yield', message)
  end)

  it('lets the collector run inside', function()
    local f = ul.fn { forward = function(context, x)
                        context.x = x
                        collectgarbage()
                        return x * x
                      end,
                      backward = function(context, dy)
                        collectgarbage()
                        return dy * context.x * 2
                      end }
    local x = leaf { 3, dtype = 'f64' }
    for _ = 1, 20 do
      local y = f(x * 1)
      for _ = 1, 5 do y = f(y * 0.5) end
      y:sum():backward()
    end
    assert.is_true((ul.gradcheck(f, { x })))
  end)

  it('says what is wrong', function()
    assert.error_matches(function() ul.fn(1) end, 'fn: expected a table')
    assert.error_matches(function() ul.fn {} end, 'fn: forward must be a function')
    assert.error_matches(function() ul.fn { forward = print } end, 'fn: backward must')
    assert.error_matches(function() ul.fn { foward = print } end, "did you mean 'forward'")
    assert.error_matches(function() ul.fn { forward = print, backward = print, name = 1 } end,
                         'name must be a string')
    local f = ul.fn { name = 'eats', forward = function(_, a)
                        local b = a + 1
                        a:free()
                        return b
                      end, backward = print }
    assert.error_matches(function() f(leaf(2) * 2) end, 'eats: tensor freed by :free')
  end)
end)

describe('recompute', function()
  local function block(w)
    return function(x, scale)
      return F.dropout((F.linear(x, w):silu() * scale) + x, 0.25)
    end
  end

  -- The loss, and the gradients of x and w, of one step through f.
  local function gradients(dtype, f)
    local w = (ul.full({ 8, 8 }, 0.1):to(dtype)):requires_grad_()
    local x = (ul.arange(32, { dtype = 'f32' }):view(4, 8) * 0.1):to(dtype):requires_grad_()
    ul.manual_seed(7)
    local loss = f(x * 1, w):to('f32'):square():sum()
    loss:backward()
    return { loss:item(), x.grad:tolist(), w.grad:tolist(), (select(2, ul.random_state())) }
  end

  for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
    it('changes no bit in ' .. dtype, function()
      local plain = gradients(dtype, function(x, w)
        local f = block(w)
        return f(f(x, 2) + x, 3)
      end)
      assert.same(plain, gradients(dtype, function(x, w)
        local f = block(w)
        return ul.recompute(f, ul.recompute(f, x, 2) + x, 3)
      end))
      assert.same(plain, gradients(dtype, function(x, w)
        local f = block(w)
        return ul.recompute(function(a)
          return ul.recompute(f, ul.recompute(f, a, 2) + a, 3)
        end, x)
      end))
    end)
  end

  it('passes the gradient check', function()
    local x, w = leaf { 3, 8, dtype = 'f64' }, leaf { 8, 8, dtype = 'f64' }
    assert.is_true((ul.gradcheck(function(a, b)
      return ul.recompute(function(c, d) return F.linear(c, d):tanh(), c:exp() end, a, b)
    end, { x, w })))
    assert.is_true((ul.gradcheck(function(a, b)
      local inner = a * 2 -- reaches f as an upvalue, with history
      return ul.recompute(function(c) return F.linear(inner, c):tanh() end, b)
    end, { x, w })))
  end)

  it('gives parameters gradients where no input has one', function()
    local w = leaf(8, 8)
    local y = ul.recompute(function(x) return F.linear(x, w) end, ul.ones(2, 8))
    assert.is_true(y.requires_grad)
    y:sum():backward()
    assert.near(ul.full({ 8, 8 }, 2), w.grad)
    assert.is_false(ul.recompute(F.exp, ul.ones(2)).requires_grad)
  end)

  it('keeps the inputs only', function()
    local x = leaf(1000)
    collectgarbage()
    collectgarbage 'stop'
    local before, during = live(), nil
    ul.scope(function()
      local y = ul.recompute(function(a)
        for _ = 1, 20 do a = a:exp():log() end
        return a
      end, x)
      during = live() - before
      y:sum():backward()
      x.grad = nil
    end)
    assert.is_true(during <= 2 * 4032)
    assert.equal(before, live())
    collectgarbage 'restart'
  end)

  it('runs modules, and backward twice', function()
    local layer, x = ul.nn.Linear(4, 4), leaf(2, 4)
    local loss = ul.recompute(layer, x):sum()
    loss:backward { retain = true }
    local once = x.grad:tolist()
    loss:backward()
    assert.near(ul.tensor(once) * 2, x.grad)
  end)

  it('passes errors on', function()
    local first = true
    local function f(x)
      if first then first = false else error 'the second time' end
      return x * 2
    end
    local x = leaf(2)
    assert.error_matches(function() ul.recompute(f, x):sum():backward() end,
                         'the second time %(in the backward of recompute%)')
    assert.error_matches(function() ul.recompute(1) end, 'recompute: expected a function')
    assert.is_true(ul.is_grad_enabled())
  end)
end)
