-- init.lua - ul.data: from files to batches.
--
--   ul.data.read(path):tokenize('bytes'):pack(1024):shuffle { seed = 1 }:batch(4)
local text = require 'ulysses.data.text'

local jargon = '/usr/share/doc/jargon-text/jargon.txt.gz'

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

--- A text to try things out on: the Jargon File (Debian's package jargon-text, public domain), or
--- where it is missing this project's own documentation, which is far too short to learn much from.
---@return string
local function sample()
  if exists(jargon) then return jargon end
  local root = debug.getinfo(1, 'S').source:match '^@(.*)lua/ulysses/data/init.lua$'
  io.stderr:write('data.sample: ', jargon, ' is missing (package jargon-text); ',
                  'taking the documentation of this project instead\n')
  return (root or '') .. 'docs/*.md'
end

return {
  read = text.read,
  from = text.from,
  sample = sample,
  batch = require('ulysses.data.batch').from,
  bytes = require 'ulysses.data.bytes',
}
