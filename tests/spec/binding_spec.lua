-- binding_spec.lua - tensors as Lua sees them: making, looking, arguments, errors, the program.
local ffi = require 'ffi'
local ul = require 'ulysses'
local home = ul.default_device() -- where tensors are, unless a test says otherwise
local F = ul.F

local function raises(text, f, ...)
  local arguments, n = { ... }, select('#', ...)
  assert.error_matches(function() f(unpack(arguments, 1, n)) end, text)
end

describe('tensor', function()
  it('is made from nested tables', function()
    local x = ul.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.same({ 2, 3 }, x.shape)
    assert.equal('f32', x:dtype())
    assert.equal(home, x:device())
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:tolist())
    assert.equal('u8', ul.tensor({ true, false }):dtype())
    assert.same({ 1, 0 }, ul.tensor({ true, false }):tolist())
    assert.equal(2.5, ul.tensor(2.5):item())
    assert.equal(0, ul.tensor(2.5):dim())
    assert.same({ 0 }, ul.tensor({}).shape)
    assert.same({ 2, 0 }, ul.tensor({ {}, {} }).shape)
    assert.is_true(ul.tensor({ 1 }, { dtype = 'f64', requires_grad = true }).requires_grad)
    assert.same({ 1, -2 }, ul.tensor({ 1, -2 }, { dtype = 'bf16' }):tolist())
    assert.equal('meta', ul.tensor({ 1 }, { device = 'meta' }):device())
  end)

  it('keeps integers of 64 bits', function()
    local x = ul.tensor({ 9007199254740993LL, -1LL, 5ULL }, { dtype = 'i64' }):to 'cpu'
    assert.is_true(x:data()[0] == 9007199254740993LL)
    assert.is_true(x:data()[1] == -1LL)
  end)

  it('refuses tables that are no tensor, and says where', function()
    raises('table %[2%] has 1 elements, the first at its depth has 2', ul.tensor,
           { { 1, 2 }, { 3 } })
    raises('table %[2%] is 3, expected a table of 1', ul.tensor, { { 1 }, 3 })
    raises('element %[2%] is a table', ul.tensor, { 1, { 2 } })
    raises("element %[1%]%[2%] is 'x', expected a number", ul.tensor, { { 1, 'x' } })
    raises('element %[2%] is a boolean', ul.tensor, { 1, true })
    raises('a hole', ul.tensor, { 1, 2, [5] = 3 })
    raises('keys that are no positions', ul.tensor, { 1, 2, n = 2 })
    raises('the table has a hole', ul.tensor, { 1, nil, 3 })
    local cycle = {}
    cycle[1] = cycle
    raises('nested deeper than 8', ul.tensor, cycle)
    raises('element %[1%] must be an integer, got 1.5', ul.tensor, { 1.5 }, { dtype = 'i32' })
    raises('element %[2%], 256, does not fit u8', ul.tensor, { 1, 256 }, { dtype = 'u8' })
    raises('x:clone', ul.tensor, ul.ones(2))
    raises('expected a table or a number, got nil', ul.tensor)
  end)

  it('is filled', function()
    assert.same({ { 0, 0 } }, ul.zeros(1, 2):tolist())
    assert.same({ 1, 1 }, ul.ones({ 2 }):tolist())
    assert.same({ 1, 1 }, ul.ones({ 2, dtype = 'f64' }):tolist())
    assert.same({ { 3 }, { 3 } }, ul.full({ 2, 1 }, 3, { dtype = 'i64' }):tolist())
    assert.equal('bf16', ul.empty(2, { dtype = 'bf16' }):dtype())
    assert.same({ 0, 1, 2 }, ul.arange(3):tolist())
    assert.equal('i64', ul.arange(3):dtype())
    assert.same({ 1, 3 }, ul.arange(1, 5, 2):tolist())
    assert.near({ 0, 0.25, 0.5, 0.75 }, ul.arange(0, 1, 0.25), 0)
    assert.same({ 3, 2, 1 }, ul.arange(3, 0, -1):tolist())
    assert.same({ 0 }, ul.arange(3, 3).shape)
    assert.same({ 2, 3 }, ul.zeros_like(ul.ones(2, 3)).shape)
    assert.equal('f64', ul.randn_like(ul.ones { 2, dtype = 'f64' }):dtype())
    assert.same({ 2LL and 2, 3 }, ul.zeros(2LL, 3ULL).shape)
  end)

  it('is drawn at random, again from the same seed', function()
    ul.manual_seed(3)
    local a, b = ul.randn(10), ul.rand { 10 }
    local seed, next_key = ul.random_state()
    local c = ul.randint(2, 5, { 50 })
    ul.manual_seed(3)
    assert.same(a:tolist(), ul.randn(10):tolist())
    ul.set_random_state(seed, next_key)
    assert.same(c:tolist(), ul.randint(2, 5, { 50 }):tolist())
    assert.is_true(b:min():item() >= 0 and b:max():item() < 1)
    assert.same({ 2, 4 }, { c:min():item(), c:max():item() })
    ul.manual_seed(18446744073709551615ULL)
    assert.equal('18446744073709551615', (ul.random_state()))
    ul.set_random_state(ul.random_state())
    assert.equal('18446744073709551615', (ul.random_state()))
    ul.manual_seed(0)
  end)

  it('tells its shape', function()
    local x = ul.zeros(2, 3, 4)
    assert.same({ 2, 3, 4 }, { x:size() })
    assert.equal(4, x:size(-1))
    assert.equal(2, #x)
    assert.equal(3, x:dim())
    assert.equal(24, x:numel())
    assert.same({ 12, 4, 1 }, { x:stride() })
    assert.equal(4, x:stride(2))
    assert.is_true(x:is_contiguous())
    assert.is_false(x:transpose(1, 3):is_contiguous())
    assert.is_true(ul.is_tensor(x))
    assert.is_false(ul.is_tensor {})
    raises('dim 0: dims are counted from 1', x.size, x, 0)
    raises('dim 4 of a tensor with 3', x.size, x, 4)
    raises('has no length', function() return #ul.tensor(1) end)
  end)

  it('gives a typed pointer #cpu', function() -- to the host's memory alone
    local x = ul.zeros(4)
    local p = x:data()
    assert.is_true(ffi.istype('float *', p))
    for i = 0, 3 do p[i] = i * i end
    assert.same({ 0, 1, 4, 9 }, x:tolist())
    for dtype, pointer in pairs { bf16 = 'uint16_t *', f64 = 'double *', i32 = 'int32_t *',
                                  i64 = 'int64_t *', u8 = 'uint8_t *' } do
      assert.is_true(ffi.istype(pointer, ul.zeros({ 2, dtype = dtype }):data()))
    end
    raises('not contiguous', function() return ul.zeros(2, 2):t():data() end)
    raises('a meta tensor has no values', function()
      return ul.zeros({ 2, device = 'meta' }):data()
    end)
  end)

  it('changes dtype and device', function()
    local x = ul.tensor { 1.5, -2.5 }
    assert.same({ 1, -2 }, x:to('i64'):tolist())
    assert.equal('bf16', x:to('bf16'):dtype())
    assert.equal('meta', x:to('meta'):device())
    assert.same({ 'f64', 'meta' }, { x:to('f64', 'meta'):dtype(), x:to('f64', 'meta'):device() })
    assert.equal('i32', x:to(ul.zeros { 1, dtype = 'i32' }):dtype())
    assert.equal('f64', x:to({ dtype = 'f64' }):dtype())
    raises("'f16'", x.to, x, 'f16')
  end)

  it('prints its shape and values', function()
    assert.equal('tensor [2, 2] f32 ' .. home .. '\n[[ 1,  2],\n [ 3, -4]]',
                 tostring(ul.tensor { { 1, 2 }, { 3, -4 } }))
    assert.equal('tensor [] f64 ' .. home .. '\n0.5000',
                 tostring(ul.tensor(0.5, { dtype = 'f64' })))
    assert.equal('tensor [0] f32 ' .. home, tostring(ul.zeros(0)))
    assert.equal('tensor [3] bf16 meta', tostring(ul.zeros { 3, dtype = 'bf16', device = 'meta' }))
    assert.matches('requires_grad', tostring(ul.ones(2):requires_grad_()))
    local long = tostring(ul.zeros(2000))
    assert.matches('%[0, 0, 0, %.%.%., 0, 0, 0%]', long)
    assert.matches('min 0, mean 0, max 0', long)
    local x = ul.zeros(2000)
    x[7] = 0 / 0
    assert.matches('%(nan: 1%)', tostring(x))
    x:free()
    assert.equal('tensor (freed)', tostring(x))
  end)

  it('computes with numbers on either side', function()
    local x = ul.tensor { 1, 2 }
    assert.same({ 2, 3 }, (x + 1):tolist())
    assert.same({ 1, 0 }, (2 - x):tolist())
    assert.same({ 2, 4 }, (x * 2LL):tolist())
    assert.same({ 2, 1 }, (2 / x):tolist())
    assert.same({ 1, 4 }, (x ^ 2):tolist())
    assert.same({ 2, 4 }, (2 ^ x):tolist())
    assert.same({ -1, -2 }, (-x):tolist())
    assert.same({ 3, 4 }, F.add(2, x):tolist())
    assert.same({ 1, 0 }, x:eq(1):tolist())
    assert.same({ 1, 9 }, x:masked_fill(x:gt(1), 9):tolist())
    assert.same({ 0, 2 }, ul.where(x:gt(1), x, 0):tolist())
    assert.same({ 1, 1 }, x:clamp { max = 1 }:tolist())
    assert.same({ 2, 2 }, x:clamp(2):tolist())
    assert.same({ 5, 10 }, x:add_(ul.tensor { 1, 2 }):mul_(2.5):tolist())
    assert.same({ 5, 10 }, x:tolist())
    raises('neither argument is a tensor', F.add, 1, 2)
    raises('0.5 is not a number that i64 can hold', function() return ul.arange(3) + 0.5 end)
  end)

  it('reduces along dims counted from 1', function()
    local x = ul.tensor { { 1, 5, 3 }, { 4, 2, 6 } }
    assert.equal(21, x:sum():item())
    assert.same({ 5, 7, 9 }, x:sum(1):tolist())
    assert.same({ { 9 }, { 12 } }, x:sum(-1, { keepdim = true }):tolist())
    assert.same({ { 21 } }, x:sum({ 1, 2, keepdim = true }):tolist())
    assert.same({ { 21 } }, x:sum({ keepdim = true }):tolist())
    assert.same({ 3, 4 }, x:mean(2):tolist())
    assert.equal(6, x:max():item())
    local values, index = x:max(2)
    assert.same({ 5, 6 }, values:tolist())
    assert.same({ 1, 2 }, index:tolist())
    assert.same({ 0, 1, 0 }, x:argmin(1):tolist())
    assert.equal(5, x:argmax():item())
    local sorted, order = x:sort { descending = true }
    assert.same({ { 5, 3, 1 }, { 6, 4, 2 } }, sorted:tolist())
    assert.same({ { 1, 2, 0 }, { 2, 0, 1 } }, order:tolist())
    assert.same({ { 5 }, { 6 } }, (x:topk(1)):tolist())
    assert.same({ { 1, 2, 3 } }, (x:topk(1, 1, { largest = false })):tolist())
    assert.near(math.sqrt(91), x:norm():item(), 1e-6)
    raises("no option 'keepdims'; did you mean 'keepdim'", x.sum, x, 1, { keepdims = true })
    raises('an empty list', x.sum, x, {}, {})
  end)

  it('cuts and joins', function()
    local x = ul.arange(12):view(3, 4)
    local a, b = x:split(2, 1)
    assert.same({ 2, 4 }, a.shape)
    assert.same({ 1, 4 }, b.shape)
    assert.same({ 1, 3 }, { x:split({ 1, 3 }, -1) and 1, select(2, x:split({ 1, 3 }, -1)):size(2) })
    assert.equal(4, select('#', x:chunk(4, 2)))
    assert.equal(1, select('#', ul.zeros(0):chunk(3)))
    assert.same({ 6, 4 }, ul.cat({ x, x }).shape)
    assert.same({ 3, 8 }, ul.cat({ x, x }, 2).shape)
    assert.same({ 3, 2, 4 }, ul.stack({ x, x }, 2).shape)
    assert.same({ 2, 3, 4 }, ul.stack { x, x }.shape)
    assert.same({ 4, 3 }, x:t().shape)
    assert.same({ 4, 3 }, x:permute(2, 1).shape)
    assert.same({ { 1, 2 }, { 5, 6 }, { 9, 10 } }, x:narrow(2, 2, 2):tolist())
    assert.same({ 1, 3, 4 }, x:unsqueeze(1).shape)
    assert.same({ 3, 4 }, x:unsqueeze(-1):squeeze().shape)
    assert.same({ 12 }, x:flatten().shape)
    assert.same({ { 8, 9, 10, 11 }, { 0, 1, 2, 3 } },
                x:index_select(1, ul.tensor({ 2, 0 }, { dtype = 'i64' })):tolist())
    assert.same({ 2, 3, 4 }, ul.ones(1, 3, 1):expand(2, -1, 4).shape)
    raises('sum to 4, dim 1 has 3', x.split, x, { 1, 3 })
    raises('not positive', x.split, x, 0)
    raises('the list is empty', ul.cat, {})
    raises('element 2 of the list is 1, not a tensor', ul.cat, { x, 1 })
  end)
end)

describe('errors', function()
  it('name the line that called', function()
    local line = debug.getinfo(1, 'l').currentline
    local _, message = pcall(function() return F.rms_norm(ul.ones(3, 8), ul.ones(4)) end)
    assert.matches('binding_spec%.lua:' .. line + 1 .. ': rms_norm: weight %[4%] does not fit',
                   message)
    _, message = pcall(function() return ul.nn.Linear(3, 2)(ul.ones(4)) end)
    assert.matches('binding_spec%.lua:' .. line + 4 .. ': linear: ', message)
  end)

  it('say what was expected', function()
    local x = ul.ones(2)
    raises('add: expected a tensor or a number, got nil %(argument 2%)', F.add, x, nil)
    raises('exp: expected a tensor, got 1 %(argument 1%)', F.exp, 1)
    raises("'x' %(argument 2%)", F.matmul, x, 'x')
    raises('at most 1', F.exp, x, 2)
    raises('zeros: size %-1 of dim 2 is negative', ul.zeros, 1, -1)
    raises('size of dim 1 must be an integer, got 1.5', ul.zeros, 1.5)
    raises('got nan', ul.zeros, 0 / 0)
    raises('got 1e%+16', ul.zeros, 1e16)
    raises('9 dims, at most 8', ul.zeros, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    raises("no option 'dtpye'; did you mean 'dtype'", ul.zeros, { 2, dtpye = 'f32' })
    raises("no dtype 'f23'", ul.zeros, { 2, dtype = 'f23' })
    raises("no device 'gpu'", ul.zeros, { 2, device = 'gpu' })
    raises("got 'cpu'", ul.zeros, 2, 'cpu')
    raises("no option 'windows'; did you mean 'window'", F.attention, x, x, x, { windows = 1 })
    raises('no end', ul.arange, 1, 2, 0)
    raises('no end', ul.arange, 0, 1 / 0)
    raises('too large', ul.zeros, 2 ^ 52, 2 ^ 52)
    raises("ulysses has no 'zeroes'; did you mean 'zeros'", function() return ul.zeroes end)
    raises("a tensor has no 'shap'", function() return x.shap end)
    raises('item: the tensor has 2 elements', x.item, x)
    raises('requires_grad_', function() ul.arange(3):requires_grad_() end)
  end)

  it('tell that a tensor was freed', function()
    local x = ul.ones(2)
    x:free()
    x:free()
    raises('add: tensor freed by :free%(%)', F.add, 1, x)
    raises('shape: tensor freed', function() return x.shape end)
  end)

  it('do not come as crashes from what is no tensor', function()
    local meta = debug.getmetatable(ul.ones(1))
    for _, thing in ipairs { newproxy(), newproxy(true), {}, 'x', print, 1, ffi.new('int[4]'),
                             coroutine.create(print), io.stdout } do
      raises('expected a tensor', F.exp, thing)
      meta.__gc(thing)
      raises('expected a tensor', meta.__len, thing)
      raises('', meta.__index, thing, 1)
    end
    assert.equal('tensor', getmetatable(ul.ones(1)))
  end)

  it('end what is nested too deep', function()
    local function inside() return ul.scope(inside) end
    raises('nested', inside)
    local node
    node = ul.fn { forward = function(_, x) return node(x) end, backward = function() end }
    raises('nested', node, ul.ones(1))
  end)
end)

describe('gradients', function()
  it('gather in .grad until it is cleared', function()
    local x = ul.tensor({ 1, 2 }, { requires_grad = true })
    assert.is_nil(x.grad)
    x:square():sum():backward()
    x:square():sum():backward()
    assert.same({ 4, 8 }, x.grad:tolist())
    x.grad = ul.tensor { 1, 1 }
    x:sum():backward()
    assert.same({ 2, 2 }, x.grad:tolist())
    x.grad = nil
    assert.is_nil(x.grad)
    raises('grad: ', function() x.grad = ul.ones(3) end)
    raises('expected a tensor', function() x.grad = 1 end)
  end)

  it('need a seed where there is more than one result', function()
    local x = ul.tensor({ 1, 2 }, { requires_grad = true })
    raises('needs a seed', function() x:exp():backward() end)
    x:mul(3):backward(ul.tensor { 1, 10 })
    assert.same({ 3, 30 }, x.grad:tolist())
    local y = x:square():sum()
    y:backward { retain = true }
    y:backward()
    assert.same({ 7, 38 }, x.grad:tolist())
    raises('retain = true', function() y:backward() end)
  end)

  it('stop where they are not wanted', function()
    local x = ul.tensor({ 1, 2 }, { requires_grad = true })
    assert.is_false(ul.no_grad(function() return x * 2 end).requires_grad)
    assert.is_true(ul.no_grad(function()
      return ul.enable_grad(function() return x * 2 end).requires_grad
    end))
    assert.is_false(x:detach().requires_grad)
    pcall(ul.no_grad, error, 'x')
    assert.is_true(ul.is_grad_enabled())
    local y = x * 2
    y:retain_grad()
    y:sum():backward()
    assert.same({ 1, 1 }, y.grad:tolist())
    assert.is_true(x.is_leaf)
    assert.is_false(y.is_leaf)
  end)

  it('are checked by finite differences', function()
    local x = ul.randn({ 2, 3, dtype = 'f64', requires_grad = true })
    assert.is_true((ul.gradcheck(F.exp, { x })))
    assert.is_true((ul.gradcheck(function(a) return F.dropout(a, 0.5) end, { x })))
    local wrong = ul.fn { forward = function(_, a) return a * a end,
                          backward = function(_, dy) return dy end }
    raises('gradcheck: input 1, element %d: analytic .* numeric .* seed 1', ul.gradcheck, wrong,
           { x })
    raises('no input requires grad', ul.gradcheck, F.exp, { ul.ones(1) })
  end)
end)

describe('memory', function()
  it('is counted', function()
    collectgarbage() -- what other tests have left would go when memory is asked for
    collectgarbage 'stop'
    local before = ul.memory(home).live
    local x = ul.zeros(1000)
    assert.equal(before + 4032, ul.memory()[home:match '^%a+'].live)
    x:free()
    assert.equal(before, ul.memory(home).live)
    before = ul.memory('meta').live
    local meta = ul.zeros { 1e6, 1e6, device = 'meta' }
    assert.equal(before + 4e12, ul.memory('meta').live)
    meta:free()
    collectgarbage 'restart'
    raises("no device 'gpu'", ul.memory, 'gpu')
  end)

  it('of dropped tensors is found before it is refused', function()
    collectgarbage()
    collectgarbage()
    collectgarbage 'stop'
    ul.set_memory_limit(home, 64 * 2 ^ 20 + ul.memory(home).live)
    local ok, message = pcall(function()
      for _ = 1, 20 do ul.zeros(2 ^ 22) end -- 16 MiB each, and nobody holds them
    end)
    local held, refused = {}, nil -- luacheck: ignore
    if ok then
      ok, refused = pcall(function()
        for i = 1, 20 do held[i] = ul.zeros(2 ^ 22) end
      end)
    end
    ul.set_memory_limit(home, 0)
    collectgarbage 'restart'
    assert.is_nil(message)
    assert.is_false(ok)
    assert.matches('binding_spec%.lua:%d+: .*out of memory', refused)
    assert.matches('from .*binding_spec%.lua:%d+', refused)
  end)

  it('of a chain of functions on the tape is found too', function()
    local double = ul.fn {
      forward = function(context, x)
        context.x = x
        return x * 2
      end,
      backward = function(_, dy) return dy * 2 end,
    }
    collectgarbage()
    collectgarbage()
    collectgarbage 'stop'
    ul.set_memory_limit(home, 64 * 2 ^ 20 + ul.memory(home).live)
    local ok, message = pcall(function()
      local x = ul.ones { 2 ^ 20, requires_grad = true }
      for _ = 1, 8 do x = double(x) end -- 4 MiB each
      x = nil -- luacheck: ignore
      ul.zeros(2 ^ 23 + 2 ^ 22):free()
    end)
    ul.set_memory_limit(home, 0)
    collectgarbage 'restart'
    assert.is_true(ok, message)
  end)

  it('survives finalisers that use tensors while the engine collects', function()
    local x, wrong = ul.ones(4), nil
    local proxy = newproxy(true)
    getmetatable(proxy).__gc = function()
      local ok, message = pcall(function() return x + 1, x:free() end)
      wrong = not ok and message
    end
    proxy = nil -- luacheck: ignore
    ul.set_memory_limit(home, 32 * 2 ^ 20 + ul.memory(home).live)
    pcall(ul.zeros, 2 ^ 26)
    ul.set_memory_limit(home, 0)
    assert.matches('a finaliser may not', wrong)
    assert.same({ 1, 1, 1, 1 }, x:tolist())
  end)

  it('is whole again after a refused allocation', function()
    local w = ul.randn(4, 4):requires_grad_()
    local function step()
      ul.scope(function() F.linear(ul.ones(2, 4), w):square():mean():backward() end)
      w.grad = nil
    end
    step()
    collectgarbage()
    collectgarbage()
    local before, failures = ul.memory(home).live, 0
    for n = 1, 200 do
      ul.debug.fail_allocation(n)
      local ok, message = pcall(step)
      ul.debug.fail_allocation(0)
      w.grad = nil
      if ok then break end
      failures = failures + 1
      assert.matches('memory', message)
      assert.equal(before, ul.memory(home).live)
    end
    assert.is_true(failures > 5 and failures < 200)
  end)
end)

describe('the module', function()
  it('can be loaded twice', function()
    local x = ul.ones(2)
    for name in pairs(package.loaded) do
      if name:match '^ulysses' then package.loaded[name] = nil end
    end
    local again = require 'ulysses'
    assert.same({ 2, 2 }, (again.ones(2) + x):tolist())
    assert.equal(2, x:sum():item())
    assert.equal(2, again.ones(2):to('cpu'):data()[0] + x:to('cpu'):data()[0])
  end)
end)
