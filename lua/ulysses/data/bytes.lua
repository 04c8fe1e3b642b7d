-- bytes.lua - the tokenizer that needs no vocabulary: a token is a byte.
local ffi = require 'ffi'

local bytes = { vocab = 260, bos = 256, eos = 257, pad = 258, unknown = 259 }

--- Writes the tokens of `text` to ids[0], ids[1], ...; there are #text of them.
---@param text string
---@param ids ffi.cdata* pointer to integers
function bytes.encode_into(text, ids)
  bytes.encode_bytes(ffi.cast('const uint8_t *', text), #text, ids)
end

--- The same for n bytes at a pointer. A tokenizer that has this makes one token of each byte, and
--- spares a text in a file the way through a string.
---@param from ffi.cdata* pointer to bytes
---@param n integer
---@param ids ffi.cdata* pointer to integers
function bytes.encode_bytes(from, n, ids)
  for i = 0, n - 1 do ids[i] = from[i] end
end

--- How many tokens `text` has.
function bytes.count(text) return #text end

--- The tokens of `text`, as a table.
---@param text string
---@return integer[]
function bytes.encode(text)
  local ids = {}
  for i = 1, #text do ids[i] = text:byte(i) end
  return ids
end

--- The text of tokens; those that are no bytes have none.
---@param ids integer[]
---@return string
function bytes.decode(ids)
  local parts = {}
  for _, id in ipairs(ids) do
    if id < 256 then parts[#parts + 1] = string.char(id) end
  end
  return table.concat(parts)
end

return bytes
