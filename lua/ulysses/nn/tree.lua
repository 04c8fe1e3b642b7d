-- tree.lua - the text of a module: what it is made of, shapes, and how many numbers are trained.
local ul = require 'ulysses'
local weight_parts = require 'ulysses.nn.weight_parts'

local function count_text(module)
  local frozen, n = 0, module:n_parameters()
  for _, parameter, owner, field in module:named_parameters() do
    if not parameter.requires_grad then
      frozen = frozen + weight_parts.numel(weight_parts.of(owner, field), parameter)
    end
  end
  if frozen == 0 then return ('(%d)'):format(n) end
  return frozen == n and ('(%d, frozen)'):format(n) or ('(%d, %d frozen)'):format(n, frozen)
end

-- Dtypes and devices of the parameters, where they are not all f32 on the cpu.
local function place_text(module)
  local seen, words = {}, {}
  for _, parameter in module:named_parameters() do
    for _, word in ipairs { parameter:dtype(), parameter:device() } do
      if not seen[word] then words[#words + 1] = word end
      seen[word] = true
    end
  end
  local text = table.concat(words, ' ')
  return (text == '' or text == 'f32 cpu') and '' or '  ' .. text
end

local function tensor_text(tensor, known)
  local text = '[' .. table.concat(tensor.shape, ', ') .. ']'
  if not known[tensor] then return text .. ' buffer' end
  return tensor.requires_grad and text or text .. ', frozen'
end

-- Neighbours in a list that look alike, once: '1 to 32: Block  (4096)'.
local function join(parts, list)
  local i = 1
  while i <= #parts do
    local last = i
    while list and parts[last + 1] and parts[last + 1].text == parts[i].text do last = last + 1 end
    local name = parts[i].name
    if last > i then name = ('%s to %s'):format(name, parts[last].name) end
    parts[i].line = name .. ': ' .. parts[i].text
    i = last + 1
  end
end

local function indented(text) return (text:gsub('\n', '\n  ')) end

--- The tree that print(model) shows. What occurs twice is shown where it was assigned first.
---@param root table a module
---@param is_module fun(value: any): boolean
---@return string
return function(root, is_module)
  local known, seen = {}, {}
  for _, parameter in root:named_parameters() do known[parameter] = true end
  local function text_of(module, path)
    seen[module] = path == '' and 'the whole' or path
    local about = module:describe()
    local lines = { module.class_name .. about .. '  ' .. count_text(module) }
    local parts = {}
    for _, field in ipairs(getmetatable(module).__names(module)) do
      local value, name = module[field], (path == '' and '' or path .. '.') .. field
      local shown = is_module(value) or (ul.is_tensor(value) and about == '')
      if shown then
        local text = seen[value] and 'is ' .. seen[value]
        if not text and ul.is_tensor(value) then
          seen[value], text = name, tensor_text(value, known)
        end
        parts[#parts + 1] = { name = field, text = text or text_of(value, name) }
      end
    end
    join(parts, #module > 0)
    for _, part in ipairs(parts) do
      if part.line then lines[#lines + 1] = indented(part.line) end
    end
    return table.concat(lines, '\n  ')
  end
  local first, rest = text_of(root, ''):match '^([^\n]*)(.*)$'
  return first .. place_text(root) .. rest
end
