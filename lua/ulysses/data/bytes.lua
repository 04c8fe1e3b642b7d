-- bytes.lua - the tokenizer that needs no vocabulary: a token is a byte.
local bytes = { vocab = 260, bos = 256, eos = 257, pad = 258, unknown = 259 }

--- Writes the tokens of `text` to ids[0], ids[1], ...; there are #text of them.
---@param text string
---@param ids any pointer to integers
function bytes.encode_into(text, ids)
  for i = 1, #text do ids[i - 1] = text:byte(i) end
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
