-- recipe.lua - ul.recipe: a table of settings, a way to override its leaves, and what trains.
local raise = require 'ulysses.raise'
local suggest = require 'ulysses.suggest'

local Recipe = {}
Recipe.__index = Recipe

-- Leaves of nested tables as { ['model.dim'] = 256, ... }, and the names of inner tables.
local function leaves(settings, prefix, found, inner)
  for key, value in pairs(settings) do
    local path = prefix .. key
    if type(value) == 'table' then
      inner[path] = true
      leaves(value, path .. '.', found, inner)
    else
      found[path] = value
    end
  end
  return found, inner
end

local function sorted_keys(t)
  local names = {}
  for name in pairs(t) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local suffixes = { K = 2 ^ 10, M = 2 ^ 20, G = 2 ^ 30 }

-- The value that `text` stands for, of the same type as `default`; nil when it is none.
local function parse(text, default)
  if type(default) == 'number' then
    local number, suffix = text:match '^(.-)([KMG]?)$'
    number = tonumber(number)
    return number and number * (suffixes[suffix] or 1)
  elseif type(default) == 'boolean' then
    if text == 'true' then return true end
    if text == 'false' then return false end
    return nil
  end
  return text
end

-- A copy on which reading a name that is not there is an error.
local function strict(settings, recipe, prefix)
  local copy = {}
  for key, value in pairs(settings) do
    copy[key] = type(value) == 'table' and strict(value, recipe, prefix .. key .. '.') or value
  end
  return setmetatable(copy, {
    __index = function(_, key)
      raise("%s: no setting '%s%s'%s", recipe, prefix, tostring(key),
            suggest(tostring(key), sorted_keys(settings)))
    end,
  })
end

local function copy_of(settings)
  local copy = {}
  for key, value in pairs(settings) do
    copy[key] = type(value) == 'table' and copy_of(value) or value
  end
  return copy
end

local function set(settings, path, value)
  local outer, last = path:match '^(.*)%.(.-)$'
  for name in (outer or ''):gmatch '[^.]+' do settings = settings[name] end
  settings[last or path] = value
end

-- The value for the leaf at `path`, checked and converted; raises the sentence alone.
function Recipe:value_for(path, value)
  local known, inner = leaves(self.settings, '', {}, {})
  local names = sorted_keys(known)
  if inner[path] then
    for _, name in ipairs(names) do
      if name:sub(1, #path + 1) == path .. '.' then
        error(('%s: %s is a table; set one of its leaves, such as %s'):format(self.name, path,
                                                                             name), 0)
      end
    end
  end
  local default = known[path]
  if default == nil then
    error(("%s: no setting '%s'%s"):format(self.name, path, suggest(path, names)), 0)
  end
  local parsed = value
  if type(value) == 'string' then parsed = parse(value, default) end
  if type(parsed) ~= type(default) then
    error(("%s: %s wants a %s, got '%s'"):format(self.name, path, type(default), tostring(value)),
          0)
  end
  return parsed
end

--- The settings with `overrides` applied: a list of 'key=value' strings, or a table like the
--- recipe's own. Only leaves that the recipe has may be set, to values of the type they have.
---@param overrides table|nil
---@return table
function Recipe:configure(overrides)
  local settings = copy_of(self.settings)
  for _, argument in ipairs(overrides or {}) do
    local path, value = argument:match '^([^=]+)=(.*)$'
    if not path then
      error(("%s: '%s' is not of the form key=value"):format(self.name, argument), 0)
    end
    set(settings, path, self:value_for(path, value))
  end
  local named = {}
  for key, value in pairs(overrides or {}) do
    if type(key) == 'string' then named[key] = value end
  end
  local values = leaves(named, '', {}, {})
  for _, path in ipairs(sorted_keys(values)) do
    set(settings, path, self:value_for(path, values[path]))
  end
  return strict(settings, self.name, '')
end

-- What --help prints: the table as its author wrote it, comments and all.
function Recipe:help()
  local file = io.open(self.path)
  local source = file and file:read '*a' or ''
  if file then file:close() end
  return ('%s: settings, each to be overridden by key=value\n%s'):format(
    self.name, source:match "ul%.recipe%s*['\"][^'\"]*['\"]%s*(%b{})" or '')
end

--- Ends a recipe's file. Where the file runs as a script, reads the command line and trains;
--- where it is required, does nothing. Returns the recipe.
function Recipe:main()
  if not arg or arg[0] ~= self.path then return self end
  for _, argument in ipairs(arg) do
    if argument == '--help' or argument == '-h' then
      print(self:help())
      return self
    end
  end
  local ok, settings = pcall(self.configure, self, arg)
  if not ok then
    io.stderr:write(settings, '\n')
    os.exit(2)
  end
  self.train(settings)
  return self
end

--- ul.recipe 'name' { settings }
---@param name string
---@return fun(settings: table): table
return function(name)
  local path = debug.getinfo(2, 'S').source:gsub('^@', '')
  return function(settings)
    return setmetatable({ name = name, settings = settings, path = path }, Recipe)
  end
end
