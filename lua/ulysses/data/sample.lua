-- sample.lua - ul.data.sample: a text to try things out on.
local notice = require 'ulysses.notice'

local JARGON = '/usr/share/doc/jargon-text/jargon.txt.gz'

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

-- The documentation, in the source or beside the installed library.
local function documentation()
  local source = debug.getinfo(1, 'S').source
  local root = source:match '^@(.*)lua/ulysses/data/sample%.lua$'
  if root and exists(root .. 'docs/design.md') then return root .. 'docs/*.md' end
  root = source:match '^@(.*)lua/5%.1/ulysses/data/sample%.lua$'
  return (root or '') .. 'ulysses-lua/docs/*.md'
end

local substitute

--- A text to try things out on: the Jargon File (Debian's package jargon-text, public domain), or
--- where it is missing this project's own documentation, which is far too short to learn much from.
---@param wanted string? another file to look for first
---@return string
local function sample(wanted)
  local path = wanted or JARGON
  if exists(path) then return path end
  substitute = documentation()
  return substitute
end

--- Says so, once, where the documentation is read instead.
---@param path string what is about to be read
local function announce(path)
  if path ~= substitute then return end
  substitute = nil
  notice('data.sample: ' .. JARGON .. ' is missing (package jargon-text); '
         .. 'taking the documentation of this project instead')
end

return { sample = sample, announce = announce }
