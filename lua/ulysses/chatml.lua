-- chatml.lua - conversations as ChatML and Qwen have them, and which of these a template asks for.
local json = require 'ulysses.json'
local refuse = require 'ulysses.refuse'
local tools = require 'ulysses.tools'

local chatml = {}

-- What each begins with where nothing is from the system; whether it knows tools, whose answers are
-- the user's words, and whether what precedes an answer stands in `<think>`.
local formats = {
  chatml = {},
  qwen2 = { system = 'You are a helpful assistant.' },
  ['qwen2.5'] = { system = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.',
                  tools = true },
  qwen3 = { tools = true, thinks = true },
}

--- Whether a format is one of these.
---@param family string
---@return boolean
function chatml.has(family) return formats[family] ~= nil end

--- Whether a format knows tools and their calls.
---@param family string
---@return boolean
function chatml.calls(family) return formats[family].tools == true end

--- Whether a format knows a role.
---@param family string
---@param role string
---@return boolean
function chatml.knows(family, role)
  return role == 'system' or role == 'user' or role == 'assistant'
    or role == 'tool' and formats[family].tools == true
end

-- ---- which one ----

local function text_of(path)
  local file = io.open(path, 'rb')
  local text = file and file:read '*a'
  if file then file:close() end
  return text
end

-- The chat template that lies beside a tokenizer: in a file of its own, or in its settings, where
-- there may be several by name.
local function template_of(path)
  local folder = path:match '^(.*/)' or ''
  local alone = text_of(folder .. 'chat_template.jinja')
  if alone then return alone end
  local config = json.decode(text_of(folder .. 'tokenizer_config.json') or '{}')
  local template = type(config) == 'table' and config.chat_template
  for _, one in ipairs(type(template) == 'table' and template or {}) do
    if type(one) == 'table' and one.name == 'default' then template = one.template end
  end
  return type(template) == 'string' and template or nil
end

--- The format that the template beside a tokenizer asks for, and what its conversations begin with
--- where nothing is from the system. Without a template it is plain ChatML; nil where there is one
--- that does something else.
---@param path string of the tokenizer
---@return string? family, string? system
function chatml.told(path)
  local template = template_of(path)
  if not template then return 'chatml' end
  template = template:gsub('\\n', '\n')
  if not template:find('<|im_start|>', 1, true) or template:find('trim', 1, true)
    or template:find('assistant\n<think>', 1, true) then
    return nil
  end
  if template:find('</think>', 1, true) then
    return template:find('last_query_index', 1, true) and 'qwen3' or nil
  end
  local system = template:match "<|im_start|>system\n([^'\"{}<]+)<|im_end|>"
  for _, family in ipairs { 'qwen2', 'qwen2.5' } do
    if system and system == formats[family].system then return family end
  end
  return 'chatml', system
end

-- ---- thinking ----

local function strip(text) return (text:gsub('^\n+', ''):gsub('\n+$', '')) end

-- What an answer says, and what it has thought before: in a field of its own, or in its text.
local function parts_of(message)
  local content, thought = message.content, message.reasoning_content
  if type(thought) == 'string' then return content, strip(thought) end
  local stop = content:find('</think>', 1, true)
  if not stop then return content, '' end
  local before, after = content:sub(1, stop - 1), content
  repeat
    local _, last = after:find('</think>', 1, true)
    after = last and after:sub(last + 1) or after
  until not last
  local _, start = before:find '^.*<think>'
  return (after:gsub('^\n+', '')), strip(before:sub((start or 0) + 1))
end

-- The place of the last question of a user; what stands behind it keeps its thoughts.
local function last_question(messages)
  for i = #messages, 1, -1 do
    local text = messages[i].content
    local is_tool = text:find '^<tool_response>' and text:find '</tool_response>$'
    if messages[i].role == 'user' and not is_tool then return i end
  end
  return #messages
end

