-- run.lua - `make bench`: times each op against the floor that the machine sets in the same run.
--
--   ulysses-lua tests/bench/run.lua           all ops
--   ulysses-lua tests/bench/run.lua attention those with "attention" in the name
--
-- A line for each: op, size, time, floor, share = floor / time. The floor is what the FLOPs or the
-- bytes that the meta device counts would take at the machine's measured peak; peaks and op are
-- measured in turn, so that both see the same clock and the same neighbours. Figures are medians.
-- A share over 100 % means that the caches held what was counted as memory traffic.
local ffi = require 'ffi'
local ul = require 'ulysses'

ffi.cdef [[
double bench_peak_bandwidth(void);
double bench_now(void);
]]
local folder = arg[0]:match '^(.*)/[^/]*$' or '.'
local peak = ffi.load(folder .. '/../../build/release/libbench_peak.so')

local ROUNDS, SECONDS = 7, 0.02
local line = '%-22s %-46s %-5s %10s %10s %-5s %7s'

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

local function on(device, case)
  return function(...)
    local shape = { ... }
    shape.dtype, shape.device = case.dtype, device
    local x = ul.empty(shape)
    return device == 'meta' and x or x:normal_()
  end
end

-- FLOPs and bytes of one call.
local function cost(case)
  return ul.scope(function()
    local run = case.make(on('meta', case), ul)
    ul.reset_meta_counts()
    ul.scope(run)
    return ul.meta_counts()
  end)
end

-- Seconds of one call, over as many as fill SECONDS.
local function time(run, repeats)
  local start = peak.bench_now()
  for _ = 1, repeats do ul.scope(run) end
  return (peak.bench_now() - start) / repeats
end

local function measure(case)
  local flops, bytes = cost(case)
  local times, arithmetic, memory = {}, {}, {}
  ul.scope(function()
    local run = case.make(on('cpu', case), ul)
    ul.scope(run)
    local repeats = math.max(1, math.floor(SECONDS / time(run, 1)))
    for i = 1, ROUNDS do
      arithmetic[i] = flops / ul.peak_flops(case.dtype)
      memory[i] = bytes / peak.bench_peak_bandwidth()
      times[i] = time(run, repeats)
    end
  end)
  local floor, seconds = math.max(median(arithmetic), median(memory)), median(times)
  local bound = median(arithmetic) > median(memory) and 'flops' or 'bytes'
  print(line:format(case.op, case.size, case.dtype, ('%.3f'):format(seconds * 1e3),
                    ('%.3f'):format(floor * 1e3), bound, ('%.0f %%'):format(100 * floor / seconds)))
  io.flush()
end

local pattern = arg[1]
print(('isa %s, %d threads; peak %.0f GFLOP/s f32, %.0f bf16, %.0f GB/s'):format(
  ul.isa(), ul.threads(), ul.peak_flops 'f32' / 1e9,
  ul.peak_flops 'bf16' / 1e9, peak.bench_peak_bandwidth() / 1e9))
print(line:format('op', 'size', 'dtype', 'time ms', 'floor ms', 'by', 'share'))
for _, case in ipairs(dofile(folder .. '/ops.lua')) do
  if not pattern or case.op:find(pattern, 1, true) then measure(case) end
end
