-- mistral.lua - a Mistral, trained from scratch on bytes of text: llama3.lua, but a token sees only
-- the last few tokens of the layer below, and heads may be wider than their share of dim.
--
--   ulysses-lua recipes/mistral.lua model.window=32 model.head_dim=64
local ul = require 'ulysses'
local llama3 = require 'recipes.llama3'
local nn, F = ul.nn, ul.F

local recipe = ul.recipe 'mistral' {
  model = { vocab = 260, dim = 256, n_layers = 4, n_heads = 8, n_kv_heads = 2, ffn = 688,
            head_dim = 32,         -- of each head; n_heads times this need not be dim
            window = 64,           -- tokens that one sees, itself among them; 0: all
            rope_theta = 10000, eps = 1e-5,
            tied = false,          -- whether embedding and head are one matrix
            path = ul.none 'string' }, -- a folder as downloaded: its model and tokenizer go on
  data = ul.data.sample(),         -- a file of text, or a pattern: 'docs/*.md'
  max_tokens = ul.none 'integer',  -- the longest text that what is saved is meant for; without:
                                   -- as it was, or seq_len
  rope_theta = ul.none 'number',   -- of a folder's model, in place of its own
  tokenizer = ul.none 'string',    -- its folder, or 'bytes'; without: that of the model, or bytes
  held_out = 0.05,                 -- the share of the text, at its end, kept for the test; 0: none
  seq_len = 256, batch = 4,        -- tokens in a row; rows in a step
  accumulate = 1,                  -- parts that a step is done in, to save memory
  recompute = false,               -- backward computes layers again: less memory, a third more time
  offload = false,                 -- inputs of layers and AdamW's state wait off the device
  sp = 1,                          -- ranks that share each sequence (--ranks); others share rows
  ring = 0,                        -- parts of sp in a ring; 0: as few as there must be
  tp = 1,                          -- ranks that share each weight and the tokens of an sp rank
  shard = false,                   -- each rank keeps a slice of weights, gradients, AdamW's state
  steps = 800, lr = 1.4e-3,
  warmup = 50,                     -- steps in which lr rises; then it falls to a tenth
  clip = 1.0,                      -- the largest norm of a step's gradient
  weight_decay = 0.1, seed = 1,
  dtype = ul.none 'string',        -- of the weights; without: that of the model's folder, or f32
  out = 'runs/mistral',            -- where the run is kept and resumed; '' keeps nothing
  save_every = 100, keep = 2,      -- steps between checkpoints; how many stay
  save = ul.none 'string',         -- a folder for the model at the end, which Transformers loads
  log_every = 10, tensorboard = false,
  prompt = 'A hacker is',          -- what a text begins with that is written at the end
  sample = 300,                    -- tokens that follow
}

local Attention = nn.class 'Attention'
function Attention:init(c, mesh)
  local q, kv = nn.head_shares(mesh.tp, c.n_heads, c.n_kv_heads)
  self.head_dim, self.window, self.mesh = c.head_dim, c.window, mesh
  self.wq = nn.ColumnLinear(c.dim, c.n_heads * c.head_dim, { share = q })
  self.wk = nn.ColumnLinear(c.dim, c.n_kv_heads * c.head_dim, { share = kv })
  self.wv = nn.ColumnLinear(c.dim, c.n_kv_heads * c.head_dim, { share = kv })
  self.wo = nn.RowLinear(c.n_heads * c.head_dim, c.dim,
                         { share = q, std = 0.02 / math.sqrt(2 * c.n_layers) })
end
function Attention:forward(x, rope, docs, cache)
  local q, k, v = nn.columns(x, self.wq, self.wk, self.wv)
  local B, T = q:size()
  q = F.rope(q:view(B, T, -1, self.head_dim), rope)
  k = F.rope(k:view(B, T, -1, self.head_dim), rope)
  v = v:view(B, T, -1, self.head_dim)
  local o = ul.ulysses.attention(q, k, v, { mesh = self.mesh, causal = true, docs = docs,
                                            window = self.window, cache = cache })
  return self.wo(o:view(B, T, -1))
end

local Mistral = nn.class('Mistral', llama3.model)
Mistral.Attention = Attention
recipe.model = Mistral

function recipe.train(cfg) return llama3.train(cfg, Mistral) end

return recipe:main()
