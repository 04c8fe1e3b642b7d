-- ulysses.lua - what the ranks of a layer exchange, and what tensor parallel ranks would.
--
--   build/release/ulysses-lua --ranks 4 tests/bench/ulysses.lua            a few sizes
--   build/release/ulysses-lua --ranks 4 tests/bench/ulysses.lua 16384 2048 N = 16384, C = 2048
--
-- Only the calls between ranks, forward and backward, of one layer with a row of N tokens, width C,
-- heads of 64 (of 128 from C = 4096 on), bf16. Ulysses: q, k and v to heads, o back to tokens.
-- Tensor parallel, as Megatron-LM does it: tokens are gathered before attention and before the feed
-- forward, and reduce-scattered behind each; "again" gathers the inputs of both once more for the
-- gradients of weights. Bytes are counted by the groups and must be those of the formulas of
-- docs/ulysses.md. Times are medians of the slowest rank, the schemes taking turns; "memcpy" is one
-- copy of the bytes that Ulysses sends, by all ranks at once, which is the least it can take; a
-- message through shared memory is copied twice.
local ffi = require 'ffi'
local ul = require 'ulysses'

ffi.cdef [[
  typedef struct { long seconds, nanoseconds; } bench_time;
  int clock_gettime(int, bench_time *);
]]
local clock = ffi.new 'bench_time'
local function now()
  ffi.C.clock_gettime(1, clock)
  return tonumber(clock.seconds) + 1e-9 * tonumber(clock.nanoseconds)
end

local REPEATS, BYTES = 7, 2 -- of bf16

local g = ul.group()
local P = g.size

local function zeros(...) return ul.zeros({ ... }, { dtype = 'bf16' }) end

-- This rank's T of N tokens.
local function share(N) return math.floor(N / P) + (g.rank < N % P and 1 or 0) end

-- ---- the schemes: what each exchanges, and what a rank should send of it ----

-- What is called backward on, and seeds that are made once.
local function backward(list, seeds)
  for i = #seeds + 1, #list do seeds[i] = ul.zeros_like(list[i]:detach()):keep() end
  ul.backward(list, seeds)
end

local function ulysses(N, heads, kv_heads, D)
  local T, seeds = share(N), {}
  local q, k, v = zeros(1, T, heads, D), zeros(1, T, kv_heads, D), zeros(1, T, kv_heads, D)
  for _, x in ipairs { q, k, v } do x:requires_grad_() end
  return function()
    local of_heads = g:shard_heads({ q, k, v }, { q_heads = heads })
    local o = g:shard_tokens(of_heads[1], { heads = heads })
    backward({ o, of_heads[2], of_heads[3] }, seeds)
    for _, x in ipairs { q, k, v } do x.grad = nil end
  end
end

local function tensor_parallel(N, C, again)
  local x, seeds = zeros(1, share(N), C):requires_grad_(), {}
  return function()
    local y = x
    for _ = 1, 2 do y = g:reduce_scatter(g:all_gather(y, { dim = 2 }), { dim = 2 }) end
    backward({ y }, seeds)
    x.grad = nil
    if again then
      for _ = 1, 2 do ul.scope(function() g:all_gather(x:detach(), { dim = 2 }) end) end
    end
  end
end

-- Forward and backward, of equal shares.
local function bytes_of_ulysses(N, heads, kv_heads, D)
  return 2 * (P - 1) / P ^ 2 * N * D * (2 * heads + 2 * math.max(kv_heads, P)) * BYTES
end
local function bytes_of_tensor_parallel(N, C, again)
  return (again and 10 or 8) * (P - 1) / P * N * C * BYTES
end

-- ---- measuring ----

local function slowest(seconds)
  return g:all_reduce(ul.tensor({ seconds }, { dtype = 'f64' }), { op = 'max' }):item()
end

local function median(list)
  table.sort(list)
  return list[math.floor((#list + 1) / 2)]
end

-- The bytes that a rank has sent in f, but for what ranks tell each other of sizes.
local function sent(f)
  g:reset_counts()
  ul.scope(f)
  local sum = 0
  for kind, count in pairs(g:counts()) do
    if kind ~= 'sizes' then sum = sum + count.bytes end
  end
  return sum
end

local function times(list)
  local found = {}
  for i = 1, #list do found[i] = {} end
  for round = 1, REPEATS do
    for i, f in ipairs(list) do
      for _ = 1, 2 do ul.scope(f) end -- the memory of the last one has another shape
      g:barrier()
      local start = now()
      ul.scope(f)
      found[i][round] = slowest(now() - start)
    end
  end
  for i in ipairs(found) do found[i] = median(found[i]) end
  return found
end

local function copy_of(bytes)
  local from, to = ul.zeros({ bytes }, { dtype = 'u8' }), ul.zeros({ bytes }, { dtype = 'u8' })
  return function() ffi.copy(to:data(), from:data(), bytes) end
end

local wrong = 0
local function line(...)
  if g.rank == 0 then print(('%-22s %8s %6s %10s %10s %9s %8s'):format(...)) end
end

local function row(name, N, C, counted, formula, seconds, ratio)
  if counted ~= formula then wrong = wrong + 1 end
  line(name, N, C, ('%.2f'):format(counted / 2 ^ 20), ('%.2f'):format(formula / 2 ^ 20),
       ('%.2f'):format(1e3 * seconds), ratio and ('%.3f'):format(ratio) or '')
end

local function available()
  local text = io.open('/proc/meminfo'):read '*a'
  return tonumber(text:match 'MemAvailable:%s*(%d+)') * 1024
end

local function compare(N, C)
  local D = C < 4096 and 64 or 128
  local heads = C / D
  local needed = P * 8 * N * C * BYTES -- what all ranks together hold at the most
  if slowest(needed / available()) > 0.8 then
    return line(('N = %d, C = %d: %.0f GB are not free'):format(N, C, needed / 1e9), '', '', '', '',
                '', '')
  end
  local names, runs, formulas = {}, {}, {}
  local function add(name, f, formula)
    names[#names + 1], runs[#runs + 1], formulas[#formulas + 1] = name, f, formula
  end
  add('tensor parallel', tensor_parallel(N, C), bytes_of_tensor_parallel(N, C))
  add('tensor parallel, again', tensor_parallel(N, C, true), bytes_of_tensor_parallel(N, C, true))
  add('ulysses, MHA', ulysses(N, heads, heads, D), bytes_of_ulysses(N, heads, heads, D))
  add('ulysses, GQA 4:1', ulysses(N, heads, heads / 4, D), bytes_of_ulysses(N, heads, heads / 4, D))
  local counted = {}
  for i, f in ipairs(runs) do counted[i] = sent(f) end
  add('memcpy', copy_of(formulas[4]))
  local seconds = times(runs)
  for i = 1, 4 do
    row(names[i], N, C, counted[i], formulas[i], seconds[i], seconds[i] / seconds[1])
  end
  line('memcpy of GQA 4:1', N, C, ('%.2f'):format(formulas[4] / 2 ^ 20), '',
       ('%.2f'):format(1e3 * seconds[5]), ('%.0f %%'):format(100 * seconds[5] / seconds[4]))
end

line(P .. ' ranks', 'N', 'C', 'MiB', 'formula', 'ms', 'of tp')
if arg[1] then
  compare(tonumber(arg[1]), tonumber(arg[2] or 1024))
else
  for _, size in ipairs { { 8192, 1024 }, { 16384, 2048 }, { 65536, 1024 }, { 32768, 4096 } } do
    compare(unpack(size))
  end
end
if wrong > 0 then error(wrong .. ' counts are not those of the formula') end
