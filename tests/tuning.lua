-- tuning.lua - a small model of bytes, and what it is to learn, for specs of recipes.
local json = require 'ulysses.json'
local llama3 = require 'recipes.llama3'
local models = require 'tests.hf_models'
local ul = require 'ulysses'

local tuning = {
  small = { dim = 32, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 48 },
}

--- A model in the folder `parent`/base, and questions for it in `parent`/asked.jsonl.
---@param parent string
---@return string folder
function tuning.model(parent)
  local out, list = parent .. '/base', {}
  local cfg = llama3:configure { model = tuning.small }.model
  ul.hf.save(out, llama3.model(cfg):init_weights { seed = 1 }, 'bytes', { settings = cfg })
  list[1] = json.encode { prompt = ('long '):rep(30), completion = 'no' }
  for i = 2, 30 do
    list[i] = json.encode { prompt = ('%d and %d make '):format(i, i),
                            completion = ('%d'):format(2 * i) }
  end
  models.write(parent .. '/asked.jsonl', table.concat(list, '\n'))
  return out
end

--- A file of pairs to learn from.
---@param parent string
---@return string path
function tuning.pairs(parent)
  local lines = {}
  for i = 1, 12 do
    lines[i] = json.encode { prompt = i .. ' and ' .. i .. ' make ', chosen = 'it is ' .. 2 * i,
                             rejected = 'who cares?' }
  end
  models.write(parent .. '/pairs.jsonl', table.concat(lines, '\n'))
  return parent .. '/pairs.jsonl'
end

return tuning
