-- plan_machines.lua - what the planner knows of machines: memory, rates, links.
local gpus = require 'ulysses.gpus'
local machine = require 'ulysses.machine'
local refuse = require 'ulysses.refuse'
local ul = require 'ulysses'

-- What a large product and a large copy reached on an H200, of what is published for it: 790
-- TFLOP/s of 989, 4.3 TB/s of 4.8. Others are taken to reach the same shares.
local PRODUCT, COPY = 790 / 989, 4.3 / 4.8

local machines = { names = { 'a100', 'b200', 'h100', 'h200', 'here' } }

local function of_published(key)
  local it = gpus.published[key]
  local measured = key == 'h200'
  return {
    key = key, name = it.name, memory = it.memory, per_node = 8,
    bandwidth = it.bandwidth * COPY, link = it.link, network = it.network,
    flops = { bf16 = it.bf16 * PRODUCT, f32 = it.f32 * PRODUCT, f64 = it.f64 * PRODUCT },
    peak = { bf16 = it.bf16, f32 = it.f32, f64 = it.f64 },
    source = ('%s: bf16 %.0f TFLOP/s and %.1f TB/s (published %.0f and %.2f)'):format(
      measured and 'as one has reached' or 'published, at the shares that an H200 has reached',
      it.bf16 * PRODUCT / 1e12, it.bandwidth * COPY / 1e12, it.bf16 / 1e12, it.bandwidth / 1e12),
    links = ('published: NVLink %.0f GB/s one way, 8 a node; between nodes %.0f Gb/s a GPU'):format(
      it.link / 1e9, it.network * 8 / 1e9),
  }
end

-- Bytes a second that a large copy moves on this cpu, the best of five.
local function copied_here()
  return ul.scope(function()
    local x = ul.zeros { 2 ^ 24, dtype = 'f32', device = 'cpu' }
    local y, clock, best = x:clone(), require('ulysses.core').system.clock, math.huge
    for _ = 1, 5 do
      local began = clock()
      y:copy_(x)
      best = math.min(best, clock() - began)
    end
    return 2 * 2 ^ 26 / best
  end)
end

local function memory_here()
  local file = io.open '/proc/meminfo'
  local kilobytes = file and file:read('*a'):match 'MemTotal:%s*(%d+)'
  if file then file:close() end
  return kilobytes and kilobytes * 1024 or math.huge
end

-- All ranks share this machine: each has its part, and what it sends is copied.
local function here(ranks)
  local rates, bandwidth = {}, copied_here()
  for _, dtype in ipairs { 'bf16', 'f32', 'f64' } do
    rates[dtype] = machine.cpu_peak(dtype) / ranks
  end
  return {
    key = 'here', name = machine.cpu_name() or 'this machine', memory = memory_here() / ranks,
    per_node = math.huge, bandwidth = bandwidth / ranks, link = bandwidth / 2 / ranks,
    network = bandwidth / 2 / ranks, flops = rates, peak = rates, is_host = true,
    source = ('measured now, of %d rank%s each: f32 %.0f GFLOP/s, %.1f GB/s'):format(
      ranks, ranks == 1 and '' or 's', rates.f32 / 1e9, bandwidth / ranks / 1e9),
    links = 'ranks exchange through memory, at half the rate of a copy',
  }
end

--- Refuses a name that is no machine.
---@param key string
function machines.check(key)
  for _, name in ipairs(machines.names) do
    if name == key then return end
  end
  refuse("--plan: no machine '%s'; there is %s", key, table.concat(machines.names, ', '))
end

--- What is known of a machine that so many ranks run on.
---@param key string one of machines.names
---@param ranks integer
---@return table
function machines.get(key, ranks) return key == 'here' and here(ranks) or of_published(key) end

return machines
