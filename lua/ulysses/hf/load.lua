-- load.lua - ul.hf.load: the model, the tokenizer and the config of a folder as it was downloaded.
local config = require 'ulysses.hf.config'
local core = require 'ulysses.core'
local Decoder = require 'ulysses.hf.decoder'
local json = require 'ulysses.json'
local names = require 'ulysses.hf.names'
local options = require 'ulysses.options'
local place = require 'ulysses.hf.place'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local shown = require 'ulysses.hf.shown'
local tokenizer = require 'ulysses.tokenizer'
local ul = require 'ulysses'
local weight_parts = require 'ulysses.nn.weight_parts'
local Weights = require 'ulysses.hf.weights'

local function shape_text(shape) return '[' .. table.concat(shape, ', ') .. ']' end

-- The model without memory for its weights.
local function outline(settings, mesh)
  local device = core.default_device()
  core.set_default_device 'meta'
  local ok, model = pcall(Decoder, settings, mesh)
  core.set_default_device(device)
  if not ok then error(model, 0) end
  return model
end

-- Refuses a file of another size before a model is made that may be far too large.
local function check_layers(weights, settings)
  local n = weights:count_layers()
  if n ~= settings.n_layers then
    refuse('%s: has tensors of %d layers, and config.json asks for %d', weights.path, n,
           settings.n_layers)
  end
end

-- Refuses a head that would be lost.
local function check_tied(weights)
  local head, embed = 'lm_head.weight', 'model.embed_tokens.weight'
  if weights:shape(head) and not weights:equal(head, embed) then
    refuse("%s: '%s' differs from '%s', and config.json says that they are one: "
           .. 'tie_word_embeddings', weights.path, head, embed)
  end
end

-- The weights, checked against the config as far as can be without a model, and the dtype that they
-- have. A plan that knows the dtype does without them: config.json tells their sizes.
local function open_weights(folder, read, dtype)
  if core.planning() and (dtype or read.dtype) then return nil end
  local weights = Weights.open(folder)
  check_layers(weights, read.settings)
  read.dtype = read.dtype or weights:common_dtype()
  return weights
end

-- Refuses a tensor that is not there, or no weight of this shape.
local function compare_one(weights, name, shape)
  local there = weights:shape(name)
  if not there then
    refuse("%s: has no tensor '%s'%s", weights.path, name, name == 'lm_head.weight'
           and ', and config.json does not say that it is the embedding' or '')
  elseif shape_text(shape) ~= shape_text(there) then
    refuse("%s: '%s' is %s, and config.json asks for %s", weights.path, name, shape_text(there),
           shape_text(shape))
  end
  weights.check_dtype(weights.path, name, weights:dtype(name))
end

