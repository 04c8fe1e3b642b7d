-- preference.lua - ul.preference: what learning from preferences is made of: the log-probability of
-- each row's labels, and the loss of DPO.
local ul = require 'ulysses'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local recompute = require 'ulysses.recompute'
local F = ul.F

---@class preference
local preference = {}

-- The negative log-probability of one row's labels. Forward leaves the gradient of the head, which
-- is as large as the head; where that is trained, a row's is made in backward: one at a time.
local function loss_of_row(x, head, targets)
  if not head.requires_grad then return F.linear_cross_entropy(x, head, targets) end
  return recompute(F.linear_cross_entropy, x, head, targets)
end

--- The log-probability that a model gives to the labels of each row, summed over the row: [B]. It
--- is differentiable, logits are never there as a whole, and under a mesh all ranks that share the
--- rows get the same sums.
---
--- The loss that backward differentiates is the sum of what all ranks call it on. What is computed
--- of these sums is the same on all ranks of mesh.sequence, so each of them calls backward on its
--- part, loss / mesh.sequence.size, as ul.preference.dpo gives it.
---@param model table with hidden(inputs, positions, docs) and head.weight
---@param batch Batch whose labels are -100 where there is nothing to score
---@return Tensor f32 or f64 [B]
function preference.log_probs(model, batch)
  if type(model) ~= 'table' or not model.hidden or not model.head then
    raise('preference.log_probs: expected a model with hidden() and head, got a %s', type(model))
  elseif type(batch) ~= 'table' or not ul.is_tensor(batch.inputs)
    or not ul.is_tensor(batch.targets) then
    raise('preference.log_probs: expected a batch, got a %s', type(batch))
  end
  local mesh = batch.mesh or model.mesh
  local x, sums = model:hidden(batch.inputs, batch.positions, batch.docs), {}
  for b = 1, batch.inputs:size(1) do
    sums[b] = -loss_of_row(x:narrow(1, b, 1), model.head.weight, batch.targets:narrow(1, b, 1))
  end
  if #sums == 0 then raise 'preference.log_probs: the batch has no rows on this rank' end
  local all = ul.stack(sums)
  if mesh and mesh.sequence.size > 1 then all = mesh.sequence:all_reduce(all) end
  return all
end

-- log sigmoid(x), for x of any size: min(x, 0) - log(1 + exp(-|x|))
local function log_sigmoid(x) return x:clamp(nil, 0) - ((-x:abs()):exp() + 1):log() end

--- The loss of direct preference optimization: with d = (log p(chosen) - log p(rejected)) of the
--- policy, less the same of the reference,
---     loss = -(1 - s) log sigmoid(beta d) - s log sigmoid(-beta d),
--- the mean over all pairs. Each is a table { chosen = [n], rejected = [n] } of what log_probs
--- gives; the reference's are constants.
---   beta       0.1: how close the policy is held to the reference
---   smoothing  s, 0: the share of pairs that are labelled the wrong way round
---   pairs      how many there are on all ranks of mesh.dp together; n where it is left out
---   mesh       whose ranks share the rows
---@param policy { chosen: Tensor, rejected: Tensor }
---@param reference { chosen: Tensor, rejected: Tensor }
---@param given { beta: number?, smoothing: number?, pairs: integer?, mesh: Mesh? }?
---@return Tensor loss this rank's part, for backward; all ranks' parts sum up to the mean
---@return { loss: number, margin: number, accuracy: number } seen of this rank's pairs: their mean
---loss, beta d, and the share of them in which the policy leans to what was chosen
function preference.dpo(policy, reference, given)
  local how = options.read('preference.dpo', given, {
    beta = 0.1, smoothing = 0, pairs = options.none, mesh = options.none,
  })
  for _, side in ipairs { policy, reference } do
    if type(side) ~= 'table' or not ul.is_tensor(side.chosen) or not ul.is_tensor(side.rejected)
       or side.chosen:numel() ~= side.rejected:numel() then
      raise 'preference.dpo: expected { chosen = [n], rejected = [n] }, twice'
    end
  end
  if not (how.beta > 0) or how.smoothing < 0 or how.smoothing > 0.5 then
    raise('preference.dpo: beta must be above 0 and smoothing lie in 0 to 0.5, got %g and %g',
          how.beta, how.smoothing)
  end
  local constant = (reference.chosen - reference.rejected):detach()
  local d = (policy.chosen - policy.rejected - constant) * how.beta
  local losses = log_sigmoid(d) * (how.smoothing - 1)
  if how.smoothing > 0 then losses = losses - log_sigmoid(-d) * how.smoothing end
  local n, ranks = losses:numel(), how.mesh and how.mesh.sequence.size or 1
  local function mean(x) return x:device() == 'meta' and 0 / 0 or x:mean():item() end
  local seen = { loss = mean(losses), margin = mean(d), accuracy = mean(d:gt(0):to 'f32') }
  return losses:sum() / ((how.pairs or n) * ranks), seen
end

return preference
