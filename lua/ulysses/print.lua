-- print.lua - how tensors look: shape, dtype, device, values (three at each edge where there are
-- many), and a line of statistics for big ones.
local core = require 'ulysses.core'

local EDGE = 3       -- values shown at each end of a long dim
local LONG = 10      -- dims up to this size are shown whole where there are few elements
local BIG = 1000     -- elements from which on statistics say more than values
local PART = 2 ^ 18  -- elements that statistics look at at once

-- The positions shown of a dim: all, or both edges with a gap (0) between.
local function positions(size, whole)
  local list = {}
  if size <= whole then
    for i = 1, size do list[i] = i end
    return list
  end
  for i = 1, EDGE do list[i] = i end
  list[EDGE + 1] = 0
  for i = EDGE, 1, -1 do list[#list + 1] = size - i + 1 end
  return list
end

-- The values shown, as nested lists in which false stands for a gap.
local function shown(t, whole)
  if t:dim() == 0 then return t:item() end
  local list = {}
  for i, at in ipairs(positions(t:size(1), whole)) do
    list[i] = at > 0 and core.scope(function() return shown(t[at], whole) end)
  end
  return list
end

local function each(value, visit)
  if type(value) == 'number' then visit(value) end
  for _, inner in ipairs(type(value) == 'table' and value or {}) do each(inner, visit) end
end

-- One format for all values: whole numbers, fixed point, or exponents where sizes differ too much.
local function format_for(values)
  local whole, least, most = true, math.huge, 0
  each(values, function(x)
    local size = math.abs(x)
    if x ~= x or size == math.huge then return end
    whole = whole and x == math.floor(x)
    most = math.max(most, size)
    if size > 0 then least = math.min(least, size) end
  end)
  if whole and most < 1e15 then return '%.0f' end
  if most >= 1e5 or least < 1e-4 then return '%.4e' end
  return '%.4f'
end

local function render(values, format, width, indent)
  if not values then return '...' end
  if type(values) == 'number' then
    local text = format:format(values)
    return (' '):rep(width - #text) .. text
  end
  local items, nested = {}, false
  for i, value in ipairs(values) do
    nested = nested or type(value) == 'table'
    items[i] = render(value, format, width, indent .. ' ')
  end
  return '[' .. table.concat(items, nested and ',\n' .. indent .. ' ' or ', ') .. ']'
end

-- Calls visit with parts of t that have at most PART elements, so that what statistics make of them
-- stays small beside a big tensor.
local function parts(t, visit)
  local n = t:numel()
  if n <= PART then
    core.scope(visit, t)
  elseif t:is_contiguous() then
    local flat = t:view(-1)
    for first = 1, n, PART do
      core.scope(visit, flat:narrow(1, first, math.min(PART, n - first + 1)))
    end
  else
    local rows, row = t:size(1), n / t:size(1)
    local step = math.floor(PART / row)
    for first = 1, rows, math.max(1, step) do
      local part = step > 0 and t:narrow(1, first, math.min(step, rows - first + 1)) or t[first]
      core.scope(parts, part, visit)
    end
  end
end

local function count(mask) return mask:sum():item() end

-- Smallest, mean and largest of the finite elements, and how many others there are.
local function measure(t)
  local m = { nan = 0, inf = 0, sum = 0, min = math.huge, max = -math.huge }
  parts(t, function(part)
    local x = part:to 'f64'
    local nan, infinite = x:ne(x), x:abs():eq(math.huge)
    local n_nan, n_inf = count(nan), count(infinite)
    m.nan, m.inf = m.nan + n_nan, m.inf + n_inf
    local low, high = x, x
    if n_nan + n_inf > 0 then
      if n_nan + n_inf == x:numel() then return end
      local odd = nan:maximum(infinite)
      low, high = x:masked_fill(odd, math.huge), x:masked_fill(odd, -math.huge)
      x = x:masked_fill(odd, 0)
    end
    m.sum = m.sum + x:sum():item()
    m.min, m.max = math.min(m.min, low:min():item()), math.max(m.max, high:max():item())
  end)
  m.finite = t:numel() - m.nan - m.inf
  return m
end

-- The last line: statistics of a big tensor, and how much of it is not finite.
local function closing(t)
  local m, words = measure(t), {}
  if t:numel() >= BIG and m.finite > 0 then
    words[1] = ('min %.4g, mean %.4g, max %.4g'):format(m.min, m.sum / m.finite, m.max)
  end
  if m.nan > 0 then words[#words + 1] = ('(nan: %d)'):format(m.nan) end
  if m.inf > 0 then words[#words + 1] = ('(inf: %d)'):format(m.inf) end
  return table.concat(words, ' ')
end

local function describe(t)
  local text = ('tensor [%s] %s %s'):format(table.concat(t.shape, ', '), t:dtype(), t:device())
  if t.requires_grad then text = text .. ' requires_grad' end
  if t:device() == 'meta' or t:numel() == 0 then return text end
  local values, width = shown(t, t:numel() < BIG and LONG or 2 * EDGE), 0
  local format = format_for(values)
  each(values, function(x) width = math.max(width, #format:format(x)) end)
  text = text .. '\n' .. render(values, format, width, '')
  local last = closing(t)
  return last == '' and text or text .. '\n' .. last
end

function core.metatable.__tostring(t)
  if not core.is_alive(t) then return 'tensor (freed)' end
  return core.scope(function() return core.no_grad(describe, t) end)
end
