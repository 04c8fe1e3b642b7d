-- tools.lua - what conversations say of tools: which there are, the calls, and all of it as JSON.
--
-- It is spelled as Python spells it, on whose templates models have been trained.
-- The order of keys is what a model has learned too, and Lua tables keep none: what comes from a
-- file is taken from its text.
local json = require 'ulysses.json'
local open_file = require 'ulysses.open_file'
local refuse = require 'ulysses.refuse'

local tools = {}

-- ---- JSON as text ----

-- The last byte of the string that begins at `at`.
local function end_of_string(text, at)
  local i = at + 1
  while true do
    i = text:find('["\\]', i)
    if text:byte(i) == 34 then return i end
    i = i + 2
  end
end

local function skip_space(text, at) return text:find('[^ \t\r\n]', at) or #text + 1 end

-- The last byte of the value that begins at `at`, in text that is known to be JSON.
local function end_of_value(text, at)
  local first, depth, i = text:sub(at, at), 0, at
  if first == '"' then return end_of_string(text, at) end
  if not first:find '[%[{]' then return select(2, text:find('^[%w.+-]+', at)) end
  repeat
    i = text:find('["%[%]{}]', i)
    local c = text:sub(i, i)
    if c == '"' then i = end_of_string(text, i) end
    depth = depth + (c:find '[%[{]' and 1 or c:find '[%]}]' and -1 or 0)
    i = i + 1
  until depth == 0
  return i - 1
end

-- The texts of the values in an object by their names, or those in an array.
local function members(text)
  local list, i = {}, skip_space(text, 1)
  local is_object = text:sub(i, i) == '{'
  i = skip_space(text, i + 1)
  while not text:find('^[%]}]', i) do
    local key = #list + 1
    if is_object then
      local stop = end_of_string(text, i)
      key = json.decode('[' .. text:sub(i, stop) .. ']')[1]
      i = skip_space(text, text:find(':', stop + 1, true) + 1)
    end
    local stop = end_of_value(text, i)
    list[key] = text:sub(i, stop)
    i = skip_space(text, stop + 1)
    if text:sub(i, i) == ',' then i = skip_space(text, i + 1) end
  end
  return list
end

local short = { ['"'] = '\\"', ['\\'] = '\\\\', ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t',
                ['\b'] = '\\b', ['\f'] = '\\f' }

--- A text as a string of JSON.
---@param text string
---@return string
function tools.quote(text)
  return '"' .. text:gsub('[%z\1-\31"\\]', function(c)
    return short[c] or ('\\u%04x'):format(c:byte())
  end) .. '"'
end

-- A number: integers as they are written, others as the shortest text of the same double.
local function number(text)
  if not text:find '[.eE]' then return text == '-0' and '0' or text end
  local value = tonumber(text)
  for digits = 1, 17 do
    local short_text = ('%.' .. digits .. 'g'):format(value)
    if tonumber(short_text) == value then
      local exponent = tonumber(short_text:match 'e([+-]%d+)')
      if exponent and exponent >= 0 and exponent < 16 then short_text = ('%.0f'):format(value) end
      return short_text:find '[.e]' and short_text or short_text .. '.0'
    end
  end
end

