-- chat.lua - ul.chat: conversations to ids, as Llama 3, Mistral and Qwen have learned them.
--
-- Put together from ids: what stands between messages is never made of text, so that no message can
-- say it.
local chatml = require 'ulysses.chatml'
local json = require 'ulysses.json'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local suggest = require 'ulysses.suggest'
local tools = require 'ulysses.tools'

---@class chat
local chat = {}

-- ---- ids that grow, and their mask ----

local Ids = {}
Ids.__index = Ids

function Ids:add(list, learned)
  local ids, mask = self.ids, self.mask
  for _, id in ipairs(list) do
    ids[#ids + 1] = id
    mask[#mask + 1] = learned and 1 or 0
  end
end

-- The id of a special token that the format needs.
function Ids:special(name)
  local id = self.tok:id(name)
  if not id or not select(2, self.tok:token(id)) then
    refuse("chat: %s has no special token '%s', which the format %s needs", self.tok.path, name,
           self.family)
  end
  return id
end

-- Text on its own, with one space before it where SentencePiece has it so.
function Ids:text(text)
  local tok = self.tok
  if text == '' then return {} end
  if tok.split == 'sentencepiece' and tok.about.prepend ~= 'always' then text = ' ' .. text end
  return tok:encode(text)
end

-- ---- spaces at both ends ----

-- All that Python's strip() takes away, on whose templates models have been trained.
local spaces = {
  '[\t-\r\28-\32]', '\194[\133\160]', '\225\154\128', '\226\128[\128-\138\168\169\175]',
  '\226\129\159', '\227\128\128',
}

local function trim(text)
  local first, last = 1, #text
  local at
  repeat
    at = first
    for _, space in ipairs(spaces) do
      local _, stop = text:find('^' .. space, first)
      first = stop and stop + 1 or first
    end
  until at == first
  repeat
    at = last
    for _, space in ipairs(spaces) do
      for n = 1, 3 do
        local start = last - n + 1
        if start >= first and select(2, text:find('^' .. space, start)) == last then
          last = start - 1
        end
      end
    end
  until at == last
  return text:sub(first, last)
end

-- ---- Llama 3 ----

local families = {}

local llama3_roles = { system = 'system', user = 'user', assistant = 'assistant', tool = 'ipython',
                       ipython = 'ipython' }

-- What a message says where a format has one call in it and nothing beside.
local function single_call(message, i, family)
  if #message.calls > 1 then
    refuse('chat: message %d has %d calls; in the format %s it may have one', i, #message.calls,
           family)
  elseif trim(message.content) ~= '' then
    refuse('chat: message %d has text beside its call, which the format %s has no place for', i,
           family)
  end
  local call = message.calls[1]
  return ('{"name": "%s", "parameters": %s}'):format(call.name, tools.spell(call.arguments))
end

-- A question with the tools that may be called for it, as Llama 3.1 and later have it.
local function with_tools(list, question)
  local parts = {
    'Given the following functions, please respond with a JSON for a function call with its proper '
    .. 'arguments that best answers the given prompt.\n\nRespond in the format {"name": function '
    .. 'name, "parameters": dictionary of argument name and its value}.Do not use variables.\n\n' }
  for _, tool in ipairs(list) do parts[#parts + 1] = tools.spell(tool, 4) .. '\n\n' end
  return table.concat(parts) .. trim(question)
end

-- The messages as the templates of Llama 3.1 and later have them: with dates before what the system
-- says, and tools before the first question. Those that are `whole` are not trimmed.
local function dated(messages, how, family)
  local system, first = '', 1
  if messages[1].role == 'system' then system, first = trim(messages[1].content), 2 end
  local list = { { role = 'system', whole = true,
    content = ('%sCutting Knowledge Date: December 2023\nToday Date: %s\n\n%s'):format(
      how.tools and 'Environment: ipython\n' or '', how.date, system) } }
  for i = first, #messages do
    local message = messages[i]
    local written = { role = message.role, whole = true, continues = message.continues }
    if i == first and how.tools then
      if message.role ~= 'user' then
        refuse('chat: message %d is from the %s; where there are tools, the format %s begins with '
               .. 'the user', i, message.role, family)
      end
      written.content = with_tools(how.tools, message.content)
    elseif message.calls then
      written.content = single_call(message, i, family)
    elseif llama3_roles[message.role] == 'ipython' then
      written.content = tools.quote(message.content)
    else
      written = message
    end
    how.learned[written] = how.learned[message]
    list[#list + 1] = written
  end
  return list
end

function families.llama3(out, messages, how)
  local start, stop = out:special '<|start_header_id|>', out:special '<|end_header_id|>'
  local ends = out:special '<|eot_id|>'
  local break_ids = out:text '\n\n'
  local function header(role)
    out:add { start }
    out:add(out:text(role))
    out:add { stop }
    out:add(break_ids)
  end
  out:add { out:special '<|begin_of_text|>' }
  for _, message in ipairs(how.date and dated(messages, how, out.family) or messages) do
    local learned = how.learned[message]
    header(llama3_roles[message.role])
    out:add(out:text(message.whole and message.content or trim(message.content)), learned)
    out:add({ message.continues and out:special '<|eom_id|>' or ends }, learned)
  end
  if how.reply then header 'assistant' end
end

-- ---- Mistral ----

-- Who is due behind a message: behind a call what it gave, for each call in it, then the assistant.
local function due_behind(rest, n_open)
  local last = rest[#rest]
  if not last or last.role == 'assistant' and not last.calls then return 'user' end
  return n_open > 0 and 'tool' or 'assistant'
end

-- The system message, and the rest: user, assistant, user, ...
local function alternating(messages, family)
  local system, rest, n_open = nil, {}, 0
  for i, message in ipairs(messages) do
    local role = message.role
    if role == 'system' then
      if i > 1 then
        refuse('chat: message %d is from the system; in the format %s only the first may be', i,
               family)
      end
      system = message.content
    else
      local due = due_behind(rest, n_open)
      if role ~= due then
        refuse("chat: message %d is from the %s, but '%s' is due: in the format %s user and "
               .. 'assistant take turns, and the user begins', i, role, due, family)
      end
      rest[#rest + 1] = message
      n_open = message.calls and #message.calls or math.max(0, n_open - 1)
    end
  end
  if #rest == 0 then refuse('chat: the format %s needs a message of the user', family) end
  return system, rest
end

-- Where the system message goes: before the text of one user message.
local function with_system(system, content)
  return system and system .. '\n\n' .. content or content
end

function families.mistral_v1(out, messages, how)
  local system, rest = alternating(messages, out.family)
  local eos = out:special '</s>'
  out:add { out:special '<s>' }
  for i, message in ipairs(rest) do
    if message.role == 'user' then
      local content = with_system(i == 1 and system, message.content)
      out:add(out:text('[INST] ' .. content .. ' [/INST]'))
    else
      local learned = how.learned[message]
      out:add(out:text(message.content), learned)
      out:add({ eos }, learned)
    end
  end
end

-- The id of a call, which the format has in nine letters and digits.
local function call_id(id, family)
  if type(id) == 'string' and #id == 9 and not id:find '%W' then return id end
  refuse("chat: the id of a call is %s; in the format %s it has 9 letters and digits",
         type(id) == 'string' and "'" .. id .. "'" or 'missing', family)
end

-- All calls of a message as one list of JSON.
local function mistral_calls(message, family)
  local parts = {}
  if trim(message.content) ~= '' then
    refuse('chat: there is text beside a call, which the format %s has no place for', family)
  end
  for i, call in ipairs(message.calls) do
    parts[i] = ('{"name": "%s", "arguments": %s, "id": "%s"}'):format(
      call.name, tools.spell(call.arguments), call_id(call.id, family))
  end
  return '[' .. table.concat(parts, ', ') .. ']'
end

local function mistral_tools(list)
  local parts = {}
  for i, tool in ipairs(list) do
    parts[i] = '{"type": "function", "function": ' .. tools.spell(tools.function_of(tool)) .. '}'
  end
  return '[' .. table.concat(parts, ', ') .. ']'
end

-- What a tool gave: JSON as it is, other text as a string of it.
local function mistral_result(message, family)
  local content = message.content
  content = json.decode(content) ~= nil and tools.spell(content) or tools.quote(content)
  return ('{"content": %s, "call_id": "%s"}'):format(content,
                                                     call_id(message.tool_call_id, family))
end

local function mistral_v3(out, messages, how)
  local system, rest = alternating(messages, out.family)
  local eos, last = out:special '</s>', 0 -- the last user message
  for i, message in ipairs(rest) do last = message.role == 'user' and i or last end
  local function within(name, text)
    out:add { out:special('[' .. name .. ']') }
    out:add(out:text(text))
    out:add { out:special('[/' .. name .. ']') }
  end
  out:add { out:special '<s>' }
  for i, message in ipairs(rest) do
    local learned = how.learned[message]
    if message.role == 'user' then
      if i == last and how.tools then within('AVAILABLE_TOOLS', mistral_tools(how.tools)) end
      within('INST', with_system(i == last and system, message.content))
    elseif message.role == 'tool' then
      within('TOOL_RESULTS', mistral_result(message, out.family))
    else
      if message.calls then out:add({ out:special '[TOOL_CALLS]' }, learned) end
      local text = message.calls and mistral_calls(message, out.family)
      out:add(out:text(text or (message.content:gsub(' +$', ''))), learned)
      out:add({ eos }, learned)
    end
  end
end
families.mistral_v3, families.mistral_v3_tekken = mistral_v3, mistral_v3

for _, family in ipairs { 'chatml', 'qwen2', 'qwen2.5', 'qwen3' } do
  families[family] = chatml.write
end

-- What a family's tokens look like; others would come out as something that no model has learned.
local byte_level = { llama3 = true, qwen2 = true, gpt2 = true, tekken = true }
local splits = { llama3 = { llama3 = true }, mistral_v1 = { sentencepiece = true },
                 mistral_v3 = { sentencepiece = true }, mistral_v3_tekken = { tekken = true },
                 chatml = byte_level, qwen2 = byte_level, ['qwen2.5'] = byte_level,
                 qwen3 = byte_level }
local names = { 'llama3', 'mistral_v1', 'mistral_v3', 'mistral_v3_tekken', 'chatml', 'qwen2',
                'qwen2.5', 'qwen3' }
local all_names = "'" .. table.concat(names, "', '") .. "'"

-- ---- which family ----

local function check_tokenizer(caller, tok)
  if type(tok) == 'table' and type(tok.id) == 'function' then return end
  raise('%s: expected a tokenizer, as ul.tokenizer.load gives one, got a %s', caller, type(tok))
end

local told = setmetatable({}, { __mode = 'k' }) -- by tokenizer: what lies beside it is read once

--- The format that a tokenizer was made for, or nil where its tokens do not tell: those of Mistral
--- v0.1 and v0.2 ('mistral_v1') are no others than those of Llama 2. Where they are those of
--- ChatML, the chat template that lies beside tells it; then what conversations begin with that
--- have no system's message is the second result, if that is not the format's own.
---@param tok Tokenizer
---@return string? family
---@return string? system
function chat.family(tok)
  check_tokenizer('chat.family', tok)
  local function has(name)
    local id = tok:id(name)
    return id ~= nil and select(2, tok:token(id)) == true
  end
  if has '<|start_header_id|>' and has '<|eot_id|>' then return 'llama3' end
  if has '<|im_start|>' and has '<|im_end|>' then
    told[tok] = told[tok] or { chatml.told(tok.path) }
    return told[tok][1], told[tok][2]
  end
  -- Later formats of Mistral have a special token for the system's message.
  if not (has '[INST]' and has '[/INST]') or has '[SYSTEM_PROMPT]' then return nil end
  if tok.split == 'sentencepiece' then return 'mistral_v3' end
  if tok.split == 'tekken' then return 'mistral_v3_tekken' end
end

local function family_of(tok, family)
  local system
  if family == nil then
    family, system = chat.family(tok)
    if not family then
      refuse('chat: the tokens of %s do not tell which format they are for; name it: %s', tok.path,
             all_names)
    end
  elseif not families[family] then
    refuse("chat: no format '%s'; there are %s%s", tostring(family), all_names,
           suggest(tostring(family), names))
  end
  if not splits[family][tok.split] then
    refuse("chat: the format %s is not for a tokenizer like %s, which splits text as '%s'", family,
           tok.path, tok.split)
  end
  return family, system
end

-- ---- messages ----

local function knows(family, role)
  return family == 'llama3' and llama3_roles[role]
    or family:find '^mistral_v3' and role == 'tool'
    or chatml.has(family) and chatml.knows(family, role)
    or role == 'system' or role == 'user' or role == 'assistant'
end

-- Whether a format has tools; that of Llama 3 has since its version 3.1, whose system message has a
-- date.
local function has_tools(family, how)
  return family == 'llama3' and how.date ~= nil or family:find '^mistral_v3' ~= nil
    or chatml.has(family) and chatml.calls(family)
end

local function refuse_tools(family, what)
  refuse('chat: %s, which the format %s does not have%s', what, family,
         family == 'llama3' and " without a date (date='26 Jul 2024')" or '')
end

-- A message with its calls as they are written, and text for a content that is not there.
local function with_calls(message, i, family, how)
  local calls = tools.calls(message, i)
  if not calls then return message end
  if message.role ~= 'assistant' then
    refuse('chat: message %d has tool_calls, and is from the %s', i, message.role)
  elseif not has_tools(family, how) then
    refuse_tools(family, ('message %d has tool_calls'):format(i))
  end
  local copy = { calls = calls }
  for key, value in pairs(message) do copy[key] = value end
  if message.content == nil or message.content == json.null then copy.content = '' end
  return copy
end

-- The messages as they are written.
local function check(messages, family, how)
  if type(messages) ~= 'table' then
    raise('chat: expected a list of messages, got a %s', type(messages))
  end
  if #messages == 0 then refuse 'chat: there are no messages' end
  local list = {}
  for i, given in ipairs(messages) do
    local message = type(given) == 'table' and type(given.role) == 'string'
      and with_calls(given, i, family, how)
    if not message or type(message.content) ~= 'string' then
      refuse('chat: message %d needs a role and a content, both of them text', i)
    end
    if not knows(family, message.role) then
      refuse("chat: message %d has the role '%s', which the format %s does not have", i,
             message.role, family)
    end
    local old = message.function_call
    if old ~= nil and old ~= json.null then
      refuse('chat: message %d has function_call, which is not written; tool_calls are', i)
    end
    local weight = message.weight
    if weight ~= nil and weight ~= json.null and weight ~= 0 and weight ~= 1 then
      refuse('chat: message %d has the weight %s; it may be 0 or 1', i, json.encode(weight))
    end
    chatml.check(message, i, family)
    list[i] = message
  end
  return list
end

--- Whether an answer has more to learn than its end.
---@param message table
---@return boolean
function chat.says(message)
  local thought, content = message.reasoning_content, message.content
  local calls = message.tool_calls
  if type(calls) == 'table' and next(calls) ~= nil then return true end
  return type(content) == 'string' and trim(content) ~= ''
    or type(thought) == 'string' and trim(thought) ~= ''
end

-- The messages whose tokens are to be learned.
local function learned(messages, loss)
  local set, last = {}, nil
  for _, message in ipairs(messages) do
    if message.role == 'assistant' then
      last = message
      if loss == 'all' and message.weight ~= 0 then set[message] = true end
    end
  end
  if loss == 'last' and last and last.weight ~= 0 then set[last] = true end
  return set
end

--- The ids of a conversation, BOS included, and for each whether it is one to learn from (1) or
--- not (0): the assistant's words and the token that ends them are. Messages are { role =, content
--- = }; what a message says is text, whatever special token it is written like. Families: 'llama3';
--- 'mistral_v1' (v0.1, v0.2), 'mistral_v3' (v0.3), 'mistral_v3_tekken' (Nemo); 'chatml', 'qwen2',
--- 'qwen2.5', 'qwen3'; nil: that of the tokenizer, where its tokens or its template tell it. Roles
--- and orders that a family does not have are refused.
---
---   local ids, mask = ul.chat.encode(tok, nil, { { role = 'user', content = 'Hello' } })
---
--- `loss = 'last'` learns from the last answer alone; an answer with `weight = 0` is not learned.
--- `reply` ends with what stands before an answer, for generation. `date` ('26 Jul 2024') adds the
--- dated lines that Llama 3.1 and later
--- have before the system's message. There `continues = true` in a message ends it with
--- `<|eom_id|>`. `tools`: those that may be called, for llama3 with a date, 'mistral_v3',
--- 'mistral_v3_tekken', 'qwen2.5' and 'qwen3'; a call is a message with tool_calls, as { { name =,
--- arguments = {..} } }, and what it gave one of the role 'tool'. In Mistral's formats these have
--- `id` and `tool_call_id`, of 9 letters and digits. Tools and arguments may be texts of JSON:
--- tables have no order of keys, and are written with sorted ones. In 'qwen3' an answer that is not
--- followed by a question has its thoughts (`reasoning_content` of a message, or `<think>` in its
--- text) before it, and learns them too; `thinking = false` gives it empty ones to begin with.
---@param tok Tokenizer
---@param family string?
---@param messages { role: string, content: string?, continues: boolean?,
---  reasoning_content: string?, tool_calls: table[]?, weight: 0|1|nil }[]
---@param given { loss: 'all'|'last'|nil, reply: boolean?, date: string?,
---  thinking: boolean?, tools: table[]|string|nil }?
---@return integer[] ids, integer[] mask
function chat.encode(tok, family, messages, given)
  local how = options.read('chat.encode', given, { loss = 'all', reply = false,
                                                   date = options.none,
                                                   thinking = options.none,
                                                   tools = options.none })
  check_tokenizer('chat.encode', tok)
  if how.loss ~= 'all' and how.loss ~= 'last' then
    raise("chat.encode: loss must be 'all' or 'last', got '%s'", how.loss)
  end
  family, how.system = family_of(tok, family)
  messages, how.tools = check(messages, family, how), tools.read(how.tools)
  if how.tools and not has_tools(family, how) then refuse_tools(family, 'there are tools') end
  if how.date and family ~= 'llama3' then
    refuse('chat.encode: only the format llama3 has a date, not %s', family)
  elseif how.thinking ~= nil and family ~= 'qwen3' then
    refuse('chat.encode: thinking is for the format qwen3, not for %s', family)
  end
  how.learned = learned(messages, how.loss)
  local out = setmetatable({ ids = {}, mask = {}, tok = tok, family = family }, Ids)
  families[family](out, messages, how)
  return out.ids, out.mask
end

return chat
