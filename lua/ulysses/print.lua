-- print.lua - how tensors look: shape, dtype, device, values (three at each edge), and a line of statistics if big.
local core = require 'ulysses.core'
local EDGE, BIG = 3, 1000

local function number(x)
  if x ~= x then return 'nan' end
  if x == math.floor(x) and math.abs(x) < 1e9 then return ('%d'):format(x) end
  return ('%.4g'):format(x)
end

-- The positions shown of a dim: all, or the edges with a gap (0) between.
local function positions(size)
  local list = {}
  if size <= 2 * EDGE + 1 then
    for i = 1, size do list[i] = i end
    return list
  end
  for i = 1, EDGE do list[i] = i end
  list[EDGE + 1] = 0
  for i = EDGE, 1, -1 do list[#list + 1] = size - i + 1 end
  return list
end

local function rows(t, indent)
  if t:dim() == 0 then return number(t:item()) end
  local parts, nested = {}, t:dim() > 1
  for _, at in ipairs(positions(t:size(1))) do
    parts[#parts + 1] = at == 0 and '...' or rows(t:select(1, at), indent .. ' ')
  end
  return '[' .. table.concat(parts, nested and ',\n' .. indent .. ' ' or ', ') .. ']'
end

local function statistics(t)
  local x = t:to 'f64':flatten()
  local is_nan = x:ne(x)
  local n = is_nan:sum():item()
  if n > 0 then return ('(nan: %d)'):format(n) end
  return ('min %s, mean %s, max %s'):format(number(x:min():item()), number(x:mean():item()),
                                            number(x:max():item()))
end

local function describe(t)
  local text = ('tensor [%s] %s %s'):format(table.concat(t.shape, ', '), t:dtype(), t:device())
  if t.requires_grad then text = text .. ' requires_grad' end
  if t:device() == 'meta' or t:numel() == 0 then return text end
  text = text .. '\n' .. rows(t, '')
  if t:numel() >= BIG then text = text .. '\n' .. statistics(t) end
  return text
end

function core.metatable.__tostring(t)
  if not core.is_alive(t) then return 'tensor (freed)' end
  return core.scope(function() return core.no_grad(describe, t:detach()) end)
end
