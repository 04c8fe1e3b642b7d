-- api_page.lua - the text of docs/api.md: what every public function takes, returns and does.
--
--   LUA_PATH='lua/?.lua;lua/?/init.lua;?.lua;;' LUA_CPATH='build/release/?.so;;' \
--     luajit -e "io.write(require('tests.api_page').text)" > docs/api.md
local help = require 'ulysses.help'
local index = help.index()

local WIDTH = 100

local head = [[
# Reference

Made by `tests/api_page.lua` from the comments in the sources: do not edit. At the prompt, `?matmul`
or `ul.help 'matmul'` says the same.

`ul` is `require 'ulysses'`, `F` is `ul.F`, `x` a tensor. Dims, positions and ranges count from 1,
or from -1 backwards, and include both ends; indices and ids that are stored in tensors count from
0. `options` is a table that may be left out. A `?` behind a type means that it may be nil.

]]

-- The files of lua/ulysses that say what is public, by topic.
local topics = {
  { 'Tensors', 'meta/tensor' },
  { 'Making tensors', 'meta/create' },
  { 'Shapes, picking and joining', 'meta/shape' },
  { 'Elementwise ops', 'meta/elementwise' },
  { 'Sums, extremes, and what runs along dims', 'meta/reduce', 'moments' },
  { 'Products, norms, attention and losses', 'meta/layers' },
  { 'Scopes, gradients, random numbers and the machine', 'meta/engine', 'recompute', 'offload',
    'gradcheck' },
  { 'Modules: ul.nn', 'nn/module', 'nn/state', 'nn/linear', 'nn/embedding', 'nn/norm',
    'nn/dropout', 'nn/list', 'nn/parallel', 'nn/sharded' },
  { 'Optimizers: ul.optim', 'optim', 'schedule' },
  { 'Data: ul.data', 'data/text', 'data/chat', 'data/pairs', 'data/sample', 'data/bytes',
    'data/corpus', 'data/rows', 'data/batch' },
  { 'Tokenizers: ul.tokenizer and ul.chat', 'tokenizer', 'chat' },
  { 'Published models: ul.hf, ul.lora and ul.preference', 'hf/load', 'hf/save',
    'hf/init', 'hf/decoder', 'lora', 'preference' },
  { 'Recipes', 'recipe/init', 'recipe/value' },
  { 'Runs', 'run', 'generate', 'cache' },
  { 'Checkpoints and files', 'checkpoint', 'safetensors', 'json' },
  { 'Ranks that work together', 'meta/group', 'mesh', 'ulysses' },
  { 'Help', 'help' },
}

-- Classes that only hold the functions of a table.
local tables = { ulysses = true, F = true, Ops = true, checkpoint = true, json = true,
                 safetensors = true, tokenizer = true, chat = true, hf = true,
                 lora = true, preference = true }

-- ---- text ----

-- Fills prose to the width, behind a first and before all further lines.
local function fill(words, first, indent)
  local out, line = {}, first
  for word in words:gmatch '%S+' do
    if #line + 1 + #word > WIDTH and line:find '%S' then
      out[#out + 1], line = line, indent .. word
    else
      line = line:find '%S$' and line .. ' ' .. word or line .. word
    end
  end
  out[#out + 1] = line
  return table.concat(out, '\n')
end

-- A comment: prose is filled, code and what is indented stays as it is.
local function comment(lines)
  local blocks, prose, code = {}, {}, nil
  local function flush()
    local text = table.concat(prose, ' ')
    if text:find '%S' then blocks[#blocks + 1] = fill(text, '', '') end
    if code then blocks[#blocks + 1] = table.concat(code, '\n') .. '\n```' end
    prose, code = {}, nil
  end
  local fenced, margin = false, nil
  for _, line in ipairs(lines) do
    if line:find '^```' then
      fenced = not fenced
      flush()
      if fenced then code = { line } end
      if not fenced then code = nil end
    elseif fenced then
      code[#code + 1] = line
    elseif line:find '^%s+%S' then
      if not code then
        flush()
        code, margin = { '```' }, nil
      end
      margin = margin or line:match '^ +'
      code[#code + 1] = line:sub(1, #margin) == margin and line:sub(#margin + 1) or line
    else
      if code or line == '' then flush() end
      prose[#prose + 1] = line
    end
  end
  flush()
  return blocks
end

local function fields_of(param)
  if param.fields then return param.fields end
  local class = index.classes[param.type]
  if class and (class.class:find 'Options$' or class.class == 'Function') then
    return class.fields
  end
end

-- '- `name` type: text' for each, and below it what a table of options may have.
local function items(list, indent, out)
  for _, one in ipairs(list) do
    local fields = fields_of(one)
    local kind = one.fields and 'table' or one.type
    local name = one.name == 'given' and 'options' or one.name
    local first = indent .. '-' .. (name and ' `' .. name .. '`' or '')
    first = first .. ' `' .. kind .. (one.optional and '?' or '') .. '`'
    local text = one.text or ''
    if one.default then
      text = text .. (text == '' and '' or '; ') .. '`' .. one.default .. '` by default'
    end
    out[#out + 1] = fill(text, first .. (text == '' and '' or ': '), indent .. '  ')
    if fields then items(fields, indent .. '  ', out) end
  end
  return out
end

local function write_function(out, entry)
  local name = entry.names[1]
  out[#out + 1] = '### `' .. help.signature(entry, name) .. '`'
  if #entry.names > 1 then
    local others = {}
    for i = 2, #entry.names do others[#others + 1] = '`' .. entry.names[i] .. '`' end
    out[#out + 1] = 'Also ' .. table.concat(others, ', ') .. '.'
  end
  for _, block in ipairs(comment(entry.text)) do out[#out + 1] = block end
  local params = {}
  for i, param in ipairs(entry.params) do
    if not (i == 1 and entry.owner == 'Ops' and name:find ':') then params[#params + 1] = param end
  end
  if #params > 0 then out[#out + 1] = table.concat(items(params, '', {}), '\n') end
  local results = {}
  for _, result in ipairs(entry.returns) do
    if (result.text or '') ~= '' then results[#results + 1] = result end
  end
  if #results > 0 then
    out[#out + 1] = 'Returns:'
    out[#out + 1] = table.concat(items(results, '', {}), '\n')
  end
end

local function write_class(out, entry)
  if tables[entry.class] or entry.class:find 'Options$' or not entry.fields then return end
  out[#out + 1] = '### ' .. entry.class
  for _, block in ipairs(comment(entry.text)) do out[#out + 1] = block end
  out[#out + 1] = table.concat(items(entry.fields, '', {}), '\n')
end

local function anchor(title) return title:lower():gsub('[^%w %-]', ''):gsub(' ', '-') end

local by_file = {}
for _, entry in ipairs(index.all) do
  local file = entry.file:match 'ulysses/(.*)%.lua$'
  by_file[file] = by_file[file] or {}
  table.insert(by_file[file], entry)
end

local out, contents, written = {}, {}, {}
for _, topic in ipairs(topics) do
  contents[#contents + 1] = ('- [%s](#%s)'):format(topic[1], anchor(topic[1]))
  out[#out + 1] = '## ' .. topic[1]
  for i = 2, #topic do
    for _, entry in ipairs(by_file[topic[i]] or {}) do
      if entry.names and not written[entry] then
        write_function(out, entry)
        written[entry] = true
      elseif entry.class then
        write_class(out, entry)
      end
    end
  end
end

return { text = head .. table.concat(contents, '\n') .. '\n\n' .. table.concat(out, '\n\n') .. '\n',
         written = written }
