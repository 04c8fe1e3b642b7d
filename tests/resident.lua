-- resident.lua - what a recipe takes in a process of its own, and what the meta device says of it.
local program = require 'tests.program'

-- What the child prints at its end: the most that was resident since it started, and the counts of
-- the engine, in bytes.
local hook = [[
  local function most()
    for line in io.lines '/proc/self/status' do
      local kB = line:match '^VmHWM:%s+(%d+)'
      if kB then return kB * 1024 end
    end
  end
  local start, at_end = most(), newproxy(true)
  getmetatable(at_end).__gc = function()
    local memory = require('ulysses.core').memory()
    print(('@ %d %d %d %d %d'):format(most() - start, memory.meta.peak, memory.cpu.peak,
                                      memory.cpu.live + memory.cpu.cached, memory.cpu.scratch))
  end
  package.loaded.at_end = at_end
]]

local function run(device, script, settings)
  local output, status = program.shell(('$P --threads 2 --device %s -e %s %s %s'):format(
    device, "'" .. hook:gsub("'", "'\\''") .. "'", script, table.concat(settings, ' ')))
  local found, fields = {}, { 'resident', 'meta', 'cpu', 'held', 'scratch' }
  for i, number in ipairs { output:match '@ (%d+) (%d+) (%d+) (%d+) (%d+)\n$' } do
    found[fields[i]] = tonumber(number)
  end
  if status ~= 0 or not found.resident then error(output, 0) end
  found.plan = tonumber((output:match 'takes (%d+) MB at its peak'))
  return found
end

--- Runs a recipe on both devices.
---   counted   what the meta device makes of it: its tensors, those of the host (the text) and
---             the scratch of kernels
---   plan      what it says of that, where it is less than 10 GB
---   tensors   what tensors held on the cpu
---   held      the same with the gaps between them
---   resident  what the process came to hold beyond what it held when it started
---@param script string
---@param settings string[]
---@return table<string, number> bytes
return function(script, settings)
  local meta, cpu = run('meta', script, settings), run('cpu', script, settings)
  return { counted = meta.meta + meta.cpu + meta.scratch, tensors = cpu.cpu, held = cpu.held,
           resident = cpu.resident, plan = meta.plan and meta.plan * 1e6 }
end
