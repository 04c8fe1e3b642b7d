-- mesh.lua - ul.mesh: which ranks share a sequence and which a weight, and who holds which tokens.
local ul = require 'ulysses'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'

--- Ranks by what they share. The groups are there always, of one rank where nothing is shared.
---@class Mesh
---@field world Group all ranks of the mesh
---@field ulysses Group ranks that exchange tokens for heads
---@field ring Group ranks whose keys and values go round
---@field tp Group ranks that hold parts of the same weights
---@field sequence Group ranks that hold slices of the same rows: ring x ulysses x tp
---@field dp Group ranks with the same slice of other rows
---@field replicas Group ranks that hold the same part of each weight: dp x ring x ulysses
---@field tokens integer|nil the length of the row that was cut last
---@field shard boolean whether module:shard(mesh) shards parameters over the ranks
---@field n_rows integer|nil how many rows all ranks together are at work on
local Mesh = {}
Mesh.__index = Mesh

function Mesh.__tostring(self)
  return ('mesh of %d: dp %d x ring %d x ulysses %d x tp %d, this is rank %d'):format(
    self.world.size, self.dp.size, self.ring.size, self.ulysses.size, self.tp.size,
    self.world.rank)
end

-- ---- groups ----

-- Axes from the outermost to the innermost; a rank's place along each, from 0.
local axes = { 'dp', 'ring', 'ulysses', 'tp' }

local function places(rank, sizes)
  local place = {}
  for i = #axes, 1, -1 do
    local size = sizes[axes[i]]
    place[axes[i]] = rank % size
    rank = math.floor(rank / size)
  end
  return place
end

-- The ranks that differ from this one along the axes in `along` alone.
local function group_along(world, sizes, along)
  local size = 1
  for axis in pairs(along) do size = size * sizes[axis] end
  if size == world.size then return world end
  local colors = {}
  for rank = 0, world.size - 1 do
    local place, color = places(rank, sizes), 0
    for _, axis in ipairs(axes) do
      if not along[axis] then color = color * sizes[axis] + place[axis] end
    end
    colors[rank + 1] = color
  end
  return world:split(colors)
end

-- ---- reading the call ----

local function whole(name, value, least)
  if type(value) ~= 'number' or value < least or value ~= math.floor(value) then
    raise('mesh: %s must be a whole number from %d on, got %s', name, least, tostring(value))
  end
end

-- In a ring of as few parts as can be, so that no Ulysses rank is without a head.
local function ring_for(sp, heads)
  for ring = 1, sp do
    if sp % ring == 0 and (not heads or sp / ring <= heads) then return ring end
  end
end

-- The world that there is; on meta, where one process stands for all, the one that is asked for.
local function world_for(group, sp, tp)
  local world = group or ul.group()
  local least = sp * tp
  if world.size == 1 and ul.default_device() == 'meta' then
    local wanted = tonumber(os.getenv 'UL_PLAN_RANKS') or least -- --ranks N --plan
    if wanted > 1 then world = ul.group { pretend = wanted, rank = 0 } end
  end
  if world.size % least ~= 0 then
    local names = tp == 1 and 'sp = ' .. sp or sp == 1 and 'tp = ' .. tp
      or ('sp = %d times tp = %d'):format(sp, tp)
    local there = world.size == 1 and 'there is one' or ('there are %d'):format(world.size)
    refuse('mesh: %s needs %d ranks or a multiple of that, and %s: ulysses-lua --ranks %d ..',
           names, least, there, math.max(1, math.ceil(world.size / least)) * least)
  end
  return world
end

---@class MeshOptions
---@field sp? integer ranks that share each sequence: 1
---@field ring? integer parts of these that are joined by a ring, with Ulysses within each; 0, where
---it is left out: as few as `heads` asks for
---@field tp? integer ranks that share each weight: 1
---@field heads? integer query heads of the attention: a rank needs at least one of its own
---@field shard? boolean whether each rank keeps a slice of every parameter of modules that call
---module:shard(mesh), of its gradient and of the optimizer's state: false
---@field group? Group its ranks; all there are where it is left out

