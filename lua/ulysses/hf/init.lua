-- init.lua - ul.hf: models and tokenizers in the folders that Hugging Face's Transformers reads.

---@class hf
local hf = {
  load = require 'ulysses.hf.load',
  save = require 'ulysses.hf.save',
}

return hf
