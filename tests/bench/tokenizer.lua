-- tokenizer.lua - by hand: how fast a tokenizer loads, encodes and decodes.
--
--   ulysses-lua tests/bench/tokenizer.lua folder [text file ..]
--
-- A line for each text: megabytes of text per second of one core, the first time and, as the median
-- of 9, with its words in the cache; decoding; and all of it as one word of one letter.
local ffi = require 'ffi'
local ul = require 'ulysses'

ffi.cdef [[
  typedef struct { long seconds, nanoseconds; } bench_time;
  int clock_gettime(int, bench_time *);
]]
local CPU = 2 -- CLOCK_PROCESS_CPUTIME_ID
local clock = ffi.new 'bench_time'
local function now()
  ffi.C.clock_gettime(CPU, clock)
  return tonumber(clock.seconds) + 1e-9 * tonumber(clock.nanoseconds)
end

local function time(f)
  local start = now()
  f()
  return now() - start
end

local function median(n, f)
  local list = {}
  for i = 1, n do list[i] = time(f) end
  table.sort(list)
  return list[math.ceil(n / 2)]
end

local folder = assert(arg[1], 'usage: tokenizer.lua folder [text file ..]')
local texts = { unpack(arg, 2) }
if #texts == 0 then texts[1] = ul.data.sample() end

local tok
local cold = time(function() tok = ul.tokenizer.load(folder, { cache = false }) end)
ul.tokenizer.load(folder)
local cached = median(5, function() ul.tokenizer.load(folder) end)
print(('%s: read in %.0f ms, from the cache in %.0f ms'):format(tostring(tok), 1e3 * cold,
                                                               1e3 * cached))

local function encode(text)
  local ids = tok.handle:encode_ids(text, 0, -1, -1)
  local _, n = ids:view()
  ids:free()
  return tonumber(n)
end

local line = '%-28s %8s %9s %9s %9s %9s %9s'
print(line:format('text', 'MB', 'tokens', 'first', 'warm', 'decode', 'one word'))
for _, path in ipairs(texts) do
  tok = ul.tokenizer.load(folder)
  local text = table.concat(ul.data.read(path):documents())
  local ids = tok.handle:encode(text, 0, -1, -1)
  tok = ul.tokenizer.load(folder) -- with empty caches
  local megabytes = #text / 1e6
  local function rate(seconds) return ('%.1f'):format(megabytes / seconds) end
  local first = time(function() encode(text) end)
  local warm = median(9, function() encode(text) end)
  local decoded = median(5, function() tok:decode(ids) end)
  local word = ('a'):rep(#text)
  local one = time(function() encode(word) end)
  print(line:format(path:match '[^/]*$', ('%.2f'):format(megabytes), #ids, rate(first), rate(warm),
                    rate(decoded), rate(one)))
end
