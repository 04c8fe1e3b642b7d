-- init.lua - ul.hf: models and tokenizers in the folders that Hugging Face's Transformers reads.

local place = require 'ulysses.hf.place'

---@class hf
local hf = {
  load = require 'ulysses.hf.load',
  save = require 'ulysses.hf.save',
}

--- Refuses a folder that save (or with 'adapter' ul.lora.save) would refuse after all the work,
--- since something else lies there.
---@param folder string
---@param what? 'model'|'adapter'
function hf.check_folder(folder, what) place.check('hf.check_folder', folder, what or 'model') end

return hf
