-- ranks.lua - what keeps the ranks of a run together, and what they refuse to do apart.
local agree = require 'ulysses.agree'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local resume = require 'ulysses.resume'
local ul = require 'ulysses'

local ranks = {}

--- The mesh that the data are shared out on is that of the run, and of its optimizer.
---@param fields Run
function ranks.take_mesh(fields)
  local mesh, optim = fields.data and fields.data.mesh, fields.optim
  if optim and mesh and optim.mesh == nil then optim.mesh = mesh end
  if mesh and optim and optim.mesh ~= mesh then
    raise('run: the optimizer is told %s, and the data are shared by another mesh',
          optim.mesh and 'one mesh' or 'that it trains alone')
  end
  if not mesh and not (optim and optim.mesh == false) then
    local n = ul.group().size
    if n > 1 then
      refuse('run: %d ranks are at work, and the data are not shared out among them: each would '
             .. 'train by itself; write data:shard(mesh), with mesh = ul.mesh { sp = %d } (all '
             .. 'share each sequence) or ul.mesh() (each has its own rows)', n, n)
    end
  end
  local of_model = fields.model.mesh
  if mesh and of_model and of_model ~= mesh and mesh.sequence.size > 1 then
    raise 'run: the model was made with another mesh than the one that shares the data'
  end
  fields.mesh = mesh
  if mesh and mesh.world.size > 1 and not fields.on_meta then fields.group = mesh.world end
end

--- Refuses where a rank has other data: each reads the text by itself, perhaps on another host.
---@param self Run
function ranks.compare_data(self)
  if not self.group then return end
  local first = agree.first(self.group, 'ul.run', resume.fingerprint, self.data)
  local other = first and self.data.difference and self.data:difference(first)
  for rank, one in ipairs(agree.numbers(self.group, { other and 1 or 0 }, 'the data')) do
    if one[1] == 1 then
      refuse('run: the data of rank %d are not those of rank 0: all ranks must read the same text',
             rank - 1)
    end
  end
end

--- Refuses where an error or Ctrl-C has left ranks at different places.
---@param self Run
function ranks.compare_places(self)
  local place = { self.taken, self.scope and 1 or 0, self.optim and self.optim.steps or 0 }
  local all = agree.numbers(self.group, place, 'run:steps, which all ranks must call')
  for rank, there in ipairs(all) do
    for i, number in ipairs(there) do
      if number ~= all[1][i] then
        refuse('run: rank %d has left the loop behind step %d and update %d of the weights, and '
               .. 'rank 0 behind step %d and update %d: they cannot go on together; start again, '
               .. 'from the last checkpoint', rank - 1, there[1], there[3], all[1][1], all[1][3])
      end
    end
  end
end

--- Other data as the ranks of the run share them; the caller's own stay as they are.
---@param self Run
---@param data Rows
---@return Rows
function ranks.share(self, data)
  if data.mesh == self.mesh then return data end
  if data.mesh then
    raise('run:eval: these data are shared by another mesh than those that are trained on')
  elseif not data.copy then
    raise 'run:eval: data that cannot be shared among ranks; rows of ul.data can'
  end
  data = data:copy()
  data.mesh = self.mesh -- however few rows a batch has
  return data
end

return ranks
