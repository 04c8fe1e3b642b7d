-- parallel.lua - nn.ColumnLinear and nn.RowLinear: linear maps whose weights the ranks of a group
-- share.
--
-- Tensor and sequence parallelism as in Megatron-LM. Between such layers each rank has a slice of
-- the tokens; into a ColumnLinear all tokens are gathered, and what a RowLinear gives is summed
-- over the ranks and cut into slices again, in one reduce_scatter. Each way's gradient is the
-- other. In a layer of attention and feed-forward a rank sends (P - 1) / P of [B, S, C] 4 times
-- forward and 6 times backward; 2 of these gather inputs again, which `keep` would hold instead.
local ul = require 'ulysses'
local F = ul.F
local adapter = require 'ulysses.nn.adapter'
local Linear = require 'ulysses.nn.linear'
local module = require 'ulysses.nn.module'
local options = require 'ulysses.options'
local raise = require 'ulysses.raise'
local refuse = require 'ulysses.refuse'
local weight_parts = require 'ulysses.nn.weight_parts'

-- ---- who has what ----

-- n things on so many ranks, the first ones with one more if need be.
local function even(n, ranks)
  local sizes, each, more = {}, math.floor(n / ranks), n % ranks
  for r = 1, ranks do sizes[r] = each + (r <= more and 1 or 0) end
  return sizes
end

---@class HeadShare
---@field group Group
---@field heads integer
---@field sizes integer[] how many of them each rank computes
---@field first integer where those of this rank begin, from 1
---@field is_whole boolean whether all ranks hold the weights of all heads

local function head_share(group, heads, sizes, firsts)
  local first = firsts and firsts[group.rank + 1] or 1
  for r = 1, firsts and 0 or group.rank do first = first + sizes[r] end
  return { group = group, heads = heads, sizes = sizes, first = first, is_whole = firsts ~= nil }
end

