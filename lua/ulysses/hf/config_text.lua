-- config_text.lua - the text of a config.json with some values changed: the others stay as they
-- were written, those that nobody here knows too, and 8.0 does not become 8.
local json = require 'ulysses.json'
local sorted_keys = require 'ulysses.sorted_keys'

-- The position behind the JSON value that begins at `at`; the text is known to be JSON.
local function value_end(text, at)
  local first, depth = text:sub(at, at), 0
  if not first:find '[{%["]' then return text:match('^[^%s,}%]]+()', at) end
  while true do
    local c = text:sub(at, at)
    if c == '"' then
      repeat at = text:match('^[^"\\]*()', at + 1)
        local escaped = text:sub(at, at) == '\\'
        if escaped then at = at + 1 end
      until not escaped
    elseif c == '{' or c == '[' then
      depth = depth + 1
    elseif c == '}' or c == ']' then
      depth = depth - 1
    end
    at = at + 1
    if depth == 0 then return at end
    at = text:find('["{%[}%]]', at)
  end
end

-- The names of an object's values with the text of each, in their order.
local function parts_of(text)
  local list, at = {}, text:match '^%s*{%s*()'
  while text:sub(at, at) == '"' do
    local behind = value_end(text, at)
    local name = json.decode('[' .. text:sub(at, behind - 1) .. ']')[1]
    local start = text:match('^%s*:%s*()', behind)
    at = value_end(text, start)
    list[#list + 1] = { name = name, text = text:sub(start, at - 1) }
    at = text:match('^%s*,?%s*()', at)
  end
  return list
end

-- What transformers warns about where it is written as a whole number.
local floats = {
  rope_theta = true, factor = true, low_freq_factor = true, high_freq_factor = true,
  attention_factor = true, beta_fast = true, beta_slow = true, mscale = true,
  mscale_all_dim = true, attention_dropout = true, partial_rotary_factor = true,
}

-- A value as it stands in a config: objects with a name on each line.
local function value_text(value, name, indent)
  if type(value) == 'number' and floats[name] and value == math.floor(value)
     and math.abs(value) < 2 ^ 53 then
    return ('%.1f'):format(value)
  elseif type(value) ~= 'table' or value == json.null or #value > 0 then
    return json.encode(value)
  end
  local lines = {}
  for i, key in ipairs(sorted_keys(value)) do
    lines[i] = ('%s  %s: %s'):format(indent, json.encode(key),
                                     value_text(value[key], key, indent .. '  '))
  end
  return '{\n' .. table.concat(lines, ',\n') .. '\n' .. indent .. '}'
end

--- `text` with other values for some names, and without others.
---@param text string an object
---@param changes table<string, any>
---@param removed table<string, boolean>?
---@return string
return function(text, changes, removed)
  local lines, done, names = {}, {}, {}
  local function add(name, value)
    lines[#lines + 1] = ('  %s: %s'):format(json.encode(name), value)
  end
  for _, part in ipairs(parts_of(text)) do
    local name, value = part.name, changes[part.name]
    done[name] = true
    if value ~= nil then
      add(name, value_text(value, name, '  '))
    elseif not (removed and removed[name]) then
      add(name, part.text)
    end
  end
  for name in pairs(changes) do
    if not done[name] then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do add(name, value_text(changes[name], name, '  ')) end
  return '{\n' .. table.concat(lines, ',\n') .. '\n}\n'
end
