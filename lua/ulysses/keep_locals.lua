-- keep_locals.lua - lets a variable stay for the next entry that is typed, or pasted from a script.
local lexer = require 'ulysses.lexer'

-- Words behind which an `end` or `until` is due.
local opens = { ['function'] = true, ['do'] = true, ['if'] = true, ['repeat'] = true }
local closes = { ['end'] = true, ['until'] = true }

--- The text without the word `local` where it stands outside of every block; blanks take its place.
---@param text string
---@return string
return function(text)
  local depth, parts, from = 0, {}, 1
  for _, token in ipairs(lexer.tokens_of(text)) do
    if token.kind == 'name' then
      if opens[token.text] then depth = depth + 1 end
      if closes[token.text] then depth = depth - 1 end
      if token.text == 'local' and depth == 0 then
        parts[#parts + 1] = text:sub(from, token.at - 1)
        from = token.at + #'local'
      end
    end
  end
  parts[#parts + 1] = text:sub(from)
  return table.concat(parts, (' '):rep(#'local'))
end
