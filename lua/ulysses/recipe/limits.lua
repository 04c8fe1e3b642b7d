-- limits.lua - what settings may be that mean the same in every recipe.
--
-- The library refuses such values where it meets them, at a line of the recipe; who typed one at a
-- command line is better served by the setting's name.
local refuse = require 'ulysses.refuse'
local suggest = require 'ulysses.suggest'
local value = require 'ulysses.recipe.value'

-- The least value of a number.
local least = {
  seq_len = 1, batch = 1, accumulate = 1, vocab = 1, dim = 1, n_layers = 1, n_heads = 1,
  n_kv_heads = 1, head_dim = 1, ffn = 1, steps = 1, sp = 1, ring = 0, tp = 1, warmup = 0,
  save_every = 0, keep = 1, log_every = 0, sample = 0, window = 0, lr = 0, weight_decay = 0,
  clip = 0, held_out = 0, seed = 0,
}
local dtypes = { f32 = true, bf16 = true, f64 = true }

-- Of a model: a setting, the one that it must be a multiple of, and the one without which.
local multiples = { { 'n_heads', 'n_kv_heads' }, { 'dim', 'n_heads', 'head_dim' } }

local function check_model(name, path, model)
  for _, rule in ipairs(multiples) do
    local whole, part = rawget(model, rule[1]), rawget(model, rule[2])
    local excused = rule[3] and rawget(model, rule[3])
    if whole and part and not excused and whole % part ~= 0 then
      refuse('%s: %s%s=%g is no multiple of %s%s=%g', name, path, rule[1], whole, path, rule[2],
             part)
    end
  end
end

-- A model from a folder is what its config.json says: other settings of a model would be lost.
local function check_loaded(recipe, cfg)
  local folder = type(rawget(cfg, 'model')) == 'table' and rawget(cfg.model, 'path')
  if not folder then return end
  for _, leaf in ipairs(recipe.leaves) do
    local name = leaf.path:match '^model%.(.*)$'
    local given = name and rawget(cfg.model, name)
    if name and name ~= 'path' and given ~= leaf.default then
      refuse("%s: %s=%s says nothing: the model of '%s' has its own", recipe.name, leaf.path,
             value.write(given), folder)
    end
  end
end

-- What a recipe itself says that one of its settings may be.
local function check_own(name, path, given, limit)
  if limit[1] then
    for _, word in ipairs(limit) do
      if word == given then return end
    end
    refuse("%s: %s='%s' is none of '%s'%s", name, path, tostring(given),
           table.concat(limit, "', '"), suggest(tostring(given), limit))
  elseif limit.least and given < limit.least then
    refuse('%s: %s=%g is too small; it is %g at least', name, path, given, limit.least)
  elseif limit.above and given <= limit.above then
    refuse('%s: %s=%g is too small; it is above %g', name, path, given, limit.above)
  elseif limit.most and given > limit.most then
    refuse('%s: %s=%g is too large; it is %g at most', name, path, given, limit.most)
  end
end

--- Refuses settings that no model and no batch can be made of.
---@param recipe Recipe
---@param cfg table
return function(recipe, cfg)
  local name = recipe.name
  for path, given in recipe:each(cfg) do
    local key, limit = path:match '[^.]+$', recipe.limits and recipe.limits[path]
    if limit and given ~= nil then check_own(name, path, given, limit) end
    if type(given) == 'number' and least[key] and given < least[key] then
      refuse('%s: %s=%g is too small; it is %g at least', name, path, given, least[key])
    end
    if key == 'dtype' and given ~= nil and not dtypes[given] then
      refuse("%s: %s='%s'; parameters are f32, bf16 or f64", name, path, tostring(given))
    end
    if key == 'clip' and given == 0 then
      refuse('%s: %s=0 makes all gradients nothing; one that is large (1e9) clips none', name, path)
    end
    if key == 'held_out' and given >= 1 then
      refuse('%s: %s=%g leaves nothing to learn from', name, path, given)
    end
  end
  local batch, parts = rawget(cfg, 'batch'), rawget(cfg, 'accumulate')
  if batch and parts and parts > batch then
    refuse('%s: accumulate=%g cuts a batch of %g rows into more parts than it has', name, parts,
           batch)
  end
  check_loaded(recipe, cfg)
  check_model(name, '', cfg)
  for key, inner in pairs(cfg) do
    if type(inner) == 'table' then check_model(name, key .. '.', inner) end
  end
end
