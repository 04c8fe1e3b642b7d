-- lora.lua - ul.lora: fine-tuning with few parameters: low-rank adapters beside frozen weights,
-- kept in the format of PEFT.
local adapter = require 'ulysses.nn.adapter'
local agree = require 'ulysses.agree'
local base = require 'ulysses.checkpoint.base'
local config = require 'ulysses.hf.config'
local core = require 'ulysses.core'
local hash = require 'ulysses.hash'
local json = require 'ulysses.json'
local matches = require 'ulysses.nn.pattern'
local names = require 'ulysses.hf.names'
local nn = require 'ulysses.nn'
local notice = require 'ulysses.notice'
local options = require 'ulysses.options'
local place = require 'ulysses.hf.place'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local safetensors = require 'ulysses.safetensors'
local suggest = require 'ulysses.suggest'
local tokenizer = require 'ulysses.tokenizer'
local weight_parts = require 'ulysses.nn.weight_parts'
local Weights = require 'ulysses.hf.weights'
local whole = require 'ulysses.checkpoint.whole'

---@class lora
local lora = {}

local CONFIG, TENSORS = 'adapter_config.json', 'adapter_model.safetensors'
local PREFIX = 'base_model.model.'

-- ---- which layers ----

local function is_linear(layer)
  local class = layer.class_name
  return class == 'Linear' or class == 'ColumnLinear' or class == 'RowLinear'
end

