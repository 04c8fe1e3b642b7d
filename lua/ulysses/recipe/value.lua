-- value.lua - the types of settings: what a default asks for, and how text is read.
local raise = require 'ulysses.raise'
local utf8 = require 'ulysses.utf8'

local None = {}
None.__index = None
function None.__tostring() return 'none' end

---@alias Kind { name: string, element: Kind?, optional: boolean? }

local suffixes = { [''] = 1, K = 2 ^ 10, M = 2 ^ 20, G = 2 ^ 30 }

-- Decimal notation alone: tonumber() knows hexadecimal, nan and inf as well.
local function read_number(text)
  local digits, exponent, suffix = text:match '^([+-]?[%d.]+)([eE]?[+-]?%d*)([KMG]?)$'
  if not digits or not (exponent == '' or exponent:match '^[eE][+-]?%d+$') then return nil end
  local value = tonumber(digits .. exponent)
  return value and value * suffixes[suffix]
end

local function is_whole(value) return value == math.floor(value) and math.abs(value) <= 2 ^ 53 end

local kinds = {
  number = {
    wanted = 'a number',
    read = read_number,
    fits = function(value) return type(value) == 'number' and math.abs(value) < math.huge end,
  },
  integer = {
    wanted = 'a whole number',
    read = read_number,
    fits = function(value) return type(value) == 'number' and is_whole(value) end,
  },
  boolean = {
    wanted = 'true or false',
    read = function(text) if text == 'true' or text == 'false' then return text == 'true' end end,
    fits = function(value) return type(value) == 'boolean' end,
  },
  string = {
    wanted = 'a string',
    read = function(text) return text end,
    fits = function(value) return type(value) == 'string' and not utf8.first_wrong(value) end,
  },
}

local function is_none(value) return getmetatable(value) == None end

--- A setting that has no value unless it is given one: ul.none 'string'. It reads as nil.
---@param name 'number'|'integer'|'boolean'|'string'
---@return table
local function none(name)
  if not kinds[name] then
    raise("none: expected 'number', 'integer', 'boolean' or 'string', got %s", tostring(name))
  end
  return setmetatable({ kind = { name = name, optional = true } }, None)
end

--- Whether a table is one setting, a list, and not a table of settings.
local function is_list(value) return value[1] ~= nil or next(value) == nil end

--- The kind of settings that a default stands for, or nil and what is wrong with it. `literal` is
--- the default as it is written: a number without a point or an exponent asks for whole numbers.
---@param default any
---@param literal string|nil
---@return Kind|nil, string?
local function kind_of(default, literal)
  if is_none(default) then return default.kind end
  if type(default) == 'number' then
    local whole = literal and is_whole(default) and not literal:find '[.eE]'
    return { name = whole and 'integer' or 'number' }
  elseif type(default) == 'string' and utf8.first_wrong(default) then
    return nil, 'a string that is no UTF-8'
  elseif kinds[type(default)] then
    return { name = type(default) }
  elseif type(default) ~= 'table' then
    return nil, 'a ' .. type(default)
  end
  local element = { name = 'string' }
  local whole = literal
  for i = 1, #default do
    if type(default[i]) ~= type(default[1]) then return nil, 'a list of several types' end
    local known, wrong = kind_of(default[i], whole)
    if not known or known.element then return nil, 'a list of ' .. (wrong or 'lists') end
    element = known
    whole = element.name == 'integer' and literal or nil
  end
  for key in pairs(default) do
    if type(key) ~= 'number' then return nil, 'a list with the key ' .. tostring(key) end
  end
  return { name = 'list', element = element }
end

--- What a sentence says that a setting of this kind wants.
---@param kind Kind
---@return string
local function wanted(kind)
  if kind.element then
    return kinds[kind.element.name].wanted:gsub('^a ', 'a list a,b,... of '):gsub('r$', 'rs')
  end
  return kinds[kind.name].wanted .. (kind.optional and ' or none' or '')
end

--- Checks a value; returns whether it fits. A list is checked element by element.
---@param kind Kind
---@param value any
---@return boolean
local function fits(kind, value)
  if not kind.element then return kinds[kind.name].fits(value) end
  if type(value) ~= 'table' then return false end
  for key, item in pairs(value) do
    if type(key) ~= 'number' or not fits(kind.element, item) then return false end
  end
  return true
end

--- Reads a value from text: whether it is one of this kind, and the value (nil for none).
---@param kind Kind
---@param text string
---@return boolean, any
local function read(kind, text)
  if kind.optional and text == 'none' then return true, nil end
  if not kind.element then
    local value = kinds[kind.name].read(text)
    return value ~= nil and fits(kind, value), value
  end
  local list = {}
  for item in (text == '' and '' or text .. ','):gmatch '([^,]*),' do
    local value = kinds[kind.element.name].read(item:match '^%s*(.-)%s*$')
    if value == nil or not fits(kind.element, value) then return false end
    list[#list + 1] = value
  end
  return true, list
end

-- How a number was meant: a suffix in small letters, or with its unit; digits in groups.
local function meant_number(text)
  return (text:gsub('(%d)_', '%1'):gsub('^(%s*[%d.eE+-]+)([kmgKMG])[iI]?[bB]?(%s*)$',
                                       function(digits, suffix, rest)
    return digits .. suffix:upper() .. rest
  end))
end

--- "; did you mean 32K?" for text that is nearly a value of this kind, else ''.
---@param kind Kind
---@param text string
---@return string
local function hint(kind, text)
  local name = (kind.element or kind).name
  if name ~= 'number' and name ~= 'integer' then return '' end
  local meant = kind.element and text:gsub('[^,]+', meant_number) or meant_number(text)
  return meant ~= text and read(kind, meant) and ('; did you mean %s?'):format(meant) or ''
end

--- A value as it may be given on a command line.
---@param value any
---@return string
local function write(value)
  if value == nil then return 'none' end
  if type(value) == 'table' then
    if not is_list(value) then return 'a table' end
    local items = {}
    for i, item in ipairs(value) do items[i] = write(item) end
    return table.concat(items, ',')
  elseif type(value) ~= 'number' then
    return tostring(value)
  end
  local short = ('%.14g'):format(value)
  return tonumber(short) == value and short or ('%.17g'):format(value)
end

return { none = none, is_none = is_none, is_list = is_list, kind_of = kind_of, wanted = wanted,
         fits = fits, read = read, hint = hint, write = write }
