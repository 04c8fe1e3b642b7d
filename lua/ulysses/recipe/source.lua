-- source.lua - reads a recipe's file as its author wrote it: order, spelling and comments of the
-- settings, which the table itself no longer has.

-- Where a string or long bracket that begins at `at` ends, or nil.
local function skip_string(text, at)
  local level = text:match('^%[(=*)%[', at)
  if level then
    local _, last = text:find(']' .. level .. ']', at, true)
    return (last or #text) + 1
  end
  local quote = text:match('^[\'"]', at)
  if not quote then return nil end
  local i = at + 1
  while i <= #text and text:sub(i, i) ~= quote do
    i = i + (text:sub(i, i) == '\\' and 2 or 1)
  end
  return i + 1
end

-- The token at `at`, that is no space: its kind, where it ends, and what a comment says.
local function token(text, at)
  if text:find('^%-%-%[=*%[', at) then
    local stop = skip_string(text, at + 2)
    return 'comment', stop, text:sub(at, stop - 1):match '^%-%-%[=*%[%s*(.-)%s*%]=*%]$'
  elseif text:find('^%-%-', at) then
    local comment, stop = text:match('^%-%-[ \t]*([^\n]*)()', at)
    return 'comment', stop, comment:match '^(.-)%s*$'
  end
  local stop = skip_string(text, at)
  if stop then return 'string', stop end
  stop = text:match('^[%a_][%w_]*()', at)
  if stop then return 'name', stop end
  return 'symbol', text:match('^[=~<>]=()', at) or at + 1
end

local Walk = {}
Walk.__index = Walk

-- Of several fields that begin on a line each gets its part of a comment behind them, where that
-- has as many, with ';' between them: the last part is left.
function Walk:share_out(comment)
  local fields, parts = {}, {}
  for i, field in ipairs(self.of_line) do -- a table that begins here is none of them
    local inner = self.of_line[i + 1]
    if not inner or inner.path:sub(1, #field.path + 1) ~= field.path .. '.' then
      fields[#fields + 1] = field
    end
  end
  for part in (comment .. ';'):gmatch '%s*(.-)%s*;' do parts[#parts + 1] = part end
  if #fields < 2 or #parts ~= #fields or fields[#fields].comment then return comment end
  for i = 1, #fields - 1 do fields[i].comment = parts[i] end
  return parts[#parts]
end

-- A comment behind a field on its line belongs to it, and so do lines that go on below the comment.
function Walk:comment(comment, column)
  local before = self.last_comment
  local entry
  if self.last_field and self.last_field.line == self.line then
    entry, comment = self.last_field, self:share_out(comment)
  elseif before and before.line == self.line - 1 and before.column == column then
    entry = before.entry
  end
  if entry then
    entry.comment = entry.comment and entry.comment .. ' ' .. comment or comment
  else
    self.entries[#self.entries + 1] = { heading = comment }
  end
  self.last_comment = entry and { entry = entry, line = self.line, column = column }
end

-- A brace or bracket opens: the value of a field, the table itself, or something within a value.
function Walk:open(symbol)
  local field = symbol == '{' and self.field and not self.field.started and self.field
  self.stack[#self.stack + 1] = {
    prefix = #self.stack == 0 and '' or field and field.path .. '.',
  }
end

-- The field that is being read ends before `at`.
function Walk:close(at)
  local field = self.field
  if field and field.depth == #self.stack then
    field.literal = self.text:sub(field.from, at - 1):match '^%s*(.-)%s*$'
    self.field = nil
  end
end

-- name = : a field, where one may begin.
function Walk:begin(name, at)
  self.field = { path = self.stack[#self.stack].prefix .. name, from = at, depth = #self.stack }
  self.last_field = self.field
  if self.of_line.line ~= self.line then self.of_line = { line = self.line } end
  self.of_line[#self.of_line + 1] = self.field
  self.entries[#self.entries + 1] = self.field
end

function Walk:symbol(symbol, at)
  if symbol == '{' or symbol == '(' or symbol == '[' then
    self:open(symbol)
  elseif symbol == '}' or symbol == ')' or symbol == ']' then
    self:close(at)
    self.stack[#self.stack] = nil
  elseif symbol == ',' or symbol == ';' then
    self:close(at)
  end
end

-- Reads from the opening brace at `at` to the one that closes it.
function Walk:run(at)
  local text, previous, before = self.text, '', ''
  repeat
    local start = text:match('^[ \t\r]*()', at)
    if start > #text then return end
    if text:sub(start, start) == '\n' then
      self.line, self.line_start, at = self.line + 1, start + 1, start + 1
    else
      local kind, stop, comment = token(text, start)
      local piece = text:sub(start, stop - 1)
      if kind == 'comment' then
        if comment then self:comment(comment, start - self.line_start) end
      else
        local top = self.stack[#self.stack]
        if piece == '=' and top.prefix and before:find '^[{,;]$' then
          self:begin(previous, stop)
        else
          if kind == 'symbol' then self:symbol(piece, start) end
          if self.field then self.field.started = true end
        end
        previous, before = piece, previous
        if self.last_field then self.last_field.line = self.line end
      end
      self.line = self.line + select(2, piece:gsub('\n', ''))
      at = stop
    end
  until #self.stack == 0
end

-- The comment that a file begins with, without the file's own name.
local function opening_comment(text)
  local lines = {}
  for line in text:gmatch '([^\n]*)\n' do
    if line:sub(1, 2) == '--' then
      lines[#lines + 1] = line:gsub('^%-%- ?', '')
    elseif line:sub(1, 2) ~= '#!' then
      break
    end
  end
  if lines[1] then lines[1] = lines[1]:gsub('^[%w_]+%.lua %- ', '') end
  return lines
end

--- What can be read about the settings of recipe `name`, whose table begins at `line` or below.
--- Each entry is { path =, literal =, comment = } or { heading = a comment of its own }.
---@param text string the source
---@param name string
---@param line integer
---@return { about: string[], entries: table[] }
local function parse(text, name, line)
  local from = 1
  for _ = 2, line do from = (text:find('\n', from, true) or #text) + 1 end
  local quoted = name:gsub('%W', '%%%0')
  local _, at = text:find("recipe%s*%(?%s*['\"]" .. quoted .. "['\"]%s*%)?%s*{", from)
  local walk = setmetatable({ text = text, entries = {}, stack = {}, of_line = {}, line = 1,
                              line_start = 1 }, Walk)
  if at then walk:run(at) end
  return { about = opening_comment(text), entries = walk.entries }
end

return { parse = parse }
