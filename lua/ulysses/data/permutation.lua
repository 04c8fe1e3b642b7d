-- permutation.lua - a shuffled order that is a pure function of (seed, epoch, index).
--
-- A Feistel network permutes the pairs (left, right) of half-words whatever its round function is.
-- Numbers of that square which lie outside of [0, n) are sent through again until one lies inside:
-- a permutation of [0, n), of which any element is known without the others.
local bit = require 'bit'
local hash = require 'ulysses.hash'

local ROUNDS = 6

--- Where index (from 0) of n goes.
---@param n integer
---@param seed integer
---@param epoch integer
---@param index integer
---@return integer
return function(n, seed, epoch, index)
  local half = 1
  while half * half < n do half = half * 2 end
  local key = hash.mix(hash.mix(seed) + epoch)
  local position = index
  repeat
    local left, right = math.floor(position / half), position % half
    for round = 1, ROUNDS do
      local word = hash.mix(hash.mix(key + round) + right)
      left, right = right, bit.bxor(left, word % half)
    end
    position = left * half + right
  until position < n
  return position
end
