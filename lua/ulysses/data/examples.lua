-- examples.lua - examples to learn from, one by one: a line of JSON each, or a list of tables.
local files = require 'ulysses.data.files'
local json = require 'ulysses.json'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local tools = require 'ulysses.tools'

local examples = {}

--- What an example has under a name; a column that is null is not there.
---@param example table
---@param key string
---@return any
function examples.field(example, key)
  local value = example[key]
  if value ~= json.null then return value end
end

--- Where examples are: the files that a name or a pattern stands for, or a list.
---@param caller string
---@param from string|table[]
---@return { name: string, paths: string[]?, list: table[]? }
function examples.find(caller, from)
  if type(from) == 'table' then return { name = 'the examples', list = from } end
  if type(from) ~= 'string' then
    raise('%s: expected the name of a file or a list of examples, got a %s', caller, type(from))
  end
  return { name = from, paths = files.find(from) }
end

-- What a line that does not hold one JSON object looks like, where that is known.
local function likeness(line)
  if line:find '^\255\254' or line:find '^\254\255' or line:find '^%z?[{%[]%z?.*%z' then
    return 'is UTF-16 text, and UTF-8 is read'
  elseif line:find '\r%s*{' then
    return 'has lines that end with a carriage return alone; a line feed is needed'
  elseif line:find '^%s*%[' then
    return 'begins a list; in JSON lines each line is one object, and there is no list around them'
  elseif line:find '^%s*{%s*$' then
    return 'is a part of an object; in JSON lines each line is a whole one'
  end
end

--- Calls visit(example) for each; what is wrong is refused with its file and line.
---@param source { name: string, paths: string[]?, list: table[]? } of examples.find
---@param visit fun(example: table)
function examples.each(source, visit)
  local function at(where, ...)
    local ok, what = pcall(...)
    if ok then return end
    if type(what) == 'table' and what.refusal then refuse('%s: %s', where, tostring(what)) end
    error(what, 0)
  end
  local function checked(example)
    if type(example) ~= 'table' or example == json.null then refuse 'is no JSON object' end
    visit(example)
  end
  for i, example in ipairs(source.list or {}) do
    at(('%s: example %d'):format(source.name, i), checked, example)
  end
  for _, path in ipairs(source.paths or {}) do
    local bytes, n = files.read(path), 0
    local text = bytes:tostring()
    bytes:free()
    local from = 1
    while from <= #text do
      local stop = text:find('\n', from, true) or #text + 1
      local line = text:sub(from, stop - 1)
      from, n = stop + 1, n + 1
      at(('%s:%d'):format(path, n), function()
        if not line:find '%S' then return end
        local example, sentence = json.decode(line)
        local looks = (example == nil or line:find '^%s*%[') and likeness(line)
        if looks then refuse('%s', looks) end
        if example == nil then refuse('%s', (sentence:gsub('^line 1, ', ''))) end
        if type(example) == 'table' then tools.keep_order(example, line) end
        checked(example)
      end)
    end
  end
end

return examples
