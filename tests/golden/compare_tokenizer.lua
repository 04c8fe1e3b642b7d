-- compare_tokenizer.lua - by hand: the rows of make_tokenizer.py for a real tokenizer against ours.
--
--   luajit tests/golden/compare_tokenizer.lua path/to/folder rows.jsonl
local ul = require 'ulysses'
local tok = ul.tokenizer.load(arg[1], { cache = false })

local n, wrong = 0, 0
local function compare(what, text, expected, actual)
  if type(expected) == 'table' then
    expected, actual = table.concat(expected, ' '), table.concat(actual, ' ')
  end
  if expected == actual then return end
  wrong = wrong + 1
  if wrong <= 10 then print(('%s of %q:\n  %s\n  %s'):format(what, text, expected, actual)) end
end

for line in io.lines(arg[2]) do
  local text, plain, ids, decoded = unpack(ul.json.decode(line))
  compare('ids', text, plain, tok:encode(text))
  compare('ids with special tokens', text, ids, tok:encode(text, { specials = true }))
  compare('text', text, decoded, tok:decode(ids, { specials = true }))
  n = n + 1
end
print(('%d strings, %d results that differ'):format(n, wrong))
os.exit(wrong == 0 and 0 or 1)
