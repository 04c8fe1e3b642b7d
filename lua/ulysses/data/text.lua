-- text.lua - ul.data.read: documents of text from files, plain or gzipped.
local corpus = require 'ulysses.data.corpus'
local raise = require 'ulysses.raise'

---@class Text
local Text = {}
Text.__index = Text

-- For sh: nothing in it is special any more, or nothing but what patterns are made of.
local function quote(path) return "'" .. path:gsub("'", "'\\''") .. "'" end
local function quote_pattern(path) return (path:gsub('[^%w/._*?%[%]-]', '\\%0')) end

local function output_of(command)
  local pipe = assert(io.popen(command, 'r'))
  local text = pipe:read '*a'
  pipe:close()
  return text
end

local function files_of(pattern)
  local file = io.open(pattern)
  if file then
    file:close()
    return { pattern }
  end
  local files = {}
  if pattern:find '[*?[]' then
    local listing = output_of('ls -d -- ' .. quote_pattern(pattern) .. ' 2>/dev/null')
    for name in listing:gmatch '[^\n]+' do
      files[#files + 1] = name
    end
  end
  return files
end

local function contents(path)
  if path:match '%.gz$' then return output_of('gzip -dc -- ' .. quote(path)) end
  local file, why = io.open(path, 'rb')
  if not file then raise('data.read: %s', why) end
  local text = file:read '*a'
  file:close()
  return text
end

local tokenizers = { bytes = require 'ulysses.data.bytes' }

--- Turns each document into tokens and an end-of-document token.
---@param tokenizer string|table 'bytes', or what has count, encode_into, eos, pad and vocab
function Text:tokenize(tokenizer)
  local chosen = tokenizers[tokenizer] or tokenizer
  if type(chosen) ~= 'table' then
    raise("tokenize: no tokenizer '%s'; there is 'bytes'", tostring(tokenizer))
  end
  return corpus.tokenize(self.documents, chosen)
end

--- Reads a file, or all that match a pattern (docs/*.md): one document each.
---@param pattern string
local function read(pattern)
  local documents = {}
  for i, path in ipairs(files_of(pattern)) do documents[i] = contents(path) end
  if #documents == 0 then raise("data.read: no file '%s'", pattern) end
  return setmetatable({ documents = documents }, Text)
end

--- The same for texts that are there already.
---@param documents string[]
local function from(documents) return setmetatable({ documents = documents }, Text) end

return { read = read, from = from }
