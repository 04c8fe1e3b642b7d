-- module.lua - nn.class: objects that own parameters, in the order in which these were assigned.
local ul = require 'ulysses'
local hash = require 'ulysses.hash'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'

-- Fields live in a table of their own, so that every assignment is seen: the order of parameters
-- must not depend on pairs(), and a tensor that a module holds must outlive the scope of the call.
-- NAMES lists the fields in that order, KNOWN has them as a set, PARAMETERS those that are trained.
local FIELDS, NAMES, KNOWN, PARAMETERS = {}, {}, {}, {}

local Module = {}
Module.__index = Module

local function is_module(value) return type(value) == 'table' and rawget(value, FIELDS) ~= nil end

local function assign(self, name, value)
  local known = rawget(self, KNOWN)
  if value ~= nil and not known[name] then
    table.insert(rawget(self, NAMES), name)
    known[name] = true
  end
  if ul.is_tensor(value) then
    value:keep()
    local parameters = rawget(self, PARAMETERS)
    parameters[name] = parameters[name] or value.requires_grad
  end
  -- Numbered fields are plain ones as well, for # and ipairs() look nowhere else.
  if type(name) == 'number' then rawset(self, name, value) end
  rawget(self, FIELDS)[name] = value
end

local function call(self, ...)
  return ul.scoped(self.class_name, self.forward, self, ...)
end

--- A class of modules: give it `init` and `forward`. Calling the class makes an instance, calling
--- the instance runs `forward` in a scope. What it does not define itself it has from `parent`.
---@param name string
---@param parent table? another class
---@return table
local function class(name, parent)
  if parent ~= nil and not (type(parent) == 'table' and rawget(parent, 'instances')) then
    raise("nn.class '%s': the parent is no class", name)
  end
  local new = setmetatable({ class_name = name }, {
    __index = parent or Module,
    __call = function(self, ...)
      local instance = setmetatable(
        { [FIELDS] = {}, [NAMES] = {}, [KNOWN] = {}, [PARAMETERS] = {} }, self.instances)
      if self.init then self.init(instance, ...) end
      return instance
    end,
  })
  new.instances = {
    __index = function(instance, field)
      local value = rawget(instance, FIELDS)[field]
      if value == nil then return new[field] end
      return value
    end,
    __names = function(instance)
      local names = {}
      for _, field in ipairs(rawget(instance, NAMES)) do
        if rawget(instance, FIELDS)[field] ~= nil then names[#names + 1] = field end
      end
      return names, new
    end,
    __newindex = assign,
    __call = call,
    __tostring = Module.describe_tree,
  }
  return new
end

-- Appends { name, tensor, owner, field } for all parameters below `module`, each tensor once.
local function collect(module, prefix, found, seen)
  for _, name in ipairs(rawget(module, NAMES)) do
    local value = rawget(module, FIELDS)[name]
    if is_module(value) then
      collect(value, prefix .. name .. '.', found, seen)
    elseif ul.is_tensor(value) then
      if rawget(module, PARAMETERS)[name] and not seen[value] then
        seen[value] = true
        found[#found + 1] = { prefix .. name, value, module, name }
      end
    elseif type(value) == 'table' and getmetatable(value) == nil then
      for _, inner in pairs(value) do
        if is_module(inner) then
          raise('%s.%s is a plain table that holds modules, whose parameters nobody would find; '
                .. 'use nn.List', module.class_name, tostring(name))
        end
      end
    end
  end
  return found
end

--- Iterates over name, parameter, the module that owns it and its name there, in assignment order.
--- A tensor that occurs twice (tied weights) comes once, where it was assigned first.
function Module:named_parameters()
  local found, i = collect(self, '', {}, {}), 0
  return function()
    i = i + 1
    if found[i] then return unpack(found[i]) end
  end
end

--- The parameters, as a list.
function Module:parameters()
  local list = {}
  for _, parameter in self:named_parameters() do list[#list + 1] = parameter end
  return list
end

--- How many numbers the parameters hold.
function Module:n_parameters()
  local n = 0
  for _, parameter in self:named_parameters() do n = n + parameter:numel() end
  return n
end

--- Iterates over name and module, itself ('') first.
function Module:named_modules()
  local found = {}
  local function visit(module, name)
    found[#found + 1] = { name, module }
    for _, field in ipairs(rawget(module, NAMES)) do
      local value = rawget(module, FIELDS)[field]
      if is_module(value) then visit(value, (name == '' and '' or name .. '.') .. field) end
    end
  end
  visit(self, '')
  local i = 0
  return function()
    i = i + 1
    if found[i] then return unpack(found[i]) end
  end
end

--- Casts every parameter, in place; tied ones stay tied.
---@param dtype string
function Module:to(dtype)
  local cast = {}
  for _, module in self:named_modules() do
    local fields = rawget(module, FIELDS)
    for _, name in ipairs(rawget(module, NAMES)) do
      local value = fields[name]
      if ul.is_tensor(value) and rawget(module, PARAMETERS)[name] and value:dtype() ~= dtype then
        cast[value] = cast[value] or value:detach():to(dtype):requires_grad_(value.requires_grad)
        module[name] = cast[value]
      end
    end
  end
  return self
end

--- Draws all parameters anew. What one gets depends on the seed and its own name alone, not on what
--- else the model has.
---@param given { seed: integer }
function Module:init_weights(given)
  local read = options.read('init_weights', given, { seed = 0 })
  local seed, next_key = ul.random_state()
  ul.no_grad(function()
    for name, parameter, owner, field in self:named_parameters() do
      ul.set_random_state(read.seed, (hash.text(name) + 1) * 2 ^ 20)
      owner:init_parameter(field, parameter)
    end
  end)
  ul.set_random_state(seed, next_key)
  return self
end

--- Draws the parameters of this module itself from the generator; constructors end with it.
function Module:reset_parameters()
  ul.no_grad(function()
    for _, name in ipairs(rawget(self, NAMES)) do
      if rawget(self, PARAMETERS)[name] then self:init_parameter(name, self[name]) end
    end
  end)
end

--- Sets one of the module's own parameters to what it starts from. A class without an answer of its
--- own leaves it as it was made.
function Module:init_parameter() end

--- What the printed tree says behind the class's name.
function Module:describe() return '' end

function Module:describe_tree()
  local lines = {}
  local function visit(module, name, depth)
    local text = module.class_name .. module:describe()
    if name ~= '' then text = name .. ': ' .. text end
    lines[#lines + 1] = ('%s%s  (%d)'):format(('  '):rep(depth), text, module:n_parameters())
    for _, field in ipairs(rawget(module, NAMES)) do
      local value = rawget(module, FIELDS)[field]
      if is_module(value) then visit(value, field, depth + 1) end
    end
  end
  visit(self, '', 0)
  return table.concat(lines, '\n')
end

--- A tensor that is trained, not yet filled.
---@vararg integer sizes
local function parameter(...) return ul.empty(...):requires_grad_() end

return { class = class, parameter = parameter, is_module = is_module }
