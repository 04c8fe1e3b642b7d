-- comm.lua - what calls between ranks cost, beside memcpy and the bytes they send.
--
--   mpirun --oversubscribe -np 2 build/release/ulysses-lua tests/bench/comm.lua
--
-- Times are medians, of the slowest rank. "floor": one memcpy of what a rank sends, by all ranks at
-- once; a message through shared memory needs two.
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

local g = ul.group()

-- The median time of f on the slowest rank.
local function time(f, repeats)
  local list = {}
  f()
  for i = 1, repeats do
    g:barrier()
    local start = now()
    f()
    local took = ul.tensor({ now() - start }, { dtype = 'f64' })
    list[i] = g:all_reduce(took, { op = 'max' }):item()
  end
  table.sort(list)
  return list[math.floor((#list + 1) / 2)]
end

local function line(...)
  if g.rank == 0 then print(('%-16s %10s %12s %12s %8s'):format(...)) end
end

line('call', 'MiB', 'ms', 'floor ms', 'GB/s')
line('barrier', '', ('%.4f'):format(1e3 * time(function() g:barrier() end, 1000)), '', '')
for _, bytes in ipairs { 1024, 2 ^ 20, 2 ^ 24, 2 ^ 26 } do
  local x, y = ul.zeros { bytes / 4 }, ul.zeros { bytes / 4 }
  local repeats = math.max(5, math.min(300, 2 ^ 28 / bytes))
  local function copied(part)
    local n = bytes * part
    return time(function() ffi.copy(y:data(), x:data(), n) end, repeats)
  end
  local P = g.size
  local calls = {
    { 'all_to_all', (P - 1) / P, function() g:all_to_all(x) end },
    { 'all_gather', (P - 1) / P, function() g:all_gather(x:narrow(1, 1, bytes / 4 / P)) end },
    { 'reduce_scatter', (P - 1) / P, function() g:reduce_scatter(x) end },
    { 'all_reduce_', 2 * (P - 1) / P, function() g:all_reduce_(x) end },
    { 'broadcast_', 1, function() g:broadcast_(x) end },
  }
  for _, call in ipairs(calls) do
    local name, part, f = unpack(call)
    local took = time(function() ul.scope(f) end, repeats)
    local floor = copied(math.min(1, part))
    line(name, ('%.3f'):format(bytes / 2 ^ 20), ('%.4f'):format(1e3 * took),
         ('%.4f'):format(1e3 * floor), ('%.1f'):format(bytes * part / took / 1e9))
  end
end
