-- config_rope.lua - what a config.json says of RoPE, in either of its spellings: rope_theta and
-- rope_scaling beside the other values, or both together in rope_parameters.
local json = require 'ulysses.json'
local shown = require 'ulysses.hf.shown'

-- What each kind reads, and what files say that changes nothing.
local needed = {
  default = {}, linear = { 'factor' }, dynamic = { 'factor' }, yarn = { 'factor' },
  llama3 = { 'factor', 'low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings' },
}
local allowed = {
  type = true, rope_type = true, rope_theta = true, factor = true, finetuned = true,
  original_max_position_embeddings = true, partial_rotary_factor = true,
}
local of_kind = {
  llama3 = { low_freq_factor = true, high_freq_factor = true },
  yarn = { attention_factor = true, beta_fast = true, beta_slow = true, mscale = true,
           mscale_all_dim = true, truncate = true },
}

-- The factor of the table under yarn, where the file does not give it.
local function attention_factor(given, factor)
  local function size(scale)
    return factor <= 1 and 1 or 0.1 * scale * math.log(factor) + 1
  end
  if given.mscale and given.mscale_all_dim then
    return size(given.mscale) / size(given.mscale_all_dim)
  end
  return size(1)
end

local function without_null(values)
  local plain = {}
  for key, value in pairs(values) do
    if value ~= json.null and key ~= nil then plain[key] = value end
  end
  return plain
end

local function check(reader, where, kind, given)
  if not needed[kind] then
    reader:refuse("%s: rope_type %s is not computed; default, linear, dynamic, yarn and llama3 "
                  .. 'are', where, shown(kind))
  end
  for _, name in ipairs(needed[kind]) do
    if given[name] == nil then reader:refuse('%s of %s needs %s', where, kind, name) end
  end
  local names = {}
  for name in pairs(given) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do
    local value = given[name]
    if not allowed[name] and not (of_kind[kind] and of_kind[kind][name]) then
      reader:refuse("%s: '%s' is not known for %s", where, name, kind)
    end
    local is_text = name == 'type' or name == 'rope_type' or name == 'finetuned'
    local wants = name == 'truncate' and 'boolean' or 'number'
    if not is_text and (type(value) ~= wants or wants == 'number' and not (value > 0)) then
      reader:refuse('%s: %s must be %s', where, name,
                    wants == 'number' and 'a number above 0' or 'true or false')
    end
  end
  if given.partial_rotary_factor and given.partial_rotary_factor ~= 1 then
    reader:refuse('%s: partial_rotary_factor = %g is not computed; 1 is', where,
                  given.partial_rotary_factor)
  end
end

-- Refuses another longest text where the scaling is counted from it: all positions would be turned
-- otherwise than the model has learned.
local function check_changed(reader, where, kind, given)
  local follows = kind == 'dynamic'
    or kind == 'yarn' and not given.original_max_position_embeddings
  if follows and reader.changed.max_position_embeddings and not reader.changed[where] then
    reader:refuse('max_position_embeddings cannot be another, since %s of %s is counted from it',
                  where, kind)
  end
end

--- Reads both spellings; rope_parameters wins.
---@param reader ConfigReader
---@param c DecoderSettings of which max_tokens is known
---@return Rope
return function(reader, c)
  local where, given = 'rope_scaling', reader:value 'rope_scaling'
  if reader:value 'rope_parameters' then
    where, given = 'rope_parameters', reader:value 'rope_parameters'
  end
  if given ~= nil and type(given) ~= 'table' then reader:refuse('%s must be an object', where) end
  given = without_null(given or {})
  local kind = given.rope_type or given.type or 'default'
  check(reader, where, kind, given)
  local rope = { kind = kind, theta = given.rope_theta or reader:number('rope_theta', 10000) }
  if kind == 'default' then return rope end
  check_changed(reader, where, kind, given)
  rope.factor = given.factor
  rope.original = given.original_max_position_embeddings or c.max_tokens
  if kind == 'dynamic' then
    rope.original = c.max_tokens
    if c.head_dim < 4 then reader:refuse 'rope_scaling dynamic needs a head_dim above 2' end
  elseif kind == 'llama3' then
    rope.low_freq_factor, rope.high_freq_factor = given.low_freq_factor, given.high_freq_factor
    if rope.high_freq_factor <= rope.low_freq_factor then
      reader:refuse('%s: high_freq_factor must be above low_freq_factor', where)
    end
  elseif kind == 'yarn' then
    rope.beta_fast, rope.beta_slow = given.beta_fast or 32, given.beta_slow or 1
    rope.attention_factor = given.attention_factor or attention_factor(given, given.factor)
    rope.truncate = given.truncate ~= false
  end
  return rope
end
