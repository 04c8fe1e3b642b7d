-- help.lua - ul.help 'name', and the index that it looks into.
--
-- The index is made when it is first asked for, from the --- comments of the sources and those of
-- meta/*.lua, which describe the C functions.
local core = require 'ulysses.core'
local annotations = require 'ulysses.annotations'
local suggest = require 'ulysses.suggest'

local folder = debug.getinfo(1, 'S').source:match '^@(.*[/\\])help%.lua$' or './'
local meta_files = { 'create', 'tensor', 'shape', 'elementwise', 'reduce', 'layers', 'engine',
                     'group', 'core' }

-- Classes that the library keeps to itself.
local internal = { Events = true, Lines = true, Log = true, Weights = true, Reader = true,
                   Layer = true, Writer = true, streamed = true }

-- What objects of a class are called in signatures.
local spoken = { Tensor = 'x', Ops = 'x', Optimizer = 'optim', Module = 'model' }

-- ---- the index ----

local function source_of(module)
  local path = folder .. module:gsub('^ulysses%.?', ''):gsub('%.', '/')
  for _, name in ipairs { path .. '.lua', path .. '/init.lua' } do
    local file = io.open(name)
    if file then
      file:close()
      return name
    end
  end
end

-- Entries by where their code is, so that a function leads to its comment.
local function place(path, line) return path:sub(#folder + 1) .. ':' .. line end

local function place_of(f)
  local info = debug.getinfo(f, 'S')
  local path = info.source:match '^@(.*)$'
  return path and path:sub(1, #folder) == folder and place(path, info.linedefined) or nil
end

local function add_name(index, name, entry)
  index.names[name] = index.names[name] or {}
  for _, known in ipairs(index.names[name]) do
    if known == entry then return end
  end
  table.insert(index.names[name], entry)
end

-- All that an entry may be called: whole, without 'ul.', and its last word alone.
local function add(index, entry, name)
  entry.names = entry.names or {}
  table.insert(entry.names, name)
  add_name(index, name, entry)
  add_name(index, (name:gsub('^ul%.', '')), entry)
  add_name(index, name:match '[%w_]+$', entry)
  if name:find ':' then add_name(index, (name:gsub(':', '.')), entry) end
  index.list[#index.list + 1] = { name = name, entry = entry }
end

local function add_method(index, entry, class)
  local separator = entry.owner == 'Ops' and ':' or entry.separator
  add(index, entry, class .. separator .. entry.name)
  local variable = spoken[class] or class:lower()
  add_name(index, variable .. separator .. entry.name, entry)
end

local function read(index, path)
  for _, entry in ipairs(annotations(path)) do
    if entry.line then index.places[place(path, entry.line)] = entry end
    if entry.class and not index.classes[entry.class] and not internal[entry.class] then
      index.classes[entry.class] = entry
      add_name(index, entry.class, entry)
    end
    index.all[#index.all + 1] = entry
  end
end

-- Names of C functions and of the methods of classes are those in the annotations.
local function name_declared(index)
  for _, entry in ipairs(index.all) do
    local owner = entry.owner
    if owner == 'Ops' then
      if core.methods[entry.name] then add_method(index, entry, 'Tensor') end
      add(index, entry, 'F.' .. entry.name)
    elseif owner == 'ul' or owner == 'F' then
      add(index, entry, owner .. '.' .. entry.name)
    elseif owner and owner:find '^%u' and entry.name ~= 'init' and not internal[owner] then
      add_method(index, entry, owner)
      if not index.classes[owner] then
        index.classes[owner] = { class = owner, text = {} }
        add_name(index, owner, index.classes[owner])
      end
    end
  end
end

-- Names of the library's own functions are those under which `ul` has them.
local function name_reachable(index, value, name, seen)
  local meta = debug.getmetatable(value)
  local f = type(value) == 'function' and value
    or (type(value) == 'table' and type(meta) == 'table' and rawget(meta, '__call'))
  local init = type(value) == 'table' and rawget(value, 'class_name') and rawget(value, 'init')
  local entry = index.places[place_of(init or f or print) or '']
  if entry then
    add(index, entry, name)
    index.values[value] = entry
    if init then
      entry.constructs = value.class_name
      index.constructors[value.class_name] = entry
    end
  end
  if type(value) ~= 'table' or seen[value] or rawget(value, 'class_name') then return end
  seen[value], index.tables[value] = true, name
  for key, inner in next, value do
    if type(key) == 'string' then name_reachable(index, inner, name .. '.' .. key, seen) end
  end
end

local made

local function index_of()
  if made then return made end
  local ul = require 'ulysses'
  local index = { names = {}, list = {}, places = {}, classes = {}, all = {}, values = {},
                  constructors = {}, tables = {} }
  for _, part in ipairs(getmetatable(ul).__names()) do
    local _ = ul[part]
  end
  for _, name in ipairs(meta_files) do read(index, folder .. 'meta/' .. name .. '.lua') end
  local modules = {}
  for module in pairs(package.loaded) do
    if module:find '^ulysses' and source_of(module) then modules[#modules + 1] = module end
  end
  table.sort(modules)
  for _, module in ipairs(modules) do read(index, source_of(module)) end
  name_declared(index)
  local seen = { [core.functional] = true }
  name_reachable(index, ul, 'ul', seen)
  for name, f in pairs(core.functional) do
    local entry = (index.names['F.' .. name] or {})[1]
    index.values[f] = entry
    if entry then
      add_name(index, 'ul.F.' .. name, entry)
      if rawget(ul, name) then add(index, entry, 'ul.' .. name) end
    end
  end
  for name, f in pairs(core.methods) do
    index.values[f] = (index.names['Tensor:' .. name] or {})[1]
  end
  for name, f in next, ul do
    if type(f) == 'function' then
      index.values[f] = index.values[f] or (index.names['ul.' .. name] or {})[1]
    end
  end
  table.sort(index.list, function(a, b) return a.name < b.name end)
  made = index
  return index
end

-- ---- text ----

-- As wide as the terminal, as far as that can be read.
local function width() return math.max(60, math.min(100, core.system.columns() or 80)) - 2 end

local TEXT = 36 -- the column of what is said of parameters

-- Paragraphs filled to `room` as a list of lines; what is indented or between ``` stays as it is.
local function fill(lines, indent, room)
  local out, paragraph, fenced = {}, {}, false
  local function flush()
    local line = ''
    for word in table.concat(paragraph, ' '):gmatch '%S+' do
      if line ~= '' and #line + 1 + #word > room then
        out[#out + 1], line = indent .. line, ''
      end
      line = line == '' and word or line .. ' ' .. word
    end
    if line ~= '' then out[#out + 1] = indent .. line end
    paragraph = {}
  end
  for _, line in ipairs(lines) do
    if line:find '^```' then
      flush()
      fenced = not fenced
      if fenced and out[#out] ~= '' then out[#out + 1] = '' end
    elseif fenced or line:find '^%s' or line == '' then
      flush()
      out[#out + 1] = line == '' and '' or indent .. (fenced and '    ' or '') .. line
    else
      paragraph[#paragraph + 1] = line
    end
  end
  flush()
  return out
end

local function prose(entry) return table.concat(fill(entry.text, '  ', width() - 2), '\n') end

local function display(param) return param.name == 'given' and 'options' or param.name end

local function signature(entry, name)
  local parts, skip = {}, name:find ':' and entry.separator == '.' and 1 or 0
  local given = {}
  for _, param in ipairs(entry.params) do given[param.name] = param end
  for argument in entry.arguments:gmatch '[^,%s]+' do
    parts[#parts + 1] = display(given[argument] or { name = argument })
  end
  for _ = 1, skip do table.remove(parts, 1) end
  local class, method = name:match '^(%u%w+)([.:].*)$'
  if class then name = (spoken[class] or class:lower()) .. method end
  local text = name .. '(' .. table.concat(parts, ', ') .. ')'
  local results = {}
  for i, result in ipairs(entry.returns) do
    results[i] = (result.name and result.name .. ': ' or '') .. result.type
  end
  if entry.constructs then results = { entry.constructs } end
  return #results > 0 and text .. ' -> ' .. table.concat(results, ', ') or text
end

local function described(field)
  local text = field.text
  if not field.default then return text end
  return (text ~= '' and text .. ', ' or '') .. 'default ' .. field.default
end

-- Rows of name, type and text; the fields of an option table follow it.
local function rows(index, params, indent, out)
  for _, param in ipairs(params) do
    local kind = param.fields and 'table' or param.type
    if param.optional then kind = kind .. '?' end
    local head = ('%s%-13s %s'):format(indent, display(param), kind)
    local text = described(param)
    local lines = text == '' and {} or fill({ text }, '', width() - TEXT)
    for i, line in ipairs(lines) do lines[i] = (' '):rep(TEXT) .. line end
    if #lines > 0 and #head < TEXT - 1 then lines[1] = head .. lines[1]:sub(#head + 1)
    else table.insert(lines, 1, head) end
    for _, line in ipairs(lines) do out[#out + 1] = line end
    local class = index.classes[(param.type:gsub('%?$', ''))]
    local fields = param.fields
      or (class and (class.class:find 'Options$' or class.class:find 'Settings$'
                     or class.class == 'Function') and class.fields)
    if fields then rows(index, fields, indent .. '  ', out) end
  end
  return out
end

local function other_names(entry)
  local names = {}
  for i = 2, #entry.names do names[#names + 1] = (entry.names[i]:gsub('^Tensor:', 'x:')) end
  return #names > 0 and '\nAlso ' .. table.concat(names, ', ') .. '.' or ''
end

local function function_text(index, entry)
  local parts = { signature(entry, entry.names[1]) }
  local text = prose(entry)
  if text ~= '' then parts[#parts + 1] = text end
  local params = {}
  for i, param in ipairs(entry.params) do
    local is_self = i == 1 and entry.separator == '.' and entry.names[1]:find ':'
    if not is_self then params[#params + 1] = param end
  end
  if #params > 0 then parts[#parts + 1] = table.concat(rows(index, params, '  ', {}), '\n') end
  local results = {}
  for _, result in ipairs(entry.returns) do
    if result.text and result.text ~= '' then
      results[#results + 1] = { name = result.name or '->', type = result.type, text = result.text }
    end
  end
  if #results > 0 then
    parts[#parts + 1] = '  returns\n' .. table.concat(rows(index, results, '    ', {}), '\n')
  end
  return table.concat(parts, '\n\n') .. other_names(entry)
end

local function first_sentence(entry)
  local text = table.concat(entry.text, ' '):gsub('%s*```.*$', '')
  return text:match '^(.-[.])%s' or text
end

-- Lines 'name  sentence' for what begins with a prefix.
local function listing(index, pattern)
  local out, seen = {}, {}
  for _, item in ipairs(index.list) do
    if item.name:find(pattern) and not seen[item.name] then
      seen[item.name] = true
      local sentence = first_sentence(item.entry)
      local room = width() - 30
      if #sentence > room then sentence = sentence:sub(1, room - 3) .. '...' end
      out[#out + 1] = (('  %-26s  %s'):format(item.name, sentence):gsub('%s+$', ''))
    end
  end
  return out
end

local function class_text(index, entry)
  local parts = { entry.class }
  local text = prose(entry)
  if text ~= '' then parts[#parts + 1] = text end
  if entry.fields then
    parts[#parts + 1] = table.concat(rows(index, entry.fields, '  ', {}), '\n')
  end
  -- The class of a table of functions is called as that is: ul.lora.
  local methods = listing(index, '^' .. entry.class .. ':')
  if #methods == 0 then methods = listing(index, '^ul%.' .. entry.class .. '%.') end
  if #methods > 0 then parts[#parts + 1] = table.concat(methods, '\n') end
  return table.concat(parts, '\n\n')
end

local function entry_text(index, entry)
  if entry.class then return class_text(index, entry) end
  return function_text(index, entry)
end

local overview = [[
ul.help 'ul'       what there is; so 'nn', 'optim', 'data', 'F', 'Tensor', 'Run'
ul.help 'matmul'   one function; so 'x:matmul', 'optim.adamw', 'nn.Linear'
ul.help(value)     the same for a function, a model, an optimizer, a tensor]]

local help = { signature = signature }

--- All that is known, for tests and the reference page: names, list, classes, values.
---@return table
function help.index() return index_of() end

--- What is known of a name such as 'ul.optim.adamw', 'x:matmul', 'nn.Linear' or 'run:steps'.
---@param name string
---@return string? text nil where there is nothing
---@return string? sentence that says so, with the nearest name
function help.text(name)
  name = name:match '^%s*%??%s*(.-)%s*$':gsub('%s*%b()$', ''):gsub('^ulysses%f[%W]', 'ul')
  if name == '' then return overview end
  local index = index_of()
  local found = index.names[name]
  if not found and name:find '^[%a_][%w_]*[:.]' then
    -- Whatever a variable is called, what follows it may be a method.
    local method, namespace = name:match '[:.]([%w_]+)$', name:match '^(.*)%.[%w_]+$'
    local known = namespace and (namespace == 'ul' or namespace:find '^ul%.' or namespace == 'F'
                                 or namespace == 'nn')
    if not known then found = index.names[method or ''] end
  end
  if name == 'ul' or name == 'F' then found = nil end
  if found then
    local texts = {}
    for _, entry in ipairs(found) do
      -- A class is made by its constructor, which has the same name.
      local made_by = entry.class and index.constructors[entry.class]
      if not made_by or entry.fields then texts[#texts + 1] = entry_text(index, entry) end
    end
    local inner = not index.classes[name] and name:find '^[%a_]+$'
      and listing(index, '^ul%.' .. name .. '%.') or {} -- of ul.data too, not of x:data alone
    if #inner > 0 then texts[#texts + 1] = table.concat(inner, '\n') end
    return table.concat(texts, '\n\n')
  end
  local prefix = name:gsub('%p', '%%%0')
  for _, pattern in ipairs { '^' .. prefix .. '%.', '^ul%.' .. prefix .. '%.' } do
    local lines = listing(index, pattern)
    if #lines > 0 then return table.concat(lines, '\n') end
  end
  if name:find '^[%a_][%w_]*$' then -- perhaps what a name begins with
    local lines = listing(index, '%f[%w_]' .. name .. '[%w_]*$')
    if #lines > 0 then return table.concat(lines, '\n') end
  end
  local names = {}
  for known in pairs(index.names) do names[#names + 1] = known end
  return nil, ("help: nothing is known of '%s'%s"):format(name, suggest(name, names))
end

-- The entry of a function of the library that has a name.
local function entry_of(index, f)
  local entry = index.values[f]
  if not entry and type(f) == 'function' then entry = index.places[place_of(f) or ''] end
  return entry and entry.names and entry or nil
end

--- 'ul.randn(...) -> Tensor' for a function of the library that has a name.
---@param f function
---@return string?
function help.signature_of(f)
  local entry = entry_of(index_of(), f)
  return entry and signature(entry, entry.names[1])
end

-- The class that a value is of, by the first of its methods that has a comment.
local function class_of(index, value)
  local meta = debug.getmetatable(value)
  local methods = type(meta) == 'table' and rawget(meta, '__index')
  if type(methods) ~= 'table' then return nil end
  for _, f in next, methods do
    local entry = type(f) == 'function' and index.places[place_of(f) or '']
    local class = entry and entry.owner and index.classes[entry.owner]
    if class then return class end
  end
end

--- What is known of a value: a function of the library, or an object of one of its classes.
---@param value any
---@return string? text
---@return string? sentence
function help.value(value)
  local index = index_of()
  local entry = entry_of(index, value)
  if require('ulysses').is_tensor(value) then entry = index.classes.Tensor end
  entry = entry or class_of(index, value)
  if entry then return entry_text(index, entry) end
  local name = index.tables[value]
  if name and name ~= 'ul' then
    return table.concat(listing(index, '^' .. name:gsub('%p', '%%%0') .. '%.'), '\n')
  end
  local class = type(value) == 'table' and debug.getmetatable(value) and value.class_name
  local constructor = index.constructors[class]
  if constructor then return entry_text(index, constructor) end
  if type(class) == 'string' then
    local lines = listing(index, '^Module:')
    if index.classes[class] then table.insert(lines, 1, class_text(index, index.classes[class])) end
    return table.concat(lines, '\n')
  end
  return nil, ('help: nothing is known of this %s'):format(type(value))
end

--- Prints what is known of a name or a value; without either, how to ask.
---@param what? any
local function ask(_, what)
  local text, sentence
  if what == nil then what = '' end
  if type(what) == 'string' then text, sentence = help.text(what)
  else text, sentence = help.value(what) end
  print(text or sentence)
end

return setmetatable(help, { __call = ask, __tostring = function() return overview end })
