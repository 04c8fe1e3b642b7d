-- shards.lua - puts a tensor together from the shards that a manifest lists for it.

-- What a shard and the wanted box have in common: where it begins and its size, in each dim; nil
-- where there is nothing.
local function common(shard, origin, shape)
  local from, size = {}, {}
  for d = 1, #shape do
    from[d] = math.max(shard.offset[d], origin[d])
    size[d] = math.min(shard.offset[d] + shard.shape[d], origin[d] + shape[d]) - from[d]
    if size[d] <= 0 then return nil end
  end
  return from, size
end

local function narrow(tensor, first_dim, from, origin, size)
  for d = first_dim, #size do
    if size[d] ~= tensor:size(d) then
      tensor = tensor:narrow(d, from[d] - origin[d] + 1, size[d])
    end
  end
  return tensor
end

-- Rows are all that a file can be asked for: what is narrower is cut out of them.
local function read_part(target, shard, file, name, from, size)
  if #size == 0 then
    file:get(name, { into = target })
    return 1
  end
  local first, count, whole_rows = from[1] - shard.offset[1] + 1, 1, true
  for d = 1, #size do
    count = count * size[d]
    whole_rows = whole_rows and (d == 1 or size[d] == shard.shape[d])
  end
  if whole_rows then
    file:get(name, { into = target, first = first })
  else
    local rows = file:get(name, { first = first, last = first + size[1] - 1 })
    target:copy_(narrow(rows, 2, from, shard.offset, size))
    rows:free()
  end
  return count
end

--- Fills `target`, in place, with the box of a tensor that begins at `origin` (from 0) and has
--- target's shape.
---@param target Tensor
---@param listed table the tensor's entry in the manifest
---@param name string
---@param open fun(file: string): SafetensorsFile
---@param origin integer[]? nil: the box begins where the tensor does
---@return integer n how many elements were found
local function assemble(target, listed, name, open, origin)
  local shape, found = target.shape, 0
  if not origin then
    origin = {}
    for d = 1, #shape do origin[d] = 0 end
  end
  for _, shard in ipairs(listed.shards) do
    local from, size = common(shard, origin, shape)
    if from then
      local part = narrow(target, 1, from, origin, size)
      found = found + read_part(part, shard, open(shard.file), name, from, size)
    end
  end
  return found
end

return assemble
