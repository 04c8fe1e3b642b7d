-- writer.lua - one of the texts that ul.generate writes: its tokens, its characters as they become
-- whole, and where it ends.

local chat = require 'ulysses.chat'
local refuse = require 'ulysses.refuse'

---@class Writer
---@field row integer which of the prompts it is
---@field tokens integer[] those of the prompt, and what was written
---@field is_kept boolean? whether the cache knows the tokens but for the last one
local Writer = {}
Writer.__index = Writer

--- How many bytes at the end of `text` may be the beginning of one of the stops.
local function held_back(text, stops)
  local most = 0
  for _, stop in ipairs(stops) do
    for n = math.min(#stop - 1, #text), most + 1, -1 do
      if text:sub(-n) == stop:sub(1, n) then
        most = n
        break
      end
    end
  end
  return most
end

---@param row integer
---@param prompt string|integer[]|table[]
---@param how table what ul.generate has read
function Writer.new(row, prompt, how)
  local self = setmetatable({ row = row, how = how, written = {}, pieces = {}, held = '' }, Writer)
  local tokenizer = how.tokenizer
  if not tokenizer then
    self.tokens = {}
    for i, id in ipairs(prompt) do self.tokens[i] = id end
    return self
  end
  if how.kind == 'chat' then
    if not tokenizer.tokenizer then
      refuse 'generate: conversations need a tokenizer with special tokens, as models come with'
    end
    self.tokens = chat.encode(tokenizer.tokenizer, how.family, prompt,
                              { reply = true, date = how.date, thinking = how.thinking,
                                tools = how.tools })
    self.decoder = tokenizer.decoder()
    return self
  end
  self.tokens = tokenizer.encode(prompt)
  if #self.tokens == 0 then self.tokens[1] = tokenizer.eos end -- what a text stands behind
  if tokenizer.decoder then -- goes on where the prompt ends: no space is lost there
    self.decoder = tokenizer.decoder()
    for _, id in ipairs(self.tokens) do self.decoder:push(id) end
  end
  return self
end

--- The last n tokens.
---@param n integer
---@return integer[]
function Writer:last(n)
  local list = {}
  for i = math.max(1, #self.tokens - n + 1), #self.tokens do list[#list + 1] = self.tokens[i] end
  return list
end

local function say(self, piece)
  if piece == '' then return end
  self.pieces[#self.pieces + 1] = piece
  if self.how.stream then self.how.stream(piece, self.row) end
end

-- Where the first of the stops begins, if one is there.
local function find_stop(text, stops)
  local first
  for _, stop in ipairs(stops) do
    local at = text:find(stop, 1, true)
    if at and (not first or at < first) then first = at end
  end
  return first
end

--- Adds a token; returns whether the text goes on.
---@param id integer
---@return boolean
function Writer:add(id)
  if self.how.stop_ids[id] then return false end
  self.tokens[#self.tokens + 1], self.written[#self.written + 1] = id, id
  local tokenizer, stops = self.how.tokenizer, self.how.stop_texts
  if not tokenizer then
    if self.how.stream then self.how.stream(id, self.row) end
    return true
  end
  local text = self.held .. (self.decoder and self.decoder:push(id) or tokenizer.decode { id })
  local at = find_stop(text, stops)
  if at then
    say(self, text:sub(1, at - 1))
    self.held, self.stopped = '', true
    return false
  end
  local n = held_back(text, stops)
  self.held = text:sub(#text - n + 1)
  say(self, text:sub(1, #text - n))
  return true
end

--- The text, or the ids where the prompt was of ids.
---@return string|integer[]
function Writer:finish()
  if not self.how.tokenizer then return self.written end
  if not self.stopped then
    say(self, self.held .. (self.decoder and self.decoder:finish() or ''))
  end
  return table.concat(self.pieces)
end

return Writer
