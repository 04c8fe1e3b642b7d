-- machine.lua - what a run says about the machine it is on, and how fast that can be.
local agree = require 'ulysses.agree'
local gpus = require 'ulysses.gpus'
local ul = require 'ulysses'

local machine = {}

local function read(path, pattern)
  local file = io.open(path)
  local text = file and file:read '*a' or ''
  if file then file:close() end
  return text:match(pattern)
end

---@return string|nil
function machine.cpu_name() return read('/proc/cpuinfo', 'model name%s*: ([^\n]*)') end

-- Processors that this process may use: '0-3,8' are five.
local function processors()
  local n, list = 0, read('/proc/self/status', 'Cpus_allowed_list:%s*(%S+)')
  for first, last in (list or ''):gmatch '(%d+)%-?(%d*)' do
    n = n + 1 + (tonumber(last) or first) - first
  end
  return math.max(n, 1)
end

--- FLOP/s that the cpu reaches at best, on all threads.
---@param dtype string
---@return number
function machine.cpu_peak(dtype)
  local peak = 0
  for _ = 1, 5 do peak = math.max(peak, ul.peak_flops(dtype)) end
  return peak
end

local of_ranks = {} -- by group and dtype: they all have to come together for it

--- The GPU that this process computes on: its name, and its UUID; nil where that is the cpu.
---@return string? name 'NVIDIA H200'
---@return string? uuid
function machine.gpu()
  if ul.default_device():find '^cuda' then return ul.gpu() end
end

-- A number for each text, by which ranks see whether they have the same.
local function number_of(text)
  local number = 0
  for i = 1, #text do number = (number * 257 + text:byte(i)) % 2 ^ 40 end
  return number
end

-- What is published of the GPUs of all ranks, each once, added up: 0 where that is not known.
local function published_together(dtype, group)
  local name, uuid = machine.gpu()
  local peak = gpus.peak(name, dtype, ul.tf32()) or 0
  local sum, seen = 0, {}
  for _, one in ipairs(agree.numbers(group, { peak, number_of(uuid) }, 'the peak of the GPUs')) do
    if one[1] == 0 then return end
    if not seen[one[2]] then sum = sum + one[1] end
    seen[one[2]] = true
  end
  return sum
end

-- What ranks reach at the same time, added up. Those that are more than processors take turns, and
-- each measures within its own.
local function measure_together(dtype, group)
  agree.numbers(group, {}, 'the peak of the machine')
  local ranks, sum = tonumber(os.getenv 'OMPI_COMM_WORLD_LOCAL_SIZE') or 1, 0
  local mine = machine.cpu_peak(dtype) * math.min(1, processors() / (ranks * ul.threads()))
  for _, one in ipairs(agree.numbers(group, { math.floor(mine) }, 'the peak of the machine')) do
    sum = sum + one[1]
  end
  return sum
end

--- FLOP/s that this rank, or all ranks of a group together, can reach at best: measured on the cpu,
--- on GPUs what is published, and nil where that is not known.
---@param dtype string
---@param group Group?
---@return number?
function machine.peak(dtype, group)
  if machine.gpu() then return published_together(dtype, group) end
  if not group then return machine.cpu_peak(dtype) end
  local key = group.name .. ' ' .. dtype
  of_ranks[key] = of_ranks[key] or measure_together(dtype, group)
  return of_ranks[key]
end

return machine
