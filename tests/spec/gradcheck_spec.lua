-- gradcheck_spec.lua - the gradient of every op against finite differences, in f64.
local ul = require 'ulysses'
local cases = require 'tests.cases'

local function leaves(case)
  local inputs = {}
  for i, spec in ipairs(case.inputs) do
    inputs[i] = cases.make(spec)
    if cases.is_float(spec) then inputs[i]:requires_grad_() end
  end
  return inputs
end

-- The call on views of leaves whose dims are swapped, which makes the same tensors.
local function through_views(case, inputs)
  local swapped, n_inputs = {}, #inputs
  for i, x in ipairs(inputs) do
    swapped[i] = x
    if x.requires_grad and x:dim() > 1 then
      swapped[i] = x:detach():transpose(1, -1):contiguous():requires_grad_()
    end
  end
  return function(...)
    local given = { ... }
    for i = 1, n_inputs do
      if swapped[i] ~= inputs[i] then given[i] = given[i]:transpose(1, -1) end
    end
    return case.call(unpack(given, 1, n_inputs))
  end, swapped
end

describe('gradcheck', function()
  for _, case in ipairs(cases.list) do
    if not case.without.gradcheck then
      it(case.name, function()
        ul.scope(function()
          local inputs = leaves(case)
          assert.is_true(ul.gradcheck(case.call, inputs))
          if case.strided ~= false then
            assert.is_true(ul.gradcheck(through_views(case, inputs)))
          end
        end)
      end)
    elseif not cases.is_differentiable(case) then
      it(case.name .. ': no gradient', function()
        local in_place = case.without.gradcheck == 'in_place'
        local watch = in_place and ul.no_grad or ul.enable_grad
        watch(function()
          for _, y in ipairs(cases.results(case.call(unpack(leaves(case))))) do
            assert.is_false(y.requires_grad)
          end
        end)
      end)
    end
  end
end)

describe('a graph', function()
  local function x(k) return cases.make { shape = { 2, 3 }, k = k }:requires_grad_() end

  it('adds up what comes from several uses of an input', function()
    local a, b = x(0.3), x(1)
    assert.is_true(ul.gradcheck(function(p, q)
      local h = p * q
      return (h + p):silu() * h - q:square(), h:sum(1)
    end, { a, b }))
  end)

  it('gives the same gradients again where it is retained', function()
    local a = x(0.3)
    local loss = (a:exp() * a):sum()
    loss:backward { retain = true }
    local once = a.grad:clone()
    loss:backward()
    assert.near((once * 2):tolist(), a.grad, 1e-14)
  end)

  it('passes nothing through detach', function()
    local a = x(0.3)
    local y = (a:detach() * a):sum()
    y:backward()
    assert.near(a:detach():tolist(), a.grad, 1e-15)
  end)

  it('is the same when it is recomputed', function()
    local a, b = x(0.3), x(1)
    assert.is_true(ul.gradcheck(function(p, q)
      return ul.recompute(function(s, t) return (s * t):gelu() + s end, p, q)
    end, { a, b }))
  end)

  it('has nodes written in Lua', function()
    local cube = ul.fn {
      forward = function(context, p)
        context.p = p
        return p ^ 3
      end,
      backward = function(context, d) return d * context.p:square() * 3 end,
    }
    assert.is_true(ul.gradcheck(cube, { x(0.3) }))
  end)

  it('finds a wrong rule', function()
    local wrong = ul.fn {
      forward = function(_, p) return p * 2 end,
      backward = function(_, d) return d * 2.00001 end,
    }
    assert.has_error(function() ul.gradcheck(wrong, { x(0.3) }) end)
  end)
end)
