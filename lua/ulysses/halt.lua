-- halt.lua - where the ranks that Ctrl-C is to stop are stopped: all behind the same calls.
--
-- A rank that an interruption has reached parks: before its next call of a group, or where its Lua
-- code is when it does not come to one. It tells how many calls it has begun and finished on each
-- channel: in a group, or from one rank to another in it. A rank is behind where another has begun
-- a call that it has not finished: it goes on. Where that leads nowhere, since a rank is back at
-- its prompt or stays in a loop of its own, those who wait for it give up their call.
local halt = {}

-- Seconds:
local IN_LUA = 0.1   -- until a rank that comes to no call is stopped in Lua
local BEHIND = 1     -- the same for one that others may wait for
local HOPELESS = 0.3 -- until a call is given up that some rank will not join
local STUCK = 5      -- and one that all have joined

---@class Progress
---@field state string p at the prompt, r running, w running until it stops by itself, k parked
---  before a call, j parked in Lua, x raising the error, d having given up its call
---@field parked string how often it has parked
---@field channels table<string, Channel>

---@class Channel
---@field from integer the rank that sends; the first rank of a group
---@field to integer the rank that receives; -1: all ranks of the group take part
---@field begun integer
---@field finished integer

--- What a rank tells about itself.
---@param text string
---@return Progress
function halt.parse(text)
  local channels = {}
  for context, from, to, begun, finished in
    text:gmatch ' (%d+):(%d+):(%-?%d+):(%d+):(%d+)' do
    channels[context .. ':' .. from .. ':' .. to] = {
      from = tonumber(from), to = tonumber(to), begun = tonumber(begun),
      finished = tonumber(finished),
    }
  end
  return { state = text:sub(1, 1), parked = text:match '^.(%d*)', channels = channels }
end

-- The most calls that any rank has begun on each channel, and the fewest of those that take part.
local function extremes(ranks)
  local most, least = {}, {}
  for _, progress in pairs(ranks) do
    for key, channel in pairs(progress.channels) do
      most[key] = math.max(most[key] or 0, channel.begun)
      least[key] = math.min(least[key] or math.huge, channel.begun)
    end
  end
  for key in pairs(most) do -- one that has not sent or received yet does not list it
    local from, to = key:match ':(%d+):(%d+)$'
    for _, rank in ipairs(from and { tonumber(from), tonumber(to) } or {}) do
      if ranks[rank] and not ranks[rank].channels[key] then least[key] = 0 end
    end
  end
  return most, least
end

local function is_behind(rank, progress, most)
  for key, number in pairs(most) do
    local from, to = key:match ':(%d+):(%d+)$'
    local channel = progress.channels[key]
    if channel and channel.finished < number then return true end
    if not channel and from and (tonumber(from) == rank or tonumber(to) == rank) then
      return true
    end
  end
  return false
end

-- Whether a rank waits in a call, and whether all that take part have begun it.
local function waits(progress, least)
  for key, channel in pairs(progress.channels) do
    if channel.begun > channel.finished then return true, (least[key] or 0) >= channel.begun end
  end
  return false
end

--- Whether all ranks have begun and finished the same calls.
---@param ranks table<integer, Progress>
---@return boolean
function halt.is_even(ranks)
  local most = extremes(ranks)
  for rank, progress in pairs(ranks) do
    if is_behind(rank, progress, most) then return false end
  end
  return true
end

--- A text that differs where any rank has come further.
---@param ranks table<integer, Progress>
---@return string
function halt.signature(ranks)
  local list = {}
  for rank, progress in pairs(ranks) do
    for key, channel in pairs(progress.channels) do
      list[#list + 1] = ('%d %s %d %d'):format(rank, key, channel.begun, channel.finished)
    end
  end
  table.sort(list)
  return table.concat(list, '\n')
end

-- What one rank is told: a kind of message (remote.c), or nil; and whether it may come further.
local function order_for(rank, progress, quiet, most, least)
  local state = progress.state
  local behind = is_behind(rank, progress, most)
  if state == 'p' or state == 'd' then return nil, false end
  if state == 'k' then return behind and 'g' or nil, behind end
  if state == 'j' then
    local goes = behind and quiet < BEHIND
    return goes and 'g' or nil, goes
  end
  local in_call, is_joined = waits(progress, least)
  if in_call then return nil, quiet < (is_joined and STUCK or HOPELESS) end
  if state == 'w' then return nil, true end
  return quiet > (behind and BEHIND or IN_LUA) and 'I' or nil, true
end

--- What to tell each rank now.
---@param ranks table<integer, Progress> as they all were at about the same time
---@param quiet number seconds since the press, or since any rank has come further
---@return table<integer, string> orders kinds of messages (remote.c)
---@return 'raise'|'give up'|'by themselves'|nil verdict nil: not yet
function halt.decide(ranks, quiet)
  local most, least = extremes(ranks)
  local orders, settled, in_calls, noted, there = {}, true, false, true, false
  for rank, progress in pairs(ranks) do
    local order, moves = order_for(rank, progress, quiet, most, least)
    orders[rank] = order
    settled = settled and not moves
    if progress.state ~= 'p' then
      there = true
      noted = noted and progress.state == 'w'
      in_calls = in_calls or (progress.state:find '[rw]' and waits(progress, least))
    end
  end
  if there and noted then return {}, 'by themselves' end
  if not settled then return orders, nil end
  for rank, progress in pairs(ranks) do
    local parked = progress.state:find '[kj]'
    orders[rank] = in_calls and not parked and progress.state ~= 'p' and 'a'
      or not in_calls and parked and 'r' or nil
  end
  return orders, in_calls and 'give up' or 'raise'
end

--- The same after a verdict to give up, until all calls have ended.
---@param ranks table<integer, Progress>
---@return table<integer, string> orders
---@return boolean done
function halt.clear(ranks)
  local orders, done = {}, true
  for rank, progress in pairs(ranks) do
    if progress.state:find '[rwx]' then
      done = false
      orders[rank] = not waits(progress, {}) and 'I' or nil
    end
  end
  if not done then return orders, false end
  for rank, progress in pairs(ranks) do
    orders[rank] = progress.state == 'd' and 'b' or progress.state:find '[kj]' and 'r' or nil
  end
  return orders, true
end

return halt