--- The ranks as a grid: tp of them hold parts of the same weights, sp the slices of one sequence,
--- and what is left over is data parallel. Neighbours share most: the order of axes is dp, ring,
--- ulysses, tp. All ranks call it alike.
---
--- Of a row of S tokens each rank holds a slice. Without a ring the slices follow each other; in a
--- ring of R, part r has the chunks r and 2 R - 1 - r of 2 R, so that causal attention is as much
--- work for each. Shares are even, the first ranks hold one token more if need be.
--- ```lua
--- local mesh = ul.mesh { sp = 1 }
--- print(mesh, mesh.sequence.size)
--- ```
---@param given? MeshOptions
---@return Mesh
local function new(given)
  local read = options.read('mesh', given, {
    sp = 1, ring = 0, tp = 1, heads = options.none, shard = false, group = options.none,
  })
  whole('sp', read.sp, 1)
  whole('tp', read.tp, 1)
  whole('ring', read.ring, 0)
  if read.heads then whole('heads', read.heads, 1) end
  local heads = read.heads and math.max(1, math.floor(read.heads / read.tp))
  local ring = read.ring == 0 and ring_for(read.sp, heads) or read.ring
  if read.sp % ring ~= 0 then
    refuse('mesh: sp = %d ranks cannot be cut into a ring of %d parts', read.sp, ring)
  end
  local world = world_for(read.group, read.sp, read.tp)
  local sizes = { dp = world.size / (read.sp * read.tp), ring = ring, ulysses = read.sp / ring,
                  tp = read.tp }
  local self = { world = world, sizes = sizes, place = places(world.rank, sizes),
                 shard = read.shard }
  for _, axis in ipairs(axes) do self[axis] = group_along(world, sizes, { [axis] = true }) end
  self.sequence = group_along(world, sizes, { ring = true, ulysses = true, tp = true })
  self.replicas = group_along(world, sizes, { dp = true, ring = true, ulysses = true })
  return setmetatable(self, Mesh)
end

-- ---- tokens ----

-- Where part i (from 0) of n things begins, and where it ends: [first, last).
local function share(n, parts, i)
  local each, more = math.floor(n / parts), n % parts
  local first = i * each + math.min(i, more)
  return first, first + each + (i < more and 1 or 0)
end

