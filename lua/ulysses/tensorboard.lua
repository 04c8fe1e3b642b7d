-- tensorboard.lua - writes event files that TensorBoard reads.
--
-- A file is a row of records: length (u64), masked CRC of the length, an Event in protobuf's wire
-- format, masked CRC of that. The CRC is CRC-32C. Event: 1 wall_time (double), 2 step (varint), 3
-- file_version (string), 5 summary, 7 session_log. Summary: 1 value. Value: 1 tag, 2 simple_value
-- (float). SessionLog: 1 status, 1 is START: TensorBoard forgets what an earlier file has from that
-- step on.
local bit = require 'bit'
local ffi = require 'ffi'
local core = require 'ulysses.core'
local refuse = require 'ulysses.refuse'

local crc_table = ffi.new 'uint32_t[256]'
for byte = 0, 255 do
  local crc = byte
  for _ = 1, 8 do
    local low = bit.band(crc, 1)
    crc = bit.bxor(bit.rshift(crc, 1), low == 1 and 0x82f63b78 or 0)
  end
  crc_table[byte] = crc
end

local function crc32c(text)
  local crc = bit.bnot(0)
  for i = 1, #text do
    local index = bit.band(bit.bxor(crc, text:byte(i)), 255)
    crc = bit.bxor(bit.rshift(crc, 8), tonumber(crc_table[index]))
  end
  return bit.bnot(crc)
end

local function bytes_of(type, value)
  local box = ffi.new(type .. '[1]', value)
  return ffi.string(box, ffi.sizeof(box))
end

-- Little-endian words, as the machines that LuaJIT runs on here have them.
local function word(n) return bytes_of('int32_t', bit.tobit(n)) end

local function masked_crc(text)
  local crc = crc32c(text)
  return word((bit.ror(crc, 15) + 0xa282ead8) % 2 ^ 32)
end

local function varint(n)
  local parts = {}
  while n >= 128 do
    parts[#parts + 1] = string.char(n % 128 + 128)
    n = math.floor(n / 128)
  end
  return table.concat(parts) .. string.char(n)
end

-- Fields by wire type: 0 varint, 1 eight bytes, 2 a length and as many bytes, 5 four bytes.
local function varint_field(number, n) return string.char(number * 8) .. varint(n) end
local function double_field(number, x)
  return string.char(number * 8 + 1) .. bytes_of('double', x)
end
local function text_field(number, text)
  return string.char(number * 8 + 2) .. varint(#text) .. text
end
local function float_field(number, x) return string.char(number * 8 + 5) .. bytes_of('float', x) end

---@class Events
local Events = {}
Events.__index = Events

local function put(self, event)
  local data = double_field(1, core.system.now()) .. event
  local length = word(#data) .. word(0)
  local ok, why = self.file:write(length, masked_crc(length), data, masked_crc(data))
  if ok then ok, why = self.file:flush() end
  if not ok then refuse("cannot write '%s': %s", self.path, (why:gsub('^.*: ', ''))) end
end

-- Compiled code would lose that flush() has failed (see metrics.lua).
jit.off(put)

--- Writes the numbers among the values, each under its name.
---@param values table with `step`
function Events:write(values)
  local names, parts = {}, {}
  for name, value in pairs(values) do
    if name ~= 'step' and type(value) == 'number' then names[#names + 1] = name end
  end
  table.sort(names)
  for i, name in ipairs(names) do
    parts[i] = text_field(1, text_field(1, name) .. float_field(2, values[name]))
  end
  put(self, varint_field(2, values.step) .. text_field(5, table.concat(parts)))
end

function Events:close() self.file:close() end

--- Begins an event file in the folder, for what comes behind `step`.
---@param dir string
---@param step integer
---@return Events
local function open(dir, step)
  local started, path = math.floor(core.system.now()), nil
  for i = 0, math.huge do -- several within one second
    path = ('%s/events.out.tfevents.%d.ulysses.%d'):format(dir, started, i)
    local there = io.open(path)
    if not there then break end
    there:close()
  end
  local file, why = io.open(path, 'wb')
  if not file then refuse("cannot write '%s': %s", path, (why:gsub('^.*: ', ''))) end
  local self = setmetatable({ path = path, file = file }, Events)
  put(self, text_field(3, 'brain.Event:2'))
  if step > 0 then put(self, varint_field(2, step + 1) .. text_field(7, varint_field(1, 1))) end
  return self
end

return { open = open, crc32c = function(text) return crc32c(text) % 2 ^ 32 end }
