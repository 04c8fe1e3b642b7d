-- machine.lua - what a run says about the machine it is on, and how fast that can be.
local agree = require 'ulysses.agree'
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

--- FLOP/s that this rank, or all ranks of a group together, have reached at best.
---@param dtype string
---@param group Group?
---@return number
function machine.peak(dtype, group)
  local peak, ranks = 0, tonumber(os.getenv 'OMPI_COMM_WORLD_LOCAL_SIZE') or 1
  agree.numbers(group, {}, 'the peak of the machine') -- they measure at the same time
  for _ = 1, 5 do peak = math.max(peak, ul.peak_flops(dtype)) end
  if not group then return peak end
  -- Ranks that are more than processors take turns, and each measures within its own.
  peak = peak * math.min(1, processors() / (ranks * ul.threads()))
  local sum = 0
  for _, one in ipairs(agree.numbers(group, { math.floor(peak) }, 'the peak of the machine')) do
    sum = sum + one[1]
  end
  return sum
end

return machine
