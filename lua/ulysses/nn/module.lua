-- module.lua - nn.class: objects that own parameters, in the order in which these were assigned.
local core = require 'ulysses.core'
local ul = require 'ulysses'
local hash = require 'ulysses.hash'
local options = require 'ulysses.options'
local weight_parts = require 'ulysses.nn.weight_parts'
local raise = require 'ulysses.raise'
local tree = require 'ulysses.nn.tree'

-- Fields live in a table of their own, so that every assignment is seen: the order of parameters
-- must not depend on pairs(), and a tensor that a module holds must outlive the scope of the call.
-- NAMES lists the fields in that order, KNOWN has them as a set, PARAMETERS those that are trained,
-- or would be if they were not frozen.
local FIELDS, NAMES, KNOWN, PARAMETERS = {}, {}, {}, {}

-- Of parameters that are sharded (nn/sharded.lua) the fields are slices: what a module gets to
-- compute with is USES[field](slice).
local USES = {}

local Module = {}
Module.__index = Module

local function is_module(value) return type(value) == 'table' and rawget(value, FIELDS) ~= nil end

-- A result that is kept is a buffer, even if gradients flow through it.
local function is_trained(value)
  return ul.is_tensor(value) and value.requires_grad and value.is_leaf
end

-- A field that had been a slice is whole again. What a sharded weight is used as is gone with the
-- call, and would be trained as a weight of its own.
local function forget_slice(self, name, value)
  if is_trained(value) and core.sharded.is_whole(value) then
    raise('%s.%s: this is another module\'s weight, which is sharded; give both the same parameter '
          .. 'before :shard()', self.class_name, tostring(name))
  end
  local uses = rawget(self, USES)
  if not uses or not uses[name] then return end
  uses[name] = nil
  self.parallel = weight_parts.without(self.parallel, name)
end

local function assign(self, name, value)
  local known, parameters = rawget(self, KNOWN), rawget(self, PARAMETERS)
  if Module[name] and (is_module(value) or ul.is_tensor(value)) then
    raise("%s.%s: modules have a method of this name; choose another", self.class_name, name)
  end
  if value ~= nil and not known[name] then
    table.insert(rawget(self, NAMES), name)
    known[name] = true
  end
  forget_slice(self, name, value)
  if ul.is_tensor(value) then
    value:keep()
    parameters[name] = parameters[name] or is_trained(value)
    if parameters[name] then weight_parts.note(value, weight_parts.of(self, name)) end
  else
    parameters[name] = nil
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
---
--- Fields are assigned in `init`, one by one, for their order is that of the parameters (in
--- self.a, self.b = ... Lua assigns b first). Modules are found there, and tensors that require a
--- gradient; any other tensor is a buffer: it lives as long as it is the field's value, and is no
--- part of the model's state. Tensors that a call stores elsewhere (in a plain table, in a variable
--- outside) need :keep().
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
    __tostring = function(self) return 'class ' .. self.class_name end,
  })
  new.instances = {
    __index = function(instance, field)
      local value = rawget(instance, FIELDS)[field]
      if value == nil then return new[field] end
      local uses = rawget(instance, USES)
      if uses and uses[field] then return uses[field](value) end
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
    __tostring = function(instance) return tree(instance, is_module) end,
  }
  return new
end

-- Calls visit(module, name) for `self` ('') and all modules below it, each once, where it was
-- assigned first.
local function walk(self, visit)
  local seen = {}
  local function enter(module, name)
    if seen[module] then return end
    seen[module] = true
    visit(module, name)
    for _, field in ipairs(rawget(module, NAMES)) do
      local value = rawget(module, FIELDS)[field]
      if is_module(value) then enter(value, (name == '' and '' or name .. '.') .. field) end
    end
  end
  enter(self, '')
end

local function iterate(list)
  local i = 0
  return function()
    i = i + 1
    if list[i] then return unpack(list[i]) end
  end
end

-- Refuses a table in which nobody would look for what is to be trained.
local function check_plain(module, field, value)
  if type(value) ~= 'table' or getmetatable(value) ~= nil then return end
  for _, inner in pairs(value) do
    local what = is_module(inner) and 'modules, whose parameters' or is_trained(inner) and
      'parameters, which'
    if what then
      raise('%s.%s is a plain table that holds %s nobody would find; use nn.List or fields of '
            .. 'their own', module.class_name, tostring(field), what)
    end
  end
end

