-- optim.lua - ul.optim: AdamW, SGD, clipping, and schedules of the learning rate.
local ul = require 'ulysses'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'

local Optimizer = {}
Optimizer.__index = Optimizer

-- Norms, biases and embeddings keep their size: decay is for the matrices of products.
local function decays(parameter, owner) return parameter:dim() > 1 and not owner.no_decay end

-- Lists the parameters of a module, or of a list of groups { parameters = , weight_decay = ,
-- lr_scale = } where each `parameters` is a module or a list of tensors.
local function read_groups(caller, what, weight_decay)
  local entries = {}
  local function add(parameters, group)
    if type(parameters) == 'table' and parameters.named_parameters then
      for name, parameter, owner in parameters:named_parameters() do
        local decay = group.weight_decay
        if not decay then decay = decays(parameter, owner) and weight_decay or 0 end
        entries[#entries + 1] = { name = name, parameter = parameter, weight_decay = decay,
                                  lr_scale = group.lr_scale }
      end
    else
      for _, parameter in ipairs(parameters) do
        entries[#entries + 1] = { name = ('parameter %d'):format(#entries + 1),
                                  parameter = parameter,
                                  weight_decay = group.weight_decay or weight_decay,
                                  lr_scale = group.lr_scale }
      end
    end
  end
  local known = { parameters = options.none, weight_decay = options.none, lr_scale = 1 }
  if type(what) == 'table' and not what.named_parameters and type(what[1]) == 'table'
    and what[1].parameters then
    for _, group in ipairs(what) do
      add(group.parameters, options.read(caller .. ': group', group, known))
    end
  elseif type(what) == 'table' then
    add(what, { lr_scale = 1 })
  end
  if #entries == 0 then
    raise('%s: expected a module, a list of parameters or a list of groups', caller)
  end
  return entries
end

-- Statistics have the type of accumulators: f32 beside bf16 parameters, whose own f32 copy
-- ("master") takes the steps too small for bf16 to see.
local function zeros_for(parameter)
  local accumulator = parameter:dtype() == 'f64' and 'f64' or 'f32'
  return ul.zeros(parameter.shape, { dtype = accumulator, device = parameter:device() }):keep()
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

--- Scales all gradients so that their norm is at most max_norm; returns the norm before.
---@param max_norm number
---@return number
function Optimizer:clip(max_norm)
  return ul.scope(function() return ul.clip_grad_norm_(gradients(self), max_norm) end)
end

--- The norm of all gradients as one vector.
---@return number
function Optimizer:norm()
  return ul.scope(function() return ul.global_norm(gradients(self)) end)
end

--- Moves every parameter that has a gradient, and clears the gradients.
function Optimizer:step()
  self.steps = self.steps + 1
  ul.scope(function()
    for _, entry in ipairs(self.entries) do
      local grad = entry.parameter.grad
      if grad then self:update(entry, grad) end
    end
  end)
  self:zero_grad()
end

--- Drops the gradients.
function Optimizer:zero_grad()
  for _, entry in ipairs(self.entries) do entry.parameter.grad = nil end
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

local function optimizer(entries, fields)
  fields.entries, fields.steps = entries, 0
  return setmetatable(fields, Optimizer)
end

local optim = {}

local function update_adamw(self, entry, grad)
  ul.adamw_(entry.parameter, grad, entry.exp_avg, entry.exp_avg_sq, {
    master = entry.master, lr = self.lr * entry.lr_scale, betas = self.betas, eps = self.eps,
    weight_decay = entry.weight_decay, step = self.steps,
  })
end

--- Adam with decoupled weight decay. `what`: a module, a list of parameters, or a list of groups
--- { parameters =, weight_decay =, lr_scale = }. In a module, norms, biases and embeddings do not
--- decay. optim.lr may be changed between steps.
---@param what table
---@param given { lr: number?, betas: number[]?, eps: number?, weight_decay: number? }?
function optim.adamw(what, given)
  local read = options.read('optim.adamw', given,
                            { lr = 1e-3, betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1 })
  local entries = read_groups('optim.adamw', what, read.weight_decay)
  for _, entry in ipairs(entries) do
    entry.exp_avg, entry.exp_avg_sq = zeros_for(entry.parameter), zeros_for(entry.parameter)
    entry.master = master_for(entry.parameter)
  end
  return optimizer(entries, { lr = read.lr, betas = read.betas, eps = read.eps,
                              update = update_adamw })
end

local function update_sgd(self, entry, grad)
  ul.sgd_(entry.parameter, grad, {
    velocity = entry.velocity, master = entry.master, lr = self.lr * entry.lr_scale,
    momentum = self.momentum, weight_decay = entry.weight_decay, nesterov = self.nesterov,
  })
end

--- Stochastic gradient descent, with momentum if asked for.
---@param what table as for adamw
---@param given { lr: number?, momentum: number?, nesterov: boolean?, weight_decay: number? }?
function optim.sgd(what, given)
  local read = options.read('optim.sgd', given,
                            { lr = 1e-2, momentum = 0, nesterov = false, weight_decay = 0 })
  local entries = read_groups('optim.sgd', what, read.weight_decay)
  for _, entry in ipairs(entries) do
    entry.velocity = read.momentum > 0 and zeros_for(entry.parameter) or nil
    entry.master = master_for(entry.parameter)
  end
  return optimizer(entries, { lr = read.lr, momentum = read.momentum, nesterov = read.nesterov,
                              update = update_sgd })
end

-- Schedules: the learning rate at a step (from 1), from the settings lr, steps, warmup (steps of a
-- linear rise, 0) and min_lr (where it ends, a tenth of lr).
local function schedule(caller, fall)
  return function(step, settings)
    local lr, steps = rawget(settings, 'lr'), rawget(settings, 'steps')
    if not lr or not steps then raise('%s: the settings need lr and steps', caller) end
    local warmup = rawget(settings, 'warmup') or 0
    local least = rawget(settings, 'min_lr') or lr / 10
    if step <= warmup then return lr * step / warmup end
    local progress = math.min(1, (step - warmup) / math.max(1, steps - warmup))
    return least + (lr - least) * fall(progress)
  end
end

--- Down to min_lr along half a cosine.
optim.cosine = schedule('optim.cosine', function(t) return (1 + math.cos(math.pi * t)) / 2 end)
--- Down to min_lr along a line.
optim.linear = schedule('optim.linear', function(t) return 1 - t end)

return optim
