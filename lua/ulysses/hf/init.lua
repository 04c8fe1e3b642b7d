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
---@param tok? Tokenizer|table|string the tokenizer that will be saved, where it is known: its
--- folder or file, 'bytes', or the folder that the model comes from
function hf.check_folder(folder, what, tok)
  place.check('hf.check_folder', folder, what or 'model', tok and place.tokenizer_files(tok) or nil)
end

return hf
