-- guide_spec.lua - the programs of docs/guide.md run, one after the other.
local recipe = require 'recipes.llama3'

-- What a reader has at hand: a text, a model; and what would take long here.
local replaced = { ['text/*.gz'] = 'docs/*.md', ['300'] = '3', ['1024'] = '64' }

local function blocks()
  local file, list = assert(io.open 'docs/guide.md'), {}
  for block in file:read('*a'):gmatch '```lua\n(.-)```' do
    for text, other in pairs(replaced) do
      block = block:gsub(text:gsub('%p', '%%%0'), (other:gsub('%%', '%%%%')))
    end
    -- A block goes on where the one before it ended.
    list[#list + 1] = ('\n' .. block):gsub('\nlocal ', '\n')
  end
  file:close()
  return list
end

describe('guide', function()
  local ul = require 'ulysses'
  local reader = setmetatable({ print = function() end }, { __index = _G })

  for i, block in ipairs(blocks()) do
    it('runs program ' .. i, function()
      if block:find 'return batch:mean' then
        assert(loadstring(block))
        return
      end
      if block:find 'ul.run' then
        local settings = recipe:configure {
          model = { dim = 32, n_layers = 1, n_heads = 4, n_kv_heads = 2, ffn = 48 },
        }
        reader.model, reader.F = recipe.model(settings.model), ul.F
      end
      setfenv(assert(loadstring(block)), reader)()
    end)
  end
end)
