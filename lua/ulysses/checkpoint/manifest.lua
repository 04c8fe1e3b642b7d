-- manifest.lua - the list of what a checkpoint is made of; a folder without it is none.
--
-- manifest.json names every file with its bytes and hash, and every tensor with its dtype and shape
-- and the shards it is stored in: each a box of it, from an offset on, in one of the files. It is
-- written last, and holds a hash of itself.
local core = require 'ulysses.core'
local json = require 'ulysses.json'
local open_file = require 'ulysses.open_file'

local manifest = {}

local FORMAT, VERSION, NAME = 'ulysses checkpoint', 1, 'manifest.json'

local NO_SUCH_FILE = 2

--- How a tensor that is whole in one file is listed.
---@param tensor Tensor
---@param file string
function manifest.whole(tensor, file)
  local offset = {}
  for d = 1, tensor:dim() do offset[d] = 0 end
  local shape = json.array { unpack(tensor.shape) }
  return { dtype = tensor:dtype(), shape = shape,
           shards = { { file = file, offset = json.array(offset), shape = shape } } }
end

-- The hash of all but the hash.
local function hash_of(content)
  local plain = {}
  for key, value in pairs(content) do plain[key] = value end
  plain.xxh3 = nil
  return core.hash(json.encode(plain))
end

--- Writes the manifest of the files in `folder`.
---@param folder string
---@param content { step: integer, files: table, tensors: table }
---@return true|nil ok, string? sentence
function manifest.write(folder, content)
  local all = { format = FORMAT, version = VERSION }
  for key, value in pairs(content) do all[key] = value end
  all.xxh3 = hash_of(all)
  local bytes, sentence = core.file_write(folder .. '/' .. NAME,
                                          json.encode(all, { indent = 1 }) .. '\n')
  if not bytes then return nil, sentence end
  return true
end

--- Whether the folder may be a checkpoint.
function manifest.exists(folder)
  return core.system.kind_of(folder .. '/' .. NAME) ~= nil
end

local function read_text(path)
  local file, sentence = open_file(path, 'rb')
  if not file then return nil, (sentence:gsub('^.*: ', '')) end
  local text = file:read '*a'
  file:close()
  if not text then return nil, 'cannot be read' end
  return text
end

--- Reads a JSON file of the checkpoint.
---@return table|nil content, string? sentence names the file, not the folder
function manifest.read_json(folder, name)
  local text, sentence = read_text(folder .. '/' .. name)
  local content
  if text then content, sentence = json.decode(text) end
  if type(content) ~= 'table' then
    return nil, name .. ': ' .. (sentence or 'is no object')
  end
  return content
end

--- Reads the manifest; the hash vouches for what is in it.
---@param folder string
---@return table|nil content, string? sentence what is damaged
---@return string? newer a sentence where a newer version wrote it, and nothing is damaged
function manifest.read(folder)
  local content, sentence = manifest.read_json(folder, NAME)
  if not content then return nil, sentence end
  if content.format ~= FORMAT then return nil, NAME .. ': is no manifest of a checkpoint' end
  if content.xxh3 ~= hash_of(content) then
    return nil, NAME .. ': its hash is not the one written in it'
  end
  if content.version ~= VERSION then
    return nil, nil, ('%s: has version %s of the format, and this program knows %d'):format(
      folder, tostring(content.version), VERSION)
  end
  return content
end

local function size_of(path)
  local file, why, code = open_file(path, 'rb')
  if not file then return nil, code == NO_SUCH_FILE and 'is missing' or why:gsub('^.*: ', '') end
  local size = file:seek 'end'
  file:close()
  return size
end

--- Whether the files have the sizes that the manifest lists.
---@return boolean|nil ok, string? sentence
function manifest.check_sizes(folder, content)
  for name, listed in pairs(content.files) do
    local size, why = size_of(folder .. '/' .. name)
    if not size then return nil, ('%s: %s'):format(name, why) end
    if size ~= listed.bytes then
      return nil, ('%s: is %d bytes long, and %d were written'):format(name, size, listed.bytes)
    end
  end
  return true
end

--- Whether the files hold the bytes that were written.
---@return boolean|nil ok, string? sentence
function manifest.check_hashes(folder, content)
  for name, listed in pairs(content.files) do
    local bytes, hash = core.file_sum(folder .. '/' .. name)
    if not bytes then return nil, hash end
    if hash ~= listed.xxh3 then return nil, name .. ': holds other bytes than were written' end
  end
  return true
end

return manifest
