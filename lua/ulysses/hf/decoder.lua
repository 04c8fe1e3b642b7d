-- decoder.lua - the model that published checkpoints are loaded into: Llama, Mistral, Qwen2, Qwen3.
--
-- Names are those of recipes/llama3.lua, which is this model without what a config.json may ask
-- for beside it: scaled RoPE, windows of some layers, biases, norms of queries and keys.
local agree = require 'ulysses.agree'
local ul = require 'ulysses'
local rope = require 'ulysses.hf.rope'
local nn, F = ul.nn, ul.F

---@class DecoderSettings
---@field vocab integer
---@field dim integer
---@field n_layers integer
---@field n_heads integer
---@field n_kv_heads integer
---@field head_dim integer
---@field ffn integer
---@field eps number
---@field tied boolean whether embedding and head are one matrix
---@field rope Rope
---@field windows integer[] of each layer: tokens that one sees, itself among them; 0: all
---@field qkv_bias boolean
---@field o_bias boolean
---@field mlp_bias boolean
---@field qk_norm boolean
---@field max_tokens integer the longest text it is meant for

local Attention = nn.class 'Attention'
function Attention:init(c, mesh, window)
  local q, kv = nn.head_shares(mesh.tp, c.n_heads, c.n_kv_heads)
  self.head_dim, self.window, self.mesh = c.head_dim, window, mesh
  local function of(share) return { share = share, bias = c.qkv_bias } end
  self.wq = nn.ColumnLinear(c.dim, c.n_heads * c.head_dim, of(q))
  self.wk = nn.ColumnLinear(c.dim, c.n_kv_heads * c.head_dim, of(kv))
  self.wv = nn.ColumnLinear(c.dim, c.n_kv_heads * c.head_dim, of(kv))
  self.wo = nn.RowLinear(c.n_heads * c.head_dim, c.dim, {
    share = q, bias = c.o_bias, std = 0.02 / math.sqrt(2 * c.n_layers),
  })
  if c.qk_norm then
    self.q_norm = nn.RMSNorm(c.head_dim, { eps = c.eps })
    self.k_norm = nn.RMSNorm(c.head_dim, { eps = c.eps })
  end
end
function Attention:forward(x, table, docs, cache)
  local q, k, v = nn.columns(x, self.wq, self.wk, self.wv)
  local B, T = q:size()
  q, k = q:view(B, T, -1, self.head_dim), k:view(B, T, -1, self.head_dim)
  v = v:view(B, T, -1, self.head_dim)
  if self.q_norm then q, k = self.q_norm(q), self.k_norm(k) end
  local o = ul.ulysses.attention(F.rope(q, table), F.rope(k, table), v, {
    mesh = self.mesh, causal = true, docs = docs, window = self.window, cache = cache,
  })
  return self.wo(o:view(B, T, -1))
end

local FeedForward = nn.class 'FeedForward'
function FeedForward:init(c, mesh)
  self.gate = nn.ColumnLinear(c.dim, c.ffn, { group = mesh.tp, bias = c.mlp_bias })
  self.up = nn.ColumnLinear(c.dim, c.ffn, { group = mesh.tp, bias = c.mlp_bias })
  self.down = nn.RowLinear(c.ffn, c.dim, {
    group = mesh.tp, bias = c.mlp_bias, std = 0.02 / math.sqrt(2 * c.n_layers),
  })
end
function FeedForward:forward(x) return self.down(F.swiglu(nn.columns(x, self.gate, self.up))) end

local Block = nn.class 'Block'
function Block:init(c, mesh, window)
  self.attention_norm = nn.RMSNorm(c.dim, { eps = c.eps })
  self.attention = Attention(c, mesh, window)
  self.ffn_norm = nn.RMSNorm(c.dim, { eps = c.eps })
  self.ffn = FeedForward(c, mesh)
end
function Block:forward(x, table, docs, cache)
  local y, h = self.ffn_norm(self.attention(self.attention_norm(x), table, docs, cache), x)
  return h + self.ffn(y)
end

---@class Decoder
---@field settings DecoderSettings
---@field mesh Mesh
---@field tokenizer Tokenizer? that of the folder it was loaded from
---@field recompute boolean whether backward computes each layer again, and keeps its input alone
---@field offload boolean the same, and the inputs wait off the device: see ul.offload
local Decoder = nn.class 'Decoder'
Decoder.recompute, Decoder.offload = false, false
Decoder.uses_cache = true -- ul.generate may give logits() one

