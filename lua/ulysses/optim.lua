-- optim.lua - ul.optim: AdamW, SGD, clipping, and schedules of the learning rate.
local core = require 'ulysses.core'
local ul = require 'ulysses'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local read_groups = require 'ulysses.parameter_groups'
local sum_gradients = require 'ulysses.gradient_sum'
local uninterrupted = require 'ulysses.uninterrupted'
local weight_parts = require 'ulysses.nn.weight_parts'

---@class Optimizer
---@field lr number the learning rate, which may be changed between steps
---@field steps integer how many there have been
---@field skipped boolean whether the last step was left out, as a gradient was not finite
---@field mesh Mesh|false|nil over whose ranks gradients are summed, once in a step: by clip, norm
---or step, whichever comes first
local Optimizer = {}
Optimizer.__index = Optimizer

local function plural(n, word) return ('%d %s%s'):format(n, word, n == 1 and '' or 's') end

function Optimizer.__tostring(self)
  local n, frozen, decay = 0, 0, 0
  for _, entry in ipairs(self.entries) do
    local numbers = weight_parts.numel(entry.part, entry.parameter)
    n, frozen = n + numbers, frozen + (entry.parameter.requires_grad and 0 or numbers)
    decay = math.max(decay, entry.weight_decay)
  end
  return ('%s of %s (%d numbers%s): lr %g, %s, weight_decay %g, %s'):format(
    self.name, plural(#self.entries, 'parameter'), n,
    frozen > 0 and (', %d frozen'):format(frozen) or '', self.lr,
    self.betas and ('betas %g %g'):format(unpack(self.betas)) or ('momentum %g'):format(
      self.momentum), decay, plural(self.steps, 'step'))
end

-- Statistics have the type of accumulators: f32 beside bf16 parameters, whose own f32 copy
-- ("master") takes the steps too small for bf16 to see.
local function zeros_for(parameter)
  local accumulator = parameter:dtype() == 'f64' and 'f64' or 'f32'
  return ul.zeros(parameter.shape, { dtype = accumulator, device = parameter:device() }):keep()
end

local function off_device(x)
  local kept = core.off_device.copy(x):keep()
  x:free()
  return kept
end

local function master_for(parameter)
  if parameter:dtype() ~= 'bf16' then return nil end
  return parameter:detach():to('f32'):keep()
end

local function gradients(self)
  local list = {}
  for _, entry in ipairs(self.entries) do
    list[#list + 1] = entry.parameter.grad
  end
  return list
end

-- The state of a parameter goes with its dtype and device.
local function complete(self)
  for _, entry in ipairs(self.entries) do
    local parameter = entry.parameter
    local change = parameter:numel() ~= entry.numel and 'cut by :shard()'
      or (parameter:dtype() ~= entry.dtype or parameter:device() ~= entry.device)
      and 'cast or moved by :to()'
    if change then
      raise("optim: '%s' was %s after the optimizer was made; make it afterwards", entry.name,
            change)
    end
  end
  sum_gradients(self)
end

-- The ranks that hold the rest of a parameter; nil where this one has it whole.
local function holders(entry)
  local part = entry.part
  local group = part and (part.flat and part.world or part.group)
  return group and group.size > 1 and entry.parameter.requires_grad and group or nil
end

-- Whether ranks hold parts of what is trained.
local function shares_weights(self)
  for _, entry in ipairs(self.entries) do
    if holders(entry) then return true end
  end
  return false
end

-- The norm of whole gradients: squares of parts are summed over the ranks that hold them.
local function norm_of_wholes(self)
  local wholes, parts, groups = {}, {}, {}
  for _, entry in ipairs(self.entries) do
    local group, list = holders(entry), wholes
    if group then
      if not parts[group] then parts[group], groups[#groups + 1] = {}, group end
      list = parts[group]
    end
    list[#list + 1] = entry.parameter.grad
  end
  local sum = ul.global_norm(wholes) ^ 2
  for _, group in ipairs(groups) do
    local mine = ul.tensor({ ul.global_norm(parts[group]) ^ 2 }, { dtype = 'f64', device = 'cpu' })
    if group.transport ~= 'plan' then group:all_reduce_(mine) end
    sum = sum + mine:item()
  end
  return math.sqrt(sum)
end

local function clip(self, max_norm)
  local list = gradients(self)
  if not shares_weights(self) then return ul.clip_grad_norm_(list, max_norm) end
  ul.clip_grad_norm_({}, max_norm) -- refuses what it may not be
  local norm = norm_of_wholes(self)
  -- as much as clip_grad_norm_ would scale the wholes
  local factor = max_norm / (norm + 1e-6)
  for _, grad in ipairs(list) do
    if factor < 1 or grad:device() == 'meta' then grad:mul_(factor) end
  end
  return norm
end

--- Scales all gradients so that their norm is at most max_norm; returns the norm before. All ranks
--- of a mesh come here together, behind the last backward of the step, and get the same.
---@param max_norm number
---@return number
function Optimizer:clip(max_norm)
  complete(self)
  self.clipped = ul.scope(clip, self, max_norm)
  return self.clipped
end

--- The norm of all gradients as one vector, over all ranks of a mesh together.
---@return number
function Optimizer:norm()
  complete(self)
  return ul.scope(function()
    if shares_weights(self) then return norm_of_wholes(self) end
    return ul.global_norm(gradients(self))
  end)
end

-- Whether the gradients, and the step's loss where a run has said how to ask for it, are finite:
-- one NaN would be in every weight after the update. clip() knows the norm already.
local function is_sound(self)
  if self.entries[1].parameter:device() == 'meta' then return true end
  local norm = self.clipped or self:norm()
  local loss = self.loss_of_step and self.loss_of_step() or 0
  return norm - norm == 0 and loss - loss == 0
end

local function update_all(self)
  for _, entry in ipairs(self.entries) do
    local grad = entry.parameter.grad
    if grad then self:update(entry, grad) end
  end
end

local function has_gradient(self)
  for _, entry in ipairs(self.entries) do
    if entry.parameter.grad then return true end
  end
  return false
end

--- Moves every parameter that has a gradient, and clears the gradients; Ctrl-C comes before or
--- after that. Where a gradient or the loss is not finite nothing moves, and optim.skipped is true.
function Optimizer:step()
  complete(self)
  if not has_gradient(self) then
    raise 'optim:step: no parameter has a gradient; was there no backward?'
  end
  self.skipped = not is_sound(self)
  if self.skipped then return self:zero_grad() end
  uninterrupted(function()
    self.steps = self.steps + 1
    local ok, problem = pcall(ul.scope, update_all, self)
    local arrived, trouble = true, nil
    if self.offload then arrived, trouble = pcall(core.off_device.wait) end
    self:zero_grad()
    if not (ok and arrived) then error(ok and trouble or problem, 0) end
  end)
end

--- Drops the gradients.
function Optimizer:zero_grad()
  self.clipped, self.summed = nil, nil
  for _, entry in ipairs(self.entries) do
    if entry.parameter.grad then entry.parameter.grad = nil end -- frozen ones have none
  end
end

--- Iterates over the name and tensor of all that a checkpoint must keep beside the parameters:
--- 'layers.1.ffn.up.weight.exp_avg' and the like. `steps` is the rest.
function Optimizer:named_state()
  local found, i = {}, 0
  for _, entry in ipairs(self.entries) do
    for _, field in ipairs { 'exp_avg', 'exp_avg_sq', 'velocity', 'master' } do
      if entry[field] then found[#found + 1] = { entry.name .. '.' .. field, entry[field] } end
    end
  end
  return function()
    i = i + 1
    if found[i] then return unpack(found[i]) end
  end
end

--- Makes the state of a parameter that was frozen so far, for a checkpoint to fill.
---@param name string as named_state() has it in front of the last dot
function Optimizer:prepare(name)
  for _, entry in ipairs(self.entries) do
    if entry.name == name then self:start(entry) end
  end
end

-- A frozen parameter has no state; it gets it with its first gradient.
local function optimizer(entries, fields)
  fields.entries, fields.steps, fields.skipped = entries, 0, false
  for _, entry in ipairs(entries) do
    entry.dtype, entry.device = entry.parameter:dtype(), entry.parameter:device()
    entry.numel = entry.parameter:numel()
    if entry.parameter.requires_grad then fields:start(entry) end
  end
  return setmetatable(fields, Optimizer)
end

local optim = {}

-- What puts state where it is kept.
local function keeper(self)
  return self.offload and off_device or function(x) return x end
end

local function start_adamw(self, entry)
  if entry.exp_avg then return end
  local keep = keeper(self)
  entry.exp_avg = keep(zeros_for(entry.parameter))
  entry.exp_avg_sq = keep(zeros_for(entry.parameter))
  local master = master_for(entry.parameter)
  entry.master = master and keep(master)
end

local function update_adamw(self, entry, grad)
  self:start(entry)
  ul.adamw_(entry.parameter, grad, entry.exp_avg, entry.exp_avg_sq, {
    master = entry.master, lr = self.lr * entry.lr_scale, betas = self.betas, eps = self.eps,
    weight_decay = entry.weight_decay, step = self.steps,
  })
end

--- Adam with decoupled weight decay. In a module, norms, biases and embeddings do not decay.
--- optim.lr may be changed between steps.
---
--- `what` is a module, a list of parameters, or a list of { parameters =, weight_decay =,
--- lr_scale = }. `groups` treats some by name, the first that matches deciding:
---     groups = { { match = 'embed', lr_scale = 0.1 }, { match = '*norm', weight_decay = 0.1 } }
--- A group's weight_decay is for all that it names; lr_scale multiplies optim.lr. `mesh`: gradients
--- are summed over its ranks; ul.run tells it what its data know. false: each rank trains alone.
---
--- `offload`: averages and f32 copies are kept off the device, in pinned memory of the host (on the
--- cpu in an unnamed file in the folder TMPDIR), and come to it piece by piece in each step: 12 of
--- the 16 bytes that a bf16 parameter takes. The steps are the same to the bit.
---@param what table
---@param given { lr: number?, betas: number[]?, eps: number?, weight_decay: number?,
---  groups: table?, mesh: Mesh|false|nil, offload: boolean? }?
function optim.adamw(what, given)
  local read = options.read('optim.adamw', given, {
    lr = 1e-3, betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, groups = {},
    mesh = options.none, offload = false,
  })
  for i = 1, 2 do
    local beta = read.betas[i]
    if #read.betas ~= 2 or type(beta) ~= 'number' or not (beta >= 0 and beta < 1) then
      raise('optim.adamw: betas must be two numbers from 0 to below 1')
    end
  end
  local entries = read_groups('optim.adamw', what, read.weight_decay, read.groups)
  return optimizer(entries, { name = 'adamw', lr = read.lr, betas = read.betas, eps = read.eps,
                              mesh = read.mesh, offload = read.offload, start = start_adamw,
                              update = update_adamw })
end

local function start_sgd(self, entry)
  if entry.started then return end
  local keep = keeper(self)
  entry.velocity = self.momentum > 0 and keep(zeros_for(entry.parameter)) or nil
  local master = master_for(entry.parameter)
  entry.master = master and keep(master)
  entry.started = true
end

local function update_sgd(self, entry, grad)
  self:start(entry)
  ul.sgd_(entry.parameter, grad, {
    velocity = entry.velocity, master = entry.master, lr = self.lr * entry.lr_scale,
    momentum = self.momentum, weight_decay = entry.weight_decay, nesterov = self.nesterov,
  })
end

--- Stochastic gradient descent, with momentum if asked for. `offload`: that and f32 copies are kept
--- off the device, as with adamw.
---@param what table as for adamw
---@param given { lr: number?, momentum: number?, nesterov: boolean?, weight_decay: number?,
---  groups: table?, mesh: Mesh|false|nil, offload: boolean? }?
function optim.sgd(what, given)
  local read = options.read('optim.sgd', given, {
    lr = 1e-2, momentum = 0, nesterov = false, weight_decay = 0, groups = {},
    mesh = options.none, offload = false,
  })
  if not (read.momentum >= 0 and read.momentum < 1) then
    raise('optim.sgd: momentum must lie from 0 to below 1, got %g', read.momentum)
  end
  local entries = read_groups('optim.sgd', what, read.weight_decay, read.groups)
  return optimizer(entries, { name = 'sgd', lr = read.lr, momentum = read.momentum,
                              nesterov = read.nesterov, mesh = read.mesh, offload = read.offload,
                              start = start_sgd, update = update_sgd })
end

for name, schedule in pairs(require 'ulysses.schedule') do optim[name] = schedule end

return optim
