-- run.lua - `make bench`: times each op against the floor that the machine sets in the same run.
--
--   ulysses-lua tests/bench/run.lua           all ops
--   ulysses-lua tests/bench/run.lua attention those with "attention" in the name
--   ulysses-lua --device cuda tests/bench/run.lua   the sizes of ops_cuda.lua, on a GPU
--
-- A line for each: op, size, time, floor, share = floor / time. The floor is what the FLOPs or the
-- bytes that the meta device counts would take at the machine's measured peak; peaks and op are
-- measured in turn, so that both see the same clock and the same neighbours. Figures are medians.
-- A share over 100 % means that the caches held what was counted as memory traffic.
local ffi = require 'ffi'
local ul = require 'ulysses'
local clock = require 'ulysses.core'.system.clock

ffi.cdef [[
double bench_peak_bandwidth(void);
]]
local folder = arg[0]:match '^(.*)/[^/]*$' or '.'
local there = ul.default_device()
local on_cpu = there == 'cpu'
local peak = on_cpu and ffi.load(folder .. '/../../build/release/libbench_peak.so')

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

-- Reading a value waits for all work before it.
local function wait()
  if not on_cpu then ul.zeros(1):item() end
end

-- Seconds of one call, over as many as fill SECONDS.
local function time(run, repeats)
  wait()
  local start = clock()
  for _ = 1, repeats do ul.scope(run) end
  wait()
  return (clock() - start) / repeats
end

-- What a GPU reaches: a large copy, and large products of random numbers. Reached anew with each
-- op, so that both see the same clock.
local gpu = { scale = os.getenv 'UL_CUDA_BACKEND' and 64 or 1 } -- ops_cuda.lua says why

function gpu.bandwidth()
  gpu.x = gpu.x or ul.randn { 2 ^ 28 / gpu.scale ^ 2, dtype = 'f32' }
  gpu.y = gpu.y or gpu.x:clone()
  return 2 * 4 * gpu.x:numel() / time(function() gpu.y:copy_(gpu.x) end, 5)
end

function gpu.flops(dtype)
  local n = (dtype == 'bf16' and 8192 or 4096) / gpu.scale
  gpu[dtype] = gpu[dtype] or ul.randn { n, n, dtype = dtype }
  return 2 * n ^ 3 / time(function() return gpu[dtype]:matmul(gpu[dtype]) end, 3)
end

local function bandwidth() return on_cpu and peak.bench_peak_bandwidth() or gpu.bandwidth() end
local function flops_of(dtype) return on_cpu and ul.peak_flops(dtype) or gpu.flops(dtype) end

local function measure(case)
  local flops, bytes = cost(case)
  local times, arithmetic, memory = {}, {}, {}
  ul.scope(function()
    local run = case.make(on(there, case), ul)
    ul.scope(run)
    local repeats = math.max(1, math.floor(SECONDS / time(run, 1)))
    for i = 1, ROUNDS do
      arithmetic[i] = flops / flops_of(case.dtype)
      memory[i] = bytes / bandwidth()
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
print(('%s; peak %.0f GFLOP/s f32, %.0f bf16, %.0f GB/s'):format(
  on_cpu and ('isa %s, %d threads'):format(ul.isa(), ul.threads()) or there,
  flops_of 'f32' / 1e9, flops_of 'bf16' / 1e9, bandwidth() / 1e9))
print(line:format('op', 'size', 'dtype', 'time ms', 'floor ms', 'by', 'share'))
for _, case in ipairs(dofile(folder .. (on_cpu and '/ops.lua' or '/ops_cuda.lua'))) do
  if not pattern or case.op:find(pattern, 1, true) then measure(case) end
end
