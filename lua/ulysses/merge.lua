-- merge.lua - what several ranks print, as one text: what they have in common once, the rest with
-- the ranks that say it.
local merge = {}

-- A line of another rank that rank 0 has not printed is shown after so many seconds, or at the end.
local HOLD = 2
-- So many lines of rank 0 are remembered for others to print as well.
local MEMORY = 10000

-- ---- labels ----

--- '[2]', '[0,2]', '[1-3]'
---@param ranks integer[] sorted
---@return string
function merge.label(ranks)
  local parts, i = {}, 1
  while i <= #ranks do
    local last = i
    while ranks[last + 1] == ranks[last] + 1 do last = last + 1 end
    if last - i >= 2 then
      parts[#parts + 1] = ranks[i] .. '-' .. ranks[last]
      i = last + 1
    else
      parts[#parts + 1] = tostring(ranks[i])
      i = i + 1
    end
  end
  return '[' .. table.concat(parts, ',') .. ']'
end

--- The text with a label in front; further lines begin below it.
---@param ranks integer[]
---@param text string
---@return string
function merge.labelled(ranks, text)
  local label = merge.label(ranks) .. ' '
  return label .. text:gsub('\n', '\n' .. (' '):rep(#label))
end

--- Groups of ranks that say the same, by their first ranks.
---@param texts table<integer, string> of ranks
---@param size integer how many ranks there are
---@return { ranks: integer[], text: string }[]
function merge.groups(texts, size)
  local groups, by_text = {}, {}
  for rank = 0, size - 1 do
    local text = texts[rank]
    if text then
      if not by_text[text] then
        by_text[text] = { ranks = {}, text = text }
        groups[#groups + 1] = by_text[text]
      end
      table.insert(by_text[text].ranks, rank)
    end
  end
  return groups
end

-- ---- what is printed while ranks run ----

---@class Merge
---@field size integer
---@field write fun(text: string)
local Merge = {}
Merge.__index = Merge

--- Rank 0's text is written as it comes. Lines of others that it has printed too, in that order,
--- are dropped.
---@param size integer how many ranks there are
---@param write fun(text: string)
---@return Merge
function merge.new(size, write)
  local self = setmetatable({ size = size, write = write }, Merge)
  self:clear()
  return self
end

--- Forgets all, before another entry.
function Merge:clear()
  self.lines, self.first, self.last = {}, 1, 0 -- of rank 0
  self.open = ''                               -- what it has begun
  self.others = {}
  for rank = 1, self.size - 1 do
    -- the next line of rank 0 that it may print too; how far was looked for its oldest line
    self.others[rank] = { open = '', at = 1, seen = 0, waiting = {} }
  end
end

-- Whole lines that text ends, and the rest.
local function cut(open, text)
  text = open .. text
  local lines, from = {}, 1
  while true do
    local stop = text:find('\n', from, true)
    if not stop then return lines, text:sub(from) end
    lines[#lines + 1] = text:sub(from, stop - 1)
    from = stop + 1
  end
end

-- Drops the lines of a rank that rank 0 has printed, until one that it has not.
local function drop_known(self, other)
  while other.waiting[1] do
    local found
    other.at = math.max(other.at, self.first)
    for i = math.max(other.at, other.seen + 1), self.last do
      if self.lines[i] == other.waiting[1].text then
        found = i
        break
      end
    end
    if not found then
      other.seen = self.last
      return
    end
    other.at, other.seen = found + 1, found
    table.remove(other.waiting, 1)
  end
end

-- Shows the oldest line of this rank, and of all that wait with the same.
local function show(self, rank)
  local text, ranks = self.others[rank].waiting[1].text, {}
  for r = rank, self.size - 1 do
    local other = self.others[r]
    if other.waiting[1] and other.waiting[1].text == text then
      ranks[#ranks + 1] = r
      table.remove(other.waiting, 1)
      other.seen = 0
      drop_known(self, other)
    end
  end
  if self.open:find '[^\r\27]' and not self.open:find '\n$' then self.write '\n' end
  self.write(merge.labelled(ranks, text) .. '\n')
end

--- What a rank has printed.
---@param rank integer
---@param text string
---@param now number seconds
function Merge:add(rank, text, now)
  if rank > 0 then
    local other = self.others[rank]
    local lines
    lines, other.open = cut(other.open, text)
    for _, line in ipairs(lines) do table.insert(other.waiting, { text = line, since = now }) end
    return drop_known(self, other)
  end
  self.write(text)
  local lines
  lines, self.open = cut(self.open, text)
  for _, line in ipairs(lines) do
    self.last = self.last + 1
    self.lines[self.last] = line
    self.lines[self.last - MEMORY] = nil
  end
  self.first = math.max(self.first, self.last - MEMORY + 1)
  for _, other in ipairs(self.others) do drop_known(self, other) end
end

--- Shows lines that have waited for rank 0 long enough.
---@param now number seconds
function Merge:hold(now)
  for rank, other in ipairs(self.others) do
    while other.waiting[1] and now - other.waiting[1].since > HOLD do show(self, rank) end
  end
end

--- Shows all that waits: the ranks are done.
---@param now number seconds
function Merge:finish(now)
  for _, other in ipairs(self.others) do
    if other.open ~= '' then
      if other.open ~= self.open then
        table.insert(other.waiting, { text = other.open, since = now })
      end
      other.open = ''
    end
  end
  for rank, other in ipairs(self.others) do
    while other.waiting[1] do show(self, rank) end
  end
end

return merge