---@param c DecoderSettings
---@param mesh Mesh?
function Decoder:init(c, mesh)
  self.settings, self.mesh = c, mesh or ul.mesh { heads = c.n_heads }
  self.embed = nn.Embedding(c.vocab, c.dim, { std = 0.02 }):shard(self.mesh)
  self.layers = nn.List()
  for i = 1, c.n_layers do
    self.layers:append(Block(c, self.mesh, c.windows[i]):shard(self.mesh))
  end
  self.norm = nn.RMSNorm(c.dim, { eps = c.eps }):shard(self.mesh)
  self.head = c.tied and self.embed
    or nn.Linear(c.dim, c.vocab, { std = 0.02 }):shard(self.mesh)
end

-- How long the text is of which this rank has these positions; only dynamic frequencies ask.
local function length_of(self, positions, cache)
  if self.settings.rope.kind ~= 'dynamic' or positions:device() == 'meta' then return 0 end
  if cache then return cache:length() end
  local mine = positions:numel() == 0 and 0 or positions:max():item() + 1
  local group = self.mesh.sequence
  return agree.most(group.size > 1 and group or nil, mine, 'the length of the text')
end

--- What the last layer gives for this rank's tokens.
---@param inputs Tensor i64 [B, T]
---@param positions Tensor i64 [T] or [B, T]
---@param docs Tensor? offsets of documents, of the whole rows
---@param cache KvCache?
---@return Tensor [B, T, dim]
function Decoder:hidden(inputs, positions, docs, cache)
  local c, mesh = self.settings, self.mesh
  local x = self.embed(inputs)
  local tokens = length_of(self, positions, cache)
  positions = mesh.tp:all_gather(positions, { dim = -1 })
  local angles = rope.table(c.rope, c.head_dim, positions, tokens, x:dtype())
  local call = self.offload and ul.offload or self.recompute and ul.recompute
  for i, block in ipairs(self.layers) do
    local kept = cache and cache:layer(i)
    if call then x = call(block, x, angles, docs, kept) else x = block(x, angles, docs, kept) end
  end
  return self.norm(x)
end

--- The mean loss of a batch of ul.data.
---@param batch Batch
---@return Tensor
function Decoder:forward(batch)
  local x = self:hidden(batch.inputs, batch.positions, batch.docs)
  return batch:mean(F.linear_cross_entropy(x, self.head.weight, batch.targets))
end

--- What comes after each token, of which all ranks have whole rows: [B, T, vocab], or with
--- { last = true } after the last one alone: [B, 1, vocab].
---@param inputs Tensor|integer[] i64 [B, T], or the ids of one row, from 0
---@param given { last: boolean?, cache: KvCache? }? cache: what has been seen before these
---@return Tensor
function Decoder:logits(inputs, given)
  if not ul.is_tensor(inputs) then
    inputs = ul.tensor({ inputs }, { dtype = 'i64', device = self.embed.weight:device() })
  end
  if inputs:dim() == 1 then inputs = inputs:view(1, -1) end
  local T, cache = inputs:size(2), given and given.cache
  local positions = cache and cache:positions(T, inputs:device())
    or ul.arange(T, { dtype = 'i64', device = inputs:device() })
  local x = self:hidden(self.mesh:slice(inputs), self.mesh:slice(positions, positions:dim()), nil,
                        cache)
  x = self.mesh:gather(x)
  if given and given.last then x = x:narrow(2, T, 1) end
  return F.linear(x, self.head.weight)
end

--- How long a text may be whose keys are kept: dynamic frequencies turn all of them anew beyond.
---@return integer?
function Decoder:cache_limit()
  return self.settings.rope.kind == 'dynamic' and self.settings.rope.original or nil
end

--- Text that the model writes behind a prompt, which begins with BOS where the model has one, or
--- its answer in a conversation; see ul.generate.
---@param prompt string|integer[]|table[]|string[]
---@param given table?
---@return string|integer[]|string[]
function Decoder:generate(prompt, given) return ul.generate(self, prompt, given) end

return Decoder
