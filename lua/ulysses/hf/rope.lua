-- rope.lua - by which angles a model turns its queries and keys: plain RoPE, and the four ways in
-- which published models stretch it to longer texts.
--
-- Channel pair i of a head of D channels turns by position / theta^(2 i / D). What a scaling
-- changes are these frequencies, and under yarn the size of the table's entries.
local ul = require 'ulysses'

---@class Rope
---@field kind 'default'|'linear'|'dynamic'|'yarn'|'llama3'
---@field theta number
---@field factor? number how much longer texts may be; all kinds but default
---@field low_freq_factor? number llama3
---@field high_freq_factor? number llama3
---@field original? integer tokens that the model was trained on first; llama3, yarn, dynamic
---@field beta_fast? number yarn
---@field beta_slow? number yarn
---@field attention_factor? number yarn: of the table's entries
---@field truncate? boolean yarn: whether the ramp begins and ends at whole channels

local rope = {}

-- theta^(-2 i / D)
local function plain(theta, head_dim)
  local list = {}
  for i = 0, head_dim / 2 - 1 do list[i + 1] = theta ^ (-2 * i / head_dim) end
  return list
end

local kinds = {}

function kinds.default(c, head_dim) return plain(c.theta, head_dim) end

function kinds.linear(c, head_dim)
  local list = plain(c.theta, head_dim)
  for i, f in ipairs(list) do list[i] = f / c.factor end
  return list
end

-- A larger theta, for texts that are longer than those of the training.
function kinds.dynamic(c, head_dim, tokens)
  local stretch = c.factor * math.max(tokens, c.original) / c.original - (c.factor - 1)
  return plain(c.theta * stretch ^ (head_dim / (head_dim - 2)), head_dim)
end

-- Waves that are short against the original length stay, long ones are stretched, and between the
-- two it changes smoothly.
function kinds.llama3(c, head_dim)
  local list = plain(c.theta, head_dim)
  local low, high = c.original / c.low_freq_factor, c.original / c.high_freq_factor
  for i, f in ipairs(list) do
    local wave = 2 * math.pi / f
    if wave > low then
      list[i] = f / c.factor
    elseif wave >= high then
      local s = (c.original / wave - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor)
      list[i] = (1 - s) * f / c.factor + s * f
    end
  end
  return list
end

-- The same by channel: those that turn more than beta_fast times within the original length stay,
-- those that turn less than beta_slow times are stretched.
function kinds.yarn(c, head_dim)
  local function channel(turns)
    return head_dim * math.log(c.original / (turns * 2 * math.pi)) / (2 * math.log(c.theta))
  end
  local low, high = channel(c.beta_fast), channel(c.beta_slow)
  if c.truncate then low, high = math.floor(low), math.ceil(high) end
  low, high = math.max(low, 0), math.min(high, head_dim - 1)
  if low == high then high = high + 0.001 end
  local list = plain(c.theta, head_dim)
  for i, f in ipairs(list) do
    local ramp = math.min(math.max((i - 1 - low) / (high - low), 0), 1)
    list[i] = f / c.factor * ramp + f * (1 - ramp)
  end
  return list
end

--- The frequency of each pair of channels, and by what the table is multiplied.
---@param c Rope
---@param head_dim integer
---@param tokens integer how long the text is: dynamic frequencies depend on it
---@return number[] frequencies, number scale
function rope.frequencies(c, head_dim, tokens)
  return kinds[c.kind](c, head_dim, tokens), c.kind == 'yarn' and c.attention_factor or 1
end

--- The table that F.rope reads.
---@param c Rope
---@param head_dim integer
---@param positions Tensor i64 [T] or [B, T]
---@param tokens integer
---@param dtype Dtype of what it will turn
---@return RopeTable
function rope.table(c, head_dim, positions, tokens, dtype)
  local frequencies, scale = rope.frequencies(c, head_dim, tokens)
  local inv_freq = ul.tensor(frequencies, { dtype = 'f64', device = 'cpu' })
  if positions:device() ~= 'cpu' then inv_freq = inv_freq:to(positions:device()) end
  return ul.F.rope_table(positions, head_dim, { inv_freq = inv_freq, scale = scale, dtype = dtype })
end

return rope
