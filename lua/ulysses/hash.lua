-- hash.lua - hashes of 32 bits, computed in doubles: the same on every machine.
local bit = require 'bit'

-- a * b modulo 2^32; each partial product is exact in a double.
local function multiply(a, b)
  return (a % 2 ^ 16 * b + math.floor(a / 2 ^ 16) * b % 2 ^ 16 * 2 ^ 16) % 2 ^ 32
end

local function shift_in(word, n) return bit.bxor(word, bit.rshift(word, n)) % 2 ^ 32 end

--- Spreads a word over all 32 bits (the finaliser of MurmurHash3).
---@param word integer
---@return integer
local function mix(word)
  word = multiply(shift_in(word % 2 ^ 32, 16), 0x85ebca6b)
  word = multiply(shift_in(word, 13), 0xc2b2ae35)
  return shift_in(word, 16)
end

--- FNV-1a of a string.
---@param s string
---@return integer
local function text(s)
  local h = 2166136261
  for i = 1, #s do h = multiply(bit.bxor(h, s:byte(i)) % 2 ^ 32, 16777619) end
  return h
end

--- FNV-1a with words of 64 bits, of n integers at a pointer, as 16 hexadecimal digits.
---@param from ffi.cdata* pointer to integers
---@param n integer
---@return string
local function integers(from, n)
  local h = 0xcbf29ce484222325ULL
  for i = 0, n - 1 do h = bit.bxor(h, from[i]) * 0x100000001b3ULL end
  return bit.tohex(h)
end

return { mix = mix, text = text, integers = integers }
