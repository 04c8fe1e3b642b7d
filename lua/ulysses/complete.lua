-- complete.lua - which names may follow at the end of a line that is being typed.
--
-- Nothing that was typed is run: names, fields and literal indices are followed as far as they lead
-- to values without calling a function. A metatable whose __index is a function is left alone,
-- unless it also has __names(value), which promises that asking it does no harm, and returns the
-- names that it answers to and, if there is one, the table that answers for others.
local core = require 'ulysses.core'
local lexer = require 'ulysses.lexer'

local keywords = lexer.keywords
local tensor_fields = { 'shape', 'grad', 'requires_grad', 'is_leaf' }

-- ---- what values have ----

-- The names a metatable answers to and the table behind it, where asking does no harm.
local function answers(value)
  local meta = debug.getmetatable(value)
  if type(meta) ~= 'table' then return {}, nil end
  local names = rawget(meta, '__names')
  if names then
    local ok, list, behind = pcall(names, value)
    return ok and list or {}, ok and behind or nil
  end
  local index = rawget(meta, '__index')
  return {}, type(index) == 'table' and index or nil
end

-- value[key], or nil; `depth` ends chains of metatables that lead in a circle.
local function field(value, key, depth)
  depth = depth or 0
  if core.is_tensor(value) then
    if type(key) == 'number' or key == 'grad' then return value end -- a tensor like it
    return core.methods[key]
  end
  if depth > 20 then return nil end
  if type(value) == 'table' and rawget(value, key) ~= nil then return rawget(value, key) end
  local names, behind = answers(value)
  for _, name in ipairs(names) do
    if name == key then
      local ok, found = pcall(function() return value[key] end)
      if ok and found ~= nil then return found end
    end
  end
  return behind and field(behind, key, depth + 1)
end

-- Collects the string keys of a value and of what stands behind it.
local function keys(value, found, depth)
  if core.is_tensor(value) then
    for name in pairs(core.methods) do found[name] = true end
    for _, name in ipairs(tensor_fields) do found[name] = true end
    return found
  end
  if depth > 20 then return found end
  if type(value) == 'table' then
    for key in next, value do
      if type(key) == 'string' then found[key] = true end
    end
  end
  local names, behind = answers(value)
  for _, name in ipairs(names) do
    if type(name) == 'string' then found[name] = true end
  end
  return behind and keys(behind, found, depth + 1) or found
end

local function callable(value)
  local meta = debug.getmetatable(value)
  return type(value) == 'function'
    or (type(meta) == 'table' and rawget(meta, '__call') ~= nil)
end

-- ---- from tokens to a value ----

local opening = { [']'] = '[', [')'] = '(' }

-- The index of the bracket that the one at index i closes.
local function matching(tokens, i)
  local depth = 0
  for k = i, 1, -1 do
    local text = tokens[k].kind == 'symbol' and tokens[k].text
    if text == ']' or text == ')' or text == '}' then depth = depth + 1 end
    if text == '[' or text == '(' or text == '{' then depth = depth - 1 end
    if depth == 0 then return tokens[k].text == opening[tokens[i].text] and k or nil end
  end
end

-- Whether the token at index i may end something that is called or indexed.
local function ends_value(tokens, i)
  local token = tokens[i]
  return token and ((token.kind == 'name' and not keywords[token.text]) or token.kind == 'string'
                    or token.text == ']' or token.text == ')')
end

local value_of

-- The value of name, string or (value) at index i, which nothing stands before.
local function primary(tokens, i, environment)
  local token = tokens[i]
  if token.kind == 'string' then return '' end
  if token.kind == 'name' then return field(environment, token.text) end
  local from = matching(tokens, i)
  if not from or from == i - 1 then return nil end
  local value, first = value_of(tokens, i - 1, environment)
  return first == from + 1 and value or nil
end

-- A literal index between brackets.
local function literal(tokens, from, to)
  local token = tokens[from]
  if from ~= to or not token then return nil end
  if token.kind == 'number' then return tonumber(token.text) end
  return token.kind == 'string' and token.text:sub(2, -2) or nil
end

-- The value of the names and indices that end at index i, and the index at which they begin.
function value_of(tokens, i, environment)
  if not ends_value(tokens, i) then return nil, i end
  local token, before = tokens[i], tokens[i - 1]
  local separator = before and before.kind == 'symbol' and before.text
  if token.kind == 'name' and separator == '.' then
    local value, first = value_of(tokens, i - 2, environment)
    if value == nil then return nil, first end
    return field(value, token.text), first
  elseif token.kind == 'name' then
    if separator == ':' then return nil, i end
    return primary(tokens, i, environment), i
  elseif token.text == ']' then
    local from = matching(tokens, i)
    local key = from and literal(tokens, from + 1, i - 1)
    if key == nil or not ends_value(tokens, from - 1) then return nil, i end
    local value, first = value_of(tokens, from - 1, environment)
    if value == nil then return nil, first end
    return field(value, key), first
  end
  local from = token.kind == 'string' and i or matching(tokens, i)
  if not from or ends_value(tokens, from - 1) then return nil, i end -- a call: not made
  return primary(tokens, i, environment), from
end

-- ---- candidates ----

-- The names among `found` that begin with `word`, sorted. Those that begin with _ are private: they
-- come when they are asked for.
local function matches(found, word, accept)
  local list = {}
  for name in pairs(found) do
    if name:sub(1, #word) == word and (word ~= '' or name:sub(1, 1) ~= '_') and accept(name) then
      list[#list + 1] = name
    end
  end
  table.sort(list)
  return list
end

local function is_name(text) return text:find '^[%a_][%w_]*$' and not keywords[text] end

local function complete(line, environment)
  local tokens = lexer.tokens_of(line)
  local n = #tokens
  local last = tokens[n]
  if last and last.open then
    -- t['na: a key of t
    local bracket = tokens[n - 1]
    if last.kind ~= 'string' or not bracket or bracket.text ~= '[' then return #line + 1, {} end
    local value = value_of(tokens, n - 2, environment)
    if value == nil or core.is_tensor(value) then return last.at + 1, {} end
    return last.at + 1, matches(keys(value, {}, 0), last.text:sub(2), function(name)
      return not name:find '[\'"\\%c]'
    end)
  end

  local word, start = '', #line + 1
  if last and last.at + #last.text == #line + 1 and last.kind ~= 'symbol' then
    if last.kind ~= 'name' then return start, {} end
    word, start, n = last.text, last.at, n - 1
  end
  local separator = tokens[n] and tokens[n].kind == 'symbol' and tokens[n].text
  if separator ~= '.' and separator ~= ':' then
    local found = keys(environment, {}, 0)
    if word ~= '' then
      for name in pairs(keywords) do found[name] = true end
    end
    return start, matches(found, word, function(name) return is_name(name) or keywords[name] end)
  end
  local value = value_of(tokens, n - 1, environment)
  if value == nil then return start, {} end
  return start, matches(keys(value, {}, 0), word, function(name)
    return is_name(name) and (separator == '.' or callable(field(value, name)))
  end)
end

--- Where the word that ends `line` begins (from 1), and the names that it may become, sorted.
--- Fields, methods after a colon, keys after [' and, where nothing stands before the word, globals
--- and keywords. Never raises an error.
---@param line string up to the cursor
---@param environment? table of globals, _G
---@return integer start
---@return string[] candidates
return function(line, environment)
  local ok, start, list = pcall(complete, line, environment or _G)
  if ok then return start, list end
  return #line + 1, {}
end
