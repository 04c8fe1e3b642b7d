-- show.lua - how the prompt prints values: tables a few levels deep, sorted, cut where long.
local core = require 'ulysses.core'

local DEPTH = 3   -- levels of tables that are opened
local MOST = 24   -- entries shown of one table
local WIDTH = 78  -- columns that a table on one line may take

local function has_text(value)
  local meta = debug.getmetatable(value)
  return type(meta) == 'table' and rawget(meta, '__tostring') ~= nil
end

local function quoted(text)
  if #text > 200 then text = text:sub(1, 200) .. '...' end
  return "'" .. text:gsub('[%c\\\']', function(c)
    return ({ ['\n'] = '\\n', ['\t'] = '\\t', ['\\'] = '\\\\', ["'"] = "\\'" })[c]
      or ('\\%d'):format(c:byte())
  end) .. "'"
end

local order = { number = 1, string = 2 }

local function sorted_keys(t)
  local keys, n = {}, 0
  while rawget(t, n + 1) ~= nil do n = n + 1 end
  for key in next, t do
    if not (type(key) == 'number' and key >= 1 and key <= n and key % 1 == 0) then
      keys[#keys + 1] = key
    end
  end
  table.sort(keys, function(a, b)
    local first, second = type(a), type(b)
    if first ~= second then return (order[first] or 3) < (order[second] or 3) end
    if order[first] then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys, n
end

-- What a function is called and takes, or where it was written.
local function function_text(f)
  local ok, text = pcall(function() return require('ulysses.help').signature_of(f) end)
  if ok and text then return text end
  local info = debug.getinfo(f, 'S')
  if info.what == 'C' then return tostring(f) end
  return ('function at %s:%d'):format(info.short_src, info.linedefined)
end

local show

local function key_text(key)
  if type(key) == 'string' then
    return key:find '^[%a_][%w_]*$' and key or '[' .. quoted(key) .. ']'
  end
  return '[' .. tostring(key) .. ']'
end

local function show_table(t, depth, seen, indent)
  if seen[t] then return '(a table that it is in)' end
  if next(t) == nil then return '{}' end
  if depth >= DEPTH then return '{ ... }' end
  seen[t] = true
  local keys, n = sorted_keys(t)
  local parts, inner = {}, indent .. '  '
  for i = 1, math.min(n, MOST) do parts[i] = show(rawget(t, i), depth + 1, seen, inner) end
  for i = 1, math.min(#keys, MOST - #parts) do
    local value = show(rawget(t, keys[i]), depth + 1, seen, inner)
    parts[#parts + 1] = key_text(keys[i]) .. ' = ' .. value
  end
  local left = n + #keys - #parts
  if left > 0 then parts[#parts + 1] = ('... %d more'):format(left) end
  seen[t] = nil
  local line = '{ ' .. table.concat(parts, ', ') .. ' }'
  if #line + #indent <= WIDTH and not line:find '\n' then return line end
  return '{\n' .. inner .. table.concat(parts, ',\n' .. inner) .. '\n' .. indent .. '}'
end

function show(value, depth, seen, indent)
  if core.is_tensor(value) and depth > 0 then return (tostring(value):match '^[^\n]*') end
  if type(value) == 'string' then return depth > 0 and quoted(value) or value end
  if type(value) == 'function' then return function_text(value) end
  if type(value) == 'table' and not has_text(value) then
    return show_table(value, depth, seen, indent)
  end
  return (tostring(value):gsub('\n', '\n' .. indent))
end

--- The text of a value: strings and whatever has __tostring as they are, tables opened.
---@param value any
---@return string
return function(value) return show(value, 0, {}, '') end