-- '1 to 8, 16, 24 or 32': each rank has whole kv heads, or a part of the query heads of one.
local function legal_sizes(heads, kv_heads)
  local list = { kv_heads > 2 and ('1 to %d'):format(kv_heads) or '1' }
  if kv_heads == 2 then list[2] = '2' end
  for n = 2 * kv_heads, heads, kv_heads do list[#list + 1] = ('%d'):format(n) end
  local last = table.remove(list)
  return #list == 0 and last or table.concat(list, ', ') .. ' or ' .. last
end

--- Which heads of attention each rank of a group has: the query heads, and the kv heads that they
--- read. They are what the option `share` of nn.ColumnLinear and nn.RowLinear takes. Ranks get
--- whole kv heads with all their query heads; where there are more ranks than kv heads, the query
--- heads of each kv head are cut, and all ranks hold the weights of all kv heads.
--- ```lua
--- local q, kv = ul.nn.head_shares(ul.group(), 8, 2)
--- local wq = ul.nn.ColumnLinear(64, 8 * 16, { share = q })
--- local wk = ul.nn.ColumnLinear(64, 2 * 16, { share = kv })
--- ```
---@param group Group mesh.tp
---@param heads integer
---@param kv_heads integer
---@return HeadShare q
---@return HeadShare kv
local function head_shares(group, heads, kv_heads)
  local P, each = group.size, heads / kv_heads
  if kv_heads < 1 or each < 1 or each % 1 ~= 0 then
    raise('nn.head_shares: %g heads do not share %g kv heads equally', heads, kv_heads)
  end
  if P <= kv_heads then
    local of_kv, of_q = even(kv_heads, P), {}
    for r = 1, P do of_q[r] = of_kv[r] * each end
    return head_share(group, heads, of_q), head_share(group, kv_heads, of_kv)
  end
  if P % kv_heads ~= 0 or P > heads then
    refuse('tp = %d does not go with %d heads that read %d kv heads: it may be %s', P, heads,
           kv_heads, legal_sizes(heads, kv_heads))
  end
  local copies = P / kv_heads
  local of_one, of_q, of_kv, firsts = even(each, copies), {}, {}, {}
  for r = 0, P - 1 do
    of_q[r + 1], of_kv[r + 1] = of_one[r % copies + 1], 1
    firsts[r + 1] = math.floor(r / copies) + 1
  end
  return head_share(group, heads, of_q), head_share(group, kv_heads, of_kv, firsts)
end

-- Whom a layer shares its n outputs (or inputs) with, and how many each has; nil: it has all.
local function read_share(caller, what, n, read)
  local share = read.share
  local group = share and share.group or read.group
  if not group or group.size == 1 then return nil end
  if not share then return group, even(n, group.size) end
  if n % share.heads ~= 0 then
    raise('%s: %d %s are no multiple of %d heads', caller, n, what, share.heads)
  end
  local sizes = {}
  for r, heads in ipairs(share.sizes) do sizes[r] = heads * (n / share.heads) end
  return group, sizes
end

local function total(list)
  local sum = 0
  for _, n in ipairs(list) do sum = sum + n end
  return sum
end

-- What the printed tree says of the part.
local function part_text(self)
  local part = weight_parts.in_use(self, 'weight')
  return part and (', %d of them here'):format(part.sizes[part.group.rank + 1]) or ''
end

-- ---- layers ----

---@class ColumnLinear
local ColumnLinear = module.class('ColumnLinear', Linear)

--- nn.Linear whose outputs are shared by the ranks of a group: each has some rows of the weight.
--- Called with this rank's tokens it gathers those of all ranks. It is nn.Linear where the group
--- is of one rank, or none is given. std: of the weights at first, which are those of nn.Linear
--- whatever the group; keep: hold what was gathered until backward, rather than gather it again.
---@param inputs integer
---@param outputs integer of all ranks together
---@param given { group: Group?, share: HeadShare?, bias: boolean?, std: number?, keep: boolean? }?
---share: instead of a group, of heads; without it outputs are cut evenly
function ColumnLinear:init(inputs, outputs, given)
  local read = options.read('nn.ColumnLinear', given, {
    group = options.none, share = options.none, bias = false, std = 0.02, keep = false,
  })
  local group, sizes = read_share('nn.ColumnLinear', 'outputs', outputs, read)
  local is_whole = group and read.share and read.share.is_whole
  local rows = outputs
  self.std, self.group, self.keep = read.std, group, read.keep
  if is_whole then -- and this rank uses some of them
    local unit = outputs / read.share.heads
    self.rows = { (read.share.first - 1) * unit + 1, sizes[group.rank + 1] }
  elseif group then
    rows = sizes[group.rank + 1]
    local part = { dim = 1, group = group, sizes = sizes }
    self.parallel = { weight = part, bias = read.bias and part or nil }
  end
  self.weight = module.parameter(rows, inputs)
  if read.bias then self.bias = module.parameter(rows) end
  self:reset_parameters()
end

-- What this rank uses of a parameter.
local function used(layer, parameter)
  if not parameter or not layer.rows then return parameter end
  return parameter:narrow(1, unpack(layer.rows))
end

-- nn.RowLinear would cut what was gathered in another way.
local function check_slices(group, mine, all)
  local want = even(all, group.size)[group.rank + 1]
  if mine ~= want then
    raise('nn.columns: rank %d of %d has %d of %d tokens, but slices are even, and its own is %d '
          .. '(see mesh:slice)', group.rank, group.size, mine, all, want)
  end
end

--- What each of some nn.ColumnLinear gives for x, with one gather for all of them.
--- ```lua
--- local gate, up = ul.nn.ColumnLinear(8, 12), ul.nn.ColumnLinear(8, 12)
--- local y = ul.F.swiglu(ul.nn.columns(ul.randn(2, 5, 8), gate, up))
--- ```
---@param x Tensor [.., T, inputs], this rank's tokens
---@vararg ColumnLinear one to four, of one group
---@return Tensor y [.., S, outputs on this rank] of all ranks' tokens, and one more for each layer
---behind the first
local function columns(x, ...)
  local n, layers, results = select('#', ...), { ... }, {}
  for i = 1, n do
    local layer = layers[i]
    if type(layer) ~= 'table' or not layer.weight then
      raise('nn.columns: expected nn.ColumnLinear, got a %s (argument %d)', type(layer), i + 1)
    elseif layer.group ~= layers[1].group then
      raise 'nn.columns: the layers are of several groups'
    end
  end
  if n == 0 or n > 4 then raise('nn.columns: one to four layers go, not %d', n) end
  local group = layers[1].group
  if not group then
    for i, layer in ipairs(layers) do results[i] = Linear.forward(layer, x) end
    return unpack(results, 1, n)
  end
  if not ul.is_tensor(x) or x:dim() < 2 then
    raise 'nn.columns: x must be a tensor [.., T, inputs]'
  end
  local weights = {}
  for i, layer in ipairs(layers) do weights[i] = used(layer, layer.weight) end
  results = { group:gather_linear(x, weights, { dim = -2, keep = layers[1].keep }) }
  check_slices(group, x:size(-2), results[1]:size(-2))
  for i, layer in ipairs(layers) do
    if layer.bias then results[i] = results[i] + used(layer, layer.bias) end
    if layer.lora_a then
      results[i] = results[i] + adapter.columns(layer, x, used(layer, layer.lora_b))
    end
  end
  return unpack(results, 1, n)
end

--- This rank's outputs of all ranks' tokens; nn.columns is for several layers of one x.
---@param x Tensor [.., T, inputs]
---@return Tensor y [.., S, outputs on this rank]
function ColumnLinear:forward(x) return (columns(x, self)) end

function ColumnLinear:describe()
  local rows, inputs = self.weight:size()
  local part = weight_parts.in_use(self, 'weight')
  return (' %d -> %d%s'):format(inputs, part and total(part.sizes) or rows, part_text(self))
end

---@class RowLinear
local RowLinear = module.class('RowLinear', Linear)

--- nn.Linear whose inputs are shared by the ranks of a group: each has some columns of the weight,
--- and is called with what nn.ColumnLinear gave it. The sum over the ranks is cut into their slices
--- of the tokens. It is nn.Linear where the group is of one rank, or none is given. std: of the
--- weights at first, which are those of nn.Linear whatever the group.
---@param inputs integer of all ranks together
---@param outputs integer
---@param given { group: Group?, share: HeadShare?, bias: boolean?, std: number? }? share: instead
---of a group, of heads; without it inputs are cut evenly
function RowLinear:init(inputs, outputs, given)
  local read = options.read('nn.RowLinear', given, {
    group = options.none, share = options.none, bias = false, std = 0.02,
  })
  local group, sizes = read_share('nn.RowLinear', 'inputs', inputs, read)
  if group and read.share and read.share.is_whole then
    raise 'nn.RowLinear: these are kv heads on several ranks; it takes the share of query heads'
  end
  self.std, self.group = read.std, group
  if group then self.parallel = { weight = { dim = 2, group = group, sizes = sizes } } end
  self.weight = module.parameter(outputs, group and sizes[group.rank + 1] or inputs)
  if read.bias then self.bias = module.parameter(outputs) end
  self:reset_parameters()
end

--- This rank's tokens of the sum of all ranks' x weight^T, and the bias.
---@param x Tensor [.., S, inputs on this rank]
---@return Tensor y [.., T, outputs]
function RowLinear:forward(x)
  if not self.group then return Linear.forward(self, x) end
  if not ul.is_tensor(x) or x:dim() < 2 then
    raise 'nn.RowLinear: x must be a tensor [.., S, inputs]'
  end
  local y = self.group:reduce_scatter(F.linear(x, self.weight), { dim = -2 })
  if self.lora_a then y = y + adapter.rows(self, x) end
  return self.bias and y + self.bias or y
end

function RowLinear:describe()
  local outputs, mine = self.weight:size()
  local part = weight_parts.in_use(self, 'weight')
  return (' %d%s -> %d'):format(part and total(part.sizes) or mine, part_text(self), outputs)
end

return { ColumnLinear = ColumnLinear, RowLinear = RowLinear, columns = columns,
         head_shares = head_shares }
