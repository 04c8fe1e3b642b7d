-- suggest.lua - the nearest name to a misspelt one.

-- Edits (insert, delete, replace) that turn a into b; one row of the usual table at a time.
local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal
    diagonal, row[0] = row[0], i
    for j = 1, #b do
      local replaced = diagonal + (a:byte(i) == b:byte(j) and 0 or 1)
      diagonal = row[j]
      row[j] = math.min(replaced, row[j] + 1, row[j - 1] + 1)
    end
  end
  return row[#b]
end

-- How far apart two names are for a reader: an abbreviation or a part of a name is near.
local function strangeness(name, candidate)
  local long, short = name, candidate
  if #long < #short then long, short = short, long end
  if long:gsub('(%w)%w*_?', '%1') == short then return 1 end
  local edits = distance(name, candidate)
  if #short > 2 and long:find(short, 1, true) then
    return math.min(edits, 2 - #short / #long)
  end
  return edits < #short and edits or math.huge -- else they have nothing in common
end

--- "; did you mean 'lr'?" for the candidate nearest to `name`, or '' where none is near.
---@param name string
---@param candidates string[]
---@param shown table<string, string>? what is said for a candidate, where not itself
---@return string
return function(name, candidates, shown)
  local best, least
  local sorted = { unpack(candidates) }
  table.sort(sorted)
  for _, candidate in ipairs(sorted) do
    local d = strangeness(name, candidate)
    if not least or d < least then best, least = candidate, d end
  end
  if least and least <= math.max(2, math.floor(#name / 3)) then
    return ("; did you mean '%s'?"):format(shown and shown[best] or best)
  end
  return ''
end
