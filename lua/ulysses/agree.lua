-- agree.lua - what all ranks must know alike before they go on: the word of the first rank, or the
-- numbers of all.
--
-- Every function here is called by all ranks of a group together; without one it is for this rank
-- alone. What decides whether ranks talk to each other may hang on nothing that one of them alone
-- has seen: a signal, a file.
local ffi = require 'ffi'
local core = require 'ulysses.core'
local json = require 'ulysses.json'
local refuse = require 'ulysses.refuse'

local agree = {}

--- Whether this rank is the one that reads and writes files, and prints.
---@param group Group?
---@return boolean
function agree.is_first(group) return not group or group.rank == 0 end

--- Waits for all ranks. Where some never come, the others end and say what they were waiting for.
---@param group Group?
---@param what string 'run:save'
function agree.meet(group, what)
  if group then group:barrier(what .. ', which all ranks must call') end
end

--- The numbers of each rank, in the order of the ranks.
---@param group Group?
---@param numbers integer[]
---@param what string what they are for
---@return integer[][]
function agree.numbers(group, numbers, what)
  return group and group:lengths(numbers, what) or { numbers }
end

--- The largest number that any rank has.
---@param group Group?
---@param number integer
---@param what string what it is for
---@return integer
function agree.most(group, number, what)
  local most = number
  for _, one in ipairs(agree.numbers(group, { number }, what)) do most = math.max(most, one[1]) end
  return most
end

-- The first rank's text, on all ranks.
local function tell(group, text)
  return core.scope(function()
    local size = core.tensor({ text and #text or 0 }, { dtype = 'i64', device = 'cpu' })
    local n = group:broadcast_(size):item()
    if n == 0 then return '' end
    local bytes = core.empty({ n }, { dtype = 'u8', device = 'cpu' })
    if text then ffi.copy(bytes:data(), text, n) end
    return ffi.string(group:broadcast_(bytes):data(), n)
  end)
end

-- A letter for what it is, and the rest.
local function pack(ok, result)
  if ok then return 'v' .. json.encode { value = result } end
  local is_refusal = type(result) == 'table' and result.refusal
  return (is_refusal and 'r' .. result.sentence) or 'e' .. tostring(result)
end

--- What f(...) returns, called on the first rank alone: one value, as JSON can hold it, on the
--- others too. Where it raises, all ranks raise the same.
---@param group Group?
---@param what string
---@param f function
---@return any
function agree.first(group, what, f, ...)
  if not group then return f(...) end
  agree.meet(group, what)
  local ok, result
  if group.rank == 0 then ok, result = pcall(f, ...) end
  group:barrier(what .. ' on rank 0', { patient = true }) -- a disk may take longer than a deadline
  local text = tell(group, group.rank == 0 and pack(ok, result) or nil)
  if ok then return result end
  if ok == false then error(result, 0) end
  local kind, rest = text:sub(1, 1), text:sub(2)
  if kind == 'r' then refuse('%s', rest) end
  if kind == 'e' then error(rest, 0) end
  return json.decode(rest).value
end

return agree
