-- tokenizer.lua - by hand: how fast a tokenizer loads, encodes and decodes, against what it must
-- and against the Rust implementation.
--
--   ulysses-lua tests/bench/tokenizer.lua folder [text file ..]
--   UL_PYTHON=venv/bin/python ulysses-lua tests/bench/tokenizer.lua folder [text file ..]
--
-- Megabytes of text per second of one core. For each text: the first time; as the median of 9, with
-- its words in the cache ('ours'), the least that will do and the ratio of both; decoding; and all
-- of it as one word of one letter. With a Python that has the package tokenizers (0.22.2), that
-- implementation as well, given paragraphs, which it does best with: 5 rounds, each of both.
-- Without files: English (ul.data.sample) and Chinese, the messages of this machine's programs.
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

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

local function median_time(n, f)
  local list = {}
  for i = 1, n do list[i] = time(f) end
  return median(list)
end

-- ---- texts: { name =, text =, least = } ----

local function is_chinese(text)
  local _, n = text:gsub('[\228-\233][\128-\191][\128-\191]', '')
  return 6 * n > #text
end

local function chinese()
  local parts = {}
  local list = io.popen 'ls /usr/share/locale/zh_*/LC_MESSAGES/*.mo 2>/dev/null'
  for path in list:lines() do
    local file = assert(io.open(path, 'rb'))
    for message in file:read '*a':gmatch '[^%z]+' do
      if #message >= 24 and is_chinese(message) then parts[#parts + 1] = message end
    end
    file:close()
  end
  list:close()
  return table.concat(parts, '\n')
end

local ENGLISH, CHINESE = 50, 15 -- MB/s

local function read_texts()
  local texts = {}
  local function add(name, text)
    texts[#texts + 1] = { name = name, text = text,
                          least = is_chinese(text) and CHINESE or ENGLISH }
  end
  for i = 2, #arg do add(arg[i], table.concat(ul.data.read(arg[i]):documents())) end
  if #texts > 0 then return texts end
  add('English', table.concat(ul.data.read(ul.data.sample()):documents()))
  local text = chinese()
  if #text > 1e5 then add('Chinese', text) end
  return texts
end

-- ---- the Rust implementation ----

local rust = [[
import os, sys, time
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
data = open(sys.argv[2], "rb").read()
pieces = data.decode("utf-8", "replace").split("\n\n")
tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
start = time.process_time()
tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
print(time.process_time() - start)
]]

-- Seconds for the text in a file.
local function rust_seconds(python, tokenizer, path)
  local pipe = io.popen(("RAYON_NUM_THREADS=1 %s -c '%s' %s %s"):format(python, rust, tokenizer,
                                                                        path))
  local seconds = tonumber(pipe:read '*a')
  pipe:close()
  return assert(seconds, 'tokenizers does not run')
end

-- ---- measuring ----

local folder = assert(arg[1], 'usage: tokenizer.lua folder [text file ..]')
local python = os.getenv 'UL_PYTHON'

local tok
local cold = time(function() tok = ul.tokenizer.load(folder, { cache = false }) end)
ul.tokenizer.load(folder)
local cached = median_time(5, function() ul.tokenizer.load(folder) end)
print(('%s: read in %.0f ms (at most 600), from the cache in %.0f ms (at most 60)'):format(
  tostring(tok), 1e3 * cold, 1e3 * cached))

local function encode(text)
  local ids = tok.handle:encode_ids(text, 0, -1, -1)
  local _, n = ids:view()
  ids:free()
  return tonumber(n)
end

local line = '%-16s %6s %9s %7s %7s %7s %7s %7s %9s'
print(line:format('text', 'MB', 'tokens', 'first', 'ours', 'least', 'ratio', 'decode', 'one word'))
local texts = read_texts()
for _, one in ipairs(texts) do
  tok = ul.tokenizer.load(folder)
  local text, megabytes = one.text, #one.text / 1e6
  local ids = tok.handle:encode(text, 0, -1, -1)
  tok = ul.tokenizer.load(folder) -- with empty caches
  local function rate(seconds) return ('%.1f'):format(megabytes / seconds) end
  local first = time(function() encode(text) end)
  local warm = median_time(9, function() encode(text) end)
  local decoded = median_time(5, function() tok:decode(ids) end)
  local word = ('a'):rep(#text)
  local one_word = time(function() encode(word) end)
  print(line:format(one.name:match '[^/]*$', ('%.2f'):format(megabytes), #ids, rate(first),
                    rate(warm), one.least, ('%.2f'):format(megabytes / warm / one.least),
                    rate(decoded), rate(one_word)))
end
if not python then return end

print(('%-16s %7s %7s %7s'):format('text', 'ours', 'Rust', 'ratio'))
local path = os.tmpname()
for _, one in ipairs(texts) do
  local ours, theirs, megabytes = {}, {}, #one.text / 1e6
  local file = assert(io.open(path, 'wb'))
  file:write(one.text)
  file:close()
  encode(one.text)
  for round = 1, 5 do
    ours[round] = time(function() encode(one.text) end)
    theirs[round] = rust_seconds(python, tok.path, path)
  end
  local a, b = median(ours), median(theirs)
  print(('%-16s %7.1f %7.1f %7.1f'):format(one.name:match '[^/]*$', megabytes / a, megabytes / b,
                                           b / a))
end
os.remove(path)
