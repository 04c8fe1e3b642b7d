-- plan.lua - `ulysses-lua --plan`: what one step takes of memory, wire and time on a named machine.
--
-- The script runs on meta, where every kernel and exchange is counted and nothing computed; the
-- first of the pretended ranks stands for all. Times are floors over the expected shares of
-- floors.lua, one kernel behind the other: nothing is hidden under anything else.
local core = require 'ulysses.core'
local dtype_bytes = require 'ulysses.dtype_bytes'
local floors = require 'ulysses.floors'
local log = require 'ulysses.log'
local plan_machines = require 'ulysses.plan_machines'
local refuse = require 'ulysses.refuse'
local rerun = require 'ulysses.rerun'

local plan = {}

--- From now on a run on meta ends with the page.
---@param key string one of plan_machines.names
function plan.begin(key) plan.machine = key end

--- Behind the script: there must have been a page.
function plan.finish()
  if not plan.printed then
    refuse '--plan: the script took no step of ul.run, which is what is planned'
  end
end

-- ---- counting ----

local axes = { 'dp', 'ring', 'ulysses', 'tp', 'sequence', 'replicas', 'world' }

-- Each group of a mesh once, by the first axis that it is.
local function groups_of(mesh)
  local list, seen = {}, {}
  for _, axis in ipairs(axes) do
    local group = mesh and mesh[axis]
    if group and group.size > 1 and not seen[group] then
      seen[group] = true
      list[#list + 1] = { axis = group == mesh.world and 'all' or axis, group = group }
    end
  end
  return list
end

--- Before each step on meta: the last one is what is shown.
---@param run Run
function plan.begin_step(run)
  core.reset_meta_counts()
  for _, it in ipairs(groups_of(run.mesh)) do it.group:reset_counts() end
  plan.before = { flops = core.flops(), again = rerun.flops }
end

-- How many ranks of a group are on one node, this one among them.
local function on_node(mesh, axis, size, per_node)
  local sizes = mesh.sizes
  local strides = { replicas = sizes.tp, ulysses = sizes.tp, ring = sizes.tp * sizes.ulysses,
                    dp = sizes.tp * sizes.ulysses * sizes.ring }
  return math.min(size, math.max(1, math.floor(per_node / (strides[axis] or 1))))
end

-- Seconds on the wire at full rate. Of an all_to_all only what leaves the node takes the network;
-- sums and gathers go round in rings that use all the node's adapters; the rest goes to a
-- neighbour, for some rank on another node.
local function wire_seconds(machine, kind, bytes, size, near)
  if near == size then return bytes / machine.link, 'link' end
  if kind == 'all_to_all' then
    local far = bytes * (size - near) / (size - 1)
    return math.max(far / machine.network, (bytes - far) / machine.link), 'network'
  elseif kind == 'shift' or kind == 'send' then
    return bytes / machine.network, 'network'
  end
  return bytes / math.min(machine.link, near * machine.network), 'network'
end

local moves = { 'all_to_all', 'shift', 'all_reduce', 'all_gather', 'reduce_scatter', 'broadcast',
                'send' }

--- What this rank has sent since begin_step: { axis, kind, size, calls, bytes, seconds, over }.
---@param run Run
---@param machine table
---@return table[]
function plan.wire(run, machine)
  local list = {}
  for _, it in ipairs(groups_of(run.mesh)) do
    local counts, size = it.group:counts(), it.group.size
    local near = on_node(run.mesh, it.axis, size, machine.per_node)
    for _, kind in ipairs(moves) do
      local count = counts[kind]
      if count and count.bytes > 0 then
        local seconds, over = wire_seconds(machine, kind, count.bytes, size, near)
        list[#list + 1] = { axis = it.axis, kind = kind, size = size, calls = count.calls,
                            bytes = count.bytes, seconds = seconds, over = over }
      end
    end
  end
  return list
end

--- A line for each of floors.kinds: FLOPs, bytes, floor and time in seconds, and what bounds it.
---@param machine table
---@param wire table[]
---@return table[]
function plan.kernels(machine, wire)
  local lines, by_kind = {}, {}
  for i, kind in ipairs(floors.kinds) do
    lines[i] = { kind = kind, flops = 0, bytes = 0, floor = 0, time = 0, computing = 0 }
    by_kind[kind] = lines[i]
  end
  for _, one in ipairs(core.meta_kernels()) do
    local row = floors.of(one.name)
    local line = by_kind[row.kind]
    -- FLOPs of other kernels than products and attention are hidden under their bytes
    local multiplies = row.kind:find '^products' or row.kind:find '^attention'
    local flops = multiplies and one.flops or 0
    local computing = flops / (machine.flops[one.dtype] or machine.flops.f32)
    local floor = math.max(computing, one.bytes / machine.bandwidth)
    line.flops, line.bytes = line.flops + flops, line.bytes + one.bytes
    line.floor, line.time = line.floor + floor, line.time + floor / row.share
    line.computing = line.computing + computing
  end
  local exchange = by_kind.exchange
  for _, one in ipairs(wire) do
    exchange.bytes, exchange.floor = exchange.bytes + one.bytes, exchange.floor + one.seconds
  end
  exchange.time = exchange.floor / floors.of_exchange().share
  for _, line in ipairs(lines) do
    line.by = line.kind == 'exchange' and 'wire'
      or line.computing > 0.5 * line.floor and 'compute' or 'memory'
  end
  return lines
end

-- ---- memory ----

local function bytes_of(t)
  return t:numel() * dtype_bytes[t:dtype()]
end

-- What an optimizer keeps of a parameter.
local function state_of(entry)
  local bytes = 0
  for key, value in pairs(entry) do
    if key ~= 'parameter' and core.is_tensor(value) then bytes = bytes + bytes_of(value) end
  end
  return bytes
end

--- Bytes of a rank: peak as meta counts it, what of it stays between steps (weights, state), the
--- gradients of a whole step, and what else there is at the peak.
--- On the cpu what is on the host counts too.
---@param run Run
---@return table
function plan.memory(run)
  local meta, host = core.memory 'meta', core.memory 'cpu'
  local it = { weights = 0, gradients = 0, state = 0, scratch = meta.scratch,
               peak = meta.peak + meta.scratch, off = meta.off_device_peak, host = host.peak }
  if plan.machine == 'here' then it.peak = it.peak + it.host end
  for _, parameter in ipairs(run.model.parameters and run.model:parameters() or {}) do
    it.weights = it.weights + bytes_of(parameter)
  end
  local optim = run.optim or { entries = {} }
  for _, entry in ipairs(optim.entries) do
    local parameter = entry.parameter
    if not optim.offload then it.state = it.state + state_of(entry) end
    if parameter.requires_grad then -- they are summed in accumulators
      it.gradients = it.gradients + parameter:numel() * (parameter:dtype() == 'f64' and 8 or 4)
    end
  end
  it.rest = it.peak - it.weights - it.gradients - it.state - it.scratch
  return it
end

-- ---- the page ----

local function gigabytes(bytes)
  return bytes < 1e9 and ('%.1f MB'):format(bytes / 1e6) or ('%.2f GB'):format(bytes / 1e9)
end

local function seconds_text(seconds)
  if seconds >= 1 then return ('%.2f s'):format(seconds) end
  return ('%.2f ms'):format(seconds * 1e3)
end

local function flops_text(flops)
  if flops == 0 then return '' end
  if flops >= 1e12 then return ('%.1f T'):format(flops / 1e12) end
  return flops >= 1e9 and ('%.1f G'):format(flops / 1e9) or ('%.1f M'):format(flops / 1e6)
end

local function fit_text(self, memory, machine)
  local over = memory.peak - machine.memory
  if over <= 0 then
    return ('fits in %s, %s to spare'):format(gigabytes(machine.memory), gigabytes(-over))
  end
  return ('does not fit in %s: %s too much%s'):format(
    gigabytes(machine.memory), gigabytes(over), plan.advice(self, machine))
end

local function memory_page(self, machine, memory)
  local lines = { '', 'memory of a rank' }
  local function add(name, bytes, note)
    if bytes ~= 0 then
      lines[#lines + 1] = ('  %-28s %12s  %s'):format(name, gigabytes(bytes), note or '')
    end
  end
  add('weights', memory.weights)
  add('gradients', memory.gradients)
  add('optimizer state', memory.state)
  if memory.rest > 0 then add('activations and the rest', memory.rest, 'at the peak') end
  add('scratch', memory.scratch)
  add('peak', memory.peak, fit_text(self, memory, machine))
  add('off the device', memory.off, 'memory of the host')
  return lines
end

local function time_page(lines, kernels, total)
  lines[#lines + 1] = ''
  lines[#lines + 1] = ('%-22s %10s %10s %10s %6s %10s %6s  %s'):format(
    'a step of a rank', 'FLOPs', 'bytes', 'floor', 'share', 'time', '', 'bound by')
  for _, line in ipairs(kernels) do
    if line.floor > 0 then
      lines[#lines + 1] = ('  %-20s %10s %10s %10s %4.0f %% %10s %4.0f %%  %s'):format(
        line.kind, flops_text(line.flops), gigabytes(line.bytes), seconds_text(line.floor),
        100 * line.floor / line.time, seconds_text(line.time), 100 * line.time / total.time,
        line.by)
    end
  end
  lines[#lines + 1] = ('  %-20s %10s %10s %10s %4.0f %% %10s'):format(
    'in all', flops_text(total.flops), '', seconds_text(total.floor),
    100 * total.floor / total.time, seconds_text(total.time))
end

local function wire_page(lines, wire)
  if #wire == 0 then return end
  lines[#lines + 1] = ''
  lines[#lines + 1] = 'sent by a rank'
  for _, one in ipairs(wire) do
    lines[#lines + 1] = ('  %-16s %-14s of %-5d %6d calls %12s %12s  %s'):format(
      one.kind, one.axis, one.size, one.calls, gigabytes(one.bytes), seconds_text(one.seconds),
      one.over)
  end
end

local function sum(kernels)
  local total = { flops = 0, floor = 0, time = 0 }
  for _, line in ipairs(kernels) do
    for key in pairs(total) do total[key] = total[key] + line[key] end
  end
  return total
end

-- Tokens per second, and the FLOPs that the model is in need of over what the machine could do: of
-- those counted neither second runs nor the fifth product of attention's gradient.
local function rate_page(lines, self, machine, kernels, total, tokens)
  local wasted = rerun.flops - plan.before.again
  local exchange = kernels[#kernels].time
  for _, line in ipairs(kernels) do
    if line.kind == 'attention, backward' then wasted = wasted + line.flops / 5 end
  end
  local peak = machine.peak[self.dtype] or machine.peak.f32
  local n = self.mesh and self.mesh.world.size or 1
  lines[#lines + 1] = ''
  lines[#lines + 1] = ('%s tokens/s, %s of each rank; MFU %.0f %%; %.0f %% of the time is exchange'
    ):format(log.rate(tokens / total.time), log.rate(tokens / total.time / n),
             100 * (total.flops - wasted) / total.time / peak, 100 * exchange / total.time)
end

local function head(self, machine, ranks, tokens)
  local n = self.mesh and self.mesh.world.size or 1
  local parameters = self.model.n_parameters and self.model:n_parameters() or 0
  local nodes = math.ceil(n / machine.per_node)
  local lines = {
    ('plan for %s %s%s'):format(n == 1 and 'one' or n .. ' x', machine.name,
                                nodes > 1 and (' on %d nodes'):format(nodes) or ''),
    ('  rates   %s'):format(machine.source),
  }
  if n > 1 then lines[#lines + 1] = '  links   ' .. machine.links end
  lines[#lines + 1] = ('  model   %s parameters, %s'):format(log.count(parameters), self.dtype)
  lines[#lines + 1] = ('  ranks   %s'):format((ranks or '1'):gsub(' ranks', ''))
  lines[#lines + 1] = ('  step    %s tokens'):format(log.count(tokens))
  return lines
end

local function tokens_of(self)
  local data = self.data
  if self.mesh and data.size and data.length then return data.size * data.length end
  return self.tokens_of_step or 0
end

-- ---- what would make it fit ----

local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

-- The peak of the same plan with other settings, in a process of its own; nil where it has none.
local function peak_with(settings, ranks)
  local first = 0
  while arg[first - 1] do first = first - 1 end
  local words = { 'UL_PLAN_PEAK=1', 'UL_PLAN_RANKS=' .. ranks, '/proc/$PPID/exe' }
  for i = first + 1, #arg do
    local name = i > 0 and arg[i]:match '^([%w_.]+)='
    if not (name and settings[name] ~= nil) then words[#words + 1] = quoted(arg[i]) end
  end
  for name, value in pairs(settings) do
    words[#words + 1] = quoted(name .. '=' .. tostring(value))
  end
  local pipe = io.popen(table.concat(words, ' ') .. ' 2>/dev/null')
  local peak = tonumber((pipe:read '*a'):match 'peak of a rank: (%d+)')
  pipe:close()
  return peak
end

-- Settings that recipes have for it, tried one by one and then all together.
local function variants(self)
  local config, list, all = self.config or {}, {}, {}
  local ranks = self.mesh and self.mesh.world.size or 1
  local function try(name, value, n)
    list[#list + 1], all[name] = { { [name] = value }, n }, value
  end
  if config.shard == false and ranks > 1 then try('shard', true, ranks) end
  if config.recompute == false then try('recompute', true, ranks) end
  if config.offload == false then try('offload', true, ranks) end
  if type(config.sp) == 'number' then
    try('sp', 2 * config.sp, 2 * ranks)
    if config.shard == false then all.shard = true end
  end
  if #list > 1 then list[#list + 1] = { all, list[#list][2] } end
  return list
end

local function settings_text(settings)
  local words = {}
  for name, value in pairs(settings) do words[#words + 1] = name .. '=' .. tostring(value) end
  table.sort(words)
  return table.concat(words, ' ')
end

--- What the peak would be with other settings, as lines; each is planned.
---@param self Run
---@param machine table
---@return string
function plan.advice(self, machine)
  local lines = {}
  for _, it in ipairs(variants(self)) do
    local peak = peak_with(it[1], it[2])
    if peak then
      lines[#lines + 1] = ('\n    %-40s %12s  %s'):format(
        ('with %s on %d ranks:'):format(settings_text(it[1]), it[2]), gigabytes(peak),
        peak <= machine.memory and 'fits' or 'does not fit either')
      if peak <= machine.memory then break end
    end
  end
  return table.concat(lines)
end

--- The page, of the step that was taken last.
---@param self Run
---@param ranks string? '8 ranks (sp 8)'
---@return string
function plan.page(self, ranks)
  if not plan.before then refuse '--plan: the run took no step' end
  local memory = plan.memory(self) -- before a machine is measured
  local machine = plan_machines.get(plan.machine, self.mesh and self.mesh.world.size or 1)
  plan.printed = true
  if os.getenv 'UL_PLAN_PEAK' then return ('peak of a rank: %d'):format(memory.peak) end
  local wire = plan.wire(self, machine)
  local kernels, tokens = plan.kernels(machine, wire), tokens_of(self)
  local total = sum(kernels)
  local lines = head(self, machine, ranks, tokens)
  for _, line in ipairs(memory_page(self, machine, memory)) do lines[#lines + 1] = line end
  time_page(lines, kernels, total)
  wire_page(lines, wire)
  rate_page(lines, self, machine, kernels, total, tokens)
  return (table.concat(lines, '\n'):gsub(' +\n', '\n'))
end

return plan
