-- base.lua - the weights of a folder that a checkpoint leaves out, since they were not trained: how
-- they are told apart from others.
local core = require 'ulysses.core'
local open_file = require 'ulysses.open_file'
local refuse = require 'ulysses.refuse'

-- Of each file so many bytes at its start, with the names and shapes of what is in it, and as many
-- pieces of those behind.
local HEAD, PIECE, PIECES = 64 * 1024, 4096, 64

local base = {}

-- Bytes of a file from everywhere in it, and its size. Reading all of them would take minutes.
local function sample(path)
  local file, why = open_file(path, 'rb')
  if not file then refuse('checkpoint: cannot read %s', why) end
  local size, parts = file:seek 'end', {}
  for i = 0, PIECES do
    file:seek('set', math.floor(i * math.max(0, size - PIECE) / PIECES))
    parts[#parts + 1] = file:read(i == 0 and HEAD or PIECE) or ''
  end
  file:close()
  return table.concat(parts), size
end

--- What a checkpoint keeps of the folder: its name, the bytes of its weights, and a hash of some of
--- them.
---@param folder string
---@return { folder: string, bytes: integer, hash: string }
function base.of(folder)
  local names, sentence = core.folder_list(folder)
  if not names then refuse('checkpoint: %s', sentence) end
  table.sort(names)
  local hashes, bytes = {}, 0
  for _, name in ipairs(names) do
    if name:find '%.safetensors$' and not name:find '^adapter_' then
      local text, size = sample(folder .. '/' .. name)
      hashes[#hashes + 1] = ('%s %.0f %s'):format(name, size, core.hash(text))
      bytes = bytes + size
    end
  end
  if #hashes == 0 then refuse("checkpoint: '%s' has no weights in it", folder) end
  return { folder = folder, bytes = bytes, hash = core.hash(table.concat(hashes, '\n')) }
end

--- Refuses other weights than those that a checkpoint was trained beside.
---@param path string the checkpoint
---@param kept { folder: string, bytes: integer, hash: string }
---@param folder string|nil
function base.compare(path, kept, folder)
  if not folder then
    refuse("%s: holds what was trained beside the weights of '%s' alone; load that model first "
           .. '(ul.hf.load)', path, kept.folder)
  end
  local here = base.of(folder)
  if here.hash == kept.hash then return end
  refuse("%s: was trained beside the weights of '%s' (%.0f bytes), and those of '%s' (%.0f bytes) "
         .. 'are others; name the same model, or give this run a folder of its own (out=..)', path,
         kept.folder, kept.bytes, folder, here.bytes)
end

return base
