-- entry.lua - what is typed at the prompt: whole, and as a function.
local keep_locals = require 'ulysses.keep_locals'

local entry = {}

local function ends_early(problem) return problem and problem:find "near '<eof>'$" and true end

--- A function to be called with one that returns its arguments: an expression goes through it, for
--- `return f(x)` would leave no frame for errors to name. Else nil, what is wrong, and whether more
--- lines may mend that.
---@param text string
---@return function?
---@return string? problem
---@return boolean? incomplete
function entry.compile(text)
  text = text:gsub('^%s*=', '')
  local f, as_value = loadstring('return ' .. text, '=stdin')
  if f then
    return loadstring('return (...)(' .. text .. ')', '=stdin')
      or loadstring('return (...)(' .. text .. '\n)', '=stdin') or f -- it ends with a comment
  end
  local problem
  f, problem = loadstring(text, '=stdin')
  if f then return loadstring(keep_locals(text), '=stdin') or f end
  return f, problem, ends_early(problem) or ends_early(as_value)
end

--- A whole entry, of several lines where the first ones are incomplete; false after Ctrl-C, nil at
--- the end.
---@param line table core.line or its like
---@param prompt string
---@return string|false|nil text
---@return function? f
---@return string? problem
function entry.read(line, prompt)
  local text = line.read(prompt)
  if not text or text:find '^%s*[?:]' then return text end
  local f, problem, incomplete = entry.compile(text)
  while incomplete do
    local more = line.read '..> '
    if more == false then return false end
    if more == nil then break end
    text = text .. '\n' .. more
    f, problem, incomplete = entry.compile(text)
  end
  return text, f, problem
end

return entry
