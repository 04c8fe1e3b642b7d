-- keep_locals.lua - lets a variable stay for the next entry that is typed, or pasted from a script.
local lexer = require 'ulysses.lexer'

-- Words behind which an `end` or `until` is due.
local opens = { ['function'] = true, ['do'] = true, ['if'] = true, ['repeat'] = true }
local closes = { ['end'] = true, ['until'] = true }

-- Names that the library itself looks up: these are never to be set for everyone.
local standard = {}
for name in next, _G do standard[name] = true end

-- Whether the local declaration behind the token at index i has one of these.
local function is_standard(tokens, i)
  for k = i + 1, #tokens do
    local token = tokens[k]
    if token.kind == 'name' and not lexer.keywords[token.text] then
      if standard[token.text] then return true end
    elseif token.text ~= ',' and token.text ~= 'function' then
      return false
    end
  end
  return false
end

--- The text without the word `local` where it stands outside of every block; blanks take its place.
---@param text string
---@return string
return function(text)
  local depth, parts, from = 0, {}, 1
  local tokens = lexer.tokens_of(text)
  for i, token in ipairs(tokens) do
    if token.kind == 'name' then
      if opens[token.text] then depth = depth + 1 end
      if closes[token.text] then depth = depth - 1 end
      if token.text == 'local' and depth == 0 and not is_standard(tokens, i) then
        parts[#parts + 1] = text:sub(from, token.at - 1)
        from = token.at + #'local'
      end
    end
  end
  parts[#parts + 1] = text:sub(from)
  return table.concat(parts, (' '):rep(#'local'))
end