--- The tokens that a rank of mesh.sequence holds of a row of S, in its order.
---@param S integer
---@param rank? integer this one where it is left out
---@return integer[][] list of { first, last }, from 1; none where it holds none
function Mesh:ranges(S, rank)
  local R, within = self.sizes.ring, self.sizes.ulysses * self.sizes.tp
  rank = rank or self.sequence.rank
  local r = math.floor(rank / within)
  local chunks = { { share(S, 1, 0) } }
  if R > 1 then chunks = { { share(S, 2 * R, r) }, { share(S, 2 * R, 2 * R - 1 - r) } } end
  local length = 0
  for _, chunk in ipairs(chunks) do length = length + chunk[2] - chunk[1] end
  local first, last = share(length, within, rank % within)
  local list, before = {}, 0
  for _, chunk in ipairs(chunks) do -- this rank's [first, last) of the chunks laid end to end
    local from, to = math.max(first - before, 0), math.min(last - before, chunk[2] - chunk[1])
    if from < to then list[#list + 1] = { chunk[1] + from + 1, chunk[1] + to } end
    before = before + chunk[2] - chunk[1]
  end
  return list
end

-- How many tokens a rank of mesh.sequence holds.
local function length_of(self, S, rank)
  local n = 0
  for _, range in ipairs(self:ranges(S, rank)) do n = n + range[2] - range[1] + 1 end
  return n
end

--- How many tokens of a row of S each rank of mesh.ulysses works on in attention, those of its tp
--- ranks taken together.
---@param S? integer the length of the row that was cut last, where it is left out
---@return integer[]
function Mesh:lengths(S)
  S = S or self.tokens or raise 'mesh: no row was cut yet; mesh:slice does it'
  local U, tp, list = self.sizes.ulysses, self.sizes.tp, {}
  for u = 0, U - 1 do
    local n = 0
    for t = 0, tp - 1 do
      n = n + length_of(self, S, (self.place.ring * U + u) * tp + t)
    end
    list[u + 1] = n
  end
  return list
end

-- x cut to ranges along dim.
local function cut(x, dim, ranges)
  if #ranges == 0 then return x:narrow(dim, 1, 0) end
  local parts = {}
  for i, range in ipairs(ranges) do
    parts[i] = x:narrow(dim, range[1], range[2] - range[1] + 1)
  end
  return #parts == 1 and parts[1] or ul.cat(parts, dim)
end

--- This rank's tokens of x, which holds whole rows.
---@param x Tensor
---@param dim? integer along which tokens stand: 2
---@return Tensor
function Mesh:slice(x, dim)
  dim = dim or 2
  self.tokens = x:size(dim)
  if self.sequence.size == 1 then return x end
  return cut(x, dim, self:ranges(self.tokens))
end

--- Whole rows, on every rank, from what the ranks of mesh.sequence hold of them; the way back from
--- slice, of rows of the length that was cut last.
---@param x Tensor
---@param dim? integer along which tokens stand: 2
---@return Tensor
function Mesh:gather(x, dim)
  dim = dim or 2
  if self.sequence.size == 1 then return x end
  local S, mine = self.tokens, x:size(dim)
  if not S or mine ~= length_of(self, S) then
    raise('mesh: this rank has %d tokens, but its slice of the last row, of %s, is another', mine,
          tostring(S))
  end
  local all = self.sequence:all_gather(x, { dim = dim })
  if self.sizes.ring == 1 then return all end
  -- where each range begins in what was gathered, in the order of the tokens
  local found, at = {}, 1
  for rank = 0, self.sequence.size - 1 do
    for _, range in ipairs(self:ranges(S, rank)) do
      local n = range[2] - range[1] + 1
      found[#found + 1] = { token = range[1], at = at, n = n }
      at = at + n
    end
  end
  table.sort(found, function(a, b) return a.token < b.token end)
  local parts = {}
  for i, one in ipairs(found) do parts[i] = all:narrow(dim, one.at, one.n) end
  return #parts == 0 and all or ul.cat(parts, dim)
end

-- ---- rows ----

--- Which of n rows of a batch are this rank's: data-parallel ranks take them in turn, so that parts
--- of a batch hold the same rows whatever the mesh.
---@param n integer
---@return integer[] from 1, rising
function Mesh:rows(n)
  local list = {}
  for b = self.place.dp + 1, n, self.sizes.dp do list[#list + 1] = b end
  return list
end

--- How many of n rows the data-parallel rank with the fewest has.
---@param n integer
---@return integer
function Mesh:least_rows(n) return math.floor(n / self.sizes.dp) end

--- Uniform random numbers in [0, 1) for each element of x [B, T, ..], this rank's rows and tokens:
--- those that one rank would draw for all of them. So an element gets the same number under every
--- mesh.
---@param x Tensor of the rows that were batched or cut last
---@return Tensor f32 of the shape and the device of x
function Mesh:rand_like(x)
  if self.world.size == 1 then return ul.rand(x.shape, { device = x:device() }) end
  local S, B, dp = self.tokens, x:size(1), self.sizes.dp
  if not S or x:dim() < 2 or x:size(2) ~= length_of(self, S) then
    raise('mesh:rand_like: x [%s] does not hold this rank\'s tokens of rows of %s',
          table.concat(x.shape, ', '), tostring(S))
  end
  local shape, width = {}, 1
  for d, n in ipairs(x.shape) do
    shape[d] = n
    if d > 2 then width = width * n end
  end
  local seed, first = ul.random_state()
  local all, parts = (self.n_rows or B * dp) * S * width, {}
  shape[1] = 1
  for b = 1, B do
    local row = self.place.dp + (b - 1) * dp
    for _, range in ipairs(self:ranges(S)) do
      shape[2] = range[2] - range[1] + 1
      ul.set_random_state(seed, first + (row * S + range[1] - 1) * width)
      parts[#parts + 1] = ul.rand(shape, { device = x:device() }):view(-1)
    end
  end
  ul.set_random_state(seed, first + math.ceil(all / 4) * 4)
  if #parts == 0 then return ul.rand(x.shape, { device = x:device() }) end
  return (#parts == 1 and parts[1] or ul.cat(parts, 1)):view(x.shape)
end

return new
