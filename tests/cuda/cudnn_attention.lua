-- cudnn_attention.lua - attention by cuDNN's graphs against f64 on the cpu; cudnn_spec.lua runs it
-- with the library of cudnn_fake.cc. On a GPU it says the same of cuDNN, or of our own kernels:
--
--   luajit tests/cuda/cudnn_attention.lua [cudnn | native] [any_order | in_order] [large]
--
-- A line for each case, what has run, and as the last line how many passed.
local ul = require 'ulysses'
local abs, max = math.abs, math.max

local limits = { o = 6e-3, lse = 1e-4, dq = 1e-2, dk = 1e-2, dv = 1e-2 }
local order = { 'o', 'lse', 'dq', 'dk', 'dv' }

-- Views into one tensor, as one product with the weights of all three leaves them.
local function parts(case)
  local H, Hkv, D = case.heads, case.kv_heads, case.dim
  local all = (ul.randn(case.batch, case.tokens, (H + 2 * Hkv) * D) * (case.size or 1)):to 'bf16'
  local q, k = all[{ {}, {}, { 1, H * D } }], all[{ {}, {}, { H * D + 1, (H + Hkv) * D } }]
  local v = all[{ {}, {}, { (H + Hkv) * D + 1, (H + 2 * Hkv) * D } }]
  local function heads(x, n)
    if not case.interleaved then x = x:contiguous() end
    return x:view(case.batch, case.tokens, n, D)
  end
  if case.low then -- log-sum-exps of about -120: exp(0 - lse) is no f32
    q, k = q * 0.1 + 1, k - 120 / math.sqrt(D)
  end
  return heads(q, H), heads(k, Hkv), heads(v, Hkv)
end

local function run(inputs, seed, options)
  for i = 1, 3 do inputs[i] = inputs[i]:detach():requires_grad_() end
  local o, lse = ul.F.attention(inputs[1], inputs[2], inputs[3], options)
  if seed then ul.backward({ o }, { seed }) end
  return { o = o:detach(), lse = lse:detach(), dq = inputs[1].grad, dk = inputs[2].grad,
           dv = inputs[3].grad }
end

-- How far y is from x, relative to the largest of x, and whether it is a number. Gradients that
-- are all nought (a window of one) are sums of numbers of about one that cancel to f32's 1e-7.
local function gap(x, y)
  local one, other = x:to 'f64':contiguous(), y:to 'cpu':to 'f64':contiguous()
  local want, got, largest, most = one:data(), other:data(), 1e-4, 0
  for i = 0, one:numel() - 1 do
    largest = max(largest, abs(want[i]))
    local d = abs(want[i] - got[i])
    if not (d <= most) then most = d end
  end
  return most / largest
end

local passed, failed = 0, 0

local function compare(case)
  ul.manual_seed(11)
  local q, k, v = parts(case)
  local seed = ul.randn(case.batch, case.tokens, case.heads, case.dim):to 'bf16'
  if case.forward then seed = nil end
  local options = { causal = case.causal, window = case.window, docs = case.docs, lse = true }
  local expected = run({ q:to 'f64', k:to 'f64', v:to 'f64' }, seed and seed:to 'f64', options)
  if case.docs then options.docs = ul.tensor(case.docs, { dtype = 'i64', device = 'cuda' }) end
  local actual = run({ q:to 'cuda', k:to 'cuda', v:to 'cuda' }, seed and seed:to 'cuda', options)
  local words, bad = {}, false
  for _, name in ipairs(order) do
    if expected[name] then
      local d = gap(expected[name], actual[name])
      bad = bad or not (d <= limits[name] * (case.low and 10 or 1))
      words[#words + 1] = ('%s %.1e'):format(name, d)
    end
  end
  if bad then failed = failed + 1 else passed = passed + 1 end
  print(('%s %s: %s'):format(bad and 'WRONG' or 'right', case.name, table.concat(words, ' ')))
end

local function case(name, heads, kv_heads, dim, batch, tokens, more)
  more.name, more.heads, more.kv_heads, more.dim = name, heads, kv_heads, dim
  more.batch, more.tokens = batch, tokens
  return more
end

local cases = {
  case('causal', 2, 2, 64, 2, 70, { causal = true }),
  case('causal, shared heads', 4, 2, 64, 1, 64, { causal = true }),
  case('causal, one kv head', 3, 1, 32, 1, 33, { causal = true }),
  case('full', 2, 1, 64, 1, 128, {}),
  case('full, forward', 2, 1, 96, 1, 50, { forward = true }),
  case('window', 4, 2, 64, 1, 60, { causal = true, window = 7 }),
  case('window of one', 2, 2, 32, 1, 20, { causal = true, window = 1 }),
  case('documents', 4, 2, 64, 1, 70, { causal = true, docs = { 0, 9, 10, 43, 70 } }),
  case('documents, two rows', 2, 2, 32, 2, 40, { causal = true, docs = { 0, 11, 40, 41, 80 } }),
  case('documents, full', 4, 1, 32, 1, 48, { docs = { 0, 16, 48 } }),
  case('documents, window', 4, 2, 32, 1, 60, { causal = true, window = 5, docs = { 0, 40, 60 } }),
  case('documents that are rows', 2, 2, 32, 2, 24, { causal = true, docs = { 0, 24, 48 } }),
  case('interleaved', 4, 2, 64, 2, 40, { causal = true, interleaved = true }),
  case('interleaved documents', 4, 2, 32, 1, 50,
       { causal = true, interleaved = true, docs = { 0, 3, 50 } }),
  case('large scores', 2, 1, 64, 1, 64, { causal = true, size = 6 }),
  case('low scores', 2, 1, 64, 1, 64, { causal = true, low = true }),
}
local large = {
  case('1024 tokens', 4, 2, 128, 1, 1024, { causal = true }),
  case('1088 tokens, low scores', 4, 2, 128, 1, 1088, { causal = true, low = true }),
  case('1088 tokens, window', 4, 4, 128, 1, 1088, { causal = true, window = 300 }),
  case('1024 tokens, full', 4, 1, 128, 1, 1024, {}),
  case('1500 tokens, documents', 8, 2, 128, 1, 1500,
       { causal = true, docs = { 0, 1, 129, 700, 1500 } }),
  case('1500 tokens, documents, low scores', 4, 2, 128, 1, 1500,
       { causal = true, low = true, docs = { 0, 64, 128, 700, 1500 } }),
}

ul.attention_backend(arg[1] or 'cudnn')
ul.deterministic(arg[2] == 'in_order')
for _, each in ipairs(arg[3] == 'large' and large or cases) do
  ul.scope(function() compare(each) end)
end
print(ul.attention_report())
print(('%d passed, %d failed, 0 skipped'):format(passed, failed))
os.exit(failed > 0 and 1 or 0, true)