--- The same JSON with Python's spaces, or over several lines where each level has `indent` spaces.
---@param text string JSON
---@param indent integer?
---@return string
function tools.spell(text, indent)
  local out, depth, i = {}, 0, skip_space(text, 1)
  local function add(piece, breaks)
    out[#out + 1] = piece
    if breaks and indent then out[#out + 1] = '\n' .. (' '):rep(indent * depth) end
  end
  while i <= #text do
    local c, stop = text:sub(i, i), i
    if c == '"' then
      stop = end_of_string(text, i)
      add(tools.quote(json.decode('[' .. text:sub(i, stop) .. ']')[1]))
    elseif c:find '[%[{]' then
      local following = skip_space(text, i + 1)
      if text:find('^[%]}]', following) then
        add(c .. text:sub(following, following))
        stop = following
      else
        depth = depth + 1
        add(c, true)
      end
    elseif c:find '[%]}]' then
      depth = depth - 1
      add('', true)
      add(c)
    elseif c == ',' then
      add(indent and ',' or ', ', true)
    elseif c == ':' then
      add ': '
    else
      stop = end_of_value(text, i)
      local word = text:sub(i, stop)
      add(word:find '^[%d-]' and number(word) or word)
    end
    i = skip_space(text, stop + 1)
  end
  return table.concat(out)
end

-- ---- from a line of a file ----

-- JSON text of a value, whose keys are sorted where it is a table; nil where a text is none.
local function text_of(value)
  if type(value) ~= 'string' then return json.encode(value) end
  return json.decode(value) ~= nil and value or nil
end

local function has_calls(message)
  local calls = type(message) == 'table' and message.tool_calls
  return type(calls) == 'table' and calls ~= json.null and next(calls) ~= nil
end

-- The texts of the values in an object; none where a text is no object.
local function parts_of(text) return text:find '^{' and members(text) or {} end

local function order_calls(messages, text)
  local texts = members(text)
  for i, message in ipairs(messages) do
    if has_calls(message) then
      for k, call_text in ipairs(members(members(texts[i]).tool_calls)) do
        local call, parts = message.tool_calls[k], parts_of(call_text)
        if type(call) == 'table' and type(call['function']) == 'table' then
          call, parts = call['function'], parts_of(parts['function'])
        end
        if type(call) == 'table' and type(call.arguments) == 'table' then
          call.arguments = parts.arguments
        end
      end
    end
  end
end

--- Puts the text of the line in the place of all that stands in an example as a table without an
--- order: its tools, and what they are called with.
---@param example table
---@param line string JSON, that the example was read from
function tools.keep_order(example, line)
  if not line:find('"tool', 1, true) then return end
  local texts = members((line:gsub('^\239\187\191', '')))
  if type(example.tools) == 'table' and texts.tools:find '^%[' then
    example.tools = json.array(members(texts.tools))
  end
  for _, key in ipairs { 'messages', 'prompt', 'chosen', 'rejected' } do
    local list = example[key]
    if type(list) == 'table' and texts[key]:find '^%[' then order_calls(list, texts[key]) end
  end
end

-- ---- what is said ----

--- The tools of a conversation as JSON texts, or nil where there are none. They are given as
--- tables, as such texts, or all together as one text.
---@param given any
---@return string[]?
function tools.read(given)
  if given == nil or given == json.null or given == '' then return nil end
  local list = given
  if type(given) == 'string' then
    list = type(json.decode(given)) == 'table' and given:find '^%s*%[' and members(given)
  end
  if type(list) ~= 'table' or #list == 0 and next(list) ~= nil then
    refuse "chat: 'tools' must be a list of tools"
  end
  local texts = {}
  for i, tool in ipairs(list) do
    local text = (type(tool) == 'table' or type(tool) == 'string') and text_of(tool)
    if not text or not text:find '^%s*{' then refuse('chat: tool %d is no JSON object', i) end
    texts[i] = text
  end
  return #texts > 0 and texts or nil
end

--- The tools of a file, a list in JSON; what is wrong is said with the file's name.
---@param path string
---@return string[]
function tools.open(path)
  local file, why = open_file(path, 'r')
  local text = file and file:read '*a' or ''
  if file then file:close() else refuse('cannot read %s', why) end
  local _, sentence = json.decode(text)
  if sentence then refuse('%s: %s', path, sentence) end
  local ok, list = pcall(tools.read, (text:gsub('^\239\187\191', '')))
  if ok and list then return list end
  refuse('%s: %s', path, ok and 'it has no tools' or tostring(list):gsub('^chat: ', ''))
end

--- The calls in a message, nil where there are none: names, ids, and JSON texts of the arguments.
---@param message table
---@param i integer
---@return { name: string, id: string?, arguments: string }[]?
function tools.calls(message, i)
  local given = message.tool_calls
  if given == nil or given == json.null then return nil end
  if type(given) ~= 'table' or not has_calls(message) then
    if type(given) == 'table' then return nil end
    refuse('chat: message %d has tool_calls that are no list', i)
  end
  local list = {}
  for k, one in ipairs(given) do
    local call = type(one) == 'table' and (one['function'] or one)
    if type(call) ~= 'table' or type(call.name) ~= 'string' then
      refuse('chat: message %d: call %d has no name', i, k)
    end
    local text = text_of(call.arguments or {})
    if not text or not text:find '^%s*{' then
      refuse('chat: message %d: call %d needs arguments that are a JSON object', i, k)
    end
    local id = one.id
    list[k] = { name = call.name, arguments = text, id = id ~= json.null and id or nil }
  end
  if #list == 0 then refuse('chat: message %d has tool_calls that are no list', i) end
  return list
end

--- The text of the function that a tool is, which may stand in it under that name.
---@param text string
---@return string
function tools.function_of(text) return members(text)['function'] or text end

return tools
