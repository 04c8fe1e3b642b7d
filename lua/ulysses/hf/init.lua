-- init.lua - ul.hf: models and tokenizers in the folders that Hugging Face's Transformers reads.

local place = require 'ulysses.hf.place'
local ul = require 'ulysses'

---@class hf
local hf = {
  load = require 'ulysses.hf.load',
  save = require 'ulysses.hf.save',
}

--- Calls f with the model of a folder on meta, for one rank, which takes no time: what load refuses
--- in its config.json, and in what its weights are, is refused at once. Behind f it is gone.
---@param folder string
---@param changed table<string, any>? `config` of load
---@param f fun(outline: Decoder)
function hf.outline(folder, changed, f)
  local alone = ul.mesh { group = ul.group { pretend = 1, rank = 0 } }
  local model = hf.load(folder, { device = 'meta', mesh = alone, config = changed,
                                  tokenizer = false })
  ul.scope(f, model)
  for _, parameter in model:named_parameters() do parameter:free() end
end

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
