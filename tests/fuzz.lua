-- fuzz.lua - random values and calls of everything public, all of it decided by one seed.
local ffi = require 'ffi'
local ul = require 'ulysses'
local core = require 'ulysses.core'

local random = math.random
local function pick(list) return list[random(#list)] end

-- ---- values ----

local dtypes = { 'f32', 'f32', 'f32', 'f64', 'bf16', 'i64', 'i32', 'u8' }
local shapes = {
  {}, { 0 }, { 1 }, { 3 }, { 4 }, { 8 }, { 17 }, { 2, 3 }, { 3, 4 }, { 4, 3 }, { 3, 8 }, { 8, 8 },
  { 3, 0 }, { 0, 3 }, { 1, 1 }, { 2, 3, 4 }, { 2, 4, 3 }, { 1, 3, 1 }, { 5, 1, 7 }, { 33, 17 },
  { 2, 4, 2, 8 }, { 2, 4, 1, 8 }, { 1, 1, 1, 1, 1, 1, 1, 2 },
}
-- A copy: the call may write to it.
local function shape() return { unpack(pick(shapes)) } end

local numbers = {
  0, 1, 2, 3, 4, 5, 8, -1, -2, -3, -100, 0.5, -0.0, 1e-5, 0.1, 1.5, 100, 1000, 2 ^ 31, -2 ^ 31,
  2 ^ 32, 2 ^ 40, 2 ^ 53, 2 ^ 62, 2 ^ 63, -2 ^ 63, 1e300, 1 / 0, -1 / 0, 0 / 0,
}
local strings = {
  '', 'f32', 'bf16', 'i64', 'u8', 'cpu', 'meta', 'cuda', 'base', 'avx2', 'x', '1', '2:3', ':, 1',
  '..., 1', '1:2:0', '-1', ('9'):rep(40), ('x'):rep(5000), '%s%n', '\0', 'grad', 'sum', 'shape',
}
local option_names = {
  'dtype', 'device', 'requires_grad', 'keepdim', 'descending', 'largest', 'causal', 'window',
  'docs', 'scale', 'kv_head', 'lse', 'reduction', 'ignore_index', 'tile', 'lr', 'betas', 'eps',
  'step', 'momentum', 'velocity', 'master', 'nesterov', 'weight_decay', 'retain', 'min', 'max',
  'theta', 'inv_freq', 'cos', 'sin', 'training', 'approximate', 'forward', 'backward', 'name',
  'captures',
}

local value -- of any kind; below

local function new_tensor()
  local dtype = pick(dtypes)
  local options = { dtype = dtype, device = random(12) == 1 and 'meta' or 'cpu' }
  local t
  if dtype:match '^[iu]' then
    t = ul.randint(0, random(6), shape(), options)
  else
    t = ul.randn(shape(), options)
    if random(4) == 1 then t:requires_grad_() end
  end
  if random(5) == 1 and t:dim() > 1 then t = t:transpose(1, -1) end
  if random(20) == 1 then t:free() end
  return t
end

-- nil where memory has run out.
local function tensor()
  local ok, t = pcall(new_tensor)
  return ok and t or nil
end

local functions = {
  function(...) return ... end,
  function() error 'boom' end,
  function() error({}) end,
  function(...) collectgarbage() return ... end,
  function(x) return x * 2 end,
  function(_, x) return x end,
  function(x) return x, x + 1, { x * x } end,
  function(x) x:free() return x end,
  function(x) x:requires_grad_() return (x * x):sum():backward() end,
  function(context, x) context.x, context.self = x, context return x * 3, nil, x:sum() end,
  function() coroutine.yield(1) end,
  function() return ul.scope_begin 'left open' end,
  math.sin, tostring, ul.scope, ul.no_grad, ul.zeros,
}

local function list_of(n, make)
  local list = {}
  for i = 1, n do list[i] = make() end
  return list
end

local tables = {
  function() return {} end,
  function() return { 1, 2, 3 } end,
  shape,
  function() return { { 1, 2 }, { 3, 4 } } end,
  function() return { { 1 }, { 2, 3 } } end,
  function() return { 1, nil, 3 } end,
  function() return { true, false } end,
  function() return { {}, { 1, 2 } } end,
  function() return list_of(random(4), tensor) end,
  function() return list_of(random(4), function() return pick(numbers) end) end,
  function() return list_of(random(9), value) end,
  function() return { [2 ^ 40] = 1, [-1] = 2, [0.5] = 3 } end,
  function() local t = {} t[1], t.self = t, t return t end,
  function() return setmetatable({}, { __index = function() error 'no' end }) end,
  function() return setmetatable({}, { __call = function(_, ...) return ... end }) end,
  function()
    local options = {}
    for _ = 1, random(3) do options[pick(option_names)] = value() end
    return options
  end,
}

local others = {
  function() return true end,
  function() return false end,
  function() return 5LL end,
  function() return -1LL end,
  function() return 18446744073709551615ULL end,
  function() return ffi.new 'int[3]' end,
  function() return ffi.cast('void *', 0) end,
  function() return io.stdout end,
  function() return newproxy(true) end,
  function() return coroutine.create(print) end,
  function() return core.methods end,
  function() return ul.scope_begin 'fuzz' end,
}

local pool -- results of earlier calls

function value()
  local kind = random(20)
  if kind <= 6 and #pool > 0 then return pick(pool) end
  if kind <= 9 then return tensor() end
  if kind <= 13 then return pick(numbers) end
  if kind == 14 then return pick(strings) end
  if kind <= 16 then return pick(tables)() end
  if kind == 17 then return pick(functions) end
  if kind == 18 then return pick(others)() end
  return nil
end

-- ---- calls ----

-- What would undo the bounds of this test, or is no function to call.
local excluded = { set_memory_limit = true, set_default_device = true, debug = true, data = true,
                   run = true, recipe = true }

local calls = {}
local function collect(where, prefix)
  for name, f in pairs(where) do
    if type(f) == 'function' and not excluded[prefix .. name] then
      calls[#calls + 1] = { name = prefix .. name, call = f }
    end
  end
end
collect(ul, '')
collect(core.functional, 'F.')
collect(core.methods, 'x:')
collect(ul.optim, 'optim.')
collect(ul.nn, 'nn.')
-- FFI's own arrays may be read and written anywhere: nothing of that is ours.
local function not_cdata(x) return type(x) ~= 'cdata' and x or error 'a cdata' end

for name, f in pairs {
  ['x[k]'] = function(x, k) return not_cdata(x)[k] end,
  ['x[k]='] = function(x, k, v) not_cdata(x)[k] = v end,
  ['#'] = function(x) return #x end,
  ['-'] = function(x) return -x end,
  ['+'] = function(a, b) return a + b end,
  ['*'] = function(a, b) return a * b end,
  ['/'] = function(a, b) return a / b end,
  ['^'] = function(a, b) return a ^ b end,
  ['tostring'] = function(x) return tostring(x) end,
  ['grad'] = function(x) return x.grad end,
  ['grad='] = function(x, g) x.grad = g end,
  ['recompute'] = ul.recompute,
  ['gradcheck'] = ul.gradcheck,
  ['a tensor'] = function() return tensor() end,
  ['loss'] = function(x) (x * x):sum():backward() end,
} do
  calls[#calls + 1] = { name = name, call = f }
end
table.sort(calls, function(a, b) return a.name < b.name end) -- pairs() has no order

-- Arguments that fit, by name, for what random ones hardly ever fit: a tensor [2, 3] comes first.
local function f32(...)
  local x = ul.randn(...)
  return random(2) == 1 and x:requires_grad_() or x
end
local function ids(...) return ul.randint(0, 2, { ... }) end
local function whole(low, high) return random(low, high) end

local fitting = {
  clip_grad_norm_ = function() return { f32(2, 3) }, 0.5 end,
  global_norm = function() return { f32(2, 3), f32(4) } end,
  sgd_ = function()
    return ul.randn(2, 3), f32(2, 3), { velocity = ul.zeros(2, 3), momentum = 0.5 }
  end,
  adamw_ = function() return ul.randn(2, 3), f32(2, 3), ul.zeros(2, 3), ul.zeros(2, 3) end,
  fn = function() return { forward = pick(functions), backward = pick(functions) } end,
  backward = function() return { f32(2, 3):exp() }, { f32(2, 3) } end,
  manual_seed = function() return whole(0, 1e6) end,
  set_random_state = function() return whole(0, 1e6), whole(0, 1e6) end,
  full = function() return shape(), 2, { dtype = pick(dtypes) } end,
  randint = function() return 0, whole(1, 9), shape(), { dtype = pick(dtypes) } end,
  cat = function() return { f32(2, 3), f32(2, 3) }, whole(-2, 2) end,
  stack = function() return { f32(2, 3), f32(2, 3) }, whole(-3, 3) end,
  where = function() return ids(2, 3):to('u8'), f32(3), f32(2, 1) end,
  masked_fill = function() return f32(2, 3), ids(3):to('u8'), 1 end,
  scoped = function() return 'scope', pick(functions), f32(2) end,
  scope_end = function() return ul.scope_begin 'fuzz', f32(2) end,
  recompute = function() return pick(functions), f32(2, 3), f32(3) end,
  gradcheck = function()
    return pick(functions), { ul.randn(2, { dtype = 'f64' }):requires_grad_() }
  end,
  transpose = function() return f32(2, 3), whole(-2, 2), whole(-2, 2) end,
  permute = function() return f32(2, 3), 2, 1 end,
  select = function() return f32(2, 3), whole(-2, 2), whole(-3, 3) end,
  narrow = function() return f32(2, 3), whole(-2, 2), whole(1, 3), whole(0, 2) end,
  view = function() return f32(2, 6), whole(1, 4), -1 end,
  reshape = function() return f32(2, 6):t(), whole(1, 4), -1 end,
  expand = function() return f32(2, 1), 2, whole(0, 9) end,
  gather = function() return f32(2, 3), 2, ids(2, whole(0, 5)) end,
  index_select = function() return f32(2, 3), whole(1, 2), ids(whole(0, 5)) end,
  topk = function() return f32(2, 3), whole(0, 3), whole(-2, 2) end,
  rms_norm = function() return f32(2, 3), f32(3) end,
  add_rms_norm = function() return f32(2, 3), f32(2, 3), f32(3) end,
  layer_norm = function() return f32(2, 3), f32(3), f32(3) end,
  matmul = function() return f32(whole(0, 5), 3), f32(2, whole(0, 5), 3):transpose(2, 3) end,
  linear = function() return f32(2, 3), f32(4, 3), f32(4) end,
  embedding = function() return ids(3, 2), f32(2, 4) end,
  rope_table = function() return ids(5), 2 * whole(1, 4), { theta = pick(numbers) } end,
  rope = function() return f32(2, 5, 3, 4), ul.F.rope_table(ids(5), 4) end,
  attention = function()
    local k = f32(2, 6, whole(1, 2), 8)
    return f32(2, 6, 4, 8), k, f32(unpack(k.shape)),
      { causal = true, window = whole(0, 8), lse = random(2) == 1,
        docs = random(2) == 1 and { 0, 2, 6, 12 } or nil }
  end,
  cross_entropy = function() return f32(4, 3), ids(4), { reduction = 'sum' } end,
  linear_cross_entropy = function() return f32(4, 3), f32(5, 3), ids(4), { tile = whole(0, 5) } end,
  dropout = function() return f32(2, 3), 0.5 end,
}

-- Random arguments, or fitting ones of which some are replaced.
local function arguments_for(entry)
  local fit = fitting[entry.name:match '[%w_]+$']
  local arguments
  if fit and random(3) > 1 then
    local results = { pcall(fit) } -- there may be no memory
    arguments = { n = table.maxn(results) - 1, unpack(results, 2, table.maxn(results)) }
    if random(2) == 1 then arguments[random(arguments.n + 1)] = value() end
    if random(8) == 1 then arguments[random(arguments.n + 1)] = value() end
    arguments.n = math.max(arguments.n, table.maxn(arguments))
    return arguments
  end
  local n = random(0, random(6))
  arguments = { n = n }
  for i = 1, n do arguments[i] = value() end
  if random(3) > 1 then arguments[1], arguments.n = tensor(), math.max(1, n) end
  return arguments
end

-- More threads only cost time.
local function few(f)
  return function(n, ...) return f(type(n) == 'number' and n > 4 and 300 or n, ...) end
end
for _, entry in ipairs(calls) do
  if entry.name == 'threads' then entry.call = few(entry.call) end
end

-- Views can be larger than what there is time to read.
local function remember(...)
  for i = 1, select('#', ...) do
    local result = select(i, ...)
    local small = type(result) == 'function'
    if core.is_tensor(result) then
      small = not core.is_alive(result) or result:device() == 'meta' or result:numel() <= 1e4
    end
    if small then
      if #pool < 40 then pool[#pool + 1] = result else pool[random(40)] = result end
    end
  end
end

local trace = os.getenv 'UL_FUZZ_TRACE'

local function one_call()
  local entry = pick(calls)
  local arguments = arguments_for(entry)
  if trace then io.stderr:write(entry.name, '\n') end
  if random(15) == 1 then ul.debug.fail_allocation(random(12)) end
  local started = os.clock()
  local results = { pcall(entry.call, unpack(arguments, 1, arguments.n)) }
  ul.debug.fail_allocation(0)
  local seconds = os.clock() - started
  if seconds > 20 then return ('%s took %.0f s'):format(entry.name, seconds) end
  if not results[1] and type(results[2]) == 'string' and #results[2] == 0 then
    return entry.name .. ': an error without a message'
  end
  if results[1] then remember(unpack(results, 2, table.maxn(results))) end
end

local fuzz = {}

local function live_tensors()
  local n = 0
  for _, stats in pairs(ul.memory()) do n = n + stats.live_tensors end
  return n
end

-- Collects until nothing more goes: what one finaliser lets go of is found by the next round.
local function settle()
  local live
  repeat
    live = live_tensors()
    for _ = 1, 2 do collectgarbage() end
  until live_tensors() == live
end

--- Makes n calls that depend on the seed alone. Returns nil, or a sentence about what went wrong.
---@param seed integer
---@param n integer
---@return string|nil
function fuzz.round(seed, n)
  settle()
  local before = ul.memory()
  math.randomseed(seed)
  ul.manual_seed(seed)
  pool = {}
  local problem
  local token = ul.scope_begin 'round'
  for _ = 1, n do
    problem = one_call()
    if problem then break end
  end
  ul.scope_end(token)
  pool = {}
  settle()
  local after = ul.memory()
  for device, stats in pairs(after) do
    -- Less may live: what other specs dropped can be collected meanwhile.
    if not problem and stats.live > before[device].live then
      problem = ('%s: %d bytes live, %d before'):format(device, stats.live, before[device].live)
    end
    if not problem and stats.live_tensors > before[device].live_tensors then
      problem = ('%s: %d tensors, %d before'):format(device, stats.live_tensors,
                                                     before[device].live_tensors)
    end
  end
  return problem
end

return fuzz
