-- turns.lua - inputs of layers and optimizer state that wait in pinned memory: what comes back must
-- be what went there, however late streams are. offload_spec.lua and events.sh run it.
local ul = require 'ulysses'
local off = require 'ulysses.core'.off_device
local function gradient(call)
  ul.manual_seed(1)
  local w, x = ul.rand(16, 16):requires_grad_(), ul.rand(8, 16):requires_grad_()
  for step = 1, 3 do -- slots are used again
    local h = x * step
    for _ = 1, 4 do
      h = call(function(y) return ul.F.linear(y, w):tanh() + y end, h)
    end
    h:sum():backward()
  end
  return w.grad
end
local want = gradient(function(f, x) return f(x) end)
assert((want - gradient(ul.offload)):abs():max():item() == 0, 'inputs: an event is missing')

-- The state of several steps that nobody waits for, of n elements.
local function steps(n, place)
  local grad = ul.arange(n, { dtype = 'f32' }) * (1 / n)
  local p, m, v = grad * 2, place(grad * 0.5), place(grad * 0.25)
  for i = 1, 4 do ul.adamw_(p, grad, m, v, { lr = 0.1, step = i }) end
  off.wait()
  return { m, v, p }
end

for _, n in ipairs { 2 ^ 21 + 3, 1000 } do -- 2 pieces and a little; one, which takes turns too
  local plain = steps(n, function(x) return x end)
  for i, x in ipairs(steps(n, off.copy)) do
    assert((x:to 'cpu' - plain[i]:to 'cpu'):abs():max():item() == 0, 'state: an event is missing')
  end
end

-- Again and again with the events that there are; late streams have some for longer.
local late, made = (os.getenv 'CUEMU_STREAMS' or '') ~= '', 0
for round = 1, 8 do
  gradient(ul.offload)
  steps(1000, off.copy)
  collectgarbage()
  if round == 3 then made = off.events() end
end
local more = off.events() - made
assert(more <= (late and 20 or 0), more .. ' events more')
ul.trim_memory()
assert(select(2, off.events()) == 0, 'events that nobody has are not freed')
print 'well'
