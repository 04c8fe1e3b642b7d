-- api_page.lua - the text of docs/api.md: the reference, made of what ul.help says.
--
--   LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' LUA_CPATH='build/release/?.so;;' \
--     luajit -e "io.write(require 'tests.api_page')" > docs/api.md
local help = require 'ulysses.help'

local head = [[
# Reference

Made by `tests/api_page.lua` from the annotations in the sources: do not edit. The prompt says the
same: `ul.help 'matmul'`. Dimensions, positions and ranges count from 1 and include both ends;
indices that are stored in tensors count from 0. `?` marks what may be left out.

]]

-- Classes that the library keeps to itself.
local internal = { Events = true, Lines = true, Log = true }

-- Functions by what stands before their name: ul, ul.nn, F, Tensor ..; each once, where its first
-- name belongs.
local groups, order, seen = {}, {}, {}
for _, item in ipairs(help.index().list) do
  local name = item.entry.names[1]
  if not seen[item.entry] then
    seen[item.entry] = true
    local group = name:match '^(.*)[.:]' or 'ul'
    if not groups[group] and not internal[group] then
      groups[group], order[#order + 1] = {}, group
    end
    if groups[group] then table.insert(groups[group], name) end
  end
end
table.sort(order)

local parts = {}
for _, group in ipairs(order) do
  parts[#parts + 1] = '## ' .. group .. '\n'
  table.sort(groups[group])
  for _, name in ipairs(groups[group]) do
    parts[#parts + 1] = ('### %s\n\n```\n%s\n```\n'):format(name, (assert(help.text(name), name)))
  end
end
return head .. table.concat(parts, '\n')
