-- streams.lua - a rank whose every collective has work before it, and work behind it, on another
-- stream; what comes out must be what numbers of that size give. faults.sh runs two of them.
local ul = require 'ulysses'

ul.set_default_device 'cuda'
local g, n = ul.group(), 4096

-- Numbers that take a while, and that only this round has.
local function made(round, rank) return ul.ones({ 64, n / 64 }):cumsum(1) * (10 * round + rank) end

local function same(x, y, what)
  assert((x - y):abs():max():item() == 0, what .. ' is not what it must be: an event is missing')
end

for round = 1, 5 do
  local mine, other = made(round, g.rank), made(round, 1 - g.rank)
  local row = mine:narrow(1, g.rank * 32 + 1, 32)
  same(g:all_reduce(mine * 1), mine + other, 'all_reduce')
  same(g:all_gather(made(round, g.rank) * 2) * 1, ul.cat({ made(round, 0), made(round, 1) }) * 2,
       'all_gather')
  same(g:reduce_scatter(mine * 3), (row + other:narrow(1, g.rank * 32 + 1, 32)) * 3,
       'reduce_scatter')
  same(g:broadcast(mine * 4, 1), made(round, 1) * 4, 'broadcast')
  same(g:all_to_all(mine * 5, { split = 1, cat = 2 }),
       ul.cat({ made(round, 0):narrow(1, g.rank * 32 + 1, 32),
                made(round, 1):narrow(1, g.rank * 32 + 1, 32) }, 2) * 5, 'all_to_all')
end