-- The linear maps that take an adapter: { name, hf (nil for a model of one's own), layer }. What
-- the head gives is never computed as a whole, so it takes none.
local function layers_of(model)
  local list = {}
  for name, layer in model:named_modules() do
    if is_linear(layer) and name ~= 'head' then
      local hf = names.to_hf(name .. '.weight')
      list[#list + 1] = { name = name, hf = hf and hf:gsub('%.weight$', ''), layer = layer }
    end
  end
  return list
end

local function last_part(name) return name:match '[^.]+$' end

-- The last parts of their names, each once, as they come.
local function names_of(layers)
  local known, seen = {}, {}
  for _, one in ipairs(layers) do
    for _, name in ipairs { one.name, one.hf } do
      local part = last_part(name)
      if not seen[part] then known[#known + 1] = part end
      seen[part] = true
    end
  end
  return known
end

local function targets_of(model, targets)
  local layers, chosen = layers_of(model), {}
  local known = names_of(layers)
  if #targets == 0 then
    refuse("lora.add: targets is empty, and nothing would be trained; there are '%s'",
           table.concat(known, "', '"))
  end
  for i, target in ipairs(targets) do
    local found = false
    if type(target) ~= 'string' then
      raise('lora.add: targets[%d] must be a name, got a %s', i, type(target))
    end
    for _, one in ipairs(layers) do
      if matches(target, one.name) or one.hf and matches(target, one.hf) then
        found, chosen[one] = true, true
      end
    end
    if not found then
      refuse("lora.add: no linear map of the model is called '%s'%s; there are '%s'", target,
             suggest(target, known), table.concat(known, "', '"))
    end
  end
  local list = {}
  for _, one in ipairs(layers) do
    if chosen[one] then list[#list + 1] = one end
  end
  return list
end

-- ---- adapters ----

-- Gives a layer an adapter of zeros; what ranks share of the weight they share of this too.
local function attach(layer, rank, scale)
  local outputs, inputs = layer.weight:size()
  local like = { dtype = layer.weight:dtype(), device = layer.weight:device() }
  layer.lora_scale = scale
  local part = weight_parts.in_use(layer, 'weight')
  if part then
    local parallel = {}
    for field, known in pairs(layer.parallel) do parallel[field] = known end
    parallel[part.dim == 1 and 'lora_b' or 'lora_a'] = part
    layer.parallel = parallel
  end
  layer.lora_a = nn.parameter(core.zeros({ rank, inputs }, like))
  layer.lora_b = nn.parameter(core.zeros({ outputs, rank }, like))
end

-- An adapter of a rank above that of its weight has more numbers than the weight, and says no more.
local function check_rank(name, layer, rank)
  local shape = weight_parts.shape(weight_parts.of(layer, 'weight'), layer.weight)
  local most = math.min(shape[1], shape[2])
  if rank > most then
    refuse("lora.add: rank %d is above that of the weight of '%s', which is %d at most", rank, name,
           most)
  end
end

-- What an adapter begins with depends on the seed and its name alone.
local function draw(name, layer, seed)
  local before, next_key = core.random_state()
  core.no_grad(function()
    local part, mine = weight_parts.of(layer, 'lora_a'), layer.lora_a
    local all = core.zeros(weight_parts.shape(part, mine),
                           { dtype = mine:dtype(), device = mine:device() })
    core.set_random_state(seed, (hash.text(name .. '.lora_a') + 1) * 2 ^ 20)
    layer:init_parameter('lora_a', all)
    mine:copy_(weight_parts.cut(part, all))
    all:free()
  end)
  core.set_random_state(before, next_key)
end

local function check_model(caller, model)
  if type(model) ~= 'table' or not model.named_modules then
    raise('%s: expected a model, got a %s', caller, type(model))
  end
end

local function check_folder(caller, folder)
  if type(folder) == 'string' and folder ~= '' then return end
  raise('%s: expected the name of a folder, and then a model, got a %s', caller, type(folder))
end

local function check_plain(caller, model)
  check_model(caller, model)
  for name, layer in model:named_modules() do
    if layer.lora_a then
      raise("%s: '%s' has an adapter already; ul.lora.merge makes it part of the weight", caller,
            name)
    end
  end
end

local defaults = { 'wq', 'wk', 'wv', 'wo', 'gate', 'up', 'down' }

--- Freezes a model and gives its linear maps adapters, which alone are trained: y = x W^T +
--- (alpha / rank) (x A^T) B^T, with A [rank, inputs] drawn and B [outputs, rank] zero. An optimizer
--- is made afterwards. Where ranks share a weight they share its adapter.
---   rank      8; no adapter may have more than its weight is wide
---   alpha     16
---   targets   parts of names, as 'wq' or 'layers.*.attention', also those of checkpoints
---             ('q_proj'); all linear maps of the layers where it is left out
---   seed      1
---@param model table
---@param given { rank: integer?, alpha: number?, targets: string[]?, seed: integer? }?
---@return table model
function lora.add(model, given)
  local how = options.read('lora.add', given, {
    rank = 8, alpha = 16, targets = defaults, seed = 1,
  })
  check_plain('lora.add', model)
  if not (how.rank >= 1 and how.rank < math.huge) or how.rank ~= math.floor(how.rank) then
    raise('lora.add: rank must be a whole number from 1 on, got %g', how.rank)
  elseif not (how.alpha > 0 and how.alpha < math.huge) then
    raise('lora.add: alpha must be a number above 0, got %g', how.alpha)
  end
  local list = targets_of(model, how.targets)
  for _, one in ipairs(list) do check_rank(one.name, one.layer, how.rank) end
  model:freeze()
  for _, one in ipairs(list) do
    attach(one.layer, how.rank, how.alpha / how.rank)
    draw(one.name, one.layer, how.seed)
  end
  return model
end

-- The layers that have adapters.
local function adapted(caller, model)
  check_model(caller, model)
  local list = {}
  for _, one in ipairs(layers_of(model)) do
    if one.layer.lora_a then list[#list + 1] = one end
  end
  if #list == 0 then raise('%s: the model has no adapters', caller) end
  return list
end

--- Makes the adapters part of the weights that they adapt, which stay frozen, and removes them.
---@param model table
---@return table model
function lora.merge(model)
  for _, one in ipairs(adapted('lora.merge', model)) do
    local layer = one.layer
    core.no_grad(core.scope, function()
      weight_parts.set(layer, 'weight', adapter.merged(layer))
    end)
    layer.lora_a, layer.lora_b, layer.lora_scale = nil, nil, nil
  end
  return model
end

--- What f(...) returns while the adapters count for nothing: the model is what it was before them,
--- and so its own reference for ul.preference.
---@param model table
---@param f function
---@return any ...
function lora.without(model, f, ...)
  local list, scales = adapted('lora.without', model), {}
  for i, one in ipairs(list) do
    scales[i], one.layer.lora_scale = one.layer.lora_scale, 0
  end
  local function finish(ok, ...)
    for i, one in ipairs(list) do one.layer.lora_scale = scales[i] end
    if not ok then error((...), 0) end
    return ...
  end
  return finish(pcall(f, ...))
end

-- ---- files ----

local function config_text(model, list)
  local seen, targets = {}, {}
  for _, one in ipairs(list) do
    local target = last_part(one.hf or one.name)
    if not seen[target] then targets[#targets + 1] = target end
    seen[target] = true
  end
  table.sort(targets)
  local rank = list[1].layer.lora_a:size(1)
  return json.encode({
    peft_type = 'LORA', task_type = 'CAUSAL_LM', inference_mode = true, r = rank,
    lora_alpha = list[1].layer.lora_scale * rank, lora_dropout = 0, bias = 'none',
    base_model_name_or_path = model.source or json.null, target_modules = targets,
    fan_in_fan_out = false, init_lora_weights = true, use_rslora = false, use_dora = false,
    modules_to_save = json.null, layers_to_transform = json.null, layers_pattern = json.null,
  }, { indent = 2 }) .. '\n'
end

-- What tells the base of an adapter from others of its shapes, beside what PEFT reads; nothing
-- where its folder is no longer there.
local function metadata_of(model)
  local known, about = pcall(base.of, model.source)
  return { format = 'pt', base_hash = known and about.hash or nil,
           base_folder = known and about.folder or nil }
end

-- Says that an adapter was trained beside other weights than those of the model, or that this
-- cannot be known. Those of another dtype are others too, so that it is loaded all the same.
local function compare_base(path, file, values, model, warn)
  if not agree.is_first(place.group_of(model)) then return end
  local kept = file:metadata()
  local named = kept.base_folder or values.base_model_name_or_path
  named = type(named) == 'string' and (" ('%s')"):format(named) or ''
  local known, about = pcall(base.of, model.source)
  if not kept.base_hash then
    warn(('%s: does not tell the weights it was trained beside%s: whether they are those of the '
          .. 'model cannot be checked'):format(path, named))
  elseif not known then
    warn(('%s: whether the weights it was trained beside%s are those of the model cannot be '
          .. 'checked, whose files are not there'):format(path, named))
  elseif about.hash ~= kept.base_hash then
    warn(("%s: was trained beside other weights%s than those of '%s': with these it may say "
          .. 'nothing that makes sense'):format(path, named, model.source))
  end
end

local function tensors_of(list, first)
  local found = {}
  for _, one in ipairs(list) do
    for _, field in ipairs { 'lora_a', 'lora_b' } do
      local part = weight_parts.of(one.layer, field)
      local tensor = whole.gather { tensor = one.layer[field], part = part }
      local name = ('%s%s.lora_%s.weight'):format(PREFIX, one.hf or one.name,
                                                  field:sub(-1):upper())
      if first then
        local dtype = tensor:dtype() == 'bf16' and 'bf16' or 'f32'
        found[name] = tensor:detach():to { dtype = dtype, device = 'cpu' }
      end
    end
  end
  return found
end

--- Saves the adapters of a model alone, as PEFT does: adapter_config.json and
--- adapter_model.safetensors, and the tokenizer's files. The folder is whole or not there. All
--- ranks of the model's mesh call it together. ul.hf.save saves the whole model, with the adapters
--- as part of its weights.
---@param folder string
---@param model table
---@param tok Tokenizer|string|table|nil that of the model where it is left out
function lora.save(folder, model, tok)
  check_folder('lora.save', folder)
  if type(tok) == 'string' then tok = tokenizer.resolve('lora.save', tok) end
  local list, group = adapted('lora.save', model), place.group_of(model)
  local tensors = core.no_grad(tensors_of, list, agree.is_first(group))
  local files = place.tokenizer_files(tok or model.tokenizer, model.source)
  local about = { bytes = 0, what = 'adapter', files = files }
  place.write(folder, group, 'lora.save', about, function(path, together)
    together(function()
      place.must(core.file_write(path .. '/' .. CONFIG, config_text(model, list)))
      safetensors.save(path .. '/' .. TENSORS, tensors, { metadata = metadata_of(model) })
    end)
  end)
end

-- Refuses what an adapter_config.json asks for and is not computed.
local function check_config(path, values)
  local function only(name, allowed, may_be_empty)
    local value = values[name]
    if value == nil or value == json.null or value == allowed then return end
    if may_be_empty and type(value) == 'table' and next(value) == nil then return end
    refuse('%s: %s = %s is not computed', path, name, json.encode(value))
  end
  if values.peft_type ~= 'LORA' then
    refuse("%s: peft_type is %s, and 'LORA' alone is computed", path,
           json.encode(values.peft_type or json.null))
  end
  if values.bias ~= 'none' then only('bias', nil) end
  only('use_dora', false)
  only('fan_in_fan_out', false)
  for _, name in ipairs { 'modules_to_save', 'rank_pattern', 'alpha_pattern', 'lora_bias',
                          'trainable_token_indices', 'layer_replication', 'target_parameters',
                          'use_qalora', 'alora_invocation_tokens', 'arrow_config' } do
    only(name, false, true)
  end
  local begun = values.init_lora_weights -- the others change the model's own weights
  if type(begun) ~= 'boolean' and begun ~= 'gaussian' and begun ~= 'orthogonal' then
    only('init_lora_weights', 'eva')
  end
  for _, name in ipairs { 'r', 'lora_alpha' } do
    if type(values[name]) ~= 'number' or values[name] <= 0 then
      refuse('%s: %s must be a number above 0', path, name)
    end
  end
  if values.r ~= math.floor(values.r) then
    refuse('%s: r must be a whole number, not %g', path, values.r)
  end
  local by_root = values.use_rslora
  if by_root ~= nil and by_root ~= json.null and type(by_root) ~= 'boolean' then
    refuse('%s: use_rslora must be true or false, not %s', path, json.encode(by_root))
  end
  return by_root == true and values.lora_alpha / math.sqrt(values.r)
    or values.lora_alpha / values.r
end

-- The layers by the names that PEFT has for their adapters.
local function find_layers(model, file, path)
  local by_name, wanted = {}, {}
  for _, one in ipairs(layers_of(model)) do by_name[PREFIX .. (one.hf or one.name)] = one end
  for _, name in ipairs(file:names()) do
    local inner, which = name:match '^(.*)%.lora_([AB])%.weight$'
    local one = inner and by_name[inner]
    if not one then refuse("%s: '%s' has no place in the model", path, name) end
    wanted[one] = wanted[one] or { one = one }
    wanted[one][which] = name
  end
  local list = {}
  for _, one in ipairs(layers_of(model)) do
    local found = by_name[PREFIX .. (one.hf or one.name)]
    local entry = wanted[found]
    if entry then
      if not entry.A or not entry.B then
        refuse("%s: half of the adapter of '%s' is missing", path, one.hf or one.name)
      end
      list[#list + 1] = entry
    end
  end
  return list
end

local function shape_text(shape) return '[' .. table.concat(shape, ', ') .. ']' end

--- Freezes a model and gives it the adapters of a folder, as PEFT or ul.lora.save has written it.
--- What is not computed exactly is refused by its name. ul.lora.save keeps what tells the weights
--- that they were trained beside: where the model has others, or it cannot be known whether it
--- does, warn(sentence) is called, which writes to stderr where it is left out.
---@param folder string
---@param model table
---@param given { warn: fun(sentence: string)? }?
---@return table model
function lora.load(folder, model, given)
  local how = options.read('lora.load', given, { warn = notice })
  check_folder('lora.load', folder)
  check_plain('lora.load', model)
  local path = folder .. '/' .. TENSORS
  local values = config.read_file(folder .. '/' .. CONFIG)
  local scale = check_config(folder .. '/' .. CONFIG, values)
  local file, sentence = safetensors.open(path)
  if not file then refuse('%s', sentence) end
  local list = find_layers(model, file, path)
  for _, name in ipairs(file:names()) do Weights.check_dtype(path, name, file:dtype(name)) end
  for _, entry in ipairs(list) do
    local layer = entry.one.layer
    for which, field in pairs { A = 'lora_a', B = 'lora_b' } do
      local shape = weight_parts.shape(weight_parts.of(layer, 'weight'), layer.weight)
      local wanted = which == 'A' and { values.r, shape[2] } or { shape[1], values.r }
      if shape_text(wanted) ~= shape_text(file:shape(entry[which])) then
        refuse("%s: '%s' is %s, and the model asks for %s", path, entry[which],
               shape_text(file:shape(entry[which])), shape_text(wanted))
      end
      entry[field] = entry[which]
    end
  end
  compare_base(path, file, values, model, how.warn)
  model:freeze()
  core.no_grad(core.scope, function()
    for _, entry in ipairs(list) do
      local layer = entry.one.layer
      attach(layer, values.r, scale)
      for _, field in ipairs { 'lora_a', 'lora_b' } do
        local mine = layer[field]
        local all = file:get(entry[field], { device = mine:device() })
        mine:copy_(weight_parts.cut(weight_parts.of(layer, field), all))
      end
    end
  end)
  file:close()
  return model
end

return lora