-- What follows 'assistant' and a line break: what generation begins with, and the rest.
local function answer_of(messages, i, last, how)
  local content, thought = parts_of(messages[i])
  if i <= last or (i < #messages and thought == '') then return '', content end
  local thinking = '<think>\n' .. thought .. '\n</think>\n\n'
  content = content:gsub('^\n+', '')
  if thought == '' and how.thinking == false then return thinking, content end
  return '', thinking .. content
end

-- ---- ids ----

-- Adds the tokens of one text of which the first part is not learned. A token that has some of both
-- is, as it is what the model has to say.
local function add(out, head, rest, learned)
  local before, all = out:text(head), out:text(head .. rest)
  local is_head = true
  for i, id in ipairs(all) do
    is_head = is_head and id == before[i]
    out:add({ id }, learned and not is_head)
  end
end

-- What the system says of tools, behind what it says.
local function described(list)
  local lines = { '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n'
                  .. 'You are provided with function signatures within <tools></tools> XML tags:\n'
                  .. '<tools>' }
  for _, tool in ipairs(list) do lines[#lines + 1] = tools.spell(tool) end
  lines[#lines + 1] = '</tools>\n\nFor each function call, return a json object with function name '
    .. 'and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": '
    .. '<function-name>, "arguments": <args-json-object>}\n</tool_call>'
  return table.concat(lines, '\n')
end

-- The calls in an answer, behind what it says.
local function with_calls(message, said, content)
  local parts = {}
  for i, call in ipairs(message.calls or {}) do
    parts[i] = ('<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'):format(
      call.name, tools.spell(call.arguments))
  end
  if #parts == 0 then return said end
  return said .. (content ~= '' and '\n' or '') .. table.concat(parts, '\n')
end

-- What the system says first, and where the other messages begin.
local function system_of(messages, how, format)
  local first = messages[1].role == 'system'
  local system = first and messages[1].content or how.system or format.system
  if how.tools then
    system = (system and system .. '\n\n' or '') .. described(how.tools)
  end
  return system, first and 2 or 1
end

--- Adds the ids of a conversation.
---@param out table of chat.lua
---@param messages table[]
---@param how table
function chatml.write(out, messages, how)
  local start, ends, line = out:special '<|im_start|>', out:special '<|im_end|>', out:text '\n'
  local format = formats[out.family]
  local function write(head, rest, learned)
    out:add { start }
    add(out, head, rest, learned)
    out:add({ ends }, learned)
    out:add(line)
  end
  local system, first = system_of(messages, how, format)
  if system then write('system\n', system) end
  local last, answers = last_question(messages), ''
  for i = first, #messages do
    local message = messages[i]
    if message.role == 'tool' then
      answers = ('%s\n<tool_response>\n%s\n</tool_response>'):format(answers, message.content)
      local following = messages[i + 1]
      if not following or following.role ~= 'tool' then
        write('user', answers)
        answers = ''
      end
    elseif message.role == 'assistant' and format.thinks then
      local given, said = answer_of(messages, i, last, how)
      said = with_calls(message, said, (parts_of(message)))
      write('assistant\n' .. given, said, how.learned[message])
    else
      local said = with_calls(message, message.content, message.content)
      write(message.role .. '\n', said, how.learned[message])
    end
  end
  if how.reply then
    out:add { start }
    out:add(out:text('assistant\n' .. (how.thinking == false and '<think>\n\n</think>\n\n' or '')))
  end
end

--- Refuses thoughts that a format has no place for.
---@param message table
---@param i integer
---@param family string
function chatml.check(message, i, family)
  local thought = message.reasoning_content
  if thought == nil or thought == json.null or thought == '' then return end
  if not formats[family] or not formats[family].thinks then
    refuse('chat: message %d has reasoning_content, which the format %s does not have', i, family)
  elseif type(thought) ~= 'string' then
    refuse('chat: message %d has reasoning_content that is no text', i)
  end
end

return chatml
