-- init.lua - ul.data: from files to batches.
--
--   ul.data.read(path):tokenize('bytes'):pack(1024):shuffle { seed = 1 }:batch(4)
--   ul.data.chat(path):tokenize(tok):pack(1024):shuffle { seed = 1 }:batch(4)
--   ul.data.pairs(path):tokenize(tok):shuffle { seed = 1 }:batch(4)
local text = require 'ulysses.data.text'

return {
  read = text.read,
  from = text.from,
  chat = require('ulysses.data.chat').read,
  pairs = require('ulysses.data.pairs').read,
  sample = require('ulysses.data.sample').sample,
  batch = require('ulysses.data.batch').from,
  bytes = require 'ulysses.data.bytes',
}
