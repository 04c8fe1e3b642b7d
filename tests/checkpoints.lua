-- checkpoints.lua - what the specs of checkpoints share: a small model, and a run that saves.
local core = require 'ulysses.core'
local ul = require 'ulysses'
local checkpoint, nn, optim = ul.checkpoint, ul.nn, ul.optim

local checkpoints = {}

--- The path of a folder to be made: in memory where the system has such a place, since waiting for
--- a disk again and again takes long.
---@return string
function checkpoints.folder()
  local path = os.tmpname()
  os.remove(path)
  local memory = '/dev/shm/' .. path:match '[^/]*$'
  if core.folder_list '/dev/shm' and core.folder_make(memory) then
    core.path_remove(memory)
    return memory
  end
  return path
end

local Model = nn.class 'Model'

function Model:init(width)
  self.embed = nn.Embedding(5, width)
  self.norm = nn.RMSNorm(width)
  self.up = nn.Linear(width, 3, { bias = true })
  self.head = nn.Linear(width, 5)
  self.head.weight = self.embed.weight
end

--- A model with tied and frozen parameters among others.
function checkpoints.model(seed, dtype, width)
  ul.manual_seed(seed)
  local model = Model(width or 4)
  if dtype then model:to(dtype) end
  model.up.bias:requires_grad_(false)
  return model
end

--- Takes n steps, with gradients that come from the random numbers.
function checkpoints.train(model, optimizer, n)
  for _ = 1, n do
    for _, p in model:named_parameters() do
      if p.requires_grad then
        p.grad = ul.randn(p.shape, { dtype = p:dtype() == 'f64' and 'f64' or 'f32' })
      end
    end
    optimizer:step()
  end
end

--- All numbers that a checkpoint keeps, as tables.
function checkpoints.values(model, optimizer)
  local all = {}
  for name, p in model:named_parameters() do all[name] = { p:dtype(), p:tolist() } end
  if optimizer then
    for name, t in optimizer:named_state() do all['state ' .. name] = { t:dtype(), t:tolist() } end
    all.steps = optimizer.steps
  end
  return all
end

--- A run that takes one step after each checkpoint and saves: up to step `last`.
---@param folder string
---@param last integer
---@param given { width: integer?, before: fun(step: integer)? }? before: called before each save
---@return table model, table optimizer, integer step
function checkpoints.run(folder, last, given)
  given = given or {}
  local model = checkpoints.model(1, 'bf16', given.width)
  local optimizer = optim.adamw(model)
  local state = checkpoint.load(folder, { model = model, optim = optimizer, warn = error })
  local step = state and state.step or 0
  while step < last do
    step = step + 1
    checkpoints.train(model, optimizer, 1)
    if given.before then given.before(step) end
    checkpoint.save(folder, step, { model = model, optim = optimizer, keep = 2, config = { a = 1 },
                                    state = { losses = { 0.5 } } })
  end
  return model, optimizer, step
end

return checkpoints
