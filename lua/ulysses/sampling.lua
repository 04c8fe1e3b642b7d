-- sampling.lua - which token comes next: one id, of the logits of all.
local refuse = require 'ulysses.refuse'

-- How many of the sorted logits may be chosen, and the weights of these, which sum up to the second
-- result. weights[0] belongs to the best one.
local function candidates(sorted, n, how)
  local best, weights, total = sorted[0], {}, 0
  for i = 0, n - 1 do
    local weight = math.exp((sorted[i] - best) / how.temperature)
    if weight == 0 or how.min_p and weight < how.min_p then break end
    weights[i], total = weight, total + weight
  end
  if not how.top_p then return weights, total end
  local sum = 0
  for i = 0, #weights do
    sum = sum + weights[i]
    if sum >= how.top_p * total then
      for k = i + 1, #weights do weights[k] = nil end
      return weights, sum
    end
  end
  return weights, total
end

--- The id that the random number u in [0, 1) stands for.
---@param logits Tensor [vocabulary], f32 on the CPU
---@param how { temperature: number, top_k: integer?, top_p: number?, min_p: number? }
---@param u number
---@return integer
return function(logits, how, u)
  local n = math.min(logits:numel(), how.temperature == 0 and 1 or how.top_k or math.huge)
  local values, index
  if n == logits:numel() then
    values, index = logits:sort(1, { descending = true })
  else
    values, index = logits:topk(n, 1)
  end
  local sorted, ids = values:data(), index:data()
  if sorted[0] ~= sorted[0] or math.abs(sorted[0]) == math.huge then
    refuse('generate: the logits of the model are not finite')
  end
  if how.temperature == 0 then return tonumber(ids[0]) end
  local weights, total = candidates(sorted, n, how)
  local left = u * total
  for i = 0, #weights do
    left = left - weights[i]
    if left < 0 then return tonumber(ids[i]) end
  end
  return tonumber(ids[#weights])
end