-- Lists { name, tensor, owner, field } in assignment order, each tensor once, or as often as it is
-- there: the parameters, or the other tensors.
local function collect(self, buffers, repeated)
  local found, seen = {}, {}
  -- The fields of a module in their order, with the modules below it where they stand.
  local function enter(module, prefix)
    if seen[module] then return end
    seen[module] = true
    for _, field in ipairs(rawget(module, NAMES)) do
      local value = rawget(module, FIELDS)[field]
      if is_module(value) then
        enter(value, prefix .. field .. '.')
      elseif ul.is_tensor(value) then
        local wanted = not rawget(module, PARAMETERS)[field] == buffers
        if wanted and (repeated or not seen[value]) then
          seen[value] = true
          found[#found + 1] = { prefix .. field, value, module, field }
        end
      else
        check_plain(module, field, value)
      end
    end
  end
  enter(self, '')
  return iterate(found)
end

--- Iterates over name, parameter, the module that owns it and its name there, in assignment order;
--- frozen ones are among them. A tensor that occurs twice (tied weights) comes once, where it was
--- assigned first.
function Module:named_parameters() return collect(self, false) end

--- The same for buffers: tensors that were assigned without requiring a gradient. They are no part
--- of what a checkpoint holds.
function Module:named_buffers() return collect(self, true) end

--- The parameters, as a list.
function Module:parameters()
  local list = {}
  for _, parameter in self:named_parameters() do list[#list + 1] = parameter end
  return list
end

--- How many numbers the parameters hold, where ranks share them: all ranks together.
function Module:n_parameters()
  local n = 0
  for _, parameter, owner, field in self:named_parameters() do
    n = n + weight_parts.numel(weight_parts.of(owner, field), parameter)
  end
  return n
end

--- Iterates over name and module, itself ('') first, each once.
function Module:named_modules()
  local found = {}
  walk(self, function(module, name) found[#found + 1] = { name, module } end)
  return iterate(found)
end

--- Iterates over name and module of those that are fields of this one.
function Module:children()
  local found = {}
  for _, field in ipairs(rawget(self, NAMES)) do
    local value = rawget(self, FIELDS)[field]
    if is_module(value) then found[#found + 1] = { field, value } end
  end
  return iterate(found)
end

--- Calls f(module, name) for the module itself and all below it; returns the module.
---@param f fun(module: table, name: string)
function Module:apply(f)
  walk(self, f)
  return self
end

--- Says to the module and all below it that they are at work in training (or not): their field
--- `training`, which nn.Dropout asks. Modules begin with true.
---@param on boolean?
function Module:train(on)
  return self:apply(function(module) module.training = on ~= false end)
end

--- train(false)
function Module:eval() return self:train(false) end

Module.training = true

-- Makes a field of `module` the slice that a rank keeps of its parameter.
local function set_slice(module, field, slice, use)
  if not rawget(module, USES) then rawset(module, USES, {}) end
  rawget(module, USES)[field] = use
  rawget(module, FIELDS)[field] = slice
end

-- named_parameters() with tied weights as often as they are there.
local function each_parameter(module) return collect(module, false, true) end

local function is_sliced(module, field)
  local uses = rawget(module, USES)
  return uses ~= nil and uses[field] ~= nil
end

local floats = { f32 = true, bf16 = true, f64 = true }

-- What was there before is free at once, but for what views and the tape still need of it.
local function convert(tensor, dtype, device)
  local plain = tensor:detach()
  local new = plain:to({ dtype = dtype, device = device })
    :requires_grad_(tensor.requires_grad and tensor.is_leaf)
  core.swap(tensor, new)
  new:free()
  plain:free()
end

--- Casts every parameter to a dtype ('bf16'), or moves all tensors to a device ('meta'), or both
--- ({ dtype =, device = }), in place: they are the same tensors elsewhere too, as in another module
--- that has them. In a script that is planned they stay on meta. Gradients are dropped. An
--- optimizer is made after it.
---@param target string|{ dtype: string?, device: string? }
function Module:to(target)
  if type(target) == 'string' then
    target = { [target:find '^%a+%d+$' and 'dtype' or 'device'] = target } -- f32, cpu, cuda:0
  end
  local read = options.read('to', target, { dtype = options.none, device = options.none })
  if read.dtype and not floats[read.dtype] then
    raise('to: parameters are f32, bf16 or f64, not %s', tostring(read.dtype))
  end
  walk(self, function(module)
    for _, field in ipairs(rawget(module, NAMES)) do
      local value = rawget(module, FIELDS)[field]
      if ul.is_tensor(value) then
        local dtype = rawget(module, PARAMETERS)[field] and read.dtype or value:dtype()
        local device = not core.planning() and read.device or value:device()
        if value:dtype() ~= dtype or value:device() ~= device then
          convert(value, dtype, device)
        end
      end
    end
  end)
  return self
end

-- A part is cut from what the whole would be, so that it does not depend on who shares it.
local function draw(owner, field, parameter)
  local part = weight_parts.of(owner, field)
  if not part then return owner:init_parameter(field, parameter) end
  local whole = ul.zeros(weight_parts.shape(part, parameter),
                         { dtype = parameter:dtype(), device = parameter:device() })
  owner:init_parameter(field, whole)
  ul.scope(function() parameter:copy_(weight_parts.cut(part, whole)) end) -- views are freed too
  whole:free()
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
      draw(owner, field, parameter)
    end
  end)
  ul.set_random_state(seed, next_key)
  return self
end

--- Draws the parameters of this module itself from the generator; constructors end with it.
function Module:reset_parameters()
  ul.no_grad(function()
    for _, name in ipairs(rawget(self, NAMES)) do
      if rawget(self, PARAMETERS)[name] then draw(self, name, rawget(self, FIELDS)[name]) end
    end
  end)
end

--- Sets one of the module's own parameters to what it starts from. A class without an answer of its
--- own leaves it as it was made.
function Module:init_parameter() end

--- What the printed tree says behind the class's name.
function Module:describe() return '' end

--- What a call runs; every class has its own.
function Module:forward() raise('%s: the class has no forward', self.class_name) end

--- A tensor that is trained: zeros of these sizes, or the values of a tensor.
---@param first integer|Tensor
---@vararg integer sizes
---@return Tensor
local function parameter(first, ...)
  local values = ul.is_tensor(first) and first:detach() or ul.zeros(first, ...)
  return values:requires_grad_()
end

return { class = class, parameter = parameter, is_module = is_module, methods = Module,
         set_slice = set_slice, is_sliced = is_sliced, each_parameter = each_parameter }
