-- lexer.lua - the tokens of what is typed at the prompt, finished or not.

local keywords = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat
               return then true until while]]):gmatch '%a+' do
  keywords[word] = true
end

-- What is left of a string or comment that began at `at`: 'string' or nothing where it is open.
local function after_string(line, at)
  local quote, i = line:sub(at, at), at + 1
  while i <= #line do
    local c = line:sub(i, i)
    if c == quote then return i + 1 end
    i = i + (c == '\\' and 2 or 1)
  end
end

local function after_long(line, at, level)
  local _, stop = line:find(']' .. level .. ']', at, true)
  return stop and stop + 1
end

-- The kind of the token at `at` and the position behind it; nil for one that the line does not end.
local function token_at(line, at)
  local stop = select(2, line:find('^[%a_][%w_]*', at))
  if stop then return 'name', stop + 1 end
  stop = select(2, line:find('^%.?%d[%w%.]*', at))
  if stop then return 'number', stop + 1 end
  local level = line:match('^%-%-%[(=*)%[', at) or line:match('^%[(=*)%[', at)
  if level then return 'text', after_long(line, at, level) end
  if line:find('^%-%-', at) then return 'text', line:match('\n()', at) end
  if line:find('^[\'"]', at) then return 'string', after_string(line, at) end
  return 'symbol', select(2, line:find(line:find('^%.%.', at) and '^%.+' or '^.', at)) + 1
end

--- All tokens { kind =, text =, at =, open = } of kinds name, number, string, text (comments and
--- long strings) and symbol; the last one is open where it goes on behind the end.
---@param line string
---@return table[]
local function tokens_of(line)
  local tokens, at = {}, line:match '^%s*()'
  while at <= #line do
    local kind, behind = token_at(line, at)
    tokens[#tokens + 1] = {
      kind = kind, at = at, text = line:sub(at, behind and behind - 1), open = not behind,
    }
    if not behind then break end
    at = line:match('^%s*()', behind)
  end
  return tokens
end

return { keywords = keywords, tokens_of = tokens_of }
