-- json.lua - ul.json: Lua values to JSON text and back.
local core = require 'ulysses.core'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'

---@class json
---@field null table stands for null in tables, where nil would be no value at all
local json = { null = setmetatable({}, { __tostring = function() return 'null' end }) }

local Array = {}

-- Whoever nests deeper holds a table that contains itself.
local deepest = 1000

--- Marks a table as an array, for one that may be empty: {} alone is an object.
---@param list table
---@return table list
function json.array(list) return setmetatable(list, Array) end

-- The shortest text that reads back as the same double.
local function number(value)
  if value ~= value or value == math.huge or value == -math.huge then return 'null' end
  if value == 0 and 1 / value < 0 then return '-0.0' end
  if value == math.floor(value) and math.abs(value) <= 2 ^ 53 then return ('%.0f'):format(value) end
  for digits = 15, 16 do
    local text = ('%.' .. digits .. 'g'):format(value)
    if tonumber(text) == value then return text end
  end
  return ('%.17g'):format(value)
end

-- 'layers[3].name', for errors
local function path_text(path)
  local text = ''
  for _, key in ipairs(path) do
    if type(key) == 'number' then
      text = ('%s[%d]'):format(text, key)
    else
      text = text == '' and key or text .. '.' .. key
    end
  end
  return text == '' and 'the value' or text
end

local function quote(text, path)
  local quoted = core.json_quote(text)
  if not quoted then raise('json.encode: %s: a string that is no UTF-8', path_text(path)) end
  return quoted
end

-- The keys in order: positions of an array, or names of an object.
local function keys_of(value, path)
  local is_array = #value > 0 or getmetatable(value) == Array
  local keys = {}
  for key in next, value do
    local known = type(key) == 'string'
    if is_array then known = type(key) == 'number' and key >= 1 and key <= #value end
    if not known then
      raise('json.encode: %s: the key %s in an %s', path_text(path), tostring(key),
            is_array and 'array' or 'object')
    end
    keys[#keys + 1] = key
  end
  if is_array and #keys ~= #value then
    raise('json.encode: %s: an array with a hole', path_text(path))
  end
  table.sort(keys)
  return keys, is_array
end

local encode

-- `indent`: spaces for each level, or nil: all on one line
local function encode_table(value, indent, path)
  if #path >= deepest then
    raise('json.encode: nested deeper than %d tables, or a table that contains itself', deepest)
  end
  local keys, is_array = keys_of(value, path)
  local parts = {}
  for i, key in ipairs(keys) do
    path[#path + 1] = key
    local text = encode(rawget(value, key), indent, path)
    if not is_array then text = quote(key, path) .. (indent and ': ' or ':') .. text end
    path[#path] = nil
    parts[i] = text
  end
  local open, close = is_array and '[' or '{', is_array and ']' or '}'
  if not indent or #parts == 0 then return open .. table.concat(parts, ',') .. close end
  local inner = '\n' .. (' '):rep(indent * (#path + 1))
  return open .. inner .. table.concat(parts, ',' .. inner) .. '\n' .. (' '):rep(indent * #path)
    .. close
end

function encode(value, indent, path)
  local kind = type(value)
  if value == json.null then return 'null' end
  if kind == 'table' then return encode_table(value, indent, path) end
  if kind == 'string' then return quote(value, path) end
  if kind == 'number' then return number(value) end
  if kind == 'boolean' then return tostring(value) end
  raise('json.encode: %s: no JSON for a %s', path_text(path), kind)
end

--- A table with positions is an array, any other an object, whose keys are sorted; NaN and the
--- infinities become null. Doubles read back exactly. Raises what has no JSON, and where it is.
---@param value any nil is not
---@param given { indent: integer? }? spaces for each level; without: one line
---@return string
function json.encode(value, given)
  local indent = options.read('json.encode', given, { indent = options.none }).indent
  return encode(value, indent, {})
end

--- Integers are exact up to 2^53, and the nearest double beyond. Strict: a key that occurs twice,
--- text behind the value and broken UTF-8 are refused. A byte-order mark before it is passed over.
---@param text string
---@return any value, string? sentence nil and what is wrong, with line and column
function json.decode(text) return core.json_decode(text, json.null, Array) end

return json
