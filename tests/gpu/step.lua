-- step.lua - times training steps of Llama 3.2 1B's shape on one row of 32K tokens: bf16, AdamW
-- with f32 masters, nothing recomputed; step.py times the same of PyTorch and transformers.
--
--   ulysses-lua --device cuda tests/gpu/step.lua [tokens] [layers]
--
-- On the cpu and on the emulated backend (UL_CUDA_BACKEND) a small model, to see that it runs.
local ul = require 'ulysses'
local clock = require 'ulysses.core'.system.clock
local recipe = require 'recipes.llama3'

local tokens, layers = tonumber(arg[1] or 32768), tonumber(arg[2] or 16)
local small = ul.default_device() == 'cpu' or os.getenv 'UL_CUDA_BACKEND'
local config = { vocab = small and 1024 or 128256, dim = small and 256 or 2048, n_layers = layers,
                 n_heads = 32, n_kv_heads = 8, ffn = small and 1024 or 8192, rope_theta = 500000,
                 eps = 1e-5, tied = true }
local model = recipe.model(config, ul.mesh()):to 'bf16':init_weights { seed = 1 }
local optim = ul.optim.adamw(model, { lr = 1e-4 })
local ids = ul.randint(0, config.vocab, { 1, tokens + 1 })
local device = ul.default_device()
local batch = {
  inputs = ids[{ {}, { 1, tokens } }]:contiguous():to(device),
  targets = ids[{ {}, { 2, tokens + 1 } }]:contiguous():to(device),
  positions = ul.arange(tokens, { dtype = 'i64', device = device }),
  mean = function(_, sum) return sum / tokens end,
}

local flops = ul.flops()
local function step()
  return ul.scope(function()
    local loss = model(batch)
    loss:backward()
    optim:clip(1.0)
    optim:step()
    return loss:item()
  end)
end

print(('loss of the first step %.4f'):format(step()))
flops = ul.flops() - flops
step()
local times = {}
for i = 1, 5 do
  local start = clock()
  step()
  times[i] = clock() - start
end
table.sort(times)
local memory = ul.memory(device)
print(('ours: %.3f s a step of %d tokens, %.0f tokens/s, %.0f TFLOP/s, peak %.1f GB'):format(
  times[3], tokens, tokens / times[3], flops / times[3] / 1e12, memory.peak / 1e9))
print(ul.attention_report())
