-- recipes_spec.lua - what each recipe's model promises, and each recipe run as a program.
local ul = require 'ulysses'

local F = ul.F
local small = {
  llama3 = { dim = 32, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 48 },
  mistral = { dim = 32, n_layers = 2, n_heads = 4, n_kv_heads = 2, ffn = 48, head_dim = 6,
              window = 5 },
}

local function new_model(name)
  local recipe = require('recipes.' .. name)
  return recipe.model(recipe:configure({ model = small[name] }).model):init_weights { seed = 3 }
end

local function ids(B, T) return ul.randint(0, 259, { B, T }, { dtype = 'i64' }) end

for name in pairs(small) do
  describe('recipes.' .. name, function()
    it('has logits that are those its loss is made of', function()
      local model, inputs, targets = new_model(name), ids(2, 9), ids(2, 9)
      local logits = model:logits(inputs)
      assert.same({ 2, 9, 260 }, logits.shape)
      local loss = F.cross_entropy(logits, targets, { reduction = 'mean' })
      assert.near(loss:item(), model(ul.data.batch(inputs, targets)):item(), 1e-5)
      assert.same({ 2, 1, 260 }, model:logits(inputs, { last = true }).shape)
      assert.near(logits[{ {}, { 9, 9 } }], model:logits(inputs, { last = true }), 1e-5)
    end)
  end)
end
