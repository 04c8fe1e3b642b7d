-- round_trip_hf.lua - loads each model in a folder and saves it in another, with its logits and
-- its loss; round_trip_hf.py runs it.
--
--   luajit tests/golden/round_trip_hf.lua FROM TO NAME..
local models = require 'tests.hf_models'
local ul = require 'ulysses'

local from, to = arg[1], arg[2]
for i = 3, #arg do
  local name = arg[i]
  local model = ul.hf.load(from .. '/' .. name)
  ul.hf.save(to .. '/' .. name, model, nil, { shard = 40000 })
  ul.hf.save(to .. '/' .. name .. '-bf16', model, nil, { dtype = 'bf16' })
  local inputs = ul.tensor(models.rows(), { dtype = 'i64' })
  ul.safetensors.save(to .. '/' .. name .. '.safetensors', {
    logits = ul.no_grad(model.logits, model, inputs), loss = model(models.batch()):detach(),
  })
end
