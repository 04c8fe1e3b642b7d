-- limits.lua - what settings may be that mean the same in every recipe.
--
-- The library refuses such values where it meets them, at a line of the recipe; who typed one at a
-- command line is better served by the setting's name.
local refuse = require 'ulysses.refuse'
local suggest = require 'ulysses.suggest'
local value = require 'ulysses.recipe.value'

-- What a number may be. The most are far above what anybody has in mind: with more, a step would
-- not begin within a day, or no tensor has room for the sizes.
local limits = {
  seq_len = { least = 1, most = 2 ^ 30 }, batch = { least = 1, most = 2 ^ 20 },
  accumulate = { least = 1 }, vocab = { least = 1, most = 2 ^ 24 },
  dim = { least = 1, most = 2 ^ 20 }, n_layers = { least = 1, most = 2 ^ 12 },
  n_heads = { least = 1, most = 2 ^ 16 }, n_kv_heads = { least = 1, most = 2 ^ 16 },
  head_dim = { least = 1, most = 2 ^ 16 }, ffn = { least = 1, most = 2 ^ 24 },
  rope_theta = { above = 0 }, max_tokens = { least = 1, most = 2 ^ 31 },
  eps = { least = 0 }, window = { least = 0 },
  rank = { least = 0, most = 2 ^ 16 }, epochs = { least = 1, most = 2 ^ 30 },
  steps = { least = 1 }, warmup = { least = 0 }, save_every = { least = 0 }, keep = { least = 1 },
  log_every = { least = 0 }, sample = { least = 0, most = 2 ^ 30 },
  sp = { least = 1, most = 2 ^ 16 }, ring = { least = 0, most = 2 ^ 16 },
  tp = { least = 1, most = 2 ^ 16 }, lr = { least = 0 }, weight_decay = { least = 0 },
  clip = { least = 0 }, held_out = { least = 0 }, seed = { least = 0 },
}
local dtypes = { f32 = true, bf16 = true, f64 = true }

-- Of a model: a setting, the one that it must be a multiple of, and the one without which.
local multiples = { { 'n_heads', 'n_kv_heads' }, { 'dim', 'n_heads', 'head_dim' } }

local function check_model(name, path, model)
  for _, rule in ipairs(multiples) do
    local whole, part = rawget(model, rule[1]), rawget(model, rule[2])
    local excused = rule[3] and rawget(model, rule[3])
    if whole and part and not excused and whole % part ~= 0 then
      refuse('%s: %s%s=%s is no multiple of %s%s=%s', name, path, rule[1], value.write(whole), path,
             rule[2], value.write(part))
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
      refuse("%s: %s=%s says nothing: the model of '%s' has its own%s", recipe.name, leaf.path,
             value.write(given), folder, recipe.leaf_at[name]
             and ('; %s=%s changes it'):format(name, value.write(given)) or '')
    end
  end
end

-- What one setting may be.
local function check_one(name, path, given, limit)
  local wrong, bound
  if limit[1] then
    for _, word in ipairs(limit) do
      if word == given then return end
    end
    refuse("%s: %s='%s' is none of '%s'%s", name, path, tostring(given),
           table.concat(limit, "', '"), suggest(tostring(given), limit))
  elseif limit.least and given < limit.least then
    wrong, bound = 'small; it is %s at least', limit.least
  elseif limit.above and given <= limit.above then
    wrong, bound = 'small; it is above %s', limit.above
  elseif limit.most and given > limit.most then
    wrong, bound = 'large; it is %s at most', limit.most
  end
  if wrong then
    refuse('%s: %s=%s is too ' .. wrong, name, path, value.write(given), value.write(bound))
  end
end

--- Refuses settings that no model and no batch can be made of.
---@param recipe Recipe
---@param cfg table
return function(recipe, cfg)
  local name = recipe.name
  for path, given in recipe:each(cfg) do
    local key, limit = path:match '[^.]+$', recipe.limits and recipe.limits[path]
    if limit and given ~= nil then check_one(name, path, given, limit) end
    if type(given) == 'number' and limits[key] then check_one(name, path, given, limits[key]) end
    if key == 'dtype' and given ~= nil and not dtypes[given] then
      refuse("%s: %s='%s'; parameters are f32, bf16 or f64", name, path, tostring(given))
    end
    if key == 'clip' and given == 0 then
      refuse('%s: %s=0 makes all gradients nothing; one that is large (1e9) clips none', name, path)
    end
    if key == 'held_out' and given >= 1 then
      refuse('%s: %s=%s leaves nothing to learn from', name, path, value.write(given))
    end
  end
  local batch, parts = rawget(cfg, 'batch'), rawget(cfg, 'accumulate')
  if batch and parts and parts > batch then
    refuse('%s: accumulate=%s cuts a batch of %s rows into more parts than it has', name,
           value.write(parts), value.write(batch))
  end
  check_loaded(recipe, cfg)
  check_model(name, '', cfg)
  for key, inner in pairs(cfg) do
    if type(inner) == 'table' then check_model(name, key .. '.', inner) end
  end
end
