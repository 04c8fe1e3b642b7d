-- annotations.lua - reads the --- comments of a Lua file: what functions take, return and are for.

-- ---- types ----

-- The position behind the type that begins at `at`: names, literals, fun(..): .., { .. }, unions.
local function type_end(text, at)
  local start = at
  while true do
    local c = text:sub(at, at)
    if c == "'" or c == '"' then
      at = (text:find(c, at + 1, true) or #text) + 1
    elseif c == '{' or c == '(' then
      at = text:match(c == '{' and '^%b{}()' or '^%b()()', at) or #text + 1
    else
      at = text:match('^%.%.%.()', at) or text:match('^[%w_.*]*()', at)
      at = text:match('^%b<>()', at) or at
      if text:sub(start, at - 1) == 'fun' then at = text:match('^%b()()', at) or at end
      local results = text:match('^%s*:%s*()', at)
      if results and text:sub(at - 1, at - 1) == ')' then at = type_end(text, results) end
    end
    at = text:match('^[%[%]?.]*()', at)
    local next_at = text:match('^%s*|%s*()', at)
    if not next_at then return at end
    at, start = next_at, next_at
  end
end

local function split_type(text)
  local at = type_end(text, 1)
  return text:sub(1, at - 1), text:sub(at):match '^%s*(.-)%s*$'
end

-- 'a: number?, b: string' between braces as { { name =, type =, optional = }, .. }
local function fields_of(type_text)
  local inside = type_text:match '^{(.*)}%??$'
  if not inside then return nil end
  local fields, at = {}, 1
  while at <= #inside do
    local name, behind = inside:match('^%s*([%w_]+)%??%s*:%s*()', at)
    if not name then break end
    local stop = type_end(inside, behind)
    local kind = inside:sub(behind, stop - 1)
    fields[#fields + 1] = { name = name, type = (kind:gsub('%?$', '')), text = '',
                            optional = kind:sub(-1) == '?' }
    at = inside:match('^%s*,%s*()', stop) or #inside + 1
  end
  return fields
end

-- ---- blocks ----

local function new_entry(file) return { file = file, text = {}, params = {}, returns = {} } end

local function read_value(text)
  local name, optional, rest = text:match '^(%S-)(%??)%s+(.*)$'
  local kind, comment = split_type(rest or '')
  if kind:sub(-1) == '?' then kind, optional = kind:sub(1, -2), '?' end
  return { name = name or text, type = kind, text = comment, optional = optional == '?',
           fields = fields_of(kind) }
end

local tags = {}
function tags.param(entry, text) table.insert(entry.params, read_value(text)) end
function tags.field(entry, text)
  entry.fields = entry.fields or {}
  table.insert(entry.fields, read_value(text))
end
tags['return'] = function(entry, text)
  local kind, comment = split_type(text)
  while comment:find '^,' do
    local following
    following, comment = split_type(comment:match '^,%s*(.*)$')
    kind = kind .. ', ' .. following
  end
  local several, after = comment:match '^(%.%.%.)%s*(.*)$'
  if several then kind, comment = kind .. several, after end
  local name, rest = comment:match '^([%a_][%w_.]*)%s*(.*)$'
  local following = rest and rest:match '^,%s*(.*)$'
  table.insert(entry.returns, { type = kind, name = name,
                                text = not following and (rest or comment) or '' })
  if following then tags['return'](entry, following) end
end
function tags.class(entry, text)
  entry.class, entry.parent = text:match '^([%w_.]+)%s*:?%s*([%w_.]*)'
end

-- Turns the lines of a block into entries; a second class begins another.
local function read_block(lines, file)
  local joined, entries = {}, { new_entry(file) }
  for _, line in ipairs(lines) do
    local last = joined[#joined]
    if line:find '^@' or not last or not last:find '^@' then
      joined[#joined + 1] = line
    else
      joined[#joined] = last .. ' ' .. line:match '^%s*(.*)$'
    end
  end
  for _, line in ipairs(joined) do
    local tag, rest = line:match '^@(%a+)%s*(.*)$'
    local entry = entries[#entries]
    if tag == 'class' and entry.class then
      entry = new_entry(file)
      entries[#entries + 1] = entry
    end
    if tag and tags[tag] then tags[tag](entry, rest) end
    if not tag then table.insert(entry.text, (line:gsub('^ ', ''))) end
  end
  return entries
end

-- What a line of code defines: owner, separator, name and arguments of a function.
local function read_code(line)
  local path, arguments = line:match 'function%s+([%w_.:]+)%s*(%b())'
  if not path then path, arguments = line:match '([%w_.]+)%s*=%s*function%s*(%b())' end
  if not path then
    arguments = line:match 'function%s*(%b())'
    return arguments and { arguments = arguments:sub(2, -2) }
  end
  local owner, separator, name = path:match '^(.*)([.:])([%w_]+)$'
  return { owner = owner, separator = separator, name = name or path,
           arguments = arguments:sub(2, -2) }
end

-- The defaults that the function beginning at line i reads its options with.
local function defaults_of(lines, i)
  local stop = i
  while lines[stop + 1] and not lines[stop]:find '^end' do stop = stop + 1 end
  local body = table.concat(lines, '\n', i, stop)
  local inside = body:match "options%.read%([^{]*(%b{})"
  local defaults = {}
  for part in (inside or ''):sub(2, -2):gsub('%b{}', function(t) return (t:gsub(',', '\1')) end)
    :gmatch '[^,]+' do
    local key, value = part:match '^%s*([%w_]+)%s*=%s*(.-)%s*$'
    if key and (not value:find '^[%a_]' or value == 'true' or value == 'false') then
      defaults[key] = value:gsub('\1', ','):gsub('%s+', ' ')
    end
  end
  return defaults
end

--- The entries of a file: { file, line, text, params, returns, class, parent, fields, owner,
--- separator, name, arguments }, whichever there are. `line` is that of the code behind it.
---@param path string
---@return table[]
return function(path)
  local found, lines, block = {}, {}, nil
  local file = io.open(path)
  if not file then return found end
  for line in file:lines() do lines[#lines + 1] = line end
  file:close()
  for i, line in ipairs(lines) do
    local comment = line:match '^%s*%-%-%-(.*)$'
    if comment and comment:sub(1, 1) ~= '-' then
      block = block or {}
      block[#block + 1] = comment
    elseif block then
      local entries = read_block(block, path)
      local last, code = entries[#entries], read_code(line)
      last.line = i
      if code and not last.class then
        for key, value in pairs(code) do last[key] = value end
        local defaults = defaults_of(lines, i)
        for _, param in ipairs(last.params) do
          for _, field in ipairs(param.fields or {}) do field.default = defaults[field.name] end
        end
      elseif last.class then
        last.variable = line:match '^local%s+([%w_]+)'
      end
      for _, entry in ipairs(entries) do found[#found + 1] = entry end
      block = nil
    end
  end
  return found
end