-- Lists the parameters with their names in the checkpoint, and refuses where the two differ.
local function compare(model, weights, settings)
  local list, wanted = {}, {}
  for name, parameter, owner, field in model:named_parameters() do
    local hf, part = names.to_hf(name), weight_parts.of(owner, field)
    list[#list + 1] = { name = hf, parameter = parameter, part = part }
    if weights then compare_one(weights, hf, weight_parts.shape(part, parameter)) end
    wanted[hf] = true
  end
  if not weights then return list end
  for _, name in ipairs(weights:names()) do
    local ignored = name:find 'rotary_emb%.inv_freq$' or settings.tied and name == 'lm_head.weight'
    if not wanted[name] and not ignored then
      refuse("%s: '%s' has no place in the model that config.json asks for", weights.path, name)
    end
  end
  if settings.tied then check_tied(weights) end
  return list
end

-- Gives a parameter memory and its values.
local function fill(item, weights, dtype, device)
  local parameter = item.parameter
  local new = core.empty(parameter.shape, { dtype = dtype, device = device })
  local part = item.part
  if device ~= 'meta' and part and part.flat then
    local all = core.empty(part.flat, { dtype = dtype, device = device })
    weights:read(item.name, all, part.inner)
    new:copy_(weight_parts.slice(part, all))
    all:free()
  elseif device ~= 'meta' then
    weights:read(item.name, new, part)
  end
  core.swap(parameter, new:requires_grad_())
  new:free()
end

local function mesh_for(given, settings)
  if given == nil then return nil end
  if type(given) ~= 'table' then raise('hf.load: mesh must be a mesh, or options of ul.mesh') end
  if given.sequence then return given end
  local how = { heads = settings.n_heads }
  for key, value in pairs(given) do how[key] = value end
  return ul.mesh(how)
end

--- The ids that end what the model writes, and how it is to be sampled, from generation_config.json
--- and config.json.
local function generation_of(folder, read)
  local path = folder .. '/generation_config.json'
  local said = config.read_file(path, true) or {}
  local how = { eos = config.eos_ids(said, path) }
  for _, id in ipairs(config.eos_ids(read.values, read.path)) do how.eos[#how.eos + 1] = id end
  if said.do_sample == true then
    for _, name in ipairs { 'temperature', 'top_k', 'top_p', 'min_p' } do
      local value = said[name]
      if type(value) == 'number' then
        how[name] = value > 0 and value or nil
      elseif value ~= nil and value ~= json.null then
        refuse('%s: %s must be a number, and is %s', path, name, shown(value))
      end
    end
  end
  return how
end

local function tokenizer_of(folder, wanted)
  if wanted == false then return nil end
  for _, name in ipairs(core.folder_list(folder) or {}) do
    if name == 'tokenizer.json' or name == 'tekken.json' or name:match '^tokenizer%.model' then
      return tokenizer.load(folder)
    end
  end
end

-- The folder, or a sentence that helps where a name of the hub is given for one.
local function find_folder(named)
  local folder = place.find(named)
  if folder and not core.system.kind_of(folder .. '/config.json')
    and core.system.kind_of(folder .. '/adapter_config.json') then
    refuse("hf.load: '%s' holds an adapter; name the folder of the model that it is for, and this "
           .. 'one as the adapter (adapter=..)', folder)
  end
  if folder then return folder end
  local kind = core.system.kind_of(named)
  if kind then refuse("hf.load: '%s' is a %s, not a folder", named, kind) end
  if named:find '^[%w._-]+/[%w._-]+$' and not named:find '^%.' then
    local own = named:match '[^/]*$'
    refuse("hf.load: there is no folder '%s'; if it is a model of the Hugging Face hub, download "
           .. 'it first (hf download %s --local-dir %s) and name that folder', named, named, own)
  end
  refuse("hf.load: there is no folder '%s'", named)
end

--- The model of a folder as it was downloaded: config.json, model.safetensors or its shards with
--- their index, and the tokenizer. Llama, Mistral, Qwen2 and Qwen3 are computed exactly; what else
--- a config.json asks for is refused by its name.
---   dtype      of the parameters: 'f32', 'bf16' or 'f64'; that of the checkpoint where it is left
---              out, and f32 for f16
---   mesh       the ranks that share it, or what ul.mesh makes them of: { sp = 4 }. A rank of tp
---              reads its parts of the weights alone
---   config     values in place of those in config.json: { rope_theta = 8e6 }
---   tokenizer  false: without it
---   adapter    the folder of a LoRA adapter for it, as PEFT or ul.lora.save has written it
---   recompute  whether backward computes each layer again, and keeps its input alone
---   offload    the same, and the inputs wait off the device: see ul.offload
--- The model has what the recipes' models have: model(batch), model:logits(ids), and
--- model:generate(prompt).
---@param folder string
---@param given { dtype: Dtype?, device: Device?, mesh: Mesh|table|nil, config: table?,
---  tokenizer: boolean?, recompute: boolean?, offload: boolean?, adapter: string? }?
---@return Decoder model
---@return Tokenizer? tok
---@return HfConfig config
return function(folder, given)
  local how = options.read('hf.load', given, {
    dtype = options.none, device = options.none, mesh = options.none, config = options.none,
    tokenizer = true, recompute = false, offload = false, adapter = options.none,
  })
  if folder == nil or folder == '' then
    refuse 'hf.load: no folder with a model is named; recipes have it from model=path/to/folder'
  elseif type(folder) ~= 'string' then
    raise('hf.load: expected the name of a folder, got a %s', type(folder))
  end
  if folder:sub(1, 2) == '~/' then folder = (os.getenv 'HOME' or '~') .. folder:sub(2) end
  folder = find_folder((folder:gsub('(.)/+$', '%1')))
  local read = config.read(folder, how.config)
  read.generation = generation_of(folder, read)
  local weights = open_weights(folder, read, how.dtype)
  local dtype, device = how.dtype or read.dtype, how.device or core.default_device()
  if core.planning() then device = 'meta' end
  if dtype ~= 'f32' and dtype ~= 'bf16' and dtype ~= 'f64' then
    raise('hf.load: parameters are f32, bf16 or f64, not %s', tostring(dtype))
  end
  local tok = tokenizer_of(folder, how.tokenizer)
  local model = outline(read.settings, mesh_for(how.mesh, read.settings))
  local list = compare(model, weights, read.settings)
  core.no_grad(function()
    for _, item in ipairs(list) do fill(item, weights, dtype, device) end
  end)
  if weights then weights:close() end
  model.config, model.source, model.tokenizer = read, folder, tok
  model.recompute, model.offload = how.recompute, how.offload
  if how.adapter then require('ulysses.lora').load(how.adapter, model) end
  return model, tok, read
end
