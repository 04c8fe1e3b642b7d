-- state.lua - what modules do with their parameters by name: freezing, handing out, loading.
local ul = require 'ulysses'
local matches = require 'ulysses.nn.pattern'
local options = require 'ulysses.options'
local weight_parts = require 'ulysses.nn.weight_parts'
local raise = require 'ulysses.raise'
local suggest = require 'ulysses.suggest'
local Module = require('ulysses.nn.module').methods

local function names_of(module)
  local names = {}
  for name in module:named_parameters() do names[#names + 1] = name end
  return names
end

-- Suggests a part of a name for a pattern.
local function parts_of(names)
  local parts = {}
  for _, name in ipairs(names) do
    for part in name:gmatch '[^.]+' do parts[#parts + 1] = part end
  end
  return parts
end

local function set_trained(self, caller, pattern, on)
  local n = 0
  for name, parameter in self:named_parameters() do
    if pattern == nil or matches(pattern, name) then
      n = n + 1
      parameter:requires_grad_(on)
    end
  end
  if n == 0 and pattern then
    raise("%s: '%s' matches no parameter of %s%s", caller, pattern, self.class_name,
          suggest(pattern, parts_of(names_of(self))))
  end
  return self
end

--- Freezes the parameters, or those that a pattern names ('embed', 'layers.1', 'layers.*.ffn'):
--- the gradient they have is dropped and they get no other, and optimizers pass over them and hold
--- nothing for them. They keep their names and are part of the state.
---@param pattern string?
function Module:freeze(pattern) return set_trained(self, 'freeze', pattern, false) end

--- Ends that.
---@param pattern string?
function Module:unfreeze(pattern) return set_trained(self, 'unfreeze', pattern, true) end

--- The parameters, frozen ones too, by name. The tensors are the module's own.
---@return table<string, Tensor>
function Module:state()
  local state = {}
  for name, parameter in self:named_parameters() do state[name] = parameter end
  return state
end

-- Raises where names differ, before anything is changed.
local function check_names(self, state)
  local own, missing = {}, {}
  for name in self:named_parameters() do
    own[name] = true
    if state[name] == nil then missing[#missing + 1] = name end
  end
  local unknown = {}
  for name in pairs(state) do
    if not own[name] then unknown[#unknown + 1] = name end
  end
  table.sort(unknown)
  local function more(list) return #list > 1 and (' and %d more'):format(#list - 1) or '' end
  if #unknown > 0 then
    raise("load: %s has no parameter '%s'%s%s", self.class_name, unknown[1], more(unknown),
          suggest(unknown[1], names_of(self)))
  elseif #missing > 0 then
    raise("load: nothing is given for '%s'%s of %s", missing[1], more(missing), self.class_name)
  end
end

local function shape_text(shape) return '[' .. table.concat(shape, ', ') .. ']' end

--- Copies values into the parameters, by name and cast to their dtype. Names and shapes must be the
--- same; with strict = false names may be missing or unknown. Nothing is changed where it raises.
--- Where ranks share a parameter, the value is the whole: each takes its part.
---@param state table<string, Tensor>
---@param given { strict: boolean? }?
function Module:load(state, given)
  local strict = options.read('load', given, { strict = true }).strict
  if type(state) ~= 'table' then
    raise('load: expected a table of tensors, got a %s', type(state))
  end
  if strict then check_names(self, state) end
  local n = 0
  for name, parameter, owner, field in self:named_parameters() do
    local value, shape = state[name], weight_parts.shape(weight_parts.of(owner, field), parameter)
    if value ~= nil and not ul.is_tensor(value) then
      raise("load: '%s' is a %s, not a tensor", name, type(value))
    elseif value and shape_text(value.shape) ~= shape_text(shape) then
      raise("load: '%s' is %s, the parameter is %s", name, shape_text(value.shape),
            shape_text(shape))
    end
    n = n + (value and 1 or 0)
  end
  if n == 0 and next(state) ~= nil then
    raise('load: none of these tensors has the name of a parameter of %s', self.class_name)
  end
  ul.no_grad(function()
    for name, parameter, owner, field in self:named_parameters() do
      if state[name] then
        parameter:copy_(weight_parts.cut(weight_parts.of(owner, field), state[name]))
      end
    end
  end)
  return self
end
