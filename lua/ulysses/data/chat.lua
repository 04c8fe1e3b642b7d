-- chat.lua - ul.data.chat: conversations and answers from JSON lines, with what is to be learned.
local chat = require 'ulysses.chat'
local corpus = require 'ulysses.data.corpus'
local examples = require 'ulysses.data.examples'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'

local field = examples.field

---@class Chats
---@field name string what they were read from
---@field paths string[]|nil files, each line an example
---@field list table[]|nil examples that are there already
local Chats = {}
Chats.__index = Chats
function Chats.__tostring(self)
  if self.list then return ('%d examples'):format(#self.list) end
  return ('the examples of %s'):format(self.name)
end

-- ---- an example ----

-- Who speaks, where names are those of ShareGPT.
local speakers = { human = 'user', user = 'user', gpt = 'assistant', assistant = 'assistant',
                   system = 'system', tool = 'tool', observation = 'tool' }

local function list_of(example, key)
  local list = field(example, key)
  if type(list) ~= 'table' or #list == 0 then
    refuse("'%s' must be a list of messages, and not empty", key)
  end
  return list
end

local function is_conversation(example)
  return field(example, 'messages') ~= nil or field(example, 'conversations') ~= nil
end

local function messages_of(example)
  if field(example, 'messages') ~= nil then return list_of(example, 'messages') end
  local messages = {}
  for i, turn in ipairs(list_of(example, 'conversations')) do
    if type(turn) ~= 'table' or not speakers[turn.from] then
      refuse("turn %d is from '%s', who is not known", i,
             tostring(type(turn) == 'table' and turn.from))
    end
    messages[i] = { role = speakers[turn.from], content = turn.value }
  end
  return messages
end

local function text_of(example, key)
  if type(example[key]) ~= 'string' then refuse("'%s' must be text", key) end
  return example[key]
end

-- What other trainers read beside messages.
local unwritten = { 'functions', 'documents', 'images', 'videos', 'audios' }

-- Ids, and which of them are to be learned.
local function encode(example, tokenizer, how)
  local ids, mask, learned = {}, {}, 0
  local function add(list)
    for _, id in ipairs(list) do ids[#ids + 1], mask[#mask + 1] = id, learned end
  end
  if is_conversation(example) then
    if not tokenizer.tokenizer then
      refuse 'conversations need a tokenizer with special tokens, as models come with'
    end
    for _, key in ipairs(unwritten) do
      local value = field(example, key)
      if value ~= nil and (type(value) ~= 'table' or next(value) ~= nil) then
        refuse("has '%s', which are not written; a model would learn without them", key)
      end
    end
    return chat.encode(tokenizer.tokenizer, how.family, messages_of(example),
                       { loss = how.loss, date = how.date, tools = field(example, 'tools') })
  elseif field(example, 'prompt') ~= nil or field(example, 'completion') ~= nil then
    local rest = tokenizer.tokenizer
    add(tokenizer.encode(text_of(example, 'prompt')))
    learned = 1
    local completion = text_of(example, 'completion')
    add(rest and rest:encode(completion) or tokenizer.encode(completion))
  elseif field(example, 'text') ~= nil then
    learned = 1
    add(tokenizer.encode(text_of(example, 'text')))
  else
    refuse "has none of 'messages', 'conversations', 'prompt' with 'completion', and 'text'"
  end
  add { tokenizer.eos }
  return ids, mask
end

-- Refuses answers of which only their end would be learned: a model would learn to say nothing.
local function check_answers(example, how)
  local messages = is_conversation(example) and messages_of(example) or {}
  local is_last = true
  for i = #messages, 1, -1 do
    local message = messages[i]
    if message.role == 'assistant' and (is_last or how.loss == 'all') then
      is_last = false
      if message.weight ~= 0 and not chat.says(message) then
        refuse('the answer in message %d is empty', i)
      end
    end
  end
  if #messages == 0 and example.completion == '' then
    refuse "has nothing to learn: 'completion' is empty"
  end
end

-- The same, where something is learned from it.
local function encode_answer(example, tokenizer, how)
  local ids, mask = encode(example, tokenizer, how)
  check_answers(example, how)
  for i = 2, #ids do -- no token before it predicts the first one
    if mask[i] == 1 then return ids, mask end
  end
  if is_conversation(example) then
    refuse 'has nothing to learn: no message is from the assistant'
  end
  refuse 'has nothing to learn: its text is empty'
end

-- ---- all of them ----

--- The tokens of all examples, with which of them are to be learned: what the assistant says in a
--- conversation (`loss = 'last'`: what it says last), a completion, a text. An example without any
--- of that, or with an answer that is empty, is refused. `family` and `date` are those of
--- `ul.chat.encode`.
---@param tokenizer string|Tokenizer|table the path of a tokenizer, or one that is loaded
---@param given { family: string?, loss: 'all'|'last'|nil, date: string? }?
---@return Corpus
function Chats:tokenize(tokenizer, given)
  local how = options.read('tokenize', given, { family = options.none, loss = 'all',
                                                date = options.none })
  if how.loss ~= 'all' and how.loss ~= 'last' then
    raise("tokenize: loss must be 'all' or 'last', got '%s'", how.loss)
  end
  local chosen = require('ulysses.tokenizer').resolve('tokenize', tokenizer)
  local growing = corpus.growing(chosen)
  examples.each(self, function(example) growing:add(encode_answer(example, chosen, how)) end)
  if growing.n == 0 then refuse("data.chat: '%s' has no examples", self.name) end
  return growing:corpus()
end

--- Examples to learn answers from: a file of JSON lines, or all that match a pattern (gzipped ones
--- too), or a list of such tables. A line is one of
---
---   {"messages": [{"role": "user", "content": ".."}, {"role": "assistant", "content": ".."}]}
---   {"conversations": [{"from": "human", "value": ".."}, {"from": "gpt", "value": ".."}]}
---   {"prompt": "..", "completion": ".."}
---   {"text": ".."}
---
--- A conversation may have "tools" beside its messages, and tool_calls in them (ul.chat.encode); an
--- answer with "weight": 0 is not learned.
--- What is wrong with one is said with its file and line, when they are made into tokens. Then
--- pack(length) lays whole examples into rows:
---
---   ul.data.chat('train.jsonl'):tokenize(tok):pack(2048):shuffle { seed = 1 }:batch(8)
---@param from string|table[]
---@return Chats
local function read(from)
  return setmetatable(examples.find('data.chat', from), Chats)
end

return { read = read }
