-- small_tokenizers.lua - the tokenizers of tests/golden/tokenizer.jsonl; where real ones lie.
local json = require 'ulysses.json'

local base
local small = { golden = {} } -- golden: { name =, of =, settings =, model =, rows = }, ...
for line in io.lines 'tests/golden/tokenizer.jsonl' do
  if base then
    small.golden[#small.golden + 1] = json.decode(line)
  else
    base = json.decode(line)
  end
end

--- The text of tokenizer.json of a variant, with further changes.
---@param variant table
---@param change table?
---@return string
function small.made(variant, change)
  local whole, model = {}, {}
  for key, value in pairs(base[variant.of]) do whole[key] = value end
  for key, value in pairs(variant.settings) do whole[key] = value end
  for key, value in pairs(whole.model) do model[key] = value end
  for key, value in pairs(variant.model) do model[key] = value end
  whole.model = model
  for key, value in pairs(change or {}) do whole[key] = value end
  return json.encode(whole)
end

--- The variant of this name.
---@param name string
---@return table
function small.variant(name)
  for _, one in ipairs(small.golden) do
    if one.name == name then return one end
  end
  error('no tokenizer ' .. name)
end

--- The special tokens of a variant, and more of these names behind all ids.
---@param variant table
---@param names string[]
---@return table[] added_tokens
function small.with_specials(variant, names)
  local list, last = {}, 0
  for i, token in ipairs(base[variant.of].added_tokens) do list[i] = token end
  for _, id in pairs(base[variant.of].model.vocab) do last = math.max(last, id) end
  for i, name in ipairs(names) do
    list[#list + 1] = { id = last + i, content = name, single_word = false, lstrip = false,
                        rstrip = false, normalized = false, special = true }
  end
  return list
end

--- The folder with the real tokenizers and what others make of texts with them, or nil: these files
--- are not ours to pass on.
---@return string?
function small.shared()
  for _, place in ipairs { 'shared', '../shared', '../../shared' } do
    local file = io.open(place .. '/data/golden/llama3.jsonl')
    if file then
      file:close()
      return place .. '/data/'
    end
  end
end

return small
