-- round_trip_peft.lua - adapters of PEFT are loaded and saved again, and others made;
-- round_trip_peft.py runs it.
--
--   luajit tests/golden/round_trip_peft.lua FOLDER NAME..
local models = require 'tests.hf_models'
local ul = require 'ulysses'

local folder = arg[1]

local function write(path, model)
  local inputs = ul.tensor(models.rows(), { dtype = 'i64' })
  local loss = model(models.batch())
  loss:backward()
  local tensors = { logits = ul.no_grad(model.logits, model, inputs), loss = loss:detach() }
  for name, parameter in model:named_parameters() do
    if parameter.grad then tensors['gradient.' .. name] = parameter.grad end
  end
  ul.safetensors.save(path, tensors)
end

for i = 2, #arg do
  local base, out = folder .. '/base/' .. arg[i], folder .. '/ours/' .. arg[i]
  local model = ul.hf.load(base, { adapter = folder .. '/theirs/' .. arg[i] })
  ul.lora.save(out, model)
  ul.hf.save(out .. '-merged', model)
  write(out .. '.safetensors', model)

  ul.manual_seed(i)
  local other = ul.lora.add(ul.hf.load(base), { rank = 5, alpha = 15 })
  ul.no_grad(function()
    for _, p in other:named_parameters() do
      if p.requires_grad then p:normal_(0, 0.05) end
    end
  end)
  ul.lora.save(out .. '-own', other)
  write(out .. '-own.safetensors', other)
end
