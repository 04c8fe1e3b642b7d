-- ops_table.lua - the text of docs/ops.md: which op has which proofs, from the tables of cases.
--
--   LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' LUA_CPATH='build/release/?.so;;' \
--     luajit -e "io.write(require 'tests.ops_table')" > docs/ops.md
local cases = require 'tests.cases'
local errors = require 'tests.errors'
local bench = require 'tests.bench.ops'

local head = [[
# Ops and their proofs

Made by `tests/ops_table.lua` from the tables that the proofs run over: do not edit. A number says
how many cases prove it; letters stand for the notes below.

- **gradcheck**: gradients equal central differences in f64 within 1e-8, also through views
  (`tests/spec/gradcheck_spec.lua`).
- **f32, bf16**: values and gradients equal f64 on the same rounded inputs, at odd sizes, on views
  that are not contiguous, and on empty sizes where there is a result for them; shapes and dtypes
  equal those on the meta device. At each instruction set level (`tests/spec/precision_spec.lua`).
- **PyTorch**: values and gradients equal PyTorch's, f64 within 1e-9 and f32 within 1e-5
  (`tests/spec/golden_spec.lua`).
- **one rank**: on one rank results are the same bits on 1, 2 and 3 threads and when run again
  (`tests/spec/precision_spec.lua`).
- **CUDA**: values and gradients of the CUDA kernels equal the cpu's, in f64 within 1e-12, f32 1e-5
  and bf16 1.2e-2 of the largest, also on views, large and empty sizes; run on the cpu by
  `tests/cuemu`, or on a GPU where there is one (`tests/cuda/ops_spec.lua`).
- **errors**: wrong uses, each answered by one sentence at the caller's line
  (`tests/spec/errors_spec.lua`).
- **bench**: lines in `make bench`, each with its floor.

]]

-- ---- what each op has ----

local ops, names = {}, {}
for _, case in ipairs(cases.list) do
  local op = ops[case.op]
  if not op then
    op = { cases = {}, bench = 0 }
    ops[case.op], names[#names + 1] = op, case.op
  end
  op.cases[#op.cases + 1] = case
end
for _, line in ipairs(bench) do
  if ops[line.op] then ops[line.op].bench = ops[line.op].bench + 1 end
end
local unmeasured = {}
for _, entry in ipairs(cases.unmeasured) do
  for name in entry[2]:gmatch '%S+' do unmeasured[name] = entry[1] end
end
table.sort(names)

-- ---- notes, lettered in the order in which they are first needed ----

local notes, letters = {}, {}

local function letter(sentence)
  if not letters[sentence] then
    notes[#notes + 1] = sentence
    letters[sentence] = string.char(96 + #notes)
  end
  return letters[sentence]
end

-- How many cases give a proof, or the notes that say why none does.
local function cell(name, proof, given)
  local n, reasons, list = 0, {}, {}
  for _, case in ipairs(ops[name].cases) do
    local reason = case.without[proof]
    if given(case) and not reason then n = n + 1 end
    if reason then reasons[cases.notes[reason]] = true end
  end
  if n > 0 then return tostring(n) end
  for reason in pairs(reasons) do list[#list + 1] = reason end
  table.sort(list)
  assert(#list > 0, name .. ': no ' .. proof .. ', and no note that says why')
  for i, reason in ipairs(list) do list[i] = letter(reason) end
  return table.concat(list, ' ')
end

local function row(name)
  local op = ops[name]
  local always = function() return true end
  local cells = {
    '`' .. name .. '`', cell(name, 'gradcheck', always), cell(name, 'precision', always),
    cell(name, 'golden', function(case) return case.golden end), tostring(#op.cases),
    tostring(#op.cases), tostring(#assert(errors[name], name .. ': no error texts')),
  }
  local reason = unmeasured[name]
  assert(op.bench > 0 or reason, name .. ': no line in the benchmark, and no note that says why')
  cells[#cells + 1] = op.bench > 0 and tostring(op.bench) or letter(reason)
  return '| ' .. table.concat(cells, ' | ') .. ' |'
end

local lines = {
  '| op | gradcheck | f32, bf16 | PyTorch | one rank | CUDA | errors | bench |',
  '|---|---|---|---|---|---|---|---|',
}
for _, name in ipairs(names) do lines[#lines + 1] = row(name) end
lines[#lines + 1] = ''
for i, sentence in ipairs(notes) do
  lines[#lines + 1] = ('- **%s**: %s'):format(string.char(96 + i), sentence)
end
return head .. table.concat(lines, '\n') .. '\n'
