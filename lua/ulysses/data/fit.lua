-- fit.lua - whole documents side by side in rows: the longest first, each into the first row that
-- has room for it.
local function power_above(n)
  local size = 1
  while size < n do size = 2 * size end
  return size
end

--- Which documents go into which row: lists of their indices. A tree over the rows tells the first
--- one with room: each node knows the most that is free below it.
---@param lengths integer[] none above `length`
---@param length integer of a row
---@return integer[][]
return function(lengths, length)
  local order, rows = {}, {}
  for i = 1, #lengths do order[i] = i end
  table.sort(order, function(a, b)
    if lengths[a] ~= lengths[b] then return lengths[a] > lengths[b] end
    return a < b
  end)
  local leaves = power_above(#lengths)
  local free = {}
  for node = 1, 2 * leaves - 1 do free[node] = length end
  for _, document in ipairs(order) do
    local need, node = lengths[document], 1
    while node < leaves do
      node = 2 * node
      if free[node] < need then node = node + 1 end
    end
    local row = node - leaves + 1
    rows[row] = rows[row] or {}
    table.insert(rows[row], document)
    free[node] = free[node] - need
    while node > 1 do
      node = math.floor(node / 2)
      free[node] = math.max(free[2 * node], free[2 * node + 1])
    end
  end
  return rows
end
