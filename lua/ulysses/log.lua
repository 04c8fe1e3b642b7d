-- log.lua - what a run shows while it trains: one line that is drawn again and again on a terminal,
-- a line now and then where the output goes elsewhere.
local core = require 'ulysses.core'

-- A terminal is drawn to at most this often, in seconds.
local DRAW_EVERY = 0.1

-- ---- words for numbers ----

local function short(value, units)
  local i = 1
  while i < #units and math.abs(value) >= 999.5 do value, i = value / 1000, i + 1 end
  return (value < 9.95 and i > 1 and '%.1f%s' or '%.0f%s'):format(value, units[i])
end

local log = {}

--- '310 MB', '1.2 GB'
---@param bytes number
---@return string
function log.bytes(bytes) return short(bytes, { ' B', ' kB', ' MB', ' GB', ' TB' }) end

--- '85 GFLOP', '1.2 TFLOP'
---@param flops number
---@return string
function log.flops(flops)
  return short(flops, { ' FLOP', ' kFLOP', ' MFLOP', ' GFLOP', ' TFLOP', ' PFLOP' })
end

--- '850', '3.3 M', '8.0 B'
---@param n number
---@return string
function log.count(n) return short(n, { '', ' k', ' M', ' B' }) end

--- '850', '9.4k', '13k', '1.2M'
---@param n number
---@return string
function log.rate(n) return short(n, { '', 'k', 'M' }) end

--- '0:42', '3:12', '1:02:03'
---@param seconds number
---@return string
function log.time(seconds)
  local s = math.floor(seconds + 0.5)
  if s < 3600 then return ('%d:%02d'):format(s / 60, s % 60) end
  return ('%d:%02d:%02d'):format(s / 3600, s % 3600 / 60, s % 60)
end

--- Whole numbers as such, others to four digits.
---@param value any
---@return string
function log.number(value)
  if type(value) ~= 'number' then return tostring(value) end
  if value == math.floor(value) and math.abs(value) < 1e9 then return ('%d'):format(value) end
  return ('%.4g'):format(value)
end

-- ---- the line ----

-- The parts of the line in order, each with its rank: where there is little room the highest go.
local function parts_of(record, pace)
  local parts = { { ('step %d/%d'):format(record.step, pace.last), 0 },
                  { ('loss %.4f'):format(record.loss), 1 } }
  local function add(rank, format, ...) parts[#parts + 1] = { format:format(...), rank } end
  if record.skipped then add(2, 'skipped') end
  local names = {}
  for name in pairs(pace.given) do names[#names + 1] = name end
  table.sort(names, function(a, b)
    local x, y = pace.order[a] or 9, pace.order[b] or 9
    if x ~= y then return x < y end
    return a < b
  end)
  for i, name in ipairs(names) do add(4 + i, '%s %s', name, log.number(pace.given[name])) end
  add(3, '%s tokens/s', log.rate(pace.tokens_per_s))
  if pace.flops_per_s and pace.flops_per_s > 0 then
    local share = pace.peak and (' (%.0f %%)'):format(100 * pace.flops_per_s / pace.peak)
    add(20, '%s/s%s', log.flops(pace.flops_per_s), share or '')
  end
  add(21, '%s', log.bytes(record.peak_bytes))
  if pace.seconds_left > 0 then add(4, 'eta %s', log.time(pace.seconds_left)) end
  return parts
end

local function width_of(parts)
  local width = -2
  for _, part in ipairs(parts) do width = width + #part[1] + 2 end
  return width
end

local function fit(parts, width)
  while #parts > 1 and width_of(parts) > width do
    local worst = 1
    for i, part in ipairs(parts) do
      if part[2] > parts[worst][2] then worst = i end
    end
    table.remove(parts, worst)
  end
  local texts = {}
  for i, part in ipairs(parts) do texts[i] = part[1] end
  return table.concat(texts, '  ')
end

-- ---- the terminal ----

-- Whether the line the cursor stands in is ours. What is printed meanwhile takes its place, and the
-- line comes back below.
local drawn, print_before = false, nil

local function clear()
  if drawn then io.write '\r\27[K' end
  drawn = false
end

local function print_above(...)
  clear()
  return print_before(...)
end

local function draw(text)
  if print ~= print_above then
    print_before = print
    rawset(_G, 'print', print_above)
  end
  clear()
  io.write(text)
  io.flush()
  drawn = true
end

--- Ends the line on a terminal, so that it stays.
function log.leave()
  if drawn then io.write '\n' end
  io.flush()
  drawn = false
  if print == print_above then rawset(_G, 'print', print_before) end
end

--- Prints a sentence, above the line where there is one.
---@param format string
function log.say(format, ...)
  print(format:format(...))
  io.flush()
end

---@class Log
local Log = {}
Log.__index = Log

--- every: a line is printed for the first step, the last, and every so many; 0: none, and nothing
--- on a terminal either.
---@param every integer
---@return Log
function log.new(every) return setmetatable({ every = every, last_drawn = -math.huge }, Log) end

--- Whether this step is to be shown.
---@param step integer
---@param last integer
---@return boolean
function Log:wants(step, last)
  if self.every == 0 then return false end
  self.columns = os.getenv 'TERM' ~= 'dumb' and core.system.columns() or nil
  if step == last then return true end
  if self.columns then return core.system.clock() - self.last_drawn >= DRAW_EVERY end
  return step == 1 or step % self.every == 0
end

--- Shows a step that wants() has asked for.
---@param record table of metrics.jsonl
---@param pace { last: integer, given: table, order: table, tokens_per_s: number,
---  flops_per_s: number?, peak: number?, seconds_left: number }
function Log:step(record, pace)
  local parts = parts_of(record, pace)
  if not self.columns then return log.say('%s', fit(parts, math.huge)) end
  self.last_drawn = core.system.clock()
  draw(fit(parts, self.columns - 1))
end

return log
