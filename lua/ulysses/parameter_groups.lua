-- parameter_groups.lua - what an optimizer moves: parameters with their weight decay and lr_scale.
local ul = require 'ulysses'
local matches = require 'ulysses.nn.pattern'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local weight_parts = require 'ulysses.nn.weight_parts'
local suggest = require 'ulysses.suggest'

-- Norms, biases and embeddings keep their size: decay is for the matrices of products.
local function decays(parameter, owner, part)
  return #weight_parts.shape(part, parameter) > 1 and not owner.no_decay
end

local function is_module(what) return type(what) == 'table' and what.named_parameters ~= nil end

-- Refuses one that is no tensor, or that is there already: it would move twice in a step.
local function append(entries, caller, entry)
  if not ul.is_tensor(entry.parameter) then
    raise('%s: %s is a %s, not a tensor', caller, entry.name, type(entry.parameter))
  end
  for _, other in ipairs(entries) do
    if other.parameter == entry.parameter then
      raise('%s: %s and %s are one and the same', caller, other.name, entry.name)
    end
    if other.name == entry.name then entry.name = ('%d.%s'):format(#entries + 1, entry.name) end
  end
  entries[#entries + 1] = entry
end

local function append_all(entries, caller, parameters, group, weight_decay)
  if is_module(parameters) then
    for name, parameter, owner, field in parameters:named_parameters() do
      local part, decay = weight_parts.of(owner, field), group.weight_decay
      if not decay then decay = decays(parameter, owner, part) and weight_decay or 0 end
      append(entries, caller, { name = name, parameter = parameter, weight_decay = decay,
                                lr_scale = group.lr_scale, part = part })
    end
    return
  end
  for _, parameter in ipairs(parameters) do
    append(entries, caller, { name = ('parameter %d'):format(#entries + 1), parameter = parameter,
                              weight_decay = group.weight_decay or weight_decay,
                              lr_scale = group.lr_scale, part = weight_parts.of_tensor(parameter) })
  end
end

-- What there is to match, for an error: all names where they are few.
local function listing(entries)
  local names = {}
  for i = 1, math.min(#entries, 6) do names[i] = entries[i].name end
  local more = #entries - #names
  return table.concat(names, ', ') .. (more > 0 and (' and %d more'):format(more) or '')
end

-- The parts of all names, for a suggestion.
local function parts(entries)
  local seen, list = {}, {}
  for _, entry in ipairs(entries) do
    for part in entry.name:gmatch '[^.]+' do
      if not seen[part] then seen[part], list[#list + 1] = true, part end
    end
  end
  return list
end

-- The first group whose pattern names a parameter decides; what a group leaves out stays as it was.
local function apply(entries, caller, groups)
  local taken = {}
  for i, given in ipairs(groups) do
    local title = ('%s: group %d'):format(caller, i)
    local group = options.read(title, given, {
      match = '', weight_decay = options.none, lr_scale = 1,
    })
    local n, n_taken = 0, 0
    for _, entry in ipairs(entries) do
      if matches(group.match, entry.name) then
        n = n + 1
        if taken[entry] then
          n_taken = n_taken + 1
        else
          taken[entry] = true
          entry.lr_scale = group.lr_scale
          entry.weight_decay = group.weight_decay or entry.weight_decay
        end
      end
    end
    if n == 0 then
      raise("%s: '%s' matches none of %s%s", title, group.match, listing(entries),
            suggest(group.match, parts(entries)))
    elseif n == n_taken then
      raise("%s: groups before it have taken all that '%s' matches", title, group.match)
    end
  end
end

--- Lists what `what` has: a module, a list of tensors, or a list of { parameters =, weight_decay =,
--- lr_scale = } where each `parameters` is a module or a list of tensors. `groups` then says
--- otherwise for what their patterns name.
---@param caller string
---@param what table
---@param weight_decay number of what decays, and is in no group that says otherwise
---@param groups { match: string, weight_decay: number?, lr_scale: number? }[]?
---@return { name: string, parameter: userdata, weight_decay: number, lr_scale: number }[]
return function(caller, what, weight_decay, groups)
  local entries = {}
  if type(what) == 'table' and not is_module(what) and type(what[1]) == 'table'
    and not is_module(what[1]) then
    for i, given in ipairs(what) do
      local group = options.read(('%s: group %d'):format(caller, i), given, {
        parameters = options.none, weight_decay = options.none, lr_scale = 1,
      })
      append_all(entries, caller, group.parameters or {}, group, weight_decay)
    end
  elseif type(what) == 'table' then
    append_all(entries, caller, what, { lr_scale = 1 }, weight_decay)
  end
  if #entries == 0 then
    raise('%s: expected a module, a list of parameters or a list of groups', caller)
  end
  apply(entries, caller, groups or {})
  return entries
end
