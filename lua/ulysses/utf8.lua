-- utf8.lua - which bytes of a text are UTF-8, the only text that JSON can hold.
local utf8 = {}

-- What UTF-8 is made of: runs of ASCII, then characters of two, three and four bytes.
local well_formed = {
  '^[%z\1-\127]+', '^[\194-\223][\128-\191]', '^\224[\160-\191][\128-\191]',
  '^[\225-\236\238\239][\128-\191][\128-\191]', '^\237[\128-\159][\128-\191]',
  '^\240[\144-\191][\128-\191][\128-\191]', '^[\241-\243][\128-\191][\128-\191][\128-\191]',
  '^\244[\128-\143][\128-\191][\128-\191]',
}

local function character_end(text, at)
  for _, pattern in ipairs(well_formed) do
    local _, last = text:find(pattern, at)
    if last then return last end
  end
end

--- Where the first byte is that is no part of a character; nil where the text is UTF-8.
---@param text string
---@return integer|nil
function utf8.first_wrong(text)
  local at = 1
  while at <= #text do
    local last = character_end(text, at)
    if not last then return at end
    at = last + 1
  end
end

--- The text with '?' for each byte that is no part of a character.
---@param text string
---@return string
function utf8.readable(text)
  local parts, at = {}, 1
  while at <= #text do
    local last = character_end(text, at)
    parts[#parts + 1] = last and text:sub(at, last) or '?'
    at = (last or at) + 1
  end
  return table.concat(parts)
end

--- The text with \xff for each byte that a terminal might not show.
---@param text string
---@return string
function utf8.escaped(text)
  return (text:gsub('[%c\127-\255]', function(c) return ('\\x%02x'):format(c:byte()) end))
end

return utf8
